//! Networks beside the default one: what a NetworkAttachmentDefinition makes of one, and which ones
//! a pod asks for. A definition with a mistake makes none, and says which field is wrong.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_apiserver::brief;
use podwire_cluster::annotations::NETWORKS;
use podwire_cluster::api::{NetworkAttachmentDefinition, Part};
use podwire_cluster::networks::{DEFAULT, strings};
use podwire_cluster::resources::{RESOURCE_NAME, of_network};
use podwire_cluster::{Name, ObjectName};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::ipam::{ClusterSubnet, Request, RequestError, nth};
use crate::key::Network;

/// The plugins whose definitions are for this controller: ovn-kubernetes' and podwire's own.
const PLUGINS: [&str; 2] = ["ovn-k8s-cni-overlay", "podwire-cni"];
/// The longest name of a network.
const LONGEST: usize = 200;
/// With these, rows of a network would have the names of those of nodes' gateway routers: `GR_NODE`
/// and `ext_NODE`.
const OF_GATEWAYS: [&str; 2] = ["GR", "ext"];
/// The most networks that a pod is on.
const MOST: usize = 64;
/// The most networks in one field of a definition: each address that is given is compared with
/// them.
const MOST_NETS: usize = 256;

/// A NetworkAttachmentDefinition for a network of OVN's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Distinguishes several with this name over time.
    pub uid: Name,
    /// Seconds since 1970. Of several that define one network differently, the oldest counts.
    pub created: i64,
    /// The network; or what is wrong, beginning with the field.
    pub network: Result<(Network, Shape), String>,
}

/// What a network is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shape {
    /// How nodes are joined.
    pub topology: Topology,
    /// What it is for its pods.
    #[serde(default, skip_serializing_if = "Role::is_secondary")]
    pub role: Role,
    /// One of each family at most; without any, its ports have no addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<IpNet>,
    /// Of a layer 3 network: the prefix length of a node's part of each subnet, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_prefixes: Vec<u8>,
    /// Of which no pod gets an address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude_subnets: Vec<IpNet>,
    /// In bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// A localnet network's VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "vlanID")]
    pub vlan: Option<u16>,
    /// A localnet network's name in the nodes' `ovn-bridge-mappings`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physical_network_name: Option<String>,
}

/// How a network's nodes are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Topology {
    /// One switch, by tunnels.
    Layer2,
    /// A switch on each node, and a router between them.
    Layer3,
    /// One switch, by a physical network.
    Localnet,
}

/// What a network is for its pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// One more.
    #[default]
    Secondary,
    /// All pods of its namespaces are on it, in place of the default network.
    Primary,
}

impl Role {
    /// Its word in a definition.
    pub fn word(self) -> &'static str {
        match self {
            Self::Secondary => "secondary",
            Self::Primary => "primary",
        }
    }

    fn is_secondary(&self) -> bool {
        *self == Self::Secondary
    }
}

impl Topology {
    /// Its word in a definition.
    pub fn word(self) -> &'static str {
        match self {
            Self::Layer2 => "layer2",
            Self::Layer3 => "layer3",
            Self::Localnet => "localnet",
        }
    }
}

impl Definition {
    /// The relevant part of a definition; `None` if it is another plugin's, or means the default
    /// network.
    pub fn of(definition: &NetworkAttachmentDefinition) -> Option<Self> {
        let metadata = &definition.metadata;
        let network = match &definition.spec {
            Part::Unreadable(problem) => Err(format!("spec: {problem}")),
            Part::Read(spec) => match serde_json::from_str::<Value>(&spec.config) {
                // Without a configuration, it is in a file of the nodes.
                _ if spec.config.trim().is_empty() => return None,
                Err(error) => Err(format!("spec.config is no JSON: {}", brief(&error))),
                Ok(config) => {
                    let own = (&*metadata.namespace, &*metadata.name);
                    read(plugin(&config)?, &config["name"], own)?
                }
            },
        };
        Some(Self {
            uid: metadata.uid.as_str().into(),
            created: super::created(metadata),
            network,
        })
    }
}

/// The part of a configuration that is for this controller.
fn plugin(config: &Value) -> Option<&Value> {
    let chained = config["plugins"].as_array().into_iter().flatten();
    let is_ours = |it: &&Value| it["type"].as_str().is_some_and(|it| PLUGINS.contains(&it));
    chained.chain([config]).find(is_ours)
}

type Outcome = Result<(Network, Shape), String>;

/// `None` for the default network.
fn read(config: &Value, list_name: &Value, own: (&str, &str)) -> Option<Outcome> {
    if config["topology"].is_null() {
        return None;
    }
    let all = || {
        let name = network_name(config["name"].as_str().or(list_name.as_str()))?;
        let expected = format!("{}/{}", own.0, own.1);
        if config["netAttachDefName"] != *expected {
            let problem = format!("expected {expected:?}, its own namespace and name");
            return Err(mistake("netAttachDefName", problem));
        }
        Ok((name, shape(config)?))
    };
    let named = |Mistake { field, problem }| format!("{field} of its spec.config: {problem}");
    Some(all().map_err(named))
}

/// What is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// The field, as definitions call it.
    pub(crate) field: &'static str,
    /// What is wrong with it.
    pub(crate) problem: String,
}

fn mistake(field: &'static str, problem: String) -> Mistake {
    Mistake { field, problem }
}

/// A network's name.
///
/// # Errors
/// It can't be one.
pub(crate) fn network_name(name: Option<&str>) -> Result<Network, Mistake> {
    let name = name.unwrap_or_default();
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte);
    let problem = match name {
        "" => "it is missing".to_owned(),
        DEFAULT => "default is the network of all pods: choose another".to_owned(),
        _ if OF_GATEWAYS.contains(&name) => {
            format!("{name}_NODE are names of nodes' gateways: choose another")
        }
        _ if name.len() > LONGEST => format!("it is longer than {LONGEST} characters"),
        _ if !name.bytes().all(is_good) => {
            format!(
                "{:?} has other characters than a-z, A-Z, 0-9, - . _ /",
                brief(&name)
            )
        }
        _ => return Ok(Network::named(name)),
    };
    Err(mistake("name", problem))
}

/// What ovn-kubernetes would do something about.
const UNKNOWN: [&str; 8] = [
    "reservedSubnets",
    "infrastructureSubnets",
    "defaultGatewayIPs",
    "allowPersistentIPs",
    "transport",
    "outboundSNAT",
    "evpn",
    "uplink",
];

/// What a configuration makes of a network.
///
/// # Errors
/// The first field with a mistake.
pub(crate) fn shape(config: &Value) -> Result<Shape, Mistake> {
    for field in UNKNOWN {
        let is_unset = match &config[field] {
            Value::Null | Value::Bool(false) => true,
            Value::String(text) => text.is_empty(),
            Value::Array(all) => all.is_empty(),
            Value::Object(all) => all.is_empty(),
            _ => false,
        };
        if !is_unset {
            let problem = "it is not implemented: leave it out".to_owned();
            return Err(mistake(field, problem));
        }
    }
    if config["ipam"].as_object().is_some_and(|it| !it.is_empty()) {
        let problem = "a network of OVN has its addresses from subnets, or none: leave it out";
        return Err(mistake("ipam", problem.to_owned()));
    }
    let text = |field: &'static str| match &config[field] {
        Value::Null => Ok(""),
        Value::String(text) => Ok(text.trim()),
        other => Err(mistake(field, format!("{} is no text", brief(other)))),
    };
    let number = |field: &'static str, least: u32, most: u32| match &config[field] {
        Value::Null => Ok(None),
        value => match value.as_u64().and_then(|it| u32::try_from(it).ok()) {
            Some(0) => Ok(None),
            Some(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ => {
                let problem = format!("{} is no number from {least} to {most}", brief(value));
                Err(mistake(field, problem))
            }
        },
    };
    let topology = match text("topology")? {
        "layer2" => Topology::Layer2,
        "localnet" => Topology::Localnet,
        "layer3" => Topology::Layer3,
        other => {
            let problem = format!("{:?} is none of layer2, layer3 and localnet", brief(&other));
            return Err(mistake("topology", problem));
        }
    };
    let role = match text("role")? {
        "" | "secondary" => Role::Secondary,
        "primary" if topology == Topology::Localnet => {
            let problem =
                "a network of the topology localnet can't be primary: use layer2 or layer3";
            return Err(mistake("role", problem.to_owned()));
        }
        "primary" => Role::Primary,
        other => {
            let problem = format!("{:?} is neither secondary nor primary", brief(&other));
            return Err(mistake("role", problem));
        }
    };
    let nets = |field: &'static str| {
        let texts = text(field)?.split(',').filter(|it| !it.trim().is_empty());
        let count = texts.clone().count();
        if count > MOST_NETS {
            let problem = format!("{count} networks are too many, {MOST_NETS} at most");
            return Err(mistake(field, problem));
        }
        let nets = texts.map(|text| net(text.trim()).map_err(|problem| mistake(field, problem)));
        nets.collect::<Result<Vec<_>, Mistake>>()
    };
    let (subnets, node_prefixes) = match topology {
        Topology::Layer3 => {
            let texts = text("subnets")?
                .split(',')
                .filter(|it| !it.trim().is_empty());
            let parsed = texts.map(|text| divided(text.trim()));
            let parsed: Result<Vec<_>, String> = parsed.collect();
            let mut parsed = parsed.map_err(|problem| mistake("subnets", problem))?;
            parsed.sort_by_key(|(net, _)| net.addr().is_ipv6());
            parsed.into_iter().unzip()
        }
        Topology::Layer2 | Topology::Localnet => {
            let mut subnets = nets("subnets")?;
            subnets.sort_by_key(|net| net.addr().is_ipv6());
            (subnets, Vec::new())
        }
    };
    for (at, net) in subnets.iter().enumerate() {
        let is_same = |other: &&IpNet| other.addr().is_ipv4() == net.addr().is_ipv4();
        if let Some(other) = subnets[..at].iter().find(is_same) {
            let problem = format!("{other} and {net} are of one family, and it has one of each");
            return Err(mistake("subnets", problem));
        }
        if net.prefix_len() + 2 > net.max_prefix_len() {
            return Err(mistake("subnets", format!("{net} has no room for pods")));
        }
    }
    if role == Role::Primary && subnets.is_empty() {
        let problem = "it is missing, and a primary network needs addresses";
        return Err(mistake("subnets", problem.to_owned()));
    }
    if topology == Topology::Layer3 && subnets.is_empty() {
        let problem = "it is missing, and nodes need parts of it: such as 10.1.0.0/16/24";
        return Err(mistake("subnets", problem.to_owned()));
    }
    let exclude_subnets = nets("excludeSubnets")?;
    if topology == Topology::Layer3 && !exclude_subnets.is_empty() {
        let problem = "only a network of the topology layer2 or localnet has them: leave it out";
        return Err(mistake("excludeSubnets", problem.to_owned()));
    }
    for excluded in &exclude_subnets {
        if !subnets.iter().any(|net| net.contains(excluded)) {
            let problem = format!("{excluded} is no part of the network's subnets");
            return Err(mistake("excludeSubnets", problem));
        }
    }
    let is_localnet = topology == Topology::Localnet;
    let vlan = number("vlanID", 1, 4094)?;
    let physical = text("physicalNetworkName")?;
    for (field, is_there) in [
        ("vlanID", vlan.is_some()),
        ("physicalNetworkName", !physical.is_empty()),
    ] {
        if is_there && !is_localnet {
            let problem = "only a network of the topology localnet has one".to_owned();
            return Err(mistake(field, problem));
        }
    }
    // As in ovn-bridge-mappings: NAME:BRIDGE,….
    if physical.contains(|it: char| it == ':' || it == ',' || !it.is_ascii_graphic()) {
        let problem = format!("{:?} can't be in ovn-bridge-mappings", brief(&physical));
        return Err(mistake("physicalNetworkName", problem));
    }
    Ok(Shape {
        topology,
        role,
        mtu: number(
            "mtu",
            if subnets.iter().any(is_v6) { 1280 } else { 576 },
            65_535,
        )?,
        subnets,
        node_prefixes,
        exclude_subnets,
        vlan: vlan.and_then(|it| u16::try_from(it).ok()),
        physical_network_name: (!physical.is_empty()).then(|| physical.to_owned()),
    })
}

/// A subnet, perhaps with the prefix length of a node's part of it, which is ovn-kubernetes'
/// otherwise.
fn divided(text: &str) -> Result<(IpNet, u8), String> {
    let (net, prefix) = match text.rsplit_once('/') {
        Some((net, prefix)) if net.contains('/') => (net, Some(prefix)),
        _ => (text, None),
    };
    let net = self::net(net)?;
    let usual = if net.addr().is_ipv4() { 24 } else { 64 };
    let prefix = match prefix {
        Some(prefix) => prefix.parse().ok(),
        None => Some(usual),
    };
    let divided = prefix.and_then(|prefix| ClusterSubnet::new(net, prefix).ok().and(prefix.into()));
    divided.map(|prefix| (net, prefix)).ok_or_else(|| {
        format!(
            "{:?} has no room for nodes' parts: expected a network and the prefix length of a \
             node's part, such as 10.1.0.0/16/24",
            brief(&text)
        )
    })
}

fn is_v6(net: &IpNet) -> bool {
    net.addr().is_ipv6()
}

fn net(text: &str) -> Result<IpNet, String> {
    let net: IpNet = text.parse().map_err(|_| {
        format!(
            "{:?} is no network such as 10.1.0.0/16 or fd00:1::/64",
            brief(&text)
        )
    })?;
    match net.trunc() == net {
        true => Ok(net),
        false => Err(format!(
            "{net} has bits beyond the prefix: {} is one",
            net.trunc()
        )),
    }
}

/// The annotations of a definition with this configuration: of a localnet network, the resource
/// that the nodes with its physical network have.
pub fn annotations(config: &Value) -> Value {
    let text = |field: &str| config[field].as_str().filter(|it| !it.is_empty());
    let network = text("physicalNetworkName").or_else(|| text("name"));
    let network = network.filter(|_| config["topology"] == Topology::Localnet.word());
    match network.and_then(of_network) {
        Some(resource) => json!({ RESOURCE_NAME: resource }),
        None => json!({}),
    }
}

impl Shape {
    /// The configuration that makes it.
    pub fn config(&self) -> Value {
        let list = |nets: &[IpNet]| {
            let nets: Vec<String> = nets.iter().map(IpNet::to_string).collect();
            nets.join(",")
        };
        let subnets = match self.topology {
            Topology::Layer3 => ClusterSubnet::list(&self.divided()),
            Topology::Layer2 | Topology::Localnet => list(&self.subnets),
        };
        json!({
            "topology": self.topology.word(),
            "role": (self.role == Role::Primary).then_some(self.role.word()),
            "subnets": subnets,
            "excludeSubnets": list(&self.exclude_subnets),
            "mtu": self.mtu,
            "vlanID": self.vlan,
            "physicalNetworkName": self.physical_network_name,
        })
    }

    /// What can't become that of another shape while pods are on the network, field by field.
    pub fn fixed(&self, other: &Self) -> Vec<&'static str> {
        let parts = |it: &Self| {
            let parts = it.subnets.iter().copied().enumerate();
            let parts = parts.map(|(at, net)| (net, it.node_prefixes.get(at).copied()));
            parts.collect::<Vec<_>>()
        };
        let theirs = parts(other);
        [
            ("topology", self.topology != other.topology),
            ("role", self.role != other.role),
            ("subnets", parts(self).iter().any(|it| !theirs.contains(it))),
            // Ports without addresses would stay without.
            (
                "subnets",
                self.subnets.is_empty() && !other.subnets.is_empty(),
            ),
            ("vlanID", self.vlan != other.vlan),
            (
                "physicalNetworkName",
                self.physical_network_name != other.physical_network_name,
            ),
        ]
        .into_iter()
        .filter_map(|(field, differs)| differs.then_some(field))
        .collect()
    }

    /// The addresses of the network's own router on the switch that all nodes share, with their
    /// prefix lengths: the first of each subnet of a primary network.
    pub fn routers(&self) -> impl Iterator<Item = IpNet> {
        let is_its = self.role == Role::Primary && self.topology == Topology::Layer2;
        let own = self.subnets.iter().filter(move |_| is_its);
        own.map(|subnet| nth(*subnet, 1))
    }

    /// A layer 3 network's subnets, of which each node has parts.
    pub fn divided(&self) -> Vec<ClusterSubnet> {
        let parts = self.subnets.iter().zip(&self.node_prefixes);
        let parts = parts.map(|(net, prefix)| ClusterSubnet::new(*net, *prefix));
        parts.filter_map(Result::ok).collect()
    }

    /// What of the network a pod of this node has its addresses of, as ipam calls it: the node's
    /// part of it, or all.
    pub fn part<'a>(&self, network: &'a Network, node: &'a Name) -> &'a Name {
        match self.topology {
            Topology::Layer3 => node,
            Topology::Layer2 | Topology::Localnet => network.name(),
        }
    }

    /// What differs, field by field.
    pub fn differing(&self, other: &Self) -> Vec<&'static str> {
        let mut fields = self.fixed(other);
        let more = [
            ("subnets", self.subnets != other.subnets),
            (
                "excludeSubnets",
                self.exclude_subnets != other.exclude_subnets,
            ),
            ("mtu", self.mtu != other.mtu),
        ];
        fields.extend(
            more.into_iter()
                .filter_map(|(field, it)| it.then_some(field)),
        );
        fields.sort_unstable();
        fields.dedup();
        fields
    }
}

/// A network that a pod asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// By its definition.
    pub definition: ObjectName,
    /// The attachment's entry in the pod's annotation.
    pub entry: Name,
    /// The addresses that it asks for.
    pub request: Result<Request, RequestError>,
    /// Gateways of default routes by this network.
    pub gateways: Box<[IpAddr]>,
}

/// The networks that a pod asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selections {
    /// In the order of the annotation.
    pub all: Box<[Selection]>,
    /// What is wrong with the annotation.
    pub problem: Option<Box<str>>,
}

impl Selections {
    /// Reads the annotation of a pod in a namespace.
    pub fn of(annotation: Option<&str>, namespace: &str) -> Self {
        let Some(text) = annotation.map(str::trim).filter(|it| !it.is_empty()) else {
            return Self::default();
        };
        let elements = match text.starts_with(['[', '{']) {
            false => text.split(',').map(short).collect::<Result<Vec<_>, _>>(),
            true => match serde_json::from_str::<Vec<Value>>(text) {
                Ok(elements) => elements.iter().map(element).collect(),
                Err(error) => Err(format!("it is no JSON list: {}", brief(&error))),
            },
        };
        let elements = match elements {
            Ok(elements) if elements.len() <= MOST => elements,
            Ok(elements) => {
                let count = elements.len();
                let problem = format!("{count} networks are too many, {MOST} at most");
                return Self::wrong(&problem);
            }
            Err(problem) => return Self::wrong(&problem),
        };
        let mut all: Vec<Selection> = Vec::with_capacity(elements.len());
        for element in elements {
            let namespace = element.namespace.unwrap_or_else(|| namespace.into());
            let definition = (namespace, element.name);
            let before = all.iter().filter(|it| it.definition == definition).count();
            let (namespace, name) = &definition;
            let entry = match before {
                0 => format!("{namespace}/{name}"),
                number => format!("{namespace}/{name}/{number}"),
            };
            all.push(Selection {
                entry: entry.into(),
                definition,
                request: element.request,
                gateways: element.gateways,
            });
        }
        Self {
            all: all.into(),
            problem: None,
        }
    }

    fn wrong(problem: &str) -> Self {
        Self {
            all: Box::default(),
            problem: Some(format!("the annotation {NETWORKS}: {problem}").into()),
        }
    }
}

struct Element {
    namespace: Option<Name>,
    name: Name,
    request: Result<Request, RequestError>,
    gateways: Box<[IpAddr]>,
}

/// `[NAMESPACE/]NAME[@INTERFACE]`.
fn short(text: &str) -> Result<Element, String> {
    let text = text.trim();
    let (object, _) = text.split_once('@').unwrap_or((text, ""));
    let (namespace, name) = match object.split_once('/') {
        Some((namespace, name)) => (Some(namespace.trim()), name.trim()),
        None => (None, object.trim()),
    };
    if name.is_empty() || name.contains('/') || namespace.is_some_and(str::is_empty) {
        let text = brief(&text);
        return Err(format!(
            "{text:?} is not NAME, NAMESPACE/NAME or NAMESPACE/NAME@INTERFACE"
        ));
    }
    Ok(Element {
        namespace: namespace.map(Name::from),
        name: name.into(),
        request: Ok(Request::default()),
        gateways: Box::default(),
    })
}

fn element(value: &Value) -> Result<Element, String> {
    let name = value["name"].as_str().filter(|it| !it.is_empty());
    let Some(name) = name else {
        return Err(format!("{} has no name", brief(value)));
    };
    let namespace = value["namespace"].as_str().filter(|it| !it.is_empty());
    // One of each family.
    let count = strings(&value["default-route"]).count();
    if count > 2 {
        return Err(format!("default-route has {count} gateways, 2 at most"));
    }
    let gateways = strings(&value["default-route"]).map(|text| {
        let parsed = text.parse::<IpAddr>();
        parsed.map_err(|_| format!("default-route {:?} is no IP address", brief(&text)))
    });
    let mac = value["mac"].as_str().filter(|it| !it.is_empty());
    Ok(Element {
        namespace: namespace.map(Name::from),
        name: name.into(),
        request: Request::of_attachment(strings(&value["ips"]), mac),
        gateways: gateways.collect::<Result<Vec<_>, _>>()?.into(),
    })
}

#[cfg(test)]
mod tests;
