//! `ovn`, the annotation of early ovn-kubernetes: one interface with one address of each family, in
//! a flat object. If a pod has `ovnNetwork` or its answer, that counts instead; see
//! [`super::interfaces`].

use super::annotation::AnnotationError;
use super::node::{Node, document};
use crate::plan::InterfaceSpec;

/// The annotation's name.
pub const ANNOTATION: &str = "ovn";

/// Parses the annotation.
///
/// # Errors
/// Names field and value of the first error.
pub fn parse(annotation: &str) -> Result<InterfaceSpec, AnnotationError> {
    let document = document(ANNOTATION, annotation)?;
    let node = Node::root(ANNOTATION, &document);
    let routes = node.elements("routes")?;
    Ok(InterfaceSpec {
        mac: Some(node.required("mac_address")?.mac()?),
        addresses: vec![node.required("ip_address")?.interface_address()?],
        gateways: vec![node.required("gateway_ip")?.gateway()?],
        routes: routes
            .iter()
            .map(|route| route.route("gateway_ip"))
            .collect::<Result<_, _>>()?,
        ..InterfaceSpec::default()
    })
}

#[cfg(test)]
mod tests;
