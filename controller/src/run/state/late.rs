//! Pods whose network is late.

use podwire_apiserver::event::Warning;

use super::State;
use crate::delays::{LATE, Stage};

impl State {
    /// What a pod is told whose port has waited for long; None for a port of no pod.
    pub(crate) fn late(&self, port: &str, stage: Stage) -> Option<Warning> {
        // A network's name may stand before, and have underscores; those of a pod have none.
        let mut parts = port.rsplitn(3, '_');
        let (name, namespace) = (parts.next()?, parts.next()?);
        let pod = self.cluster.pods.get(&(namespace.into(), name.into()))?;
        let limit = LATE.as_secs();
        let (reason, message) = match stage {
            Stage::Northd => (
                "WaitingForNorthd",
                format!(
                    "the port {port} has not come into the southbound database for {limit} s: \
                     ovn-northd is late or does not run; `podwire-controller status` says more"
                ),
            ),
            Stage::Node => (
                "WaitingForOvnController",
                format!(
                    "ovn-controller of node {} has not installed the flows of the port {port} for \
                     {limit} s; `podwire doctor` there says more",
                    pod.node
                ),
            ),
        };
        Some(Warning {
            api: "v1",
            kind: "Pod",
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: pod.uid.to_string(),
            reason,
            message,
        })
    }
}
