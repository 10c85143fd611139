//! Requests and results of this module: plain data.

use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use macaddr::MacAddr6;
use nix::libc;
use serde::{Deserialize, Serialize};

use super::Error;
use super::announce::Announcer;

/// One veth pair to create, from the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkSpec {
    /// Names for the host end, in order of preference; the first free one is used. At most 15 bytes
    /// each.
    pub host_names: Vec<String>,
    /// The interface's name in the pod (CNI_IFNAME).
    pub pod_name: String,
    /// The host end's MAC address. Set at creation, so that udev leaves it alone.
    pub host_mac: MacAddr6,
    /// The pod end's MAC.
    pub pod_mac: MacAddr6,
    /// The MTU of both ends: 68 to 65535, at least 1280 with IPv6.
    pub mtu: u32,
    /// The pod end's addresses, each with its prefix length.
    pub addresses: Vec<IpNet>,
    /// The routes over the pod end, set in this order.
    pub routes: Vec<Route>,
    /// The IPv6 messages that the pod end may send by itself.
    pub pod_ipv6: PodIpv6,
    /// Whether the datapath is a netdev (userspace) one, which does not complete partial checksums
    /// and leaves frames that it reads to the host's own stack as well.
    pub netdev_datapath: bool,
    /// The addresses that [`PodEnd::announce`] announces to neighbours.
    pub announce: Vec<IpAddr>,
}

/// The IPv6 messages that a new pod end may send by itself, and whether it believes routers; set
/// before the link has a carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodIpv6 {
    /// None: IPv6 is off. With IPv6 and without an address, an interface still reports multicast
    /// groups, probes for its link-local address and solicits routers.
    Off,
    /// Multicast reports only: as [`PodIpv6::Assigned`], and without duplicate address detection of
    /// its link-local address (`accept_dad`).
    Quiet,
    /// All but router solicitations, for it believes no router (`accept_ra`): its addresses and
    /// routes are given to it, and any neighbour could advertise others.
    Assigned,
    /// All, and it believes routers, but makes no address of their prefixes (`autoconf`): its
    /// network takes packets from none but those that it is given.
    Routed,
    /// The namespace's settings apply.
    Usual,
}

impl PodIpv6 {
    /// Whether an interface takes what routers advertise, but for a default route where the pod has
    /// one already: the kernel would send by either of two.
    pub(super) fn believes_routers(self) -> bool {
        matches!(self, Self::Routed | Self::Usual)
    }
}

/// A route over the pod's interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The destination; its host bits are ignored.
    pub dst: IpNet,
    /// The next hop; None means that the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// The path MTU (RTAX_MTU).
    pub mtu: Option<u32>,
    /// The advertised MSS (RTAX_ADVMSS).
    pub advmss: Option<u32>,
    /// The metric; the kernel's default is 0 for IPv4 and 1024 for IPv6.
    pub priority: Option<u32>,
    /// The table; None for the main one (254).
    pub table: Option<u32>,
    /// The scope, IPv4 only (`RT_SCOPE_*`); None means link for a route without gateway, global for
    /// one with a gateway.
    pub scope: Option<u8>,
    /// Treat the gateway as reachable on the link even if neither an address nor a route says so
    /// (`fib_check_nh`, `ip6_route_check_nh`).
    pub onlink: bool,
}

impl Route {
    /// A route without special attributes.
    pub fn new(dst: IpNet, gateway: Option<IpAddr>) -> Route {
        Route {
            dst,
            gateway,
            mtu: None,
            advmss: None,
            priority: None,
            table: None,
            scope: None,
            onlink: false,
        }
    }

    /// Whether it is a default route in the main table.
    pub fn is_default(&self) -> bool {
        let main = u32::from(libc::RT_TABLE_MAIN);
        self.dst.prefix_len() == 0 && self.table.is_none_or(|table| table == main)
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_route(
            f,
            self.dst,
            self.gateway,
            self.priority,
            self.table,
            self.mtu,
        )
    }
}

impl fmt::Display for ObservedRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let priority = Some(self.priority).filter(|p| *p != 0);
        let table = Some(self.table).filter(|t| *t != u32::from(libc::RT_TABLE_MAIN));
        write_route(f, self.dst, self.gateway, priority, table, self.mtu)
    }
}

/// In the format of `ip route`, without the link.
fn write_route(
    f: &mut fmt::Formatter<'_>,
    dst: IpNet,
    gateway: Option<IpAddr>,
    priority: Option<u32>,
    table: Option<u32>,
    mtu: Option<u32>,
) -> fmt::Result {
    write!(f, "{dst}")?;
    if let Some(gateway) = gateway {
        write!(f, " via {gateway}")?;
    }
    for (what, number) in [("metric", priority), ("table", table), ("mtu", mtu)] {
        if let Some(number) = number {
            write!(f, " {what} {number}")?;
        }
    }
    Ok(())
}

/// One timed step of an attachment, for traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The step.
    pub name: &'static str,
    /// When it began.
    pub start: Instant,
    /// How long it took.
    pub took: Duration,
}

/// A host link, identified by two properties that must both match before it may be deleted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostLink {
    /// Its index in the host's namespace.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
}

/// The host end of a new pair.
#[derive(Debug, Clone)]
pub struct HostEnd {
    /// The link, for [`delete`](super::Netlink::delete).
    pub link: HostLink,
    /// The pod end's index, in the pod's namespace.
    pub pod_ifindex: u32,
    /// The steps so far.
    pub steps: Vec<Step>,
}

/// The pod end of a pair, configured.
#[derive(Debug)]
pub struct PodEnd {
    /// Its index in the pod's namespace.
    pub ifindex: u32,
    /// The steps since the host end was ready.
    pub steps: Vec<Step>,
    pub(super) announcer: Option<Announcer>,
}

impl PodEnd {
    /// Sends a gratuitous ARP or an unsolicited neighbour advertisement for each address of
    /// [`LinkSpec::announce`] from the pod's interface, and returns the errors. Does not block.
    pub fn announce(&self) -> Vec<Error> {
        self.announcer
            .as_ref()
            .map(Announcer::announce)
            .unwrap_or_default()
    }
}

/// The state of a link in the host's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkState {
    /// Its index.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// Whether it is set up (IFF_UP), whatever its carrier.
    pub up: bool,
    /// Its MAC address; None for a link without Ethernet addresses.
    pub mac: Option<MacAddr6>,
    /// Its MTU.
    pub mtu: u32,
    /// Its kind (IFLA_INFO_KIND): "veth", "tun", "openvswitch"; None for hardware and lo.
    pub kind: Option<String>,
    /// The index of its peer (IFLA_LINK), in the peer's namespace.
    pub peer_ifindex: Option<u32>,
    /// Its group (IFLA_GROUP); 0 unless somebody set one.
    pub group: u32,
    /// The index of its master (IFLA_MASTER). A port of the kernel's Open vSwitch datapath has the
    /// datapath's local port as its master (`ovs_netdev_link` in net/openvswitch/vport-netdev.c).
    pub master: Option<u32>,
}

/// An interface in a pod's namespace, for CHECK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// Index, MAC, MTU, kind, peer.
    pub link: LinkState,
    /// All its addresses with their prefix lengths, including those that the kernel configured
    /// (fe80::).
    pub addresses: Vec<IpNet>,
    /// The unicast routes through it, in every table except the kernel's local one.
    pub routes: Vec<ObservedRoute>,
    /// The destinations of the main table's default routes that use other links.
    pub defaults_elsewhere: Vec<IpNet>,
    /// Whether TX checksum offload is enabled; None if the driver does not say.
    pub tx_checksum: Option<bool>,
}

/// A route in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedRoute {
    /// The destination.
    pub dst: IpNet,
    /// The next hop, if any.
    pub gateway: Option<IpAddr>,
    /// RTAX_MTU, if set.
    pub mtu: Option<u32>,
    /// The metric.
    pub priority: u32,
    /// The table.
    pub table: u32,
    /// `RT_SCOPE_*`.
    pub scope: u8,
    /// `RTPROT_*`: 2 is the kernel's own (connected routes).
    pub protocol: u8,
}
