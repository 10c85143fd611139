//! What a namespace has logged of the packets that policies decide about: the annotation
//! `k8s.ovn.org/acl-logging`, a JSON object with a severity for `deny`, for `allow`, or both.

use podwire_apiserver::object::Metadata;
use podwire_cluster::Name;
use podwire_cluster::annotations::ACL_LOGGING;
use serde_json::{Map, Value};

/// OVN's severities (ovn-nb(5), ACL).
const SEVERITIES: [&str; 5] = ["alert", "warning", "notice", "info", "debug"];

/// The severities with which a namespace's packets are logged; without one, they are not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logging {
    /// Distinguishes several namespaces with this name over time.
    pub uid: Name,
    /// Of what no policy allows.
    pub deny: Option<&'static str>,
    /// Of what a rule allows.
    pub allow: Option<&'static str>,
    /// Mistakes in the annotation.
    pub problems: Vec<String>,
}

impl Logging {
    /// That of a namespace; `None` without the annotation, or with an empty one.
    pub fn of(metadata: &Metadata) -> Option<Self> {
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
            match (&*field, severity) {
                ("deny", severity) if severity.is_some() || value == "" => logging.deny = severity,
                ("allow", severity) if severity.is_some() || value == "" => {
                    logging.allow = severity;
                }
                ("deny" | "allow", _) => {
                    let known = SEVERITIES.join(", ");
                    logging.problem(&field, &format!("{value} is none of {known}"));
                }
                _ => logging.problem(&field, "there are deny and allow only"),
            }
        }
        Some(logging)
    }

    /// Whether anything is logged.
    pub fn is_on(&self) -> bool {
        self.deny.or(self.allow).is_some()
    }

    fn problem(&mut self, field: &str, problem: &str) {
        let dot = if field.is_empty() { "" } else { "." };
        let problem =
            format!("metadata.annotations[{ACL_LOGGING}]{dot}{field}: {problem}; it is not logged");
        self.problems.push(problem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<Logging> {
        let annotations = [(ACL_LOGGING.to_owned(), text.to_owned())];
        Logging::of(&Metadata {
            annotations: annotations.into(),
            ..Metadata::default()
        })
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
            let logging = of(text).unwrap();
            assert_eq!((logging.deny, logging.allow), (deny, allow), "{text}");
            assert_eq!(logging.problems.join(""), problem, "{text}");
        }
        assert_eq!((of(""), Logging::of(&Metadata::default())), (None, None));
    }
}
