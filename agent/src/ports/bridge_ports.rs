//! What is on the bridge, as its flows need to know it.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use macaddr::MacAddr6;
use podwire_ovs::client::State;
use podwire_ovs::openflow::management_socket;
use podwire_ovs::value::Uuid;
use podwire_ovs::vswitch::Interface;

use super::record::{key, parse_addresses};
use super::{AddedPort, Ports};
use crate::plan::{AttachmentKey, ids, mac_text};

/// A port whose pod may only speak for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecuredPort {
    /// The pod's MAC address.
    pub mac: MacAddr6,
    /// The pod's addresses. Without any, nothing is known of what it may say beyond its MAC address.
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
}

impl Ports {
    /// What is on the bridge now; none while the replica is not current, or the bridge not there. A port's external_ids don't
    /// change as long as its row lives, so what is `known` of a row is taken from there.
    pub fn on_bridge(&self, known: &mut BridgePorts) -> Option<()> {
        if self.client.state() != State::Synced {
            return None;
        }
        let mut before = std::mem::take(&mut known.read);
        self.client.read(|db| {
            let bridge = db.bridge_by_name(&self.bridge)?;
            let mut now = BridgePorts::default();
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
                let number = interface.ofport().and_then(|it| u16::try_from(it).ok());
                let number = number.unwrap_or_default();
                let same = |read: &(u16, _)| read.0 == number;
                let read = before.remove(&interface.uuid()).filter(same);
                let read = read.unwrap_or_else(|| (number, self.secured(interface)));
                match &read.1 {
                    Some(port) if number > 0 => drop(now.secured.insert(number, Arc::clone(port))),
                    Some(_) => {}
                    None => now.others = true,
                }
                now.numbers.insert(number);
                now.read.insert(interface.uuid(), read);
            }
            *known = now;
            Some(())
        })
    }

    /// Whether ovs-vswitchd is being given back the flows that it had before a restart (`ovs-ctl restart`): what is sent to
    /// it now, `ovs-ofctl replace-flows` overwrites.
    pub fn are_flows_restored(&self) -> bool {
        self.client.read(|db| {
            let switch = db.open_vswitch();
            switch.is_some_and(|it| it.other_config().str("flow-restore-wait") == Some("true"))
        })
    }

    /// Who has a MAC address, other than the port of this iface-id (an older sandbox's port gives way)
    /// and those that are leaving.
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

    /// Whether a row's network, or else its node, has port security. A row that says nothing is from before there was port
    /// security: its pod was promised none, and may send what it drops.
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
