//! Where a setting's value comes from, and which of several values counts.
//!
//! Each place (the command line, a file, the environment) is a [`Layer`]: what it says, setting by
//! setting, as text. The first layer that names a setting decides, even when what it says is the
//! default.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// This flag.
    CommandLine(String),
    /// This file, under this key, on this line.
    File {
        /// Its path.
        path: PathBuf,
        /// The key as it stands there, with its section.
        key: String,
        /// The line, from 1, where the parser tells it.
        line: Option<usize>,
    },
    /// This environment variable.
    Variable(String),
    /// This file of the pod's service account, or the variables that come with it.
    ServiceAccount(String),
    /// This flag, which implies it.
    Implied(String),
}

/// One setting's value, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// The value; several for a list.
    pub values: Vec<String>,
    /// Where it comes from.
    pub origin: Origin,
}

/// Subnets of this name are those that the node role tells.
pub(super) const NODES: &str = "node";

/// What one place says, by key.
pub(super) type Layer = BTreeMap<String, Given>;

/// Settings that answer the same question: of each group only what the highest layer says counts,
/// and within one layer the first of the group.
const ALTERNATIVES: [&[&str]; 2] = [
    &["kubeconfig", "k8s-apiserver", "in-cluster"],
    &["k8s-token", "k8s-token-file"],
];

/// What all places together say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Merged {
    /// By key; what nobody named is not in it.
    pub(super) given: Layer,
    /// What was passed over for an alternative of the same layer: key, and the key that counts.
    pub(super) passed_over: Vec<(String, String)>,
}

impl Merged {
    /// Of layers, the highest first.
    pub(super) fn of(layers: impl IntoIterator<Item = Layer>) -> Self {
        let mut merged = Self::default();
        for mut layer in layers {
            for group in ALTERNATIVES {
                if group.iter().any(|key| merged.given.contains_key(*key)) {
                    layer.retain(|key, _| !group.contains(&key.as_str()));
                }
                let mut given = group.iter().filter(|key| layer.contains_key(**key));
                if let Some(first) = given.next() {
                    for other in given.copied().collect::<Vec<_>>() {
                        layer.remove(other);
                        let pair = (other.to_owned(), (*first).to_owned());
                        merged.passed_over.push(pair);
                    }
                }
            }
            for (key, given) in layer {
                merged.given.entry(key).or_insert(given);
            }
        }
        merged
    }

    /// Takes the subnets that the node role tells, where the setting leaves them to it.
    pub(super) fn leave_to_node(&mut self, told: &Layer) {
        let subnets = self.given.get_mut("subnets");
        if let Some(subnets) = subnets.filter(|given| given.values == [NODES])
            && let Some(told) = told.get("subnets")
        {
            subnets.clone_from(told);
        }
    }

    /// What was given for a setting.
    pub fn find(&self, key: &str) -> Option<&Given> {
        self.given.get(key)
    }
}

impl Given {
    pub(super) fn one(value: impl Into<String>, origin: Origin) -> Self {
        let values = vec![value.into()];
        Self { values, origin }
    }
}

/// As `--print-config` says it.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CommandLine(flag) => f.write_str(flag),
            Self::File { path, key, line } => {
                write!(f, "{}", path.display())?;
                if let Some(line) = line {
                    write!(f, ", line {line}")?;
                }
                write!(f, ": {key}")
            }
            Self::Variable(name) => write!(f, "${name}"),
            Self::ServiceAccount(place) => write!(f, "the service account: {place}"),
            Self::Implied(flag) => write!(f, "follows from {flag}"),
        }
    }
}
