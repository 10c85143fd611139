//! Whether a packet of a pod arrives somewhere.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use podwire_cluster::service::Protocol;
use serde::Serialize;

use super::{Question, pod_at, pod_of};
use crate::cluster::policy::Direction;
use crate::cluster::{Cluster, Name, ObjectName, Pod};
use crate::config::Config;
use crate::ipam::{self, Mac, RecordedAddresses, mac, nth};
use crate::key::Network;
use crate::names::pod_port;
use crate::run::State;
use crate::tools::trace::{Packet, trace};
use crate::tools::{ToolError, View};
use crate::want::network::switch;
use crate::want::policy::{self, Candidate, Connection};

/// The destination of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A pod.
    Pod(Name, Name),
    /// An address: a node's, a service's, any.
    Address(IpAddr),
}

/// The text is no [`Target`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither NAMESPACE/POD nor an IP address")]
pub struct TargetError(String);

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                Ok(Self::Pod(namespace.into(), name.into()))
            }
            _ => Err(TargetError(text.to_owned())),
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Reaches {
    /// The destination, as text.
    destination: String,
    to: IpAddr,
    /// The rules that decide at both ends; null for a service, whose endpoint OVN chooses.
    policies: Option<Vec<Decided>>,
    pub(super) arrives: bool,
    /// ovn-trace's answer.
    verdict: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Decided {
    /// `ingress` or `egress`.
    direction: String,
    /// The pod at that end, NAMESPACE/NAME.
    pod: String,
    verdict: String,
}

/// Asks for a pod's packet, with both ends' policies and ovn-trace.
pub(super) async fn reach(
    config: &Config,
    view: &View,
    question: &Question,
    target: &Target,
    (pod, recorded): (&Pod, &RecordedAddresses),
) -> Result<Reaches, ToolError> {
    let (id, port) = (&question.pod, question.port);
    let network = way(&view.state, id, target);
    let packet = match network == Network::DEFAULT {
        true => packet(&view.state.cluster, id, (pod, recorded), target, port)?,
        false => packet_on(&view.state, &network, (id, pod), target, port)?,
    };
    let (verdict, arrives) = trace(config, &packet).await?;
    Ok(Reaches {
        destination: shown(target, packet.to, port),
        to: packet.to,
        policies: decided(&view.state, &network, id, target, &packet),
        arrives,
        verdict,
    })
}

impl Reaches {
    /// For people: names and contents.
    pub(super) fn lines(&self) -> Vec<(String, String)> {
        let line = |name: &str, content: String| (name.to_owned(), content);
        let mut lines = match &self.policies {
            None => vec![line(
                "policies",
                "decided for each endpoint of the service: ask for its pod".to_owned(),
            )],
            Some(ends) => ends
                .iter()
                .map(|end| line(&end.direction, format!("of {}: {}", end.pod, end.verdict)))
                .collect(),
        };
        let verdict = format!("{}: {}", self.destination, self.verdict);
        lines.push(line("reaches", verdict));
        lines
    }
}

/// The network by which a pod sends: where it has a primary one, that; but to the services that it
/// has routes to, and to pods that are not there, by the default one.
fn way(state: &State, id: &ObjectName, target: &Target) -> Network {
    let own = state.primary_held(id).filter(|own| match target {
        Target::Pod(namespace, name) => {
            state.primary_held(&(namespace.clone(), name.clone())) == Some(own)
        }
        Target::Address(address) => !state.open_services().contains(address),
    });
    own.cloned().unwrap_or_default()
}

/// The pod with an address on a network.
fn holder<'a>(
    state: &'a State,
    network: &'a Network,
    address: IpAddr,
) -> Option<(&'a ObjectName, &'a Pod)> {
    if *network == Network::DEFAULT {
        return pod_at(&state.cluster, address);
    }
    let pods = state.networks.holders(network);
    let mut pods = pods.filter_map(|id| Some((id, state.cluster.pods.get(id)?)));
    pods.find(|(id, pod)| {
        let own = state.place_on(id, pod, network);
        own.is_some_and(|(_, it)| it.ips().contains(&address))
    })
}

/// The rules that decide at both ends. What a service's endpoint is, OVN chooses.
fn decided(
    state: &State,
    network: &Network,
    id: &ObjectName,
    target: &Target,
    packet: &Packet,
) -> Option<Vec<Decided>> {
    let State { cluster, .. } = state;
    let policies = state.policies_on(network)?;
    let mut services = cluster.services.values();
    if services.any(|it| it.cluster_ips.contains(&packet.to)) {
        return None;
    }
    let pod = |id: &ObjectName| Some((cluster.pods.get_key_value(id)?, &cluster.namespaces));
    let candidate = |((id, pod), namespaces)| policy::candidate(id, pod, namespaces);
    let own = pod(id).map(candidate);
    let other = match target {
        Target::Pod(namespace, name) => pod(&(namespace.clone(), name.clone())).map(candidate),
        Target::Address(address) => holder(state, network, *address)
            .map(|(id, pod)| policy::candidate(id, pod, &cluster.namespaces)),
    };
    let port = packet.tcp.map(|port| (Protocol::Tcp, port));
    let ends = [
        (Direction::Egress, own, other, packet.to),
        (Direction::Ingress, other, own, packet.from),
    ];
    let ends = ends
        .into_iter()
        .filter_map(|(direction, pod, other, address)| {
            let connection = Connection {
                pod: pod?,
                other,
                address,
                port,
            };
            let Candidate {
                namespace, name, ..
            } = connection.pod;
            let locks = state.primary_held(&(namespace.clone(), name.clone()));
            Some(Decided {
                direction: direction.to_string().to_lowercase(),
                pod: format!("{namespace}/{name}"),
                verdict: match locks.filter(|_| *network == Network::DEFAULT) {
                    Some(locks) => {
                        format!(
                            "its port there is locked by its primary network {}",
                            locks.name()
                        )
                    }
                    None => policies.verdict(direction, &connection).to_string(),
                },
            })
        });
    Some(ends.collect())
}

/// The packet that the pod would send.
fn packet(
    cluster: &Cluster,
    id: &ObjectName,
    (pod, recorded): (&Pod, &RecordedAddresses),
    target: &Target,
    port: Option<u16>,
) -> Result<Packet, ToolError> {
    let unknown = |what: &str| ToolError::Refused(format!("{what} has no address yet"));
    let peer = match target {
        Target::Address(_) => None,
        Target::Pod(namespace, name) => {
            let id = (namespace.clone(), name.clone());
            Some(pod_of(cluster, &id)?.networks.clone().unwrap_or_default())
        }
    };
    let first = |recorded: &RecordedAddresses| recorded.addresses.first().map(IpNet::addr);
    let to = match (target, &peer) {
        (Target::Address(address), _) => *address,
        (Target::Pod(..), peer) => {
            let address = peer.as_ref().and_then(first);
            address.ok_or_else(|| unknown("the other pod"))?
        }
    };
    let mut own = recorded
        .addresses
        .iter()
        .filter(|it| it.addr().is_ipv4() == to.is_ipv4());
    let (from, source) = own
        .next()
        .zip(recorded.mac)
        .ok_or_else(|| unknown("the pod"))?;
    // A neighbour is reached at its own MAC address, everything else at the router's.
    let router = || mac(first_of(cluster, pod).map_or(from.addr(), |it| nth(it, 1).addr()));
    let neighbour = peer
        .and_then(|peer| peer.mac)
        .filter(|_| from.contains(&to));
    let destination: Mac = neighbour.unwrap_or_else(router);
    Ok(Packet {
        switch: pod.node.to_string(),
        port: pod_port(id),
        macs: (source, destination),
        from: from.addr(),
        to,
        tcp: port,
    })
}

/// The packet that the pod would send on another network.
fn packet_on(
    state: &State,
    network: &Network,
    (id, pod): (&ObjectName, &Pod),
    target: &Target,
    port: Option<u16>,
) -> Result<Packet, ToolError> {
    let unknown = |what: &str| {
        let network = network.name();
        ToolError::Refused(format!(
            "{what} has no address of its family on network {network} yet"
        ))
    };
    let peer = match target {
        Target::Address(address) => holder(state, network, *address),
        Target::Pod(namespace, name) => state
            .cluster
            .pods
            .get_key_value(&(namespace.clone(), name.clone())),
    };
    let peer = peer.and_then(|(id, pod)| Some((pod, state.place_on(id, pod, network)?.1)));
    let first = peer.as_ref().and_then(|(_, it)| it.ips().first().copied());
    let to = match target {
        Target::Address(address) => *address,
        Target::Pod(..) => first.ok_or_else(|| unknown("the other pod"))?,
    };
    let shape = state.networks.live.get(network);
    let (name, own) = state
        .place_on(id, pod, network)
        .ok_or_else(|| unknown("the pod"))?;
    let from = own
        .ips()
        .into_iter()
        .find(|it| it.is_ipv4() == to.is_ipv4());
    let shared = shape.and_then(|it| it.routers().next());
    let of_node = state.part_routers(network, &pod.node);
    let router = shared.or(of_node.first().copied());
    // A neighbour is reached at its own MAC address, everything else at the router's.
    let is_neighbour = |other: &Pod| of_node.is_empty() || other.node == pod.node;
    let neighbour = peer.as_ref().filter(|(other, _)| is_neighbour(other));
    let destination = neighbour
        .map(|(_, it)| it.mac)
        .or(router.map(|it| mac(it.addr())));
    let (shape, destination) = shape.zip(destination).ok_or_else(|| unknown("the pod"))?;
    Ok(Packet {
        switch: switch(network, shape, &pod.node),
        port: name.to_string(),
        macs: (own.mac, destination),
        from: from.ok_or_else(|| unknown("the pod"))?,
        to,
        tcp: port,
    })
}

/// The first subnet of the pod's node; its router's MAC address is that of all of them.
fn first_of(cluster: &Cluster, pod: &Pod) -> Option<IpNet> {
    let node = cluster.nodes.get(&pod.node)?;
    ipam::read_node_subnets(node.subnets.as_deref()?)
        .first()
        .copied()
}

fn shown(target: &Target, to: IpAddr, port: Option<u16>) -> String {
    let by = port.map_or_else(|| "ICMP".to_owned(), |port| format!("TCP port {port}"));
    match target {
        Target::Pod(namespace, name) => format!("pod {namespace}/{name} ({to}, {by})"),
        Target::Address(_) => format!("{to} ({by})"),
    }
}
