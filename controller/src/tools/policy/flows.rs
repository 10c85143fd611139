//! What policies cut and open, between groups of ends that are alike. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use podwire_cluster::service::Protocol;

use super::ends::Group;
use crate::cluster::policy::{Direction, Ports};
use crate::want::policy::{Connection, Deciding, Policies, Verdict};

/// The most decisions of one comparison: some seconds of a processor.
const MOST: usize = 4_000_000;

/// What happens to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Effect {
    /// They were possible, and are not.
    Cut,
    /// They were not, and are.
    Opened,
}

/// How it is decided: at the pods of which end, by what.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Decision {
    pub(super) effect: Effect,
    /// Ingress: at the receiver; egress: at the sender.
    pub(super) direction: Direction,
    /// The group whose policies decide.
    pub(super) at: usize,
    pub(super) verdict: Verdict,
    /// Some protocols and ports.
    pub(super) ports: Vec<Range>,
    /// That of the addresses, if it matters.
    pub(super) is_ipv4: Option<bool>,
}

/// Ports of a protocol; without one, of all protocols that have none.
pub(super) type Range = (Option<Protocol>, u16, u16);

pub(super) struct Found {
    /// Each with the groups at the other end.
    pub(super) decisions: BTreeMap<Decision, BTreeSet<usize>>,
    /// Pairs of groups that were not compared, and of all of them.
    pub(super) left_out: usize,
    pub(super) pairs: usize,
}

/// The policies that decide about the pods of each group, by direction.
type OfGroups<'a> = Vec<[Deciding<'a>; 2]>;

struct Comparison<'a> {
    groups: &'a [Group<'a>],
    before: OfGroups<'a>,
    after: OfGroups<'a>,
    decided: usize,
}

/// Compares all connections of groups for which policies differ.
pub(super) fn compare(groups: &[Group<'_>], before: &Policies, after: &Policies) -> Found {
    let of = |policies| deciding(groups, policies);
    let mut comparison = Comparison {
        groups,
        before: of(before),
        after: of(after),
        decided: 0,
    };
    let mut found = Found {
        decisions: BTreeMap::new(),
        left_out: 0,
        pairs: 0,
    };
    let all = || 0..groups.len();
    let differs = |group: usize, direction: Direction| {
        let [before, after] = [&comparison.before, &comparison.after];
        let at = direction as usize;
        before[group][at] != after[group][at]
    };
    let mut pairs = BTreeSet::new();
    for group in all() {
        if differs(group, Direction::Ingress) {
            pairs.extend(all().map(|from| (from, group)));
        }
        if differs(group, Direction::Egress) {
            pairs.extend(all().map(|to| (group, to)));
        }
    }
    for (from, to) in pairs {
        if !comparison.is_asked(from, to) {
            continue;
        }
        found.pairs += 1;
        if comparison.decided > MOST {
            found.left_out += 1;
            continue;
        }
        for (decision, other) in comparison.pair(from, to) {
            found.decisions.entry(decision).or_default().insert(other);
        }
    }
    found
}

fn deciding<'a>(groups: &[Group<'_>], policies: &'a Policies) -> OfGroups<'a> {
    let of_group = |group: &Group<'_>| {
        Direction::BOTH.map(|direction| {
            let pod = group.pod.as_ref();
            pod.map_or_else(Deciding::default, |pod| policies.deciding(direction, pod))
        })
    };
    groups.iter().map(of_group).collect()
}

impl<'a> Comparison<'a> {
    /// Whether there can be such connections.
    fn is_asked(&self, from: usize, to: usize) -> bool {
        let (sender, receiver) = (&self.groups[from], &self.groups[to]);
        let is_alone = from == to && sender.count == 1;
        !is_alone
            && sender.only != Some(Direction::Egress)
            && receiver.only != Some(Direction::Ingress)
    }

    /// What differs between two groups, each with the group at the other end.
    fn pair(&mut self, from: usize, to: usize) -> Vec<(Decision, usize)> {
        let of_family = |is_ipv4: bool, this: &mut Self| {
            let address = |group: usize| {
                let mut own = this.groups[group].addresses.iter();
                own.find(|it| it.is_ipv4() == is_ipv4).copied()
            };
            let ends = address(from).zip(address(to));
            ends.map(|ends| this.by_address(from, to, ends))
        };
        let (v4, v6) = (of_family(true, self), of_family(false, self));
        // With one family, the addresses say which.
        if v4 == v6 || v4.is_none() || v6.is_none() {
            return v4.or(v6).unwrap_or_default();
        }
        let mut all = named(v4.unwrap_or_default(), Some(true));
        all.extend(named(v6.unwrap_or_default(), Some(false)));
        all
    }

    fn by_address(
        &mut self,
        from: usize,
        to: usize,
        ends: (IpAddr, IpAddr),
    ) -> Vec<(Decision, usize)> {
        let mut found: BTreeMap<(Effect, Direction, Verdict), Vec<Range>> = BTreeMap::new();
        for range in self.ranges(from, to) {
            let port = range.0.map(|protocol| (protocol, range.1));
            let [before, after] = [&self.before, &self.after].map(|policies| {
                let egress = self.decide(policies, Direction::Egress, (from, to), ends.1, port);
                let ingress = self.decide(policies, Direction::Ingress, (to, from), ends.0, port);
                [(Direction::Egress, egress), (Direction::Ingress, ingress)]
            });
            self.decided += 4;
            let denies = |(_, verdict): &&(Direction, Verdict)| verdict.is_denied();
            let (was, is) = (before.iter().find(denies), after.iter().find(denies));
            let (effect, (direction, verdict)) = match (was, is) {
                (None, Some(denied)) => (Effect::Cut, denied.clone()),
                (Some((direction, _)), None) => {
                    let opened = after.iter().find(|(it, _)| it == direction);
                    let Some(opened) = opened else { continue };
                    (Effect::Opened, opened.clone())
                }
                _ => continue,
            };
            found
                .entry((effect, direction, verdict))
                .or_default()
                .push(range);
        }
        let decisions = found
            .into_iter()
            .map(|((effect, direction, verdict), ports)| {
                let (at, other) = match direction {
                    Direction::Egress => (from, to),
                    Direction::Ingress => (to, from),
                };
                let decision = Decision {
                    effect,
                    direction,
                    at,
                    verdict,
                    ports: joined(ports),
                    is_ipv4: None,
                };
                (decision, other)
            });
        decisions.collect()
    }

    fn decide(
        &self,
        policies: &OfGroups<'_>,
        direction: Direction,
        (pod, other): (usize, usize),
        address: IpAddr,
        port: Option<(Protocol, u16)>,
    ) -> Verdict {
        let deciding = &policies[pod][direction as usize];
        let Some(own) = self.groups[pod].pod else {
            return Verdict::NOT_SELECTED;
        };
        let connection = Connection {
            pod: own,
            other: self.groups[other].pod,
            address,
            port,
        };
        deciding.verdict(direction, &connection)
    }

    /// Ports between which no rule of either end makes a difference.
    fn ranges(&self, from: usize, to: usize) -> Vec<Range> {
        let mut begins: BTreeMap<Protocol, BTreeSet<u16>> = BTreeMap::new();
        let ends = [(from, Direction::Egress), (to, Direction::Ingress)];
        for policies in [&self.before, &self.after] {
            let rules = ends
                .iter()
                .flat_map(|(group, direction)| policies[*group][*direction as usize].rules());
            for ports in rules.flat_map(|rule| rule.ports.iter().flatten()) {
                let mut add = |protocol: Protocol, first: u16, last: u16| {
                    let of_protocol = begins.entry(protocol).or_default();
                    of_protocol.extend([Some(first), last.checked_add(1)].into_iter().flatten());
                };
                match ports {
                    Ports::All(protocol) => add(*protocol, 1, u16::MAX),
                    Ports::Range(protocol, first, last) => add(*protocol, *first, *last),
                    Ports::Named(named) => {
                        let receiver = self.groups[to].pod.iter();
                        let numbers = receiver.flat_map(|pod| pod.selected.numbers(named));
                        numbers.for_each(|number| add(named.protocol, number, number));
                    }
                }
            }
        }
        let mut ranges: Vec<Range> = vec![(None, 0, 0)];
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let begins = begins.remove(&protocol).unwrap_or_default();
            let begins: Vec<u16> = [1]
                .into_iter()
                .chain(begins.into_iter().filter(|it| *it > 1))
                .collect();
            let ends = begins.iter().skip(1).map(|next| next - 1).chain([u16::MAX]);
            ranges.extend(
                begins
                    .iter()
                    .zip(ends)
                    .map(|(first, last)| (Some(protocol), *first, last)),
            );
        }
        ranges
    }
}

fn named(all: Vec<(Decision, usize)>, is_ipv4: Option<bool>) -> Vec<(Decision, usize)> {
    let all = all.into_iter();
    all.map(|(decision, other)| {
        (
            Decision {
                is_ipv4,
                ..decision
            },
            other,
        )
    })
    .collect()
}

/// Adjacent ranges as one.
fn joined(ranges: Vec<Range>) -> Vec<Range> {
    let mut all: Vec<Range> = Vec::new();
    for (protocol, first, last) in ranges {
        match all.last_mut() {
            Some((of, _, end)) if *of == protocol && *end + 1 == first => *end = last,
            _ => all.push((protocol, first, last)),
        }
    }
    all
}
