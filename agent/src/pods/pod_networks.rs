//! `k8s.ovn.org/pod-networks`, ovn-kubernetes' annotation for a pod's networks: an object with one
//! member per network, each with the MAC, addresses, gateways and routes of one interface.
//!
//! Parsed as ovn-kubernetes does (`UnmarshalPodAnnotation`): a singular member (`ip_address`,
//! `gateway_ip`) stands for a list of one and must agree with the list beside it; a default route
//! belongs in the gateways. The member `mtu` is podwire's own. Unknown members are ignored, since
//! newer controllers add some.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Map, Value};

use super::NetworkKey;
use super::annotation::{AnnotationError, Problem};
use super::field::{Field, document};
use crate::plan::InterfaceSpec;

/// The annotation's name.
pub use podwire_cluster::annotations::POD_NETWORKS as ANNOTATION;

/// The annotation. An entry is parsed when it is needed, so an error in another one keeps no
/// interface from the pod.
#[derive(Debug)]
pub struct PodNetworks(Map<String, Value>);

/// The role of a network for a pod, as in ovn-kubernetes' user-defined networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It has the pod's default gateway.
    Primary,
    /// A further network.
    Secondary,
    /// The cluster's default network of a pod whose primary network is another: for kubelet's
    /// probes only.
    InfrastructureLocked,
}

impl PodNetworks {
    /// Parses the annotation as JSON.
    ///
    /// # Errors
    /// It is no JSON object.
    pub fn parse(annotation: &str) -> Result<Self, AnnotationError> {
        match document(ANNOTATION, annotation)? {
            Value::Object(networks) => Ok(Self(networks)),
            other => Err(Field::root(ANNOTATION, &other).refuse(Problem::Type("an object"))),
        }
    }

    /// The networks that have an entry; invalid names are skipped.
    pub fn keys(&self) -> impl Iterator<Item = NetworkKey> {
        self.0.keys().filter_map(|name| name.parse().ok())
    }

    /// The interface in a network's entry; `None` without an entry. A gateway makes a default
    /// route; if the interface must not have one, the caller removes it.
    ///
    /// # Errors
    /// Names field and value of the first error.
    pub fn interface(
        &self,
        network: &NetworkKey,
    ) -> Result<Option<InterfaceSpec>, AnnotationError> {
        let Some(field) = self.entry(network) else {
            return Ok(None);
        };
        let nad = matches!(network, NetworkKey::Nad { .. }).then(|| network.to_string());
        let interface = parse_interface(&field)?;
        Ok(Some(InterfaceSpec { nad, ..interface }))
    }

    /// Whether a network is for the infrastructure alone.
    ///
    /// # Errors
    /// Its role is invalid.
    pub fn is_locked(&self, network: &NetworkKey) -> Result<bool, AnnotationError> {
        let role = self.entry(network).map(|field| role(&field)).transpose()?;
        Ok(role.flatten() == Some(Role::InfrastructureLocked))
    }

    /// The network with the role `primary`, if it is not the cluster's default one: a primary
    /// user-defined network.
    ///
    /// # Errors
    /// There are two of them.
    pub fn primary(&self) -> Result<Option<NetworkKey>, AnnotationError> {
        let mut found = None;
        for (name, value) in &self.0 {
            let Ok(key @ NetworkKey::Nad { .. }) = name.parse() else {
                continue;
            };
            let field = Field::of_network(ANNOTATION, name, value);
            // An invalid role of this one is an error in its own ADD.
            if !matches!(role(&field), Ok(Some(Role::Primary))) {
                continue;
            }
            if found.is_some() {
                return Err(field.required("role")?.refuse(Problem::Repeated));
            }
            found = Some(key);
        }
        Ok(found)
    }

    fn entry(&self, network: &NetworkKey) -> Option<Field<'_>> {
        let (name, value) = self.0.get_key_value(&network.to_string())?;
        Some(Field::of_network(ANNOTATION, name, value))
    }
}

fn role(field: &Field<'_>) -> Result<Option<Role>, AnnotationError> {
    let Some(role) = field.member("role")? else {
        return Ok(None);
    };
    match role.text()? {
        "primary" => Ok(Some(Role::Primary)),
        "secondary" => Ok(Some(Role::Secondary)),
        "infrastructure-locked" => Ok(Some(Role::InfrastructureLocked)),
        _ => Err(role.refuse(Problem::Role)),
    }
}

fn parse_interface(field: &Field<'_>) -> Result<InterfaceSpec, AnnotationError> {
    let mac = field.required("mac_address")?.mac()?;
    let addresses = with_singular(
        field,
        "ip_address",
        "ip_addresses",
        Field::interface_address,
    )?;
    refuse_repeated(field, &addresses)?;
    let mut gateways = with_singular(field, "gateway_ip", "gateway_ips", Field::gateway)?;
    let routes = field.elements("routes")?;
    let routes = routes
        .iter()
        .map(|route| route.route("gateway_ips"))
        .collect::<Result<_, _>>()?;
    let mtu = field.optional("mtu", |mtu| mtu.mtu(&addresses))?;
    // A network whose router sends router advertisements has a link-local gateway in place of an
    // address of the subnet.
    let link_local = field.optional("ipv6_lla_gateway_ip", Field::link_local)?;
    if !gateways.iter().any(IpAddr::is_ipv6) {
        gateways.extend(link_local.map(IpAddr::V6));
    }
    role(field)?;
    Ok(InterfaceSpec {
        mac: Some(mac),
        addresses,
        gateways,
        routes,
        mtu,
        ..InterfaceSpec::default()
    })
}

/// The list `plural`, or a list of the one `singular`.
fn with_singular<'a, T: PartialEq>(
    field: &Field<'a>,
    singular: &str,
    plural: &'static str,
    read: fn(&Field<'a>) -> Result<T, AnnotationError>,
) -> Result<Vec<T>, AnnotationError> {
    let elements = field.elements(plural)?;
    let mut list = elements.iter().map(read).collect::<Result<Vec<T>, _>>()?;
    let Some(one) = field.member(singular)? else {
        return Ok(list);
    };
    let value = read(&one)?;
    match (list.first(), elements.first()) {
        (Some(first), Some(written)) if *first != value => {
            let first = written.text()?.to_owned();
            return Err(one.refuse(Problem::Conflict { plural, first }));
        }
        (Some(_), _) => {}
        (None, _) => list.push(value),
    }
    Ok(list)
}

fn refuse_repeated(field: &Field<'_>, addresses: &[IpNet]) -> Result<(), AnnotationError> {
    let repeats = |at: usize| {
        addresses[..at]
            .iter()
            .any(|net| net.addr() == addresses[at].addr())
    };
    match (1..addresses.len()).find(|at| repeats(*at)) {
        Some(at) => Err(field.elements("ip_addresses")?[at].refuse(Problem::Repeated)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
