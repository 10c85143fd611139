//! What a caller asks for, and what it gets back: plain data.

use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use macaddr::MacAddr6;
use nix::libc;
use serde::{Deserialize, Serialize};

use super::Error;
use super::announce::Announcer;

/// One veth pair to make, as the plan has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkSpec {
    /// Names for the host end, in order of preference; the first that is free is taken. At most 15
    /// bytes each.
    pub host_names: Vec<String>,
    /// The interface's name in the pod (CNI_IFNAME).
    pub pod_name: String,
    /// The host end's MAC. Given at creation, so that udev leaves it alone.
    pub host_mac: MacAddr6,
    /// The pod end's MAC.
    pub pod_mac: MacAddr6,
    /// The MTU of both ends: 68 to 65535, at least 1280 with IPv6.
    pub mtu: u32,
    /// The pod end's addresses, each with its prefix length.
    pub addresses: Vec<IpNet>,
    /// The routes over the pod end, set in this order.
    pub routes: Vec<Route>,
    /// What IPv6 says on the pod end by itself.
    pub pod_ipv6: PodIpv6,
    /// Switch TX checksum offload off on the pod end: a netdev (userspace) datapath does not fill
    /// partial checksums in.
    pub pod_tx_checksum_off: bool,
    /// Those of the addresses that [`PodEnd::announce`] tells neighbours of.
    pub announce: Vec<IpAddr>,
}

/// What IPv6 says on a pod end that nobody uses yet: settled before the link has a carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodIpv6 {
    /// Nothing: it is off. With IPv6 and without an address of its own an interface still reports
    /// multicast groups, probes for its link-local address and asks for routers.
    Off,
    /// Reports of multicast groups. Nobody else has its link-local address (`accept_dad`), and it
    /// takes what routers advertise without asking for it (`router_solicitations`).
    Quiet,
    /// What the namespace says.
    Usual,
}

/// A route over the pod's interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The destination; its host bits are ignored.
    pub dst: IpNet,
    /// The next hop; none means that the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// The path MTU (RTAX_MTU).
    pub mtu: Option<u32>,
    /// The advertised MSS (RTAX_ADVMSS).
    pub advmss: Option<u32>,
    /// The metric; the kernel's default is 0 for IPv4 and 1024 for IPv6.
    pub priority: Option<u32>,
    /// The table; the main one (254) when not given.
    pub table: Option<u32>,
    /// The scope, IPv4 only (`RT_SCOPE_*`): without it, link for a route without gateway, global
    /// for one with.
    pub scope: Option<u8>,
    /// Take the gateway as reachable on the link although neither an address nor a route says so
    /// (`fib_check_nh`, `ip6_route_check_nh`).
    pub onlink: bool,
}

impl Route {
    /// A route with nothing special.
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

    /// Whether it is a default route of the main table.
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

/// As `ip route` writes it, but for the link.
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
    /// What was done.
    pub name: &'static str,
    /// When it began.
    pub start: Instant,
    /// How long it took.
    pub took: Duration,
}

/// A host link, named in both of the ways that must agree before it may be deleted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostLink {
    /// Its index in the host's namespace.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
}

/// The host's end of a pair that has just been made.
#[derive(Debug, Clone)]
pub struct HostEnd {
    /// The link, as [`delete`](super::Netlink::delete) takes it.
    pub link: HostLink,
    /// The pod end's index, in the pod's namespace.
    pub pod_ifindex: u32,
    /// Where the time went so far.
    pub steps: Vec<Step>,
}

/// The pod's end of a pair, configured.
#[derive(Debug)]
pub struct PodEnd {
    /// Its index in the pod's namespace.
    pub ifindex: u32,
    /// Where the time went since the host end was ready.
    pub steps: Vec<Step>,
    pub(super) announcer: Option<Announcer>,
}

impl PodEnd {
    /// Sends a gratuitous ARP or an unsolicited neighbour advertisement for each address of
    /// [`LinkSpec::announce`], from the pod's interface. Returns what could not be sent. Does not
    /// block.
    pub fn announce(&self) -> Vec<Error> {
        self.announcer
            .as_ref()
            .map(Announcer::announce)
            .unwrap_or_default()
    }
}

/// What is known of a link in the host's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkState {
    /// Its index.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// Set up (IFF_UP); says nothing of the carrier.
    pub up: bool,
    /// Its MAC; none for a link without Ethernet addresses.
    pub mac: Option<MacAddr6>,
    /// Its MTU.
    pub mtu: u32,
    /// Its kind (IFLA_INFO_KIND): "veth", "tun", "openvswitch"; none for hardware and lo.
    pub kind: Option<String>,
    /// The index of the other end (IFLA_LINK), in whichever namespace that lives.
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
    /// Every address it bears, with its prefix length; those that the kernel made (fe80::) as well.
    pub addresses: Vec<IpNet>,
    /// The unicast routes over it, in every table but the kernel's local one.
    pub routes: Vec<ObservedRoute>,
    /// Whether a default route of the main table, of either family, is over another link.
    pub default_elsewhere: bool,
    /// Whether TX checksum offload is on; none when the driver does not say.
    pub tx_checksum: Option<bool>,
}

/// A route as the kernel has it.
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
