//! The bridges that network configurations name: an operator creates them, and says whether they
//! may be named.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use podwire_ovs::replica::Db;
use podwire_ovs::vswitch::{BridgeMappings, PortSpec};

use super::{PortError, PortRecord, Ports};
use crate::plan::{SwitchPort, ids};

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

/// Why ovn-controller does not connect a physical network on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmapped {
    /// The physical network.
    pub network: String,
    /// The node's mappings.
    mappings: BridgeMappings,
    /// The bridge that they name for the network, which does not exist.
    bridge: Option<String>,
}

impl Unmapped {
    /// Whether only the bridge is missing.
    pub fn has_mapping(&self) -> bool {
        self.bridge.is_some()
    }

    /// What is missing.
    pub fn problem(&self) -> String {
        let BridgeMappings { key, text } = &self.mappings;
        match (&self.bridge, text.as_str()) {
            (Some(bridge), _) => format!("bridge {bridge}, in {key}, does not exist"),
            (None, "") => "external_ids of Open_vSwitch has no ovn-bridge-mappings".to_owned(),
            (None, text) => format!("{key} has {text} only"),
        }
    }

    /// The command that fixes it; `BRIDGE` is for the reader to fill in.
    pub fn fix(&self) -> String {
        if let Some(bridge) = &self.bridge {
            return format!("ovs-vsctl add-br {bridge}");
        }
        let mut entries = self.mappings.cleaned();
        if !entries.is_empty() {
            entries.push(',');
        }
        entries.push_str(&format!("{}:BRIDGE", self.network));
        set_mappings(&self.mappings.key, &entries)
    }
}

impl fmt::Display for Unmapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (network, problem, fix) = (&self.network, self.problem(), self.fix());
        write!(
            f,
            "this node does not connect physical network {network}: {problem}; "
        )?;
        match self.has_mapping() {
            true => write!(f, "create it: {fix}"),
            false => write!(f, "name the bridge with its NIC: {fix}"),
        }
    }
}

/// The command that sets the mappings.
fn set_mappings(key: &str, entries: &str) -> String {
    match entries {
        "" => format!("ovs-vsctl remove Open_vSwitch . external_ids {key}"),
        entries => format!("ovs-vsctl set Open_vSwitch . 'external_ids:{key}=\"{entries}\"'"),
    }
}

/// The name of a physical network that ovn-controller connects, the first of these that its
/// mappings have. It does so only with a bridge that exists (`add_ovs_bridge_mappings` in OVN's
/// controller/patch.c).
fn mapped<'a>(db: &Db, names: &[&'a str]) -> Result<&'a str, Box<Unmapped>> {
    let mappings = BridgeMappings::of(db);
    let of = |name: &&'a str| {
        let mut entries = mappings.entries();
        let (_, bridge) = entries.find(|(network, _)| network == name)?;
        Some((*name, bridge.to_owned()))
    };
    let bridge = match names.iter().find_map(of) {
        Some((name, bridge)) if db.bridge_by_name(&bridge).is_some() => return Ok(name),
        Some((_, bridge)) => Some(bridge),
        None => None,
    };
    Err(Box::new(Unmapped {
        network: (*names.first().unwrap_or(&"")).to_owned(),
        mappings,
        bridge,
    }))
}

/// What is wrong with the node's mappings of physical networks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MappingFault {
    /// An entry that ovn-controller can't read.
    Entry {
        /// A description.
        problem: String,
        /// The command that leaves it out.
        fix: String,
    },
    /// A physical network is not connected.
    Unmapped {
        /// Why.
        by: Box<Unmapped>,
        /// The pods with ports on it.
        pods: Vec<String>,
    },
}

/// What is wrong with the node's mappings: each entry, and each physical network of these ports.
pub fn mapping_faults(db: &Db, ports: &[PortRecord]) -> Vec<MappingFault> {
    let mappings = BridgeMappings::of(db);
    if let Some(entry) = mappings.wrong_entry() {
        let key = &mappings.key;
        let problem = format!(
            "{key} has the entry {entry:?}, which is not NETWORK:BRIDGE without blanks; \
             ovn-controller reads no further, or takes a blank as a part of a name"
        );
        let fix = set_mappings(key, &mappings.cleaned());
        return vec![MappingFault::Entry { problem, fix }];
    }
    let entries = mappings.entries();
    let mut networks: BTreeMap<&str, BTreeSet<String>> = entries
        .map(|(network, _)| (network, BTreeSet::new()))
        .collect();
    for port in ports {
        if let Some(network) = port.external_ids.get(ids::PHYSICAL_NETWORK) {
            let pod = port.external_ids.get(ids::POD).unwrap_or(&port.name);
            networks.entry(network).or_default().insert(pod.clone());
        }
    }
    let networks = networks.into_iter();
    let faults = networks.filter_map(|(network, pods)| {
        let by = mapped(db, &[network]).err()?;
        let pods = pods.into_iter().collect();
        Some(MappingFault::Unmapped { by, pods })
    });
    faults.collect()
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

    /// The name of a physical network that ovn-controller connects here, by the first of its names
    /// that `ovn-bridge-mappings` has.
    ///
    /// # Errors
    /// [`PortError::NoMapping`].
    pub fn confirm_mapping(&self, names: &[&str]) -> Result<String, PortError> {
        let name = self.client.read(|db| mapped(db, names).map(str::to_owned));
        name.map_err(PortError::NoMapping)
    }

    /// What OVN on this node uses a bridge for, and what an operator has said about ports of
    /// network configurations on it.
    pub fn claims(&self, bridge: &str) -> BridgeClaims {
        self.client.read(|db| {
            let mappings = BridgeMappings::of(db);
            let network = mappings.entries().find(|(_, mapped)| *mapped == bridge);
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
