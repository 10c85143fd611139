//! Policies of the whole cluster: ClusterNetworkPolicy, and its predecessors AdminNetworkPolicy and
//! BaselineAdminNetworkPolicy (policy.networking.k8s.io). They come before and after
//! NetworkPolicies, for which OVN needs tiers of ACLs: without those, each is refused, and says so.

mod read;

use std::fmt;

use podwire_apiserver::object::Metadata;
use podwire_cluster::Name;
use podwire_cluster::api::{self, Part};
use serde_json::{Value, json};

use super::logging::{Logging, Logs};
use super::policy::{Direction, NamedPort, Peer, Rule};
use super::version;

/// The condition of such an object that is the controller's.
pub const CONDITION: &str = "podwire.io/Accepted";

/// The first version of OVN with tiers (NB schema, ACL.tier).
const SINCE: &str = "23.06";

/// The runs of rules for which each priority of the API has room among OVN's.
pub const RUNS: u16 = 25;

/// Such a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiered {
    /// Distinguishes several policies with this name over time.
    pub uid: Name,
    /// See [`version`].
    pub version: u64,
    /// What it says; or why nothing of it can be applied.
    pub content: Result<Content, String>,
    /// Which of its packets are logged.
    pub logging: Option<Logging>,
    /// Its conditions, those of others too.
    conditions: Vec<Value>,
}

/// What such a policy says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// That of its policy.
    pub uid: Name,
    /// Before and after which others it is evaluated.
    pub level: Level,
    /// The pods that it is for.
    pub subject: Peer,
    /// What is done with what is sent to them.
    pub ingress: Vec<TieredRule>,
    /// What is done with what they send.
    pub egress: Vec<TieredRule>,
    /// Its mistakes.
    pub problems: Vec<String>,
}

/// The place of a policy among others, in the order of evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Before NetworkPolicies, with a priority.
    Admin(u16),
    /// For what no NetworkPolicy decides, with a priority.
    Baseline(u16),
    /// After these: BaselineAdminNetworkPolicy.
    Last,
}

/// What is done with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[expect(missing_docs, reason = "the API's names")]
pub enum Action {
    Accept,
    Deny,
    Pass,
}

/// A rule. The first one that matches decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TieredRule {
    /// Its place in the object.
    pub number: usize,
    /// As it is named there; may be empty.
    pub name: Name,
    /// What it does.
    pub action: Action,
    /// What it matches.
    pub matching: Rule,
}

/// Why such a policy is not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For programs.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

impl Level {
    /// Its tier, as the API calls it.
    pub fn tier_name(self) -> &'static str {
        match self {
            Self::Admin(_) => "Admin",
            Self::Baseline(_) | Self::Last => "Baseline",
        }
    }

    /// The priority of the ACLs of a run of its rules. Above all of them there is one more.
    pub fn priority(self, run: u16) -> u16 {
        let first = match self {
            Self::Admin(priority) | Self::Baseline(priority) => RUNS.saturating_mul(priority),
            Self::Last => RUNS.saturating_mul(read::LOWEST + 1),
        };
        HIGHEST.saturating_sub(first).saturating_sub(run)
    }
}

/// For people.
impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tier = self.tier_name();
        match self {
            Self::Admin(priority) | Self::Baseline(priority) => {
                write!(f, "tier {tier}, priority {priority}")
            }
            Self::Last => write!(f, "tier {tier}, after all others"),
        }
    }
}

/// The highest priority of an ACL of these policies.
const HIGHEST: u16 = 32_766;

impl Refusal {
    /// That of all such policies where the northbound database has no tiers.
    pub fn too_old() -> Self {
        Self {
            reason: "OVNTooOld",
            message: format!(
                "it is not applied, not in part either: it needs OVN {SINCE} or newer, and the \
                 northbound database's schema is older (ACL has no column tier)"
            ),
        }
    }
}

impl Content {
    /// Its rules for a direction.
    pub fn rules(&self, direction: Direction) -> &[TieredRule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }

    /// Its rules for a direction by runs: neighbours of one action, whose order means nothing.
    pub fn runs(&self, direction: Direction) -> impl Iterator<Item = (u16, &[TieredRule])> {
        let runs = self.rules(direction).chunk_by(|a, b| a.action == b.action);
        (0..).zip(runs)
    }

    /// The ports that its rules name.
    pub fn named_ports(&self) -> impl Iterator<Item = &NamedPort> {
        let rules = self.ingress.iter().chain(&self.egress);
        rules.flat_map(|rule| rule.matching.named_ports())
    }
}

impl Tiered {
    /// The relevant part of a ClusterNetworkPolicy.
    pub fn of_cluster(policy: &api::ClusterNetworkPolicy) -> Self {
        let content = read::cluster(&policy.spec);
        Self::new(&policy.metadata, content, &policy.status)
    }

    /// The relevant part of an AdminNetworkPolicy.
    pub fn of_admin(policy: &api::AdminNetworkPolicy) -> Self {
        let content = read::admin(&policy.spec);
        Self::new(&policy.metadata, content, &policy.status)
    }

    /// The relevant part of a BaselineAdminNetworkPolicy.
    pub fn of_baseline(policy: &api::BaselineAdminNetworkPolicy) -> Self {
        let content = read::baseline(&policy.metadata.name, &policy.spec);
        Self::new(&policy.metadata, content, &policy.status)
    }

    fn new(
        metadata: &Metadata,
        content: Result<Content, String>,
        status: &Part<api::ConditionsStatus>,
    ) -> Self {
        Self {
            uid: metadata.uid.as_str().into(),
            version: version(&metadata.resource_version),
            content: content.map(|content| Content {
                uid: metadata.uid.as_str().into(),
                ..content
            }),
            logging: Logging::of(Logs::Tiered, metadata),
            conditions: status.conditions(),
        }
    }

    /// All of it that somebody wrote: not its conditions.
    pub fn said(&self) -> (&Result<Content, String>, &Option<Logging>) {
        (&self.content, &self.logging)
    }

    /// Why nothing of it is applied, or what it is applied without.
    pub fn refusal(&self, has_tiers: bool) -> Option<Refusal> {
        let mistake = |message| Refusal {
            reason: "PolicyMistake",
            message,
        };
        match &self.content {
            _ if !has_tiers => Some(Refusal::too_old()),
            Err(problem) => Some(mistake(format!("{problem}; nothing of it is applied"))),
            Ok(content) if content.problems.is_empty() => None,
            Ok(content) => Some(mistake(content.problems.join("; "))),
        }
    }

    /// The conditions that it should have, if it has others.
    pub fn conditions(&self, has_tiers: bool) -> Option<Vec<Value>> {
        let refusal = self.refusal(has_tiers);
        let is_applied = has_tiers && self.content.is_ok();
        let status = if is_applied { "True" } else { "False" };
        let (reason, message) = match &refusal {
            None => ("Applied", "its rows are in the northbound database"),
            Some(refusal) => (refusal.reason, &*refusal.message),
        };
        let wanted = [("status", status), ("reason", reason), ("message", message)];
        let is_own = |it: &&Value| it["type"] == CONDITION;
        let own = self.conditions.iter().find(is_own);
        if own.is_some_and(|own| wanted.iter().all(|(name, value)| own[name] == *value)) {
            return None;
        }
        let others = self.conditions.iter().filter(|it| !is_own(it)).cloned();
        let own = json!({
            "type": CONDITION,
            "status": status,
            "reason": reason,
            "message": message,
        });
        Some(others.chain([own]).collect())
    }
}
