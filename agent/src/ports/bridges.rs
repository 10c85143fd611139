//! The bridges that network configurations name: an operator creates them, and says whether they
//! may be named.

use std::time::Duration;

use podwire_ovs::vswitch::PortSpec;

use super::ovn::node_key;
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

    /// What OVN on this node uses a bridge for, and what an operator has said about ports of
    /// network configurations on it.
    pub fn claims(&self, bridge: &str) -> BridgeClaims {
        self.client.read(|db| {
            let mappings = node_key(db, "ovn-bridge-mappings").unwrap_or_default();
            let mut mappings = mappings.split(',').filter_map(|it| it.rsplit_once(':'));
            let network = mappings.find(|(_, mapped)| mapped.trim() == bridge);
            let said = db.bridge_by_name(bridge);
            BridgeClaims {
                network: network.map(|(network, _)| network.trim().to_owned()),
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
