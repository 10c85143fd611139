//! The tunnel bridge, the gateway bridge, and those of physical networks. Their local port has the
//! same name.

use podwire_ovs::replica::{Db, Row};
use podwire_ovs::transact::{Columns, Condition, Mutation, Transaction};
use podwire_ovs::value::Uuid;
use podwire_ovs::vswitch::{BridgeSpec, StringMap, add_bridge, set_keys};
use serde::{Deserialize, Serialize};

use super::rows::{interface_of, mtu_request, strings};
use super::uplink::NIC;
use super::{Actual, Change, Item, Kind, State, View, transaction};
use crate::{MADE, MARK};

/// It forwards by MAC addresses, and needs no controller.
const FAIL_MODE: &str = "standalone";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bridge {
    pub(crate) name: String,
    /// The same as that of the pods' bridge.
    pub(crate) datapath: String,
    /// Empty if it follows from its NIC, which may be exchanged.
    pub(crate) mac: String,
    /// In bytes; 0 likewise.
    pub(crate) mtu: u32,
    /// Of the gateway bridge: its NIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) nic: Option<String>,
}

/// A row of `Bridge` with its local port's `Interface`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedBridge {
    pub(super) uuid: Uuid,
    pub(crate) datapath: String,
    pub(crate) mac: Option<String>,
    local: Option<Uuid>,
    pub(crate) mtu_request: Option<u32>,
    fail_mode: Option<String>,
    ours: bool,
}

impl ObservedBridge {
    /// A bridge and its name.
    pub(crate) fn of(db: &Db, row: &Row<'_>) -> Option<(String, Self)> {
        let name = row.str("name")?;
        let local = interface_of(db, db.port_by_name(name)?.uuid());
        let kind = row.str("datapath_type").filter(|kind| !kind.is_empty());
        let seen = Self {
            uuid: row.uuid(),
            datapath: kind.unwrap_or("system").to_owned(),
            mac: row.map("other_config").str("hwaddr").map(str::to_owned),
            local: local.map(|row| row.uuid()),
            mtu_request: local.and_then(|row| mtu_request(&row)),
            fail_mode: row.str("fail_mode").map(str::to_owned),
            ours: strings(row).contains_key(MARK),
        };
        Some((name.to_owned(), seen))
    }
}

impl Bridge {
    fn follows_nic(&self) -> bool {
        self.mac.is_empty()
    }
}

impl Kind for Bridge {
    fn identity(&self) -> String {
        format!("bridge {}", self.name)
    }

    fn details(&self) -> String {
        match self.follows_nic() {
            true => String::new(),
            false => format!(": MAC {}, MTU {}", self.mac, self.mtu),
        }
    }

    fn state(&self, view: &View<'_>) -> State {
        let seen = match view.actual.switch.bridges.get(&self.name) {
            None if self.datapath.is_empty() => {
                let maker = match self.nic {
                    Some(_) => "ovn-controller",
                    None if self.follows_nic() => "ovn-controller or the agent",
                    None => "the agent",
                };
                let awaited = format!("the pods' bridge, which {maker} creates: is it running?");
                return State::Waits(awaited);
            }
            None => return view.of_switch(State::Missing),
            Some(seen) if !seen.ours => {
                return State::Foreign(format!(
                    "it bears no mark of podwire: remove it (ovs-vsctl del-br {})",
                    self.name
                ));
            }
            Some(seen) => seen,
        };
        let mut differences = Vec::new();
        if !self.follows_nic() && seen.mac.as_ref() != Some(&self.mac) {
            differences.push(format!("MAC {}", seen.mac.as_deref().unwrap_or("none")));
        }
        if !self.follows_nic() && seen.mtu_request != Some(self.mtu) {
            differences.push(format!("MTU {}", seen.mtu_request.unwrap_or_default()));
        }
        if seen.fail_mode.as_deref() != Some(FAIL_MODE) {
            let mode = seen.fail_mode.as_deref().unwrap_or("none");
            differences.push(format!("fail_mode {mode}"));
        }
        view.of_switch(State::of(&differences))
    }

    fn make(&self, actual: &Actual) -> Vec<Change> {
        let switch = &actual.switch;
        let mut config = StringMap::new();
        if !self.follows_nic() {
            config.insert("hwaddr".to_owned(), self.mac.clone());
        }
        let mut ids = StringMap::from([(MARK.to_owned(), MADE.to_owned())]);
        match &self.nic {
            Some(nic) => {
                ids.insert(NIC.to_owned(), nic.clone());
                ids.insert("bridge-id".to_owned(), self.name.clone());
            }
            None if self.follows_nic() => {}
            // In seconds, the maximum: packets to a forgotten address go to every node.
            None => drop(config.insert("mac-aging-time".to_owned(), "3600".to_owned())),
        }
        let Some(seen) = switch.bridges.get(&self.name) else {
            let spec = BridgeSpec {
                name: self.name.clone(),
                datapath_type: Some(self.datapath.clone()),
                fail_mode: Some(FAIL_MODE.to_owned()),
                other_config: config,
                external_ids: ids,
                mtu_request: (!self.follows_nic()).then_some(self.mtu),
            };
            return transaction(switch.root.map(|root| add_bridge(root, &spec).transaction));
        };
        let mut change = Transaction::new();
        set_keys(&mut change, "Bridge", seen.uuid, "other_config", &config);
        let columns = Columns::new().set("fail_mode", FAIL_MODE);
        change.update("Bridge", Condition::uuid(seen.uuid), columns);
        if let Some(local) = seen.local.filter(|_| !self.follows_nic()) {
            let columns = Columns::new().set("mtu_request", self.mtu);
            change.update("Interface", Condition::uuid(local), columns);
        }
        transaction(Some(change))
    }

    /// With all that is on it.
    fn remove(&self, actual: &Actual) -> Vec<Change> {
        let switch = &actual.switch;
        let there = switch.root.zip(switch.bridges.get(&self.name));
        transaction(there.map(|(root, seen)| {
            let mut change = Transaction::new();
            let gone = Mutation::delete("bridges", seen.uuid);
            change.mutate("Open_vSwitch", Condition::uuid(root), gone);
            change
        }))
    }

    fn marked(view: &View<'_>) -> Vec<Item> {
        let switch = &view.actual.switch;
        let bridges = switch.bridges.iter();
        bridges
            .filter(|(_, seen)| switch.answers && seen.ours)
            .map(|(name, _)| {
                Item::Bridge(Self {
                    name: name.clone(),
                    ..Self::default()
                })
            })
            .collect()
    }
}
