//! The management port's rows.

use std::collections::BTreeMap;

use podwire_ovs::replica::Db;
use podwire_ovs::transact::{Columns, Condition, Mutation, Transaction};
use podwire_ovs::value::{Uuid, Value};
use podwire_ovs::vswitch::{StringMap, set_keys};
use serde::{Deserialize, Serialize};

use super::rows::{self, add_port, interface_of, mtu_request, strings};
use super::{Actual, Change, Item, Kind, State, View, transaction};
use crate::{DOOR, LINK, MADE, MARK};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Port {
    /// Its name, and its link's.
    #[serde(default = "management")]
    pub(crate) link: String,
    pub(crate) bridge: String,
    /// The logical port's name.
    pub(crate) iface_id: String,
    pub(crate) mac: String,
    /// In bytes.
    pub(crate) mtu: u32,
}

/// What older journals don't name.
fn management() -> String {
    LINK.to_owned()
}

/// A row of `Port` with its `Interface`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedPort {
    uuid: Uuid,
    interface: Option<Uuid>,
    /// Its bridge.
    bridge: Option<(String, Uuid)>,
    kind: String,
    iface_id: Option<String>,
    mac: Option<String>,
    pub(crate) mtu_request: Option<u32>,
    /// The VLAN of what it sends and gets.
    tag: Option<i64>,
    /// podwire's mark: [`MADE`] if podwire created it, otherwise the columns from before it was
    /// taken over.
    mark: Option<String>,
    /// Whether ovn-controller has its flows.
    pub(crate) is_installed: bool,
    /// ovs-vswitchd's error.
    pub(super) error: Option<String>,
}

/// The mark of a port that was taken over: what cleanup restores.
#[derive(Debug, Serialize, Deserialize)]
struct TakenOver {
    kind: String,
    iface_id: Option<String>,
    mac: Option<String>,
    mtu_request: Option<u32>,
    #[serde(default)]
    tag: Option<i64>,
}

impl ObservedPort {
    /// Those with the names of podwire's links.
    pub(crate) fn all(db: &Db) -> BTreeMap<&'static str, Self> {
        let named = [LINK, DOOR].into_iter();
        named
            .filter_map(|name| Some((name, Self::find(db, name)?)))
            .collect()
    }

    /// One whose flows ovn-controller has.
    #[cfg(test)]
    pub(crate) fn installed() -> Self {
        Self {
            uuid: Uuid::from_bytes([0; 16]),
            interface: None,
            bridge: None,
            kind: String::new(),
            iface_id: None,
            mac: None,
            mtu_request: None,
            tag: None,
            mark: None,
            is_installed: true,
            error: None,
        }
    }

    fn find(db: &Db, name: &str) -> Option<Self> {
        let uuid = db.port_by_name(name)?.uuid();
        let interface = interface_of(db, uuid);
        let text = |column| {
            let text = interface.and_then(|row| row.str(column));
            text.map(str::to_owned)
        };
        let ids = interface.map(|row| strings(&row)).unwrap_or_default();
        Some(Self {
            uuid,
            interface: interface.map(|row| row.uuid()),
            bridge: db.bridge_of_port(uuid).and_then(|bridge| {
                let row = db.row("Bridge", bridge.uuid())?;
                Some((row.str("name")?.to_owned(), row.uuid()))
            }),
            kind: text("type").unwrap_or_default(),
            iface_id: ids.get("iface-id").cloned(),
            mac: text("mac"),
            mtu_request: interface.and_then(|row| mtu_request(&row)),
            tag: db.row("Port", uuid).and_then(|row| row.integer("tag")),
            mark: ids.get(MARK).cloned(),
            is_installed: ids.get("ovn-installed").is_some_and(|it| it == "true"),
            error: text("error"),
        })
    }

    /// Whether podwire took it over from somebody else.
    pub(super) fn is_taken_over(&self) -> bool {
        self.mark.as_deref().is_some_and(|mark| mark != MADE)
    }

    fn differences(&self, wanted: &Port) -> Vec<String> {
        let mut differences = Vec::new();
        let mut compare = |what: &str, seen: Option<&str>, wanted: &str| {
            if seen != Some(wanted) {
                differences.push(format!("{what} {}", seen.unwrap_or("none")));
            }
        };
        compare("type", Some(&self.kind), "internal");
        compare("iface-id", self.iface_id.as_deref(), &wanted.iface_id);
        compare("MAC", self.mac.as_deref(), &wanted.mac);
        let mtu = self.mtu_request.map(|mtu| mtu.to_string());
        compare("MTU", mtu.as_deref(), &wanted.mtu.to_string());
        if let Some(tag) = self.tag {
            differences.push(format!("VLAN {tag}"));
        }
        if self.mark.is_none() {
            differences.push("without our mark".to_owned());
        }
        differences
    }

    /// The mark of a port that is taken over now, or was before.
    fn mark(&self) -> String {
        self.mark.clone().unwrap_or_else(|| {
            let was = TakenOver {
                kind: self.kind.clone(),
                iface_id: self.iface_id.clone(),
                mac: self.mac.clone(),
                mtu_request: self.mtu_request,
                tag: self.tag,
            };
            serde_json::to_string(&was).unwrap_or_default()
        })
    }
}

impl Kind for Port {
    fn identity(&self) -> String {
        format!("port {}", self.link)
    }

    fn details(&self) -> String {
        let Self {
            bridge,
            iface_id,
            mac,
            mtu,
            ..
        } = self;
        format!(" on {bridge}: iface-id {iface_id}, MAC {mac}, MTU {mtu}")
    }

    fn state(&self, view: &View<'_>) -> State {
        let switch = &view.actual.switch;
        let link = &self.link;
        let Some(seen) = switch.ports.get(&**link) else {
            return match switch.bridges.contains_key(&self.bridge) {
                true => view.of_switch(State::Missing),
                false => State::Waits(format!(
                    "bridge {}, which ovn-controller creates: is ovn-controller running?",
                    self.bridge
                )),
            };
        };
        let bridge = seen.bridge.as_ref().map(|(name, _)| name.as_str());
        if bridge != Some(&self.bridge) {
            let bridge = bridge.unwrap_or("no bridge");
            return State::Foreign(format!(
                "it is on {bridge}: remove it there (ovs-vsctl del-port {bridge} {link})"
            ));
        }
        if seen.mark.is_none() && !view.take_over {
            return State::Foreign(match seen.iface_id.as_deref() == Some(&self.iface_id) {
                true => "ovn-kubernetes created it: --take-over adopts it until cleanup".to_owned(),
                false => format!(
                    "it bears no mark of podwire: remove it (ovs-vsctl del-port {link}), or adopt \
                     it by --take-over"
                ),
            });
        }
        view.of_switch(State::of(&seen.differences(self)))
    }

    fn make(&self, actual: &Actual) -> Vec<Change> {
        let switch = &actual.switch;
        let seen = switch.ports.get(&*self.link);
        let mark = seen.map_or(MADE.to_owned(), ObservedPort::mark);
        let ids = StringMap::from([
            ("iface-id".to_owned(), self.iface_id.clone()),
            (MARK.to_owned(), mark),
        ]);
        let columns = Columns::new()
            .set("type", "internal")
            .set("mac", self.mac.as_str())
            .set("mtu_request", self.mtu);
        let mut change = Transaction::new();
        match seen.and_then(|port| port.interface) {
            Some(interface) => {
                let row = Condition::uuid(interface);
                change.update("Interface", row, columns).expect_count(1);
                set_keys(&mut change, "Interface", interface, "external_ids", &ids);
                if let Some(port) = seen.filter(|port| port.tag.is_some()) {
                    set_tag(&mut change, port.uuid, None);
                }
            }
            None => {
                let Some(bridge) = switch.bridges.get(&self.bridge) else {
                    return Vec::new();
                };
                let interface = columns.set("external_ids", Value::map(&ids));
                add_port(
                    &mut change,
                    bridge.uuid,
                    &self.link,
                    interface,
                    Columns::new(),
                );
            }
        }
        transaction(Some(change))
    }

    /// A port that was taken over is restored.
    fn remove(&self, actual: &Actual) -> Vec<Change> {
        let Some(port) = actual.switch.ports.get(&*self.link) else {
            return Vec::new();
        };
        let mark = port.mark.as_deref().unwrap_or_default();
        let mut change = Transaction::new();
        match (serde_json::from_str::<TakenOver>(mark), port.interface) {
            (Ok(was), Some(interface)) => {
                let columns = Columns::new()
                    .set("type", was.kind.as_str())
                    .set("mac", Value::set(was.mac))
                    .set("mtu_request", Value::set(was.mtu_request));
                change.update("Interface", Condition::uuid(interface), columns);
                set_tag(&mut change, port.uuid, was.tag);
                let mut ids = rows::Columns::default();
                ids.put(MARK, None);
                ids.put("iface-id", was.iface_id);
                ids.write(&mut change, "Interface", interface, "external_ids");
            }
            _ => {
                let Some((_, bridge)) = &port.bridge else {
                    return Vec::new();
                };
                let gone = Mutation::delete("ports", port.uuid);
                change.mutate("Bridge", Condition::uuid(*bridge), gone);
            }
        }
        transaction(Some(change))
    }

    fn marked(view: &View<'_>) -> Vec<Item> {
        let switch = &view.actual.switch;
        let ports = switch.ports.iter();
        let ours = ports.filter(|(_, port)| switch.answers && port.mark.is_some());
        ours.map(|(name, _)| {
            let port = Self {
                link: (*name).to_owned(),
                ..Self::default()
            };
            port.into()
        })
        .collect()
    }
}

fn set_tag(change: &mut Transaction, port: Uuid, tag: Option<i64>) {
    let columns = Columns::new().set("tag", Value::set(tag));
    change.update("Port", Condition::uuid(port), columns);
}
