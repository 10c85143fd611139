//! The ports of the bridge, as its flows need them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use macaddr::MacAddr6;
use podwire_ovs::client::{Changed, State};
use podwire_ovs::openflow::management_socket;
use podwire_ovs::replica::Db;
use podwire_ovs::value::Uuid;
use podwire_ovs::vswitch::{Bridge, Interface};

use super::record::parse_addresses;
use super::{AddedPort, Ports};
use crate::plan::{AttachmentKey, ids, mac_text};

/// A port with port security: its pod may send from these addresses only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecuredPort {
    /// The pod's MAC address.
    pub mac: MacAddr6,
    /// The pod's addresses. If there are none, only its MAC address is restricted.
    pub addresses: Vec<IpAddr>,
}

/// The ports of the bridge.
#[derive(Debug, Default)]
pub struct BridgePorts {
    /// The MAC address of the bridge's local port.
    pub local_mac: Option<MacAddr6>,
    /// podwire's ports with port security, by port number.
    pub secured: HashMap<u16, Arc<SecuredPort>>,
    /// All port numbers in use.
    pub numbers: HashSet<u16>,
    /// Number of ports without port security, podwire's and others.
    others: usize,
    /// What was parsed from each row, so that an unchanged row is not parsed again.
    read: HashMap<Uuid, (u16, Option<Arc<SecuredPort>>)>,
    /// Whether the bridge has been read.
    is_read: bool,
}

/// The ports that changed.
#[derive(Debug, Default)]
pub struct Touched {
    /// Any port may have changed.
    pub all: bool,
    /// Otherwise, the ports with these numbers.
    pub numbers: BTreeSet<u16>,
}

impl BridgePorts {
    /// Whether any port has no port security.
    pub fn has_others(&self) -> bool {
        self.others > 0
    }

    fn insert(&mut self, row: Uuid, read: (u16, Option<Arc<SecuredPort>>)) {
        let (number, port) = &read;
        match port {
            Some(port) if *number > 0 => drop(self.secured.insert(*number, Arc::clone(port))),
            Some(_) => {}
            None => self.others += 1,
        }
        if *number > 0 {
            self.numbers.insert(*number);
        }
        self.read.insert(row, read);
    }

    fn remove(&mut self, row: Uuid) -> Option<(u16, Option<Arc<SecuredPort>>)> {
        let (number, port) = self.read.remove(&row)?;
        self.numbers.remove(&number);
        match port {
            Some(_) => drop(self.secured.remove(&number)),
            None => self.others -= 1,
        }
        Some((number, port))
    }
}

fn mac_in_use(interface: &Interface<'_>) -> Option<MacAddr6> {
    interface.mac_in_use()?.parse().ok()
}

/// The port's number; 0 while it is not in service.
fn number(interface: &Interface<'_>) -> u16 {
    let number = interface.ofport().and_then(|it| u16::try_from(it).ok());
    number.unwrap_or_default()
}

impl Ports {
    /// Updates `known` from the rows that changed since the last call, collects the ports
    /// concerned, and returns whether anything changed. Does nothing while the replica is stale or
    /// the bridge is missing. The cost depends on the changed rows alone: an ADD changes its own
    /// port's rows five times, and looks at nothing else beside a thousand other ports.
    pub fn on_bridge(
        &self,
        known: &mut BridgePorts,
        changed: &Changed,
        touched: &mut Touched,
    ) -> Option<bool> {
        if self.client.state() != State::Synced {
            return None;
        }
        self.client.read(|db| {
            let bridge = db.bridge_by_name(&self.bridge)?;
            // A port moves from one bridge to another without a change of its own row.
            let of_another =
                |(table, row): &(&str, Uuid)| *table == "Bridge" && *row != bridge.uuid();
            if !known.is_read || changed.resynced || changed.rows.iter().any(of_another) {
                self.read_all(db, &bridge, known);
                touched.all = true;
                return Some(true);
            }
            let interfaces: HashSet<Uuid> = changed
                .rows
                .iter()
                .flat_map(|&(table, row)| {
                    let port = (table == "Port").then(|| db.port(row)).flatten();
                    let itself = (table == "Interface").then_some(row);
                    port.into_iter()
                        .flat_map(|port| port.interfaces())
                        .chain(itself)
                })
                .collect();
            let is_here = |interface: &Uuid| {
                let port = db.port_of_interface(*interface);
                let on = port.and_then(|port| db.bridge_of_port(port.uuid()));
                on.is_some_and(|on| on.uuid() == bridge.uuid())
            };
            let (here, gone): (Vec<Uuid>, Vec<Uuid>) = interfaces.into_iter().partition(is_here);
            let mut is_new = false;
            // Removals first: another port may already have the number.
            for (number, _) in gone.into_iter().filter_map(|row| known.remove(row)) {
                touched.numbers.insert(number);
                is_new = true;
            }
            for interface in here.into_iter().filter_map(|row| db.interface(row)) {
                is_new |= self.read_again(interface, known, touched);
            }
            Some(is_new)
        })
    }

    /// A port's external_ids don't change while its row lives, so they are taken from `known`.
    fn read_all(&self, db: &Db, bridge: &Bridge<'_>, known: &mut BridgePorts) {
        let mut before = std::mem::take(&mut known.read);
        *known = BridgePorts {
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
                known.local_mac = mac_in_use(&interface);
                continue;
            }
            let port = match before.remove(&interface.uuid()) {
                Some((_, port)) => port,
                None => self.secured(interface),
            };
            known.insert(interface.uuid(), (number(&interface), port));
        }
    }

    /// Parses one row again, and returns whether the result differs.
    fn read_again(
        &self,
        interface: Interface<'_>,
        known: &mut BridgePorts,
        touched: &mut Touched,
    ) -> bool {
        if interface.name() == self.bridge {
            let mac = mac_in_use(&interface);
            return std::mem::replace(&mut known.local_mac, mac) != mac;
        }
        let (row, now) = (interface.uuid(), number(&interface));
        if known
            .read
            .get(&row)
            .is_some_and(|(before, _)| *before == now)
        {
            return false;
        }
        let port = match known.remove(row) {
            Some((before, port)) => {
                touched.numbers.insert(before);
                port
            }
            None => self.secured(interface),
        };
        touched.numbers.insert(now);
        known.insert(row, (now, port));
        true
    }

    /// Whether ovs-vswitchd is restoring the flows it had before a restart (`ovs-ctl restart`).
    /// `ovs-ofctl replace-flows` would overwrite any flow sent now.
    pub fn are_flows_restored(&self) -> bool {
        self.client.read(|db| {
            let switch = db.open_vswitch();
            switch.is_some_and(|it| it.other_config().str("flow-restore-wait") == Some("true"))
        })
    }

    /// The port that has a MAC address. The port with this iface-id does not count, because an
    /// older sandbox's port gives way; neither do ports being removed.
    pub fn holder_of_mac(
        &self,
        mac: MacAddr6,
        except: &str,
        is_leaving: impl Fn(&AttachmentKey) -> bool,
    ) -> Option<String> {
        let text = mac_text(mac);
        self.holder(except, is_leaving, |db| {
            db.interfaces_with_mac(&text).collect()
        })
    }

    /// The port whose pod has an address, except for the port with this iface-id and ports being
    /// removed.
    pub fn holder_of_address(
        &self,
        address: IpAddr,
        except: &str,
        is_leaving: impl Fn(&AttachmentKey) -> bool,
    ) -> Option<String> {
        let has = |interface: &Interface<'_>| {
            let list = interface.external_id(ids::IP_ADDRESSES).unwrap_or_default();
            parse_addresses(list).any(|held| held.addr() == address)
        };
        self.holder(except, is_leaving, |db| {
            db.interfaces().filter(has).collect()
        })
    }

    fn holder(
        &self,
        except: &str,
        is_leaving: impl Fn(&AttachmentKey) -> bool,
        holding: impl for<'a> Fn(&'a Db) -> Vec<Interface<'a>>,
    ) -> Option<String> {
        self.client.read(|db| {
            let is_other = |it: &Interface<'_>| {
                let key = AttachmentKey::of_row(|name| it.external_id(name));
                it.external_id(ids::IFACE_ID) != Some(except)
                    && it.external_id(ids::BRIDGE).is_none()
                    && !key.is_some_and(|key| is_leaving(&key))
            };
            let found = holding(db).into_iter().find(is_other)?;
            Some(match found.external_id(ids::POD) {
                Some(pod) => format!("pod {pod}"),
                None if found.name() == self.bridge => {
                    format!("the pods' gateway, bridge {}", self.bridge)
                }
                None => format!("port {} of this node", found.name()),
            })
        })
    }

    /// The number that ovs-vswitchd gave a port.
    pub fn ofport(&self, port: &AddedPort) -> Option<u16> {
        let ofport = self
            .client
            .read(|db| db.interface(port.interface).and_then(|it| it.ofport()));
        ofport.and_then(|ofport| u16::try_from(ofport).ok())
    }

    /// Where ovs-vswitchd listens for OpenFlow connections to the bridge.
    pub fn management_socket(&self) -> std::path::PathBuf {
        management_socket(&self.rundir, &self.bridge)
    }

    /// Whether a port has port security: its network decides, or else the node. A row without the
    /// key was written before port security existed; its pod may rely on sending what port security
    /// drops.
    pub fn has_port_security(&self, said: Option<&str>) -> bool {
        match said {
            Some("default") => self.port_security,
            said => said == Some("on"),
        }
    }

    /// Whether any port has port security.
    pub fn any_has_port_security(&self) -> bool {
        self.client.read(|db| {
            let said = |it: Interface<'_>| it.external_id(ids::PORT_SECURITY).map(str::to_owned);
            db.interfaces()
                .filter_map(said)
                .any(|said| self.has_port_security(Some(&said)))
        })
    }

    /// What a port of podwire may send; None without port security.
    fn secured(&self, interface: Interface<'_>) -> Option<Arc<SecuredPort>> {
        AttachmentKey::of_row(|id| interface.external_id(id))?;
        if !self.has_port_security(interface.external_id(ids::PORT_SECURITY)) {
            return None;
        }
        let mac = interface.external_id(ids::ATTACHED_MAC)?.parse().ok()?;
        let list = interface.external_id(ids::IP_ADDRESSES).unwrap_or_default();
        let addresses = parse_addresses(list).map(|net| net.addr()).collect();
        Some(Arc::new(SecuredPort { mac, addresses }))
    }
}
