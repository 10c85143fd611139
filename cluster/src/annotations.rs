//! The names of ovn-kubernetes' annotations that podwire reads or writes.

/// A node's subnets, by network.
pub const NODE_SUBNETS: &str = "k8s.ovn.org/node-subnets";
/// A node's chassis: its system-id.
pub const NODE_CHASSIS: &str = "k8s.ovn.org/node-chassis-id";
/// The MAC addresses of a node's management ports, by network.
pub const MANAGEMENT_MACS: &str = "k8s.ovn.org/node-mgmt-port-mac-addresses";
/// The same for the default network alone, before 2023.
pub const MANAGEMENT_MAC: &str = "k8s.ovn.org/node-mgmt-port-mac-address";
/// The addresses of a node's tunnel ends.
pub const ENCAP_IPS: &str = "k8s.ovn.org/node-encap-ips";
/// A node's gateway, by network.
pub const GATEWAY: &str = "k8s.ovn.org/l3-gateway-config";
/// The MAC address of a node's door, which podwire's nodes use; empty while it has none.
pub const DOOR_MAC: &str = "k8s.ovn.org/podwire-door-mac";
/// On a node whose Open vSwitch (before 3.3) knows no limit of a pod's connections: `true`. An
/// ovn-controller of 24.09 or later that is to set one there can't write anything else either.
pub const NO_LIMIT: &str = "k8s.ovn.org/podwire-no-connection-limit";
/// On a node with a gateway router: [`TO_HOST`] if what its pods answer to clients from outside
/// comes back to its host. podwire-controller writes it once OVN has the rows for that.
pub const ANSWERS: &str = "k8s.ovn.org/podwire-answers";
/// See [`ANSWERS`].
pub const TO_HOST: &str = "host";
/// Of these ovn-kubernetes' control plane writes at least one on each node: the addresses of its
/// gateway router on the switch join (2022 and later), by network (2024), and its number (from 2023
/// on). podwire-controller removes them.
pub const OVN_KUBERNETES: [&str; 3] = [
    "k8s.ovn.org/node-gateway-router-lrp-ifaddr",
    "k8s.ovn.org/node-gateway-router-lrp-ifaddrs",
    "k8s.ovn.org/node-id",
];
/// A node's own addresses.
pub const HOST_ADDRESSES: &str = "k8s.ovn.org/host-addresses";
/// The same with prefix lengths.
pub const HOST_CIDRS: &str = "k8s.ovn.org/host-cidrs";
/// The address of a node's uplink, one of each family.
pub const PRIMARY_ADDRESS: &str = "k8s.ovn.org/node-primary-ifaddr";
/// What is logged of the packets that a namespace's policies decide about.
pub const ACL_LOGGING: &str = "k8s.ovn.org/acl-logging";
/// A pod's addresses, by network.
pub const POD_NETWORKS: &str = "k8s.ovn.org/pod-networks";
/// The networks beside the default one that a pod asks for (Network Plumbing Working Group,
/// Kubernetes Network Custom Resource Definition De-facto Standard).
pub const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// The NetworkAttachmentDefinitions for whose networks a MultiNetworkPolicy is (the same group's
/// multi-networkpolicy).
pub const POLICY_FOR: &str = "k8s.v1.cni.cncf.io/policy-for";
