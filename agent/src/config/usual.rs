//! Usual paths and names: the defaults of the agent's flags, also for tools without an agent.

use podwire_cni::spec::OVS_CNI;

/// Open vSwitch's database, as packaged.
pub const OVSDB: &str = "unix:/var/run/openvswitch/db.sock";
/// Directory of ovn-controller's pidfile and control socket.
pub const OVN_RUNDIR: &str = "/var/run/ovn";
/// The bridge that OVN and its users agree on.
pub const BRIDGE: &str = "br-int";
/// The runtime's network configurations (containerd: conf_dir).
pub const CNI_CONF_DIR: &str = "/etc/cni/net.d";
/// The runtime's plugins (containerd: bin_dir).
pub const CNI_BIN_DIR: &str = "/opt/cni/bin";
/// The plugin directories of distributions and runtimes (containerd, CRI-O, Fedora, Debian).
pub const PLUGIN_DIRECTORIES: [&str; 5] = [
    CNI_BIN_DIR,
    "/usr/libexec/cni",
    "/usr/lib/cni",
    "/usr/local/libexec/cni",
    "/usr/local/lib/cni",
];
/// The possible names of the plugin, its own first; it is one binary.
pub const PLUGIN_NAMES: [&str; 3] = ["podwire-cni", DROP_IN, OVS_CNI];
/// Those that serve a node's own network.
pub const NETWORK_PLUGIN_NAMES: [&str; 2] = ["podwire-cni", DROP_IN];
/// The plugin that podwire's can replace.
pub const DROP_IN: &str = "ovn-k8s-cni-overlay";
/// The network's name in the configuration that ovn-kubernetes writes: runtimes store what they
/// know about a pod under it.
pub const DROP_IN_NETWORK: &str = "ovn-kubernetes";
/// The management port, to which ovn-kubernetes gives the MTU of the cluster's pods.
pub const MANAGEMENT_PORT: &str = "ovn-k8s-mp0";
