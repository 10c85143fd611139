//! The holder of an address.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use crate::plan::AttachmentKey;

/// The attachment that an address belongs to.
///
/// Two owners are equal if network, container id and interface name are: the CNI spec calls that
/// triple an attachment, and a DEL without prevResult knows nothing else. The pod is for display
/// and is not compared.
#[derive(Debug, Clone)]
pub struct Owner {
    /// The network's name, as in the network configuration.
    pub network: String,
    /// CNI_CONTAINERID, the sandbox.
    pub container_id: String,
    /// CNI_IFNAME; for further interfaces of one ADD, the name within the pod.
    pub ifname: String,
    /// `namespace/name`, if the runtime passed one.
    pub pod: Option<String>,
}

impl Owner {
    /// The owner for an attachment of this pod.
    pub fn of(key: &AttachmentKey, pod: Option<String>) -> Self {
        Self {
            network: key.network.clone(),
            container_id: key.container_id.clone(),
            ifname: key.ifname.clone(),
            pod,
        }
    }

    fn attachment(&self) -> (&str, &str, &str) {
        (&self.network, &self.container_id, &self.ifname)
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        self.attachment() == other.attachment()
    }
}

impl Eq for Owner {}

impl PartialOrd for Owner {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Owner {
    fn cmp(&self, other: &Self) -> Ordering {
        self.attachment().cmp(&other.attachment())
    }
}

impl Hash for Owner {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.attachment().hash(state);
    }
}

/// `pod ns/name, sandbox 0123456789ab, eth0`: the sandbox as runtimes' own tools shorten it.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(pod) = &self.pod {
            write!(f, "pod {pod}, ")?;
        }
        write!(f, "sandbox {:.12}, {}", self.container_id, self.ifname)
    }
}
