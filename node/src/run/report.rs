//! What a run says of its state: to the log, the service manager, the metrics and the API server.

use std::collections::BTreeSet;
use std::sync::Arc;

use podwire_apiserver::event;
use podwire_daemon::output::some;
use tokio::task::JoinError;
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::{Daemon, RETRY};
use crate::GATEWAY;
use crate::announce;
use crate::cluster::{ApiNode, Condition};
use crate::diff::Finding;
use crate::items::{Item, State};
use crate::reconcile::{awaited, refuse_foreign};
use crate::record::Warning;
use crate::settings::Mode;
use crate::snapshot::Snapshot;

/// The number of conflicts that are logged at once, and of those that one text names: a network can
/// be in conflict with all nodes.
const LOGGED: usize = 20;
const NAMED: usize = 3;

/// The first of some texts, and the number of the others.
pub(super) fn first(texts: &[String]) -> String {
    some(texts, NAMED, "; ", "; and ")
}

/// Whether this was the last that was written of a Node, and the watch has not reported another
/// since: until it reports what was written, the Node looks as before. One that looks as before
/// after a change is another, to which nothing was written.
pub(super) fn is_last<T: PartialEq>(
    last: Option<&(Arc<ApiNode>, T)>,
    node: &Arc<ApiNode>,
    wanted: &T,
) -> bool {
    last.is_some_and(|(seen, written)| Arc::ptr_eq(seen, node) && written == wanted)
}

/// A write whose failure is told when it is time to try again.
pub(super) async fn or_later<T>(
    write: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let written = write.await;
    if written.is_err() {
        sleep(RETRY).await;
    }
    written
}

impl Daemon<'_> {
    /// Logs the node's subnets when they are others, and acceptable.
    pub(super) fn log_subnets(&mut self) {
        let Some(settings) = self.reconciler.settings().filter(|it| !it.subnets_by_flag) else {
            return;
        };
        let text = settings.subnets_text();
        if text != self.logged_subnets {
            info!("the node's subnets are {text}");
            self.logged_subnets = text;
        }
    }

    /// Logs and counts conflicts, each once while it lasts.
    pub(super) fn note_conflicts(&mut self, conflicts: &[String]) {
        let now: BTreeSet<String> = conflicts.iter().cloned().collect();
        let new: Vec<String> = now.difference(&self.conflicts).cloned().collect();
        for text in new.iter().take(LOGGED) {
            error!("conflict: {text}; what exists stays, and nothing of it is made or restored");
        }
        for text in self.conflicts.difference(&now).take(LOGGED) {
            info!("no longer a conflict: {text}");
        }
        let event = (!new.is_empty()).then(|| first(&new));
        self.record.conflicts(now.len(), event);
        self.conflicts = now;
    }

    /// Posts an Event for each conflict, and for each item whose restoring is paused.
    pub(super) fn post_warnings(&mut self) {
        let (Some(watch), Some(settings)) = (&self.watch, self.reconciler.settings()) else {
            self.record.warnings.clear();
            return;
        };
        let name = &settings.node_name;
        let Some(node) = watch.cluster.nodes.objects.get(name) else {
            return;
        };
        for Warning { reason, text } in self.record.warnings.drain(..) {
            watch.events.post(event::Warning {
                api: "v1",
                kind: "Node",
                namespace: String::new(),
                name: name.clone(),
                uid: node.uid.clone(),
                reason,
                message: text,
            });
        }
    }

    /// Tells the Node's condition what is known, unless it says so already.
    pub(super) fn tell(&mut self) {
        let (Some(watch), Some(settings)) = (&self.watch, self.reconciler.settings()) else {
            return;
        };
        let name = &settings.node_name;
        let (Some(wanted), Some(node)) = (&self.condition, watch.cluster.nodes.objects.get(name))
        else {
            return;
        };
        // In plain mode the account may not write.
        if settings.mode == Mode::Plain || !self.telling.is_empty() {
            return;
        }
        let is_told = node.condition.as_ref() == Some(wanted);
        if !is_told && !is_last(self.told.as_ref(), node, wanted) {
            let told = (node.clone(), wanted.clone());
            let (node, wanted) = told.clone();
            let write = announce::tell(watch.client.clone(), name.clone(), node, wanted);
            self.telling.spawn(or_later(write));
            self.told = Some(told);
        }
    }

    /// A write of the condition has ended.
    pub(super) fn was_told(&mut self, told: Result<Result<(), String>, JoinError>) {
        let told = told.map_err(|error| error.to_string()).flatten();
        if let Err(error) = told {
            warn!("write the condition NetworkUnavailable of the Node: {error}; retrying");
            self.told = None;
        }
    }

    /// Reports the status if it has changed.
    pub(super) fn set_status(&mut self, is_well: bool, status: String) {
        self.condition = Some(match is_well {
            true => Condition::of(true, ""),
            false => Condition::of(false, &status),
        });
        if status != self.status || self.record.is_lost() {
            self.record.state(is_well, &status);
        }
        if status != self.status {
            match is_well {
                true => info!("{status}"),
                false => warn!("{status}"),
            }
            let line = status.replace('\n', " ");
            self.manager.notify(&format!("STATUS={line}"));
            self.status = status;
        }
    }

    /// Reports the status; and once, that the node is ready.
    pub(super) fn report(&mut self, snapshot: &Snapshot, troubles: Vec<String>) {
        let findings = &*snapshot.findings;
        let foreign = refuse_foreign(findings, true).err();
        let awaited = awaited(findings);
        let left: BTreeSet<&String> = self
            .restores
            .iter()
            .filter(|(_, restores)| restores.paused_until.is_some())
            .map(|(identity, _)| identity)
            .collect();
        let mut status = troubles;
        status.extend(foreign.map(|error| error.to_string()));
        status.extend(
            awaited
                .iter()
                .map(|line| format!("waiting for {}", line.trim())),
        );
        status.extend(
            left.iter()
                .map(|identity| format!("not restored for a while: {identity}")),
        );
        let is_well = status.is_empty();
        // One service must not make the node unready.
        status.extend(self.left_out.status());
        let is_complete = status.is_empty();
        if is_complete {
            status.push(format!("in sync: all {} items", findings.len()));
        }
        self.record.well(is_well);
        let status = status.join("; ");
        // In plain mode, the missing items are the agent's, which starts when this role is ready.
        let settings = self.reconciler.settings();
        let is_plain = settings.is_some_and(|settings| settings.mode == Mode::Plain);
        let is_done = |finding: &Finding| {
            let state = &finding.state;
            matches!(
                state,
                State::Well { .. } | State::Waits(_) | State::Refused(_)
            )
        };
        // A NIC that is missing, or not in its bridge, must not keep the node from its pods.
        let of_nic = |finding: &Finding| {
            let item = &finding.item;
            let mut conflicts = snapshot.plan.conflicts.iter();
            matches!(item, Item::Uplink(_))
                || item.identity().contains(GATEWAY)
                || conflicts.any(|conflict| conflict.is_of_link(item))
        };
        let is_well_but_nic = findings
            .iter()
            .all(|finding| matches!(finding.state, State::Well { .. }) || of_nic(finding));
        let is_ready = is_well || is_well_but_nic || is_plain && findings.iter().all(is_done);
        let problem = if is_complete { "" } else { &*status };
        let has_network = is_ready && self.reconciler.unseen().is_none();
        let condition = Condition::of(has_network, problem);
        self.set_status(is_complete, status);
        self.condition = Some(condition);
        if is_ready && !std::mem::replace(&mut self.is_ready, true) {
            info!("ready");
            self.manager.notify("READY=1");
        }
    }
}
