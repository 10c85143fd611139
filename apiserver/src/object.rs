//! Objects of the API, read with only the fields that podwire uses: whatever else a server sends
//! may be unknown, absent, null or odd.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::marker::PhantomData;

use k8s_openapi::jiff::Timestamp;
use serde::de::{Deserialize, DeserializeOwned, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::brief;

/// A kind of objects, with the fields that are used. Absent and null fields must be accepted.
pub trait Object: DeserializeOwned + Debug + Send + 'static {
    /// The version of its API: `v1`, or `group/version`.
    const API: &'static str;
    /// Its name.
    const KIND: &'static str;
    /// Its name in a URL.
    const PLURAL: &'static str;
    /// Whether the server is asked for the metadata alone.
    const IS_METADATA: bool = false;

    /// Its metadata.
    fn metadata(&self) -> &Metadata;
}

/// The metadata of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Its name.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// Empty for an object without one.
    #[serde(deserialize_with = "or_default")]
    pub namespace: String,
    /// Distinguishes several objects with this name over time.
    #[serde(deserialize_with = "or_default")]
    pub uid: String,
    /// Changes with each change of the object.
    #[serde(deserialize_with = "or_default")]
    pub resource_version: String,
    /// None if it is unknown.
    #[serde(deserialize_with = "if_valid")]
    pub creation_timestamp: Option<Timestamp>,
    /// Its labels.
    #[serde(deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    #[serde(deserialize_with = "or_default")]
    pub annotations: BTreeMap<String, String>,
}

/// An object of which only the metadata is requested.
#[derive(Debug, serde::Deserialize)]
#[serde(bound = "")]
pub struct MetadataOf<K> {
    /// Its metadata.
    #[serde(default, deserialize_with = "or_default")]
    pub metadata: Metadata,
    #[serde(skip)]
    kind: PhantomData<fn() -> K>,
}

impl<K: Object> Object for MetadataOf<K> {
    const API: &'static str = K::API;
    const KIND: &'static str = K::KIND;
    const PLURAL: &'static str = K::PLURAL;
    const IS_METADATA: bool = true;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// Identifies an object: as much of it as is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reference {
    /// Empty for an object without one.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Distinguishes several objects with this name over time.
    pub uid: String,
    /// Its version.
    pub resource_version: String,
}

/// An object that can't be read: a field that is used has a wrong type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {object} can't be read, and is left as it was: {problem}")]
pub struct Unreadable {
    /// The version of its API.
    pub api: &'static str,
    /// Its kind.
    pub kind: &'static str,
    /// What can be read of it.
    pub object: Reference,
    /// Its labels, if they can be read.
    pub labels: BTreeMap<String, String>,
    /// What is wrong with it, in one line.
    pub problem: String,
}

/// Reads an object.
///
/// # Errors
/// [`Unreadable`].
pub(crate) fn read<K: Object>(object: &RawValue) -> Result<K, Unreadable> {
    serde_json::from_str(object.get()).map_err(|error| Unreadable {
        api: K::API,
        kind: K::KIND,
        object: Reference::of(object),
        labels: serde_json::from_str::<MetadataOf<K>>(object.get())
            .map(|it| it.metadata.labels)
            .unwrap_or_default(),
        problem: brief(&error),
    })
}

impl Reference {
    pub(crate) fn of(object: &RawValue) -> Self {
        let object: Value = serde_json::from_str(object.get()).unwrap_or_default();
        let text = |name: &str| {
            let text = object["metadata"][name].as_str();
            text.unwrap_or_default().to_owned()
        };
        Self {
            namespace: text("namespace"),
            name: text("name"),
            uid: text("uid"),
            resource_version: text("resourceVersion"),
        }
    }
}

impl From<&Metadata> for Reference {
    fn from(metadata: &Metadata) -> Self {
        let Metadata {
            namespace,
            name,
            uid,
            resource_version,
            ..
        } = metadata.clone();
        Self {
            namespace,
            name,
            uid,
            resource_version,
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&*self.namespace, &*self.name) {
            (_, "") => f.write_str("without a name"),
            ("", name) => f.write_str(&brief(&name)),
            (namespace, name) => f.write_str(&brief(&format_args!("{namespace}/{name}"))),
        }
    }
}

/// The path of a kind's objects, in one namespace or in all.
pub(crate) fn path<K: Object>(api: &str, namespace: &str) -> String {
    let root = match api.contains('/') {
        true => "apis",
        false => "api",
    };
    let plural = K::PLURAL;
    match namespace {
        "" => format!("/{root}/{api}/{plural}"),
        namespace => format!("/{root}/{api}/namespaces/{namespace}/{plural}"),
    }
}

/// Null counts as absent, as it does for the API server.
///
/// # Errors
/// The value has another type.
pub fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

fn if_valid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(value.as_str().and_then(|text| text.parse().ok()))
}
