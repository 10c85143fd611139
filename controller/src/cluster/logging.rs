//! What is logged of the packets that policies decide about: the annotation
//! `k8s.ovn.org/acl-logging`, a JSON object with a severity for each of `deny` and `allow`. A
//! namespace has it for its NetworkPolicies; a policy of the whole cluster for itself, and there
//! `pass` is one more.

use podwire_apiserver::object::Metadata;
use podwire_cluster::Name;
use podwire_cluster::annotations::ACL_LOGGING;
use serde_json::{Map, Value};

/// OVN's severities (ovn-nb(5), ACL).
const SEVERITIES: [&str; 5] = ["alert", "warning", "notice", "info", "debug"];

/// Whose annotation it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logs {
    /// A namespace's.
    Namespace,
    /// That of a policy of the whole cluster.
    Tiered,
}

/// The severities with which packets are logged; without one, they are not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logging {
    /// Distinguishes several objects with this name over time.
    pub uid: Name,
    /// Of what no policy allows, or a rule denies.
    pub deny: Option<&'static str>,
    /// Of what a rule allows.
    pub allow: Option<&'static str>,
    /// Of what a rule passes on.
    pub pass: Option<&'static str>,
    /// Mistakes in the annotation.
    pub problems: Vec<String>,
}

impl Logging {
    /// That of an object; `None` without the annotation, or with an empty one.
    pub fn of(whose: Logs, metadata: &Metadata) -> Option<Self> {
        let text = metadata.annotations.get(ACL_LOGGING)?.trim();
        if text.is_empty() {
            return None;
        }
        let mut logging = Self {
            uid: metadata.uid.as_str().into(),
            ..Self::default()
        };
        let fields: Map<String, Value> = match serde_json::from_str(text) {
            Ok(fields) => fields,
            Err(_) => {
                logging.problem("", &format!("{text:?} is no JSON object"));
                return Some(logging);
            }
        };
        for (field, value) in fields {
            let severity = SEVERITIES.into_iter().find(|it| value == *it);
            let place = match (&*field, whose) {
                ("deny", _) => &mut logging.deny,
                ("allow", _) => &mut logging.allow,
                ("pass", Logs::Tiered) => &mut logging.pass,
                (_, whose) => {
                    logging.problem(&field, whose.fields());
                    continue;
                }
            };
            match severity.is_some() || value == "" {
                true => *place = severity,
                false => {
                    let known = SEVERITIES.join(", ");
                    logging.problem(&field, &format!("{value} is none of {known}"));
                }
            }
        }
        Some(logging)
    }

    /// Whether anything is logged.
    pub fn is_on(&self) -> bool {
        self.deny.or(self.allow).or(self.pass).is_some()
    }

    fn problem(&mut self, field: &str, problem: &str) {
        let dot = if field.is_empty() { "" } else { "." };
        let problem =
            format!("metadata.annotations[{ACL_LOGGING}]{dot}{field}: {problem}; it is not logged");
        self.problems.push(problem);
    }
}

impl Logs {
    fn fields(self) -> &'static str {
        match self {
            Self::Namespace => "there are deny and allow only",
            Self::Tiered => "there are deny, allow and pass only",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(whose: Logs, text: &str) -> Option<Logging> {
        let annotations = [(ACL_LOGGING.to_owned(), text.to_owned())];
        let metadata = Metadata {
            annotations: annotations.into(),
            ..Metadata::default()
        };
        Logging::of(whose, &metadata)
    }

    #[test]
    fn each_field_is_read_for_itself() {
        for (text, deny, allow, problem) in [
            (
                r#"{"deny":"alert","allow":"notice"}"#,
                Some("alert"),
                Some("notice"),
                "",
            ),
            (r#"{"allow":"info"}"#, None, Some("info"), ""),
            (r#"{"deny":"","allow":"debug"}"#, None, Some("debug"), ""),
            ("{}", None, None, ""),
            (
                r#"{"deny":"loud","allow":"warning"}"#,
                None,
                Some("warning"),
                "metadata.annotations[k8s.ovn.org/acl-logging].deny: \"loud\" is none of alert, \
                 warning, notice, info, debug; it is not logged",
            ),
            (
                r#"{"drop":"alert"}"#,
                None,
                None,
                "metadata.annotations[k8s.ovn.org/acl-logging].drop: there are deny and allow \
                 only; it is not logged",
            ),
            (
                "alert",
                None,
                None,
                "metadata.annotations[k8s.ovn.org/acl-logging]: \"alert\" is no JSON object; it \
                 is not logged",
            ),
        ] {
            let logging = of(Logs::Namespace, text).unwrap();
            assert_eq!((logging.deny, logging.allow), (deny, allow), "{text}");
            assert_eq!(logging.problems.join(""), problem, "{text}");
        }
        let nothing = Logging::of(Logs::Namespace, &Metadata::default());
        assert_eq!((of(Logs::Namespace, ""), nothing), (None, None));
    }

    #[test]
    fn only_a_policy_of_the_cluster_has_what_it_passes_on_logged() {
        let text = r#"{"pass":"info"}"#;
        let [own, other] = [Logs::Tiered, Logs::Namespace].map(|whose| of(whose, text).unwrap());
        assert_eq!((own.pass, own.is_on()), (Some("info"), true));
        assert_eq!(own.problems, [""; 0]);
        assert_eq!((other.pass, other.is_on()), (None, false));
        assert_eq!(
            other.problems,
            [
                "metadata.annotations[k8s.ovn.org/acl-logging].pass: there are deny and allow \
                 only; it is not logged"
            ]
        );
        let problem = of(Logs::Tiered, r#"{"drop":"info"}"#).unwrap().problems;
        assert!(problem[0].contains("there are deny, allow and pass only"));
    }
}
