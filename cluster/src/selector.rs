//! Label selectors: `matchLabels` and `matchExpressions` as one list of requirements.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use itertools::Itertools as _;

use crate::api::LabelSelector;

/// The labels of an object.
pub type Labels = BTreeMap<String, String>;

/// Selects objects that meet all requirements; without any it selects all. Equal selectors are
/// equal whatever their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector(BTreeSet<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Requirement {
    In(String, BTreeSet<String>),
    NotIn(String, BTreeSet<String>),
    Exists(String),
    DoesNotExist(String),
}

/// A requirement that the API does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("matchExpressions of the key {key:?}: {problem}")]
pub struct SelectorError {
    key: String,
    problem: String,
}

impl Selector {
    /// Reads a selector.
    ///
    /// # Errors
    /// [`SelectorError`] for the first requirement that can't be read, with a selector of all
    /// others: it selects at least what was meant.
    pub fn parse(selector: &LabelSelector) -> Result<Self, (Self, SelectorError)> {
        let equal = selector
            .match_labels
            .iter()
            .map(|(key, value)| Requirement::In(key.clone(), [value.clone()].into()));
        let mut all = Self(equal.collect());
        let mut wrong = None;
        for expression in &selector.match_expressions {
            let key = expression.key.clone();
            let values: BTreeSet<String> = expression.values.iter().cloned().collect();
            let requirement = match (&*expression.operator, values.is_empty()) {
                ("In", false) => Requirement::In(key, values),
                ("NotIn", false) => Requirement::NotIn(key, values),
                ("Exists", true) => Requirement::Exists(key),
                ("DoesNotExist", true) => Requirement::DoesNotExist(key),
                (operator, is_empty) => {
                    let problem = match operator {
                        "In" | "NotIn" => format!("{operator} needs values"),
                        "Exists" | "DoesNotExist" if !is_empty => {
                            format!("{operator} has no values")
                        }
                        _ => format!("there is no operator {operator:?}"),
                    };
                    wrong.get_or_insert(SelectorError { key, problem });
                    continue;
                }
            };
            all.0.insert(requirement);
        }
        match wrong {
            None => Ok(all),
            Some(error) => Err((all, error)),
        }
    }

    /// A label that every selected object has, with its possible values: the one with the fewest.
    pub fn required(&self) -> Option<(&str, &BTreeSet<String>)> {
        let required = self.0.iter().filter_map(|requirement| match requirement {
            Requirement::In(key, values) => Some((key.as_str(), values)),
            _ => None,
        });
        required.min_by_key(|(_, values)| values.len())
    }

    /// The keys of the labels that it looks at.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|requirement| match requirement {
            Requirement::In(key, _)
            | Requirement::NotIn(key, _)
            | Requirement::Exists(key)
            | Requirement::DoesNotExist(key) => key.as_str(),
        })
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => labels.get(key).is_some_and(|it| values.contains(it)),
            Requirement::NotIn(key, values) => {
                labels.get(key).is_none_or(|it| !values.contains(it))
            }
            Requirement::Exists(key) => labels.contains_key(key),
            Requirement::DoesNotExist(key) => !labels.contains_key(key),
        })
    }
}

/// In the form of `kubectl --selector`; `*` selects all.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("*");
        }
        let list = |values: &BTreeSet<String>| values.iter().join(",");
        for (number, requirement) in self.0.iter().enumerate() {
            if number > 0 {
                f.write_str(",")?;
            }
            match requirement {
                Requirement::In(key, values) if values.len() == 1 => {
                    write!(f, "{key}={}", list(values))?;
                }
                Requirement::In(key, values) => write!(f, "{key} in ({})", list(values))?,
                Requirement::NotIn(key, values) => write!(f, "{key} notin ({})", list(values))?,
                Requirement::Exists(key) => f.write_str(key)?,
                Requirement::DoesNotExist(key) => write!(f, "!{key}")?,
            }
        }
        Ok(())
    }
}
