//! The waiting lines of a node: one for each pod, and one for each sandbox on a network.

use std::collections::HashMap;
use std::sync::Arc;

use super::turns::{Cancel, Place, Turns};
use crate::plan::AttachmentKey;

/// The lines of all pods and sandboxes.
#[derive(Debug, Default)]
pub struct Lines {
    pods: Turns,
    sandboxes: Turns,
}

impl Lines {
    /// The places of an ADD: in its pod's line, then in its sandbox's. An ADD for another sandbox
    /// of the same pod that runs is told to end.
    pub(super) fn join_add(
        &self,
        key: &AttachmentKey,
        pod: Option<String>,
        cancel: &Arc<Cancel>,
    ) -> [Place; 2] {
        [
            (&self.pods, pod_line(key, pod)),
            (&self.sandboxes, sandbox_line(key)),
        ]
        .map(|(lines, line)| {
            lines.join_add(line, &key.container_id, &key.ifname, Arc::clone(cancel))
        })
    }

    /// The place of a removal in its sandbox's line. ADDs of the same attachment that are ahead are
    /// told to end.
    pub(crate) fn join_del(&self, key: &AttachmentKey) -> Place {
        let line = sandbox_line(key);
        self.sandboxes
            .join_del(line, &key.container_id, &key.ifname)
    }

    /// A place in the sandbox's line; nobody is told to end.
    pub(crate) fn join_sandbox(&self, key: &AttachmentKey) -> Place {
        self.sandboxes
            .join_quietly(sandbox_line(key), &key.container_id)
    }

    /// A place in the pod's line; nobody is told to end.
    pub(crate) fn join_pod(&self, key: &AttachmentKey, pod: Option<String>) -> Place {
        self.pods
            .join_quietly(pod_line(key, pod), &key.container_id)
    }

    /// Whether something is done to the attachment's sandbox.
    pub(crate) fn is_busy(&self, key: &AttachmentKey) -> bool {
        self.sandboxes.is_busy(&sandbox_line(key))
    }

    /// The networks and sandboxes to which something is done, each with the interfaces of its ADDs.
    pub(super) fn under_way(&self) -> HashMap<(String, String), Vec<String>> {
        self.sandboxes.under_way()
    }
}

/// The line of a pod's ADDs. It is one for all its networks, for a pod's first interface has one
/// iface-id on any of them; without a pod it is the container's on its network.
fn pod_line(key: &AttachmentKey, pod: Option<String>) -> (String, String) {
    match pod {
        Some(pod) => (String::new(), pod),
        None => sandbox_line(key),
    }
}

/// The line of all that is done to one sandbox on one network.
pub(super) fn sandbox_line(key: &AttachmentKey) -> (String, String) {
    (key.network.clone(), key.container_id.clone())
}
