//! The switch as an operator sees it: the bridge, its tunnels, and the node's settings for OVN.

use std::path::PathBuf;

use podwire_ovs::replica::Db;
use serde::{Deserialize, Serialize};

use super::Ports;
use super::ovn::node_key;
use super::state::refusal;

/// What the database shows of the switch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SwitchView {
    /// The pods' bridge, if it exists.
    pub bridge: Option<BridgeView>,
    /// The node's OVN settings in external_ids.
    pub ovn: OvnView,
    /// The tunnels of all bridges.
    pub tunnels: Vec<Tunnel>,
}

/// A bridge.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BridgeView {
    /// `netdev`, or `system` for the kernel's.
    pub datapath: String,
    /// `secure` or `standalone`, when set.
    pub fail_mode: Option<String>,
    /// Its number of ports, including others'.
    pub ports: usize,
    /// Why its local port, and so the bridge, does not work.
    pub error: Option<String>,
}

/// The node's settings for ovn-controller (ovn-controller(8), "Configuration").
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OvnView {
    /// `ovn-remote`: the southbound database.
    pub remote: Option<String>,
    /// `system-id`: the chassis.
    pub chassis: Option<String>,
    /// `ovn-bridge`.
    pub bridge: Option<String>,
    /// `ovn-encap-type`, such as `geneve`.
    pub encap_type: Option<String>,
    /// `ovn-encap-ip`: the tunnels' local address.
    pub encap_ip: Option<String>,
    /// The files of the private key, the certificate and the CA certificate with which podwire
    /// asks the southbound database; empty without TLS.
    pub keys: Vec<PathBuf>,
}

/// A tunnel interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tunnel {
    /// Its name.
    pub name: String,
    /// `geneve`, `vxlan`, …
    pub kind: String,
    /// `options:local_ip`, if set.
    pub local: Option<String>,
    /// `options:remote_ip`, if set.
    pub remote: Option<String>,
}

/// The interface types that are tunnels (ovs-vswitchd.conf.db(5), Interface, "type").
const TUNNELS: [&str; 6] = ["geneve", "vxlan", "gre", "stt", "erspan", "gtpu"];

impl SwitchView {
    /// Reads a replica.
    pub fn read(db: &Db, bridge: &str) -> Self {
        let key = |name| node_key(db, name);
        let tunnel = |interface: podwire_ovs::vswitch::Interface<'_>| {
            let option = |name| interface.options().str(name).map(str::to_owned);
            TUNNELS
                .contains(&interface.interface_type())
                .then(|| Tunnel {
                    name: interface.name().to_owned(),
                    kind: interface.interface_type().to_owned(),
                    local: option("local_ip"),
                    remote: option("remote_ip"),
                })
        };
        let mut tunnels: Vec<Tunnel> = db.interfaces().filter_map(tunnel).collect();
        tunnels.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Self {
            bridge: db.bridge_by_name(bridge).map(|bridge| BridgeView {
                datapath: bridge.datapath_type().to_owned(),
                fail_mode: bridge.fail_mode().map(str::to_owned),
                ports: bridge.ports().count(),
                error: db
                    .interface_by_name(bridge.name())
                    .and_then(|local| refusal(&local))
                    .map(str::to_owned),
            }),
            ovn: OvnView {
                remote: key("ovn-remote"),
                chassis: key("system-id"),
                bridge: key("ovn-bridge"),
                encap_type: key("ovn-encap-type"),
                encap_ip: key("ovn-encap-ip"),
                keys: Vec::new(),
            },
            tunnels,
        }
    }
}

impl Ports {
    /// The switch as the replica shows it; its last state while there is no connection.
    pub fn switch(&self) -> SwitchView {
        self.client.read(|db| SwitchView::read(db, &self.bridge))
    }

    /// Whether the replica is current, and the connection's state as text.
    pub fn connection(&self) -> (bool, String) {
        let state = self.client.state();
        let synced = state == podwire_ovs::client::State::Synced;
        (synced, state.to_string())
    }
}
