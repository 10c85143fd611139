//! `podwire node run`: does what init does, and then restores everything that somebody removes or
//! changes.
//!
//! It waits without a limit for what others have to provide, since the service manager knows how
//! long a machine may take to start. What somebody removes again and again is restored ten times a
//! minute and then not for a while: two programs that undo each other's changes help nobody.

mod report;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use itertools::Itertools as _;
use podwire_daemon::Manager;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tracing::{error, info, warn};

use crate::Surroundings;
use crate::announce::{self, Announced};
use crate::apply::{Failure, drop_failed};
use crate::cluster::{ApiNode, Condition};
use crate::diff::{self, Finding, Step};
use crate::events::Changes;
use crate::items::{self, Item, ObservedUplink, State, Writer};
use crate::left_out::LeftOut;
use crate::moved::Moved;
use crate::plan::Conflict;
use crate::reconcile::{MOST_ROUNDS, NodeError, Reconciler, refuse_foreign};
use crate::record::Record;
use crate::services::{self, LocalNode, Services, Updated};
use crate::settings::{ClusterSettings, FollowError, Mode, Settings, SettingsError};
use crate::snapshot::Snapshot;
use crate::watch::Watch;
use report::{first, is_last, or_later};

/// How often an item is restored within `RESTORE_WINDOW` before that pauses for `PAUSE`.
const MOST_RESTORES: usize = 10;
const RESTORE_WINDOW: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(60);
/// The delay before a failed step or look is retried.
const RETRY: Duration = Duration::from_secs(1);

/// Maintains the node until `stop`, and its services from `watch`.
///
/// # Errors
/// Before the node is ready, those of init; later, that there are no more events.
pub(crate) async fn run(
    reconciler: Reconciler,
    record: Record,
    watch: Option<Watch>,
    surroundings: &Surroundings<'_>,
    stop: impl Future<Output = ()>,
) -> Result<(), NodeError> {
    let mut daemon = Daemon {
        flags: reconciler.settings().cloned(),
        given: ClusterSettings::default(),
        reconciler,
        record,
        watch,
        services: Services::default(),
        left_out: LeftOut::default(),
        announced: None,
        writing: JoinSet::new(),
        unwritten: None,
        condition: None,
        told: None,
        telling: JoinSet::new(),
        manager: surroundings.manager,
        logged_subnets: String::new(),
        conflicts: BTreeSet::new(),
        is_checked: false,
        is_ready: false,
        planned: Vec::new(),
        restores: BTreeMap::new(),
        status: String::new(),
        guarded: None,
        guards: JoinSet::new(),
    };
    if let Some(watch) = &daemon.watch {
        daemon.reconciler.verify_by(watch.client.clone());
    }
    let mut stop = std::pin::pin!(stop);
    let mut changes = Changes::default();
    let mut alive = std::pin::pin!(surroundings.manager.keep_alive());
    'running: loop {
        let again = daemon.reconcile(changes).await?;
        daemon.tell();
        let never = Instant::now() + RESTORE_WINDOW;
        changes = loop {
            break tokio::select! {
                () = &mut stop => break 'running,
                changes = daemon.reconciler.changes() => changes?,
                () = watch_changed(&mut daemon.watch) => Changes::default(),
                Some(written) = daemon.writing.join_next() => {
                    daemon.written(written);
                    Changes::default()
                }
                Some(told) = daemon.telling.join_next() => {
                    daemon.was_told(told);
                    Changes::default()
                }
                Some(_) = daemon.guards.join_next() => Changes::default(),
                () = sleep_until(again.unwrap_or(never)), if again.is_some() => Changes::default(),
                () = &mut alive => continue,
            };
        };
    }
    surroundings
        .manager
        .notify("STOPPING=1\nSTATUS=ending; everything stays as it is");
    Ok(())
}

/// Waits until the API server reports something; without one, for ever.
async fn watch_changed(watch: &mut Option<Watch>) {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

struct Daemon<'a> {
    /// The settings of the flags.
    flags: Option<Settings>,
    /// What the API server has said.
    given: ClusterSettings,
    reconciler: Reconciler,
    record: Record,
    watch: Option<Watch>,
    services: Services,
    left_out: LeftOut,
    /// The Node when its annotations were last written, and what was written.
    announced: Option<(Arc<ApiNode>, Announced)>,
    /// The write of annotations that is under way, so that no answer delays a restore.
    writing: JoinSet<Result<usize, String>>,
    /// Why the last one failed.
    unwritten: Option<String>,
    /// What the Node's condition is to say, once that is known.
    condition: Option<Condition>,
    /// The Node when that was last written, and what was written.
    told: Option<(Arc<ApiNode>, Condition)>,
    /// The write of it that is under way.
    telling: JoinSet<Result<(), String>>,
    manager: &'a Manager,
    /// The node's subnets as last logged.
    logged_subnets: String,
    /// The conflicts of the last snapshot.
    conflicts: BTreeSet<String>,
    /// Whether the preflight checks have run.
    is_checked: bool,
    is_ready: bool,
    /// The plan's items at the last snapshot, as far as they could be created.
    planned: Vec<Item>,
    /// When each item was last restored, by its identity.
    restores: BTreeMap<String, Restores>,
    /// The last reported status.
    status: String,
    /// The deadline of the move for which this process stands in as the guard.
    guarded: Option<String>,
    guards: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Restores {
    /// Those within the last `RESTORE_WINDOW`.
    times: VecDeque<Instant>,
    /// It is not restored until then.
    paused_until: Option<Instant>,
}

impl Daemon<'_> {
    /// Looks and executes steps until nothing is left to do; returns when to look again without an
    /// event.
    async fn reconcile(&mut self, mut changes: Changes) -> Result<Option<Instant>, NodeError> {
        let former = self.given.subnets.clone();
        let invalid = match self.read_cluster() {
            Ok(invalid) => invalid,
            Err(error) => {
                self.set_status(false, error.to_string());
                return Ok(None);
            }
        };
        let mut not_taken: Vec<String> = invalid.iter().map(ToString::to_string).collect();
        if !changes.firewall.is_empty() {
            self.services.look_again(changes.rules);
        }
        let by = changes.clone();
        let mut failures: Vec<Failure> = Vec::new();
        for round in 0.. {
            if let Some(flags) = &self.flags {
                self.reconciler.set_settings(flags.with(&self.given));
            }
            let snapshot = match self.reconciler.snapshot().await {
                Ok(snapshot) => snapshot,
                Err(error) => return Ok(Some(self.failed(&error))),
            };
            if self.is_led_otherwise(&snapshot) {
                continue;
            }
            self.guard_move(&snapshot);
            let conflicts = &snapshot.plan.conflicts;
            if !former.is_empty() && former != self.given.subnets {
                let of_subnets = conflicts.iter().filter(|it| it.is_of_subnets());
                let of_subnets: Vec<String> = of_subnets.map(ToString::to_string).collect();
                if !of_subnets.is_empty() {
                    // A living node keeps its own.
                    self.given.subnets.clone_from(&former);
                    not_taken.extend(of_subnets);
                    continue;
                }
            }
            let conflicting = conflicts.iter().map(ToString::to_string);
            let mut troubles: Vec<String> = not_taken.iter().cloned().chain(conflicting).collect();
            self.note_conflicts(&troubles);
            if self.reconciler.is_untouched() && conflicts.iter().any(Conflict::is_of_all) {
                self.record.well(false);
                self.set_status(false, format!("nothing is set up: {}", first(&troubles)));
                self.post_warnings();
                return Ok(None);
            }
            if !std::mem::replace(&mut self.is_checked, true) {
                let api = self.watch.as_ref().map(|watch| watch.client.clone());
                for warning in self
                    .reconciler
                    .check_surroundings(&snapshot, api.as_ref())
                    .await?
                {
                    warn!("{warning}");
                }
            }
            self.log_subnets();
            if !self.is_ready {
                refuse_foreign(&snapshot.findings, false)?;
            }
            let mut steps = self.allowed(&snapshot.findings);
            drop_failed(&mut steps, &failures);
            if steps.is_empty() || round >= MOST_ROUNDS {
                let mut failed: Vec<String> = failures
                    .iter()
                    .map(|failure| format!("{failure}; retrying"))
                    .collect();
                if !steps.is_empty() {
                    let left = steps.iter().map(|step| step.item().identity());
                    let undone = "something undoes podwire's changes of";
                    failed.push(format!("{undone} {}", first(&left.collect::<Vec<_>>())));
                }
                failed.extend(self.follow(&snapshot, &by).await);
                let again = (!failed.is_empty()).then(|| Instant::now() + RETRY);
                if !troubles.is_empty() {
                    troubles = vec![first(&troubles)];
                }
                troubles.extend(self.reconciler.unseen());
                troubles.extend(self.missed_service());
                troubles.extend(failed);
                self.report(&snapshot, troubles);
                self.remember(&snapshot);
                let due = [again, self.pauses_end(), self.reconciler.uplink_moves()];
                return Ok(due.into_iter().flatten().min());
            }
            let failed = self.reconciler.apply(&steps, &snapshot.actual).await;
            steps.retain(|step| !failed.iter().any(|it| it.steps.contains(step)));
            failures.extend(failed);
            if self.is_ready {
                self.note(&snapshot.findings, &steps, &changes);
            }
            changes = Changes::default();
            self.remember(&snapshot);
        }
        Ok(None)
    }

    /// Becomes the guard of a move once no other process is: where the guard is no unit of
    /// systemd's, nobody else starts one again.
    fn guard_move(&mut self, snapshot: &Snapshot) {
        let deadline = snapshot.actual.moved.as_ref().and_then(Moved::deadline);
        let until = deadline.map(|deadline| deadline.until.clone());
        if let Some(until) = until.clone().filter(|_| until != self.guarded) {
            self.guards.spawn(self.reconciler.guard_move(until));
        }
        let seen = snapshot.actual.switch.uplink.as_ref();
        let is_moved = seen.is_some_and(ObservedUplink::has_port);
        self.record.nic(is_moved, until.is_some());
        self.guarded = until;
    }

    /// Remembers the plan's items that existed or could be created: nobody has removed one that was
    /// only waiting.
    fn remember(&mut self, snapshot: &Snapshot) {
        self.planned
            .retain(|item| snapshot.plan.items.contains(item));
        let made = snapshot
            .findings
            .iter()
            .filter(|finding| !matches!(finding.state, State::Waits(_) | State::Foreign(_)));
        for Finding { item, .. } in made {
            if !self.planned.contains(item) {
                self.planned.push(item.clone());
            }
        }
    }

    /// Reports a failure once; it is retried soon.
    fn failed(&mut self, error: &NodeError) -> Instant {
        self.set_status(false, format!("retrying: {error}"));
        Instant::now() + RETRY
    }

    /// Reads what the API server says about this node's subnets and other nodes; returns what is
    /// wrong with what is not taken.
    fn read_cluster(&mut self) -> Result<Option<SettingsError>, FollowError> {
        match (&self.watch, &self.flags) {
            (Some(watch), Some(flags)) => flags.follow(&watch.cluster, &mut self.given),
            _ => Ok(None),
        }
    }

    /// Sees what a gateway router leads to pods; returns whether that is not what the snapshot had.
    fn is_led_otherwise(&mut self, snapshot: &Snapshot) -> bool {
        let led = match (&self.watch, self.reconciler.settings()) {
            (Some(watch), Some(settings)) if settings.shares => {
                services::led(&watch.cluster, settings, snapshot)
            }
            _ => Some(BTreeSet::new()),
        };
        self.reconciler.set_led(led)
    }

    fn missed_service(&self) -> Option<String> {
        let (watch, settings) = (self.watch.as_ref()?, self.reconciler.settings()?);
        let missed = settings.missed_service(&watch.cluster)?;
        Some(missed.to_string())
    }

    /// Updates services from the cluster, and publishes the node; returns failures, as text.
    async fn follow(&mut self, snapshot: &Snapshot, changes: &Changes) -> Vec<String> {
        let Some(watch) = &self.watch else {
            return Vec::new();
        };
        let Some(settings) = self.reconciler.settings().cloned() else {
            return Vec::new();
        };
        self.record.unreadable(watch.unread.total());
        if settings.mode == Mode::Plain {
            self.post_warnings();
            return Vec::new();
        }
        let mut troubles = Vec::new();
        let here = LocalNode::of(&settings, &snapshot.actual);
        let item = Item::Services(items::Services);
        let identity = item.identity();
        let updated = match self.is_paused(&identity) {
            true => Ok(Updated::Nothing),
            false => self.services.update(&watch.cluster, &here).await,
        };
        match updated {
            Ok(Updated::Restored) => {
                let by = by_whom(&item, changes);
                warn!("restored {identity} (was changed); changed by {by}");
                self.record
                    .restored(item.name(), &identity, "was changed", &by);
                count_restore(&mut self.restores, &mut self.record, identity, &by);
            }
            Ok(Updated::Changed | Updated::Nothing) => {}
            Err(error) => troubles.push(format!("services: {error}")),
        }
        let refused = self.services.refused();
        self.left_out.report(refused, watch, &settings.node_name);
        self.record.refused(self.left_out.count());
        let Some(node) = watch.cluster.nodes.objects.get(&settings.node_name) else {
            return troubles;
        };
        let wanted = announce::annotations(snapshot, node);
        if !is_last(self.announced.as_ref(), node, &wanted) && self.writing.is_empty() {
            if wanted.missing(node) == 0 {
                // A write that got no answer may have been made.
                self.unwritten = None;
            } else {
                let (client, name) = (watch.client.clone(), settings.node_name.clone());
                let write = announce::announce(client, name, node.clone(), wanted.clone());
                self.writing.spawn(or_later(write));
            }
            self.announced = Some((node.clone(), wanted));
        }
        troubles.extend(self.unwritten.clone());
        self.post_warnings();
        troubles
    }

    /// A write of annotations has ended.
    fn written(&mut self, written: Result<Result<usize, String>, JoinError>) {
        let failure = match written {
            Ok(Ok(count)) => {
                info!(count, "annotations written");
                None
            }
            Ok(Err(error)) => Some(error),
            Err(error) => Some(error.to_string()),
        };
        if failure.is_some() {
            self.announced = None;
        }
        self.unwritten = failure.map(|error| format!("write annotations of the Node: {error}"));
    }

    /// The steps of items whose restoring is not paused.
    fn allowed(&mut self, findings: &[Finding]) -> Vec<Step> {
        let now = Instant::now();
        for restores in self.restores.values_mut() {
            if restores.paused_until.is_some_and(|end| end <= now) {
                *restores = Restores::default();
            }
        }
        let steps = diff::steps(findings).into_iter();
        steps
            .filter(|step| !self.is_paused(&step.item().identity()))
            .collect()
    }

    fn is_paused(&self, identity: &str) -> bool {
        let restores = self.restores.get(identity);
        restores.is_some_and(|restores| restores.paused_until.is_some())
    }

    /// Counts and reports what is restored, and why. What only follows a change of the machine,
    /// such as another address, does not count.
    fn note(&mut self, findings: &[Finding], steps: &[Step], changes: &Changes) {
        for step in steps {
            let item = match step {
                Step::Make(item) if self.planned.contains(item) => item,
                Step::Make(item) | Step::Remove(item) => {
                    info!("changed with the machine: {item}");
                    continue;
                }
            };
            let state = findings.iter().find(|finding| finding.item == *item);
            let was = match state.map(|finding| &finding.state) {
                Some(State::Differs(seen)) => format!("was {seen}"),
                _ => "was missing".to_owned(),
            };
            let is_missing = was == "was missing";
            let by = by_whom(item, changes);
            let verb = if is_missing { "removed" } else { "changed" };
            warn!("restored {item} ({was}); {verb} by {by}");
            let identity = item.identity();
            self.record.restored(item.name(), &identity, &was, &by);
            count_restore(&mut self.restores, &mut self.record, identity, &by);
        }
    }

    fn pauses_end(&self) -> Option<Instant> {
        self.restores
            .values()
            .filter_map(|restores| restores.paused_until)
            .min()
    }
}

/// Counts what is restored, by identity, and pauses what is restored too often.
fn count_restore(
    restores: &mut BTreeMap<String, Restores>,
    record: &mut Record,
    identity: String,
    by: &str,
) {
    let now = Instant::now();
    let text = format!(
        "{identity} was restored {MOST_RESTORES} times within {} s, the last time after a change \
         by {by}; it is not restored for {} s",
        RESTORE_WINDOW.as_secs(),
        PAUSE.as_secs()
    );
    let restores = restores.entry(identity).or_default();
    restores.times.retain(|time| now - *time < RESTORE_WINDOW);
    restores.times.push_back(now);
    if restores.times.len() > MOST_RESTORES {
        restores.paused_until = Some(now + PAUSE);
        error!("{text}");
        record.restores_paused(text);
    }
}

/// Who may have changed an item, judged by the kernel's reports of changes at the same time.
fn by_whom(item: &Item, changes: &Changes) -> String {
    let names = match item.writer() {
        Writer::Switch => return "a client of Open vSwitch's database".to_owned(),
        Writer::OpenFlow => return "an OpenFlow client, or a restart of ovs-vswitchd".to_owned(),
        Writer::Southbound => {
            return "ovn-controller, or another client of the southbound database".to_owned();
        }
        Writer::Firewalld => return "firewalld, or a program that called it".to_owned(),
        Writer::Firewall => &changes.firewall,
        Writer::Kernel => &changes.processes,
    };
    match names.len() {
        0 => "a process that the kernel does not name".to_owned(),
        _ => names.iter().join(" or "),
    }
}
