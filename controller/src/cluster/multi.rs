//! MultiNetworkPolicies: what a NetworkPolicy says, for networks beside the default one.

use std::collections::BTreeSet;

use podwire_cluster::annotations::POLICY_FOR;
use podwire_cluster::{ObjectName, api};

use super::policy::Policy;

/// The most networks that one is for: on each it has rows.
const MOST: usize = 64;

/// A MultiNetworkPolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MultiPolicy {
    /// What it says.
    pub policy: Policy,
    /// The NetworkAttachmentDefinitions for whose networks it says that.
    pub definitions: BTreeSet<ObjectName>,
}

impl MultiPolicy {
    /// The relevant part of one.
    pub fn of(object: &api::MultiNetworkPolicy) -> Self {
        let metadata = &object.metadata;
        let mut policy = Policy::read(metadata, &object.spec);
        let text = metadata.annotations.get(POLICY_FOR).map(String::as_str);
        let names = text.unwrap_or_default().split(',').map(str::trim);
        let names: BTreeSet<&str> = names.filter(|it| !it.is_empty()).collect();
        let mut definitions = BTreeSet::new();
        let mut wrong = |problem: String| {
            let text = format!("the annotation {POLICY_FOR}: {problem}; there it has no effect");
            policy.problems.push(text);
        };
        if names.is_empty() {
            wrong("it names no NetworkAttachmentDefinition".to_owned());
        }
        if names.len() > MOST {
            wrong(format!("{} names, {MOST} at most", names.len()));
        }
        for name in names.into_iter().take(MOST) {
            match &name.split('/').collect::<Vec<_>>()[..] {
                [name] => {
                    definitions.insert((metadata.namespace.as_str().into(), (*name).into()));
                }
                [namespace, name] if !namespace.is_empty() && !name.is_empty() => {
                    definitions.insert(((*namespace).into(), (*name).into()));
                }
                _ => wrong(format!("{name:?} is neither NAME nor NAMESPACE/NAME")),
            }
        }
        Self {
            policy,
            definitions,
        }
    }
}
