//! The privileges that the agent keeps, and why.

use podwire_daemon::lockdown::{Calls, Capability, Privileges, is_anothers};

use crate::config::{Config, Mode};

/// What a configuration needs.
pub(super) fn privileges(config: &Config) -> Privileges {
    let mut capabilities = vec![
        // Links, addresses, routes and conntrack entries by netlink, sysctls of links.
        Capability::CAP_NET_ADMIN,
        // setns(2) into a pod's network namespace.
        Capability::CAP_SYS_ADMIN,
        // Gratuitous ARP and unsolicited NA, probes of addresses, and DHCP and router solicitations
        // for pods, through packet sockets.
        Capability::CAP_NET_RAW,
    ];
    if config.power.proc_netns {
        // /proc/PID/ns/net of a process with other capabilities is open only to its tracers.
        capabilities.push(Capability::CAP_SYS_PTRACE);
    }
    let ovn = (config.ovn.mode == Mode::Ovn).then_some(&config.ovn.rundir);
    let sockets = [Some(&config.ovsdb), Some(&config.ovs_rundir), ovn];
    if sockets.into_iter().flatten().any(|path| is_anothers(path)) {
        // Open vSwitch runs as another user.
        capabilities.push(Capability::CAP_DAC_OVERRIDE);
    }
    Privileges {
        capabilities,
        calls: Calls::Namespaces,
    }
}
