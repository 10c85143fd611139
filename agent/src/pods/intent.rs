//! What a pod should get: plain data between the annotation formats and the plan.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;
use macaddr::MacAddr6;

use super::NetworkKey;
use crate::plan::PortName;

/// The interfaces that one request makes, the one on CNI_IFNAME first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Intent {
    /// The interfaces.
    pub interfaces: Vec<InterfaceIntent>,
}

/// One interface of a pod. What is `None` or empty was not said, and is for the plan to decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceIntent {
    /// The network it belongs to.
    pub key: NetworkKey,
    /// Its name within the pod; `None` for CNI_IFNAME.
    pub pod_ifname: Option<String>,
    /// Its MAC.
    pub mac: Option<MacAddr6>,
    /// Its addresses, each with its prefix length.
    pub addresses: Vec<IpNet>,
    /// Gateways of its default routes.
    pub gateways: Vec<IpAddr>,
    /// Its further routes.
    pub routes: Vec<RouteIntent>,
    /// Its MTU in bytes, 68 to 65535, and at least 1280 when it has an IPv6 address.
    pub mtu: Option<u32>,
    /// A link-local IPv6 gateway, the default route of a layer-2 network whose router advertises
    /// itself.
    pub lla_gateway: Option<Ipv6Addr>,
    /// What the network is to the pod.
    pub role: Option<Role>,
    /// Whether it stands in a list of several, whose controllers name logical ports in their own way.
    pub is_listed: bool,
}

/// A route other than a default route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteIntent {
    /// The destination, without host bits.
    pub dst: IpNet,
    /// The next hop, of the destination's family; `None` when the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// The route's own MTU in bytes.
    pub mtu: Option<u32>,
}

/// What a network is to a pod, as ovn-kubernetes' user-defined networks have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The pod's default gateway is here.
    Primary,
    /// A further network.
    Secondary,
    /// The cluster's default network of a pod whose primary network is another: kubelet's probes
    /// and nothing else.
    InfrastructureLocked,
}

impl InterfaceIntent {
    /// An interface of `key` about which nothing more is said.
    pub fn new(key: NetworkKey) -> Self {
        Self {
            key,
            pod_ifname: None,
            mac: None,
            addresses: Vec::new(),
            gateways: Vec::new(),
            routes: Vec::new(),
            mtu: None,
            lla_gateway: None,
            role: None,
            is_listed: false,
        }
    }

    /// How its logical port is named.
    pub fn port_name(&self) -> PortName {
        match (self.is_listed, &self.pod_ifname) {
            (false, _) => PortName::ByInterface,
            (true, None) => PortName::Pod,
            (true, Some(_)) => PortName::PodAndInterface,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Primary => "primary",
            Self::Secondary => "secondary",
            Self::InfrastructureLocked => "infrastructure-locked",
        })
    }
}

/// No role of ovn-kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a role; there are primary, secondary and infrastructure-locked")]
pub struct RoleError;

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        match text {
            "primary" => Ok(Self::Primary),
            "secondary" => Ok(Self::Secondary),
            "infrastructure-locked" => Ok(Self::InfrastructureLocked),
            _ => Err(RoleError),
        }
    }
}
