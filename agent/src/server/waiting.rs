//! Connections whose request is incomplete, and the limits on their number and bytes.
//!
//! A plugin sends its request at once, so a client that keeps the agent waiting is slow, silent, or
//! no plugin. If there are too many, the one that has waited longest is closed and the new one is
//! accepted. That way they take nothing from a client with a real request, and no limit refuses
//! one. Complete requests are limited by the number of operations that the agent admits.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::resource::{Resource, getrlimit};
use tokio_util::sync::CancellationToken;

/// Connections that may wait at once, if there are enough descriptors; each costs one and some
/// kilobytes.
const MOST: usize = 1024;
/// One in this many of the process' descriptors may belong to a waiting connection; the others are
/// for wiring.
const SHARE_OF_DESCRIPTORS: u64 = 4;
/// The limit on the bytes of incomplete requests.
const MOST_BYTES: usize = 32 << 20;

/// All waiting connections, oldest first.
#[derive(Debug)]
pub(super) struct Waiting {
    most: usize,
    most_bytes: usize,
    line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
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
pub(super) struct Presence {
    waiting: Arc<Waiting>,
    end: CancellationToken,
    number: Mutex<Option<u64>>,
}

impl Waiting {
    /// With room in proportion to this process' descriptor limit.
    ///
    /// # Errors
    /// The limit can't be read.
    pub(super) fn for_this_process() -> io::Result<Self> {
        let (descriptors, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
        let share = usize::try_from(descriptors / SHARE_OF_DESCRIPTORS).unwrap_or(MOST);
        Ok(Self::new(share.clamp(1, MOST), MOST_BYTES))
    }

    fn new(most: usize, most_bytes: usize) -> Self {
        Self {
            most,
            most_bytes,
            line: Mutex::default(),
        }
    }

    /// Adds a new connection to the end of the line.
    pub(super) fn enter(self: &Arc<Self>) -> Presence {
        let presence = Presence {
            waiting: Arc::clone(self),
            end: CancellationToken::new(),
            number: Mutex::new(None),
        };
        presence.waits();
        presence
    }

    /// Whether the next connection displaces another.
    pub(super) fn is_full(&self) -> bool {
        self.lock().entries.len() >= self.most
    }

    /// Closes the connection that has waited longest, if any.
    pub(super) fn end_oldest(&self) {
        self.lock().end_oldest();
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        // No code panics while it holds the lock.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    fn end_oldest(&mut self) {
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

impl Presence {
    /// Completes when the connection has to be closed.
    pub(super) async fn ended(&self) {
        self.end.cancelled().await;
    }

    /// Its request is complete.
    pub(super) fn completed(&self) {
        if let Some(number) = self.number().take() {
            self.waiting.lock().leave(number);
        }
    }

    /// Its answer is on the way: it waits again, for the client to read it and to send another
    /// request.
    pub(super) fn waits(&self) {
        let mut number = self.number();
        let mut line = self.waiting.lock();
        if let Some(number) = number.take() {
            line.leave(number);
        }
        let place = line.next;
        line.next += 1;
        let entry = Entry {
            end: self.end.clone(),
            bytes: 0,
        };
        line.entries.insert(place, entry);
        *number = Some(place);
        if line.entries.len() > self.waiting.most {
            line.end_oldest();
        }
    }

    /// This many more bytes of its request arrived.
    pub(super) fn grew(&self, bytes: usize) {
        let number = self.number();
        let mut line = self.waiting.lock();
        if let Some(entry) = number.and_then(|number| line.entries.get_mut(&number)) {
            entry.bytes += bytes;
            line.bytes += bytes;
        }
        while line.bytes > self.waiting.most_bytes {
            line.end_oldest();
        }
    }

    fn number(&self) -> MutexGuard<'_, Option<u64>> {
        self.number.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.completed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(presence: &Presence) -> bool {
        presence.end.is_cancelled()
    }

    #[test]
    fn who_has_waited_longest_makes_room_and_who_is_served_never_does() {
        let waiting = Arc::new(Waiting::new(2, 100));
        let [served, silent, late] = [(); 3].map(|()| {
            let presence = waiting.enter();
            if waiting.lock().next == 1 {
                presence.completed();
            }
            presence
        });
        assert!(![&served, &silent, &late].into_iter().any(gone));
        let newest = waiting.enter();
        assert!(gone(&silent));
        assert!(![&served, &late, &newest].into_iter().any(gone));
    }

    #[test]
    fn bytes_of_unfinished_requests_are_bounded_all_together() {
        let waiting = Arc::new(Waiting::new(10, 100));
        let [slow, other] = [(); 2].map(|()| waiting.enter());
        slow.grew(60);
        other.grew(40);
        assert!(!gone(&slow) && !gone(&other));
        other.grew(1);
        assert!(gone(&slow) && !gone(&other));
        assert_eq!(waiting.lock().bytes, 41);
        other.completed();
        assert_eq!(waiting.lock().bytes, 0, "a whole request counts no more");
    }

    #[test]
    fn a_connection_that_ends_leaves_the_line() {
        let waiting = Arc::new(Waiting::new(1, 100));
        drop(waiting.enter());
        let next = waiting.enter();
        next.completed();
        next.waits();
        assert!(!gone(&next));
        assert_eq!(waiting.lock().entries.len(), 1);
    }
}
