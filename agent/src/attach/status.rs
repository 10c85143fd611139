//! STATUS: whether an ADD would be served, by what is so and not by whether we run.

use std::time::Duration;

use super::assignment::{delegate_call, delegate_of};
use super::{Call, Error, Node, READY_DEADLINE};
use crate::config::Wait;
use crate::flows::Flows;
use crate::journal;
use crate::ports::{ControllerError, PortError};

/// How long STATUS waits for an answer of ovs-vswitchd; runtimes ask it as often as every 0.5 s.
const ANSWER_DEADLINE: Duration = Duration::from_millis(500);

/// Answers STATUS.
pub(super) async fn status(node: &Node, call: &Call) -> Result<(), Error> {
    // An agent that has just started is not ready yet; an ADD waits for that too. Why it is not
    // ready in the end, what follows says.
    let _ = node.settled_within(READY_DEADLINE).await;
    readiness(node).await?;
    if let Some(plugin) = delegate_of(call, &node.spawner)? {
        plugin.status(&node.spawner, delegate_call(call)).await?;
    }
    Ok(())
}

/// Whether an ADD would be served now; the error has every reason why not.
pub(super) async fn readiness(node: &Node) -> Result<(), Error> {
    let health = Health::look(node).await;
    let reasons = health.reasons();
    if reasons.is_empty() {
        return Ok(());
    }
    Err(Error::NotReady {
        reasons,
        degraded: health.degraded,
    })
}

/// What an ADD needs, and what each lacks.
#[derive(Debug)]
pub(crate) struct Health {
    /// Database and bridge.
    pub(crate) ports: Option<PortError>,
    /// The version of ovs-vswitchd, when it answers.
    pub(crate) version: Option<String>,
    /// ovs-vswitchd.
    pub(crate) switch: Option<PortError>,
    /// The flows of port security, where the node's pods have it.
    pub(crate) flows: Option<String>,
    /// ovn-controller, where it is needed.
    pub(crate) controller: Option<ControllerError>,
    /// The sources of annotations.
    pub(crate) sources: Vec<String>,
    /// Whether what was found at start has been looked through.
    pub(crate) settled: bool,
    /// The intent log, which an ADD begins with.
    pub(crate) journal: Option<journal::Error>,
    /// Whether IPAM plugins can be run.
    pub(crate) spawner: bool,
    /// Whether running pods may have lost their connectivity as well.
    pub(crate) degraded: bool,
}

impl Health {
    /// Looks at everything that an ADD needs.
    pub(crate) async fn look(node: &Node) -> Self {
        let mut ready = node.ports.ready(Duration::ZERO).await;
        if ready.is_ok() {
            ready = node.ports.database_answers(ANSWER_DEADLINE).await;
        }
        // With the bridge go the ports of all pods; where it is not ours, only ovn-controller
        // brings them back.
        let bridge_gone = matches!(ready, Err(PortError::NoBridge { ovn: true, .. }));
        // A living socket says nothing: a stopped vswitchd keeps it.
        let switch = node.ports.switch_alive(ANSWER_DEADLINE).await;
        let controller = match node.config.ovn.wait {
            // Without it no new port comes up; the flows of those that are there stay in the
            // switch.
            Wait::OvnInstalled => node.ports.controller_connected(ANSWER_DEADLINE).await,
            Wait::Ofport => Ok(()),
        };
        // Why a living switch takes no flows; that it is dead, `switch` says.
        let flows = node.flows.as_ref().filter(|_| node.config.port_security);
        let flows = match (&ready, &switch) {
            (Ok(()), Ok(_)) => flows.and_then(Flows::problem),
            _ => None,
        };
        Self {
            flows: flows.map(|problem| format!("port security: {problem}")),
            degraded: bridge_gone || switch.is_err(),
            ports: ready.err(),
            version: switch.as_ref().ok().cloned(),
            switch: switch.err(),
            controller: controller.err(),
            sources: node.sources.problems(),
            settled: node.is_settled(),
            journal: node.journal.confirm_writable().err(),
            spawner: node.spawner.is_alive(),
        }
    }

    /// Every reason why an ADD would not be served.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let mut reasons: Vec<String> = Vec::new();
        reasons.extend(self.ports.as_ref().map(ToString::to_string));
        reasons.extend(self.switch.as_ref().map(ToString::to_string));
        reasons.extend(self.flows.clone());
        reasons.extend(self.controller.as_ref().map(ToString::to_string));
        reasons.extend(self.sources.iter().cloned());
        reasons.extend(self.journal.as_ref().map(ToString::to_string));
        if !self.spawner {
            reasons
                .push("the process that runs IPAM plugins is gone; the agent restarts".to_owned());
        }
        if reasons.is_empty() && !self.settled {
            reasons.push(
                "the agent is still looking through the ports that it found at start".to_owned(),
            );
        }
        reasons
    }
}
