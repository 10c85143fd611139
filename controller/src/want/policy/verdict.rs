//! Which rule decides about a connection.

use std::fmt;
use std::net::IpAddr;

use podwire_cluster::Name;
use podwire_cluster::service::Protocol;

use super::tiers::Ranked;
use super::{Candidate, Decision, Policies};
use crate::cluster::policy::{Direction, Ports, Rule};
use crate::cluster::tiered::Action;

/// A connection of a pod.
#[derive(Clone, Copy, Debug)]
pub struct Connection<'a> {
    /// The pod.
    pub pod: Candidate<'a>,
    /// The other side, if it is a pod, too.
    pub other: Option<Candidate<'a>>,
    /// The other side's address.
    pub address: IpAddr,
    /// Protocol and port of the receiver; `None` for what has none, such as ICMP.
    pub port: Option<(Protocol, u16)>,
}

/// What the policies that select the pod make of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Verdict {
    /// What decides.
    pub outcome: Outcome,
    /// The rules that passed it on before.
    pub passed: Vec<Decision>,
}

/// What decides about a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// No policy selects the pod for this direction.
    NotSelected,
    /// Only policies of the whole cluster do, and no rule of theirs decides.
    Undecided,
    /// This rule of a policy of the whole cluster decides.
    OfCluster(Decision),
    /// This policy's rule allows it, by its number.
    Allowed(Name, usize),
    /// These isolate the pod, and none allows it.
    Denied(Vec<Name>),
}

/// The policies that decide about a pod's connections in a direction, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deciding<'a> {
    first: Vec<Ranked<'a>>,
    isolating: Vec<(&'a Name, &'a [Rule])>,
    last: Vec<Ranked<'a>>,
}

impl Verdict {
    /// That of what has no policies.
    pub const NOT_SELECTED: Self = Self {
        outcome: Outcome::NotSelected,
        passed: Vec::new(),
    };

    /// Whether it does not pass.
    pub fn is_denied(&self) -> bool {
        match &self.outcome {
            Outcome::NotSelected | Outcome::Undecided | Outcome::Allowed(..) => false,
            Outcome::OfCluster(decision) => decision.action == Action::Deny,
            Outcome::Denied(_) => true,
        }
    }
}

impl Policies {
    /// Decides about a connection to a pod (ingress), or from it.
    pub fn verdict(&self, direction: Direction, connection: &Connection<'_>) -> Verdict {
        let deciding = self.deciding(direction, &connection.pod);
        deciding.verdict(direction, connection)
    }

    /// The policies that decide about a pod's connections in a direction.
    pub fn deciding(&self, direction: Direction, pod: &Candidate<'_>) -> Deciding<'_> {
        let own = self.of(pod.namespace);
        let selecting = own.filter(|(_, policy)| policy.selector.matches(&pod.selected.labels));
        let isolating = selecting.filter_map(|(name, policy)| {
            let rules = policy.rules(direction)?;
            Some((name, rules))
        });
        let [first, last] = self.tiers.ranked(direction, pod);
        Deciding {
            first,
            isolating: isolating.collect(),
            last,
        }
    }
}

impl Deciding<'_> {
    /// What they make of a connection to their pod (ingress), or from it.
    pub fn verdict(&self, direction: Direction, connection: &Connection<'_>) -> Verdict {
        let mut passed = Vec::new();
        let outcome = match decision(&self.first, direction, connection, &mut passed) {
            Some(decision) => Outcome::OfCluster(decision),
            None if !self.isolating.is_empty() => self.of_network_policies(direction, connection),
            None => match decision(&self.last, direction, connection, &mut passed) {
                Some(decision) => Outcome::OfCluster(decision),
                None if self.first.is_empty() && self.last.is_empty() => Outcome::NotSelected,
                None => Outcome::Undecided,
            },
        };
        Verdict { outcome, passed }
    }

    /// The parts of their rules that say what they match.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        let tiered = self.first.iter().chain(&self.last);
        let tiered = tiered.flat_map(|(.., rules)| rules.iter().map(|it| &it.matching));
        let isolating = self.isolating.iter().flat_map(|(_, rules)| rules.iter());
        tiered.chain(isolating)
    }

    fn of_network_policies(&self, direction: Direction, connection: &Connection<'_>) -> Outcome {
        let allowing = self.isolating.iter().find_map(|(name, rules)| {
            let mut rules = rules.iter();
            let number = rules.position(|it| connection.matches(direction, it))?;
            Some(Outcome::Allowed((*name).clone(), number))
        });
        allowing.unwrap_or_else(|| {
            let names = self.isolating.iter().map(|(name, _)| (*name).clone());
            Outcome::Denied(names.collect())
        })
    }
}

/// What policies of one tier make of a connection, in their order; None if they pass it on, by a
/// rule or without one.
fn decision(
    policies: &[Ranked<'_>],
    direction: Direction,
    connection: &Connection<'_>,
    passed: &mut Vec<Decision>,
) -> Option<Decision> {
    let decision = policies.iter().find_map(|(level, key, rules)| {
        let mut rules = rules.iter();
        let rule = rules.find(|rule| connection.matches(direction, &rule.matching))?;
        Some(Decision {
            policy: (*key).clone(),
            level: *level,
            rule: rule.number,
            name: rule.name.clone(),
            action: rule.action,
        })
    })?;
    if decision.action == Action::Pass {
        passed.push(decision);
        return None;
    }
    Some(decision)
}

impl Connection<'_> {
    /// Whether a rule is for it.
    pub(super) fn matches(&self, direction: Direction, rule: &Rule) -> bool {
        let receiver = match direction {
            Direction::Ingress => Some(&self.pod),
            Direction::Egress => self.other.as_ref(),
        };
        let by_port = rule.ports.as_ref().is_none_or(|ports| {
            let Some((protocol, number)) = self.port else {
                return false;
            };
            ports.iter().any(|it| match it {
                Ports::All(of) => *of == protocol,
                Ports::Range(of, first, last) => {
                    *of == protocol && (*first..=*last).contains(&number)
                }
                Ports::Named(named) => receiver.is_some_and(|pod| {
                    named.protocol == protocol && pod.selected.numbers(named).any(|it| it == number)
                }),
            })
        });
        by_port
            && rule.peers.as_ref().is_none_or(|peers| {
                peers.iter().any(|peer| {
                    let is_in = || self.other.as_ref().is_some_and(|pod| pod.is_in(peer));
                    peer.contains(self.address).unwrap_or_else(is_in)
                })
            })
    }
}

/// In one line, for a pod that is its own.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::NotSelected => f.write_str("no policy selects it"),
            Outcome::Undecided => f.write_str("allowed: no rule decides"),
            Outcome::OfCluster(decision) => decision.fmt(f),
            Outcome::Allowed(name, number) => {
                write!(f, "allowed by rule {number} of policy {name}")
            }
            Outcome::Denied(names) => {
                let names: Vec<&str> = names.iter().map(Name::as_str).collect();
                write!(f, "denied: no rule of {} allows it", names.join(", "))
            }
        }?;
        self.passed.iter().try_for_each(|it| write!(f, "; {it}"))
    }
}
