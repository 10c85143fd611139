//! `ovnNetworkRoutes`: routes of a pod with several interfaces, each `{dst, gw, dev?}`.
//!
//! Without `dev`, a route belongs to the interface whose subnet contains its gateway. A default
//! route is allowed; it tells which interface has the pod's default route if none is marked
//! (`defaultGateway`). One that contradicts a mark, or a second one, is refused.

use std::net::IpAddr;

use podwire_netns::Route;
use serde_json::Value;

use super::annotation::{AnnotationError, Problem};
use super::field::{Field, document};
use crate::plan::InterfaceSpec;

/// The annotation's name, and that of the member in the object form of `ovnNetwork`.
pub const ANNOTATION: &str = "ovnNetworkRoutes";

/// Parses the annotation and adds each route to its interface.
///
/// # Errors
/// Names element, field and value of the first error.
pub fn apply(annotation: &str, interfaces: &mut [InterfaceSpec]) -> Result<(), AnnotationError> {
    apply_document(&document(ANNOTATION, annotation)?, interfaces)
}

/// [`apply`] for a list inside another annotation.
pub(super) fn apply_document(
    document: &Value,
    interfaces: &mut [InterfaceSpec],
) -> Result<(), AnnotationError> {
    for field in Field::root(ANNOTATION, document).items()? {
        let dst = field.required("dst")?.destination()?;
        let gw = field.required("gw")?;
        let gateway = gw.next_hop(dst)?;
        let at = match field.member("dev")? {
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
                let dst = field.required("dst")?;
                return Err(dst.refuse(Problem::SecondDefault(first)));
            }
            interfaces[at].gateways.push(gateway);
        }
    }
    Ok(())
}

/// The interface that already has the default route of this gateway's family.
fn default_of_family(interfaces: &[InterfaceSpec], gateway: IpAddr) -> Option<Box<str>> {
    let is_same = |other: &IpAddr| other.is_ipv4() == gateway.is_ipv4();
    let first = interfaces
        .iter()
        .find(|interface| interface.gateways.iter().any(is_same))?;
    Some(first.pod_ifname.as_deref().unwrap_or("*").into())
}

#[cfg(test)]
mod tests;
