//! CNI_ARGS: `K=V;K=V`.

use std::collections::BTreeMap;

use super::{MAX_CONTAINER_ID, MAX_NAME, MAX_NAMESPACE};
use crate::spec::{ErrorCode, SpecError, excerpt};

/// The arguments of a call. A value may contain '='; if a key occurs more than once, the last one
/// counts, as in libcni; an empty pair (a ';' at the end) is ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Args(BTreeMap<String, String>);

/// What is wrong with CNI_ARGS. Its code is 4.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgsError {
    /// A part that is not `K=V`.
    #[error("CNI_ARGS: {} is not of the form KEY=value", excerpt(.0))]
    Form(String),
    /// A name longer than any that Kubernetes gives.
    #[error("CNI_ARGS: {key}={} is longer than {most} bytes", excerpt(.value))]
    TooLong {
        /// The key.
        key: &'static str,
        /// As given.
        value: String,
        /// The maximum length.
        most: usize,
    },
}

/// The names that are used in rows, logs and paths, with the maximum length of each.
const NAMES: [(&str, usize); 4] = [
    ("K8S_POD_NAMESPACE", MAX_NAMESPACE),
    ("K8S_POD_NAME", MAX_NAME),
    ("K8S_POD_UID", MAX_NAME),
    ("K8S_POD_INFRA_CONTAINER_ID", MAX_CONTAINER_ID),
];

impl From<ArgsError> for SpecError {
    fn from(error: ArgsError) -> Self {
        Self::new(ErrorCode::INVALID_ENVIRONMENT, error.to_string())
    }
}

impl Args {
    /// Parses `K=V;K=V`.
    ///
    /// # Errors
    /// A part has no '=' or nothing before it, or a name is too long.
    pub fn parse(text: &str) -> Result<Self, ArgsError> {
        let pairs = text.split(';').filter(|pair| !pair.is_empty());
        let read = |pair: &str| match pair.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
            _ => Err(ArgsError::Form(pair.to_owned())),
        };
        let args = Self(pairs.map(read).collect::<Result<_, _>>()?);
        for (key, most) in NAMES {
            if let Some(value) = args.get(key).filter(|value| value.len() > most) {
                let value = value.to_owned();
                return Err(ArgsError::TooLong { key, value, most });
            }
        }
        Ok(args)
    }

    /// The value of a key, if there is one and it is not empty.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0
            .get(key)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// The pod's namespace, from Kubernetes runtimes (podman sends none).
    pub fn pod_namespace(&self) -> Option<&str> {
        self.get("K8S_POD_NAMESPACE")
    }

    /// The pod's name, or under podman the container's.
    pub fn pod_name(&self) -> Option<&str> {
        self.get("K8S_POD_NAME")
    }

    /// The pod's uid; for a static pod that of its manifest, not of the mirror pod.
    pub fn pod_uid(&self) -> Option<&str> {
        self.get("K8S_POD_UID")
    }

    /// All pairs, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
    }
}
