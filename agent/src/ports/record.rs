//! An Interface row as read back: its attachment and its state.

use std::collections::BTreeMap;

use ipnet::IpNet;
use itertools::Itertools as _;
use podwire_cni::spec::Vlans;
use podwire_ovs::replica::Db;
use podwire_ovs::value::Uuid;
use podwire_ovs::vswitch::{Interface, Port, PortRows};
use serde::Serialize;

use super::PortState;
use super::state::{refusal, says_installed};
use crate::config::Wait;
use crate::plan::{AttachmentKey, Bandwidth, ids};

/// A port as the replica has it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PortRecord {
    /// Name of port, interface and host link.
    pub name: String,
    /// The attachment; None when the row is not podwire's.
    pub key: Option<AttachmentKey>,
    /// `namespace/name` of the pod.
    pub pod: Option<String>,
    /// The interface's name in the pod.
    pub pod_ifname: Option<String>,
    /// The bridge it is on.
    pub bridge: Option<String>,
    /// Its OpenFlow port number; -1 if Open vSwitch can't use the link.
    pub ofport: Option<i64>,
    /// Why Open vSwitch can't use the link.
    pub error: Option<String>,
    /// The VLAN columns of its Port row, as text.
    pub vlan: Option<String>,
    /// Its bandwidth limits.
    pub bandwidth: Bandwidth,
    /// The MTU of its host end in bytes, as Open vSwitch sees it.
    pub mtu: Option<i64>,
    /// All external_ids, including other writers' keys.
    pub external_ids: BTreeMap<String, String>,
    /// The Interface row.
    #[serde(skip)]
    pub interface: Uuid,
    /// The rows to remove along with it.
    #[serde(skip)]
    pub rows: Option<PortRows>,
}

impl PortRecord {
    /// Reads a row and those that belong to it.
    pub fn read(db: &Db, interface: Interface<'_>) -> Self {
        let external_ids: BTreeMap<String, String> = interface
            .external_ids()
            .strings()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let port = db.port_of_interface(interface.uuid());
        let vlan = port.and_then(vlan);
        let port = port.map(|port| port.uuid());
        let bridge = port.and_then(|port| db.bridge_of_port(port));
        Self {
            name: interface.name().to_owned(),
            key: AttachmentKey::of_row(|id| interface.external_id(id)),
            pod: external_ids.get(ids::POD).cloned(),
            pod_ifname: external_ids.get(ids::POD_IF_NAME).cloned(),
            bridge: bridge.map(|bridge| bridge.name().to_owned()),
            ofport: interface.ofport(),
            error: refusal(&interface).map(str::to_owned),
            vlan,
            bandwidth: Bandwidth::read(db, interface),
            mtu: interface.mtu(),
            interface: interface.uuid(),
            rows: port.and_then(|port| {
                db.port_rows(port, |row| {
                    row.map("external_ids").str(ids::SANDBOX).is_some()
                })
            }),
            external_ids,
        }
    }

    /// All of podwire's ports.
    pub fn ours(db: &Db) -> Vec<Self> {
        db.interfaces()
            .map(|interface| Self::read(db, interface))
            .filter(|record| record.key.is_some())
            .collect()
    }

    /// Its state, where an ADD on the node's own bridge waits for `wait`.
    pub fn state(&self, wait: Wait) -> PortState {
        let wait = match self.external_ids.contains_key(ids::BRIDGE) {
            true => Wait::Ofport,
            false => wait,
        };
        let installed = self.external_ids.get(ids::OVN_INSTALLED);
        let installed = says_installed(installed.map(String::as_str));
        PortState::of(self.ofport, self.error.is_some(), installed, wait)
    }
}

/// The VLAN columns as [`Vlan`](podwire_cni::spec::Vlan) has them: `vlan_mode access`, `tag 7`,
/// `trunks 1-2,9` (ovs-vswitchd.conf.db(5), Port, "VLAN Configuration").
fn vlan(port: Port<'_>) -> Option<String> {
    let trunks = port.trunks().filter_map(|vlan| u16::try_from(vlan).ok());
    let trunks = Vlans::of(trunks.map(|vlan| (vlan, vlan)));
    let set = [
        port.vlan_mode().map(|mode| format!("vlan_mode {mode}")),
        port.tag().map(|tag| format!("tag {tag}")),
        (!trunks.is_empty()).then(|| format!("trunks {trunks}")),
    ];
    let set = set.into_iter().flatten().join(", ");
    (!set.is_empty()).then_some(set)
}

/// The addresses that external_ids record; anything else is skipped.
pub fn addresses(external_ids: &BTreeMap<String, String>) -> impl Iterator<Item = IpNet> {
    let list = external_ids
        .get(ids::IP_ADDRESSES)
        .map_or("", String::as_str);
    parse_addresses(list)
}

/// The same for a port on the node's own bridge; none for one on another, where an address of the
/// node's subnets is somebody else's.
pub fn own_addresses(external_ids: &BTreeMap<String, String>) -> impl Iterator<Item = IpNet> {
    let is_own = !external_ids.contains_key(ids::BRIDGE);
    addresses(external_ids).filter(move |_| is_own)
}

/// The addresses in a value of external_ids.
pub(super) fn parse_addresses(list: &str) -> impl Iterator<Item = IpNet> {
    list.split(',').filter_map(|text| text.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_ours_only_with_all_that_keys_an_attachment() {
        let full = [
            ("podwire.io/network", "pods"),
            ("sandbox", "abc"),
            ("podwire.io/ifname", "eth0"),
        ];
        let key_of = |entries: &[(&str, &'static str)]| {
            AttachmentKey::of_row(|wanted| {
                entries.iter().find(|(id, _)| *id == wanted).map(|it| it.1)
            })
        };
        assert_eq!(
            key_of(&full).unwrap().to_string(),
            "eth0 of container abc on network pods"
        );
        for missing in 0..full.len() {
            let mut rest = full.to_vec();
            rest.remove(missing);
            assert_eq!(key_of(&rest), None);
        }
    }

    #[test]
    fn recorded_addresses_come_back_and_what_is_none_is_passed_over() {
        let list = "10.1.2.3/24,fd00::3/64,,x";
        let ids = BTreeMap::from([("ip_addresses".to_owned(), list.to_owned())]);
        let read: Vec<String> = addresses(&ids).map(|net| net.to_string()).collect();
        assert_eq!(read, ["10.1.2.3/24", "fd00::3/64"]);
    }
}
