//! What a network manager renews: whether it has done so on the other link, and what stands in for
//! it until then.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::route::{RouteAttribute, RouteMessage};
use netlink_packet_route::rule::RuleAttribute;

use super::super::{destination, ip};
use super::transfer;
use crate::moved::{NicConfig, is_learned, is_leased};
use crate::network_manager::StandIns;

/// linux/rtnetlink.h: RT_TABLE_MAIN.
const TABLE_MAIN: u32 = 254;

/// What a network manager renews on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ManagedConfig {
    pub(crate) link: String,
    pub(crate) index: u32,
    pub(crate) addresses: Vec<IpAddr>,
    /// Destination and table of its routes.
    pub(crate) routes: Vec<(IpNet, u32)>,
}

impl ManagedConfig {
    pub(super) fn of(held: &NicConfig, (link, index): &(String, u32)) -> Self {
        let addresses = held.addresses.iter().filter(|it| is_leased(it));
        let addresses = addresses.filter(|it| !transfer::is_passing(it));
        let routes = held.routes.iter().filter(|it| is_learned(it));
        Self {
            link: link.clone(),
            index: *index,
            addresses: addresses.filter_map(own_address).collect(),
            routes: routes
                .filter_map(|it| Some((destination(it)?, table_of(it))))
                .collect(),
        }
    }

    /// Leaves out routes of a family that has a default route: whoever told that one has told all,
    /// and NetworkManager may lose another one until it is told to apply its profile again.
    pub(super) fn retain_defaults(&mut self) {
        let is_default = |net: &IpNet| net.prefix_len() == 0;
        let families = [true, false].map(|v4| {
            let mut own = self.routes.iter().filter(|it| it.0.addr().is_ipv4() == v4);
            own.any(|(net, _)| is_default(net))
        });
        let has_default = |net: &IpNet| families[usize::from(net.addr().is_ipv6())];
        self.routes
            .retain(|(net, _)| is_default(net) || !has_default(net));
    }

    /// What of it is not there yet, as text.
    pub(crate) fn missing(
        &self,
        addresses: &[AddressMessage],
        routes: &[RouteMessage],
    ) -> Vec<String> {
        let is_there = |ip: &IpAddr| {
            let mut there = addresses.iter().filter(|it| it.header.index == self.index);
            there.any(|it| own_address(it) == Some(*ip) && is_leased(it))
        };
        let by = |it: &RouteMessage| {
            let is =
                |it: &RouteAttribute| matches!(it, RouteAttribute::Oif(at) if *at == self.index);
            it.attributes.iter().any(is)
        };
        let has_route = |(net, table): &(IpNet, u32)| {
            let mut there = routes.iter().filter(|it| is_learned(it) && by(it));
            there.any(|it| destination(it) == Some(*net) && table_of(it) == *table)
        };
        let lacks = self.addresses.iter().filter(|ip| !is_there(ip));
        let lacks = lacks.map(|ip| format!("address {ip}"));
        let routes = self.routes.iter().filter(|route| !has_route(route));
        lacks
            .chain(routes.map(|(net, _)| format!("route {net}")))
            .collect()
    }
}

/// What stands in for what a network manager renews, until it has done so.
pub(crate) fn stand_ins(held: &NicConfig) -> StandIns {
    let addresses = held.addresses.iter().filter(|it| is_leased(it));
    let addresses = addresses.filter(|it| !transfer::is_passing(it));
    let addresses = addresses
        .filter_map(|it| IpNet::new(own_address(it)?, it.header.prefix_len).ok())
        .collect();
    let routes = held.routes.iter().filter(|it| is_learned(it));
    let routes = routes.filter(|it| table_of(it) == TABLE_MAIN);
    let routes = routes.filter_map(|it| {
        let gateway = it.attributes.iter().find_map(|it| match it {
            RouteAttribute::Gateway(address) => ip(address),
            _ => None,
        });
        Some((destination(it)?, gateway, transfer::later_metric(it)))
    });
    StandIns {
        addresses,
        routes: routes.collect(),
    }
}

/// What a link has that nobody renews: what configures the NIC at a boot sets it again, one after
/// the other.
pub(crate) fn lasting(held: &NicConfig) -> BTreeSet<String> {
    let addresses = held.addresses.iter().filter(|it| !is_leased(it));
    let addresses = addresses.filter(|it| it.header.scope == AddressScope::Universe);
    let addresses = addresses.filter_map(own_address).map(|ip| ip.to_string());
    let routes = held.routes.iter().filter(|it| !is_learned(it));
    let routes = routes.filter_map(|it| Some((destination(it)?, table_of(it))));
    let routes = routes.map(|(net, table)| format!("route {net} in table {table}"));
    let rules = held.rules.iter().flat_map(|it| &it.attributes);
    let rules = rules.filter_map(|it| match it {
        RuleAttribute::Priority(priority) => Some(format!("rule {priority}")),
        _ => None,
    });
    addresses.chain(routes).chain(rules).collect()
}

fn own_address(message: &AddressMessage) -> Option<IpAddr> {
    let local = |it: &AddressAttribute| match it {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    };
    let address = |it: &AddressAttribute| match it {
        AddressAttribute::Address(ip) => Some(*ip),
        _ => None,
    };
    let attributes = &message.attributes;
    attributes
        .iter()
        .find_map(local)
        .or_else(|| attributes.iter().find_map(address))
}

fn table_of(message: &RouteMessage) -> u32 {
    let table = message.attributes.iter().find_map(|it| match it {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    table.unwrap_or(message.header.table.into())
}
