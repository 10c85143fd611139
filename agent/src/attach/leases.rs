//! The tasks that keep leases, each of which sleeps until its renewal.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

use crate::plan::AttachmentKey;

/// The leases that are kept, each by a task that sleeps until its renewal.
#[derive(Debug)]
pub struct Leases {
    kept: Mutex<HashMap<AttachmentKey, AbortHandle>>,
    to_keep: UnboundedSender<AttachmentKey>,
}

impl Leases {
    /// None yet, and those that the agent has to keep.
    pub(crate) fn new() -> (Self, UnboundedReceiver<AttachmentKey>) {
        let (to_keep, receiver) = unbounded_channel();
        let kept = Mutex::default();
        (Self { kept, to_keep }, receiver)
    }

    /// Keeps an attachment's lease from now on.
    pub(super) fn keep(&self, key: &AttachmentKey) {
        // Nobody receives it at the agent's end; the next agent keeps it.
        let _ = self.to_keep.send(key.clone());
    }

    /// Keeps it no longer.
    pub(super) fn stop(&self, key: &AttachmentKey) {
        if let Some(task) = self.lock().remove(key) {
            task.abort();
        }
    }

    /// Records the task that keeps it, in place of an older one.
    pub(super) fn kept_by(&self, key: AttachmentKey, task: AbortHandle) {
        let mut kept = self.lock();
        // Those of attachments that went before their task began.
        kept.retain(|_, task| !task.is_finished());
        if let Some(older) = kept.insert(key, task) {
            older.abort();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AttachmentKey, AbortHandle>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
