//! `ovn`, the annotation of the first ovn-kubernetes: one interface, one address of either
//! family, flat. A pod with `ovnNetwork` or an answer to it has its say there instead; see
//! [`super::interfaces`].

use super::annotation::AnnotationError;
use super::node::{Node, document};
use crate::plan::InterfaceSpec;

/// The annotation's name.
pub const ANNOTATION: &str = "ovn";

/// Reads the annotation.
///
/// # Errors
/// Names field and value of the first thing that is wrong.
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
