//! The items of a plan, and their names.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_ovs::client::TlsKeys;
use serde::{Deserialize, Serialize};

use crate::firewall::Table;
use crate::firewalld::Rule;
use crate::{CONFIG, LINK};

/// One item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Item {
    /// A key of the switch's own `external_ids`, an entry of its bridge mappings, or a key of its
    /// `other_config`.
    Key {
        key: String,
        value: String,
        claim: Claim,
    },
    /// The switch's TLS keys, which ovn-controller uses too.
    Ssl(TlsKeys),
    /// The UDP port of this chassis' tunnels, in the southbound database.
    TunnelPort { chassis: String, port: u16 },
    /// The management port's rows.
    Port(Port),
    /// The tunnel bridge, with its local port.
    Bridge(Bridge),
    /// A tunnel to another node.
    Tunnel(Tunnel),
    /// One of podwire's links is up.
    LinkUp(String),
    /// An address of the management port's link.
    Address(IpNet),
    /// A permanent neighbour: OVN's router answers no ARP for the node's own address, and tunnels
    /// carry none.
    Neighbour {
        link: String,
        ip: IpAddr,
        mac: String,
    },
    /// A route in table main.
    Route(Route),
    /// What lets packets pass firewalld.
    Firewalld(Rule),
    /// A route that podwire's has replaced, listed here for its return.
    Former(FormerRoute),
    /// A value below /proc/sys.
    Sysctl { path: String, value: String },
    /// The nftables table.
    Table(Table),
    /// A file for the agent, or beside a unit of Open vSwitch.
    File { path: String, text: String },
    /// The nftables table of services, which `run` maintains itself; listed here for its removal.
    Services,
}

/// What to do about somebody else's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Claim {
    /// It is an error, unless podwire takes over.
    Refuse,
    /// It stays.
    Yield,
    /// It is replaced, and restored by cleanup.
    Replace,
}

/// The rows of the management port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Port {
    pub(crate) bridge: String,
    /// The logical port's name.
    pub(crate) iface_id: String,
    pub(crate) mac: String,
    /// In bytes.
    pub(crate) mtu: u32,
}

/// A bridge of podwire's. Its local port has the same name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bridge {
    pub(crate) name: String,
    /// The same as that of the pods' bridge.
    pub(crate) datapath: String,
    pub(crate) mac: String,
    /// In bytes.
    pub(crate) mtu: u32,
}

/// A tunnel of podwire's, on the tunnel bridge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tunnel {
    /// The name of port and interface.
    pub(crate) name: String,
    /// The node at the other end.
    pub(crate) node: String,
    pub(crate) remote: IpAddr,
}

/// A route of podwire's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Route {
    pub(crate) destination: IpNet,
    pub(crate) via: IpAddr,
    pub(crate) link: String,
    /// The source address of the host's own packets; it belongs to another link.
    pub(crate) source: Option<IpAddr>,
}

/// A route of somebody else's, in table main.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FormerRoute {
    pub(crate) destination: IpNet,
    pub(crate) via: Option<IpAddr>,
    pub(crate) link: String,
    pub(crate) source: Option<IpAddr>,
    /// Of its maker.
    pub(crate) protocol: u8,
    pub(crate) metric: u32,
}

/// Kind and name of an item: a machine can't have two with the same identity.
impl Item {
    pub(crate) fn identity(&self) -> String {
        match self {
            Self::Key { key, .. } if key.starts_with(CONFIG) => key.clone(),
            Self::Key { key, .. } => format!("external_ids:{key}"),
            Self::Ssl(_) => "TLS keys of Open vSwitch".to_owned(),
            Self::TunnelPort { chassis, .. } => format!("tunnels' UDP port of chassis {chassis}"),
            Self::Port(_) => format!("port {LINK}"),
            Self::Bridge(bridge) => format!("bridge {}", bridge.name),
            Self::Tunnel(tunnel) => format!("tunnel {}", tunnel.name),
            Self::Firewalld(rule) => format!("firewalld: {rule}"),
            Self::LinkUp(link) => format!("link {link}"),
            Self::Address(net) => format!("address {net} of {LINK}"),
            Self::Neighbour { link, ip, .. } => format!("neighbour {ip} of {link}"),
            Self::Route(route) => format!("route {}", route.destination),
            Self::Former(former) => format!("former route {}", former.destination),
            Self::Sysctl { path, .. } => format!("sysctl {}", path.replace('/', ".")),
            Self::Table(_) => format!("nftables table {}", crate::firewall::NAME),
            Self::File { path, .. } => format!("file {path}"),
            Self::Services => format!("nftables table {}", crate::services::NAME),
        }
    }
}

/// In the form of `plan` and `show`.
impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.identity())?;
        match self {
            Self::Key { value, .. } | Self::Sysctl { value, .. } => write!(f, " = {value}"),
            Self::Ssl(ssl) => write!(
                f,
                ": {}, {}, {}",
                ssl.private_key.display(),
                ssl.certificate.display(),
                ssl.ca_certificate.display()
            ),
            Self::Port(port) => write!(
                f,
                " on {}: iface-id {}, MAC {}, MTU {}",
                port.bridge, port.iface_id, port.mac, port.mtu
            ),
            Self::Bridge(bridge) => write!(f, ": MAC {}, MTU {}", bridge.mac, bridge.mtu),
            Self::TunnelPort { port, .. } => write!(f, " = {port}"),
            Self::Tunnel(tunnel) => write!(f, " to {} of node {}", tunnel.remote, tunnel.node),
            Self::LinkUp(_) => write!(f, " up"),
            Self::Address(_) => Ok(()),
            Self::Neighbour { mac, .. } => write!(f, " at {mac}, permanent"),
            Self::Route(route) => write!(f, " via {} dev {}", route.via, route.link),
            Self::Table(table) => write!(f, ", {} rules", table.rules.len()),
            Self::File { .. } | Self::Services | Self::Firewalld(_) | Self::Former(_) => Ok(()),
        }
    }
}
