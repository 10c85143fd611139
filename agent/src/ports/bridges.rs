//! The bridges that network configurations name: an operator creates them, and says whether they
//! may be named.

use std::time::Duration;

use podwire_ovs::vswitch::PortSpec;

use super::ovn::node_entry;
use super::{PortError, Ports};
use crate::plan::SwitchPort;

/// Key in a Bridge row's external_ids: whether network configurations may name it.
pub const ATTACH: &str = "podwire.io/attach";

/// Who else has to do with a bridge that a network configuration names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BridgeClaims {
    /// The physical network of OVN that it carries (`ovn-bridge-mappings`).
    pub network: Option<String>,
    /// `true` or `false`, if the operator has said whether network configurations may name it.
    pub said: Option<String>,
}

/// The key of the node's bridges for OVN's physical networks (ovn-controller(8)).
const MAPPINGS: &str = "ovn-bridge-mappings";

/// Its entries: physical networks, each with its bridge.
fn entries(mappings: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = mappings.split(',').filter_map(|it| it.rsplit_once(':'));
    pairs.map(|(network, bridge)| (network.trim(), bridge.trim()))
}

impl Ports {
    /// Waits until the replica is current, and no longer: a bridge that network configurations name
    /// is there, or an operator has yet to create it.
    ///
    /// # Errors
    /// [`PortError::NotConnected`] and [`PortError::NoBridge`].
    pub async fn ready_on(&self, bridge: &str, patience: Duration) -> Result<(), PortError> {
        if bridge == self.bridge {
            return self.ready(patience).await;
        }
        self.synced(patience).await?;
        let is_there = self.client.read(|db| db.bridge_by_name(bridge).is_some());
        is_there.then_some(()).ok_or_else(|| self.no_bridge(bridge))
    }

    /// Confirms that ovn-controller connects a physical network, by the first of its names that
    /// `ovn-bridge-mappings` has. It does so only with a bridge that exists
    /// (`add_bridge_mappings` in OVN's controller/patch.c).
    ///
    /// # Errors
    /// [`PortError::NoMapping`].
    pub fn confirm_mapping(&self, names: &[&str]) -> Result<(), PortError> {
        self.client.read(|db| {
            let (key, mappings) = node_entry(db, MAPPINGS);
            let of = |name: &&str| entries(&mappings).find(|(network, _)| network == name);
            let mapped = names.iter().find_map(of).map(|(_, bridge)| bridge);
            if mapped.is_some_and(|it| db.bridge_by_name(it).is_some()) {
                return Ok(());
            }
            Err(PortError::NoMapping {
                network: (*names.first().unwrap_or(&"")).to_owned(),
                bridge: mapped.map(str::to_owned),
                key,
                mappings: mappings.clone(),
            })
        })
    }

    /// What OVN on this node uses a bridge for, and what an operator has said about ports of
    /// network configurations on it.
    pub fn claims(&self, bridge: &str) -> BridgeClaims {
        self.client.read(|db| {
            let (_, mappings) = node_entry(db, MAPPINGS);
            let network = entries(&mappings).find(|(_, mapped)| *mapped == bridge);
            let said = db.bridge_by_name(bridge);
            BridgeClaims {
                network: network.map(|(network, _)| network.to_owned()),
                said: said.and_then(|it| Some(it.external_id(ATTACH)?.to_owned())),
            }
        })
    }

    /// The port of a bridge that has an OpenFlow port number.
    pub fn holder_of_ofport(&self, bridge: Option<&str>, ofport: u16) -> Option<String> {
        let bridge = bridge.unwrap_or(&self.bridge);
        self.client.read(|db| {
            let ports = db.bridge_by_name(bridge)?.ports();
            let interfaces = ports
                .filter_map(|port| db.port(port))
                .flat_map(|port| port.interfaces())
                .filter_map(|interface| db.interface(interface));
            let mut holders = interfaces.filter(|it| it.ofport() == Some(i64::from(ofport)));
            Some(holders.next()?.name().to_owned())
        })
    }

    /// Whether a bridge has the userspace datapath; None if it does not exist.
    pub fn is_netdev(&self, bridge: &str) -> Option<bool> {
        self.client.read(|db| {
            let bridge = db.bridge_by_name(bridge)?;
            Some(bridge.datapath_type() == "netdev")
        })
    }
}

/// Puts a port where it belongs, before it is created.
pub(super) fn set_switch_port(spec: &mut PortSpec, place: &SwitchPort) {
    spec.ofport_request = place.ofport_request.or(spec.ofport_request);
    if let Some(vlan) = &place.vlan {
        spec.tag = vlan.tag;
        spec.trunks = vlan.trunks.iter().collect();
        spec.vlan_mode = Some(vlan.mode().to_owned());
    }
}
