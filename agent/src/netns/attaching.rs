//! An attachment under way, as the one who asked for it holds it.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::reaper::Reaper;
use super::{Error, HostEnd, PodEnd};

/// An attachment under way.
///
/// Dropped, also by dropping the future that waits for it, it leaves nothing behind: a pair that
/// was made for it is removed.
#[derive(Debug)]
pub struct Attaching(pub(super) oneshot::Receiver<Result<(Unclaimed, PodEnd), Error>>);

impl Attaching {
    /// Waits until the pair is made, its host end is up and says nothing of its own, and the pod's
    /// end has its addresses and routes and passes packets.
    ///
    /// After an error nothing is left of the attachment. With `Ok` the link is the caller's, to be
    /// removed with [`Netlink::delete`](super::Netlink::delete) if the rest fails.
    pub async fn done(self) -> Result<(HostEnd, PodEnd), Error> {
        let (unclaimed, pod) = self.0.await.map_err(|_| Error::Stopped)??;
        Ok((unclaimed.claim(), pod))
    }
}

/// A pair that nobody has taken over. Dropped, it is deleted: the one who asked may go away at any
/// moment, also between the sending of the result and its being received.
#[derive(Debug)]
pub(super) struct Unclaimed {
    pub(super) end: HostEnd,
    reaper: Option<Arc<Reaper>>,
}

impl Unclaimed {
    pub(super) fn new(end: HostEnd, reaper: Arc<Reaper>) -> Unclaimed {
        Unclaimed {
            end,
            reaper: Some(reaper),
        }
    }

    /// Deletes it, and returns when it is gone. Not to be called from a task.
    pub(super) fn delete(mut self) {
        if let Some(reaper) = self.reaper.take() {
            // What keeps it there is told by whoever finds it; the attachment has its own error.
            let _ = reaper.submit(self.end.link.clone()).blocking_recv();
        }
    }

    fn claim(mut self) -> HostEnd {
        self.reaper = None;
        self.end.clone()
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(reaper) = self.reaper.take() {
            // Nobody is there to wait for it.
            drop(reaper.submit(self.end.link.clone()));
        }
    }
}
