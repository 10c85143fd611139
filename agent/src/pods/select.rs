//! Which of a pod's annotations is heard, and which of its entries an attachment gets.

use std::collections::BTreeMap;

use super::annotation::AnnotationError;
use super::ovn_network::Wish;
use super::{
    Intent, InterfaceIntent, NetworkKey, Role, ovn, ovn_interfaces, ovn_network, ovn_routes,
    pod_networks,
};

/// The name that runtimes give a pod's first interface: the one with the pod's default route unless something else is said.
const FIRST_INTERFACE: &str = "eth0";

/// The name of the interface of a pod's primary user-defined network (ovn-kubernetes, `buildPrimaryUDNPodRequest`).
const PRIMARY_INTERFACE: &str = "ovn-udn1";

/// The attachment that annotations are read for.
#[derive(Debug, Clone, Copy)]
pub struct Attaching<'a> {
    /// The network. Of a definition without an index it is whichever entry is not attached yet: a runtime that attaches a pod
    /// to one definition twice says the same both times, but for CNI_IFNAME.
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

/// The interfaces that a pod's annotations give it on a network: one by its entry in `k8s.ovn.org/pod-networks` (two where the
/// pod's primary network is a user-defined one, and the cluster's default network only for the infrastructure); else, for
/// the default network, the list that answers `ovnNetwork`, with its routes; else one by `ovn`, which an `ovnNetwork`
/// silences even before it is answered. `None` when nothing is said yet.
///
/// No interface has a default route that was not asked for. An entry of a definition's asks by its `gateway_ips`, which
/// ovn-kubernetes writes on request only; one of a list by `defaultGateway`. The gateways of `default` and of `ovn` are the
/// pod's first interface's, and so not those of a later one that a delegating plugin has made of the same network.
///
/// # Errors
/// The annotation that is heard is wrong; what is not heard is not read.
pub fn interfaces(
    annotations: &BTreeMap<String, String>,
    attaching: &Attaching<'_>,
) -> Result<Option<Intent>, AnnotationError> {
    if let Some(annotation) = annotations.get(pod_networks::ANNOTATION)
        && let Some(key) = free_entry(annotation, attaching)?
        && let Some(entry) = pod_networks::parse_network(annotation, &key)?
    {
        let is_locked = entry.role == Some(Role::InfrastructureLocked);
        let intent = alone(entry.into_interface(key), attaching);
        return match is_locked && attaching.is_pods_first() {
            true => with_primary(intent, annotation),
            false => Ok(Some(intent)),
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
            let answered = interfaces
                .iter_mut()
                .find(|interface| interface.pod_ifname == wished.pod_ifname);
            if let Some(interface) = answered {
                interface.mtu = interface.mtu.or(wished.mtu);
            }
        }
        return Ok(Some(Intent { interfaces }));
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
            "{} with an entry for network default (and one of role primary, if that is infrastructure-locked), {} or {}",
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
fn free_entry(
    annotation: &str,
    attaching: &Attaching<'_>,
) -> Result<Option<NetworkKey>, AnnotationError> {
    let mut keys = pod_networks::keys(annotation)?;
    keys.retain(|key| key.is_of(attaching.network));
    keys.sort_unstable();
    Ok(keys
        .into_iter()
        .find(|key| *key == NetworkKey::Default || !attaching.attached.contains(key)))
}

/// An attachment's only interface; its gateways stay where they were meant for it.
fn alone(mut interface: InterfaceIntent, attaching: &Attaching<'_>) -> Intent {
    if interface.key == NetworkKey::Default && attaching.ifname != FIRST_INTERFACE {
        interface.gateways.clear();
        interface.lla_gateway = None;
    }
    Intent {
        interfaces: vec![interface],
    }
}

/// Beside an interface of the cluster's default network that is only there for the infrastructure, the one of the pod's
/// primary network: the runtime asks for both with one ADD (docs/decisions/0014). `None` while the controller has not yet
/// written its entry, which it does after the other.
fn with_primary(mut intent: Intent, annotation: &str) -> Result<Option<Intent>, AnnotationError> {
    let Some(key) = pod_networks::primary(annotation)? else {
        return Ok(None);
    };
    let Some(entry) = pod_networks::parse_network(annotation, &key)? else {
        return Ok(None);
    };
    for locked in &mut intent.interfaces {
        locked.gateways.clear();
        locked.lla_gateway = None;
    }
    intent.interfaces.push(InterfaceIntent {
        pod_ifname: Some(PRIMARY_INTERFACE.to_owned()),
        ..entry.into_interface(key)
    });
    Ok(Some(intent))
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
