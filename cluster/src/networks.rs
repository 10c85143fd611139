//! Annotations whose value is a JSON object with an entry for each network, each of which may have
//! a writer of its own, such as `k8s.ovn.org/pod-networks`.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

/// The entry of the cluster's default network.
pub const DEFAULT: &str = "default";

/// The name of a pod's interface on its primary network, if that is not the default one
/// (ovn-kubernetes, `buildPrimaryUDNPodRequest`).
pub const PRIMARY_INTERFACE: &str = "ovn-udn1";

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
        let mut entries = self.entries();
        entries.insert(DEFAULT.to_owned(), to_raw_value(default)?);
        serde_json::to_string(&entries)
    }

    /// These, with some networks' entries as they are wanted: `None` is without one.
    #[must_use]
    pub fn changed<'a>(&self, wanted: impl Iterator<Item = (&'a str, Option<&'a Value>)>) -> Self {
        let before = self.entries();
        let mut entries = before.clone();
        for (network, value) in wanted {
            let has = entries.get(network);
            let has = has.and_then(|it| serde_json::from_str::<Value>(it.get()).ok());
            if has.as_ref() == value {
                continue;
            }
            entries.remove(network);
            let value = value.and_then(|value| to_raw_value(value).ok());
            entries.extend(value.map(|value| (network.to_owned(), value)));
        }
        match serde_json::to_string(&entries) {
            _ if entries.is_empty() && before.is_empty() => self.clone(),
            Ok(text) if !entries.is_empty() => Self::Entries(text.into()),
            _ => Self::None,
        }
    }

    /// The networks with an entry, and what each contains.
    pub fn all(&self) -> BTreeMap<String, Value> {
        let entries = self.entries().into_iter();
        let parsed = entries.map(|(name, it)| (name, serde_json::from_str(it.get())));
        parsed
            .map(|(name, it)| (name, it.unwrap_or_default()))
            .collect()
    }

    fn entries(&self) -> Entries {
        match self {
            Self::Entries(text) => serde_json::from_str(text).unwrap_or_default(),
            Self::None | Self::Unreadable => Entries::new(),
        }
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
    fn entries_that_are_wanted_differently_are_replaced_or_removed_and_others_stay() {
        let theirs = r#""a/b":{"big":12345678901234567890.12}"#;
        let text = format!(r#"{{{theirs},"ns/x":{{"m":1}},"ns/y":{{}}}}"#);
        let (_, others) = read(&text);
        let (x, z) = (json!({"m": 1}), json!({"m": 3}));
        let wanted = [("ns/x", Some(&x))];
        assert_eq!(others.changed(wanted.into_iter()), others);
        let wanted = [("ns/x", Some(&z)), ("ns/y", None)];
        let changed = others.changed(wanted.into_iter());
        let expected = format!(r#"{{{theirs},"ns/x":{{"m":3}}}}"#);
        assert_eq!(changed.alone(), Some(expected));
        for none in [OtherNetworks::None, OtherNetworks::Unreadable] {
            assert_eq!(none.changed([("ns/y", None)].into_iter()), none);
        }
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
