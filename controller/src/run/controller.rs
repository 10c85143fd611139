//! The loop of one term.

use std::collections::BTreeSet;
use std::time::Duration;

use itertools::Itertools as _;
use podwire_apiserver::event::{Poster, Warning};
use podwire_ovs::client::{Client as Ovsdb, Follower};
use podwire_ovs::transact::{TransactError, Transaction};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::latency::Waiting;
use super::state::is_refusal;
use super::watch::Change;
use super::{Progress, Reporter, RunError, State, Step, TRANSACT};
use crate::delays::Delays;
use crate::key::Key;
use crate::southbound::Southbound;
use crate::write::{Write, Writer, Written};

/// The delay before a key that failed is retried.
const RETRY: Duration = Duration::from_secs(1);
/// The maximum of that delay, after several failures of the API server.
const RETRY_MOST: Duration = Duration::from_secs(32);
/// Time limit for the southbound database to remove a chassis.
const SOUTHBOUND: Duration = Duration::from_secs(5);
/// The approximate maximum number of operations in a transaction.
const OPERATIONS: usize = 500;

pub(super) struct Controller {
    state: State,
    ovsdb: Ovsdb,
    southbound: Option<Southbound>,
    delays: Delays,
    poster: Poster,
    writer: Writer,
    changes: mpsc::Receiver<Change>,
    progress: Progress,
    /// The approximate limit for the next transaction.
    most: usize,
    /// The changes that the pass deals with.
    waiting: Vec<Waiting>,
    /// Transactions that were committed.
    committed: u64,
    /// Whether a pass did not deal with all of its keys.
    is_partial: bool,
    /// Writes to the API server that have failed since the last success.
    api_failures: u32,
}

impl Controller {
    pub(super) fn new(
        state: State,
        (ovsdb, southbound): (Ovsdb, Option<Southbound>),
        (delays, poster): (Delays, Poster),
        writer: Writer,
        changes: mpsc::Receiver<Change>,
    ) -> Self {
        Self {
            state,
            ovsdb,
            southbound,
            delays,
            poster,
            writer,
            changes,
            progress: Progress {
                leads: true,
                ..Progress::default()
            },
            most: OPERATIONS,
            waiting: Vec::new(),
            committed: 0,
            is_partial: false,
            api_failures: 0,
        }
    }

    pub(super) async fn serve(
        &mut self,
        mut follower: Follower,
        reporter: &Reporter,
    ) -> Result<(), RunError> {
        let mut is_done = false;
        loop {
            self.pass().await?;
            self.progress.is_ready |= self.state.is_done();
            self.progress.is_idle = self.state.is_done() && self.writer.is_idle();
            self.state.count(&mut self.progress);
            self.progress.writes = self.writer.count;
            if self.progress.is_idle && !std::mem::replace(&mut is_done, true) {
                let Progress {
                    operations, writes, ..
                } = self.progress;
                info!(operations, writes, "all rows are in sync");
            }
            reporter.0.send_replace(self.progress.clone());
            let (retry, late) = (self.state.next_retry(), self.tell_late());
            tokio::select! {
                change = self.changes.recv() => match change {
                    Some(change) => self.apply(change),
                    None => return Err(RunError::Ended("the watches ended")),
                },
                changed = follower.next() => match changed {
                    Some(changed) => self.state.rows_changed(&self.ovsdb, &changed),
                    None => return Err(RunError::Ended("the database client ended")),
                },
                written = self.writer.next() => self.written(written),
                () = sleep_until(retry.unwrap_or_else(far)), if retry.is_some() => {
                    self.state.retry(Instant::now());
                }
                () = sleep_until(late.unwrap_or_else(far)), if late.is_some() => {}
                () = self.delays.claimed() => {}
            }
            // Changes that arrived together are processed together.
            while let Ok(change) = self.changes.try_recv() {
                self.apply(change);
            }
        }
    }

    /// Says of each pod that waits for long what it waits for; when to do so again.
    fn tell_late(&self) -> Option<Instant> {
        let (late, next) = self.delays.late(Instant::now());
        for (port, stage) in late {
            if let Some(warning) = self.state.late(&port, stage) {
                let Warning {
                    namespace,
                    name,
                    message,
                    ..
                } = &warning;
                warn!("pod {namespace}/{name}: {message}");
                self.poster.post(warning);
            }
        }
        next
    }

    fn apply(&mut self, change: Change) {
        self.progress.changes += 1;
        self.state.learn(change);
    }

    /// Compares the dirty keys with the database, and commits the difference; then those that
    /// depend on what changed.
    async fn pass(&mut self) -> Result<(), RunError> {
        while !self.state.is_clean() && self.writer.has_room() {
            self.progress.passes += 1;
            let before = self.committed;
            self.is_partial = false;
            self.compare().await?;
            let waiting = std::mem::take(&mut self.waiting);
            match self.is_partial {
                true => self.state.timer.requeue(waiting),
                // The first list is no change.
                false if self.progress.is_ready && self.committed > before => {
                    self.delays.programmed(waiting, Instant::now());
                }
                false => {}
            }
        }
        Ok(())
    }

    /// The dirty keys.
    fn take(&mut self) -> BTreeSet<Key> {
        self.state.compare_claims(&self.ovsdb);
        self.waiting.append(&mut self.state.timer.take());
        self.state.take_dirty()
    }

    async fn compare(&mut self) -> Result<(), RunError> {
        let mut keys = self.take();
        while !keys.is_empty() {
            // A change of much holds up nobody who comes meanwhile.
            let mut has_changed = false;
            while let Ok(change) = self.changes.try_recv() {
                self.apply(change);
                has_changed = true;
            }
            if has_changed {
                keys.append(&mut self.take());
            }
            if !self.writer.has_room() {
                self.is_partial = true;
                self.state.requeue(keys);
                return Ok(());
            }
            let deadline = Instant::now() + TRANSACT;
            // A stale replica may lack the effect of a request whose reply was lost.
            if let Err(error) = self.ovsdb.synced(deadline).await {
                warn!(%error, "the database can't be compared; its keys are tried again");
                self.is_partial = true;
                self.state.failed(keys, Instant::now() + RETRY);
                break;
            }
            let mut step = self.state.step(&self.ovsdb, &mut keys, Some(self.most));
            self.progress.keys += step.keys.len() as u64;
            if let Err(error) = self.remove_chassis(&step.chassis).await {
                warn!(%error, "the chassis of deleted nodes can't be removed from the southbound \
                               database; trying again");
                let nodes: BTreeSet<Key> = step.chassis.into_iter().map(|(key, _)| key).collect();
                for (key, write) in &step.writes {
                    self.state.warning_failed(key, write);
                }
                // Also those that have no rows, and something to be said of.
                keys.extend(step.keys);
                keys.extend(step.writes.into_iter().map(|(key, _)| key));
                keys.retain(|key| !nodes.contains(key));
                self.state.failed(nodes, Instant::now() + RETRY);
                continue;
            }
            if step.transaction.is_empty() && step.writes.is_empty() {
                self.state.rows_accepted(&step.keys);
                continue;
            }
            if step.transaction.is_empty() {
                // For the fence: a replaced leader does not write to the API server either.
                step.transaction.select("NB_Global", [], &["_uuid"]);
                step.is_fence = true;
            } else {
                self.progress.operations += step.transaction.len() as u64;
            }
            self.commit(step, &mut keys, deadline).await?;
        }
        Ok(())
    }

    async fn commit(
        &mut self,
        step: Step,
        keys: &mut BTreeSet<Key>,
        deadline: Instant,
    ) -> Result<(), RunError> {
        let operations = step.transaction.len();
        let committed = self.ovsdb.transact(&step.transaction, deadline).await;
        if let Err(error @ TransactError::Fenced { .. }) = committed {
            return Err(RunError::Deposed(error.to_string()));
        }
        let Err(error) = committed else {
            self.most = (self.most * 2).min(OPERATIONS);
            self.committed += u64::from(!step.is_fence);
            self.state.groups_written(step.groups);
            self.state.rows_accepted(&step.keys);
            debug!(operations, keys = step.keys.len(), "committed");
            // Before, all of a cluster may come at once, which says nothing of a pod.
            if let Some(southbound) = &self.southbound
                && self.progress.is_ready
            {
                southbound.committed(&step.ports, Instant::now(), &self.delays);
            }
            for (key, write) in step.writes {
                self.start(key, write);
            }
            return Ok(());
        };
        for (key, write) in &step.writes {
            self.state.warning_failed(key, write);
        }
        let last = step.keys.last().cloned();
        // Also those that have no rows, and something to be said of.
        let mut failed: BTreeSet<Key> = step.writes.into_iter().map(|(key, _)| key).collect();
        failed.extend(step.keys);
        if !is_refusal(&error) {
            // The outcome is unknown; the replica will show it once it is current again.
            warn!(%error, operations, "a transaction failed; its keys are tried again");
            self.is_partial = true;
            self.state.failed(failed, Instant::now() + RETRY);
            return Ok(());
        }
        if self.most > 1 && failed.len() > 1 {
            // One key is at fault; in smaller transactions, the others succeed without it.
            debug!(%error, operations, "a transaction was refused; its keys are split");
            self.most = (operations.min(self.most) / 2).max(1);
            keys.insert(self.state.sweep_all());
            keys.append(&mut failed);
            return Ok(());
        }
        self.is_partial = true;
        // The others have no operations.
        if let Some(key) = last {
            let (pause, warning) = self.state.rows_refused(&key, &error);
            let seconds = pause.as_secs();
            warn!(%key, %error, operations, "its rows are refused; trying again in {seconds} s");
            failed.remove(&key);
            self.state.failed([key.clone()], Instant::now() + pause);
            if let Some(warning) = warning {
                self.start(key, warning);
            }
        }
        self.state.failed(failed, Instant::now() + RETRY);
        Ok(())
    }

    /// Before the rows that refer to them are removed, and only while this controller leads.
    async fn remove_chassis(&self, chassis: &[(Key, String)]) -> Result<(), TransactError> {
        let Some(southbound) = self.southbound.as_ref().filter(|_| !chassis.is_empty()) else {
            return Ok(());
        };
        let deadline = Instant::now() + SOUTHBOUND;
        let mut fenced = Transaction::new();
        fenced.select("NB_Global", [], &["_uuid"]);
        self.ovsdb.transact(&fenced, deadline).await?;
        let names = || chassis.iter().map(|(_, name)| &**name);
        let chassis = names().join(" ");
        info!(chassis, "removing from the southbound database");
        southbound.remove(names(), deadline).await
    }

    fn start(&mut self, key: Key, write: Write) {
        if self.state.begins(&key, &write) {
            self.writer.start(key, write);
        }
    }

    fn written(&mut self, Written { key, write, result }: Written) {
        self.state.is_over(&key, &write);
        match result {
            Ok(version) => {
                self.api_failures = 0;
                self.state.was_written(&key, &write, version);
            }
            Err(error) if error.is_too_late() => {
                debug!(%key, %error, "a write came too late; waiting for the watch");
            }
            Err(error) => {
                warn!(%key, %error, "a write to the API server failed; it is tried again");
                let pause = RETRY * (1 << self.api_failures.min(5));
                self.api_failures += 1;
                self.progress.write_failures += 1;
                self.state.warning_failed(&key, &write);
                self.state
                    .failed([key], Instant::now() + pause.min(RETRY_MOST));
            }
        }
    }
}

/// Later than any wait.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(1 << 30)
}
