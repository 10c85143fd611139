//! Waiting until an ADD would be served: for who installs the network configuration, by which a
//! runtime begins to ask for ADDs.

use std::time::Duration;

use tokio::time::Instant;

use super::status::readiness;
use super::{Error, Node};

/// That ovs-vswitchd, ovn-controller or a source of annotations works again tells nobody: while
/// somebody waits for it, they are asked again this often.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Waits until an ADD would be served.
///
/// # Errors
/// Every reason why it would not, when the time is up.
pub(crate) async fn await_ready(node: &Node, patience: Duration) -> Result<(), Error> {
    let until = Instant::now() + patience;
    let mut versions = node.ports.subscribe();
    let mut settled = node.settled.subscribe();
    loop {
        // What changes from here on is not missed.
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
