//! Policies of the whole cluster: ClusterNetworkPolicy, and its predecessors AdminNetworkPolicy and
//! BaselineAdminNetworkPolicy (policy.networking.k8s.io). They come before and after
//! NetworkPolicies, for which OVN needs tiers of ACLs. None is applied yet: each is refused, and
//! says so.

use podwire_apiserver::object::Metadata;
use podwire_cluster::Name;
use podwire_cluster::api::{ConditionsStatus, Part};
use serde_json::{Value, json};

use super::version;

/// The condition of such an object that is the controller's.
pub const CONDITION: &str = "podwire.io/Accepted";

/// The first version of OVN with tiers (NB schema, ACL.tier).
const SINCE: &str = "23.06";

/// Such a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tiered {
    /// Distinguishes several policies with this name over time.
    pub uid: Name,
    /// See [`version`].
    pub version: u64,
    /// Its conditions, those of others too.
    conditions: Vec<Value>,
}

/// Why such a policy is not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For programs.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

impl Refusal {
    /// That of all such policies, with a northbound database that has tiers or has none.
    pub fn of(has_tiers: bool) -> Self {
        match has_tiers {
            false => Self {
                reason: "OVNTooOld",
                message: format!(
                    "it is not applied, not in part either: it needs OVN {SINCE} or newer, and the \
                     northbound database's schema is older (ACL has no column tier)"
                ),
            },
            true => Self {
                reason: "NotImplemented",
                message: "it is not applied: podwire-controller does not implement this kind yet"
                    .to_owned(),
            },
        }
    }
}

impl Tiered {
    /// The relevant part of a policy.
    pub fn of(metadata: &Metadata, status: &Part<ConditionsStatus>) -> Self {
        let conditions = match status {
            Part::Read(status) => status.conditions.clone(),
            Part::Unreadable(_) => Vec::new(),
        };
        Self {
            uid: metadata.uid.as_str().into(),
            version: version(&metadata.resource_version),
            conditions,
        }
    }

    /// The conditions that it should have, if it has others.
    pub fn refused(&self, refusal: &Refusal) -> Option<Vec<Value>> {
        let wanted = [
            ("status", "False"),
            ("reason", refusal.reason),
            ("message", &refusal.message),
        ];
        let is_own = |it: &&Value| it["type"] == CONDITION;
        let own = self.conditions.iter().find(is_own);
        if own.is_some_and(|own| wanted.iter().all(|(name, value)| own[name] == *value)) {
            return None;
        }
        let others = self.conditions.iter().filter(|it| !is_own(it)).cloned();
        let own = json!({
            "type": CONDITION,
            "status": "False",
            "reason": refusal.reason,
            "message": refusal.message,
        });
        Some(others.chain([own]).collect())
    }
}
