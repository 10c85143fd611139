//! The names by which annotations distinguish a pod's networks.

use std::fmt;
use std::str::FromStr;

use podwire_cni::env::{MAX_NAME, MAX_NAMESPACE};
use podwire_cni::spec::excerpt;

/// A network of a pod: the cluster's default one, or that of a NetworkAttachmentDefinition.
///
/// Written `default`, `ns/nad`, or `ns/nad/1` if a pod attaches to the same definition again. The
/// index counts further attachments from 1, so that `ns/nad` and `ns/nad/0` can't both name the
/// first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NetworkKey {
    /// The cluster's default network.
    Default,
    /// A NetworkAttachmentDefinition.
    Nad {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// 0 for the pod's first attachment.
        index: u32,
    },
}

/// Not the name of a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkKeyError {
    /// Neither `default` nor parts separated by slashes.
    #[error("not a network: neither \"default\" nor namespace/name nor namespace/name/index")]
    Form,
    /// The namespace is invalid in Kubernetes.
    #[error(
        "not a network: {} is not a Kubernetes namespace (a-z, 0-9 and -, at most 63)",
        excerpt(.0)
    )]
    Namespace(String),
    /// The name is invalid in Kubernetes.
    #[error(
        "not a network: {} is not a Kubernetes name (a-z, 0-9, - and ., at most 253)",
        excerpt(.0)
    )]
    Name(String),
    /// The index is not a number from 1.
    #[error("not a network: the index {} is not a number from 1", excerpt(.0))]
    Index(String),
}

impl NetworkKey {
    /// Whether `asked` means this attachment: the same one or, with index 0, any to that
    /// definition.
    pub fn is_of(&self, asked: &Self) -> bool {
        match (self, asked) {
            (
                Self::Nad {
                    namespace, name, ..
                },
                Self::Nad {
                    namespace: asked_namespace,
                    name: asked_name,
                    index: 0,
                },
            ) => (namespace, name) == (asked_namespace, asked_name),
            _ => self == asked,
        }
    }
}

impl FromStr for NetworkKey {
    type Err = NetworkKeyError;

    fn from_str(text: &str) -> Result<Self, NetworkKeyError> {
        if text == "default" {
            return Ok(Self::Default);
        }
        let parts: Vec<&str> = text.split('/').collect();
        let (namespace, name, index) = match parts[..] {
            [namespace, name] => (namespace, name, 0),
            [namespace, name, index] => (namespace, name, parse_index(index)?),
            _ => return Err(NetworkKeyError::Form),
        };
        if namespace.len() > MAX_NAMESPACE || namespace.contains('.') || !is_subdomain(namespace) {
            return Err(NetworkKeyError::Namespace(namespace.to_owned()));
        }
        if !is_subdomain(name) {
            return Err(NetworkKeyError::Name(name.to_owned()));
        }
        Ok(Self::Nad {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            index,
        })
    }
}

/// One spelling per number, without sign or leading zero; otherwise two keys would name one
/// network.
fn parse_index(text: &str) -> Result<u32, NetworkKeyError> {
    match text.parse() {
        Ok(index) if text.starts_with(|first: char| ('1'..='9').contains(&first)) => Ok(index),
        _ => Err(NetworkKeyError::Index(text.to_owned())),
    }
}

/// A DNS-1123 subdomain, which the API server requires of a name. Of a namespace it requires a
/// label, which is a subdomain without dots.
fn is_subdomain(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= MAX_NAME
        && bytes.first().is_some_and(|first| inner(*first))
        && bytes.last().is_some_and(|last| inner(*last))
        && bytes
            .iter()
            .all(|byte| inner(*byte) || matches!(byte, b'-' | b'.'))
}

impl fmt::Display for NetworkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Nad {
                namespace,
                name,
                index: 0,
            } => write!(f, "{namespace}/{name}"),
            Self::Nad {
                namespace,
                name,
                index,
            } => write!(f, "{namespace}/{name}/{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        text.parse::<NetworkKey>().unwrap_err().to_string()
    }

    #[test]
    fn what_names_no_network_is_refused_by_the_part_that_is_wrong() {
        for (text, expected) in [
            (
                "nad",
                "neither \"default\" nor namespace/name nor namespace/name/index",
            ),
            (
                "ns/NAD",
                "\"NAD\" is not a Kubernetes name (a-z, 0-9, - and ., at most 253)",
            ),
            (
                "n.s/nad",
                "\"n.s\" is not a Kubernetes namespace (a-z, 0-9 and -, at most 63)",
            ),
            ("ns/nad/0", "the index \"0\" is not a number from 1"),
            ("ns/nad/01", "the index \"01\" is not a number from 1"),
        ] {
            assert_eq!(refusal(text), format!("not a network: {expected}"));
        }
    }

    #[test]
    fn names_longer_than_kubernetes_allows_are_refused_and_shortened() {
        let long = |length: usize| "n".repeat(length);
        for text in [
            format!("{}/nad", long(64)),
            format!("ns/{}", long(254)),
            format!("ns/{}", long(5_000)),
            format!("ns/nad/{}", "1".repeat(5_000)),
        ] {
            assert!(refusal(&text).len() < 300, "{text}");
        }
        format!("{}/{}", long(63), long(253))
            .parse::<NetworkKey>()
            .unwrap();
    }
}
