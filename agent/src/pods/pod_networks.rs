//! `k8s.ovn.org/pod-networks`, ovn-kubernetes' word on a pod's networks: an object whose members
//! are named by network, each with the MAC, addresses, gateways and routes of one interface.
//!
//! Read as ovn-kubernetes itself reads it (`UnmarshalPodAnnotation`): a singular member
//! (`ip_address`, `gateway_ip`) stands for a list of one, and must agree with the list beside it;
//! a default route belongs in the gateways. The member `mtu` is podwire's own. Members that are
//! not known are passed over, for a newer controller adds some.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use macaddr::MacAddr6;
use serde_json::{Value, json};

use super::annotation::{AnnotationError, Problem};
use super::node::{Node, document};
use super::route::parse_route;
use super::{InterfaceIntent, NetworkKey, Role, RouteIntent};

/// The annotation's name.
pub const ANNOTATION: &str = "k8s.ovn.org/pod-networks";

/// What the annotation says of one network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// `mac_address`.
    pub mac: MacAddr6,
    /// `ip_addresses`; may be empty.
    pub addresses: Vec<IpNet>,
    /// `gateway_ips`.
    pub gateways: Vec<IpAddr>,
    /// `routes`; none of them is a default route.
    pub routes: Vec<RouteIntent>,
    /// `mtu`, in bytes.
    pub mtu: Option<u32>,
    /// `ipv6_lla_gateway_ip`.
    pub lla_gateway: Option<Ipv6Addr>,
    /// `role`.
    pub role: Option<Role>,
}

/// Reads the whole annotation.
///
/// # Errors
/// Names network, field and value of the first thing that is wrong.
pub fn parse(annotation: &str) -> Result<BTreeMap<NetworkKey, Entry>, AnnotationError> {
    let document = document(ANNOTATION, annotation)?;
    Node::root(ANNOTATION, &document)
        .networks()?
        .into_iter()
        .map(|(name, node)| Ok((parse_key(name, &node)?, parse_entry(&node)?)))
        .collect()
}

/// The networks that the annotation has an entry for. A name that is none is passed over, as a fault of another entry's.
///
/// # Errors
/// The annotation is no JSON object.
pub fn keys(annotation: &str) -> Result<Vec<NetworkKey>, AnnotationError> {
    let document = document(ANNOTATION, annotation)?;
    let networks = Node::root(ANNOTATION, &document).networks()?;
    Ok(networks
        .into_iter()
        .filter_map(|(name, _)| name.parse().ok())
        .collect())
}

/// Reads what the annotation says of one network; what it says of others is not looked at, so
/// that a fault there keeps no other interface from the pod. `None` when it says nothing.
///
/// # Errors
/// Names field and value of the first thing that is wrong.
pub fn parse_network(
    annotation: &str,
    network: &NetworkKey,
) -> Result<Option<Entry>, AnnotationError> {
    let document = document(ANNOTATION, annotation)?;
    let wanted = network.to_string();
    let networks = Node::root(ANNOTATION, &document).networks()?;
    let found = networks.iter().find(|(name, _)| *name == wanted);
    found.map(|(_, node)| parse_entry(node)).transpose()
}

/// The network, other than the cluster's default one, that the annotation calls the pod's primary one: a primary user-defined
/// network. Of the entries nothing but their roles is looked at.
///
/// # Errors
/// The annotation is no JSON object, or has two of them.
pub fn primary(annotation: &str) -> Result<Option<NetworkKey>, AnnotationError> {
    let document = document(ANNOTATION, annotation)?;
    let mut found = None;
    for (name, node) in Node::root(ANNOTATION, &document).networks()? {
        let Ok(key @ NetworkKey::Nad { .. }) = name.parse() else {
            continue;
        };
        let Some(role) = node.member("role")? else {
            continue;
        };
        if role.text().ok().and_then(|role| role.parse().ok()) != Some(Role::Primary) {
            continue;
        }
        if found.is_some() {
            return Err(role.refuse(Problem::Repeated));
        }
        found = Some(key);
    }
    Ok(found)
}

fn parse_key(name: &str, node: &Node<'_>) -> Result<NetworkKey, AnnotationError> {
    name.parse().map_err(|error| AnnotationError {
        value: None,
        ..node.refuse(Problem::Network(error))
    })
}

fn parse_entry(node: &Node<'_>) -> Result<Entry, AnnotationError> {
    let mac = node.required("mac_address")?.mac()?;
    let addresses = with_singular(node, "ip_address", "ip_addresses", Node::interface_address)?;
    refuse_repeated(node, &addresses)?;
    let optional = |name| node.member(name);
    Ok(Entry {
        mac,
        gateways: with_singular(node, "gateway_ip", "gateway_ips", Node::gateway)?,
        routes: node
            .elements("routes")?
            .iter()
            .map(|route| parse_route(route, "gateway_ips"))
            .collect::<Result<_, _>>()?,
        mtu: optional("mtu")?
            .map(|mtu| mtu.mtu(&addresses))
            .transpose()?,
        lla_gateway: optional("ipv6_lla_gateway_ip")?
            .map(|ip| ip.link_local())
            .transpose()?,
        role: optional("role")?
            .map(|role| role.parse(Problem::Role))
            .transpose()?,
        addresses,
    })
}

/// The list `plural`, or a list of the one `singular`.
fn with_singular<'a, T: PartialEq>(
    node: &Node<'a>,
    singular: &str,
    plural: &'static str,
    read: fn(&Node<'a>) -> Result<T, AnnotationError>,
) -> Result<Vec<T>, AnnotationError> {
    let elements = node.elements(plural)?;
    let mut list = elements.iter().map(read).collect::<Result<Vec<T>, _>>()?;
    let Some(one) = node.member(singular)? else {
        return Ok(list);
    };
    let value = read(&one)?;
    match (list.first(), elements.first()) {
        (Some(first), Some(written)) if *first != value => {
            let first = written.text()?.to_owned();
            return Err(one.refuse(Problem::Conflict { plural, first }));
        }
        (Some(_), _) => {}
        (None, _) => list.push(value),
    }
    Ok(list)
}

fn refuse_repeated(node: &Node<'_>, addresses: &[IpNet]) -> Result<(), AnnotationError> {
    let repeats = |at: usize| {
        addresses[..at]
            .iter()
            .any(|net| net.addr() == addresses[at].addr())
    };
    match (1..addresses.len()).find(|at| repeats(*at)) {
        Some(at) => Err(node.elements("ip_addresses")?[at].refuse(Problem::Repeated)),
        None => Ok(()),
    }
}

impl Entry {
    /// The interface it describes. A gateway makes a default route, so an interface that must
    /// not have one is for the caller to see to.
    pub fn into_interface(self, key: NetworkKey) -> InterfaceIntent {
        InterfaceIntent {
            key,
            pod_ifname: None,
            mac: Some(self.mac),
            addresses: self.addresses,
            gateways: self.gateways,
            routes: self.routes,
            mtu: self.mtu,
            lla_gateway: self.lla_gateway,
            role: self.role,
            is_listed: false,
        }
    }

    /// The entry as JSON, with every list in its plural form.
    pub fn to_value(&self) -> Value {
        let mut value = json!({
            "mac_address": self.mac.to_string().to_lowercase(),
            "ip_addresses": self.addresses,
            "gateway_ips": self.gateways,
        });
        let route = |route: &RouteIntent| match route.gateway {
            Some(gateway) => json!({ "dest": route.dst, "nextHop": gateway }),
            None => json!({ "dest": route.dst }),
        };
        if !self.routes.is_empty() {
            value["routes"] = self.routes.iter().map(route).collect();
        }
        if let Some(mtu) = self.mtu {
            value["mtu"] = mtu.into();
        }
        if let Some(gateway) = self.lla_gateway {
            value["ipv6_lla_gateway_ip"] = gateway.to_string().into();
        }
        if let Some(role) = self.role {
            value["role"] = role.to_string().into();
        }
        value
    }
}

/// The annotation that says this.
pub fn write(networks: &BTreeMap<NetworkKey, Entry>) -> String {
    let member = |(key, entry): (&NetworkKey, &Entry)| (key.to_string(), entry.to_value());
    Value::Object(networks.iter().map(member).collect()).to_string()
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
