//! What is on the bridge, as its flows need to know it.

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
    /// Every number that is in use.
    pub numbers: HashSet<u16>,
    /// How many ports switch NORMAL, ours and others.
    others: usize,
    /// What was read of each row, by which a row that has not changed is not read again.
    read: HashMap<Uuid, (u16, Option<Arc<SecuredPort>>)>,
    /// Whether a bridge was read.
    is_read: bool,
}

/// Which ports are not as they were.
#[derive(Debug, Default)]
pub struct Touched {
    /// It may be any.
    pub all: bool,
    /// Or those of these numbers.
    pub numbers: BTreeSet<u16>,
}

impl BridgePorts {
    /// Whether there are ports that nothing holds to addresses.
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

/// The number of a port; 0 as long as it is not in service.
fn number(interface: &Interface<'_>) -> u16 {
    let number = interface.ofport().and_then(|it| u16::try_from(it).ok());
    number.unwrap_or_default()
}

impl Ports {
    /// Brings what is known of the bridge up to date with the rows that have changed since, says
    /// whether anything was new, and adds the ports that it is about; none while the replica is not
    /// current, or the bridge not there. What it costs depends on those rows alone: an ADD changes
    /// rows of its own port five times, and beside a thousand others that is all it looks at.
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
            // A port goes from one bridge to another without a change of its own row.
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
            // These first, for another may have their number by now.
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

    /// A port's external_ids don't change as long as its row lives, so what is `known` of a row is
    /// taken from there.
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

    /// Reads one row, and says whether it says something new.
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
        let text = mac_text(mac);
        self.holder(except, is_leaving, |db| {
            db.interfaces_with_mac(&text).collect()
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
