//! `ovnNetwork`, later `k8s.plugin.opnfv.org/nfn-network`: a user's request for several interfaces.
//!
//! A list of objects whose values are strings. `name` (the virtual network) and `interface` are
//! required; addresses may lack a prefix length, which then is the network's. Under the first name,
//! the annotation may also be an object `{ovnNetwork: […], ovnNetworkRoutes: […]}`; under the later
//! one it is an object `{type, interface: […]}`, and is for OVN only if `type` is `ovn4nfv`. A
//! controller answers with [`super::ovn_interfaces`].

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::annotation::{AnnotationError, Problem};
use super::field::{Field, document};
use crate::plan::{InterfaceSpec, PortName};

/// The annotation's original name.
pub const ANNOTATION: &str = "ovnNetwork";
/// Its later name.
pub const LATER_ANNOTATION: &str = "k8s.plugin.opnfv.org/nfn-network";

/// The `type` of a later form that is for OVN.
const OVN_TYPE: &str = "ovn4nfv";

/// What a user requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The interfaces, in the order of the annotation.
    pub interfaces: Vec<RequestedInterface>,
    /// The routes of the object form, for [`Request::apply_routes`].
    routes: Option<Value>,
}

/// One requested interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedInterface {
    /// Its settings; the gateway is set only if the default route uses it.
    pub interface: InterfaceSpec,
    /// A static address without a prefix length.
    pub bare_address: Option<IpAddr>,
    /// Whether the pod's default route uses this interface.
    pub default_gateway: bool,
}

/// Parses the annotation with the name `name`, one of [`ANNOTATION`] and [`LATER_ANNOTATION`].
/// `None` if it is for another plugin.
///
/// # Errors
/// Names element, field and value of the first error.
pub fn parse(name: &'static str, annotation: &str) -> Result<Option<Request>, AnnotationError> {
    let document = document(name, annotation)?;
    let root = Field::root(name, &document);
    if root.is_list() {
        return Ok(Some(Request {
            interfaces: parse_interfaces(root.items()?)?,
            routes: None,
        }));
    }
    if name == LATER_ANNOTATION {
        if root.required("type")?.text()? != OVN_TYPE {
            return Ok(None);
        }
        let interfaces = parse_interfaces(root.required("interface")?.items()?)?;
        return Ok(Some(Request {
            interfaces,
            routes: None,
        }));
    }
    let interfaces = parse_interfaces(root.required(ANNOTATION)?.items()?)?;
    let routes = document
        .get(super::ovn_routes::ANNOTATION)
        .filter(|routes| !routes.is_null());
    Ok(Some(Request {
        interfaces,
        routes: routes.cloned(),
    }))
}

impl Request {
    /// Adds the routes of the object form to the interfaces in the answer.
    ///
    /// # Errors
    /// As [`super::ovn_routes::apply`].
    pub fn apply_routes(&self, interfaces: &mut [InterfaceSpec]) -> Result<(), AnnotationError> {
        match &self.routes {
            Some(routes) => super::ovn_routes::apply_document(routes, interfaces),
            None => Ok(()),
        }
    }
}

fn parse_interfaces(fields: Vec<Field<'_>>) -> Result<Vec<RequestedInterface>, AnnotationError> {
    let mut interfaces: Vec<RequestedInterface> = Vec::with_capacity(fields.len());
    for field in fields {
        let interface = parse_interface(&field)?;
        if interfaces
            .iter()
            .any(|other| other.interface.pod_ifname == interface.interface.pod_ifname)
        {
            return Err(field.required("interface")?.refuse(Problem::Repeated));
        }
        interfaces.push(interface);
    }
    Ok(interfaces)
}

fn parse_interface(field: &Field<'_>) -> Result<RequestedInterface, AnnotationError> {
    let address = field.any_member(&["ip_address", "ipAddress"])?;
    let (addresses, bare_address) = match address {
        None => (Vec::new(), None),
        Some(address) if address.text()?.contains('/') => {
            (vec![address.interface_address()?], None)
        }
        Some(address) => (Vec::new(), Some(address.gateway()?)),
    };
    let mac = field.any_member(&["mac_address", "macAddress"])?;
    let default_gateway = field.optional("defaultGateway", Field::flag)?;
    let default_gateway = default_gateway.unwrap_or(false);
    // podwire creates no networks, but an entry without a name is invalid.
    field.required("name")?.text()?;
    let pod_ifname = field.required("interface")?.interface_name()?;
    let mac = mac.map(|mac| mac.mac()).transpose()?;
    let gateway = field.optional("gateway_ip", Field::gateway)?;
    let nets: Vec<IpNet> = addresses
        .iter()
        .copied()
        .chain(bare_address.map(IpNet::from))
        .collect();
    Ok(RequestedInterface {
        interface: InterfaceSpec {
            port_name: PortName::listed(pod_ifname.as_deref()),
            pod_ifname,
            mac,
            addresses,
            gateways: gateway.filter(|_| default_gateway).into_iter().collect(),
            mtu: field.optional("mtu", |mtu| mtu.mtu_or_text(&nets))?,
            ..InterfaceSpec::default()
        },
        bare_address,
        default_gateway,
    })
}

#[cfg(test)]
mod tests;
