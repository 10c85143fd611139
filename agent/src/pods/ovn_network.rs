//! `ovnNetwork`, later `k8s.plugin.opnfv.org/nfn-network`: a user's wish for several interfaces.
//!
//! A list of objects whose values are strings, of which `name` (the virtual network) and
//! `interface` must be there; addresses may be written without a prefix length, which is the
//! network's to know. The first name also takes an object `{ovnNetwork: […], ovnNetworkRoutes:
//! […]}`; the later one is an object `{type, interface: […]}`, and speaks to OVN only where
//! `type` is `ovn4nfv`. A controller answers with [`super::ovn_interfaces`].

use std::net::IpAddr;

use ipnet::IpNet;
use macaddr::MacAddr6;
use serde_json::Value;

use super::annotation::{AnnotationError, Problem};
use super::node::{Node, document};

/// The annotation's first name.
pub const ANNOTATION: &str = "ovnNetwork";
/// Its later name.
pub const LATER_ANNOTATION: &str = "k8s.plugin.opnfv.org/nfn-network";

/// The `type` by which the later form speaks to OVN.
const OVN_TYPE: &str = "ovn4nfv";

/// What a user wishes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    /// The interfaces, in the order they were written.
    pub interfaces: Vec<InterfaceWish>,
    /// The routes of the object form, for [`Wish::apply_routes`].
    routes: Option<Value>,
}

/// One interface of a wish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceWish {
    /// The virtual network.
    pub network: String,
    /// The name within the pod; `None` for `*`, the one on CNI_IFNAME.
    pub pod_ifname: Option<String>,
    /// A static address, with a prefix length if one was written.
    pub address: Option<WishedAddress>,
    /// A static MAC.
    pub mac: Option<MacAddr6>,
    /// The network's gateway.
    pub gateway: Option<IpAddr>,
    /// Whether the pod's default route goes by this interface.
    pub default_gateway: bool,
    /// The MTU in bytes.
    pub mtu: Option<u32>,
}

/// A static address, as a user wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WishedAddress {
    /// Alone.
    Bare(IpAddr),
    /// With the length of its subnet's prefix.
    WithPrefix(IpNet),
}

/// Reads the annotation, which stands under `name`, one of [`ANNOTATION`] and
/// [`LATER_ANNOTATION`]. `None` when it speaks to another plugin.
///
/// # Errors
/// Names element, field and value of the first thing that is wrong.
pub fn parse(name: &'static str, annotation: &str) -> Result<Option<Wish>, AnnotationError> {
    let document = document(name, annotation)?;
    let root = Node::root(name, &document);
    if root.is_list() {
        return Ok(Some(Wish {
            interfaces: parse_interfaces(root.items()?)?,
            routes: None,
        }));
    }
    if name == LATER_ANNOTATION {
        if root.required("type")?.text()? != OVN_TYPE {
            return Ok(None);
        }
        let interfaces = parse_interfaces(root.required("interface")?.items()?)?;
        return Ok(Some(Wish {
            interfaces,
            routes: None,
        }));
    }
    let interfaces = parse_interfaces(root.required(ANNOTATION)?.items()?)?;
    let routes = document
        .get(super::ovn_routes::ANNOTATION)
        .filter(|routes| !routes.is_null());
    Ok(Some(Wish {
        interfaces,
        routes: routes.cloned(),
    }))
}

impl Wish {
    /// Gives the routes of the object form to the interfaces that the answer lists.
    ///
    /// # Errors
    /// As [`super::ovn_routes::apply`].
    pub fn apply_routes(
        &self,
        interfaces: &mut [super::InterfaceIntent],
    ) -> Result<(), AnnotationError> {
        match &self.routes {
            Some(routes) => super::ovn_routes::apply_document(routes, interfaces),
            None => Ok(()),
        }
    }
}

fn parse_interfaces(nodes: Vec<Node<'_>>) -> Result<Vec<InterfaceWish>, AnnotationError> {
    let mut interfaces: Vec<InterfaceWish> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let interface = parse_interface(&node)?;
        if interfaces
            .iter()
            .any(|other| other.pod_ifname == interface.pod_ifname)
        {
            return Err(node.required("interface")?.refuse(Problem::Repeated));
        }
        interfaces.push(interface);
    }
    Ok(interfaces)
}

fn parse_interface(node: &Node<'_>) -> Result<InterfaceWish, AnnotationError> {
    let address = node
        .any_member(&["ip_address", "ipAddress"])?
        .map(|address| parse_address(&address))
        .transpose()?;
    let addresses: Vec<IpNet> = address.iter().map(WishedAddress::net).collect();
    let mac = node.any_member(&["mac_address", "macAddress"])?;
    let flag = node
        .member("defaultGateway")?
        .map(|flag| flag.flag())
        .transpose()?;
    Ok(InterfaceWish {
        network: node.required("name")?.text()?.to_owned(),
        pod_ifname: node.required("interface")?.interface_name()?,
        address,
        mac: mac.map(|mac| mac.mac()).transpose()?,
        gateway: node
            .member("gateway_ip")?
            .map(|gateway| gateway.gateway())
            .transpose()?,
        default_gateway: flag.unwrap_or(false),
        mtu: node
            .member("mtu")?
            .map(|mtu| mtu.mtu_or_text(&addresses))
            .transpose()?,
    })
}

fn parse_address(node: &Node<'_>) -> Result<WishedAddress, AnnotationError> {
    if node.text()?.contains('/') {
        return node.interface_address().map(WishedAddress::WithPrefix);
    }
    node.gateway().map(WishedAddress::Bare)
}

impl WishedAddress {
    /// The address; a bare one with the prefix that holds nothing but itself.
    fn net(&self) -> IpNet {
        match self {
            Self::Bare(address) => (*address).into(),
            Self::WithPrefix(net) => *net,
        }
    }
}

#[cfg(test)]
mod tests;
