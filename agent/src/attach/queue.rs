//! The turn of an ADD, after the earlier operations on the same pod and on the same sandbox.

use futures_util::FutureExt as _;
use podwire_netns::Netns;

use super::call::Add;
use super::{Call, Error, Place, Reason};
use crate::observe::WaitFor;

/// The turn of one ADD; dropping it ends the turn.
#[derive(Debug)]
pub(super) struct Turn {
    _places: [Place; 2],
    has_waited: bool,
}

impl Add<'_> {
    /// Waits for the ADD's turn, or returns the reason why it gets none.
    pub(super) async fn turn(&self) -> Result<Turn, Error> {
        let pod = self.call.pod.as_ref().map(ToString::to_string);
        let places = self.node.lines.join_add(&self.call.key, pod, self.cancel);
        let _waiting = self.node.metrics.wait(WaitFor::Turn);
        let mut has_waited = false;
        for place in &places {
            has_waited |= self.has_to_wait(place).await?;
        }
        match places[0].newer_sandbox() {
            Some(by) => Err(Error::Cancelled(Reason::Superseded { by })),
            None => Ok(Turn {
                _places: places,
                has_waited,
            }),
        }
    }

    /// Waits for one turn, and returns whether it had to wait.
    async fn has_to_wait(&self, place: &Place) -> Result<bool, Error> {
        self.cancel.check()?;
        if place.turn().now_or_never().is_some() {
            return Ok(false);
        }
        let deadline = self.deadline;
        tokio::select! {
            biased;
            reason = self.cancel.cancelled() => Err(reason.into()),
            () = place.turn() => Ok(true),
            () = tokio::time::sleep_until(deadline.at()) => {
                Err(Error::Queued { waited: deadline.waited() })
            }
        }
    }
}

impl Turn {
    /// The namespace, if it still has its path: while an ADD waits, its sandbox may be removed and
    /// another pod's namespace may get the path.
    pub(super) fn still_there(&self, call: &Call, opened: Netns) -> Result<Netns, Error> {
        let path = &call.invocation.netns;
        if !self.has_waited || Netns::open(path)?.id() == opened.id() {
            return Ok(opened);
        }
        Err(Error::NetnsReplaced { path: path.clone() })
    }
}
