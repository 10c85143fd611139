//! Where things are on most nodes: what the agent's flags fall back on, and what is looked at by those who have no agent to ask.

/// Open vSwitch's database, as its packages have it.
pub const OVSDB: &str = "unix:/var/run/openvswitch/db.sock";
/// Directory of ovn-controller's pidfile and control socket.
pub const OVN_RUNDIR: &str = "/var/run/ovn";
/// The bridge that OVN and its users agree on.
pub const BRIDGE: &str = "br-int";
/// The runtime's network configurations (containerd: conf_dir).
pub const CNI_CONF_DIR: &str = "/etc/cni/net.d";
/// The runtime's plugins (containerd: bin_dir).
pub const CNI_BIN_DIR: &str = "/opt/cni/bin";
