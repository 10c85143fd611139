//! Decides which of a pod's annotations counts, and which of its entries an attachment gets.

use std::collections::BTreeMap;

use podwire_cluster::networks::PRIMARY_INTERFACE;

use super::annotation::AnnotationError;
use super::ovn_network::Request;
use super::pod_networks::{self, PodNetworks};
use super::{NetworkKey, ovn, ovn_interfaces, ovn_network, ovn_routes};
use crate::plan::InterfaceSpec;

/// The name that runtimes give a pod's first interface. Unless set otherwise, it has the default
/// route.
const FIRST_INTERFACE: &str = "eth0";

/// The attachment whose annotations are read.
#[derive(Debug, Clone, Copy)]
pub struct Attaching<'a> {
    /// The network. For a definition without an index, it is any entry not attached yet: a runtime
    /// that attaches a pod to one definition twice passes the same both times, except for
    /// CNI_IFNAME.
    pub network: &'a NetworkKey,
    /// CNI_IFNAME.
    pub ifname: &'a str,
    /// The networks that this sandbox is already attached to.
    pub attached: &'a [NetworkKey],
}

impl Attaching<'_> {
    fn is_pods_first(&self) -> bool {
        *self.network == NetworkKey::Default && self.ifname == FIRST_INTERFACE
    }
}

/// The interfaces that a pod's annotations give it on a network. First comes its entry in
/// `k8s.ovn.org/pod-networks`, which is one interface (two if the pod's primary network is a
/// user-defined one, and the cluster's default network is for the infrastructure only). Otherwise,
/// for the default network, it is the list that answers `ovnNetwork`, with its routes; otherwise
/// the one of `ovn`, which `ovnNetwork` overrides even before it is answered. `None` if there is no
/// answer yet.
///
/// No interface has a default route that was not requested. An entry of a definition requests it by
/// `gateway_ips`, which ovn-kubernetes writes on request only; an element of a list by
/// `defaultGateway`. The gateways of `default` and `ovn` are for the pod's first interface, not for
/// a later one that a delegating plugin requests from the same network.
///
/// # Errors
/// The annotation that counts is invalid; the others are not read.
pub fn interfaces(
    annotations: &BTreeMap<String, String>,
    attaching: &Attaching<'_>,
) -> Result<Option<Vec<InterfaceSpec>>, AnnotationError> {
    let networks = annotations.get(pod_networks::ANNOTATION);
    let networks = networks.map(|text| PodNetworks::parse(text)).transpose()?;
    if let Some(networks) = networks
        && let Some(key) = free_entry(&networks, attaching)
        && let Some(interface) = networks.interface(&key)?
    {
        return match attaching.is_pods_first() && networks.is_locked(&key)? {
            true => with_primary(interface, &networks),
            false => Ok(Some(alone(interface, attaching))),
        };
    }
    if *attaching.network != NetworkKey::Default {
        return Ok(None);
    }
    let answer = first(
        annotations,
        [ovn_interfaces::LATER_ANNOTATION, ovn_interfaces::ANNOTATION],
    );
    let request = request(annotations)?;
    if let Some((name, annotation)) = answer {
        let mut interfaces = ovn_interfaces::parse(name, annotation)?;
        match annotations.get(ovn_routes::ANNOTATION) {
            Some(routes) => ovn_routes::apply(routes, &mut interfaces)?,
            None => request
                .as_ref()
                .map_or(Ok(()), |request| request.apply_routes(&mut interfaces))?,
        }
        // The controller answers with addresses; an MTU stays where the user wrote it.
        for requested in request.iter().flat_map(|request| &request.interfaces) {
            let requested = &requested.interface;
            let answered = interfaces
                .iter_mut()
                .find(|interface| interface.pod_ifname == requested.pod_ifname);
            if let Some(interface) = answered {
                interface.mtu = interface.mtu.or(requested.mtu);
            }
        }
        return Ok(Some(interfaces));
    }
    match annotations.get(ovn::ANNOTATION) {
        Some(annotation) if request.is_none() => {
            Ok(Some(alone(ovn::parse(annotation)?, attaching)))
        }
        _ => Ok(None),
    }
}

/// The user's request in `ovnNetwork`, for a node without a controller to answer it.
///
/// # Errors
/// The annotation is invalid.
pub fn request(annotations: &BTreeMap<String, String>) -> Result<Option<Request>, AnnotationError> {
    let names = [ovn_network::LATER_ANNOTATION, ovn_network::ANNOTATION];
    match first(annotations, names) {
        Some((name, annotation)) => ovn_network::parse(name, annotation),
        None => Ok(None),
    }
}

/// The annotations that would count, for an error about what is missing.
pub fn wanted(network: &NetworkKey) -> String {
    match network {
        NetworkKey::Default => format!(
            "{} with an entry for network default (and one of role primary, if that is \
             infrastructure-locked), {} or {}",
            pod_networks::ANNOTATION,
            ovn_interfaces::ANNOTATION,
            ovn::ANNOTATION
        ),
        other => format!(
            "{} with an entry for network {other} that is not attached yet",
            pod_networks::ANNOTATION
        ),
    }
}

/// The key of the entry that an attachment gets.
fn free_entry(networks: &PodNetworks, attaching: &Attaching<'_>) -> Option<NetworkKey> {
    let is_free = |key: &NetworkKey| {
        key.is_of(attaching.network)
            && (*key == NetworkKey::Default || !attaching.attached.contains(key))
    };
    networks.keys().filter(is_free).min()
}

/// An attachment's only interface; its gateways are kept only where they are meant for it.
fn alone(mut interface: InterfaceSpec, attaching: &Attaching<'_>) -> Vec<InterfaceSpec> {
    if interface.nad.is_none() && attaching.ifname != FIRST_INTERFACE {
        interface.gateways.clear();
    }
    vec![interface]
}

/// Adds the interface of the pod's primary network to that of the cluster's default network, if the
/// latter is for the infrastructure only: the runtime requests both with one ADD
/// (docs/decisions/0018). `None` until the controller has written its entry, which it does after
/// the other.
fn with_primary(
    mut locked: InterfaceSpec,
    networks: &PodNetworks,
) -> Result<Option<Vec<InterfaceSpec>>, AnnotationError> {
    let Some(key) = networks.primary()? else {
        return Ok(None);
    };
    let Some(mut primary) = networks.interface(&key)? else {
        return Ok(None);
    };
    locked.gateways.clear();
    primary.pod_ifname = Some(PRIMARY_INTERFACE.to_owned());
    Ok(Some(vec![locked, primary]))
}

/// The first of these annotations that is present.
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
