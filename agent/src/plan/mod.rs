//! From what a pod should get and what the node is like to the links, addresses, routes and rows to make.
//!
//! Pure: no clock, no file, no socket. Whatever can be refused without looking at the kernel or at OVS is refused here, so
//! that a refusal leaves nothing behind. The executing rooms add nothing to a plan and decide nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use macaddr::MacAddr6;
use serde::{Deserialize, Serialize};

use crate::netns::{LinkSpec, Route};

pub mod mac;
mod names;
pub mod result;

pub use names::{host_link_names, stable_hash};

/// Smallest MTU that IPv4 works with (RFC 791 §3.1) and that a veth device takes (`ETH_MIN_MTU`).
pub const MIN_MTU: u32 = 68;
/// Smallest MTU that IPv6 works with (RFC 8200 §5); the kernel drops the IPv6 addresses of a link below it.
pub const MIN_MTU_IPV6: u32 = 1280;
/// Largest MTU of a veth device (`ETH_MAX_MTU`).
pub const MAX_MTU: u32 = 65_535;

/// What CNI keys an attachment by: DEL has nothing else (CNI spec §2, "Lifecycle & Ordering").
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachmentKey {
    /// `name` of the network configuration.
    pub network: String,
    /// CNI_CONTAINERID.
    pub container_id: String,
    /// CNI_IFNAME.
    pub ifname: String,
}

impl fmt::Display for AttachmentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of container {} on network {}",
            self.ifname, self.container_id, self.network
        )
    }
}

/// The pod that the runtime named.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodRef {
    /// K8S_POD_NAMESPACE; podman gives none.
    pub namespace: Option<String>,
    /// K8S_POD_NAME.
    pub name: String,
    /// K8S_POD_UID.
    pub uid: Option<String>,
}

impl RouteSpec {
    /// A route with nothing but a destination and perhaps a next hop.
    pub fn new(dst: IpNet, gateway: Option<IpAddr>) -> Self {
        Self {
            dst,
            gateway,
            mtu: None,
            advmss: None,
            priority: None,
            table: None,
            scope: None,
        }
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// One interface that a pod should get, whoever said so.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InterfaceSpec {
    /// Its name in the pod; None is CNI_IFNAME.
    pub pod_ifname: Option<String>,
    /// Its MAC address; None lets us make one.
    pub mac: Option<MacAddr6>,
    /// Its addresses with their prefix lengths.
    pub addresses: Vec<IpNet>,
    /// Next hops of its default routes.
    pub gateways: Vec<IpAddr>,
    /// Gateways of its subnets that no default route goes by: the result names them.
    pub subnet_gateways: Vec<IpAddr>,
    /// Its other routes.
    pub routes: Vec<RouteSpec>,
    /// Its MTU in bytes; None is the node's.
    pub mtu: Option<u32>,
    /// Most that it may receive, in bit/s; None is no limit.
    pub ingress_rate: Option<u64>,
    /// Most that it may send, in bit/s; None is no limit.
    pub egress_rate: Option<u64>,
    /// How its logical port is named.
    pub port_name: PortName,
    /// The network attachment definition that it is of, as annotations key it: `namespace/name`, or `namespace/name/1` for the
    /// second attachment to the same one. None is the cluster's default network.
    pub nad: Option<String>,
}

/// How an interface's logical port is named, when it is none of a network attachment definition's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PortName {
    /// By the pod, and by the interface unless it is the pod's first.
    #[default]
    ByInterface,
    /// By the pod, whatever the interface is called: `*` in a list of interfaces.
    Pod,
    /// By the pod and the interface, also of the first: named in a list of interfaces.
    PodAndInterface,
}

/// A route that a pod should get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteSpec {
    /// Destination; host bits are none of ours to keep.
    pub dst: IpNet,
    /// Next hop; None is a destination on the link itself.
    pub gateway: Option<IpAddr>,
    /// RTAX_MTU of the route in bytes.
    pub mtu: Option<u32>,
    /// RTAX_ADVMSS of the route in bytes.
    pub advmss: Option<u32>,
    /// Metric; None is the kernel's default.
    pub priority: Option<u32>,
    /// Routing table; None is `main`.
    pub table: Option<u32>,
    /// Scope as in rtnetlink(7); None lets the kind of route decide.
    pub scope: Option<u8>,
}

/// What the node adds to every plan.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    /// The bridge that pods' ports go on.
    pub bridge: String,
    /// Whether the bridge's datapath is userspace (`netdev`), with which TX checksum offload carries no TCP.
    pub netdev_datapath: bool,
    /// MTU for a pod to which nobody gave one, in bytes.
    pub default_mtu: u32,
}

/// Which attachment is planned.
#[derive(Debug, Clone)]
pub struct Subject<'a> {
    /// The attachment.
    pub key: &'a AttachmentKey,
    /// The pod, when the runtime named one.
    pub pod: Option<&'a PodRef>,
    /// CNI_NETNS.
    pub netns: &'a str,
}

/// One port to make.
#[derive(Debug, Clone)]
pub struct PortPlan {
    /// The veth pair and what is set on its pod end.
    pub link: LinkSpec,
    /// OVN's name for the port; at most one Interface row bears it.
    pub iface_id: String,
    /// external_ids of the Interface row.
    pub external_ids: BTreeMap<String, String>,
    /// Default routes' next hops, for the result.
    pub gateways: Vec<IpAddr>,
    /// Other gateways of the addresses' subnets, for the result.
    pub subnet_gateways: Vec<IpAddr>,
    /// What it may send and receive.
    pub bandwidth: Bandwidth,
}

/// Limits of one interface in bit/s, as the pod sees the directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bandwidth {
    /// Towards the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress_rate: Option<u64>,
    /// From the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_rate: Option<u64>,
}

/// Why a wish can't be met. Each names the field and the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The MTU is out of bounds.
    #[error("mtu {mtu} of {interface} is not between {least} and {MAX_MTU}{}", if *.least == MIN_MTU_IPV6 { " (IPv6 needs at least 1280)" } else { "" })]
    Mtu {
        /// Which interface.
        interface: String,
        /// The refused value.
        mtu: u32,
        /// What it must be at least.
        least: u32,
    },
    /// The MAC address can't be an interface's.
    #[error("mac {mac} of {interface} is {}", if .mac.is_nil() { "all zero" } else { "a group address" })]
    Mac {
        /// Which interface.
        interface: String,
        /// The refused value.
        mac: MacAddr6,
    },
    /// The address can't be a host's.
    #[error("address {address} of {interface} is {what}")]
    Address {
        /// Which interface.
        interface: String,
        /// The refused value.
        address: IpNet,
        /// What it is instead.
        what: &'static str,
    },
    /// A next hop without an address of its family to reach it from.
    #[error("{field} {gateway} of {interface} needs an {} address on the interface, and there is none", family(.gateway))]
    NoAddressForGateway {
        /// Which interface.
        interface: String,
        /// Which field holds it.
        field: &'static str,
        /// The refused value.
        gateway: IpAddr,
    },
    /// A next hop that is no host.
    #[error("{field} {gateway} of {interface} is {what}")]
    Gateway {
        /// Which interface.
        interface: String,
        /// Which field holds it.
        field: &'static str,
        /// The refused value.
        gateway: IpAddr,
        /// What it is instead.
        what: &'static str,
    },
    /// Destination and next hop of different families.
    #[error("route {dst} of {interface} goes by {gateway}: one is IPv4, the other IPv6")]
    RouteFamily {
        /// Which interface.
        interface: String,
        /// Destination.
        dst: IpNet,
        /// Next hop.
        gateway: IpAddr,
    },
    /// The same thing twice.
    #[error("{what} {value} is given twice for {interface}")]
    Twice {
        /// Which interface.
        interface: String,
        /// What is there twice.
        what: &'static str,
        /// Its value.
        value: String,
    },
    /// Two interfaces of one name.
    #[error("two interfaces are both to be named {name}")]
    TwoOfOneName {
        /// The name.
        name: String,
    },
}

/// Plans the ports of one attachment.
///
/// # Errors
/// When a wish can't be met; see [`PlanError`].
pub fn plan(
    subject: &Subject<'_>,
    interfaces: &[InterfaceSpec],
    node: &NodeFacts,
) -> Result<Vec<PortPlan>, PlanError> {
    let mut ports: Vec<PortPlan> = Vec::with_capacity(interfaces.len());
    for intent in interfaces {
        let port = plan_port(subject, intent, node)?;
        if ports
            .iter()
            .any(|other| other.link.pod_name == port.link.pod_name)
        {
            return Err(PlanError::TwoOfOneName {
                name: port.link.pod_name,
            });
        }
        ports.push(port);
    }
    Ok(ports)
}

fn plan_port(
    subject: &Subject<'_>,
    intent: &InterfaceSpec,
    node: &NodeFacts,
) -> Result<PortPlan, PlanError> {
    let key = subject.key;
    let pod_name = intent.pod_ifname.as_deref().unwrap_or(&key.ifname);
    check_addresses(pod_name, &intent.addresses)?;
    let mtu = check_mtu(
        pod_name,
        intent.mtu.unwrap_or(node.default_mtu),
        &intent.addresses,
    )?;
    let seed = [key.network.as_str(), &key.container_id, pod_name];
    let pod_mac = intent
        .mac
        .unwrap_or_else(|| mac::pod_mac(&intent.addresses, &seed));
    if pod_mac.is_nil() || pod_mac.is_multicast() {
        return Err(PlanError::Mac {
            interface: pod_name.to_owned(),
            mac: pod_mac,
        });
    }
    let nad = intent.nad.as_deref();
    let iface_id = iface_id(subject, nad, intent.port_name, pod_name);
    let mut external_ids = external_ids(subject, pod_name, &iface_id, pod_mac, &intent.addresses);
    if let Some(nad) = nad {
        external_ids.insert(ids::OVN_NETWORK.to_owned(), key.network.clone());
        external_ids.insert(ids::OVN_NAD.to_owned(), nad.to_owned());
    }
    let link = LinkSpec {
        host_names: host_link_names(&key.network, &key.container_id, pod_name),
        pod_name: pod_name.to_owned(),
        host_mac: mac::host_mac(&seed),
        pod_mac,
        mtu,
        addresses: intent.addresses.clone(),
        routes: plan_routes(pod_name, intent)?,
        pod_tx_checksum_off: node.netdev_datapath,
        announce: !intent.addresses.is_empty(),
    };
    Ok(PortPlan {
        link,
        iface_id,
        external_ids,
        gateways: intent.gateways.clone(),
        subnet_gateways: intent.subnet_gateways.clone(),
        bandwidth: Bandwidth {
            ingress_rate: intent.ingress_rate,
            egress_rate: intent.egress_rate,
        },
    })
}

/// The logical port's name as controllers make it; without a pod the container's id stands for it.
///
/// On the cluster's default network it is `<namespace>_<pod>`, and for further interfaces of it `<namespace>_<pod>_<interface>`
/// (ovn4nfv). On a network attachment definition's it is `<namespace>.<definition>_<namespace>_<pod>`, where `-` of the definition's
/// key is `.` as well (ovn-kubernetes: names of port groups have no `-`).
fn iface_id(subject: &Subject<'_>, nad: Option<&str>, named: PortName, pod_ifname: &str) -> String {
    let mut id = match subject.pod {
        Some(PodRef {
            namespace: Some(namespace),
            name,
            ..
        }) => format!("{namespace}_{name}"),
        Some(PodRef {
            namespace: None,
            name,
            ..
        }) => name.clone(),
        None => subject.key.container_id.clone(),
    };
    if let Some(nad) = nad {
        return format!("{}_{id}", nad.replace(['-', '/'], "."));
    }
    let by_interface = match named {
        PortName::ByInterface => pod_ifname != "eth0",
        PortName::Pod => false,
        PortName::PodAndInterface => true,
    };
    if by_interface {
        id.push('_');
        id.push_str(pod_ifname);
    }
    id
}

fn external_ids(
    subject: &Subject<'_>,
    pod_ifname: &str,
    iface_id: &str,
    mac: MacAddr6,
    addresses: &[IpNet],
) -> BTreeMap<String, String> {
    let key = subject.key;
    let mut ids = BTreeMap::new();
    let mut set = |name: &str, value: String| drop(ids.insert(name.to_owned(), value));
    set(ids::IFACE_ID, iface_id.to_owned());
    set(ids::ATTACHED_MAC, mac_text(mac));
    set(ids::SANDBOX, key.container_id.clone());
    set(ids::POD_IF_NAME, pod_ifname.to_owned());
    set(ids::NETWORK, key.network.clone());
    set(ids::IFNAME, key.ifname.clone());
    set(ids::NETNS, subject.netns.to_owned());
    if !addresses.is_empty() {
        let list: Vec<String> = addresses.iter().map(IpNet::to_string).collect();
        set(ids::IP_ADDRESSES, list.join(","));
    }
    if let Some(pod) = subject.pod {
        set(ids::POD, pod.to_string());
        if let Some(uid) = &pod.uid {
            set(ids::IFACE_ID_VER, uid.clone());
        }
    }
    ids
}

/// The keys of an Interface row's external_ids: OVN's and ovn-kubernetes' own names, then podwire's.
pub mod ids {
    /// OVN: the logical port.
    pub const IFACE_ID: &str = "iface-id";
    /// OVN: the logical port's `iface-id-ver` option must equal it; the pod's uid.
    pub const IFACE_ID_VER: &str = "iface-id-ver";
    /// The pod end's MAC address.
    pub const ATTACHED_MAC: &str = "attached_mac";
    /// The pod's addresses with prefix lengths, comma-separated.
    pub const IP_ADDRESSES: &str = "ip_addresses";
    /// The container id.
    pub const SANDBOX: &str = "sandbox";
    /// The interface's name in the pod.
    pub const POD_IF_NAME: &str = "pod-if-name";
    /// ovn-kubernetes: the network that is not the cluster's default one.
    pub const OVN_NETWORK: &str = "k8s.ovn.org/network";
    /// ovn-kubernetes: the network attachment definition, as annotations key it.
    pub const OVN_NAD: &str = "k8s.ovn.org/nad";
    /// ovn-controller: `true` once it has seen the switch confirm the port's flows.
    pub const OVN_INSTALLED: &str = "ovn-installed";
    /// podwire: the network configuration's name. A row without it is not podwire's.
    pub const NETWORK: &str = "podwire.io/network";
    /// podwire: CNI_IFNAME of the attachment, which may have made several interfaces.
    pub const IFNAME: &str = "podwire.io/ifname";
    /// podwire: CNI_NETNS as the runtime gave it.
    pub const NETNS: &str = "podwire.io/netns";
    /// podwire: `namespace/name` of the pod.
    pub const POD: &str = "podwire.io/pod";
}

/// A MAC address as `ip` and OVS write it.
pub fn mac_text(mac: MacAddr6) -> String {
    let [a, b, c, d, e, f] = mac.into_array();
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

fn check_mtu(interface: &str, mtu: u32, addresses: &[IpNet]) -> Result<u32, PlanError> {
    let has_ipv6 = addresses
        .iter()
        .any(|address| matches!(address, IpNet::V6(_)));
    let least = if has_ipv6 { MIN_MTU_IPV6 } else { MIN_MTU };
    if (least..=MAX_MTU).contains(&mtu) {
        Ok(mtu)
    } else {
        Err(PlanError::Mtu {
            interface: interface.to_owned(),
            mtu,
            least,
        })
    }
}

fn check_addresses(interface: &str, addresses: &[IpNet]) -> Result<(), PlanError> {
    for (at, address) in addresses.iter().enumerate() {
        if let Some(what) = not_a_host(address.addr()).or_else(|| not_in_its_subnet(address)) {
            return Err(PlanError::Address {
                interface: interface.to_owned(),
                address: *address,
                what,
            });
        }
        if addresses[..at]
            .iter()
            .any(|other| other.addr() == address.addr())
        {
            let (interface, value) = (interface.to_owned(), address.to_string());
            return Err(PlanError::Twice {
                interface,
                what: "address",
                value,
            });
        }
    }
    Ok(())
}

/// What an address is when it can be no host's.
fn not_a_host(ip: IpAddr) -> Option<&'static str> {
    if ip.is_unspecified() {
        Some("the unspecified address")
    } else if ip.is_multicast() {
        Some("a multicast address")
    } else if ip.is_loopback() {
        Some("a loopback address")
    } else if ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        Some("the broadcast address")
    } else {
        None
    }
}

fn not_in_its_subnet(address: &IpNet) -> Option<&'static str> {
    let IpNet::V4(net) = address else { return None };
    if net.prefix_len() >= 31 {
        None
    } else if net.addr() == net.network() {
        Some("its subnet's network address")
    } else if net.addr() == net.broadcast() {
        Some("its subnet's broadcast address")
    } else {
        None
    }
}

fn plan_routes(interface: &str, intent: &InterfaceSpec) -> Result<Vec<Route>, PlanError> {
    let mut routes: Vec<Route> = Vec::with_capacity(intent.gateways.len() + intent.routes.len());
    for gateway in &intent.gateways {
        let dst = match gateway {
            IpAddr::V4(_) => IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0),
            IpAddr::V6(_) => IpNet::new_assert(Ipv6Addr::UNSPECIFIED.into(), 0),
        };
        let onlink = check_gateway(interface, "gateway", *gateway, &intent.addresses)?;
        push_route(
            interface,
            &mut routes,
            Route {
                onlink,
                ..Route::new(dst, Some(*gateway))
            },
        )?;
    }
    for wish in &intent.routes {
        let dst = wish.dst.trunc();
        let mut onlink = false;
        if let Some(gateway) = wish.gateway {
            if gateway.is_ipv4() != dst.addr().is_ipv4() {
                return Err(PlanError::RouteFamily {
                    interface: interface.to_owned(),
                    dst,
                    gateway,
                });
            }
            onlink = check_gateway(interface, "route's next hop", gateway, &intent.addresses)?;
        }
        let route = Route {
            mtu: wish.mtu,
            advmss: wish.advmss,
            priority: wish.priority,
            table: wish.table,
            scope: wish.scope,
            onlink,
            ..Route::new(dst, wish.gateway)
        };
        push_route(interface, &mut routes, route)?;
    }
    // A route to a next hop's own network must be there before the routes that go by it.
    routes.sort_by_key(|route| route.gateway.is_some());
    Ok(routes)
}

fn push_route(interface: &str, routes: &mut Vec<Route>, route: Route) -> Result<(), PlanError> {
    let is_same = |other: &Route| {
        (other.dst, other.priority, other.table) == (route.dst, route.priority, route.table)
    };
    if routes.iter().any(is_same) {
        let (interface, value) = (interface.to_owned(), route.dst.to_string());
        return Err(PlanError::Twice {
            interface,
            what: "route",
            value,
        });
    }
    routes.push(route);
    Ok(())
}

/// Whether the next hop lies outside every subnet of the interface and so needs RTNH_F_ONLINK.
fn check_gateway(
    interface: &str,
    field: &'static str,
    gateway: IpAddr,
    addresses: &[IpNet],
) -> Result<bool, PlanError> {
    if let Some(what) = not_a_host(gateway) {
        return Err(PlanError::Gateway {
            interface: interface.to_owned(),
            field,
            gateway,
            what,
        });
    }
    if addresses.iter().any(|address| address.addr() == gateway) {
        let what = "the interface's own address";
        return Err(PlanError::Gateway {
            interface: interface.to_owned(),
            field,
            gateway,
            what,
        });
    }
    if !addresses
        .iter()
        .any(|address| address.addr().is_ipv4() == gateway.is_ipv4())
    {
        return Err(PlanError::NoAddressForGateway {
            interface: interface.to_owned(),
            field,
            gateway,
        });
    }
    let is_link_local = matches!(gateway, IpAddr::V6(ip) if ip.is_unicast_link_local());
    Ok(!is_link_local && !addresses.iter().any(|address| address.contains(&gateway)))
}

fn family(ip: &IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

#[cfg(test)]
mod tests;
