use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use crate::replica::{Changes, Db};
use crate::value::Uuid;

/// The followers of changed rows.
#[derive(Debug, Default)]
pub(super) struct Followers {
    followers: Mutex<Vec<Weak<Feed>>>,
}

/// The changes since the last read: at most as many as there are rows, however slow the reader is.
#[derive(Debug)]
pub struct Follower {
    feed: Arc<Feed>,
}

/// Rows that changed, appeared or were removed; may be combined from several reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Each with the name of its table.
    pub rows: HashSet<(&'static str, Uuid)>,
    /// A snapshot was taken meanwhile: the connection was lost for a while, or it is another
    /// server.
    pub resynced: bool,
}

#[derive(Debug, Default)]
struct Feed {
    state: Mutex<FeedState>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct FeedState {
    changed: Changed,
    ended: bool,
}

impl Changed {
    /// Adds the changes of a later read.
    pub fn extend(&mut self, later: Changed) {
        self.rows.extend(later.rows);
        self.resynced |= later.resynced;
    }
}

impl Followers {
    pub(super) fn follow(&self) -> Follower {
        let feed = Arc::new(Feed::default());
        let mut followers = lock(&self.followers);
        followers.retain(|follower| follower.strong_count() > 0);
        followers.push(Arc::downgrade(&feed));
        Follower { feed }
    }

    pub(super) fn changed(&self, db: &Db, changes: &Changes, resynced: bool) {
        for feed in lock(&self.followers).iter().filter_map(Weak::upgrade) {
            let mut state = lock(&feed.state);
            state.changed.rows.extend(db.changed(changes));
            state.changed.resynced |= resynced;
            feed.notify.notify_one();
        }
    }

    pub(super) fn end(&self) {
        for feed in lock(&self.followers).iter().filter_map(Weak::upgrade) {
            lock(&feed.state).ended = true;
            feed.notify.notify_one();
        }
    }
}

impl Follower {
    /// Waits for a change; `None` when the client has ended. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Changed> {
        loop {
            {
                let mut state = lock(&self.feed.state);
                if !state.changed.rows.is_empty() || state.changed.resynced {
                    return Some(std::mem::take(&mut state.changed));
                }
                if state.ended {
                    return None;
                }
            }
            self.feed.notify.notified().await;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
