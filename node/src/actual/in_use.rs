//! The networks and gateways of this machine's own lookups: those of its addresses, and of its
//! routes in every table that a rule names, whatever their metric.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressProtocol};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteType, RouteVia,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};

use super::dump::{Dump, Names};
use crate::items::{destination, ip};
use crate::overlap::{By, InUse, not_for_pods};
use crate::{LINKS, PROTOCOL};

/// linux/rtnetlink.h: RT_TABLE_DEFAULT.
const TABLE_DEFAULT: u32 = 253;

/// The kernel's part of what this machine needs; podwire's own is none of it.
pub(super) fn in_use(dump: &Dump, names: &Names) -> Vec<InUse> {
    let tables = tables(&dump.rules);
    let routes = dump.routes.iter();
    let routes = routes.filter(|route| {
        route.header.kind == RouteType::Unicast
            && route.header.protocol != RouteProtocol::Other(PROTOCOL)
            && tables.contains(&table(route))
    });
    let addresses = dump.addresses.iter();
    addresses
        .flat_map(|message| of_address(message, names))
        .chain(routes.flat_map(|message| of_route(message, names)))
        .filter(|it| !matches!(&it.by, By::Link(link) if LINKS.contains(&&**link)))
        // Loopback and link-local ones are on every machine, and no pod network has them.
        .filter(|it| not_for_pods(&it.net).is_none())
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

/// The tables for packets of this machine itself: a rule for an incoming link is about others'.
fn tables(rules: &[RuleMessage]) -> BTreeSet<u32> {
    let of_own = rules.iter().filter(|rule| {
        let mut attributes = rule.attributes.iter();
        rule.header.action == RuleAction::ToTable
            && !attributes.any(|it| matches!(it, RuleAttribute::Iifname(link) if link != "lo"))
    });
    let named = of_own.map(|rule| {
        let mut attributes = rule.attributes.iter();
        let table = attributes.find_map(|attribute| match attribute {
            RuleAttribute::Table(table) => Some(*table),
            _ => None,
        });
        table.unwrap_or(rule.header.table.into())
    });
    named
        .chain([RouteHeader::RT_TABLE_MAIN.into(), TABLE_DEFAULT])
        .collect()
}

pub(super) fn table(route: &RouteMessage) -> u32 {
    let mut attributes = route.attributes.iter();
    let table = attributes.find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    table.unwrap_or(route.header.table.into())
}

/// The network of an address; on a point-to-point link also the peer's.
fn of_address(message: &AddressMessage, names: &Names) -> Vec<InUse> {
    let ours = AddressAttribute::Protocol(AddressProtocol::Other(PROTOCOL));
    let Some(link) = names.get(&message.header.index) else {
        return Vec::new();
    };
    if message.attributes.contains(&ours) {
        return Vec::new();
    }
    let attributes = message.attributes.iter();
    let nets = attributes.filter_map(|attribute| match attribute {
        AddressAttribute::Local(ip) | AddressAttribute::Address(ip) => {
            IpNet::new(*ip, message.header.prefix_len).ok()
        }
        _ => None,
    });
    let by = By::Link(link.clone());
    nets.map(|net| InUse {
        net: net.trunc(),
        by: by.clone(),
    })
    .collect()
}

/// A route's gateways, or the network that it connects. A default route without a gateway connects
/// none: everything is behind it, pods included.
fn of_route(message: &RouteMessage, names: &Names) -> Vec<InUse> {
    let attributes = message.attributes.iter();
    let several = attributes.clone().filter_map(|attribute| match attribute {
        RouteAttribute::MultiPath(hops) => Some(hops),
        _ => None,
    });
    let hops = several.flatten().map(|hop| {
        let link = names.get(&hop.interface_index);
        (link, hop.attributes.iter().find_map(gateway))
    });
    let link = attributes.clone().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => names.get(index),
        _ => None,
    });
    let single = (link, attributes.clone().find_map(gateway));
    let connected = destination(message).filter(|net| net.prefix_len() > 0);
    hops.chain([single])
        .filter_map(|(link, gateway)| {
            let link = link.filter(|link| !LINKS.contains(&link.as_str()))?;
            match gateway {
                Some(ip) => Some(InUse {
                    net: ip.into(),
                    by: By::Gateway,
                }),
                None => connected.map(|net| InUse {
                    net,
                    by: By::Link(link.clone()),
                }),
            }
        })
        .collect()
}

/// The gateway in a route's attribute.
pub(crate) fn gateway(attribute: &RouteAttribute) -> Option<IpAddr> {
    match attribute {
        RouteAttribute::Gateway(address) => ip(address),
        RouteAttribute::Via(RouteVia::Inet(ip)) => Some((*ip).into()),
        RouteAttribute::Via(RouteVia::Inet6(ip)) => Some((*ip).into()),
        _ => None,
    }
}
