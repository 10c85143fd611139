//! `ovnNetworkRoutes`: routes of a pod with several interfaces, each `{dst, gw, dev?}`.
//!
//! Without `dev` a route is of the interface whose subnet holds its gateway. A default route is
//! allowed here, and is how these pods say which interface has theirs when none is marked; beside
//! a mark (`defaultGateway`) that says otherwise, or a second time, it is refused.

use std::net::IpAddr;

use serde_json::Value;

use super::annotation::{AnnotationError, Problem};
use super::node::{Node, document};
use crate::netns::Route;
use crate::plan::InterfaceSpec;

/// The annotation's name, and that of the member in the object form of `ovnNetwork`.
pub const ANNOTATION: &str = "ovnNetworkRoutes";

/// Reads the annotation and gives each route to its interface.
///
/// # Errors
/// Names element, field and value of the first thing that is wrong.
pub fn apply(annotation: &str, interfaces: &mut [InterfaceSpec]) -> Result<(), AnnotationError> {
    apply_document(&document(ANNOTATION, annotation)?, interfaces)
}

/// [`apply`] for the list that stands in another annotation.
pub(super) fn apply_document(
    document: &Value,
    interfaces: &mut [InterfaceSpec],
) -> Result<(), AnnotationError> {
    for node in Node::root(ANNOTATION, document).items()? {
        let dst = node.required("dst")?.destination()?;
        let gw = node.required("gw")?;
        let gateway = gw.next_hop(dst)?;
        let at = match node.member("dev")? {
            Some(dev) => {
                let name = dev.interface_name()?;
                let found = interfaces
                    .iter()
                    .position(|interface| interface.pod_ifname == name);
                found.ok_or_else(|| dev.refuse(Problem::NoSuchInterface))?
            }
            None => interfaces
                .iter()
                .position(|interface| interface.addresses.iter().any(|net| net.contains(&gateway)))
                .ok_or_else(|| gw.refuse(Problem::NoInterfaceFor))?,
        };
        if dst.prefix_len() > 0 {
            interfaces[at].routes.push(Route::new(dst, Some(gateway)));
        } else if !interfaces[at].gateways.contains(&gateway) {
            if let Some(first) = default_of_family(interfaces, gateway) {
                let dst = node.required("dst")?;
                return Err(dst.refuse(Problem::SecondDefault(first)));
            }
            interfaces[at].gateways.push(gateway);
        }
    }
    Ok(())
}

/// The interface that has the default route of this gateway's family already.
fn default_of_family(interfaces: &[InterfaceSpec], gateway: IpAddr) -> Option<Box<str>> {
    let is_same = |other: &IpAddr| other.is_ipv4() == gateway.is_ipv4();
    let first = interfaces
        .iter()
        .find(|interface| interface.gateways.iter().any(is_same))?;
    Some(first.pod_ifname.as_deref().unwrap_or("*").into())
}

#[cfg(test)]
mod tests;
