//! Keys of the switch's row: of its `external_ids` and `other_config`, and entries of its bridge
//! mappings.

use std::collections::{BTreeMap, BTreeSet};

use podwire_ovs::replica::Row;
use podwire_ovs::transact::{Condition, Transaction};
use podwire_ovs::value::Value;
use podwire_ovs::vswitch::StringMap;
use serde::{Deserialize, Serialize};

use super::rows::{Columns, strings};
use super::{Actual, Change, Item, Kind, ObservedSwitch, State, Undo, View};
use crate::{CONFIG, FIREWALLD, MAPPING, MARK};

/// A key of the switch's own `external_ids`, an entry of its bridge mappings, or a key of its
/// `other_config`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) claim: Claim,
}

/// What to do about somebody else's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Claim {
    /// It is an error, unless podwire takes over.
    Refuse,
    /// It stays.
    Yield,
    /// It is replaced, and restored by cleanup.
    Replace,
}

/// podwire's keys of the switch.
pub(crate) type Owned = BTreeMap<String, Own>;

/// What the mark says of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Own {
    /// Its former value, None if it did not exist, and the one that podwire set.
    Set { was: Option<String>, set: String },
    /// The former value alone: of something elsewhere, or by an earlier podwire.
    Was(Option<String>),
}

impl Own {
    pub(crate) fn was(&self) -> Option<&str> {
        let (Self::Set { was, .. } | Self::Was(was)) = self;
        was.as_deref()
    }

    /// Whether the value is no longer podwire's.
    fn is_replaced(&self, seen: Option<&str>) -> bool {
        match self {
            Self::Set { set, .. } => seen != Some(set),
            Self::Was(_) => false,
        }
    }
}

/// A change of one key, which records whose it is.
#[derive(Debug)]
pub(crate) enum KeyChange {
    Set(String, String),
    /// Back to its former value.
    Restore(String),
    /// Something elsewhere, which can't be marked, is podwire's, or no longer is.
    Own(String),
    Disown(String),
}

/// The key of the bridges of physical networks.
pub(crate) const MAPPINGS: &str = "ovn-bridge-mappings";

/// The key of the tunnels' addresses, separated by commas.
pub(crate) const ENCAP_IP: &str = "ovn-encap-ip";

/// The key of the interval, in milliseconds, after which ovn-controller probes an idle connection
/// to the southbound database; it gives it up after another. [`SOON`] is OVN's default, and also
/// records that podwire has changed the tunnels' address: ovn-controller's connection may be from
/// the former one, and hang.
pub(crate) const PROBE: &str = "ovn-remote-probe-interval";
pub(crate) const SOON: &str = "5000";

impl ObservedSwitch {
    /// Whether the southbound database has other addresses of this chassis' tunnels than these; if
    /// it does not say, whether podwire has changed them and has not seen them there since.
    pub(crate) fn is_unregistered(&self, ips: &str) -> bool {
        let key = |key: &str| self.keys.get(key).map(String::as_str);
        let chassis = key("system-id").unwrap_or_default();
        let ips = match self.owned.contains_key(ENCAP_IP) {
            true => ips,
            false => key(ENCAP_IP).unwrap_or(ips),
        };
        let Some(ends) = &self.ends else {
            let is_changed = key(ENCAP_IP).is_some_and(|before| before != ips);
            return is_changed || key(PROBE) == Some(SOON) && self.owned.contains_key(PROBE);
        };
        let ends = ends.iter().filter(|end| end.chassis == chassis);
        let registered: BTreeSet<&str> = ends.map(|end| end.ip.as_str()).collect();
        !registered.is_empty() && registered != ips.split(',').collect()
    }
}

impl Kind for Key {
    fn identity(&self) -> String {
        match self.key.starts_with(CONFIG) {
            true => self.key.clone(),
            false => format!("external_ids:{}", self.key),
        }
    }

    fn details(&self) -> String {
        format!(" = {}", self.value)
    }

    fn state(&self, view: &View<'_>) -> State {
        let Self { key, value, claim } = self;
        let switch = &view.actual.switch;
        if switch.root.is_none() {
            let awaited = "the database has no row of Open_vSwitch: start Open vSwitch by its own \
                           script, or run ovs-vsctl init";
            return State::Waits(awaited.to_owned());
        }
        let ours = switch.owned.contains_key(key);
        view.of_switch(match view.actual.key(key) {
            None => State::Missing,
            Some(seen) if seen == value && key == ENCAP_IP && switch.is_unregistered(value) => {
                State::Waits(match switch.ends {
                    Some(_) => "ovn-controller, whose connection to the southbound database may \
                                be from the former address: it registers this one soon"
                        .to_owned(),
                    None => "the southbound database, which does not answer".to_owned(),
                })
            }
            Some(seen) if seen == value => State::Well { ours },
            Some(seen) if ours || view.take_over => State::Differs(seen.to_owned()),
            Some(seen) => match claim {
                Claim::Yield => State::Well { ours: false },
                Claim::Replace => State::Differs(seen.to_owned()),
                Claim::Refuse => State::Foreign(format!(
                    "somebody else set it to {seen}: --take-over replaces it until cleanup"
                )),
            },
        })
    }

    /// A value that somebody has set since stays.
    fn removed(&self) -> String {
        match self.claim {
            Claim::Yield => format!("left {}, which somebody else has set", self.identity()),
            Claim::Refuse | Claim::Replace => format!("removed {}", self.identity()),
        }
    }

    fn make(&self, _: &Actual) -> Vec<Change> {
        let change = KeyChange::Set(self.key.clone(), self.value.clone());
        vec![Change::Key(change)]
    }

    fn remove(&self, _: &Actual) -> Vec<Change> {
        vec![Change::Key(KeyChange::Restore(self.key.clone()))]
    }

    /// Those in the mark; and those in the journal, if somebody has removed the mark.
    fn marked(view: &View<'_>) -> Vec<Item> {
        let switch = &view.actual.switch;
        let owned = switch
            .owned
            .iter()
            .filter(|(key, _)| !key.starts_with(FIREWALLD));
        let owned = owned.map(|(key, own)| Self {
            key: key.clone(),
            value: String::new(),
            claim: match own.is_replaced(view.actual.key(key)) {
                true => Claim::Yield,
                false => Claim::Replace,
            },
        });
        let noted = view.journal.iter().filter_map(|undo| match undo {
            Undo::Made(Item::Key(it)) if !switch.owned.contains_key(&it.key) => Some(it.clone()),
            _ => None,
        });
        let noted = noted.filter(|it| view.actual.key(&it.key) == Some(&it.value));
        let all = owned.chain(noted).filter(|_| switch.answers);
        all.map(Item::Key).collect()
    }
}

/// The transaction for some changes, which updates podwire's keys in the row's mark and in `owned`.
pub(crate) fn transaction(
    changes: &[KeyChange],
    switch: &ObservedSwitch,
    owned: &mut Owned,
) -> Option<Transaction> {
    let root = switch.root?;
    let mut keys = Columns::default();
    let mut config = Columns::default();
    let mut mappings: BTreeMap<&str, String> = switch
        .keys
        .iter()
        .filter_map(|(key, bridge)| Some((key.strip_prefix(MAPPING)?, bridge.clone())))
        .collect();
    let mut transaction = Transaction::new();
    let mut changes_mappings = false;
    for change in changes {
        let (key, value) = match change {
            KeyChange::Set(key, set) => {
                let was = match owned.remove(key) {
                    Some(own) => own.was().map(str::to_owned),
                    None => switch.keys.get(key).cloned(),
                };
                let set = set.clone();
                owned.insert(
                    key.clone(),
                    Own::Set {
                        was,
                        set: set.clone(),
                    },
                );
                (key, Some(set))
            }
            KeyChange::Restore(key) => match owned.remove(key) {
                Some(own) if own.is_replaced(switch.keys.get(key).map(String::as_str)) => continue,
                own => (key, own.and_then(|own| own.was().map(str::to_owned))),
            },
            KeyChange::Own(key) => {
                owned.insert(key.clone(), Own::Was(None));
                continue;
            }
            KeyChange::Disown(key) => {
                owned.remove(key);
                continue;
            }
        };
        if let Some(key) = key.strip_prefix(CONFIG) {
            config.put(key, value);
            continue;
        }
        let network = key.strip_prefix(MAPPING);
        changes_mappings |= network.is_some();
        match (network, value) {
            (Some(network), Some(bridge)) => drop(mappings.insert(network, bridge)),
            (Some(network), None) => drop(mappings.remove(network)),
            (None, value) => keys.put(key, value),
        }
    }
    if changes_mappings {
        // Another program's entry may have been added meanwhile.
        if let Some(seen) = switch.keys.get(MAPPINGS) {
            let same = StringMap::from([(MAPPINGS.to_owned(), seen.clone())]);
            let same = Condition::includes("external_ids", Value::map(&same));
            transaction.guard("Open_vSwitch", same);
        }
        let entries = mappings.iter();
        let entries: Vec<String> = entries
            .map(|(net, bridge)| format!("{net}:{bridge}"))
            .collect();
        let entries = entries.join(",");
        keys.put(MAPPINGS, Some(entries).filter(|it| !it.is_empty()));
    }
    let mark = serde_json::to_string(owned).ok();
    keys.put(MARK, mark.filter(|_| !owned.is_empty()));
    keys.write(&mut transaction, "Open_vSwitch", root, "external_ids");
    config.write(&mut transaction, "Open_vSwitch", root, "other_config");
    Some(transaction)
}

/// The keys of the switch's row: the entries of its bridge mappings and its other_config, prefixed
/// with [`MAPPING`] or [`CONFIG`]; and those that podwire set.
pub(crate) fn seen(root: &Row<'_>) -> (BTreeMap<String, String>, Owned) {
    let mut keys = strings(root);
    let mappings = keys.get(MAPPINGS).map(|text| mappings(text));
    keys.extend(mappings.unwrap_or_default());
    keys.extend(config(root));
    let owned = keys
        .get(MARK)
        .and_then(|mark| serde_json::from_str(mark).ok());
    (keys, owned.unwrap_or_default())
}

/// The entries of the bridge mappings, each as a separate key.
fn mappings(text: &str) -> Vec<(String, String)> {
    let entries = text
        .split(',')
        .filter_map(|entry| entry.trim().split_once(':'));
    entries
        .map(|(network, bridge)| (format!("{MAPPING}{network}"), bridge.to_owned()))
        .collect()
}

/// ovs-vswitchd's tuning, each setting as a separate key. Others' keys may change all the time.
fn config(root: &Row<'_>) -> Vec<(String, String)> {
    let keys = ["n-handler-threads", "n-revalidator-threads"].into_iter();
    let config = root.map("other_config");
    keys.filter_map(|key| Some((format!("{CONFIG}{key}"), config.str(key)?.to_owned())))
        .collect()
}
