//! What policies would change before they are applied, for people and programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use podwire_daemon::output::Format;
use serde::Serialize;

use super::ends::{Group, RuleTerms, groups};
use super::file::{self, Read};
use super::flows::{Decision, Effect, Found, Range, compare};
use super::{is_selected, named};
use crate::cluster::Cluster;
use crate::cluster::policy::Direction;
use crate::cluster::tiered::Refusal;
use crate::config::Config;
use crate::key::{Key, Of};
use crate::tools::{ToolError, View};
use crate::want::policy::{Policies, candidate};

/// The most changes, and the most groups of an end, in the text.
const MOST: usize = 50;
const MOST_GROUPS: usize = 6;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    policies: Vec<Applied>,
    changes: Vec<PolicyChange>,
    /// Pairs of groups that were not compared, because there are too many.
    left_out: usize,
    /// Pairs of groups whose policies differ.
    pairs: usize,
    /// The rules have more networks than ends outside were looked at.
    networks_left_out: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Applied {
    policy: String,
    /// It has the name of one that is there.
    replaces: bool,
    /// The number of pods that it selects.
    selects: usize,
}

/// What happens to some connections.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PolicyChange {
    effect: Effect,
    from: Vec<End>,
    to: Vec<End>,
    /// `TCP 80-90`, …; `other` are protocols without ports.
    ports: Vec<String>,
    /// `IPv4` or `IPv6`, if the other one has no such connections, or others.
    #[serde(skip_serializing_if = "Option::is_none")]
    family: Option<&'static str>,
    /// The end whose policies decide.
    direction: Direction,
    /// The rule, or the policies.
    decided: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct End {
    /// A namespace, `nodes` or `outside`.
    place: String,
    /// Labels, or a network.
    detail: String,
    /// The number of pods, or of nodes' addresses.
    count: usize,
    #[serde(skip)]
    is_pods: bool,
}

/// Compares the connections of living pods before and after the policies of some files, as text;
/// true if some would be cut. Nothing is written.
///
/// # Errors
/// See [`ToolError`].
pub async fn dry_run(
    config: &Config,
    files: &[PathBuf],
    format: Format,
) -> Result<(String, bool), ToolError> {
    let new = file::read(files)?;
    let view = View::open(config).await?;
    let mut keys = new.iter().map(|(key, _)| key);
    if let Some(key) = keys.find(|key| key.of != Of::Policy && !view.state.policies.has_tiers()) {
        let message = format!("{}: {}", named(key), Refusal::too_old().message);
        return Err(ToolError::Refused(message));
    }
    let report = Report::of(&view.state.cluster, &view.state.policies, new);
    let cuts = report.changes.iter().any(|it| it.effect == Effect::Cut);
    let text = format.encode(&report, || report.to_string());
    Ok((text.map_err(ToolError::Format)?, cuts))
}

impl Report {
    pub(super) fn of(cluster: &Cluster, known: &Policies, new: Vec<(Key, Read)>) -> Self {
        let Cluster {
            pods, namespaces, ..
        } = cluster;
        let mut before = known.clone();
        before.refresh(pods, namespaces);
        let mut after = before.clone();
        for (key, policy) in &new {
            match policy {
                Read::Policy(policy) => after.set(key.id(), Some(policy.clone())),
                Read::Tiered(content) => after.set_tiered(key.clone(), Some(content.clone())),
            }
        }
        after.refresh(pods, namespaces);
        let of_pods: BTreeSet<_> = pods.keys().map(|(namespace, _)| namespace).collect();
        let own = new.iter().filter(|(key, _)| key.of == Of::Policy);
        let own: BTreeSet<_> = own.map(|(key, _)| &key.namespace).collect();
        let everywhere: BTreeSet<_> = of_pods.union(&own).copied().collect();
        // One of the whole cluster passes on to NetworkPolicies of all namespaces.
        let changed = match new.iter().all(|(key, _)| key.of == Of::Policy) {
            true => own,
            false => everywhere.clone(),
        };
        let terms = [everywhere, changed].map(|namespaces| {
            let mut terms = RuleTerms::default();
            for policies in [&before, &after] {
                let own = namespaces.iter().flat_map(|it| policies.of(it));
                own.for_each(|(_, policy)| terms.policy(policy));
                policies.tiered().for_each(|(_, it)| terms.tiered(it));
            }
            terms
        });
        let (groups, networks_left_out) = groups(cluster, &terms[0], &terms[1]);
        let Found {
            decisions,
            left_out,
            pairs,
        } = compare(&groups, &before, &after);
        let applied = new.iter().map(|(key, policy)| {
            let own = pods.iter().map(|(id, pod)| candidate(id, pod, namespaces));
            let own = own.filter(|pod| match policy {
                Read::Policy(policy) => is_selected(pod, &key.id(), policy),
                Read::Tiered(content) => pod.is_in(&content.subject),
            });
            Applied {
                policy: named(key),
                replaces: match policy {
                    Read::Policy(_) => before.get(&key.id()).is_some(),
                    Read::Tiered(_) => cluster.tiered.contains_key(key),
                },
                selects: own.count(),
            }
        });
        Self {
            policies: applied.collect(),
            changes: changes(&groups, decisions),
            left_out,
            pairs,
            networks_left_out,
        }
    }
}

/// Connections with the same fate, other ends and decision as one.
fn changes(
    groups: &[Group<'_>],
    decisions: BTreeMap<Decision, BTreeSet<usize>>,
) -> Vec<PolicyChange> {
    let mut merged: BTreeMap<_, BTreeSet<usize>> = BTreeMap::new();
    for (decision, others) in decisions {
        let at = decision.at;
        // By whom, rule and namespace: policies of two namespaces may have the same name.
        let place = &groups[at].place;
        let alike = (Decision { at: 0, ..decision }, place, others);
        merged.entry(alike).or_default().insert(at);
    }
    let change = |((decision, place, others), at): ((Decision, &String, BTreeSet<usize>), _)| {
        let (own, others) = (ends(groups, &at), ends(groups, &others));
        let (from, to) = match decision.direction {
            Direction::Ingress => (others, own),
            Direction::Egress => (own, others),
        };
        PolicyChange {
            effect: decision.effect,
            from,
            to,
            ports: shown(&decision.ports),
            family: decision.is_ipv4.map(|it| if it { "IPv4" } else { "IPv6" }),
            direction: decision.direction,
            decided: format!("namespace {place}: {}", decision.verdict),
        }
    };
    merged.into_iter().map(change).collect()
}

fn ends(groups: &[Group<'_>], numbers: &BTreeSet<usize>) -> Vec<End> {
    let mut all: BTreeMap<(String, String, bool), usize> = BTreeMap::new();
    for group in numbers.iter().map(|number| &groups[*number]) {
        let key = (
            group.place.clone(),
            group.detail.clone(),
            group.pod.is_some(),
        );
        *all.entry(key).or_default() += group.count;
    }
    let all = all
        .into_iter()
        .map(|((place, detail, is_pods), count)| End {
            place,
            detail,
            count,
            is_pods,
        });
    all.collect()
}

fn shown(ranges: &[Range]) -> Vec<String> {
    let text = |(protocol, first, last): &Range| match protocol.map(|it| it.api_name()) {
        None => "other".to_owned(),
        Some(name) if (*first, *last) == (1, u16::MAX) => name.to_owned(),
        Some(name) if first == last => format!("{name} {first}"),
        Some(name) => format!("{name} {first}-{last}"),
    };
    ranges.iter().map(text).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, content: &str| writeln!(f, "{name:<10} {content}");
        for Applied {
            policy,
            replaces,
            selects,
        } in &self.policies
        {
            let what = if *replaces { "changed" } else { "new" };
            let pods = if *selects == 1 { "pod" } else { "pods" };
            line(
                "policy",
                &format!("{policy}: {what}, selects {selects} living {pods}"),
            )?;
        }
        for change in self.changes.iter().take(MOST) {
            let name = match change.effect {
                Effect::Cut => "cut",
                Effect::Opened => "opened",
            };
            let family = change.family.map_or(String::new(), |it| format!("{it}, "));
            let ports = match &change.ports[..] {
                [other, tcp, udp, sctp]
                    if [other, tcp, udp, sctp] == ["other", "TCP", "UDP", "SCTP"] =>
                {
                    "all protocols and ports".to_owned()
                }
                ports => ports.join(", "),
            };
            line(name, &format!("{family}{ports}"))?;
            for (word, ends) in [("from", &change.from), ("to", &change.to)] {
                line("", &format!("{word:<5}{}", listed(ends)))?;
            }
            let direction = change.direction.to_string().to_lowercase();
            line("", &format!("by   {direction} of {}", change.decided))?;
        }
        if let Some(more @ 1..) = self.changes.len().checked_sub(MOST) {
            line(
                "",
                &format!("and {more} more changes: --output json has all"),
            )?;
        }
        if self.left_out > 0 {
            let (left, all) = (self.left_out, self.pairs);
            let content = format!("{left} of {all} pairs of groups of pods were not compared");
            line("left out", &content)?;
        }
        if self.networks_left_out {
            line(
                "left out",
                "some networks of the rules, for what is outside",
            )?;
        }
        let cuts = self
            .changes
            .iter()
            .filter(|it| it.effect == Effect::Cut)
            .count();
        match (cuts, self.changes.len() - cuts) {
            (0, 0) => line("result", "no connection of a living pod changes"),
            (cuts, opens) => line("result", &format!("{cuts} cut, {opens} opened")),
        }
    }
}

fn listed(ends: &[End]) -> String {
    let few: Vec<String> = ends
        .iter()
        .take(MOST_GROUPS)
        .map(ToString::to_string)
        .collect();
    let few = few.join("; ");
    match ends.get(MOST_GROUPS..) {
        None | Some([]) => few,
        Some(more) => {
            let pods: usize = more.iter().filter(|it| it.is_pods).map(|it| it.count).sum();
            format!("{few}; and {} more groups with {pods} pods", more.len())
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            place,
            detail,
            count,
            is_pods,
        } = self;
        match (is_pods, count) {
            (false, _) if place == "nodes" => write!(f, "nodes ({count} {detail})"),
            (false, _) => write!(f, "{place} ({detail})"),
            (true, 1) => write!(f, "1 pod of {place}"),
            (true, count) => write!(f, "{count} pods of {place}"),
        }?;
        match *is_pods && !detail.is_empty() {
            true => write!(f, " ({detail})"),
            false => Ok(()),
        }
    }
}
