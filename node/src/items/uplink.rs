//! The NIC in the gateway bridge, with the addresses, routes and rules that were on it.
//!
//! The change is a group that must not stay half made: its inverse is recorded before, and a guard
//! process executes it at a deadline unless the new path was verified (`apply`).

mod managed;
mod transfer;

use std::collections::BTreeSet;
use std::path::Path;

use podwire_ovs::replica::Db;
use podwire_ovs::transact::{Columns, Condition, Mutation, Transaction};
use podwire_ovs::value::{Uuid, Value};
use podwire_ovs::vswitch::{StringMap, set_keys};
use serde::{Deserialize, Serialize};

use super::rows::{add_port, strings};
use super::{Actual, CHANGE, Change, Item, Kind, State, View, link};
use crate::MARK;
use crate::manager::Manager;
use crate::moved::{Moved, NicConfig, Phase};
use crate::network_manager::Deed;
use crate::networkd::{FILES, Managed};
pub(crate) use managed::{ManagedConfig, lasting, stand_ins};
use transfer::Lifetimes;

/// The key of a bridge's `external_ids` that names its NIC, as ovn-kubernetes has it. It is how the
/// choice of the NIC outlives a boot.
pub(crate) const NIC: &str = "bridge-uplink";

/// The kind of a link of Open vSwitch's userspace datapath.
const TAP: &str = "tun";

/// Its key that says that the move was confirmed: `podwire node run` makes it again after a boot.
const CONFIRMED: &str = "podwire.io/uplink-confirmed";

/// Its key with what the NIC had by then, which it has to have again.
const HAD: &str = "podwire.io/uplink-had";
const BETWEEN: &str = ", ";

/// The name of the file that takes the NIC out of the bridge at the next boot.
pub(crate) const BOOT_FILE: &str = "91-podwire-uplink.conf";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Uplink {
    pub(crate) nic: String,
    pub(crate) bridge: String,
    /// Whether this process may move it: `init` may, which a person started.
    #[serde(default)]
    pub(crate) moves: bool,
    /// What it does not have yet of what it had when its move was confirmed in an earlier boot.
    #[serde(default)]
    pub(crate) lacks: Vec<String>,
}

/// podwire's gateway bridge and its NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedUplink {
    pub(crate) nic: String,
    pub(crate) bridge: String,
    row: Uuid,
    /// The NIC's port; None if it is in no bridge.
    port: Option<Uuid>,
    /// Whether its move was confirmed, in this boot or an earlier one.
    pub(crate) confirmed: bool,
    /// What the NIC had by then.
    had: BTreeSet<String>,
}

impl ObservedUplink {
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
            let had = ids.remove(HAD).unwrap_or_default();
            let had = had.split(BETWEEN).filter(|it| !it.is_empty());
            Some(Self {
                confirmed: ids.contains_key(CONFIRMED),
                had: had.map(str::to_owned).collect(),
                nic,
                bridge: row.str("name")?.to_owned(),
                row: row.uuid(),
                port,
            })
        })
    }

    /// What records that the move of a NIC with this configuration is confirmed, unless it is
    /// recorded.
    pub(crate) fn confirm(&self, config: &NicConfig) -> Option<Transaction> {
        let mut change = Transaction::new();
        let had = lasting(config);
        let text: Vec<&str> = had.iter().map(String::as_str).collect();
        let keys = [(CONFIRMED, "true".to_owned()), (HAD, text.join(BETWEEN))];
        let keys: StringMap = keys.map(|(key, value)| (key.to_owned(), value)).into();
        set_keys(&mut change, "Bridge", self.row, "external_ids", &keys);
        (!self.confirmed || self.had != had).then_some(change)
    }

    /// What a NIC with this configuration does not have of what it had then.
    pub(crate) fn lacks(&self, config: &NicConfig) -> Vec<String> {
        let has = lasting(config);
        self.had.difference(&has).cloned().collect()
    }

    /// Whether the NIC is in the bridge.
    pub(crate) fn has_port(&self) -> bool {
        self.port.is_some()
    }
}

impl Uplink {
    fn seen<'a>(&self, actual: &'a Actual) -> Option<&'a ObservedUplink> {
        let seen = actual.switch.uplink.as_ref();
        seen.filter(|seen| seen.nic == self.nic && seen.bridge == self.bridge)
    }

    fn transfer(&self, held: &NicConfig, actual: &Actual, back: bool) -> [Vec<Change>; 2] {
        let (nic, bridge) = (link_of(&self.nic, actual), link_of(&self.bridge, actual));
        let lifetimes = match actual.managed.contains_key(&self.nic) && !back {
            true => Lifetimes::Renewed,
            false => Lifetimes::Kept,
        };
        let (from, to) = match back {
            false => (nic, bridge),
            true => (bridge, nic),
        };
        // Without the bridge's link there is nothing to remove from it.
        to.map_or_else(Default::default, |to| {
            transfer::changes(held, from, to, lifetimes)
        })
    }

    /// Has a network manager let go of the NIC, which changes nothing on it.
    fn let_go(&self, held: &NicConfig, actual: &Actual) -> Vec<Change> {
        let Some(Manager::NetworkManager(managed)) = actual.managed.get(&self.nic) else {
            return Vec::new();
        };
        let kind = actual.links.get(&self.bridge).map(|link| &*link.kind);
        let told = managed.told(&self.bridge, kind == Some(TAP), &stand_ins(held));
        // When it begins to configure a link, it first restores what it has seen in the kernel's
        // settings when it began to know the link: for the bridge, that RAs are accepted.
        [
            Deed::Add(told),
            Deed::LetGo(self.bridge.clone()),
            Deed::LetGo(self.nic.clone()),
        ]
        .map(Change::NetworkManager)
        .into()
    }

    /// Has a network manager configure the bridge and no longer the NIC, which is in it by now.
    fn handed_over(&self, held: &NicConfig, actual: &Actual) -> Vec<Change> {
        let links = link_of(&self.nic, actual).zip(link_of(&self.bridge, actual));
        let (Some(manager), Some((nic, bridge))) = (actual.managed.get(&self.nic), links) else {
            return Vec::new();
        };
        match manager {
            Manager::Networkd(managed) => self.by_networkd(managed, held, nic, bridge),
            Manager::NetworkManager(managed) => {
                let kind = actual.links.get(&self.bridge).map(|link| &*link.kind);
                let told = managed.told(&self.bridge, kind == Some(TAP), &stand_ins(held));
                // Nobody else has had these addresses, and a question would keep them from use.
                let dad = |value: &str| {
                    let path = format!("net/ipv6/conf/{}/accept_dad", self.bridge);
                    let change = Change::Sysctl(path, value.to_owned());
                    actual.has_ipv6.then_some(change)
                };
                let learned = ManagedConfig {
                    addresses: Vec::new(),
                    ..ManagedConfig::of(held, &bridge)
                };
                let mut changes: Vec<Change> = dad("0").into_iter().collect();
                changes.push(Change::NetworkManager(Deed::Take(self.bridge.clone())));
                changes.push(Change::Renewed(learned));
                let settle = Deed::Settle(self.bridge.clone(), told);
                changes.push(Change::NetworkManager(settle));
                changes.push(Change::Renewed(ManagedConfig::of(held, &bridge)));
                changes.extend(transfer::addresses(held, &bridge, false));
                changes.extend(transfer::settled(held, &nic, &bridge));
                changes.extend(transfer::made_twice(held, &nic, &bridge));
                changes.extend(dad("1"));
                changes
            }
        }
    }

    fn by_networkd(
        &self,
        managed: &Managed,
        held: &NicConfig,
        nic: (String, u32),
        bridge: (String, u32),
    ) -> Vec<Change> {
        let Ok(texts) = managed.files(&self.nic, &self.bridge) else {
            return Vec::new();
        };
        let files = FILES.iter().zip(texts);
        let files = files.map(|(path, text)| Change::File((*path).to_owned(), Some(text)));
        let mut changes: Vec<Change> = files.collect();
        changes.push(Change::Nft(RELEASE, release_dropped(&self.nic)));
        changes.push(Change::Networkd);
        changes.push(Change::Renewed(ManagedConfig::of(held, &bridge)));
        changes.extend(transfer::passing(held, &bridge));
        changes.extend(transfer::settled(held, &nic, &bridge));
        changes.push(Change::Nft(RELEASE, release_passed()));
        changes
    }

    /// Has NetworkManager configure the NIC again.
    fn given_back(&self, held: &NicConfig, actual: &Actual) -> Vec<Change> {
        let Some(nic) = link_of(&self.nic, actual) else {
            return vec![Change::NetworkManager(Deed::Forget)];
        };
        let back = Deed::TakeBack(self.nic.clone(), stand_ins(held));
        let mut learned = ManagedConfig {
            addresses: Vec::new(),
            ..ManagedConfig::of(held, &nic)
        };
        learned.retain_defaults();
        let bridge = link_of(&self.bridge, actual);
        // Of two links with the same routes, NetworkManager may lose those of one.
        let let_go = bridge.iter().map(|it| Deed::LetGo(it.0.clone()));
        let mut changes: Vec<_> = let_go.chain([back]).map(Change::NetworkManager).collect();
        let bridge = bridge.unwrap_or_else(|| nic.clone());
        // What has a lease is a source of routes, and NetworkManager may not have it yet.
        changes.extend(transfer::addresses(held, &nic, true));
        changes.extend(transfer::settled(held, &bridge, &nic));
        changes.push(Change::NetworkManager(Deed::Forget));
        if !learned.routes.is_empty() {
            changes.push(Change::RenewedBack(learned));
            // It has removed again what others had set.
            changes.extend(transfer::addresses(held, &nic, false));
            changes.extend(transfer::settled(held, &bridge, &nic));
        }
        changes
    }

    /// Has systemd-networkd configure the NIC again, which is in no bridge any more. A lease stays
    /// there that it does not know, for its server may no longer answer.
    fn handed_back(&self, held: &NicConfig, actual: &Actual) -> Vec<Change> {
        let files = FILES.iter().filter(|path| Path::new(path).exists());
        let files = files.map(|path| Change::File((*path).to_owned(), None));
        let mut changes = vec![Change::Nft(RELEASE, release_passed())];
        changes.extend(files);
        changes.push(Change::Networkd);
        if let Some(nic) = link_of(&self.nic, actual) {
            changes.push(Change::Managed(nic.1));
            let bridge = link_of(&self.bridge, actual);
            let again = transfer::changes(held, bridge, nic, Lifetimes::Kept);
            let again = again.into_iter().flatten();
            // What is to be removed from the bridge is removed.
            changes.extend(again.filter(|it| !matches!(it, Change::Kernel(_, CHANGE))));
        }
        changes
    }

    /// What is recorded before a change: what the NIC has, or had before it was moved.
    fn record(&self, actual: &Actual) -> Moved {
        let record = actual.moved.as_ref();
        let config = match record.filter(|moved| moved.is_there()) {
            // What came onto the bridge since belongs to the NIC, too.
            Some(Moved { phase, config, .. }) => match actual.held.get(&self.bridge) {
                Some(held) if *phase == Phase::Confirmed && held.has_addresses() => held.clone(),
                _ => config.clone(),
            },
            None => {
                let is_in = self.seen(actual).is_some_and(ObservedUplink::has_port);
                // Somebody may have removed the record.
                let bridge = actual.held.get(&self.bridge);
                let bridge = bridge.filter(|held| is_in && held.has_addresses());
                let held = bridge.or(actual.held.get(&self.nic));
                held.cloned().unwrap_or_default()
            }
        };
        Moved {
            nic: self.nic.clone(),
            bridge: self.bridge.clone(),
            phase: Phase::Confirmed,
            config,
        }
    }

    /// What moves back what the NIC had, and takes it out of the bridge; who executes it does that
    /// first if the database answers (`apply`). The kernel's part does not wait for a database that
    /// doesn't.
    fn back(&self, held: &NicConfig, actual: &Actual) -> Vec<Change> {
        let [mut changes, switched] = self.transfer(held, actual, true);
        changes.extend(switched);
        let seen = self.seen(actual);
        if let Some((row, port)) = seen.and_then(|seen| Some((seen.row, seen.port?))) {
            let mut change = Transaction::new();
            let gone = Mutation::delete("ports", port);
            change.mutate("Bridge", Condition::uuid(row), gone);
            // Once the file is removed that takes the NIC out of the bridge at a boot, a row that
            // had come back would lose the machine.
            change.durable();
            changes.push(Change::Switch(change));
        }
        if actual.tells.networkd {
            changes.extend(self.handed_back(held, actual));
        }
        if actual.tells.network_manager {
            changes.extend(self.given_back(held, actual));
        }
        changes
    }
}

fn link_of(name: &str, actual: &Actual) -> Option<(String, u32)> {
    Some((name.to_owned(), actual.index(name)?))
}

const RELEASE: &str = "to keep a DHCP lease";
/// The table is there for a moment.
const RELEASE_TABLE: &str = "inet podwire-uplink";

/// systemd-networkd releases the NIC's lease when it no longer configures the NIC; the bridge has
/// the lease, so that its server must not hear of that.
fn release_dropped(nic: &str) -> String {
    format!(
        "{}add table {RELEASE_TABLE}\n\
         add chain {RELEASE_TABLE} out {{ type filter hook output priority 0; }}\n\
         add rule {RELEASE_TABLE} out oifname {nic:?} udp dport {{ 67, 547 }} drop\n",
        release_passed()
    )
}

fn release_passed() -> String {
    format!("add table {RELEASE_TABLE}\ndelete table {RELEASE_TABLE}\n")
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
        if !actual.links.contains_key(&self.nic) {
            return State::Waits(format!("link {}", self.nic));
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
        let is_in = self.seen(actual).is_some_and(ObservedUplink::has_port);
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
        match (self.moves, &self.lacks[..]) {
            (true, []) => view.of_switch(state),
            (true, lacks) => State::Waits(format!(
                "{} of {}, which it had when its move was confirmed",
                lacks.join(BETWEEN),
                self.nic
            )),
            (false, _) => State::Waits("`podwire node init`, which moves it".to_owned()),
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
        let mut changes = self.let_go(&held, actual);
        changes.extend(staged);
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
        changes.extend(self.handed_over(&held, actual));
        changes
    }

    fn remove(&self, actual: &Actual) -> Vec<Change> {
        self.back(&self.record(actual).config, actual)
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
                lacks: Vec::new(),
            })
        });
        item.into_iter().collect()
    }
}
