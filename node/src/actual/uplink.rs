//! What the kernel has on a link that is to be moved, or was.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteProtocol, RouteType};
use netlink_packet_route::rule::{RuleAttribute, RuleMessage};

use super::dump::Dump;
use super::in_use::{gateway, table};
use crate::items::destination;
use crate::moved::{NicConfig, has_flag, has_no_route, is_leased};

/// linux/rtnetlink.h: RT_TABLE_LOCAL.
const TABLE_LOCAL: u32 = 255;

impl NicConfig {
    /// What a link has, in the kernel's order.
    pub(super) fn of(dump: &Dump, neighbours: &[NeighbourMessage], index: u32, name: &str) -> Self {
        let addresses = dump.addresses.iter();
        let addresses: Vec<AddressMessage> = addresses
            .filter(|message| message.header.index == index)
            .cloned()
            .collect();
        let connected: BTreeSet<IpNet> = addresses.iter().filter_map(connected).collect();
        let routes = dump.routes.iter();
        let routes = routes.filter(|route| by(route, index) && !is_made(route, &connected));
        let rules = dump.rules.iter().filter(|rule| names(rule, name));
        let mut held = Self {
            addresses,
            routes: routes.cloned().collect(),
            rules: rules.cloned().collect(),
            neighbours: Vec::new(),
        };
        let gateways = gateways(&held);
        let neighbours = neighbours.iter();
        let neighbours = neighbours.filter(|it| it.header.ifindex == index);
        let neighbours = neighbours.filter(|it| match it.header.state {
            NeighbourState::Permanent => true,
            NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe => address(it).is_some_and(|ip| gateways.contains(&ip)),
            _ => false,
        });
        held.neighbours = neighbours.cloned().collect();
        held
    }
}

/// The gateways of default routes.
pub(crate) fn gateways(held: &NicConfig) -> Vec<IpAddr> {
    let defaults = held.routes.iter().filter(|route| {
        route.header.kind == RouteType::Unicast && route.header.destination_prefix_length == 0
    });
    let found = defaults.flat_map(|route| route.attributes.iter().filter_map(gateway));
    let found: BTreeSet<IpAddr> = found.collect();
    found.into_iter().collect()
}

fn address(message: &NeighbourMessage) -> Option<IpAddr> {
    use netlink_packet_route::neighbour::NeighbourAddress;
    message.attributes.iter().find_map(|it| match it {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some((*ip).into()),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some((*ip).into()),
        _ => None,
    })
}

/// The network of which the kernel makes the route for an address.
fn connected(message: &AddressMessage) -> Option<IpNet> {
    // On a point-to-point link, it is the peer's.
    let ip = message.attributes.iter().find_map(|it| match it {
        AddressAttribute::Address(ip) => Some(*ip),
        _ => None,
    })?;
    let net = IpNet::new(ip, message.header.prefix_len).ok()?;
    // `fib_add_ifaddr`: none for another IPv4 address of a network, whatever the first one has. Of
    // IPv6, the flag means a temporary address.
    let is_second = net.addr().is_ipv4() && has_flag(message, AddressFlags::Secondary);
    (!is_second && !has_no_route(message)).then_some(net.trunc())
}

/// Whether the kernel makes a route by itself, for an address or for a link that is up.
fn is_made(route: &RouteMessage, connected: &BTreeSet<IpNet>) -> bool {
    let net = destination(route);
    let is_v6 = route.header.address_family == AddressFamily::Inet6;
    // ff00::/8 is of type multicast, and in table local; so are a link's own addresses.
    let is_local = table(route) == TABLE_LOCAL || route.header.kind != RouteType::Unicast;
    let of_link = is_v6 && net.is_some_and(|net| is_link_local(net.addr()));
    let is_kernels = route.header.protocol == RouteProtocol::Kernel;
    is_local || is_kernels && (of_link || net.is_some_and(|net| connected.contains(&net)))
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

fn by(route: &RouteMessage, index: u32) -> bool {
    route.attributes.iter().any(|attribute| match attribute {
        RouteAttribute::Oif(oif) => *oif == index,
        RouteAttribute::MultiPath(hops) => hops.iter().any(|hop| hop.interface_index == index),
        _ => false,
    })
}

fn names(rule: &RuleMessage, link: &str) -> bool {
    rule.attributes.iter().any(|attribute| match attribute {
        RuleAttribute::Iifname(name) | RuleAttribute::Oifname(name) => name == link,
        _ => false,
    })
}

/// Why what a link has can't be moved, each as text. `renews` says whether a network manager renews
/// on another link what has a lifetime.
pub(crate) fn immovable(
    held: &NicConfig,
    link: &str,
    all: &[RouteMessage],
    index: u32,
    renews: bool,
) -> Vec<String> {
    let mut reasons = Vec::new();
    for message in held.addresses.iter().filter(|_| !renews) {
        if is_leased(message) {
            let ip = message.attributes.iter().find_map(|it| match it {
                AddressAttribute::Address(ip) => Some(ip.to_string()),
                _ => None,
            });
            reasons.push(format!(
                "address {} of {link} has a lifetime: something renews it on {link} alone (DHCP, \
                 router advertisements); give {link} lasting addresses",
                ip.unwrap_or_default()
            ));
        }
    }
    for route in &held.routes {
        let to = destination(route).map_or_else(|| "?".to_owned(), |net| net.to_string());
        let has = |wanted: fn(&RouteAttribute) -> bool| route.attributes.iter().any(wanted);
        if route.header.protocol == RouteProtocol::Ra && !renews {
            reasons.push(format!(
                "route {to} of {link} is by router advertisements, which are not followed to a \
                 bridge yet: give {link} lasting routes"
            ));
        } else if has(|it| matches!(it, RouteAttribute::NhId(_))) {
            reasons.push(format!(
                "route {to} of {link} is by a nexthop object (ip nexthop), which can't be moved"
            ));
        }
        let key = |route: &RouteMessage| {
            let metric = route.attributes.iter().find_map(|it| match it {
                RouteAttribute::Priority(metric) => Some(*metric),
                _ => None,
            });
            let tos = route.header.tos;
            (table(route), destination(route), metric, tos)
        };
        let is_v4 = route.header.address_family == AddressFamily::Inet;
        let mut others = all.iter().filter(|other| !by(other, index));
        if is_v4 && others.any(|other| key(other) == key(route)) {
            reasons.push(format!(
                "route {to} of {link} has the metric of another link's: give them different ones"
            ));
        }
    }
    reasons
}
