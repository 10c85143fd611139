//! The capabilities that the agent keeps, and why; capabilities(7) says what they allow.

use std::path::PathBuf;

use caps::{CapSet, Capability, CapsHashSet};

use super::LockdownError;

/// What this configuration needs beyond what every agent does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// Namespaces are given by process (`/proc/PID/ns/net`).
    pub other_processes_namespaces: bool,
    /// Open vSwitch runs as another user, who owns this path: its socket or the socket's directory.
    pub foreign_socket: Option<PathBuf>,
}

/// Why a capability is kept.
pub type Reason = &'static str;

impl Needs {
    /// The capabilities to keep.
    pub fn with_reasons(&self) -> impl Iterator<Item = (Capability, Reason)> {
        [
            (
                true,
                Capability::CAP_NET_ADMIN,
                "the agent creates and removes links, addresses, routes and conntrack entries by \
                 netlink, and writes sysctls of links",
            ),
            (
                true,
                Capability::CAP_SYS_ADMIN,
                "setns(2) into a pod's network namespace requires it",
            ),
            (
                true,
                Capability::CAP_NET_RAW,
                "gratuitous ARP and unsolicited NA go out of packet sockets",
            ),
            (
                self.other_processes_namespaces,
                Capability::CAP_SYS_PTRACE,
                "/proc/PID/ns/net of a process with other capabilities is open only to its tracers \
                 (--proc-netns)",
            ),
            (
                self.foreign_socket.is_some(),
                Capability::CAP_DAC_OVERRIDE,
                "Open vSwitch's sockets belong to another user",
            ),
        ]
        .into_iter()
        .filter_map(|(needed, capability, reason)| needed.then_some((capability, reason)))
    }
}

/// Drops all others from every set. The bounding set goes first, since that takes CAP_SETPCAP. With
/// an empty bounding set, nothing inheritable and no_new_privs, no exec can regain one.
pub(super) fn keep(wanted: &[Capability]) -> Result<Vec<Capability>, LockdownError> {
    let failed = |step| move |source| LockdownError::Capabilities { step, source };
    let held = caps::read(None, CapSet::Permitted).map_err(failed("read the capabilities"))?;
    let missing: Vec<_> = wanted
        .iter()
        .copied()
        .filter(|wanted| !held.contains(wanted))
        .collect();
    if !missing.is_empty() {
        return Err(LockdownError::Lacking { missing });
    }
    caps::clear(None, CapSet::Ambient).map_err(failed("clear the ambient capabilities"))?;
    // A container may lack CAP_SETPCAP. What its bounding set still has can't be gained either,
    // because with no_new_privs exec grants nothing.
    if held.contains(&Capability::CAP_SETPCAP) {
        caps::clear(None, CapSet::Bounding).map_err(failed("clear the bounding set"))?;
    }
    let kept: CapsHashSet = wanted.iter().copied().collect();
    caps::clear(None, CapSet::Inheritable).map_err(failed("clear the inheritable capabilities"))?;
    caps::set(None, CapSet::Effective, &kept).map_err(failed("drop effective capabilities"))?;
    caps::set(None, CapSet::Permitted, &kept).map_err(failed("drop permitted capabilities"))?;
    Ok(wanted.to_vec())
}
