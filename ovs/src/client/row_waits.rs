use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::value::Uuid;

/// A row: the number of its table, and its uuid.
type Key = (usize, Uuid);

/// Who waits for which row, so that a change wakes only those who wait for that row.
#[derive(Debug, Default)]
pub(super) struct RowWaits {
    waiting: Mutex<HashMap<Key, Vec<Arc<Notify>>>>,
}

/// One registration; it ends when dropped.
#[derive(Debug)]
pub(super) struct Waiter<'a> {
    waits: &'a RowWaits,
    key: Key,
    notify: Arc<Notify>,
}

impl RowWaits {
    /// From here on every change of the row wakes the waiter, also one that comes before it begins to wait.
    pub(super) fn register(&self, key: Key) -> Waiter<'_> {
        let notify = Arc::new(Notify::new());
        self.lock()
            .entry(key)
            .or_default()
            .push(Arc::clone(&notify));
        Waiter {
            waits: self,
            key,
            notify,
        }
    }

    pub(super) fn wake(&self, changed: &[Key]) {
        let waiting = self.lock();
        if waiting.is_empty() {
            return;
        }
        for notify in changed.iter().filter_map(|key| waiting.get(key)).flatten() {
            notify.notify_one();
        }
    }

    pub(super) fn wake_all(&self) {
        self.lock()
            .values()
            .flatten()
            .for_each(|notify| notify.notify_one());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Vec<Arc<Notify>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter<'_> {
    pub(super) async fn woken(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut waiting = self.waits.lock();
        if let Some(waiters) = waiting.get_mut(&self.key) {
            waiters.retain(|notify| !Arc::ptr_eq(notify, &self.notify));
            if waiters.is_empty() {
                waiting.remove(&self.key);
            }
        }
    }
}
