//! The flags.

use std::path::PathBuf;

use clap::Args;
use podwire_apiserver::Access;
use podwire_daemon::settings::{Mode, ServerArgs, SettingsError, SouthboundArgs};

use super::{Firewalld, GatewayMode, Profile};

/// The flags that say what the node is to be.
#[derive(Debug, Clone, Args)]
pub(crate) struct SettingsArgs {
    /// ovn: join an OVN network; plain: no OVN and no controller, routes and Open vSwitch's tunnels
    /// connect the nodes' podCIDRs
    #[arg(
        long,
        value_name = "MODE",
        default_value = "plain",
        env = "PODWIRE_MODE",
        hide_possible_values = true
    )]
    pub(crate) mode: Mode,
    /// This node's name in Kubernetes [default: the host name, in lower case]
    #[arg(long, value_name = "NAME", env = "PODWIRE_NODE_NAME")]
    pub(super) node_name: Option<String>,
    /// This node's subnet of the pod network, one for each family; may be repeated
    #[arg(
        long = "node-subnet",
        value_name = "CIDR",
        env = "PODWIRE_NODE_SUBNETS",
        value_delimiter = ' '
    )]
    pub(super) node_subnets: Vec<String>,
    /// The pod network of all nodes, routed through the management port; may be repeated
    #[arg(
        long = "cluster-subnet",
        value_name = "CIDR",
        env = "PODWIRE_CLUSTER_SUBNETS",
        value_delimiter = ' '
    )]
    pub(super) cluster_subnets: Vec<String>,
    /// The services' network, routed through the management port; may be repeated
    #[arg(
        long = "service-cidr",
        value_name = "CIDR",
        env = "PODWIRE_SERVICE_CIDRS",
        value_delimiter = ' '
    )]
    pub(super) service_cidrs: Vec<String>,
    /// Uplink: the link to other nodes and the outside [default: the default route's]
    #[arg(long, value_name = "LINK", env = "PODWIRE_INTERFACE")]
    pub(super) interface: Option<String>,
    /// Whether this command may move the NIC.
    #[arg(skip)]
    pub(crate) moves: bool,
    /// routed: the NIC is not touched; bridged: it is moved into the bridge br-ex; adopt: the
    /// operator's br-ex is used as it is
    #[arg(
        long,
        value_name = "PROFILE",
        default_value = "routed",
        env = "PODWIRE_PROFILE",
        hide_possible_values = true
    )]
    pub(super) profile: Profile,
    /// With br-ex. routed, or local: the host sends pods' packets outside; shared: a gateway router
    /// of OVN's does, with the node's addresses, if the controller makes one (podwire-controller
    /// --gateway-mode shared)
    #[arg(
        long,
        value_name = "MODE",
        default_value = "routed",
        env = "PODWIRE_GATEWAY_MODE",
        hide_possible_values = true
    )]
    pub(super) gateway_mode: GatewayMode,
    /// MTU of pods and of the management port, in bytes [default: the uplink's, less the tunnel's
    /// headers]
    #[arg(long, value_name = "BYTES", env = "PODWIRE_MTU")]
    pub(super) mtu: Option<u32>,
    /// Address of this node's tunnel endpoint, or several, separated by commas [default: the
    /// uplink's first]
    #[arg(long, value_name = "IP", env = "PODWIRE_ENCAP_IP")]
    pub(super) encap_ip: Option<String>,
    /// UDP port of the tunnel endpoint [default: 6081]
    #[arg(long, value_name = "PORT", env = "PODWIRE_ENCAP_PORT")]
    pub(super) encap_port: Option<u16>,
    /// Bridge of a physical network, such as physnet1:br-data; may be repeated
    #[arg(
        long = "bridge-mapping",
        value_name = "NETWORK:BRIDGE",
        env = "PODWIRE_BRIDGE_MAPPINGS",
        value_delimiter = ' '
    )]
    pub(super) bridge_mappings: Vec<String>,
    /// Bridge to make, with a spare NIC, which has no addresses, and the physical network that it
    /// carries for OVN, if any, such as br-data:eth1:physnet1; may be repeated
    #[arg(
        long = "data-bridge",
        value_name = "NAME:NIC[:NETWORK]",
        env = "PODWIRE_DATA_BRIDGES",
        value_delimiter = ' '
    )]
    pub(super) data_bridges: Vec<String>,
    /// With --profile bridged: spare NIC of the second gateway bridge br-ex1, which carries
    /// exgwphysnet [default: the one that /etc/ovnk/extra_bridge names]
    #[arg(long, value_name = "LINK", env = "PODWIRE_EXTRA_INTERFACE")]
    pub(super) extra_interface: Option<String>,
    /// Setting of ovn-controller (ovn-controller(8)), such as ovn-monitor-all=false; may be
    /// repeated
    #[arg(
        long = "ovn-option",
        value_name = "KEY=VALUE",
        env = "PODWIRE_OVN_OPTIONS",
        value_delimiter = ' '
    )]
    pub(super) ovn_options: Vec<String>,
    #[command(flatten)]
    pub(crate) southbound: SouthboundArgs,
    /// Plain mode: use tunnels to all other nodes, for a network that drops packets with pods'
    /// addresses
    #[arg(long, env = "PODWIRE_ALWAYS_TUNNEL")]
    pub(super) always_tunnel: bool,
    /// Processors for Open vSwitch's daemons, such as 0 or 0,2-3; written as drop-ins of their
    /// units, which apply at their next start
    #[arg(long, value_name = "LIST", env = "PODWIRE_OVS_CPUS")]
    pub(super) ovs_cpus: Option<String>,
    /// Start ovs-vswitchd with --no-mlockall, which reduces its resident memory; written as a
    /// drop-in, too
    #[arg(long, env = "PODWIRE_OVS_NO_MLOCKALL")]
    pub(super) ovs_no_mlockall: bool,
    /// Handler threads of ovs-vswitchd; no effect on the kernel's datapath from Open vSwitch 2.17
    /// on [default: one per processor]
    #[arg(long, value_name = "NUMBER", env = "PODWIRE_OVS_HANDLER_THREADS")]
    pub(super) ovs_handler_threads: Option<u16>,
    /// Revalidator threads of ovs-vswitchd [default: depends on the number of processors]
    #[arg(long, value_name = "NUMBER", env = "PODWIRE_OVS_REVALIDATOR_THREADS")]
    pub(super) ovs_revalidator_threads: Option<u16>,
    /// Buckets of the kernel's connection tracking table, a power of two; with OVN, each new or
    /// deleted pod costs a walk through all of them [default: unchanged]
    #[arg(long, value_name = "NUMBER", env = "PODWIRE_CONNTRACK_BUCKETS")]
    pub(super) conntrack_buckets: Option<u32>,
    /// Which configuration of firewalld to change, if it runs, so that it accepts pods' packets:
    /// off (none), runtime, or permanent (both)
    #[arg(
        long,
        value_name = "HOW",
        default_value = "runtime",
        env = "PODWIRE_FIREWALLD",
        hide_possible_values = true
    )]
    pub(super) firewalld: Firewalld,
    /// The integration bridge
    #[arg(
        long,
        value_name = "NAME",
        default_value = "br-int",
        env = "PODWIRE_BRIDGE"
    )]
    pub(super) bridge: String,
}

/// Where things are on this machine.
#[derive(Debug, Clone, Args)]
pub(crate) struct PlaceArgs {
    /// Open vSwitch's database
    #[arg(
        long,
        value_name = "REMOTE",
        default_value = "unix:/run/openvswitch/db.sock",
        env = "PODWIRE_OVSDB"
    )]
    pub(crate) ovsdb: String,
    /// Directory in which node/ holds the journal; it must be on tmpfs, because the journal lists
    /// what a reboot undoes
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/run/podwire",
        env = "PODWIRE_RUN_DIR"
    )]
    pub(super) run_dir: PathBuf,
}

/// The flags for the Kubernetes API, from which podwire reads the node's subnets and the services,
/// and to which it writes the node's annotations.
#[derive(Debug, Clone, Args)]
pub(crate) struct ApiArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Use this pod's service account for the Kubernetes API server
    #[arg(
        long,
        env = "PODWIRE_IN_CLUSTER",
        conflicts_with_all = ["k8s_apiserver", "kubeconfig"]
    )]
    in_cluster: bool,
}

impl ApiArgs {
    /// The flag that names the API server, and its value.
    pub(crate) fn server(&self) -> Option<(&'static str, String)> {
        let kubeconfig = self.server.kubeconfig.as_ref();
        let kubeconfig = kubeconfig.map(|path| ("--kubeconfig", path.display().to_string()));
        let url = self.server.k8s_apiserver.clone();
        let url = url.map(|url| ("--k8s-apiserver", url));
        let in_cluster = self.in_cluster.then(|| ("--in-cluster", "true".to_owned()));
        in_cluster.or(url).or(kubeconfig)
    }

    pub(crate) fn access(&self) -> Result<Option<Access>, SettingsError> {
        match self.in_cluster {
            true => Ok(Some(Access::InCluster)),
            false => self.server.access(),
        }
    }
}
