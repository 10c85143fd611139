//! The one loop: look, compare, execute steps, and look again until nothing is left to do or an
//! event has to come first.

mod error;
mod guard;
mod nics;
mod rollback;

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use podwire_ovs::client::State as Connection;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::warn;

use crate::apply::{ApplyError, Counts, Failure, Machine, Moving, drop_failed};
use crate::diff::{self, Step};
use crate::events::{Changes, Events, Links};
use crate::firewall::Table;
use crate::items::{Actual, Bridge, File, Item, Led, ObservedSwitch, State, Tables, Undo};
use crate::journal::Journal;
use crate::moved::{self, Moved, Phase};
use crate::plan::AGENT_FILE;
use crate::preflight::{self, Preflight};
use crate::settings::{Mode, Places, Settings};
use crate::snapshot::{Connections, Goal, Snapshot};
use crate::{GATEWAY, LINK, LINKS};

pub(crate) use error::{NodeError, awaited, refuse_foreign};
use error::{judged, refuse_conflicts};
pub(crate) use guard::{Guard, undo_unguarded};
use nics::Nics;
pub(crate) use rollback::Rollback;

/// How long init waits for others: for ovn-controller to create the bridge, for ovs-vswitchd to
/// create the link.
const OTHERS_LIMIT: Duration = Duration::from_secs(30);
/// How many rounds may execute steps. A change takes two or three; more means that somebody undoes
/// it. Rounds that only wait have a deadline instead.
pub(crate) const MOST_ROUNDS: usize = 20;

/// The machine, its goal, and when to look again.
pub(crate) struct Reconciler {
    goal: Goal,
    machine: Machine,
    events: Events,
    connections: Connections,
    /// The nftables tables as last seen, until they change.
    tables: Option<Tables>,
    /// Open vSwitch's database as last seen.
    switch: ObservedSwitch,
    nics: Nics,
}

impl Reconciler {
    /// Locks the journal, and listens.
    pub(crate) async fn open(goal: Goal, places: &Places) -> Result<Self, NodeError> {
        let journal = Journal::hold(&places.directory)?;
        Self::with_journal(goal, places, journal).await
    }

    /// Listens, and continues with a journal.
    pub(crate) async fn with_journal(
        goal: Goal,
        places: &Places,
        journal: Journal,
    ) -> Result<Self, NodeError> {
        let connections = Connections::open(places, &goal).await?;
        let settings = goal.settings.as_ref();
        let is_plain = settings.is_some_and(|settings| settings.mode == Mode::Plain);
        let mut files = vec![journal.file()];
        files.extend(is_plain.then(|| AGENT_FILE.into()));
        let is_bridged = settings.is_some_and(|settings| settings.gateway().is_some());
        files.extend(is_bridged.then(|| moved::file(&places.directory)));
        let signals = match &connections.firewalld {
            Some(firewalld) => firewalld.signals().await.ok(),
            None => None,
        };
        let events = Events::listen(connections.databases(), connections.port, &files, signals)?;
        let machine = Machine {
            client: connections.client.clone(),
            southbound: connections.southbound.clone(),
            firewalld: connections.firewalld.clone(),
            handle: connections.handle.clone(),
            journal,
            owned: Default::default(),
            counts: Counts::default(),
            moving: Moving::of(places),
        };
        Ok(Self {
            goal,
            machine,
            events,
            connections,
            tables: None,
            switch: ObservedSwitch::default(),
            nics: Nics::default(),
        })
    }

    /// Checks the machine and its surroundings before anything is changed, and returns possible
    /// problems. Waits for a NIC that is to be moved and is just being configured.
    ///
    /// # Errors
    /// [`NodeError::Refused`]; or why a snapshot failed.
    pub(crate) async fn preflight(
        &mut self,
        api: Option<&kube::Client>,
    ) -> Result<Vec<String>, NodeError> {
        let deadline = Instant::now() + OTHERS_LIMIT;
        let mut snapshot = self.snapshot().await?;
        while Instant::now() < deadline && preflight::awaits(&snapshot, api).await {
            // A network manager says only in a file, or over D-Bus, that it is done.
            if let Ok(changes) = timeout(guard::RETRY, self.changes()).await {
                changes?;
            }
            snapshot = self.snapshot().await?;
        }
        let mut found = self.surroundings(&snapshot, api).await;
        let conflicts = snapshot.plan.conflicts.iter().map(ToString::to_string);
        found.refusals.splice(..0, conflicts);
        judged(found)
    }

    /// Checks the surroundings of the machine, and returns possible problems.
    ///
    /// # Errors
    /// [`NodeError::Refused`].
    pub(crate) async fn check_surroundings(
        &self,
        snapshot: &Snapshot,
        api: Option<&kube::Client>,
    ) -> Result<Vec<String>, NodeError> {
        judged(self.surroundings(snapshot, api).await)
    }

    async fn surroundings(&self, snapshot: &Snapshot, api: Option<&kube::Client>) -> Preflight {
        match &self.goal.settings {
            Some(settings) => Preflight::check(settings, snapshot, api).await,
            None => Preflight::default(),
        }
    }

    /// Sets how a move of the NIC is guarded. One that was rolled back may be tried once more.
    pub(crate) fn set_moving(&mut self, moving: Moving) -> Result<(), NodeError> {
        let directory = &moving.places.directory;
        if Moved::read(directory)?.is_some_and(|moved| !moved.is_there()) {
            Moved::forget(directory)?;
        }
        self.machine.moving = moving;
        Ok(())
    }

    /// Has a moved NIC's new path verified by this API server, too.
    pub(crate) fn verify_by(&mut self, api: kube::Client) {
        self.machine.moving.api = Some(api);
    }

    /// The guard of the move with this deadline, once no other process is. It begins again after an
    /// error: there may be no other guard.
    pub(crate) fn guard_move(&self, until: String) -> impl Future<Output = ()> + Send + 'static {
        let places = self.machine.moving.places.clone();
        async move {
            let watch = || async {
                let guard = moved::wait_for_guard(&places.directory).await?;
                Guard::open(&places, &until, guard).await?.run().await
            };
            while let Err(error) = watch().await {
                warn!("guard the move of the NIC: {error}");
                tokio::time::sleep(guard::RETRY).await;
            }
        }
    }

    /// Whether nothing was created in the kernel since the machine was booted.
    pub(crate) fn is_untouched(&self) -> bool {
        self.machine.journal.undos().is_empty()
    }

    /// Why what is in Open vSwitch's database is not seen now; what is known of it is older.
    pub(crate) fn unseen(&self) -> Option<String> {
        let why = match self.connections.client.state() {
            Connection::Synced => return None,
            Connection::Connected => ": it has not sent its rows yet".to_owned(),
            Connection::Disconnected { last_error, .. } => {
                last_error.map_or_else(String::new, |error| format!(": {error}"))
            }
        };
        Some(format!("Open vSwitch's database does not answer{why}"))
    }

    /// The settings in effect.
    pub(crate) fn settings(&self) -> Option<&Settings> {
        self.goal.settings.as_ref()
    }

    /// Sets them.
    pub(crate) fn set_settings(&mut self, settings: Settings) {
        self.goal.settings = Some(settings);
    }

    /// Sets what a gateway router leads to pods, once it is known; returns whether that changed.
    pub(crate) fn set_led(&mut self, led: Option<BTreeSet<Led>>) -> bool {
        let is_other = led.is_some() && led != self.goal.led;
        if is_other {
            self.goal.led = led;
        }
        is_other
    }

    /// The counts so far.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = self.machine.counts;
        counts.files += self.machine.journal.writes;
        counts
    }

    /// Sets up the machine, and waits for what others have to provide.
    pub(crate) async fn init(&mut self) -> Result<Vec<Step>, NodeError> {
        let deadline = Instant::now() + OTHERS_LIMIT;
        let (mut rounds, mut failures) = (Vec::new(), Vec::new());
        loop {
            let snapshot = self.reconcile(&mut rounds, &mut failures).await?;
            if !failures.is_empty() {
                return Err(NodeError::Apply(failures));
            }
            let awaited = awaited(&snapshot.findings);
            if awaited.is_empty() {
                return Ok(rounds.concat());
            }
            self.await_event(deadline, awaited).await?;
        }
    }

    /// Removes everything of podwire's and restores what it replaced, whatever state an interrupted
    /// run left.
    pub(crate) async fn cleanup(&mut self, force: bool) -> Result<Vec<Step>, NodeError> {
        let deadline = Instant::now() + OTHERS_LIMIT;
        let snapshot = self.snapshot().await?;
        let removes_port = |step: &Step| match step {
            Step::Remove(Item::Port(port)) => port.link == LINK,
            Step::Remove(Item::File(File { path, .. })) => path == AGENT_FILE,
            _ => false,
        };
        let pods = snapshot.actual.pods;
        if !force && pods > 0 && diff::steps(&snapshot.findings).iter().any(removes_port) {
            return Err(NodeError::Pods(pods));
        }
        let (mut rounds, mut failures) = (Vec::new(), Vec::new());
        loop {
            let snapshot = self.reconcile(&mut rounds, &mut failures).await?;
            let Actual { switch, links, .. } = snapshot.actual;
            let mut noted = self.machine.journal.undos().iter();
            let left = noted.find_map(|undo| {
                let (link, has_row) = match undo {
                    Undo::Made(Item::Port(port)) => {
                        let link = port.link.as_str();
                        (link, switch.ports.contains_key(link))
                    }
                    Undo::Made(Item::Bridge(Bridge { name, .. })) => {
                        (name.as_str(), switch.bridges.contains_key(name))
                    }
                    _ => return None,
                };
                (!has_row && links.contains_key(link)).then_some(link)
            });
            let awaited = match left {
                _ if !switch.answers => {
                    "  Open vSwitch's database, which does not answer".to_owned()
                }
                Some(link) => format!("  ovs-vswitchd to remove link {link}"),
                None if failures.is_empty() => {
                    Moved::forget(self.machine.journal.directory())?;
                    self.machine.journal.forget()?;
                    return Ok(rounds.concat());
                }
                None => {
                    let is_route = |step: &Step| matches!(step.item(), Item::Former(_));
                    if failures.iter().flat_map(|it| &it.steps).all(is_route) {
                        // The next cleanup tries them again.
                        self.machine.journal.keep_replaced()?;
                    }
                    return Err(NodeError::Apply(failures));
                }
            };
            self.await_event(deadline, vec![awaited]).await?;
        }
    }

    /// Looks and executes steps until none is left but those that failed; adds each round's steps
    /// to `rounds`.
    async fn reconcile(
        &mut self,
        rounds: &mut Vec<Vec<Step>>,
        failures: &mut Vec<Failure>,
    ) -> Result<Snapshot, NodeError> {
        loop {
            let snapshot = self.snapshot().await?;
            let more = !rounds.is_empty();
            refuse_conflicts(&snapshot.plan.conflicts, more)?;
            refuse_foreign(&snapshot.findings, more)?;
            let mut steps = diff::steps(&snapshot.findings);
            drop_failed(&mut steps, failures);
            if steps.is_empty() {
                return Ok(snapshot);
            }
            if rounds.len() == MOST_ROUNDS {
                let left = steps.iter().map(|step| format!("  {step:?}"));
                return Err(NodeError::Undone(left.collect()));
            }
            failures.extend(self.apply(&steps, &snapshot.actual).await);
            rounds.push(steps);
        }
    }

    /// Looks at everything; at the nftables tables if they may have changed.
    pub(crate) async fn snapshot(&mut self) -> Result<Snapshot, NodeError> {
        self.machine.journal.restore()?;
        let known = self.tables.take();
        let journal = &self.machine.journal;
        let snapshot = self
            .connections
            .snapshot(&self.goal, journal, known.clone());
        let mut snapshot = snapshot.await?;
        if self.nics.settle(&mut self.goal, &snapshot) {
            let journal = &self.machine.journal;
            snapshot = self
                .connections
                .snapshot(&self.goal, journal, known)
                .await?;
        }
        self.record_table(&snapshot);
        self.restore_moved(&snapshot)?;
        let index = |name: &str| snapshot.actual.links.get(name).map(|link| link.index);
        let planned = snapshot.plan.items.iter().filter_map(|item| match item {
            Item::Route(route) => Some(route.link.as_str()),
            // Its MTU is the bridge's.
            Item::Uplink(uplink) => Some(uplink.nic.as_str()),
            _ => None,
        });
        let settings = self.goal.settings.as_ref();
        let bridge = settings.map(|settings| settings.bridge.as_str());
        let others = planned.chain(bridge).chain(snapshot.plan.uplink.as_deref());
        // cleanup waits for its removal, without settings.
        let others = others.chain(index(GATEWAY).map(|_| GATEWAY));
        let others = others.chain(settings.and_then(|it| it.gateway()));
        let names = others.clone().chain(LINKS);
        let listens = snapshot
            .plan
            .flows()
            .map(|_| self.connections.flows.clone());
        self.events.flows_are(listens);
        self.events.links_are(Links {
            names: names.map(str::to_owned).collect(),
            own: LINKS.into_iter().filter_map(index).collect(),
            others: others.filter_map(index).collect(),
            networks: settings.map(Settings::networks).unwrap_or_default(),
            awaits: self.nics.awaits(),
        });
        self.tables = Some((snapshot.actual.tables.clone(), snapshot.actual.services));
        let asks = snapshot.plan.asks_southbound;
        if asks != self.connections.southbound.is_some() {
            let settings = settings.filter(|_| asks).cloned();
            self.connections.follow_southbound(settings.as_ref())?;
            self.machine.southbound = self.connections.southbound.clone();
            self.events
                .southbound_is(self.connections.southbound.as_ref());
        }
        self.switch = snapshot.actual.switch.clone();
        Ok(snapshot)
    }

    /// Writes the record of a confirmed move again if somebody has removed it: without it, the next
    /// start of Open vSwitch's database would take the NIC out of its bridge (`plan::bridged`).
    fn restore_moved(&self, snapshot: &Snapshot) -> Result<(), NodeError> {
        let Snapshot {
            actual,
            plan,
            findings,
        } = snapshot;
        let is_nic = |item: &Item| matches!(item, Item::Uplink(_));
        let is_well = plan.items.iter().any(is_nic)
            && findings.iter().any(|it| is_nic(&it.item) && it.is_well());
        let seen = actual.switch.uplink.as_ref();
        let seen = seen.filter(|seen| is_well && seen.confirmed && seen.has_port());
        let Some(seen) = seen.filter(|_| actual.moved.is_none()) else {
            return Ok(());
        };
        // One that is in the bridge since an earlier boot has nothing there.
        let held = actual.held.get(&seen.bridge);
        let Some(config) = held.filter(|held| held.has_addresses()) else {
            return Ok(());
        };
        let directory = self.machine.journal.directory();
        // Who has the lock moves the NIC, and writes the record.
        let Some(_lock) = moved::lock(directory)? else {
            return Ok(());
        };
        if Moved::read(directory)?.is_some() {
            return Ok(());
        }
        warn!(
            "the record of {}'s move was removed, and is written again",
            seen.nic
        );
        let moved = Moved {
            nic: seen.nic.clone(),
            bridge: seen.bridge.clone(),
            phase: Phase::Confirmed,
            config: config.clone(),
        };
        Ok(moved.write(directory)?)
    }

    /// Records how nft lists the tables that podwire has just written.
    fn record_table(&mut self, snapshot: &Snapshot) {
        let well = snapshot
            .findings
            .iter()
            .filter_map(|finding| match &finding.item {
                Item::Table(table) if finding.state == (State::Well { ours: true }) => Some(table),
                _ => None,
            });
        let journal = &mut self.machine.journal;
        for name in well.filter_map(Table::known) {
            if let (None, Some(seen)) = (journal.table(name), snapshot.actual.tables.get(name)) {
                journal.record_table(name, Some(seen.digest.clone()));
            }
        }
    }

    /// When the uplink is to follow the default route, or the NIC is no longer waited for.
    pub(crate) fn uplink_moves(&self) -> Option<Instant> {
        self.nics.deadline()
    }

    /// Executes steps, after a snapshot; returns those that failed.
    pub(crate) async fn apply(&mut self, steps: &[Step], actual: &Actual) -> Vec<Failure> {
        let of_table = |step: &Step| {
            matches!(
                step,
                Step::Make(Item::Table(_)) | Step::Remove(Item::Table(_) | Item::Services(_))
            )
        };
        if steps.iter().any(of_table) {
            self.tables = None;
        }
        for step in steps {
            if let Item::Table(table) = step.item()
                && let Some(name) = table.known()
            {
                self.machine.journal.record_table(name, None);
            }
        }
        let mut refused = Vec::new();
        let moves = |step: &&Step| matches!(step, Step::Make(Item::Uplink(_)));
        let person = self.settings().is_some_and(|settings| settings.moves);
        if let Some(step @ Step::Make(Item::Uplink(uplink))) = steps.iter().find(moves)
            && !person
        {
            let api = self.machine.moving.api.as_ref();
            let reasons = preflight::of_nic(&uplink.nic, &uplink.bridge, actual, api).await;
            refused.extend((!reasons.is_empty()).then(|| Failure {
                steps: vec![step.clone()],
                error: ApplyError::Unsafe(reasons.join("; ")),
            }));
        }
        let is_refused = |step: &&Step| !refused.iter().any(|it: &Failure| it.steps.contains(step));
        let steps: Vec<Step> = steps.iter().filter(is_refused).cloned().collect();
        let failed = self.machine.apply(&steps, actual).await;
        refused.extend(failed);
        refused
    }

    /// Waits until something has happened that calls for another snapshot.
    pub(crate) async fn changes(&mut self) -> io::Result<Changes> {
        loop {
            let changes = self.events.next().await?;
            if !changes.firewall.is_empty() {
                self.tables = None;
            }
            let only_switch = Changes {
                switch: true,
                ..Changes::default()
            };
            // Pods' ports come and go all the time.
            if changes != only_switch || self.connections.switch() != self.switch {
                return Ok(changes);
            }
        }
    }

    async fn await_event(
        &mut self,
        deadline: Instant,
        awaited: Vec<String>,
    ) -> Result<(), NodeError> {
        let limit = OTHERS_LIMIT;
        match timeout_at(deadline, self.changes()).await {
            Ok(changes) => Ok(changes.map(drop)?),
            Err(_) => Err(NodeError::Awaited { limit, awaited }),
        }
    }
}
