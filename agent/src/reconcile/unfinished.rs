//! What the intent log records as begun, or as removed without the database. The runtime got no
//! answer, or one that it is gone; in either case nothing may be left.
//!
//! Rows and links go first, before anything waits for them. IPAM plugins may hang, so their DELs
//! are run beside everything else, a few at a time, and again after a failure.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Semaphore;

use super::recover;
use crate::attach::{Error, Handles, detach};
use crate::duration;
use crate::journal::State;
use crate::observe::Repair;
use crate::plan::AttachmentKey;

/// Number of removals that run at the same time: each may have a plugin that hangs.
pub(super) const AT_ONCE: usize = 8;
/// Pauses before a removal that failed is tried again: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The removals in progress.
#[derive(Debug)]
pub(super) struct Unfinished {
    node: Arc<Handles>,
    permits: Semaphore,
    under_way: Mutex<HashSet<AttachmentKey>>,
}

impl Unfinished {
    pub(super) fn new(node: Arc<Handles>) -> Arc<Self> {
        Arc::new(Self {
            node,
            permits: Semaphore::new(AT_ONCE),
            under_way: Mutex::default(),
        })
    }

    /// Removes rows, links and addresses of the attachments that are due, and returns what is left
    /// to [`Self::finish`].
    pub(super) async fn begin(&self) -> Vec<(AttachmentKey, Repair)> {
        let node = &*self.node;
        let (entries, errors) = node.journal.entries();
        for error in errors {
            tracing::error!(
                %error,
                "an intent log entry can't be read; its attachment is left to DEL and GC"
            );
        }
        let due = entries
            .into_iter()
            .filter_map(|(state, entry)| match state {
                // After the start, an ADD in this state is one that runs now.
                State::Adding if node.is_settled() => None,
                State::Adding => Some((state, entry.key, Repair::InterruptedAdd)),
                State::Live => None,
                State::Deleting => Some((state, entry.key, Repair::InterruptedDel)),
            });
        let begun = due.map(async |(state, key, repair)| {
            tracing::info!(
                attachment = %key,
                state = state.word(),
                "finishing interrupted operations"
            );
            match self.begin_one(&key).await {
                Ok(true) => {
                    node.metrics.repaired(repair, 1);
                    return None;
                }
                Ok(false) => {}
                Err(error) => tracing::warn!(attachment = %key, %error, "not finished"),
            }
            Some((key, repair))
        });
        join_all(begun).await.into_iter().flatten().collect()
    }

    /// Returns whether nothing is left to do.
    async fn begin_one(&self, key: &AttachmentKey) -> Result<bool, Error> {
        let node = &*self.node;
        // A DEL's plugin may hang, and the ports of living pods wait for this.
        if node.is_settled() && node.lines.is_busy(key) {
            return Ok(false);
        }
        let _place = recover::quiet_turn(node, key).await;
        match node.journal.state(key) {
            Some(State::Adding) if !node.is_settled() => {
                node.journal.advance(key, State::Adding, State::Deleting)?;
            }
            Some(State::Deleting) => {}
            _ => return Ok(true),
        }
        detach(node, key, None).await
    }

    /// Finishes the removals that [`Self::begin`] began, in tasks of their own.
    pub(super) fn finish(self: &Arc<Self>, due: Vec<(AttachmentKey, Repair)>) {
        for (key, repair) in due {
            if !self.under_way().insert(key.clone()) {
                continue;
            }
            let this = Arc::clone(self);
            tokio::spawn(async move {
                this.finish_one(&key, repair).await;
                this.under_way().remove(&key);
            });
        }
    }

    async fn finish_one(&self, key: &AttachmentKey, repair: Repair) {
        let mut pause = FIRST_PAUSE;
        loop {
            let finished = {
                let _permit = self.permits.acquire().await;
                recover::finish(&self.node, key).await
            };
            match finished {
                Ok(()) => return self.node.metrics.repaired(repair, 1),
                Err(error) => tracing::warn!(
                    attachment = %key,
                    %error,
                    "not finished; it is tried again in {}",
                    duration::text(pause)
                ),
            }
            tokio::time::sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    fn under_way(&self) -> MutexGuard<'_, HashSet<AttachmentKey>> {
        // No code panics while it holds the lock.
        let under_way = self.under_way.lock();
        under_way.unwrap_or_else(PoisonError::into_inner)
    }
}
