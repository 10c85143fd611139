//! An attachment in progress, from its caller's side.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::reaper::Reaper;
use super::{Error, HostEnd, PodEnd};

/// An attachment in progress.
///
/// If it is dropped, or the future that waits for it, nothing is left behind: a pair created for it
/// is removed.
#[derive(Debug)]
pub struct Attaching(pub(super) oneshot::Receiver<Result<(Unclaimed, PodEnd), Error>>);

impl Attaching {
    /// Waits until the pair exists, its host end is up and silent, and the pod end has its
    /// addresses and routes and passes packets.
    ///
    /// After an error, nothing is left of the attachment. After `Ok` the link belongs to the
    /// caller, who removes it with [`Netlink::delete`](super::Netlink::delete) if the rest fails.
    pub async fn done(self) -> Result<(HostEnd, PodEnd), Error> {
        let (unclaimed, pod) = self.0.await.map_err(|_| Error::Stopped)??;
        Ok((unclaimed.claim(), pod))
    }
}

/// A pair that nobody has taken over. Dropping it deletes it: the caller may go away at any moment,
/// even between the sending of the result and its receipt.
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

    /// Deletes it, and returns when it is gone. Must not be called from a task.
    pub(super) fn delete(mut self) {
        if let Some(reaper) = self.reaper.take() {
            // If it can't be deleted, whoever finds it reports that; the attachment has its own
            // error.
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
            // Nobody waits for it.
            drop(reaper.submit(self.end.link.clone()));
        }
    }
}
