//! The NIC in the gateway bridge, with the addresses, routes and rules that were on it.
//!
//! The change is a group that must not stay half made: its inverse is recorded before, and a guard
//! process executes it at a deadline unless the new path was verified (`apply`).

mod transfer;

use podwire_ovs::replica::Db;
use podwire_ovs::transact::{Columns, Condition, Mutation, Transaction};
use podwire_ovs::value::{Uuid, Value};
use podwire_ovs::vswitch::StringMap;
use serde::{Deserialize, Serialize};

use super::rows::{add_port, strings};
use super::{Actual, Change, Item, Kind, State, View, link};
use crate::MARK;
use crate::moved::{Held, Moved, Phase};

/// The key of a bridge's `external_ids` that names its NIC, as ovn-kubernetes has it. It is how the
/// choice of the NIC outlives a boot.
pub(crate) const NIC: &str = "bridge-uplink";

/// The name of the file that takes the NIC out of the bridge at the next boot.
pub(crate) const BOOT_FILE: &str = "91-podwire-uplink.conf";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Uplink {
    pub(crate) nic: String,
    pub(crate) bridge: String,
    /// Whether this process may move it: `init` may, which a person started.
    #[serde(default)]
    pub(crate) moves: bool,
}

/// podwire's gateway bridge and its NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UplinkSeen {
    pub(crate) nic: String,
    pub(crate) bridge: String,
    row: Uuid,
    /// The NIC's port; None if it is in no bridge.
    port: Option<Uuid>,
}

impl UplinkSeen {
    pub(crate) fn find(db: &Db) -> Option<Self> {
        db.rows("Bridge").find_map(|row| {
            let mut ids = strings(&row);
            ids.remove(MARK)?;
            let nic = ids.remove(NIC)?;
            let mut ports = row.references("ports");
            let port = ports.find(|port| {
                let port = db.row("Port", *port);
                port.is_some_and(|port| port.str("name") == Some(&*nic))
            });
            Some(Self {
                nic,
                bridge: row.str("name")?.to_owned(),
                row: row.uuid(),
                port,
            })
        })
    }

    /// Whether the NIC is in the bridge.
    pub(crate) fn has_port(&self) -> bool {
        self.port.is_some()
    }
}

impl Uplink {
    fn seen<'a>(&self, actual: &'a Actual) -> Option<&'a UplinkSeen> {
        let seen = actual.switch.uplink.as_ref();
        seen.filter(|seen| seen.nic == self.nic && seen.bridge == self.bridge)
    }

    fn transfer(&self, held: &Held, actual: &Actual, back: bool) -> [Vec<Change>; 2] {
        let index = |name: &str| Some((name.to_owned(), actual.index(name)?));
        let (nic, bridge) = (index(&self.nic), index(&self.bridge));
        let (from, to) = match back {
            false => (nic, bridge),
            true => (bridge, nic),
        };
        // Without the bridge's link there is nothing to remove from it.
        to.map_or_else(Default::default, |to| transfer::changes(held, from, to))
    }

    /// What is recorded before a change: what the NIC has, or had before it was moved.
    fn record(&self, actual: &Actual) -> Moved {
        let record = actual.moved.as_ref();
        let had = match record.filter(|moved| moved.is_there()) {
            // What came onto the bridge since belongs to the NIC, too.
            Some(Moved { phase, had, .. }) => match actual.held.get(&self.bridge) {
                Some(held) if *phase == Phase::Confirmed && held.has_addresses() => held.clone(),
                _ => had.clone(),
            },
            None => actual.held.get(&self.nic).cloned().unwrap_or_default(),
        };
        Moved {
            nic: self.nic.clone(),
            bridge: self.bridge.clone(),
            phase: Phase::Moving {
                until: String::new(),
            },
            had,
        }
    }

    /// What moves back what the NIC had, and takes it out of the bridge. The kernel's part comes
    /// first: it does not wait for a database that does not answer.
    fn back(&self, held: &Held, actual: &Actual) -> Vec<Change> {
        let [mut changes, switched] = self.transfer(held, actual, true);
        changes.extend(switched);
        let seen = self.seen(actual);
        if let Some((row, port)) = seen.and_then(|seen| Some((seen.row, seen.port?))) {
            let mut change = Transaction::new();
            let gone = Mutation::delete("ports", port);
            change.mutate("Bridge", Condition::uuid(row), gone);
            changes.push(Change::Switch(change));
        }
        changes
    }
}

impl Kind for Uplink {
    fn identity(&self) -> String {
        format!("uplink {} in {}", self.nic, self.bridge)
    }

    fn details(&self) -> String {
        ", with its addresses, routes and rules".to_owned()
    }

    fn removed(&self) -> String {
        let Self { nic, bridge, .. } = self;
        format!("took {nic} out of {bridge}, with its addresses, routes and rules")
    }

    fn state(&self, view: &View<'_>) -> State {
        let actual = view.actual;
        let record = actual.moved.as_ref();
        let phase = record.map(|moved| &moved.phase);
        if let Some(Phase::RolledBack { why }) = phase {
            let awaited = format!("`podwire node init`: it was moved back: {why}");
            return State::Waits(awaited);
        }
        if let Some(awaited) = link::lacks(view, &self.bridge) {
            return State::Waits(awaited);
        }
        // Without it, the next boot would lose the machine.
        let unwritten = view.items.iter().find_map(|item| match item {
            Item::File(file) if file.path.ends_with(BOOT_FILE) => {
                (actual.files.get(&file.path) != Some(&file.text)).then_some(&file.path)
            }
            _ => None,
        });
        let is_in = self.seen(actual).is_some_and(UplinkSeen::has_port);
        let mut addresses = actual.addresses.iter();
        let has_addresses = addresses.any(|seen| seen.link == self.nic && seen.universe);
        let state = match (is_in, has_addresses) {
            (true, false) => return State::Well { ours: true },
            (true, true) => State::Differs(format!("its addresses are on {}", self.nic)),
            (false, true) => State::Missing,
            (false, false) => State::Differs(format!("not a port of {}", self.bridge)),
        };
        if let Some(path) = unwritten {
            return State::Waits(format!("file {path}"));
        }
        match self.moves {
            true => view.of_switch(state),
            false => State::Waits("`podwire node init`, which alone moves it".to_owned()),
        }
    }

    fn guarded(&self, actual: &Actual) -> Option<Moved> {
        Some(self.record(actual))
    }

    fn make(&self, actual: &Actual) -> Vec<Change> {
        let Some(seen) = self.seen(actual) else {
            return Vec::new();
        };
        let held = actual.held.get(&self.nic).cloned().unwrap_or_default();
        let [staged, switched] = self.transfer(&held, actual, false);
        let mut changes = staged;
        if !seen.has_port() {
            let mut change = Transaction::new();
            // What ovs-ctl's --delete-transient-ports removes at the next boot.
            let config = StringMap::from([("transient".to_owned(), "true".to_owned())]);
            let port = Columns::new().set("other_config", Value::map(&config));
            add_port(&mut change, seen.row, &self.nic, Columns::new(), port);
            changes.push(Change::Switch(change));
        }
        changes.push(Change::Attached(self.nic.clone()));
        changes.extend(switched);
        changes
    }

    fn remove(&self, actual: &Actual) -> Vec<Change> {
        self.back(&self.record(actual).had, actual)
    }

    fn marked(view: &View<'_>) -> Vec<Item> {
        let actual = view.actual;
        let seen = actual.switch.uplink.as_ref();
        let seen = seen.filter(|seen| seen.has_port());
        let names = seen.map(|seen| (&seen.nic, &seen.bridge));
        // Without its rows, too: somebody may have removed the bridge.
        let record = actual.moved.as_ref().filter(|moved| moved.is_there());
        let names = names.or(record.map(|moved| (&moved.nic, &moved.bridge)));
        let item = names.map(|(nic, bridge)| {
            Item::Uplink(Self {
                nic: nic.clone(),
                bridge: bridge.clone(),
                moves: false,
            })
        });
        item.into_iter().collect()
    }
}
