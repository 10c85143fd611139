//! The route messages that this module sends.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use ipnet::IpNet;
use macaddr::MacAddr6;
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage,
};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteProtocol, RouteScope,
    RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::libc;

use super::{LinkSpec, Route};

/// Create, and fail if it exists.
pub(super) const CREATE_NEW: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;

/// List all that match.
pub(super) const DUMP: u16 = libc::NLM_F_DUMP as u16;

/// Loopback has index 1 in every network namespace (`LOOPBACK_IFINDEX`).
pub(super) const LOOPBACK: u32 = 1;

/// RTM_NEWLINK for both ends of a pair, each created in its final namespace with all its
/// properties.
///
/// The host end is the message's own link and the pod end its peer, because only the own link may
/// be created up: a peer with IFF_UP is opened before it has a peer itself (`veth_open`, ENOTCONN).
/// ovs-vswitchd examines all of its ports at each notification about a host link. Because the host
/// end is created up and promiscuous, as ovs-vswitchd would set it, it causes one notification now,
/// and one when it gets its carrier from the pod end. Until then it passes nothing, whatever IPv6
/// might send. One queue each: the default of one for each CPU costs two RCU waits per link
/// (`netif_set_real_num_tx_queues`).
pub(super) fn pair(
    spec: &LinkSpec,
    host_name: &str,
    indexes: Indexes,
    netns: BorrowedFd<'_>,
) -> RouteNetlinkMessage {
    let mut host = end(host_name, spec.host_mac, spec.mtu, indexes.host);
    let mut pod = end(&spec.pod_name, spec.pod_mac, spec.mtu, indexes.pod);
    pod.attributes
        .push(LinkAttribute::NetNsFd(netns.as_raw_fd()));
    host.header.flags = LinkFlags::Up | LinkFlags::Promisc;
    host.header.change_mask = LinkFlags::Up | LinkFlags::Promisc;
    host.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(pod))),
    ]));
    RouteNetlinkMessage::NewLink(host)
}

/// The indexes for the two ends of a pair.
///
/// They differ although they are in different namespaces: a link whose IFLA_LINK equals its own
/// index counts as one without a lower device, and its carrier events are delayed by up to a second
/// (`linkwatch_urgent_event`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Indexes {
    pub(super) host: u32,
    pub(super) pod: u32,
}

fn end(name: &str, mac: MacAddr6, mtu: u32, index: u32) -> LinkMessage {
    let mut end = LinkMessage::default();
    end.header.index = index;
    end.attributes = vec![
        LinkAttribute::IfName(name.to_owned()),
        LinkAttribute::Address(mac.into_array().to_vec()),
        LinkAttribute::Mtu(mtu),
        LinkAttribute::NumTxQueues(1),
        LinkAttribute::NumRxQueues(1),
    ];
    end
}

/// RTM_NEWLINK that sets an existing link up.
pub(super) fn set_up(index: u32) -> RouteNetlinkMessage {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    RouteNetlinkMessage::NewLink(link)
}

/// RTM_SETLINK that puts an existing link into a group.
pub(super) fn set_group(index: u32, group: u32) -> RouteNetlinkMessage {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link.attributes = vec![LinkAttribute::Group(group)];
    RouteNetlinkMessage::SetLink(link)
}

/// RTM_DELLINK by index.
pub(super) fn delete_link(index: u32) -> RouteNetlinkMessage {
    let mut link = LinkMessage::default();
    link.header.index = index;
    RouteNetlinkMessage::DelLink(link)
}

/// RTM_DELLINK of every link in a group (`rtnl_group_dellink`).
pub(super) fn delete_group(group: u32) -> RouteNetlinkMessage {
    let mut link = LinkMessage::default();
    link.attributes = vec![LinkAttribute::Group(group)];
    RouteNetlinkMessage::DelLink(link)
}

/// RTM_GETLINK by index.
pub(super) fn get_link(index: u32) -> RouteNetlinkMessage {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link.attributes = vec![without_statistics()];
    RouteNetlinkMessage::GetLink(link)
}

/// RTM_GETLINK by name.
pub(super) fn get_link_named(name: &str) -> RouteNetlinkMessage {
    let mut link = LinkMessage::default();
    link.attributes = vec![LinkAttribute::IfName(name.to_owned()), without_statistics()];
    RouteNetlinkMessage::GetLink(link)
}

/// RTM_GETLINK for a dump, of one kind or of all.
pub(super) fn list_links(kind: Option<InfoKind>) -> RouteNetlinkMessage {
    let mut link = LinkMessage::default();
    link.attributes = vec![without_statistics()];
    if let Some(kind) = kind {
        link.attributes
            .push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]));
    }
    RouteNetlinkMessage::GetLink(link)
}

fn without_statistics() -> LinkAttribute {
    LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats])
}

/// RTM_NEWADDR.
pub(super) fn add_address(address: IpNet, index: u32) -> RouteNetlinkMessage {
    RouteNetlinkMessage::NewAddress(self::address(address, index))
}

/// RTM_DELADDR.
pub(super) fn delete_address(address: IpNet, index: u32) -> RouteNetlinkMessage {
    RouteNetlinkMessage::DelAddress(self::address(address, index))
}

/// An address of a link. An IPv6 address is usable at once (IFA_F_NODAD), because nobody else can
/// have it.
pub(super) fn address(address: IpNet, index: u32) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family(address.addr());
    message.header.prefix_len = address.prefix_len();
    message.header.index = index;
    message.attributes = vec![
        AddressAttribute::Local(address.addr()),
        AddressAttribute::Address(address.addr()),
    ];
    if address.addr().is_ipv6() {
        message.header.flags = AddressHeaderFlags::Nodad;
        message
            .attributes
            .push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    message
}

/// RTM_GETADDR for a dump of one link's addresses.
pub(super) fn list_addresses(index: u32) -> RouteNetlinkMessage {
    let mut message = AddressMessage::default();
    message.header.index = index;
    RouteNetlinkMessage::GetAddress(message)
}

/// RTM_NEWROUTE over a link.
pub(super) fn add_route(route: &Route, index: u32) -> RouteNetlinkMessage {
    let dst = route.dst.trunc();
    let table = route.table.unwrap_or(libc::RT_TABLE_MAIN.into());
    let mut message = RouteMessage::default();
    message.header.address_family = family(dst.addr());
    message.header.destination_prefix_length = dst.prefix_len();
    // The header's field has eight bits; RTA_TABLE counts (`rtm_get_table`).
    message.header.table = u8::try_from(table).unwrap_or(libc::RT_TABLE_UNSPEC);
    message.header.protocol = RouteProtocol::Static;
    message.header.scope = match (dst, route.scope, route.gateway) {
        (IpNet::V6(_), ..) => RouteScope::Universe,
        (_, Some(scope), _) => RouteScope::from(scope),
        (_, None, None) => RouteScope::Link,
        (_, None, Some(_)) => RouteScope::Universe,
    };
    message.header.kind = RouteType::Unicast;
    if route.onlink {
        message.header.flags = RouteFlags::Onlink;
    }
    let mut attributes = vec![
        RouteAttribute::Destination(route_address(dst.addr())),
        RouteAttribute::Oif(index),
        RouteAttribute::Table(table),
    ];
    attributes.extend(
        route
            .gateway
            .map(|ip| RouteAttribute::Gateway(route_address(ip))),
    );
    attributes.extend(route.priority.map(RouteAttribute::Priority));
    let metrics: Vec<_> = [
        route.mtu.map(RouteMetric::Mtu),
        route.advmss.map(RouteMetric::Advmss),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !metrics.is_empty() {
        attributes.push(RouteAttribute::Metrics(metrics));
    }
    message.attributes = attributes;
    RouteNetlinkMessage::NewRoute(message)
}

/// RTM_GETROUTE for a dump of one family's routes, over one link or over all.
pub(super) fn list_routes(family: AddressFamily) -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family;
    message.header.kind = RouteType::Unicast;
    RouteNetlinkMessage::GetRoute(message)
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}

fn route_address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(v4) => RouteAddress::Inet(v4),
        IpAddr::V6(v6) => RouteAddress::Inet6(v6),
    }
}
