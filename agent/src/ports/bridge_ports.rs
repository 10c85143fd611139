//! What is on the bridge, as its flows need to know it.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use macaddr::MacAddr6;
use podwire_ovs::client::{Changed, State};
use podwire_ovs::openflow::management_socket;
use podwire_ovs::replica::Db;
use podwire_ovs::value::Uuid;
use podwire_ovs::vswitch::{Bridge, Interface};

use super::record::{key, parse_addresses};
use super::{AddedPort, Ports};
use crate::plan::{AttachmentKey, ids, mac_text};

/// A port whose pod may only speak for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecuredPort {
    /// The pod's MAC address.
    pub mac: MacAddr6,
    /// The pod's addresses. Without any, nothing is known of what it may say beyond its MAC
    /// address.
    pub addresses: Vec<IpAddr>,
}

/// The ports of the bridge.
#[derive(Debug, Default)]
pub struct BridgePorts {
    /// The MAC address of the bridge's local port.
    pub local_mac: Option<MacAddr6>,
    /// By number, those of ours whose pods may only speak for themselves.
    pub secured: HashMap<u16, Arc<SecuredPort>>,
    /// Whether there are other ports.
    pub others: bool,
    /// Every number that is in use.
    pub numbers: HashSet<u16>,
    /// What was read of each row, by which a row that has not changed is not read again.
    read: HashMap<Uuid, (u16, Option<Arc<SecuredPort>>)>,
    /// Whether a bridge was read.
    is_read: bool,
}

impl BridgePorts {
    fn insert(&mut self, row: Uuid, read: (u16, Option<Arc<SecuredPort>>)) {
        let (number, port) = &read;
        if let Some(port) = port.as_ref().filter(|_| *number > 0) {
            self.secured.insert(*number, Arc::clone(port));
        }
        self.numbers.insert(*number);
        self.read.insert(row, read);
    }
}

/// The number of a port; 0 as long as it is not in service.
fn number(interface: &Interface<'_>) -> u16 {
    let number = interface.ofport().and_then(|it| u16::try_from(it).ok());
    number.unwrap_or_default()
}

impl Ports {
    /// Brings what is known of the bridge up to date with the rows that have changed since, and
    /// says whether anything was new; none while the replica is not current, or the bridge not
    /// there. All rows are looked at only when ports came or went: beside a thousand ports that is
    /// a millisecond, and an ADD changes rows of its own port five times.
    pub fn on_bridge(&self, known: &mut BridgePorts, changed: &Changed) -> Option<bool> {
        if self.client.state() != State::Synced {
            return None;
        }
        let are_ports_other = |(table, _): &(&str, Uuid)| ["Bridge", "Port"].contains(table);
        self.client.read(|db| {
            let bridge = db.bridge_by_name(&self.bridge)?;
            if !known.is_read || changed.resynced || changed.rows.iter().any(are_ports_other) {
                self.read_all(db, &bridge, known);
                return Some(true);
            }
            let mut is_new = false;
            let interfaces = changed.rows.iter().filter(|row| row.0 == "Interface");
            for interface in interfaces.filter_map(|row| db.interface(row.1)) {
                match self.read_again(interface, known) {
                    Some(is) => is_new |= is,
                    None => {
                        self.read_all(db, &bridge, known);
                        return Some(true);
                    }
                }
            }
            Some(is_new)
        })
    }

    /// A port's external_ids don't change as long as its row lives, so what is `known` of a row is
    /// taken from there.
    fn read_all(&self, db: &Db, bridge: &Bridge<'_>, known: &mut BridgePorts) {
        let mut before = std::mem::take(&mut known.read);
        let mut now = BridgePorts {
            is_read: true,
            ..BridgePorts::default()
        };
        let interfaces = bridge
            .ports()
            .filter_map(|port| db.port(port))
            .flat_map(|port| port.interfaces())
            .filter_map(|interface| db.interface(interface));
        for interface in interfaces {
            if interface.name() == self.bridge {
                now.local_mac = interface.mac_in_use().and_then(|mac| mac.parse().ok());
                continue;
            }
            let number = number(&interface);
            let same = |read: &(u16, _)| read.0 == number;
            let read = before.remove(&interface.uuid()).filter(same);
            let read = read.unwrap_or_else(|| (number, self.secured(interface)));
            now.others |= read.1.is_none();
            now.insert(interface.uuid(), read);
        }
        *known = now;
    }

    /// Whether a row of a port that stayed says something new; none when all has to be read for
    /// that.
    fn read_again(&self, interface: Interface<'_>, known: &mut BridgePorts) -> Option<bool> {
        if interface.name() == self.bridge {
            let mac = interface.mac_in_use().and_then(|mac| mac.parse().ok());
            let before = std::mem::replace(&mut known.local_mac, mac);
            return Some(before != mac);
        }
        let now = number(&interface);
        match known.read.get(&interface.uuid()) {
            // One of another bridge.
            None => Some(false),
            Some((before, _)) if *before == now => Some(false),
            // It has been put into service.
            Some((0, port)) => {
                let port = port.clone();
                known.insert(interface.uuid(), (now, port));
                Some(true)
            }
            Some(_) => None,
        }
    }

    /// Whether ovs-vswitchd is being given back the flows that it had before a restart (`ovs-ctl
    /// restart`): what is sent to it now, `ovs-ofctl replace-flows` overwrites.
    pub fn are_flows_restored(&self) -> bool {
        self.client.read(|db| {
            let switch = db.open_vswitch();
            switch.is_some_and(|it| it.other_config().str("flow-restore-wait") == Some("true"))
        })
    }

    /// Who has a MAC address, other than the port of this iface-id (an older sandbox's port gives
    /// way) and those that are leaving.
    pub fn holder_of_mac(
        &self,
        mac: MacAddr6,
        except: &str,
        is_leaving: impl Fn(&AttachmentKey) -> bool,
    ) -> Option<String> {
        let text = Some(mac_text(mac));
        let text = text.as_deref();
        self.holder(except, is_leaving, |interface| {
            interface.external_id(ids::ATTACHED_MAC) == text || interface.mac_in_use() == text
        })
    }

    /// Which port's pod has an address, other than the port of this iface-id and those that are
    /// leaving.
    pub fn holder_of_address(
        &self,
        address: IpAddr,
        except: &str,
        is_leaving: impl Fn(&AttachmentKey) -> bool,
    ) -> Option<String> {
        self.holder(except, is_leaving, |interface| {
            let list = interface.external_id(ids::IP_ADDRESSES).unwrap_or_default();
            parse_addresses(list).any(|held| held.addr() == address)
        })
    }

    fn holder(
        &self,
        except: &str,
        is_leaving: impl Fn(&AttachmentKey) -> bool,
        has: impl Fn(&Interface<'_>) -> bool,
    ) -> Option<String> {
        self.client.read(|db| {
            let is_other = |it: &Interface<'_>| {
                let key = key(|name| it.external_id(name));
                it.external_id(ids::IFACE_ID) != Some(except)
                    && !key.is_some_and(|key| is_leaving(&key))
            };
            let found = db.interfaces().find(|it| has(it) && is_other(it))?;
            Some(match found.external_id(ids::POD) {
                Some(pod) => format!("pod {pod}"),
                None if found.name() == self.bridge => {
                    format!("the pods' gateway, bridge {}", self.bridge)
                }
                None => format!("port {} of this node", found.name()),
            })
        })
    }

    /// The number that ovs-vswitchd has given to a port.
    pub fn ofport(&self, port: &AddedPort) -> Option<u16> {
        let ofport = self
            .client
            .read(|db| db.interface(port.interface).and_then(|it| it.ofport()));
        ofport.and_then(|ofport| u16::try_from(ofport).ok())
    }

    /// Where ovs-vswitchd listens for OpenFlow on the bridge.
    pub fn management_socket(&self) -> std::path::PathBuf {
        management_socket(&self.rundir, &self.bridge)
    }

    /// Whether a row's network, or else its node, has port security. A row that says nothing is
    /// from before there was port security: its pod was promised none, and may send what it drops.
    pub fn has_port_security(&self, said: Option<&str>) -> bool {
        match said {
            Some("default") => self.port_security,
            said => said == Some("on"),
        }
    }

    /// Whether the row of any port has port security.
    pub fn any_has_port_security(&self) -> bool {
        self.client.read(|db| {
            let said = |it: Interface<'_>| it.external_id(ids::PORT_SECURITY).map(str::to_owned);
            db.interfaces()
                .filter_map(said)
                .any(|said| self.has_port_security(Some(&said)))
        })
    }

    /// What a port of ours may send; none for one without port security.
    fn secured(&self, interface: Interface<'_>) -> Option<Arc<SecuredPort>> {
        key(|id| interface.external_id(id))?;
        if !self.has_port_security(interface.external_id(ids::PORT_SECURITY)) {
            return None;
        }
        let mac = interface.external_id(ids::ATTACHED_MAC)?.parse().ok()?;
        let list = interface.external_id(ids::IP_ADDRESSES).unwrap_or_default();
        let addresses = parse_addresses(list).map(|net| net.addr()).collect();
        Some(Arc::new(SecuredPort { mac, addresses }))
    }
}
