//! Waiting until an ADD would be served: for who installs the network configuration, by which a runtime begins to ask for ADDs.

use std::time::Duration;

use tokio::time::Instant;

use super::{Agent, Error};

/// That ovs-vswitchd, ovn-controller or a source of annotations works again tells nobody: while somebody waits for it, they are
/// asked again this often.
const ASK_AGAIN: Duration = Duration::from_secs(1);

impl Agent {
    /// Waits until an ADD would be served.
    ///
    /// # Errors
    /// Every reason why it would not, when the time is up.
    pub(crate) async fn await_ready(&self, patience: Duration) -> Result<(), Error> {
        let until = Instant::now() + patience;
        let mut versions = self.ports.subscribe();
        let mut settled = self.settled.clone();
        loop {
            // What changes from here on is not missed.
            versions.mark_unchanged();
            settled.mark_unchanged();
            let ready = self.readiness().await;
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
}
