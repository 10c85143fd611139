//! Reads such policies. A rule that can't be read fails closed, as the API wants it for peers of a
//! kind that an implementation does not know: one that accepts matches nothing, any other denies
//! everything. Where the place of a whole policy can't be read, nothing of it is applied.

use std::collections::BTreeSet;

use ipnet::IpNet;
use podwire_cluster::api::{self, Part};
use podwire_cluster::service::Protocol;
use podwire_cluster::{Name, Selector};

use super::{Action, Content, Level, RUNS, TieredRule};
use crate::cluster::policy::{Direction, NamedPort, Namespaces, Peer, Ports, Rule};

/// The last priority in the order of evaluation.
pub(super) const LOWEST: u16 = 1000;

/// Whether rules have `protocols` or `ports`, and what accepting is called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    V1Alpha1,
    V1Alpha2,
}

/// A spec, or why nothing of it can be applied.
type Spec = Part<api::TieredPolicySpec>;

pub(super) fn cluster(spec: &Spec) -> Result<Content, String> {
    let spec = read("spec", spec)?;
    let priority = priority(spec)?;
    let level = match &*spec.tier {
        "Admin" => Level::Admin(priority),
        "Baseline" => Level::Baseline(priority),
        other => {
            return Err(format!(
                "spec.tier: {other:?} is neither Admin nor Baseline"
            ));
        }
    };
    content(spec, level, Version::V1Alpha2)
}

pub(super) fn admin(spec: &Spec) -> Result<Content, String> {
    let spec = read("spec", spec)?;
    content(spec, Level::Admin(priority(spec)?), Version::V1Alpha1)
}

pub(super) fn baseline(name: &str, spec: &Spec) -> Result<Content, String> {
    if name != "default" {
        return Err(format!("metadata.name: {name:?} is not default"));
    }
    content(read("spec", spec)?, Level::Last, Version::V1Alpha1)
}

fn priority(spec: &api::TieredPolicySpec) -> Result<u16, String> {
    let number = spec.priority.ok_or("spec.priority: it is not set")?;
    let priority = u16::try_from(number).ok().filter(|it| *it <= LOWEST);
    priority.ok_or_else(|| format!("spec.priority: {number} is not between 0 and {LOWEST}"))
}

fn read<'p, T>(field: &str, part: &'p Part<T>) -> Result<&'p T, String> {
    match part {
        Part::Read(it) => Ok(it),
        Part::Unreadable(problem) => Err(format!("{field}: {problem}")),
    }
}

fn content(
    spec: &api::TieredPolicySpec,
    level: Level,
    version: Version,
) -> Result<Content, String> {
    let subject = &spec.subject;
    let subject = pods(&subject.namespaces, &subject.pods, false);
    let subject = subject.map_err(|problem| format!("spec.subject{problem}"))?;
    let mut content = Content {
        uid: Name::default(),
        level,
        subject,
        ingress: Vec::new(),
        egress: Vec::new(),
        problems: Vec::new(),
    };
    let lists = [
        (Direction::Ingress, "spec.ingress", &spec.ingress),
        (Direction::Egress, "spec.egress", &spec.egress),
    ];
    for (direction, field, list) in lists {
        let mut rules = Vec::new();
        for (number, rule) in list.iter().enumerate() {
            let at = format!("{field}[{number}]");
            rules.extend(one(
                direction,
                (&at, number),
                rule,
                version,
                &mut content.problems,
            ));
        }
        match direction {
            Direction::Ingress => content.ingress = rules,
            Direction::Egress => content.egress = rules,
        }
        let runs = content.runs(direction).count();
        if level != Level::Last && runs > usize::from(RUNS) {
            return Err(format!(
                "{field}: its rules are {runs} runs of one action each, and OVN's priorities have \
                 room for {RUNS}"
            ));
        }
    }
    Ok(content)
}

/// A rule; `None` if it matches nothing.
fn one(
    direction: Direction,
    (at, number): (&str, usize),
    rule: &Part<api::TieredRule>,
    version: Version,
    problems: &mut Vec<String>,
) -> Option<TieredRule> {
    let (name, action, matching) = match read(at, rule) {
        Err(problem) => (Name::default(), None, Err(problem)),
        Ok(rule) => {
            let accept = match version {
                Version::V1Alpha1 => "Allow",
                Version::V1Alpha2 => "Accept",
            };
            let action = match &*rule.action {
                "Deny" => Some(Action::Deny),
                "Pass" => Some(Action::Pass),
                action if action == accept => Some(Action::Accept),
                _ => None,
            };
            let matching = match action {
                Some(_) => matching(direction, at, rule, version),
                None => Err(format!(
                    "{at}.action: {:?} is none of {accept}, Deny and Pass",
                    rule.action
                )),
            };
            (rule.name.as_str().into(), action, matching)
        }
    };
    let rule = |action, matching| TieredRule {
        number,
        name,
        action,
        matching,
    };
    match (matching, action) {
        (Ok(matching), Some(action)) => Some(rule(action, matching)),
        (Err(problem), Some(Action::Accept)) => {
            problems.push(format!("{problem}; the rule accepts nothing"));
            None
        }
        (matching, _) => {
            let problem = matching.err().unwrap_or_default();
            problems.push(format!("{problem}; the rule denies everything"));
            let everything = Rule {
                peers: None,
                ports: None,
            };
            Some(rule(Action::Deny, everything))
        }
    }
}

fn matching(
    direction: Direction,
    at: &str,
    rule: &api::TieredRule,
    version: Version,
) -> Result<Rule, String> {
    let (field, list) = match direction {
        Direction::Ingress => ("from", &rule.from),
        Direction::Egress => ("to", &rule.to),
    };
    let field = format!("{at}.{field}");
    let list = read(&field, list)?;
    let mut peers = BTreeSet::new();
    for (number, of) in list.iter().enumerate() {
        let found = peer(direction, of);
        peers.extend(found.map_err(|problem| format!("{field}[{number}]{problem}"))?);
    }
    if list.is_empty() {
        return Err(format!("{field}: it is empty"));
    }
    let ports = match version {
        Version::V1Alpha1 => all(&format!("{at}.ports"), &rule.ports, port)?,
        Version::V1Alpha2 => all(&format!("{at}.protocols"), &rule.protocols, protocol)?,
    };
    let has_names = ports
        .iter()
        .flatten()
        .any(|it| matches!(it, Ports::Named(_)));
    if has_names && peers.iter().any(|it| matches!(it, Peer::Block(..))) {
        return Err(format!("{field}: networks have no ports with names"));
    }
    Ok(Rule {
        peers: Some(peers),
        ports,
    })
}

fn peer(direction: Direction, peer: &api::TieredPeer) -> Result<BTreeSet<Peer>, String> {
    let networks = match direction {
        Direction::Ingress => &Vec::new(),
        Direction::Egress => &peer.networks,
    };
    if networks.is_empty() {
        return Ok([pods(
            &peer.namespaces,
            &peer.pods,
            direction == Direction::Egress,
        )?]
        .into());
    }
    if peer.namespaces.is_some() || peer.pods.is_some() {
        return Err(": networks can't be combined with pods".to_owned());
    }
    let block = |(number, text): (usize, &String)| match text.parse::<IpNet>() {
        Ok(net) => Ok(Peer::Block(net.trunc(), BTreeSet::new())),
        Err(error) => Err(format!(".networks[{number}]: {text:?}: {error}")),
    };
    networks.iter().enumerate().map(block).collect()
}

/// Pods by their namespaces, or by their own labels too: as subject and as peer.
fn pods(
    namespaces: &Option<api::LabelSelector>,
    pods: &Option<api::NamespacedPod>,
    has_networks: bool,
) -> Result<Peer, String> {
    let selector = |of: &api::LabelSelector, field: &str| {
        Selector::parse(of).map_err(|(_, error)| format!(".{field}.{error}"))
    };
    let (of_namespaces, of_pods) = match (namespaces, pods) {
        (Some(namespaces), None) => (selector(namespaces, "namespaces")?, Selector::default()),
        (None, Some(pods)) => (
            selector(&pods.namespace_selector, "pods.namespaceSelector")?,
            selector(&pods.pod_selector, "pods.podSelector")?,
        ),
        (Some(_), Some(_)) => return Err(": namespaces and pods are both set".to_owned()),
        (None, None) => {
            let known = if has_networks {
                "namespaces, pods and networks"
            } else {
                "namespaces and pods"
            };
            return Err(format!(
                ": none of {known} is set, and podwire knows no others"
            ));
        }
    };
    Ok(Peer::Pods {
        namespaces: Namespaces::Matching(of_namespaces),
        pods: of_pods,
    })
}

/// A list of ports; `None` for all ports of all protocols.
fn all<T>(
    field: &str,
    list: &Part<Vec<T>>,
    one: fn(&T) -> Result<Vec<Ports>, String>,
) -> Result<Option<BTreeSet<Ports>>, String> {
    let list = read(field, list)?;
    let mut found = BTreeSet::new();
    for (number, it) in list.iter().enumerate() {
        found.extend(one(it).map_err(|problem| format!("{field}[{number}]{problem}"))?);
    }
    Ok((!list.is_empty()).then_some(found))
}

/// Of v1alpha2.
fn protocol(of: &api::TieredProtocol) -> Result<Vec<Ports>, String> {
    let transports = [
        (Protocol::Tcp, "tcp", &of.tcp),
        (Protocol::Udp, "udp", &of.udp),
        (Protocol::Sctp, "sctp", &of.sctp),
    ];
    let transports = transports.iter().filter_map(|(protocol, field, of)| {
        let of = of.as_ref()?;
        Some((*protocol, field, of))
    });
    let transports: Vec<_> = transports.collect();
    match (&transports[..], &*of.destination_named_port) {
        ([], "") => {
            let known = "tcp, udp, sctp and destinationNamedPort";
            Err(format!(
                ": none of {known} is set, and podwire knows no others"
            ))
        }
        ([], name) => Ok(named(name)),
        ([(protocol, field, of)], "") => {
            let found = transport(*protocol, of);
            found.map_err(|problem| format!(".{field}.destinationPort{problem}"))
        }
        _ => Err(": more than one field is set".to_owned()),
    }
}

fn transport(protocol: Protocol, of: &api::TieredTransport) -> Result<Vec<Ports>, String> {
    let Some(port) = &of.destination_port else {
        return Err(": it is not set, and podwire knows no other field".to_owned());
    };
    match (port.number, &port.range) {
        (Some(one), None) => {
            let one = number(".number", one)?;
            Ok(vec![Ports::Range(protocol, one, one)])
        }
        (None, Some(of)) => range(protocol, ".range", of),
        (None, None) => Err(": neither number nor range is set".to_owned()),
        (Some(_), Some(_)) => Err(": number and range are both set".to_owned()),
    }
}

/// Of v1alpha1.
fn port(of: &api::TieredPort) -> Result<Vec<Ports>, String> {
    let protocol = |field: &str, name: &str| {
        let known = Protocol::named(name);
        known.ok_or_else(|| format!(".{field}.protocol: {name:?} is not known"))
    };
    match (&of.port_number, &of.named_port, &of.port_range) {
        (Some(one), None, None) => {
            let protocol = protocol("portNumber", &one.protocol)?;
            let one = number(".portNumber.port", one.port)?;
            Ok(vec![Ports::Range(protocol, one, one)])
        }
        (None, Some(name), None) => Ok(named(name)),
        (None, None, Some(of)) => range(protocol("portRange", &of.protocol)?, ".portRange", of),
        (None, None, None) => {
            let known = "portNumber, namedPort and portRange";
            Err(format!(
                ": none of {known} is set, and podwire knows no others"
            ))
        }
        _ => Err(": more than one field is set".to_owned()),
    }
}

fn range(protocol: Protocol, field: &str, of: &api::TieredRange) -> Result<Vec<Ports>, String> {
    let start = number(&format!("{field}.start"), of.start)?;
    let end = number(&format!("{field}.end"), of.end)?;
    match start <= end {
        true => Ok(vec![Ports::Range(protocol, start, end)]),
        false => Err(format!("{field}: end {end} is less than start {start}")),
    }
}

fn number(field: &str, number: i64) -> Result<u16, String> {
    let known = u16::try_from(number).ok().filter(|it| *it > 0);
    known.ok_or_else(|| format!("{field}: {number} is not between 1 and 65535"))
}

/// The name alone: of whatever protocol a container's port with it is.
fn named(name: &str) -> Vec<Ports> {
    let of = |protocol| {
        Ports::Named(NamedPort {
            protocol,
            name: name.into(),
        })
    };
    Protocol::ALL.map(of).into()
}
