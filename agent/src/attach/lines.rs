//! The queues of a node: one for each pod, and one for each sandbox on a network.

use std::collections::HashMap;
use std::sync::Arc;

use super::turns::{Cancel, Place, Turns};
use crate::plan::AttachmentKey;

/// The queues of all pods and sandboxes.
#[derive(Debug, Default)]
pub struct Lines {
    pods: Turns,
    sandboxes: Turns,
}

impl Lines {
    /// Queues an ADD: for its pod, then for its sandbox. Cancels a running ADD for another sandbox
    /// of the same pod.
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

    /// Queues a removal for its sandbox. Cancels ADDs of the same attachment that are ahead.
    pub(crate) fn join_del(&self, key: &AttachmentKey) -> Place {
        let line = sandbox_line(key);
        self.sandboxes
            .join_del(line, &key.container_id, &key.ifname)
    }

    /// Queues for a sandbox and cancels nothing.
    pub(crate) fn join_sandbox(&self, key: &AttachmentKey) -> Place {
        self.sandboxes
            .join_quietly(sandbox_line(key), &key.container_id)
    }

    /// Queues for a pod and cancels nothing.
    pub(crate) fn join_pod(&self, key: &AttachmentKey, pod: Option<String>) -> Place {
        self.pods
            .join_quietly(pod_line(key, pod), &key.container_id)
    }

    /// Whether an operation on the attachment's sandbox is queued or in progress.
    pub(crate) fn is_busy(&self, key: &AttachmentKey) -> bool {
        self.sandboxes.is_busy(&sandbox_line(key))
    }

    /// The networks and sandboxes with operations in progress, each with the interfaces of its
    /// ADDs.
    pub(super) fn under_way(&self) -> HashMap<(String, String), Vec<String>> {
        self.sandboxes.under_way()
    }
}

/// The queue for a pod's ADDs. All networks of a pod share it, because its first interface has the
/// same iface-id on any of them. Without a pod, it is that of the container on its network.
fn pod_line(key: &AttachmentKey, pod: Option<String>) -> (String, String) {
    match pod {
        Some(pod) => (String::new(), pod),
        None => sandbox_line(key),
    }
}

/// The queue for all operations on one sandbox on one network.
pub(super) fn sandbox_line(key: &AttachmentKey) -> (String, String) {
    (key.network.clone(), key.container_id.clone())
}
