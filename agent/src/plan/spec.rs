//! The types of a plan: the attachment, its request, and the resulting ports.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use macaddr::MacAddr6;
use podwire_cni::spec::Vlan;
use podwire_netns::{LinkSpec, Route};
use serde::{Deserialize, Serialize};

use super::ids;

/// What CNI keys an attachment by: DEL has nothing else (CNI spec §2, "Lifecycle & Ordering").
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachmentKey {
    /// `name` of the network configuration.
    pub network: String,
    /// CNI_CONTAINERID.
    pub container_id: String,
    /// CNI_IFNAME.
    pub ifname: String,
}

impl AttachmentKey {
    /// The attachment of a row, from its external_ids; None for a row without podwire's keys.
    pub fn of_row<'a>(id: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        Some(Self {
            network: id(ids::NETWORK)?.to_owned(),
            container_id: id(ids::SANDBOX)?.to_owned(),
            ifname: id(ids::IFNAME)?.to_owned(),
        })
    }
}

impl fmt::Display for AttachmentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of container {} on network {}",
            self.ifname, self.container_id, self.network
        )
    }
}

/// The pod as named by the runtime.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodRef {
    /// K8S_POD_NAMESPACE; podman passes none.
    pub namespace: Option<String>,
    /// K8S_POD_NAME.
    pub name: String,
    /// K8S_POD_UID.
    pub uid: Option<String>,
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// One interface that a pod should get, whichever source it comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InterfaceSpec {
    /// Its name in the pod; None for CNI_IFNAME.
    pub pod_ifname: Option<String>,
    /// Its MAC address; None if podwire chooses one.
    pub mac: Option<MacAddr6>,
    /// Its addresses with their prefix lengths.
    pub addresses: Vec<IpNet>,
    /// Next hops of its default routes.
    pub gateways: Vec<IpAddr>,
    /// Gateways of its subnets that no default route uses; the result lists them.
    pub subnet_gateways: Vec<IpAddr>,
    /// Its other routes. The plan decides which next hops are on the link.
    pub routes: Vec<Route>,
    /// Its MTU in bytes; None for the node's.
    pub mtu: Option<u32>,
    /// Its bandwidth limits.
    pub bandwidth: Bandwidth,
    /// How its logical port is named.
    pub port_name: PortName,
    /// The network attachment definition it belongs to, as annotations write it: `namespace/name`,
    /// or `namespace/name/1` for the second attachment to the same one. None for the cluster's
    /// default network.
    pub nad: Option<String>,
    /// Where its port is.
    pub switch_port: SwitchPort,
    /// Its logical port, if the configuration chooses one.
    pub logical_port: Option<String>,
}

/// Where a port is on the switch. The default is the node's own bridge, without VLANs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SwitchPort {
    /// A bridge that is not the node's own; its addresses have nothing to do with the node's
    /// subnets.
    pub bridge: Option<String>,
    /// Its VLANs; None sets none of the columns.
    pub vlan: Option<Vlan>,
    /// The OpenFlow port number that it has to get.
    pub ofport_request: Option<u16>,
}

impl SwitchPort {
    /// From a row's external_ids, where the plan recorded it.
    pub fn of(external_ids: &BTreeMap<String, String>) -> Self {
        let id = |name| external_ids.get(name);
        Self {
            bridge: id(ids::BRIDGE).cloned(),
            vlan: id(ids::VLAN).and_then(|text| text.parse().ok()),
            ofport_request: id(ids::OFPORT).and_then(|text| text.parse().ok()),
        }
    }

    /// Records it in external_ids, for whoever compares or re-creates the port later.
    pub(super) fn write(&self, external_ids: &mut BTreeMap<String, String>) {
        let vlan = self.vlan.as_ref().map(Vlan::to_string);
        let ofport = self.ofport_request.map(|it| it.to_string());
        let values = [
            (ids::BRIDGE, self.bridge.clone()),
            (ids::VLAN, vlan),
            (ids::OFPORT, ofport),
        ];
        let set = values.into_iter();
        external_ids.extend(set.filter_map(|(id, value)| Some((id.to_owned(), value?))));
    }
}

/// How an interface's logical port is named if it belongs to no network attachment definition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PortName {
    /// By the pod, and by the interface unless it is the pod's first.
    #[default]
    ByInterface,
    /// By the pod, whatever the interface's name: `*` in a list of interfaces.
    Pod,
    /// By pod and interface, even for the first: the interface has a name in the list.
    PodAndInterface,
}

impl PortName {
    /// The naming of an interface in a list: `*` is None.
    pub fn listed(pod_ifname: Option<&str>) -> Self {
        match pod_ifname {
            None => Self::Pod,
            Some(_) => Self::PodAndInterface,
        }
    }
}

/// The node's facts that every plan needs.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    /// The bridge for the pods' ports.
    pub bridge: String,
    /// Whether the bridge's datapath is userspace (`netdev`), over which TCP fails with TX checksum
    /// offload.
    pub netdev_datapath: bool,
    /// MTU in bytes for pods without one of their own.
    pub default_mtu: u32,
    /// Whether IPv6 pods skip duplicate address detection of their link-local address.
    pub quiet_pods: bool,
    /// Whether the network's configuration says that its routers give pods addresses or routes.
    pub has_routers: bool,
}

/// Which attachment is planned.
#[derive(Debug, Clone)]
pub struct Subject<'a> {
    /// The attachment.
    pub key: &'a AttachmentKey,
    /// The pod, when the runtime named one.
    pub pod: Option<&'a PodRef>,
    /// CNI_NETNS.
    pub netns: &'a str,
}

/// One port to make.
#[derive(Debug, Clone)]
pub struct PortPlan {
    /// The veth pair and what is set on its pod end.
    pub link: LinkSpec,
    /// OVN's name for the port; at most one Interface row bears it.
    pub iface_id: String,
    /// external_ids of the Interface row.
    pub external_ids: BTreeMap<String, String>,
    /// Gateways of the addresses' subnets beside the default routes' next hops, for the result.
    pub subnet_gateways: Vec<IpAddr>,
    /// What it may send and receive.
    pub bandwidth: Bandwidth,
    /// Where it is.
    pub switch_port: SwitchPort,
    /// Whether the configuration chose its logical port.
    pub has_chosen_id: bool,
}

impl PortPlan {
    /// Whether it is on a bridge that is not the node's own.
    pub fn is_elsewhere(&self) -> bool {
        self.switch_port.bridge.is_some()
    }

    /// Whether it is on the network of a network attachment definition.
    pub fn has_definition(&self) -> bool {
        self.external_ids.contains_key(super::ids::OVN_NAD)
    }
}

/// Limits of one interface in bit/s, as the pod sees the directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bandwidth {
    /// Towards the pod; None is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress_rate: Option<u64>,
    /// From the pod; None is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_rate: Option<u64>,
}
