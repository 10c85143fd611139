//! STATUS: whether an ADD would be served, by what is so and not by whether we run.

use std::time::Duration;

use super::intent::{delegate_call, delegate_of};
use super::{Agent, Call, Error};

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
        if let Err(error) = self.ports.ready(Duration::ZERO).await {
            reasons.push(error.to_string());
        }
        // A living socket says nothing: a stopped vswitchd keeps it.
        let switch = self.ports.switch_alive(ANSWER_DEADLINE).await;
        let degraded = switch.is_err();
        reasons.extend(switch.err().map(|error| error.to_string()));
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
