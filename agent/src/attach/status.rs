//! STATUS: whether an ADD would be served, judged by the actual state and not by whether the agent
//! runs.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::on_bridge::OnBridge;
use super::{Call, Cancel, Error, Handles, READY_DEADLINE};
use crate::config::{Mode, Wait};
use crate::journal;
use crate::ports::{BridgeMaker, ControllerError, PortError};

/// How long STATUS waits for an answer of ovs-vswitchd; runtimes request STATUS as often as every
/// 0.5 s.
const ANSWER_DEADLINE: Duration = Duration::from_millis(500);

/// Time limit of an IPAM plugin's STATUS. With what precedes it, STATUS ends before the CNI plugin
/// gives up (15 s), so that its error names the IPAM plugin.
const IPAM_DEADLINE: Duration = Duration::from_secs(5);

/// Answers STATUS, unless nobody waits for it any more.
pub(super) async fn status(node: &Handles, call: &Call, cancel: &Cancel) -> Result<(), Error> {
    // An agent that has just started is not ready yet; an ADD waits for that too. If it never
    // becomes ready, the reasons below tell why. kubelet makes the node NotReady at once.
    let _ = tokio::join!(
        node.settled_within(READY_DEADLINE),
        node.sources.answered_within(READY_DEADLINE),
    );
    let mut health = Health::check(node).await;
    if call.conf.port_security == Some(true) {
        health.flows = health.flows_problem(node);
    }
    health.pass_over_southbound(node);
    if let Some(on_bridge) = OnBridge::of(node, &call.conf, &call.args)?
        && on_bridge.other_bridge().is_some()
    {
        health.leave_own_bridge_out();
        health.confirm()?;
        let there = on_bridge.ready(node, Duration::ZERO).await;
        there.map_err(|error| Error::NotReady {
            reasons: vec![error.to_string()],
            degraded: false,
        })?;
    } else {
        health.confirm()?;
    }
    if let Some(mut plugin) = call.delegate(node)? {
        plugin.call.timeout = IPAM_DEADLINE;
        tokio::select! {
            answer = plugin.status() => drop(answer?),
            reason = cancel.cancelled() => return Err(reason.into()),
        }
    }
    Ok(())
}

/// Whether an ADD would be served now; the error has every reason against it.
pub(super) async fn readiness(node: &Handles) -> Result<(), Error> {
    Health::check(node).await.confirm()
}

/// What an ADD needs, and what is wrong with each part.
#[derive(Debug)]
pub(crate) struct Health {
    /// Database and bridge.
    pub(crate) ports: Option<PortError>,
    /// The version of ovs-vswitchd, if it answers.
    pub(crate) version: Option<String>,
    /// ovs-vswitchd.
    pub(crate) switch: Option<PortError>,
    /// The flows of port security, if the node, a pod on it or the network in question has it.
    pub(crate) flows: Option<String>,
    /// ovn-controller, if it is needed.
    pub(crate) controller: Option<ControllerError>,
    /// The sources of annotations.
    pub(crate) sources: Vec<String>,
    /// The subnets, if the node role has yet to provide them.
    pub(crate) subnets: Option<&'static str>,
    /// Whether the cleanup at start has finished.
    pub(crate) settled: bool,
    /// The intent log, with which an ADD begins.
    pub(crate) journal: Option<journal::Error>,
    /// Whether IPAM plugins can be run.
    pub(crate) spawner: bool,
    /// Whether running pods may have lost connectivity too.
    pub(crate) degraded: bool,
}

impl Health {
    /// Checks everything that an ADD needs.
    pub(crate) async fn check(node: &Handles) -> Self {
        let mut ready = node.ports.ready(Duration::ZERO).await;
        if ready.is_ok() {
            ready = node.ports.database_answers(ANSWER_DEADLINE).await;
        }
        // Without the bridge all pods' ports are gone; in OVN mode only ovn-controller restores
        // them.
        let bridge_gone = matches!(
            ready,
            Err(PortError::NoBridge {
                maker: BridgeMaker::OvnController,
                ..
            })
        );
        // The socket alone proves nothing: a stopped vswitchd keeps it.
        let switch = node.ports.switch_alive(ANSWER_DEADLINE).await;
        let controller = match node.config.ovn.wait {
            // Without it no new port comes up; the flows of existing ones stay in the switch.
            Wait::OvnInstalled => node.ports.controller_connected(ANSWER_DEADLINE).await,
            Wait::Ofport => Ok(()),
        };
        let mut health = Self {
            flows: None,
            degraded: bridge_gone || switch.is_err(),
            ports: ready.err(),
            version: switch.as_ref().ok().cloned(),
            switch: switch.err(),
            controller: controller.err(),
            sources: node.sources.problems(),
            subnets: awaits_subnets(node),
            settled: node.is_settled(),
            journal: node.journal.confirm_writable().err(),
            spawner: node.spawner.is_alive(),
        };
        if node.config.port_security || node.ports.any_has_port_security() {
            health.flows = health.flows_problem(node);
        }
        health
    }

    /// Passes over the missing connection of ovn-controller to a database that usually all nodes
    /// lack at the same time, if pods run here: for an error of STATUS, Kubernetes would take every
    /// pod of the cluster out of its services (docs/decisions/0095). Logs it once.
    fn pass_over_southbound(&mut self, node: &Handles) {
        let passed = self.controller.take_if(|problem| {
            matches!(
                problem,
                ControllerError::NotConnected {
                    remote: Some(_),
                    ..
                }
            ) && node.ports.any_is_up()
        });
        let is_new = !node.lacks_southbound.swap(passed.is_some(), Relaxed);
        if let Some(problem) = passed.filter(|_| is_new) {
            tracing::warn!(
                %problem,
                "no new pod can be wired; the node stays ready for those that run"
            );
        }
    }

    /// Leaves out what an ADD on another bridge does not need: the node's own bridge, OVN,
    /// annotations and subnets.
    fn leave_own_bridge_out(&mut self) {
        self.ports
            .take_if(|problem| matches!(problem, PortError::NoBridge { .. }));
        self.controller = None;
        self.flows = None;
        self.sources.clear();
        self.subnets = None;
        self.degraded = self.switch.is_some();
    }

    /// Why a living switch accepts no flows; `switch` reports a dead one.
    fn flows_problem(&self, node: &Handles) -> Option<String> {
        if self.ports.is_some() || self.switch.is_some() {
            return None;
        }
        let problem = node.flows.problem()?;
        Some(format!("port security: {problem}"))
    }

    /// Fails if there is any reason.
    fn confirm(&self) -> Result<(), Error> {
        let reasons = self.reasons();
        if reasons.is_empty() {
            return Ok(());
        }
        Err(Error::NotReady {
            reasons,
            degraded: self.degraded,
        })
    }

    /// All reasons why an ADD would not be served.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let mut reasons: Vec<String> = Vec::new();
        reasons.extend(self.ports.as_ref().map(ToString::to_string));
        reasons.extend(self.switch.as_ref().map(ToString::to_string));
        reasons.extend(self.flows.clone());
        reasons.extend(self.controller.as_ref().map(ToString::to_string));
        reasons.extend(self.sources.iter().cloned());
        reasons.extend(self.subnets.map(str::to_owned));
        reasons.extend(self.journal.as_ref().map(ToString::to_string));
        if !self.spawner {
            reasons.push(
                "the process that runs IPAM plugins has ended; the agent restarts".to_owned(),
            );
        }
        if reasons.is_empty() && !self.settled {
            reasons.push(
                "the agent is still looking through the ports that it found at start".to_owned(),
            );
        }
        reasons
    }
}

/// Only `--subnet node` leaves plain mode without a subnet.
fn awaits_subnets(node: &Handles) -> Option<&'static str> {
    let awaits = node.config.ovn.mode == Mode::Plain && node.live.borrow().subnets.is_empty();
    awaits.then_some(
        "the node's subnets are not known yet: `podwire node run --mode plain` provides them, from \
         the Node's podCIDRs",
    )
}
