//! `ovn`, the annotation of early ovn-kubernetes: one interface with one address of each family, in
//! a flat object. If a pod has `ovnNetwork` or its answer, that counts instead; see
//! [`super::interfaces`].

use super::annotation::AnnotationError;
use super::field::{Field, document};
use crate::plan::InterfaceSpec;

/// The annotation's name.
pub const ANNOTATION: &str = "ovn";

/// Parses the annotation.
///
/// # Errors
/// Names field and value of the first error.
pub fn parse(annotation: &str) -> Result<InterfaceSpec, AnnotationError> {
    let document = document(ANNOTATION, annotation)?;
    let field = Field::root(ANNOTATION, &document);
    let routes = field.elements("routes")?;
    Ok(InterfaceSpec {
        mac: Some(field.required("mac_address")?.mac()?),
        addresses: vec![field.required("ip_address")?.interface_address()?],
        gateways: vec![field.required("gateway_ip")?.gateway()?],
        routes: routes
            .iter()
            .map(|route| route.route("gateway_ip"))
            .collect::<Result<_, _>>()?,
        ..InterfaceSpec::default()
    })
}

#[cfg(test)]
mod tests;
