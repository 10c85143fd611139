//! The machine's actual state: the part that a plan is about.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use podwire_ovs::client::TlsKeys;
use podwire_ovs::value::Uuid;

use super::address::ObservedAddress;
use super::bridge::ObservedBridge;
use super::bridge_flows::{BridgePorts, Led, ObservedFlows};
use super::by_door::ObservedByDoor;
use super::key::Owned;
use super::link::ObservedLink;
use super::neighbour::ObservedNeighbour;
use super::nic_port::ObservedNic;
use super::port::ObservedPort;
use super::route::ObservedRoute;
use super::ssl::ObservedSsl;
use super::table::ObservedTable;
use super::tunnel::ObservedTunnel;
use super::uplink::ObservedUplink;
use crate::firewalld::ObservedFirewalld;
use crate::manager::{Manager, Tells};
use crate::moved::{Moved, NicConfig};
use crate::overlap::InUse;
use crate::southbound::{Chassis, ObservedEnd};

/// The actual state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Actual {
    /// podwire's part of Open vSwitch's database.
    pub(crate) switch: ObservedSwitch,
    /// Number of pods' ports.
    pub(crate) pods: usize,
    /// Links by name.
    pub(crate) links: BTreeMap<String, ObservedLink>,
    pub(crate) addresses: Vec<ObservedAddress>,
    /// Those of podwire's links.
    pub(crate) neighbours: Vec<ObservedNeighbour>,
    /// Those in table main, and podwire's in any table.
    pub(crate) routes: Vec<ObservedRoute>,
    /// What the kernel has on the links of the gateway bridge, by their names; empty without one.
    pub(crate) held: BTreeMap<String, NicConfig>,
    /// Why what they have can't be moved.
    pub(crate) immovable: BTreeMap<String, Vec<String>>,
    /// What configures them, beside podwire.
    pub(crate) managed: BTreeMap<String, Manager>,
    /// What was told to configure the bridge instead of the NIC.
    pub(crate) tells: Tells,
    /// The record of a moved NIC.
    pub(crate) moved: Option<Moved>,
    /// Whether nothing has changed for a while on a NIC that lacks some of what it had.
    pub(crate) nic_is_settled: bool,
    /// What the machine needs for itself.
    pub(crate) in_use: Vec<InUse>,
    /// The link of the default route, or the one that is kept as the uplink.
    pub(crate) default_link: Option<String>,
    /// The links of all default routes, the preferred one first.
    pub(crate) default_links: Vec<String>,
    /// The way by the door.
    pub(crate) by_door: ObservedByDoor,
    /// Whether nftables can change what a link sends.
    pub(crate) has_egress: bool,
    /// Whether the kernel has IPv6.
    pub(crate) has_ipv6: bool,
    /// Whether it has IPv6 forwarding per interface (6.17).
    pub(crate) force_forwarding: bool,
    /// Whether the uplink accepts router advertisements (ip-sysctl.rst, accept_ra).
    pub(crate) accept_ra: Option<String>,
    /// Values below /proc/sys by path: those requested, if they exist.
    pub(crate) sysctls: BTreeMap<String, String>,
    /// Where the record of a moved NIC is, or would be.
    pub(crate) record: PathBuf,
    /// The texts of Open vSwitch's units, by name.
    pub(crate) units: BTreeMap<String, String>,
    /// Files by path: those requested, if they exist.
    pub(crate) files: BTreeMap<String, String>,
    /// firewalld's state; None if it does not run.
    pub(crate) firewalld: Option<ObservedFirewalld>,
    /// What a gateway router leads to pods; none while that is not known.
    pub(crate) led: Option<BTreeSet<Led>>,
    /// The flows of the gateway bridge; none without it, or if ovs-vswitchd does not answer.
    pub(crate) flows: Option<ObservedFlows>,
    /// podwire's nftables tables by name, as far as they exist.
    pub(crate) tables: BTreeMap<&'static str, ObservedTable>,
    /// The digests of the tables as podwire has written them, if they are recorded.
    pub(crate) recorded_tables: BTreeMap<&'static str, String>,
    /// Whether the table of services exists.
    pub(crate) services: bool,
}

/// podwire's part of Open vSwitch's database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ObservedSwitch {
    /// Whether the database answers; otherwise this is its last known state.
    pub(crate) answers: bool,
    /// The row of `Open_vSwitch`.
    pub(crate) root: Option<Uuid>,
    /// Its external_ids; the entries of its bridge mappings and its other_config, prefixed with
    /// [`MAPPING`] or [`CONFIG`].
    ///
    /// [`MAPPING`]: crate::MAPPING
    /// [`CONFIG`]: crate::CONFIG
    pub(crate) keys: BTreeMap<String, String>,
    /// The physical networks that it connects: those in its bridge mappings whose bridge exists.
    pub(crate) networks: BTreeSet<String>,
    /// Whether it knows a limit of the connections of a zone; None until its schema is known.
    pub(crate) limits_connections: Option<bool>,
    /// Those that podwire set.
    pub(crate) owned: Owned,
    /// The content of /etc/openvswitch/system-id.conf, or else the key.
    pub(crate) system_id: Option<String>,
    /// Its TLS keys.
    pub(crate) ssl: Option<ObservedSsl>,
    /// Ports of links that are not pods', by name.
    pub(crate) nics: BTreeMap<String, ObservedNic>,
    /// Bridges by name.
    pub(crate) bridges: BTreeMap<String, ObservedBridge>,
    /// The tunnel ends of chassis in the southbound database; None if it does not answer or is not
    /// queried.
    pub(crate) ends: Option<Vec<ObservedEnd>>,
    /// Ports with the names of podwire's links to the network, by their names.
    pub(crate) ports: BTreeMap<&'static str, ObservedPort>,
    /// The addresses of pods here that have a primary network of their own.
    pub(crate) locked: BTreeSet<IpAddr>,
    /// The gateway bridge and its NIC.
    pub(crate) uplink: Option<ObservedUplink>,
    /// The ports of the gateway bridge.
    pub(crate) gateway: Option<BridgePorts>,
    /// Ports on the tunnel bridge that have podwire's mark, by name.
    pub(crate) tunnels: BTreeMap<String, ObservedTunnel>,
}

/// podwire's nftables tables, and whether that of services exists.
pub(crate) type Tables = (BTreeMap<&'static str, ObservedTable>, bool);

impl Actual {
    /// A key of the switch that podwire did not set.
    pub(crate) fn key(&self, key: &str) -> Option<&str> {
        self.switch.keys.get(key).map(String::as_str)
    }

    pub(crate) fn index(&self, link: &str) -> Option<u32> {
        self.links.get(link).map(|link| link.index)
    }
}

impl ObservedSwitch {
    /// The keys that ovn-controller uses.
    pub(crate) fn tls(&self) -> Option<TlsKeys> {
        self.ssl.as_ref().map(|ssl| ssl.keys.clone())
    }

    /// This machine in the southbound database, from ovn-controller's settings.
    pub(crate) fn chassis(&self) -> Option<Chassis> {
        Some(Chassis {
            name: self.keys.get("system-id")?.clone(),
            remote: self.keys.get("ovn-remote")?.clone(),
            tls: self.tls(),
        })
    }
}
