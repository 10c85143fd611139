//! The way by the door: the packets that podwire's nftables table marks take a routing table of
//! their own, whose only route is by that link. Its next hop is no host: the door's nftables table
//! gives each packet its node's MAC address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_route::address::AddressScope;
use netlink_packet_route::route::{RouteFlags, RouteProtocol};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::{AddressMessageBuilder, RouteMessageBuilder};
use serde::{Deserialize, Serialize};

use super::{
    Actual, CHANGE, Change, Item, Kind, NEW, ObservedRoute, REPLACE, State, View, link, request,
};
use crate::firewall::{self, BY_DOOR};
use crate::{DOOR, PROTOCOL};

/// The routing table, which no program's defaults name.
const TABLE: u32 = 28_772;
/// The link's own address. By one without any, the kernel takes no IPv4 packet whose source is
/// behind another link, unless it checks no sources at all (net/ipv4/fib_frontend.c,
/// `__fib_validate_source`).
const ADDRESS: (Ipv4Addr, u8) = (Ipv4Addr::new(169, 254, 169, 8), 32);
/// The rule's place: before those of VPNs and VRFs, which are for packets without this mark.
const PRIORITY: u32 = 99;

/// Of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ByDoor {
    pub(crate) v4: bool,
}

/// What there is of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ObservedByDoor {
    rules: Vec<RuleMessage>,
    routes: Vec<ObservedRoute>,
}

impl ObservedByDoor {
    pub(crate) fn of(rules: &[RuleMessage], routes: Vec<ObservedRoute>) -> Self {
        let rules = rules.iter().filter(|rule| is_to_door(rule));
        Self {
            rules: rules.cloned().collect(),
            routes,
        }
    }
}

/// Whether a rule leads to the table.
pub(crate) fn is_to_door(rule: &RuleMessage) -> bool {
    rule.attributes.contains(&RuleAttribute::Table(TABLE))
}

/// Whether a route of podwire's is in the table.
pub(crate) fn is_by_door(route: &ObservedRoute) -> bool {
    route.table == TABLE
}

impl ByDoor {
    /// Its next hop.
    pub(crate) fn via(self) -> IpAddr {
        match self.v4 {
            true => Ipv4Addr::new(169, 254, 169, 7).into(),
            false => Ipv6Addr::new(0xfd69, 0, 0, 0, 0, 0, 0, 7).into(),
        }
    }

    fn family(self) -> AddressFamily {
        match self.v4 {
            true => AddressFamily::Inet,
            false => AddressFamily::Inet6,
        }
    }

    fn destination(self) -> IpNet {
        match self.v4 {
            true => IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0),
            false => IpNet::new_assert(Ipv6Addr::UNSPECIFIED.into(), 0),
        }
    }

    fn rule(self) -> RuleMessage {
        let mut rule = RuleMessage::default();
        rule.header.family = self.family();
        rule.header.action = RuleAction::ToTable;
        rule.attributes = vec![
            RuleAttribute::Priority(PRIORITY),
            RuleAttribute::FwMark(BY_DOOR),
            RuleAttribute::FwMask(BY_DOOR),
            RuleAttribute::Table(TABLE),
            RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)),
        ];
        rule
    }

    fn route(self, actual: &Actual) -> Vec<Change> {
        let message = actual.index(DOOR).and_then(|index| {
            let to = self.destination();
            let builder = RouteMessageBuilder::<IpAddr>::new()
                .table_id(TABLE)
                .output_interface(index)
                .protocol(RouteProtocol::Other(PROTOCOL))
                .destination_prefix(to.addr(), to.prefix_len());
            let mut message = builder.ok()?.gateway(self.via()).ok()?.build();
            // The link has no address that shows that the next hop is there.
            message.header.flags |= RouteFlags::Onlink;
            Some(RouteNetlinkMessage::NewRoute(message))
        });
        request(message, REPLACE)
    }

    fn address(self, actual: &Actual) -> Vec<Change> {
        let index = actual.index(DOOR).filter(|_| self.v4);
        let message = index.map(|index| {
            let (ip, length) = ADDRESS;
            let builder = AddressMessageBuilder::<Ipv4Addr>::new();
            let mut message = builder.index(index).address(ip, length).build();
            // It is nobody's source.
            message.header.scope = AddressScope::Link;
            RouteNetlinkMessage::NewAddress(message)
        });
        request(message, REPLACE)
    }

    fn has_address(self, actual: &Actual) -> bool {
        let mut addresses = actual.addresses.iter();
        let own = IpNet::new_assert(ADDRESS.0.into(), ADDRESS.1);
        !self.v4 || addresses.any(|seen| seen.link == DOOR && seen.address == own)
    }

    fn rules(self, actual: &Actual) -> impl Iterator<Item = &RuleMessage> {
        let rules = actual.by_door.rules.iter();
        rules.filter(move |rule| rule.header.family == self.family())
    }

    fn routes(self, actual: &Actual) -> impl Iterator<Item = &ObservedRoute> {
        let routes = actual.by_door.routes.iter();
        routes.filter(move |route| route.destination.addr().is_ipv4() == self.v4)
    }

    /// Whether the rule is as it is made; the kernel lists more attributes than were set.
    fn is_its(self, rule: &RuleMessage) -> bool {
        let wanted = self.rule();
        let mut attributes = wanted.attributes.iter();
        rule.header.action == wanted.header.action
            && rule.header.src_len == 0
            && rule.header.dst_len == 0
            && attributes.all(|it| rule.attributes.contains(it))
    }

    fn is_route(self, seen: &ObservedRoute) -> bool {
        seen.destination == self.destination()
            && seen.is_unicast()
            && seen.via == Some(self.via())
            && seen.link.as_deref() == Some(DOOR)
    }
}

impl Kind for ByDoor {
    fn identity(&self) -> String {
        let family = if self.v4 { "IPv4" } else { "IPv6" };
        format!("rule and route of {family} by {DOOR}")
    }

    fn details(&self) -> String {
        format!(", mark {BY_DOOR:#x}, table {TABLE}")
    }

    fn state(&self, view: &View<'_>) -> State {
        let actual = view.actual;
        if let Some(awaited) = link::lacks(view, DOOR) {
            return State::Waits(awaited);
        }
        // Without it packets would be lost, and without a route they take another way.
        if !actual.tables.contains_key(firewall::DOOR) {
            return State::Waits(format!("nftables table {}", firewall::DOOR));
        }
        let mut lacks = Vec::new();
        if !self.has_address(actual) {
            lacks.push("without its address".to_owned());
        }
        if !self.rules(actual).any(|rule| self.is_its(rule)) {
            lacks.push("without its rule".to_owned());
        }
        if !self.routes(actual).any(|route| self.is_route(route)) {
            lacks.push("without its route".to_owned());
        }
        match lacks.len() == 2 + usize::from(self.v4) {
            true => State::Missing,
            false => State::of(&lacks),
        }
    }

    fn make(&self, actual: &Actual) -> Vec<Change> {
        let mut changes = self.address(actual);
        changes.extend(self.route(actual));
        let is_there = self.rules(actual).any(|rule| self.is_its(rule));
        let rule = (!is_there).then(|| RouteNetlinkMessage::NewRule(self.rule()));
        changes.extend(request(rule, NEW));
        changes
    }

    /// The address goes with the link.
    fn remove(&self, actual: &Actual) -> Vec<Change> {
        let rules = self.rules(actual).cloned();
        let rules =
            rules.flat_map(|rule| request(Some(RouteNetlinkMessage::DelRule(rule)), CHANGE));
        let routes = self.routes(actual).map(|seen| seen.message.clone());
        let routes = routes.flat_map(|it| request(Some(RouteNetlinkMessage::DelRoute(it)), CHANGE));
        rules.chain(routes).collect()
    }

    fn marked(view: &View<'_>) -> Vec<Item> {
        let both = [true, false].map(|v4| Self { v4 }).into_iter();
        both.filter(|it| {
            it.rules(view.actual).next().is_some() || it.routes(view.actual).next().is_some()
        })
        .map(Item::from)
        .collect()
    }
}
