//! The source of each setting's value, and which of several values counts.
//!
//! Each source (the command line, a file, the environment) is a [`Layer`]: its settings, as text.
//! The first layer that has a setting counts, even if the value is the default.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// This flag.
    CommandLine(String),
    /// This file, under this key, on this line.
    File {
        /// Its path.
        path: PathBuf,
        /// The key as written, with its section.
        key: String,
        /// The line, from 1, if the parser reports it.
        line: Option<usize>,
    },
    /// This environment variable.
    Variable(String),
    /// This file of the pod's service account, or the variables that go with it.
    ServiceAccount(String),
    /// This flag, which implies the value.
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

/// The value of `subnet` that stands for those provided by the node role.
pub(super) const NODES: &str = "node";

/// The settings of one source, by key.
pub(super) type Layer = BTreeMap<String, Given>;

/// A file's settings and warnings.
pub(super) type Parsed = Result<(Layer, Vec<String>), Wrong>;

/// An error in a file's content.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) line: Option<usize>,
    pub(super) problem: String,
}

/// Settings that exclude one another: of each group, only those of the highest layer count, and
/// within one layer the first of the group.
const ALTERNATIVES: [&[&str]; 2] = [
    &["kubeconfig", "k8s-apiserver", "in-cluster"],
    &["k8s-token", "k8s-token-file"],
];

/// The settings of all sources together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Merged {
    /// By key; without the settings that no source has.
    pub(super) given: Layer,
    /// Settings ignored because of an alternative in the same layer: their key, and the key that
    /// counts.
    pub(super) passed_over: Vec<(String, String)>,
}

impl Merged {
    /// From layers in order of precedence.
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

    /// Uses the subnets provided by the node role, if the setting says so.
    pub(super) fn leave_to_node(&mut self, told: &Layer) {
        let subnets = self.given.get_mut("subnets");
        if let Some(subnets) = subnets.filter(|given| given.values == [NODES])
            && let Some(told) = told.get("subnets")
        {
            subnets.clone_from(told);
        }
    }

    /// The value of a setting.
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

/// In the form of `--print-config`.
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
