//! Annotations whose value is a JSON object with an entry for each network, each of which may have
//! a writer of its own, such as `k8s.ovn.org/pod-networks`.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

/// The entry of the cluster's default network, the only one that podwire writes.
pub const DEFAULT: &str = "default";

type Entries = BTreeMap<String, Box<RawValue>>;

/// What others have written into such an annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OtherNetworks {
    /// Nothing.
    #[default]
    None,
    /// Entries of other networks: a JSON object, each entry as it was written.
    Entries(Box<str>),
    /// The annotation is no JSON object. It has no entry that anyone could read, and is replaced.
    Unreadable,
}

impl OtherNetworks {
    /// The annotation's value with these, and this entry of the default network.
    ///
    /// # Errors
    /// The entry can't be written as JSON.
    pub fn with(&self, default: &impl Serialize) -> serde_json::Result<String> {
        let mut entries: Entries = match self {
            Self::Entries(text) => serde_json::from_str(text)?,
            Self::None | Self::Unreadable => Entries::new(),
        };
        entries.insert(DEFAULT.to_owned(), to_raw_value(default)?);
        serde_json::to_string(&entries)
    }

    /// The annotation's value with these alone; None without any.
    pub fn alone(&self) -> Option<String> {
        match self {
            Self::Entries(text) => Some(text.to_string()),
            Self::None | Self::Unreadable => None,
        }
    }
}

/// The default network's entry in an annotation's value, null without one, and what others wrote.
pub fn read(annotation: &str) -> (Value, OtherNetworks) {
    let Ok(mut entries) = serde_json::from_str::<Entries>(annotation) else {
        return (Value::Null, OtherNetworks::Unreadable);
    };
    let own = entries.remove(DEFAULT);
    let own = own.and_then(|own| serde_json::from_str(own.get()).ok());
    let others = match serde_json::to_string(&entries) {
        Ok(text) if !entries.is_empty() => OtherNetworks::Entries(text.into()),
        _ => OtherNetworks::None,
    };
    (own.unwrap_or_default(), others)
}

/// The subnets in a node's annotation; a single one may be written without a list.
pub fn node_subnets(annotation: &str) -> Vec<String> {
    let (entry, _) = read(annotation);
    strings(&entry).map(str::to_owned).collect()
}

/// A string, or the strings of a list.
pub fn strings(value: &Value) -> impl Iterator<Item = &str> {
    let list = value.as_array().into_iter().flatten();
    list.chain([value]).filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entries_of_other_networks_stay_as_they_were_written() {
        let theirs = r#""a/b":{"ip_addresses":["10.1.0.3/16"],"big":12345678901234567890.12}"#;
        let old = format!(r#"{{"default": {{"old": 1}}, {theirs}}}"#);
        let (own, others) = read(&old);
        assert_eq!(own["old"], 1);
        let written = others.with(&["10.0.0.0/24"]).unwrap();
        assert_eq!(
            written,
            format!(r#"{{{theirs},"default":["10.0.0.0/24"]}}"#)
        );
        assert_eq!(read(&written), (json!(["10.0.0.0/24"]), others));
    }

    #[test]
    fn what_is_no_object_is_replaced() {
        for text in ["", "{", "null", "[]", "\"{}\"", "{} {}"] {
            let (own, others) = read(text);
            assert_eq!((&own, &others), (&Value::Null, &OtherNetworks::Unreadable));
            assert_eq!(others.with(&1).unwrap(), r#"{"default":1}"#);
        }
        assert_eq!(read("{}"), (Value::Null, OtherNetworks::None));
    }
}
