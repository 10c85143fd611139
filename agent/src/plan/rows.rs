//! The Interface row by which OVN, ovn-kubernetes' tools and podwire find a port.

use std::collections::BTreeMap;

use ipnet::IpNet;
use itertools::Itertools as _;
use macaddr::MacAddr6;

use super::{PodRef, PortName, Subject};

/// The logical port's name as controllers form it; without a pod, with the container's id in place
/// of the pod's name.
///
/// On the cluster's default network it is `<namespace>_<pod>`; for further interfaces there,
/// `<namespace>_<pod>_<interface>` (ovn4nfv). On a network attachment definition's network it is
/// `<namespace>.<definition>_<namespace>_<pod>`, with `-` in the definition's key replaced by `.`
/// (ovn-kubernetes: names of port groups contain no `-`).
pub(super) fn iface_id(
    subject: &Subject<'_>,
    nad: Option<&str>,
    named: PortName,
    pod_ifname: &str,
) -> String {
    let mut id = match subject.pod {
        Some(PodRef {
            namespace: Some(namespace),
            name,
            ..
        }) => format!("{namespace}_{name}"),
        Some(PodRef {
            namespace: None,
            name,
            ..
        }) => name.clone(),
        None => subject.key.container_id.clone(),
    };
    if let Some(nad) = nad {
        return format!("{}_{id}", nad.replace(['-', '/'], "."));
    }
    let by_interface = match named {
        PortName::ByInterface => pod_ifname != "eth0",
        PortName::Pod => false,
        PortName::PodAndInterface => true,
    };
    if by_interface {
        id.push('_');
        id.push_str(pod_ifname);
    }
    id
}

pub(super) fn external_ids(
    subject: &Subject<'_>,
    pod_ifname: &str,
    iface_id: &str,
    mac: MacAddr6,
    addresses: &[IpNet],
) -> BTreeMap<String, String> {
    let key = subject.key;
    let mut ids = BTreeMap::new();
    let mut set = |name: &str, value: String| drop(ids.insert(name.to_owned(), value));
    set(ids::IFACE_ID, iface_id.to_owned());
    set(ids::ATTACHED_MAC, mac_text(mac));
    set(ids::SANDBOX, key.container_id.clone());
    set(ids::POD_IF_NAME, pod_ifname.to_owned());
    set(ids::NETWORK, key.network.clone());
    set(ids::IFNAME, key.ifname.clone());
    set(ids::NETNS, subject.netns.to_owned());
    if !addresses.is_empty() {
        set(ids::IP_ADDRESSES, addresses.iter().join(","));
    }
    if let Some(pod) = subject.pod {
        set(ids::POD, pod.to_string());
        if let Some(uid) = &pod.uid {
            set(ids::IFACE_ID_VER, uid.clone());
        }
    }
    ids
}

/// A MAC address as `ip` and OVS write it.
pub fn mac_text(mac: MacAddr6) -> String {
    let digit = |number: u8| char::from(b"0123456789abcdef"[usize::from(number)]);
    let mut text = String::with_capacity("00:00:00:00:00:00".len());
    for (at, byte) in mac.into_array().into_iter().enumerate() {
        if at > 0 {
            text.push(':');
        }
        text.extend([digit(byte >> 4), digit(byte & 0xf)]);
    }
    text
}

/// Whether external_ids are those of a port on a physical network: on a bridge that is not the
/// node's own, or on an OVN network that has one.
pub fn is_physical(external_ids: &BTreeMap<String, String>) -> bool {
    [ids::BRIDGE, ids::PHYSICAL_NETWORK]
        .iter()
        .any(|id| external_ids.contains_key(*id))
}

/// The keys of an Interface row's external_ids: OVN's and ovn-kubernetes' own names, then
/// podwire's.
pub mod ids {
    /// OVN: the logical port.
    pub const IFACE_ID: &str = "iface-id";
    /// OVN: the logical port's `iface-id-ver` option must equal it; the pod's uid.
    pub const IFACE_ID_VER: &str = "iface-id-ver";
    /// The pod end's MAC address.
    pub const ATTACHED_MAC: &str = "attached_mac";
    /// The pod's addresses with prefix lengths, comma-separated.
    pub const IP_ADDRESSES: &str = "ip_addresses";
    /// The container id.
    pub const SANDBOX: &str = "sandbox";
    /// The interface's name in the pod.
    pub const POD_IF_NAME: &str = "pod-if-name";
    /// ovn-kubernetes: the network that is not the cluster's default one.
    pub const OVN_NETWORK: &str = "k8s.ovn.org/network";
    /// ovn-kubernetes: the network attachment definition, as annotations key it.
    pub const OVN_NAD: &str = "k8s.ovn.org/nad";
    /// ovn-controller: `true` once it has seen the switch confirm the port's flows.
    pub const OVN_INSTALLED: &str = "ovn-installed";
    /// podwire: the network configuration's name. Rows without it aren't podwire's.
    pub const NETWORK: &str = "podwire.io/network";
    /// podwire: CNI_IFNAME of the attachment, which may have several interfaces.
    pub const IFNAME: &str = "podwire.io/ifname";
    /// podwire: CNI_NETNS as the runtime passed it.
    pub const NETNS: &str = "podwire.io/netns";
    /// podwire, in plain mode: `on` or `off` if the port's network sets port security, `default` if
    /// it leaves that to the node. A row without this key was written before port security existed,
    /// and has none.
    pub const PORT_SECURITY: &str = "podwire.io/port-security";
    /// podwire: the bridge, if it is not the node's own.
    pub const BRIDGE: &str = "podwire.io/bridge";
    /// podwire: the physical network of a localnet network, as the node's `ovn-bridge-mappings`
    /// name it.
    pub const PHYSICAL_NETWORK: &str = "podwire.io/physical-network";
    /// podwire: the VLAN columns of the Port row, if a network configuration with a bridge set
    /// them.
    pub const VLAN: &str = "podwire.io/vlan";
    /// podwire: the OpenFlow port number that the network configuration requests.
    pub const OFPORT: &str = "podwire.io/ofport-request";
    /// podwire: `namespace/name` of the pod.
    pub const POD: &str = "podwire.io/pod";
}
