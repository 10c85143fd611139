//! `ovnIfaceList`, later `k8s.plugin.opnfv.org/ovnInterfaces`: a controller's answer to a pod's
//! request for several interfaces (see [`super::ovn_network`]), as a list with one object per
//! interface.
//!
//! Every value is a string. `interface` names the interface within the pod; `*` means CNI_IFNAME. A
//! gateway makes a default route only if `defaultGateway` is `"true"`, which at most one interface
//! may have; otherwise it only tells which routes use the interface.

use std::net::IpAddr;

use super::annotation::{AnnotationError, Problem};
use super::field::{Field, document};
use crate::plan::{InterfaceSpec, PortName};

/// The annotation's original name.
pub const ANNOTATION: &str = "ovnIfaceList";
/// Its later name.
pub const LATER_ANNOTATION: &str = "k8s.plugin.opnfv.org/ovnInterfaces";

/// Parses the annotation with the name `name`, one of [`ANNOTATION`] and [`LATER_ANNOTATION`]. The
/// interface for CNI_IFNAME, if listed, comes first.
///
/// # Errors
/// Names element, field and value of the first error.
pub fn parse(name: &'static str, annotation: &str) -> Result<Vec<InterfaceSpec>, AnnotationError> {
    let document = document(name, annotation)?;
    let mut interfaces: Vec<InterfaceSpec> = Vec::new();
    for field in Field::root(name, &document).items()? {
        let interface = parse_interface(&field)?;
        if interfaces
            .iter()
            .any(|other| other.pod_ifname == interface.pod_ifname)
        {
            return Err(field.required("interface")?.refuse(Problem::Repeated));
        }
        let defaults = |other: &&InterfaceSpec| !other.gateways.is_empty();
        if let Some(first) = interfaces
            .iter()
            .find(defaults)
            .filter(|_| defaults(&&interface))
        {
            let first = first.pod_ifname.as_deref().unwrap_or("*").into();
            return Err(field
                .required("defaultGateway")?
                .refuse(Problem::SecondDefault(first)));
        }
        interfaces.push(interface);
    }
    interfaces.sort_by_key(|interface| interface.pod_ifname.is_some());
    Ok(interfaces)
}

fn parse_interface(field: &Field<'_>) -> Result<InterfaceSpec, AnnotationError> {
    let addresses = vec![field.required("ip_address")?.interface_address()?];
    let gateway = field.optional("gateway_ip", Field::gateway)?;
    let pod_ifname = field.required("interface")?.interface_name()?;
    Ok(InterfaceSpec {
        port_name: PortName::listed(pod_ifname.as_deref()),
        pod_ifname,
        mac: Some(field.required("mac_address")?.mac()?),
        gateways: default_gateway(field, gateway)?,
        mtu: field.optional("mtu", |mtu| mtu.mtu_or_text(&addresses))?,
        addresses,
        ..InterfaceSpec::default()
    })
}

fn default_gateway(
    field: &Field<'_>,
    gateway: Option<IpAddr>,
) -> Result<Vec<IpAddr>, AnnotationError> {
    let wanted = field.optional("defaultGateway", Field::flag)?;
    match (wanted.unwrap_or(false), gateway) {
        (false, _) => Ok(Vec::new()),
        (true, Some(gateway)) => Ok(vec![gateway]),
        (true, None) => field.required("gateway_ip").map(|_| Vec::new()),
    }
}

#[cfg(test)]
mod tests;
