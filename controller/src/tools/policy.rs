//! A policy as the leader understands it: the pods that it selects, the peers and ports of its
//! rules resolved, the rows made of it, and whether the database has them.

mod ends;
mod fields;
mod file;
mod flows;
mod report;
mod rows;
#[cfg(test)]
mod tests;
mod text;

use std::collections::{BTreeMap, BTreeSet};

use podwire_daemon::output::Format;
use serde::Serialize;

use super::{ToolError, View};
use crate::cluster::policy::{Direction, NamedPort, Peer, Policy, Ports, Rule, pieces};
use crate::cluster::tiered::Action;
use crate::cluster::{Cluster, ObjectName};
use crate::config::Config;
use crate::key::{Key, Of};
use crate::want::policy::{Candidate, candidate};
use rows::{RowState, Rows};

pub use report::dry_run as policy_dry_run;

/// What is known of a policy.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    /// NAMESPACE/NAME, or KIND/NAME of one of the whole cluster.
    policy: String,
    /// The database has its rows and their members as they should be.
    is_in_sync: bool,
    /// Its mistakes, and why it is not applied.
    problems: Vec<String>,
    /// Of one of the whole cluster: its place among others.
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<String>,
    /// The selector of its pods.
    selector: String,
    /// The directions in which it isolates them; one of the whole cluster does not isolate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    isolates: Vec<Direction>,
    /// The pods that it selects.
    selects: Pods,
    rules: Vec<RuleAnswer>,
    rows: Vec<RowState>,
    /// Rows that the database has for it and that it should not have.
    superfluous_rows: usize,
}

/// Some pods.
#[derive(Debug, Serialize)]
struct Pods {
    count: usize,
    /// NAMESPACE/NAME.
    names: Vec<String>,
}

/// A rule.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RuleAnswer {
    direction: Direction,
    /// Its number among those of its direction, from 0 on.
    number: usize,
    /// Of a policy of the whole cluster: what it does, and its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<Action>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// None for everybody.
    peers: Option<Vec<PeerAnswer>>,
    /// None for all ports of all protocols.
    ports: Option<Vec<PortAnswer>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PeerAnswer {
    /// As selectors, or as a network with its exceptions.
    peer: String,
    /// The pods that selectors select.
    #[serde(skip_serializing_if = "Option::is_none")]
    pods: Option<Pods>,
    /// The network without its exceptions, as networks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    networks: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PortAnswer {
    ports: String,
    /// For a name: the numbers that the receiving pods give it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    numbers: BTreeMap<u16, Pods>,
    /// For a name: the receiving pods that have no such port.
    #[serde(skip_serializing_if = "Option::is_none")]
    without: Option<Pods>,
}

impl FromIterator<ObjectName> for Pods {
    fn from_iter<I: IntoIterator<Item = ObjectName>>(names: I) -> Self {
        let names = names.into_iter();
        let names: Vec<String> = names.map(|(ns, name)| format!("{ns}/{name}")).collect();
        let count = names.len();
        Self { count, names }
    }
}

/// A policy, by its key, as text; false if it has a mistake, or if its rows are not as they should
/// be.
///
/// # Errors
/// See [`ToolError`].
pub async fn policy(
    config: &Config,
    key: &Key,
    format: Format,
) -> Result<(String, bool), ToolError> {
    let mut view = View::open(config).await?;
    // So that everybody's members are known.
    drop(view.pending());
    let adopt = config.rules()?.adopt;
    let answer = match key.of {
        Of::Policy => of_namespace(&view, key, adopt),
        _ => of_cluster(&view, key, adopt),
    };
    let answer = answer.ok_or_else(|| {
        let kind = key.of.kind().map_or("policy", |(_, kind)| kind);
        ToolError::Missing(format!("there is no {kind} {}", shown(key, "")))
    })?;
    let is_well = answer.is_in_sync && answer.problems.is_empty();
    let text = format.encode(&answer, || answer.to_string());
    Ok((text.map_err(ToolError::Format)?, is_well))
}

/// How a policy is called: by its namespace, or behind this.
fn shown(key: &Key, prefix: &str) -> String {
    match key.of {
        Of::Policy => format!("{}/{}", key.namespace, key.name),
        _ => format!("{prefix}{}", key.name),
    }
}

/// [`shown`], as the command takes it.
fn named(key: &Key) -> String {
    let kind = key.of.kind().map_or("", |(_, kind)| kind);
    shown(key, &format!("{kind}/"))
}

fn of_namespace(view: &View, key: &Key, adopt: bool) -> Option<Answer> {
    let id = key.id();
    let policy = view.state.policies.get(&id)?;
    let cluster = &view.state.cluster;
    let isolates = Direction::BOTH.into_iter();
    let is_own = |pod: &Candidate<'_>| is_selected(pod, &id, policy);
    let rules = Direction::BOTH.into_iter().flat_map(|direction| {
        let rules = policy.rules(direction).unwrap_or_default().iter();
        let rules = rules.enumerate();
        rules.map(move |(number, rule)| ((direction, number), rule))
    });
    let Rows { rows, superfluous } = rows::of(view, key, adopt);
    Some(Answer {
        policy: named(key),
        is_in_sync: superfluous == 0 && rows.iter().all(RowState::is_in_sync),
        problems: policy.problems.clone(),
        level: None,
        selector: policy.selector.to_string(),
        isolates: isolates.filter(|it| policy.rules(*it).is_some()).collect(),
        selects: pods(cluster, is_own),
        rules: rules
            .map(|(at, it)| rule(cluster, at, it, &is_own))
            .collect(),
        rows,
        superfluous_rows: superfluous,
    })
}

/// One of the whole cluster, applied or not.
fn of_cluster(view: &View, key: &Key, adopt: bool) -> Option<Answer> {
    let policy = view.state.cluster.tiered.get(key)?;
    let cluster = &view.state.cluster;
    let refusal = policy.refusal(view.state.policies.has_tiers());
    let unlogged = policy.logging.iter().flat_map(|it| it.problems.clone());
    let content = policy.content.as_ref().ok();
    let is_own = |pod: &Candidate<'_>| content.is_some_and(|it| pod.is_in(&it.subject));
    let rules = content.into_iter().flat_map(|content| {
        Direction::BOTH.into_iter().flat_map(|direction| {
            let rules = content.rules(direction).iter();
            rules.map(move |it| (direction, it))
        })
    });
    let rules = rules.map(|(direction, it)| RuleAnswer {
        action: Some(it.action),
        name: (!it.name.is_empty()).then(|| it.name.to_string()),
        ..rule(cluster, (direction, it.number), &it.matching, &is_own)
    });
    let Rows { rows, superfluous } = rows::of(view, key, adopt);
    Some(Answer {
        policy: named(key),
        is_in_sync: superfluous == 0 && rows.iter().all(RowState::is_in_sync),
        problems: refusal
            .map(|it| it.message)
            .into_iter()
            .chain(unlogged)
            .collect(),
        level: content.map(|it| it.level.to_string()),
        selector: content.map_or_else(String::new, |it| it.subject.to_string()),
        isolates: Vec::new(),
        selects: pods(cluster, is_own),
        rules: rules.collect(),
        rows,
        superfluous_rows: superfluous,
    })
}

fn is_selected(pod: &Candidate<'_>, id: &ObjectName, policy: &Policy) -> bool {
    *pod.namespace == id.0 && policy.selector.matches(&pod.selected.labels)
}

/// All pods with something in common.
fn pods(cluster: &Cluster, is_in: impl Fn(&Candidate<'_>) -> bool) -> Pods {
    let all = cluster.pods.iter();
    let own = all.filter(|(id, pod)| is_in(&candidate(id, pod, &cluster.namespaces)));
    own.map(|(id, _)| id.clone()).collect()
}

/// A rule of a policy for the pods that are its own.
fn rule(
    cluster: &Cluster,
    (direction, number): (Direction, usize),
    rule: &Rule,
    is_own: &dyn Fn(&Candidate<'_>) -> bool,
) -> RuleAnswer {
    let peers = rule.peers.as_ref();
    let receives = |pod: &Candidate<'_>| match direction {
        Direction::Ingress => is_own(pod),
        Direction::Egress => peers.is_none_or(|all| all.iter().any(|it| pod.is_in(it))),
    };
    let ports = rule.ports.as_ref();
    let of_port = |ports: &Ports| port(cluster, ports, &receives);
    RuleAnswer {
        direction,
        number,
        action: None,
        name: None,
        peers: peers.map(|all| all.iter().map(|it| peer(cluster, it)).collect()),
        ports: ports.map(|all| all.iter().map(of_port).collect()),
    }
}

fn peer(cluster: &Cluster, peer: &Peer) -> PeerAnswer {
    let (pods, networks) = match peer {
        Peer::Pods { .. } => (Some(pods(cluster, |pod| pod.is_in(peer))), Vec::new()),
        Peer::Block(net, except) => (None, pieces(*net, except)),
    };
    PeerAnswer {
        peer: peer.to_string(),
        pods,
        networks: networks.iter().map(ToString::to_string).collect(),
    }
}

fn port(
    cluster: &Cluster,
    ports: &Ports,
    receives: &impl Fn(&Candidate<'_>) -> bool,
) -> PortAnswer {
    let mut answer = PortAnswer {
        ports: ports.to_string(),
        numbers: BTreeMap::new(),
        without: None,
    };
    if let Ports::Named(named) = ports {
        let gives = |pod: &Candidate<'_>, number: u16| {
            receives(pod) && pod.selected.numbers(named).any(|it| it == number)
        };
        let numbers = numbers(cluster, named, receives).into_iter();
        let numbers = numbers.map(|number| (number, pods(cluster, |pod| gives(pod, number))));
        answer.numbers = numbers.collect();
        let lacks =
            |pod: &Candidate<'_>| receives(pod) && pod.selected.numbers(named).next().is_none();
        answer.without = Some(pods(cluster, lacks)).filter(|it| it.count > 0);
    }
    answer
}

fn numbers(
    cluster: &Cluster,
    named: &NamedPort,
    receives: &impl Fn(&Candidate<'_>) -> bool,
) -> BTreeSet<u16> {
    let all = cluster.pods.iter();
    let own = all.filter(|(id, pod)| receives(&candidate(id, pod, &cluster.namespaces)));
    own.flat_map(|(_, pod)| pod.selected.numbers(named))
        .collect()
}
