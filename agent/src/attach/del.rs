//! DEL: always succeeds if possible. It needs neither namespace nor pod nor prevResult, does every
//! step that it can, and can be repeated safely.

use super::removal::Removal;
use super::{Call, Error, Handles};
use crate::fault::fault_point;
use crate::observe::{Trace, WaitFor};

/// Detaches a container.
pub(super) async fn del(node: &Handles, call: &Call, trace: &mut Trace) -> Result<(), Error> {
    let place = node.lines.join_del(&call.key);
    let waiting = node.metrics.wait(WaitFor::Turn);
    trace.timed("queue", place.turn()).await;
    drop(waiting);
    fault_point!("del-begun");

    let detaching = async {
        let mut removal = Removal::detach(node, &call.key).await;
        removal.detach_definition(call).await;
        removal.detach_ovs_cni(call).await;
        removal
    };
    let mut removal = trace.timed("link and rows", detaching).await;
    let releasing = removal.release_delegated(Some(call));
    trace.timed("delegated ipam", releasing).await;
    removal.close().await
}
