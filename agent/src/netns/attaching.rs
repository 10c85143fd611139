//! An attachment under way, as the one who asked for it holds it.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::reaper::Reaper;
use super::{Error, HostEnd, PodEnd};

/// An attachment whose host end is not ready yet.
///
/// Dropped, also by dropping the future that waits for it, it leaves nothing behind: a pair that
/// was made for it is removed.
#[derive(Debug)]
pub struct Attaching {
    pub(super) host_ready: oneshot::Receiver<Result<Unclaimed, Error>>,
    pub(super) configured: oneshot::Receiver<Result<PodEnd, Error>>,
}

impl Attaching {
    /// Waits until the pair is made and its host end can't speak, so that Open vSwitch may have it.
    ///
    /// After an error nothing is left of the attachment. With `Ok` the link is the caller's, to be
    /// removed with [`Netlink::delete`](super::Netlink::delete) if the rest fails.
    pub async fn host_ready(self) -> Result<(HostEnd, Configuring), Error> {
        let unclaimed = self.host_ready.await.map_err(|_| Error::Stopped)??;
        Ok((unclaimed.claim(), Configuring(self.configured)))
    }
}

/// An attachment whose pod end is being configured.
#[derive(Debug)]
pub struct Configuring(oneshot::Receiver<Result<PodEnd, Error>>);

impl Configuring {
    /// Waits until the host end is up, and the pod's end has its addresses and routes and passes
    /// packets.
    pub async fn configured(self) -> Result<PodEnd, Error> {
        self.0.await.map_err(|_| Error::Stopped)?
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
