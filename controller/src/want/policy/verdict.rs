//! Which rule decides about a connection.

use std::fmt;
use std::net::IpAddr;

use podwire_cluster::Name;
use podwire_cluster::service::Protocol;

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
pub enum Verdict {
    /// None isolates it in this direction.
    NotSelected,
    /// This rule of a policy of the whole cluster decides.
    OfCluster(Decision),
    /// This policy's rule allows it, by its number.
    Allowed(Name, usize),
    /// These isolate the pod, and none allows it.
    Denied(Vec<Name>),
}

impl Verdict {
    /// Whether it does not pass.
    pub fn is_denied(&self) -> bool {
        match self {
            Self::NotSelected | Self::Allowed(..) => false,
            Self::OfCluster(decision) => decision.action == Action::Deny,
            Self::Denied(_) => true,
        }
    }
}

impl Policies {
    /// Decides about a connection to a pod (ingress), or from it.
    pub fn verdict(&self, direction: Direction, connection: &Connection<'_>) -> Verdict {
        if let Some(decision) = self.tiers.before(direction, connection) {
            return Verdict::OfCluster(decision);
        }
        let isolating = self.isolating(direction, &connection.pod);
        match decide(&isolating, direction, connection) {
            Verdict::NotSelected => {
                let decision = self.tiers.after(direction, connection);
                decision.map_or(Verdict::NotSelected, Verdict::OfCluster)
            }
            verdict => verdict,
        }
    }

    /// The NetworkPolicies that isolate a pod in a direction, with their rules for it.
    pub fn isolating(&self, direction: Direction, pod: &Candidate<'_>) -> Vec<(&Name, &[Rule])> {
        let own = self.of(pod.namespace);
        let selecting = own.filter(|(_, policy)| policy.selector.matches(&pod.selected.labels));
        selecting
            .filter_map(|(name, policy)| Some((name, policy.rules(direction)?)))
            .collect()
    }
}

/// What the NetworkPolicies that isolate a pod make of a connection to it (ingress), or from it.
pub fn decide(
    isolating: &[(&Name, &[Rule])],
    direction: Direction,
    connection: &Connection<'_>,
) -> Verdict {
    for (name, rules) in isolating {
        let found = rules
            .iter()
            .position(|it| connection.matches(direction, it));
        if let Some(number) = found {
            return Verdict::Allowed((*name).clone(), number);
        }
    }
    match isolating.is_empty() {
        true => Verdict::NotSelected,
        false => Verdict::Denied(isolating.iter().map(|(name, _)| (*name).clone()).collect()),
    }
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
        match self {
            Self::NotSelected => f.write_str("no policy selects it"),
            Self::OfCluster(decision) => decision.fmt(f),
            Self::Allowed(name, number) => write!(f, "allowed by rule {number} of policy {name}"),
            Self::Denied(names) => {
                let names: Vec<&str> = names.iter().map(Name::as_str).collect();
                write!(f, "denied: no rule of {} allows it", names.join(", "))
            }
        }
    }
}
