//! The tasks that keep addresses of physical networks: each renews a lease, and hears whether other
//! hosts claim what the pod has.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

use super::Handles;
use super::defence::{Defence, Removals, is_on_physical_network};
use super::renewal::Keeping;
use crate::ipam::dhcp::Lease;
use crate::ipam::dhcp6::Lease6;
use crate::journal::State;
use crate::observe::events::Events;
use crate::plan::AttachmentKey;

/// The attachments whose addresses are kept, each with its task.
#[derive(Debug)]
pub struct Kept {
    tasks: Mutex<HashMap<AttachmentKey, AbortHandle>>,
    to_keep: UnboundedSender<AttachmentKey>,
}

/// Keeps the addresses of the previous agent's attachments, and those that ADDs take, as long as
/// the agent runs. Events tell pods' owners of claims by others.
pub(crate) async fn keep_addresses(
    node: Arc<Handles>,
    events: Option<Events>,
    mut to_keep: UnboundedReceiver<AttachmentKey>,
) {
    node.settled().await;
    for (state, entry) in node.journal.entries().0 {
        if state == State::Live && is_on_physical_network(&entry) {
            node.kept.keep(&entry.key);
        }
    }
    let mut removals = Removals::default();
    while let Some(key) = to_keep.recv().await {
        let Some(entry) = node.journal.live(&key) else {
            continue;
        };
        let keeping = Keeping {
            node: Arc::clone(&node),
            key: key.clone(),
        };
        let defence = Defence {
            node: Arc::clone(&node),
            key: key.clone(),
            events: events.clone(),
            removals: removals.beside(&entry.netns),
        };
        let task = tokio::spawn(async move {
            let leases = (keeping.run::<Lease>(), keeping.run::<Lease6>());
            tokio::join!(leases.0, leases.1, defence.run())
        });
        node.kept.kept_by(key, task.abort_handle());
    }
}

impl Kept {
    /// None yet, and those that the agent has to keep.
    pub(crate) fn new() -> (Self, UnboundedReceiver<AttachmentKey>) {
        let (to_keep, receiver) = unbounded_channel();
        let tasks = Mutex::default();
        (Self { tasks, to_keep }, receiver)
    }

    /// Keeps an attachment's addresses from now on.
    pub(super) fn keep(&self, key: &AttachmentKey) {
        // Nobody receives it at the agent's end; the next agent keeps them.
        let _ = self.to_keep.send(key.clone());
    }

    /// Keeps them no longer.
    pub(super) fn stop(&self, key: &AttachmentKey) {
        if let Some(task) = self.lock().remove(key) {
            task.abort();
        }
    }

    /// Records the task that keeps them, in place of an older one.
    fn kept_by(&self, key: AttachmentKey, task: AbortHandle) {
        let mut tasks = self.lock();
        // Those of attachments that went before their task began.
        tasks.retain(|_, task| !task.is_finished());
        if let Some(older) = tasks.insert(key, task) {
            older.abort();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AttachmentKey, AbortHandle>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
