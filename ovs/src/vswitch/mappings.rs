//! `ovn-bridge-mappings`: the bridges that carry OVN's physical networks (ovn-controller(8)).

use itertools::Itertools as _;

use crate::replica::Db;

/// The key of external_ids in the row of `Open_vSwitch`.
const KEY: &str = "ovn-bridge-mappings";

/// The node's bridges of OVN's physical networks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BridgeMappings {
    /// The key of external_ids that has them: for one chassis of several, its name is appended.
    pub key: String,
    /// Its value; empty without the key.
    pub text: String,
}

impl BridgeMappings {
    /// Those that ovn-controller reads.
    pub fn of(db: &Db) -> Self {
        let (key, text) = chassis_entry(db, KEY);
        Self { key, text }
    }

    /// Physical networks, each with its bridge, which may not exist. ovn-controller reads no
    /// further than a wrong entry (`add_ovs_bridge_mappings` in OVN's controller/patch.c).
    pub fn entries(&self) -> impl Iterator<Item = (&str, &str)> {
        self.text.split(',').map_while(entry)
    }

    /// The first entry that is not one network and one bridge; ovn-controller takes blanks as a
    /// part of the names.
    pub fn wrong_entry(&self) -> Option<&str> {
        let text = self.text.strip_suffix(',').unwrap_or(&self.text);
        let is_wrong = |it: &&str| entry(it).is_none() || it.contains(char::is_whitespace);
        text.split(',').filter(|_| !text.is_empty()).find(is_wrong)
    }

    /// The entries without what makes them wrong, in the same form.
    pub fn cleaned(&self) -> String {
        let entries = self.text.split(',').filter_map(|it| {
            let (network, bridge) = it.split_once(':')?;
            Some(format!("{}:{}", network.trim(), bridge.trim()))
        });
        entries.filter(|it| entry(it).is_some()).join(",")
    }
}

fn entry(text: &str) -> Option<(&str, &str)> {
    let pair = text.split_once(':');
    pair.filter(|(network, bridge)| !network.is_empty() && !bridge.is_empty())
}

/// A key of the node's external_ids for ovn-controller, with its value, which may be empty. If the
/// key exists with the chassis' name appended, that one counts (`get_chassis_external_id_value` in
/// OVN's lib/ovn-util.c): several chassis may share one Open vSwitch.
pub fn chassis_entry(db: &Db, name: &str) -> (String, String) {
    let root = db.open_vswitch();
    let id = |key: &str| root.as_ref()?.external_id(key).map(str::to_owned);
    let own = id("system-id").map(|chassis| format!("{name}-{chassis}"));
    let own = own.and_then(|key| Some((id(&key)?, key)));
    match own {
        Some((value, key)) => (key, value),
        None => (name.to_owned(), id(name).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_ovn_controller_reads_them() {
        let read = |text: &str| {
            let mappings = BridgeMappings {
                key: KEY.to_owned(),
                text: text.to_owned(),
            };
            let entries = mappings.entries().map(|(net, on)| format!("{net} {on}"));
            let entries: Vec<String> = entries.collect();
            let wrong = mappings.wrong_entry().map(str::to_owned);
            (entries.join(", "), wrong, mappings.cleaned())
        };
        let seen = |entries: &str, wrong: Option<&str>, cleaned: &str| {
            (
                entries.to_owned(),
                wrong.map(str::to_owned),
                cleaned.to_owned(),
            )
        };
        assert_eq!(read(""), seen("", None, ""));
        assert_eq!(read("a:b,c:d"), seen("a b, c d", None, "a:b,c:d"));
        assert_eq!(read("a:b,"), seen("a b", None, "a:b"));
        assert_eq!(read("a:b,c,e:f"), seen("a b", Some("c"), "a:b,e:f"));
        assert_eq!(read("a:b,,e:f"), seen("a b", Some(""), "a:b,e:f"));
        assert_eq!(read("a:,e:f"), seen("", Some("a:"), "e:f"));
        assert_eq!(read("a"), seen("", Some("a"), ""));
        assert_eq!(
            read("a:b, c:d"),
            seen("a b,  c d", Some(" c:d"), "a:b,c:d"),
            "a blank is a part of the name"
        );
    }
}
