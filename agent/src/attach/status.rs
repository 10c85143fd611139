//! STATUS: whether an ADD would be served, by what is so and not by whether we run.

use std::time::Duration;

use super::intent::{delegate_call, delegate_of};
use super::{Agent, Call, Error};
use crate::config::Wait;
use crate::ports::PortError;

/// How long STATUS waits for an answer of ovs-vswitchd; runtimes ask it as often as every 0.5 s.
const ANSWER_DEADLINE: Duration = Duration::from_millis(500);

impl Agent {
    /// Answers STATUS.
    pub(super) async fn status(&self, call: &Call) -> Result<(), Error> {
        self.readiness().await?;
        if let Some(plugin) = delegate_of(call)? {
            plugin.status(&self.spawner, delegate_call(call)).await?;
        }
        Ok(())
    }

    /// Whether an ADD would be served now; the error has every reason why not.
    pub(super) async fn readiness(&self) -> Result<(), Error> {
        let mut reasons: Vec<String> = Vec::new();
        let ready = self.ports.ready(Duration::ZERO).await;
        // With the bridge go the ports of all pods; where it is not ours, only ovn-controller brings them back.
        let bridge_gone = matches!(ready, Err(PortError::NoBridge { ovn: true, .. }));
        reasons.extend(ready.err().map(|error| error.to_string()));
        // A living socket says nothing: a stopped vswitchd keeps it.
        let switch = self.ports.switch_alive(ANSWER_DEADLINE).await;
        let degraded = bridge_gone || switch.is_err();
        reasons.extend(switch.err().map(|error| error.to_string()));
        if self.config.ovn.wait == Wait::OvnInstalled {
            // Without it no new port comes up; the flows of those that are there stay in the switch.
            let controller = self.ports.controller_connected(ANSWER_DEADLINE).await;
            reasons.extend(controller.err().map(|error| error.to_string()));
        }
        reasons.extend(self.sources.problems());
        if reasons.is_empty() && !*self.settled.borrow() {
            reasons.push(
                "the agent is still looking through the ports that it found at start".to_owned(),
            );
        }
        if reasons.is_empty() {
            return Ok(());
        }
        Err(Error::NotReady { reasons, degraded })
    }
}
