//! Which of a pod's annotations is heard, and which of its entries an attachment gets.

use std::collections::BTreeMap;

use super::annotation::AnnotationError;
use super::ovn_network::Wish;
use super::pod_networks::{self, PodNetworks};
use super::{NetworkKey, ovn, ovn_interfaces, ovn_network, ovn_routes};
use crate::plan::InterfaceSpec;

/// The name that runtimes give a pod's first interface: the one with the pod's default route unless
/// something else is said.
const FIRST_INTERFACE: &str = "eth0";

/// The name of the interface of a pod's primary user-defined network (ovn-kubernetes,
/// `buildPrimaryUDNPodRequest`).
const PRIMARY_INTERFACE: &str = "ovn-udn1";

/// The attachment that annotations are read for.
#[derive(Debug, Clone, Copy)]
pub struct Attaching<'a> {
    /// The network. Of a definition without an index it is whichever entry is not attached yet: a
    /// runtime that attaches a pod to one definition twice says the same both times, but for
    /// CNI_IFNAME.
    pub network: &'a NetworkKey,
    /// CNI_IFNAME.
    pub ifname: &'a str,
    /// What this sandbox is attached to already.
    pub attached: &'a [NetworkKey],
}

impl Attaching<'_> {
    fn is_pods_first(&self) -> bool {
        *self.network == NetworkKey::Default && self.ifname == FIRST_INTERFACE
    }
}

/// The interfaces that a pod's annotations give it on a network: one by its entry in
/// `k8s.ovn.org/pod-networks` (two where the pod's primary network is a user-defined one, and the
/// cluster's default network only for the infrastructure); else, for the default network, the list
/// that answers `ovnNetwork`, with its routes; else one by `ovn`, which an `ovnNetwork` silences
/// even before it is answered. `None` when nothing is said yet.
///
/// No interface has a default route that was not asked for. An entry of a definition's asks by its
/// `gateway_ips`, which ovn-kubernetes writes on request only; one of a list by `defaultGateway`.
/// The gateways of `default` and of `ovn` are the pod's first interface's, and so not those of a
/// later one that a delegating plugin has made of the same network.
///
/// # Errors
/// The annotation that is heard is wrong; what is not heard is not read.
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
    let wish = wish(annotations)?;
    if let Some((name, annotation)) = answer {
        let mut interfaces = ovn_interfaces::parse(name, annotation)?;
        match annotations.get(ovn_routes::ANNOTATION) {
            Some(routes) => ovn_routes::apply(routes, &mut interfaces)?,
            None => wish
                .as_ref()
                .map_or(Ok(()), |wish| wish.apply_routes(&mut interfaces))?,
        }
        // The controller answers with addresses; an MTU stays where the user wrote it.
        for wished in wish.iter().flat_map(|wish| &wish.interfaces) {
            let wished = &wished.interface;
            let answered = interfaces
                .iter_mut()
                .find(|interface| interface.pod_ifname == wished.pod_ifname);
            if let Some(interface) = answered {
                interface.mtu = interface.mtu.or(wished.mtu);
            }
        }
        return Ok(Some(interfaces));
    }
    match annotations.get(ovn::ANNOTATION) {
        Some(annotation) if wish.is_none() => Ok(Some(alone(ovn::parse(annotation)?, attaching))),
        _ => Ok(None),
    }
}

/// What the pod's user wishes by `ovnNetwork`, for a node without a controller to answer it.
///
/// # Errors
/// The annotation is wrong.
pub fn wish(annotations: &BTreeMap<String, String>) -> Result<Option<Wish>, AnnotationError> {
    let names = [ovn_network::LATER_ANNOTATION, ovn_network::ANNOTATION];
    match first(annotations, names) {
        Some((name, annotation)) => ovn_network::parse(name, annotation),
        None => Ok(None),
    }
}

/// The annotations that would be heard, for an error that says what is missing.
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

/// An attachment's only interface; its gateways stay where they were meant for it.
fn alone(mut interface: InterfaceSpec, attaching: &Attaching<'_>) -> Vec<InterfaceSpec> {
    if interface.nad.is_none() && attaching.ifname != FIRST_INTERFACE {
        interface.gateways.clear();
    }
    vec![interface]
}

/// Beside an interface of the cluster's default network that is only there for the infrastructure,
/// the one of the pod's primary network: the runtime asks for both with one ADD
/// (docs/decisions/0018). `None` while the controller has not yet written its entry, which it does
/// after the other.
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
