use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::replica::{Db, Index};
use crate::value::{Atom, Uuid};

/// A row: the number of its table, and its uuid.
type Key = (usize, Uuid);
/// An index of a table, and the values in it that somebody waits for.
type Filed = HashMap<(usize, Index), HashMap<Atom, Vec<Arc<Notify>>>>;

/// The waiters of each row, so that a change wakes only those concerned.
#[derive(Debug, Default)]
pub(super) struct RowWaits {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    rows: HashMap<Key, Vec<Arc<Notify>>>,
    filed: Filed,
}

/// One registration; it ends when dropped.
#[derive(Debug)]
pub(super) struct Waiter<'a> {
    waits: &'a RowWaits,
    key: Key,
    also: Option<(Index, Atom)>,
    notify: Arc<Notify>,
}

impl RowWaits {
    /// From now on, every change of the row wakes the waiter, even one that happens before it
    /// begins to wait. So does every change after which a row of that table has the value in
    /// `also`.
    pub(super) fn register(&self, key: Key, also: Option<(Index, Atom)>) -> Waiter<'_> {
        let notify = Arc::new(Notify::new());
        let mut waiting = self.lock();
        let by_row = waiting.rows.entry(key).or_default();
        by_row.push(Arc::clone(&notify));
        if let Some((index, value)) = &also {
            let values = waiting.filed.entry((key.0, *index)).or_default();
            let by_value = values.entry(value.clone()).or_default();
            by_value.push(Arc::clone(&notify));
        }
        drop(waiting);
        Waiter {
            waits: self,
            key,
            also,
            notify,
        }
    }

    /// Wakes the waiters of these rows; `db` contains the change.
    pub(super) fn wake(&self, db: &Db, changed: &[Key]) {
        let waiting = self.lock();
        if waiting.rows.is_empty() {
            return;
        }
        for notify in changed
            .iter()
            .filter_map(|key| waiting.rows.get(key))
            .flatten()
        {
            notify.notify_one();
        }
        for ((table, index), values) in &waiting.filed {
            let rows = changed.iter().filter(|(changed, _)| changed == table);
            for notify in rows
                .flat_map(|&(table, row)| db.filed(table, *index, row))
                .filter_map(|value| values.get(value))
                .flatten()
            {
                notify.notify_one();
            }
        }
    }

    pub(super) fn wake_all(&self) {
        self.lock()
            .rows
            .values()
            .flatten()
            .for_each(|notify| notify.notify_one());
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
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
        leave(&mut waiting.rows, &self.key, &self.notify);
        let Some((index, value)) = &self.also else {
            return;
        };
        let index = (self.key.0, *index);
        if let Some(values) = waiting.filed.get_mut(&index) {
            leave(values, value, &self.notify);
            if values.is_empty() {
                waiting.filed.remove(&index);
            }
        }
    }
}

fn leave<K: Eq + std::hash::Hash>(
    waiting: &mut HashMap<K, Vec<Arc<Notify>>>,
    key: &K,
    notify: &Arc<Notify>,
) {
    if let Some(waiters) = waiting.get_mut(key) {
        waiters.retain(|waiter| !Arc::ptr_eq(waiter, notify));
        if waiters.is_empty() {
            waiting.remove(key);
        }
    }
}
