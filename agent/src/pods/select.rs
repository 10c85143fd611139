//! Which of a pod's annotations is heard.

use std::collections::BTreeMap;

use super::annotation::AnnotationError;
use super::{Intent, NetworkKey, ovn, ovn_interfaces, ovn_network, ovn_routes, pod_networks};

/// The interfaces that a pod's annotations give it on `network`: one by its entry in
/// `k8s.ovn.org/pod-networks`; else, for the default network, the list that answers `ovnNetwork`,
/// with its routes; else one by `ovn`, which an `ovnNetwork` silences even before it is answered.
/// `None` when nothing is said yet.
///
/// # Errors
/// The annotation that is heard is wrong; what is not heard is not read.
pub fn interfaces(
    annotations: &BTreeMap<String, String>,
    network: &NetworkKey,
) -> Result<Option<Intent>, AnnotationError> {
    if let Some(annotation) = annotations.get(pod_networks::ANNOTATION)
        && let Some(entry) = pod_networks::parse_network(annotation, network)?
    {
        return Ok(Some(Intent {
            interfaces: vec![entry.into_interface(network.clone())],
        }));
    }
    if *network != NetworkKey::Default {
        return Ok(None);
    }
    let answer = first(
        annotations,
        [ovn_interfaces::LATER_ANNOTATION, ovn_interfaces::ANNOTATION],
    );
    let wish = match first(
        annotations,
        [ovn_network::LATER_ANNOTATION, ovn_network::ANNOTATION],
    ) {
        Some((name, annotation)) => ovn_network::parse(name, annotation)?,
        None => None,
    };
    if let Some((name, annotation)) = answer {
        let mut interfaces = ovn_interfaces::parse(name, annotation)?;
        match annotations.get(ovn_routes::ANNOTATION) {
            Some(routes) => ovn_routes::apply(routes, &mut interfaces)?,
            None => wish.map_or(Ok(()), |wish| wish.apply_routes(&mut interfaces))?,
        }
        return Ok(Some(Intent { interfaces }));
    }
    match annotations.get(ovn::ANNOTATION) {
        Some(annotation) if wish.is_none() => Ok(Some(Intent {
            interfaces: vec![ovn::parse(annotation)?],
        })),
        _ => Ok(None),
    }
}

/// The first of these annotations that is there.
fn first<'a>(
    annotations: &'a BTreeMap<String, String>,
    names: [&'static str; 2],
) -> Option<(&'static str, &'a str)> {
    names
        .into_iter()
        .find_map(|name| Some((name, annotations.get(name)?.as_str())))
}

#[cfg(test)]
mod tests;
