//! The turn of an ADD: behind what is done to the same pod and to the same sandbox.

use std::hash::Hash;
use std::sync::Arc;

use futures_util::FutureExt as _;

use super::deadline::Deadline;
use super::turns::{Cancel, Place};
use super::{Agent, Call, Error, Reason};
use crate::netns::Netns;
use crate::observe::WaitFor;

/// The turn of one ADD, which lasts until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _places: [Place<(String, String)>; 2],
    has_waited: bool,
}

impl Agent {
    /// Waits for the turn of an ADD, or ends with the reason why it is not to have one.
    pub(super) async fn turn(
        &self,
        call: &Call,
        cancel: &Arc<Cancel>,
        deadline: Deadline,
    ) -> Result<Turn, Error> {
        let (container, ifname) = (&call.key.container_id, &call.key.ifname);
        let places = [
            (&self.pod_lines, call.pod_line()),
            (&self.sandbox_lines, call.sandbox_line()),
        ]
        .map(|(lines, line)| lines.join_add(line, container, ifname, Arc::clone(cancel)));
        let _waiting = self.metrics.wait(WaitFor::Turn);
        let mut has_waited = false;
        for place in &places {
            has_waited |= wait_for(place, cancel, deadline).await?;
        }
        match places[0].newer_sandbox() {
            Some(by) => Err(Error::Cancelled(Reason::Superseded { by })),
            None => Ok(Turn {
                _places: places,
                has_waited,
            }),
        }
    }
}

impl Turn {
    /// The namespace, if the path still leads to it: while an ADD waits its sandbox may be removed,
    /// and another pod's namespace may get its path.
    pub(super) fn still_there(&self, call: &Call, opened: Netns) -> Result<Netns, Error> {
        let path = &call.invocation.netns;
        if !self.has_waited || Netns::open(path)?.id() == opened.id() {
            return Ok(opened);
        }
        Err(Error::NetnsReplaced { path: path.clone() })
    }
}

/// Waits for one turn. Returns whether it had to be waited for.
async fn wait_for<K: Eq + Hash + Clone>(
    place: &Place<K>,
    cancel: &Cancel,
    deadline: Deadline,
) -> Result<bool, Error> {
    cancel.check()?;
    if place.turn().now_or_never().is_some() {
        return Ok(false);
    }
    tokio::select! {
        biased;
        reason = cancel.cancelled() => Err(Error::Cancelled(reason)),
        () = place.turn() => Ok(true),
        () = tokio::time::sleep_until(deadline.at()) => Err(Error::Queued { waited: deadline.waited() }),
    }
}
