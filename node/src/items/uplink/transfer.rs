//! Addresses, routes, rules and neighbours of one link on another.

use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage,
};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{RouteAttribute, RouteFlags, RouteMessage, RouteNextHopFlags};
use netlink_packet_route::rule::{RuleAttribute, RuleFlags, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::super::{CHANGE, Change, NEW, REPLACE};
use crate::moved::Held;

/// A link: its name and index.
type Link = (String, u32);

/// The lifetime of an address that has none.
const FOREVER: u32 = u32::MAX;

/// What belongs to either of the two links, of which it is the other's from now on.
struct Ends<'a> {
    names: [&'a str; 2],
    indexes: [u32; 2],
}

/// What prepares the change without effect on packets, and what then switches to the other link.
pub(super) fn changes(held: &Held, from: Option<Link>, to: Link) -> [Vec<Change>; 2] {
    let other = from.as_ref().unwrap_or(&to);
    let ends = Ends {
        names: [&*other.0, &*to.0],
        indexes: [other.1, to.1],
    };
    let mut staged = Vec::new();
    for message in &held.addresses {
        let new = RouteNetlinkMessage::NewAddress(address(message, &to));
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
        let old = RouteNetlinkMessage::DelAddress(address(message, from));
        switched.push(Change::Kernel(old, CHANGE));
    }
    for message in held.neighbours.iter().filter(|it| is_permanent(it)) {
        let old = RouteNetlinkMessage::DelNeighbour(neighbour(message, from));
        switched.push(Change::Kernel(old, CHANGE));
    }
    [staged, switched]
}

/// An address on another link, without what the kernel only reports.
fn address(message: &AddressMessage, (name, index): &Link) -> AddressMessage {
    let mut message = message.clone();
    message.header.index = *index;
    message.header.flags = AddressHeaderFlags::empty();
    let is_v6 = message.header.family == AddressFamily::Inet6;
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
