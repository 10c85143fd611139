//! Connections whose request is incomplete, and the limits on their number and bytes.
//!
//! A client of podwire's sends its request at once, so one that keeps a daemon waiting is slow,
//! silent, or none. If there are too many, the one that has waited longest is closed and the new
//! one is accepted. That way they take nothing from a client with a real request, and no limit
//! refuses one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::resource::{Resource, getrlimit};
use tokio_util::sync::CancellationToken;

/// Connections for pages that may wait at once: more than arrive while the newest is not yet read.
const PAGES: usize = 256;
/// One in this many of the process' descriptors may belong to a waiting connection; the others are
/// for the daemon's work.
const SHARE_OF_DESCRIPTORS: u64 = 4;
/// The limit on the bytes of incomplete requests.
const MOST_BYTES: usize = 32 << 20;

/// The limit on a server's connections that wait for a request, or for their client to read.
#[derive(Debug)]
pub struct ConnectionLimit {
    most: usize,
    most_bytes: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    bytes: usize,
    entries: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    /// Closes the connection.
    end: CancellationToken,
    bytes: usize,
}

/// One connection, waiting or being served.
#[derive(Debug)]
pub struct Slot {
    limit: Arc<ConnectionLimit>,
    end: CancellationToken,
    number: Mutex<Option<u64>>,
}

impl Default for ConnectionLimit {
    /// For pages.
    fn default() -> Self {
        Self::new(PAGES)
    }
}

impl ConnectionLimit {
    /// For this many connections that wait at once, if the process may have enough descriptors.
    /// Each costs one and some kilobytes.
    pub fn new(most: usize) -> Self {
        // Only an unknown resource has no limit.
        let descriptors =
            getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(descriptors, _)| descriptors);
        let share = usize::try_from(descriptors / SHARE_OF_DESCRIPTORS).unwrap_or(most);
        Self::with_limits(share.clamp(1, most), MOST_BYTES)
    }

    fn with_limits(most: usize, most_bytes: usize) -> Self {
        Self {
            most,
            most_bytes,
            queue: Mutex::default(),
        }
    }

    /// Adds a new connection to the end of the queue.
    pub fn enter(self: &Arc<Self>) -> Slot {
        let slot = Slot {
            limit: Arc::clone(self),
            end: CancellationToken::new(),
            number: Mutex::new(None),
        };
        slot.waits();
        slot
    }

    /// Whether the next connection displaces another.
    pub fn is_full(&self) -> bool {
        self.lock().entries.len() >= self.most
    }

    /// Closes the connection that has waited longest, if any.
    pub fn evict_oldest(&self) {
        self.lock().evict_oldest();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No code panics while it holds the lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn evict_oldest(&mut self) {
        if let Some((_, entry)) = self.entries.pop_first() {
            self.bytes -= entry.bytes;
            entry.end.cancel();
        }
    }

    fn leave(&mut self, number: u64) {
        if let Some(entry) = self.entries.remove(&number) {
            self.bytes -= entry.bytes;
        }
    }
}

impl Slot {
    /// Completes when the connection has to be closed.
    pub async fn evicted(&self) {
        self.end.cancelled().await;
    }

    /// Its request is complete.
    pub fn completed(&self) {
        if let Some(number) = self.number().take() {
            self.limit.lock().leave(number);
        }
    }

    /// It waits again, as the last to be closed: for its client to read the answer, and to send
    /// another request.
    pub fn waits(&self) {
        let mut number = self.number();
        let mut queue = self.limit.lock();
        if let Some(number) = number.take() {
            queue.leave(number);
        }
        let place = queue.next;
        queue.next += 1;
        let entry = Entry {
            end: self.end.clone(),
            bytes: 0,
        };
        queue.entries.insert(place, entry);
        *number = Some(place);
        if queue.entries.len() > self.limit.most {
            queue.evict_oldest();
        }
    }

    /// This many more bytes of its request arrived.
    pub fn grew(&self, bytes: usize) {
        let number = self.number();
        let mut queue = self.limit.lock();
        if let Some(entry) = number.and_then(|number| queue.entries.get_mut(&number)) {
            entry.bytes += bytes;
            queue.bytes += bytes;
        }
        while queue.bytes > self.limit.most_bytes {
            queue.evict_oldest();
        }
    }

    fn number(&self) -> MutexGuard<'_, Option<u64>> {
        self.number.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.completed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(slot: &Slot) -> bool {
        slot.end.is_cancelled()
    }

    #[test]
    fn who_has_waited_longest_makes_room_and_who_is_served_never_does() {
        let limit = Arc::new(ConnectionLimit::with_limits(2, 100));
        let [served, silent, late] = [(); 3].map(|()| {
            let slot = limit.enter();
            if limit.lock().next == 1 {
                slot.completed();
            }
            slot
        });
        assert!(![&served, &silent, &late].into_iter().any(gone));
        let newest = limit.enter();
        assert!(gone(&silent));
        assert!(![&served, &late, &newest].into_iter().any(gone));
    }

    #[test]
    fn bytes_of_unfinished_requests_are_bounded_all_together() {
        let limit = Arc::new(ConnectionLimit::with_limits(10, 100));
        let [slow, other] = [(); 2].map(|()| limit.enter());
        slow.grew(60);
        other.grew(40);
        assert!(!gone(&slow) && !gone(&other));
        other.grew(1);
        assert!(gone(&slow) && !gone(&other));
        assert_eq!(limit.lock().bytes, 41);
        other.completed();
        assert_eq!(limit.lock().bytes, 0, "a whole request counts no more");
    }

    #[test]
    fn a_connection_that_ends_leaves_the_queue() {
        let limit = Arc::new(ConnectionLimit::with_limits(1, 100));
        drop(limit.enter());
        let next = limit.enter();
        next.completed();
        next.waits();
        assert!(!gone(&next));
        assert_eq!(limit.lock().entries.len(), 1);
    }
}
