//! Waits until an ADD would be served, before the network configuration is installed with which a
//! runtime starts to request ADDs.

use std::time::Duration;

use tokio::time::Instant;

use super::status::readiness;
use super::{Error, Handles};

/// No event tells that ovs-vswitchd, ovn-controller or a source of annotations works again: during
/// such a wait, they are checked at this interval.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Waits until an ADD would be served.
///
/// # Errors
/// The time is up; all reasons why it would not.
pub(crate) async fn await_ready(node: &Handles, patience: Duration) -> Result<(), Error> {
    let until = Instant::now() + patience;
    let mut versions = node.ports.subscribe();
    let mut settled = node.settled.subscribe();
    loop {
        // Changes from here on are noticed.
        versions.mark_unchanged();
        settled.mark_unchanged();
        let ready = readiness(node).await;
        if ready.is_ok() || Instant::now() >= until {
            return ready;
        }
        let again = until.min(Instant::now() + ASK_AGAIN);
        tokio::select! {
            // Their senders live as long as the agent.
            _ = versions.changed() => {}
            _ = settled.changed() => {}
            () = tokio::time::sleep_until(again) => {}
        }
    }
}
