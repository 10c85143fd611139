//! OVN's matches for addresses and ports (ovn-sb(5), Logical_Flow). Only `==` and ranges: with
//! anything else ovn-controller processes a changed set as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cluster::service::Protocol;

use crate::cluster::policy::{Direction, Peer, Ports, pieces};

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::want) enum Family {
    V4,
    V6,
}

impl Family {
    pub(in crate::want) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    pub(in crate::want) fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::V4 => "v4",
            Self::V6 => "v6",
        }
    }

    /// Whether a match for a peer, which may be empty, can be met by packets of this family.
    pub(super) fn may_be(self, peer: &str) -> bool {
        peer.is_empty() || peer.starts_with(self.field())
    }

    pub(in crate::want) fn field(self) -> &'static str {
        match self {
            Self::V4 => "ip4",
            Self::V6 => "ip6",
        }
    }

    /// Messages about packets that did not arrive: unreachable, too big, time exceeded, bad header.
    pub(in crate::want) fn errors(self) -> &'static str {
        match self {
            Self::V4 => "icmp4.type == {3, 11, 12}",
            Self::V6 => "icmp6.type == {1, 2, 3, 4}",
        }
    }
}

/// The peer's address in a packet.
pub(super) fn address(direction: Direction, family: Family) -> String {
    let side = match direction {
        Direction::Ingress => "src",
        Direction::Egress => "dst",
    };
    format!("{}.{side}", family.field())
}

/// What meets all of these, of which some may be empty.
pub(super) fn all(parts: [&str; 2]) -> String {
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    match parts.collect::<Vec<_>>()[..] {
        [] => "ip".to_owned(),
        [one] => one.to_owned(),
        ref both => both.join(" && "),
    }
}

/// What meets any of these. Each has its sets of addresses for itself: of such a disjunction,
/// ovn-controller adds and removes single addresses.
pub(super) fn any(clauses: &[String]) -> String {
    match clauses {
        [one] => one.clone(),
        several => {
            let several: Vec<String> = several.iter().map(|it| format!("({it})")).collect();
            format!("({})", several.join(" || "))
        }
    }
}

/// The networks among some peers: a match for each family that has any.
pub(super) fn blocks(direction: Direction, peers: &BTreeSet<Peer>) -> Vec<String> {
    let nets = peers.iter().flat_map(|peer| match peer {
        Peer::Block(net, except) => pieces(*net, except),
        Peer::Pods { .. } => Vec::new(),
    });
    let nets = IpNet::aggregate(&nets.collect());
    let of_family = |family: Family| {
        let own: Vec<String> = nets
            .iter()
            .filter(|net| Family::of(net.addr()) == family)
            .map(ToString::to_string)
            .collect();
        let field = address(direction, family);
        match &own[..] {
            [] => None,
            // All addresses of the family.
            [net] if net.ends_with("/0") => Some(family.field().to_owned()),
            [net] => Some(format!("{field} == {net}")),
            nets => Some(format!("{field} == {{{}}}", nets.join(", "))),
        }
    };
    Family::BOTH.into_iter().filter_map(of_family).collect()
}

/// The ports that are known by number: a match for each protocol, which is empty for all ports of
/// all protocols.
pub(super) fn ports(allowed: Option<&BTreeSet<Ports>>) -> Vec<String> {
    let Some(allowed) = allowed else {
        return vec![String::new()];
    };
    let mut ranges: BTreeMap<Protocol, Vec<(u16, u16)>> = BTreeMap::new();
    for ports in allowed {
        let (protocol, range) = match ports {
            Ports::All(protocol) => (protocol, (0, u16::MAX)),
            Ports::Range(protocol, first, last) => (protocol, (*first, *last)),
            Ports::Named(_) => continue,
        };
        ranges.entry(*protocol).or_default().push(range);
    }
    let merged = ranges.into_iter().map(|(protocol, mut ranges)| {
        ranges.sort_unstable();
        let mut merged: Vec<(u16, u16)> = Vec::new();
        for (first, last) in ranges {
            match merged.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        by_ranges(protocol, &merged)
    });
    merged.collect()
}

/// One port.
pub(super) fn port(protocol: Protocol, number: u16) -> String {
    by_ranges(protocol, &[(number, number)])
}

fn by_ranges(protocol: Protocol, ranges: &[(u16, u16)]) -> String {
    let name = protocol.name();
    if ranges == [(0, u16::MAX)] {
        return name.to_owned();
    }
    let single = ranges.iter().filter(|(first, last)| first == last);
    let single: Vec<String> = single.map(|(number, _)| number.to_string()).collect();
    let wide = ranges.iter().filter(|(first, last)| first < last);
    let mut all: Vec<String> = wide
        .map(|(first, last)| format!("{first} <= {name}.dst <= {last}"))
        .collect();
    match &single[..] {
        [] => {}
        [number] => all.push(format!("{name}.dst == {number}")),
        numbers => all.push(format!("{name}.dst == {{{}}}", numbers.join(", "))),
    }
    match &all[..] {
        [one] => format!("{name} && {one}"),
        several => format!("{name} && {}", any(several)),
    }
}
