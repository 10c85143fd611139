//! The filter of a request about ports or operations, from its query.

use std::fmt;

use clap::ValueEnum as _;

use crate::observe::Operation;
use crate::ports::PortState;

/// Which pods and ports to return; an absent field admits all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// A pod, as `namespace/name`, or as a name in any namespace.
    pub pod: Option<String>,
    /// A namespace.
    pub namespace: Option<String>,
    /// The port's state.
    pub state: Option<PortState>,
    /// At most this many, the newest.
    pub last: Option<usize>,
    /// Only these verbs; all if empty.
    pub verbs: Vec<String>,
    /// Hold the answer back until it is positive, at most for this many seconds.
    pub wait: Option<u64>,
    /// Send every change as it happens, not only the present state.
    pub watch: bool,
}

/// An invalid query.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("query {name}={value}: {expected}")]
pub struct UnknownFilter {
    /// The parameter.
    pub name: String,
    /// Its value.
    pub value: String,
    /// What is valid.
    pub expected: &'static str,
}

impl Filter {
    /// Parses a query, such as `namespace=web&state=failed`. Names of pods (RFC 1123 labels) need
    /// no percent-encoding, and none is decoded.
    ///
    /// # Errors
    /// A parameter is unknown, or its value is invalid.
    pub fn parse(query: Option<&str>) -> Result<Self, UnknownFilter> {
        let mut filter = Self::default();
        let pairs = query.unwrap_or_default().split('&');
        for pair in pairs.filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let bad = |expected| UnknownFilter {
                name: name.to_owned(),
                value: value.to_owned(),
                expected,
            };
            match name {
                "pod" => filter.pod = Some(value.to_owned()),
                "namespace" => filter.namespace = Some(value.to_owned()),
                "state" => {
                    let state = PortState::from_str(value, true);
                    filter.state =
                        Some(state.map_err(|_| {
                            bad("expected awaits-ofport, awaits-ovn, up or failed")
                        })?);
                }
                "last" => {
                    let last = value.parse();
                    filter.last = Some(last.map_err(|_| bad("expected a number"))?);
                }
                "wait" => {
                    let wait = value.parse();
                    filter.wait = Some(wait.map_err(|_| bad("expected seconds"))?);
                }
                "verbs" => filter.verbs = value.split(',').map(str::to_owned).collect(),
                "watch" => filter.watch = value != "0",
                _ => {
                    return Err(bad(
                        "expected one of pod, namespace, state, last, verbs, wait and watch",
                    ));
                }
            }
        }
        Ok(filter)
    }

    /// Whether the filter admits an operation.
    pub fn admits(&self, operation: &Operation) -> bool {
        let is_of_verb = |verb: &String| verb == operation.verb;
        (self.verbs.is_empty() || self.verbs.iter().any(is_of_verb))
            && self.admits_pod(operation.pod.as_deref())
    }

    /// Whether the filter admits a pod of this `namespace/name`.
    pub fn admits_pod(&self, pod: Option<&str>) -> bool {
        let (namespace, name) = pod.and_then(|pod| pod.split_once('/')).unwrap_or_default();
        let is_named = |wanted: &str| pod == Some(wanted) || name == wanted;
        self.namespace.as_deref().is_none_or(|it| it == namespace)
            && self.pod.as_deref().is_none_or(is_named)
    }
}

/// The query with its question mark; empty for a filter that admits all.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = [
            ("pod", self.pod.clone()),
            ("namespace", self.namespace.clone()),
            ("state", self.state.map(|state| state.word().to_owned())),
            ("last", self.last.map(|last| last.to_string())),
            ("wait", self.wait.map(|wait| wait.to_string())),
            (
                "verbs",
                Some(self.verbs.join(",")).filter(|it| !it.is_empty()),
            ),
            ("watch", self.watch.then(|| "1".to_owned())),
        ];
        let mut mark = '?';
        for (name, value) in pairs {
            if let Some(value) = value {
                write!(f, "{mark}{name}={value}")?;
                mark = '&';
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for query in [
            "",
            "?pod=web/a&namespace=web&state=failed&last=3&wait=5&verbs=ADD,DEL&watch=1",
            "?state=up",
        ] {
            let read = Filter::parse(query.strip_prefix('?')).unwrap();
            assert_eq!(read.to_string(), query);
        }
    }

    #[test]
    fn a_parameter_that_is_none_is_refused_with_its_value() {
        for (query, words) in [
            ("state=sleepy", "state=sleepy: expected awaits-ofport"),
            ("last=some", "last=some"),
            ("colour=red", "colour=red: expected one of"),
        ] {
            let text = Filter::parse(Some(query)).unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn a_pod_is_found_by_its_name_with_and_without_its_namespace() {
        let admits = |query, pod| Filter::parse(Some(query)).unwrap().admits_pod(pod);
        assert!(admits("pod=web/a", Some("web/a")) && admits("pod=a", Some("web/a")));
        assert!(!admits("pod=b/a", Some("web/a")) && !admits("pod=web", Some("web/a")));
        assert!(admits("namespace=web", Some("web/a")) && !admits("namespace=web", Some("b/web")));
        assert!(admits("", None) && !admits("pod=a", None));
        assert!(
            admits("pod=a", Some("a")),
            "a pod of podman's has no namespace"
        );
    }
}
