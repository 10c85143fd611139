//! Addresses, routes, rules and neighbours of one link on another.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage,
};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteMessage, RouteNextHopFlags, RouteProtocol,
};
use netlink_packet_route::rule::{RuleAttribute, RuleFlags, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::RouteMessageBuilder;

use super::super::{CHANGE, Change, NEW, REPLACE, destination};
use crate::moved::{FOREVER, NicConfig, has_no_route, is_learned, is_leased};

/// A link: its name and index.
type Link = (String, u32);

/// What is added to the metric of a route until a network manager has made its own.
const LATER: u32 = 1;
/// The metric of routes that the kernel makes itself by router advertisements (net/ipv6_route.h,
/// IP6_RT_PRIO_USER).
const BY_KERNEL: u32 = 1024;

/// What belongs to either of the two links, of which it is the other's from now on.
struct Ends<'a> {
    names: [&'a str; 2],
    indexes: [u32; 2],
}

impl<'a> Ends<'a> {
    fn of(from: &'a Link, to: &'a Link) -> Self {
        Self {
            names: [&*from.0, &*to.0],
            indexes: [from.1, to.1],
        }
    }
}

/// Whether what has a lifetime keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lifetimes {
    Kept,
    /// A network manager makes it again: until then it has none, and others make way for it.
    Renewed,
}

/// What prepares the change without effect on packets, and what then switches to the other link.
pub(super) fn changes(
    held: &NicConfig,
    from: Option<Link>,
    to: Link,
    lifetimes: Lifetimes,
) -> [Vec<Change>; 2] {
    let renewed = lifetimes == Lifetimes::Renewed;
    let other = from.as_ref().unwrap_or(&to);
    let ends = Ends::of(other, &to);
    let mut staged = Vec::new();
    for message in &held.addresses {
        let new = RouteNetlinkMessage::NewAddress(address(message, &to, renewed));
        staged.push(Change::Kernel(new, REPLACE));
    }
    let mut switched = Vec::new();
    for message in &held.neighbours {
        let new = RouteNetlinkMessage::NewNeighbour(neighbour(message, &to));
        switched.push(Change::Kernel(new, REPLACE));
    }
    // A gateway has to be reachable by a route that is there already.
    let (near, far): (Vec<_>, Vec<_>) = held.routes.iter().partition(|route| !has_gateway(route));
    for message in near.into_iter().chain(far) {
        if renewed && is_learned(message) {
            let new = RouteNetlinkMessage::NewRoute(later(message, &ends, to.1));
            switched.push(Change::Kernel(new, REPLACE));
            let old = from.as_ref().map(|from| route(message, &ends, from.1));
            let old = old.map(RouteNetlinkMessage::DelRoute);
            switched.extend(old.map(|old| Change::Kernel(old, CHANGE)));
            continue;
        }
        let new = RouteNetlinkMessage::NewRoute(route(message, &ends, to.1));
        switched.push(Change::Kernel(new, REPLACE));
    }
    for message in &held.rules {
        let new = RouteNetlinkMessage::NewRule(rule(message, &ends, &to.0));
        switched.push(Change::Kernel(new, NEW));
    }
    let Some(from) = &from else {
        return [staged, switched];
    };
    for message in &held.rules {
        let old = RouteNetlinkMessage::DelRule(rule(message, &ends, &from.0));
        switched.push(Change::Kernel(old, CHANGE));
    }
    // The kernel removes secondary addresses with their primary one.
    for message in held.addresses.iter().rev() {
        let old = RouteNetlinkMessage::DelAddress(address(message, from, false));
        switched.push(Change::Kernel(old, CHANGE));
        // The kernel leaves its route if another address of the network makes none (addrconf.c,
        // check_cleanup_prefix_route).
        let old = network(message).map(|net| kernel_route(net, from.1));
        let old = old.map(RouteNetlinkMessage::DelRoute);
        switched.extend(old.map(|old| Change::Kernel(old, CHANGE)));
    }
    // With an address of one link, the kernel removes the routes of all links that have it as their
    // source (fib_frontend.c, fib_del_ifaddr).
    for message in held.routes.iter().filter(|it| has_source(it)) {
        let new = match renewed && is_learned(message) {
            true => later(message, &ends, to.1),
            false => route(message, &ends, to.1),
        };
        switched.push(Change::Kernel(RouteNetlinkMessage::NewRoute(new), REPLACE));
    }
    for message in held.neighbours.iter().filter(|it| is_permanent(it)) {
        let old = RouteNetlinkMessage::DelNeighbour(neighbour(message, from));
        switched.push(Change::Kernel(old, CHANGE));
    }
    [staged, switched]
}

/// After a network manager has made on `to` what it makes: what it has removed is put back, and
/// what stood in for its own is removed.
pub(super) fn settled(held: &NicConfig, from: &Link, to: &Link) -> Vec<Change> {
    let ends = Ends::of(from, to);
    let (learned, lasting): (Vec<_>, Vec<_>) = held.routes.iter().partition(|it| is_learned(it));
    let (near, far): (Vec<_>, Vec<_>) = lasting.into_iter().partition(|it| !has_gateway(it));
    let mut changes = Vec::new();
    for message in near.into_iter().chain(far) {
        let new = RouteNetlinkMessage::NewRoute(route(message, &ends, to.1));
        changes.push(Change::Kernel(new, REPLACE));
    }
    for message in &held.rules {
        let new = RouteNetlinkMessage::NewRule(rule(message, &ends, &to.0));
        changes.push(Change::Kernel(new, NEW));
    }
    for message in learned {
        let old = RouteNetlinkMessage::DelRoute(later(message, &ends, to.1));
        changes.push(Change::Kernel(old, CHANGE));
    }
    changes
}

/// Removes what the kernel has made itself by a router advertisement that came before the network
/// manager had told it not to.
pub(super) fn made_twice(held: &NicConfig, from: &Link, to: &Link) -> Vec<Change> {
    let ends = Ends::of(from, to);
    let learned = held.routes.iter();
    let learned = learned.filter(|it| it.header.protocol == RouteProtocol::Ra);
    let own = learned.filter_map(|message| by_kernel(message, held, &ends, to.1));
    let own = own.map(RouteNetlinkMessage::DelRoute);
    own.map(|own| Change::Kernel(own, CHANGE)).collect()
}

/// The kernel's own route beside one by router advertisements; None if it may be for an address.
fn by_kernel(
    message: &RouteMessage,
    held: &NicConfig,
    ends: &Ends<'_>,
    to: u32,
) -> Option<RouteMessage> {
    if has_gateway(message) {
        let mut own = route(message, ends, to);
        set_metric(&mut own, BY_KERNEL);
        return (metric(message) != Some(BY_KERNEL)).then_some(own);
    }
    let Some(IpNet::V6(net)) = destination(message) else {
        return None;
    };
    let mut own = held.addresses.iter().filter(|it| !has_no_route(it));
    let is_for_address = own.any(|it| network(it) == Some(net));
    (!is_for_address).then(|| kernel_route(net, to))
}

/// The addresses that nobody renews, of which a network manager may have removed those of others;
/// with those that have a lease, or without.
pub(super) fn addresses<'a>(
    held: &'a NicConfig,
    to: &'a Link,
    leased: bool,
) -> impl Iterator<Item = Change> + 'a {
    let wanted = held.addresses.iter();
    let wanted = wanted.filter(move |it| !is_leased(it) || leased || is_passing(it));
    wanted.map(|message| {
        let new = RouteNetlinkMessage::NewAddress(address(message, to, false));
        Change::Kernel(new, REPLACE)
    })
}

/// Those that nobody makes again, once a network manager has removed what it doesn't know.
pub(super) fn passing<'a>(held: &'a NicConfig, to: &'a Link) -> impl Iterator<Item = Change> + 'a {
    let passing = held.addresses.iter().filter(|it| is_passing(it));
    passing.map(|message| {
        let new = RouteNetlinkMessage::NewAddress(address(message, to, false));
        Change::Kernel(new, REPLACE)
    })
}

/// The network of an IPv6 address.
fn network(message: &AddressMessage) -> Option<Ipv6Net> {
    let ip = message.attributes.iter().find_map(|it| match it {
        AddressAttribute::Address(IpAddr::V6(ip)) => Some(*ip),
        _ => None,
    })?;
    let net = Ipv6Net::new(ip, message.header.prefix_len).ok()?;
    Some(net.trunc())
}

/// The route that the kernel makes for addresses of a network.
fn kernel_route(net: Ipv6Net, index: u32) -> RouteMessage {
    RouteMessageBuilder::<Ipv6Addr>::new()
        .destination_prefix(net.addr(), net.prefix_len())
        .output_interface(index)
        .protocol(RouteProtocol::Kernel)
        .build()
}

/// An address that nobody makes again: a privacy address (RFC 8981), of which the kernel makes
/// another one on the new link, or one that is deprecated. Until its lifetime ends, connections
/// have it that have it already, and no new ones.
pub(super) fn is_passing(message: &AddressMessage) -> bool {
    let mut attributes = message.attributes.iter();
    let has = |it: &AddressAttribute| match it {
        // It has the same number as IFA_F_SECONDARY, which is for IPv4.
        AddressAttribute::Flags(flags) => flags.contains(AddressFlags::Secondary),
        AddressAttribute::CacheInfo(life) => life.ifa_preferred == 0,
        _ => false,
    };
    message.header.family == AddressFamily::Inet6 && is_leased(message) && attributes.any(has)
}

/// What stands in for a route that a network manager makes on another link.
fn later(message: &RouteMessage, ends: &Ends<'_>, to: u32) -> RouteMessage {
    let mut message = route(message, ends, to);
    message.header.protocol = RouteProtocol::Static;
    let metric = later_metric(&message);
    set_metric(&mut message, metric);
    message
}

fn metric(message: &RouteMessage) -> Option<u32> {
    message.attributes.iter().find_map(|it| match it {
        RouteAttribute::Priority(metric) => Some(*metric),
        _ => None,
    })
}

fn set_metric(message: &mut RouteMessage, metric: u32) {
    message
        .attributes
        .retain(|it| !matches!(it, RouteAttribute::Priority(_)));
    message.attributes.push(RouteAttribute::Priority(metric));
}

/// The metric of what stands in for a route.
pub(super) fn later_metric(message: &RouteMessage) -> u32 {
    metric(message).unwrap_or_default().saturating_add(LATER)
}

/// An address on another link, without what the kernel only reports.
fn address(message: &AddressMessage, (name, index): &Link, lasting: bool) -> AddressMessage {
    let mut message = message.clone();
    message.header.index = *index;
    message.header.flags = AddressHeaderFlags::empty();
    let is_v6 = message.header.family == AddressFamily::Inet6;
    let passes = is_passing(&message);
    let mut flags = match is_v6 {
        // It was checked when it came onto the first link; nobody else has it since.
        true => AddressFlags::Nodad,
        false => AddressFlags::empty(),
    };
    message.attributes.retain_mut(|attribute| match attribute {
        AddressAttribute::Flags(seen) => {
            flags |= *seen
                & (AddressFlags::Nodad
                    | AddressFlags::Homeaddress
                    | AddressFlags::Managetempaddr
                    | AddressFlags::Noprefixroute
                    | AddressFlags::Mcautojoin);
            false
        }
        AddressAttribute::CacheInfo(life) if passes => {
            life.ifa_preferred = 0;
            true
        }
        AddressAttribute::CacheInfo(_) if lasting => false,
        AddressAttribute::CacheInfo(life) => {
            life.ifa_valid != FOREVER || life.ifa_preferred != FOREVER
        }
        AddressAttribute::Label(label) => {
            // A label begins with its link's name (ip-address(8)).
            let alias = label.split_once(':').map(|(_, alias)| alias.to_owned());
            *label = match alias {
                Some(alias) => format!("{name}:{alias}"),
                None => name.clone(),
            };
            // IFNAMSIZ, with the end of the string.
            label.len() < 16
        }
        _ => true,
    });
    message.attributes.push(AddressAttribute::Flags(flags));
    message
}

/// A route by another link. Next hops on other links stay.
fn route(message: &RouteMessage, ends: &Ends<'_>, to: u32) -> RouteMessage {
    let mut message = message.clone();
    message.header.flags &= RouteFlags::Onlink;
    let by = |index: &mut u32| {
        if ends.indexes.contains(index) {
            *index = to;
        }
    };
    message.attributes.retain_mut(|attribute| match attribute {
        RouteAttribute::CacheInfo(_) => false,
        RouteAttribute::Oif(index) => {
            by(index);
            true
        }
        RouteAttribute::MultiPath(hops) => {
            for hop in hops {
                hop.flags &= RouteNextHopFlags::Onlink;
                by(&mut hop.interface_index);
            }
            true
        }
        _ => true,
    });
    message
}

impl NicConfig {
    /// What the machine can be reached without, as text: none of the addresses and default routes
    /// that its NIC had.
    pub(crate) fn dispensable(&self, message: &RouteNetlinkMessage) -> Option<String> {
        match message {
            RouteNetlinkMessage::NewRoute(message) => {
                let way = |it: &RouteMessage| (destination(it), metric(it), it.header.table);
                let is_default = message.header.destination_prefix_length == 0;
                let mut own = self.routes.iter();
                let is_own = is_default && own.any(|it| way(it) == way(message));
                let text = || destination(message).map_or_else(String::new, |net| net.to_string());
                (!is_own).then(|| format!("route {}", text()))
            }
            RouteNetlinkMessage::NewRule(_) => Some("a rule".to_owned()),
            RouteNetlinkMessage::NewNeighbour(_) => Some("a neighbour".to_owned()),
            _ => None,
        }
    }
}

fn has_source(message: &RouteMessage) -> bool {
    let mut attributes = message.attributes.iter();
    attributes.any(|it| matches!(it, RouteAttribute::PrefSource(_)))
}

fn has_gateway(message: &RouteMessage) -> bool {
    message.attributes.iter().any(|it| {
        matches!(
            it,
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) | RouteAttribute::MultiPath(_)
        )
    })
}

fn rule(message: &RuleMessage, ends: &Ends<'_>, link: &str) -> RuleMessage {
    let mut message = message.clone();
    message.header.flags &= RuleFlags::Invert;
    for attribute in &mut message.attributes {
        match attribute {
            RuleAttribute::Iifname(name) | RuleAttribute::Oifname(name)
                if ends.names.contains(&name.as_str()) =>
            {
                link.clone_into(name);
            }
            _ => {}
        }
    }
    message
}

fn is_permanent(message: &NeighbourMessage) -> bool {
    message.header.state == NeighbourState::Permanent
}

fn neighbour(message: &NeighbourMessage, (_, index): &Link) -> NeighbourMessage {
    let mut message = message.clone();
    message.header.ifindex = *index;
    if !is_permanent(&message) {
        // It is believed, and checked when it is used.
        message.header.state = NeighbourState::Stale;
    }
    message.attributes.retain(|attribute| {
        matches!(
            attribute,
            NeighbourAttribute::Destination(_) | NeighbourAttribute::LinkLayerAddress(_)
        )
    });
    message
}
