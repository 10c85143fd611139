use std::fmt::Write as _;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use podwire_cluster::service::Protocol;
use podwire_ovs::nb::Table;
use podwire_ovs::replica::Db;

use super::trace::{Packet, trace};
use super::{ToolError, View};
use crate::cluster::policy::Direction;
use crate::cluster::{Cluster, Name, ObjectName, Pod};
use crate::config::Config;
use crate::ipam::{self, Mac, RecordedAddresses, mac, nth};
use crate::key::{Attachment, Key};
use crate::names::{attached_port, pod_port};
use crate::run::State;
use crate::want::policy::{self, Connection};

/// A query about a pod.
#[derive(Clone, Debug)]
pub struct Question {
    /// Its namespace and name.
    pub pod: ObjectName,
    /// The destination to check.
    pub to: Option<Target>,
    /// A TCP port there; None for ICMP echo.
    pub port: Option<u16>,
}

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

/// The state of a pod, and whether it reaches a destination, as text; false if it does not.
///
/// # Errors
/// See [`ToolError`].
pub async fn explain(config: &Config, question: &Question) -> Result<(String, bool), ToolError> {
    let view = View::open(config).await?;
    let (namespace, name) = &question.pod;
    let cluster = &view.state.cluster;
    let pod = pod_of(cluster, &question.pod)?;
    let recorded = pod.networks.clone().unwrap_or_default();
    let mut text = format!("pod {namespace}/{name} on node {}\n", pod.node);
    let annotation = match (&*recorded.addresses, recorded.mac) {
        ([], _) => "missing: the controller has not given it an address, see its Events".to_owned(),
        (addresses, mac) => format!(
            "{} {}",
            join(addresses),
            mac.map_or(String::new(), |it| it.to_string())
        ),
    };
    line(&mut text, "annotation", &annotation);
    view.ovsdb
        .read(|db| describe_row(db, &question.pod, pod, &recorded, &mut text));
    for (entry, network) in view.state.networks.of(&question.pod) {
        let attachment = Attachment {
            pod: question.pod.clone(),
            entry: entry.clone(),
        };
        let content = view.ovsdb.read(|db| attached(db, &attachment));
        line(
            &mut text,
            "network",
            &format!("{entry} on {}: {content}", network.name()),
        );
    }
    let services = services_of(cluster, &recorded);
    let services = if services.is_empty() {
        vec!["none".to_owned()]
    } else {
        services
    };
    for service in services {
        line(&mut text, "service", &service);
    }
    let Some(target) = &question.to else {
        return Ok((text, true));
    };
    let packet = packet(
        cluster,
        &question.pod,
        (pod, &recorded),
        target,
        question.port,
    )?;
    describe_policies(&view.state, &question.pod, target, &packet, &mut text);
    let (verdict, arrives) = trace(config, &packet).await?;
    line(
        &mut text,
        "reaches",
        &format!("{}: {}", shown(target, packet.to, question.port), verdict),
    );
    Ok((text, arrives))
}

/// The rules that decide at both ends. What a service's endpoint is, OVN chooses.
fn describe_policies(
    State {
        cluster, policies, ..
    }: &State,
    id: &ObjectName,
    target: &Target,
    packet: &Packet,
    text: &mut String,
) {
    let mut services = cluster.services.values();
    if services.any(|it| it.cluster_ips.contains(&packet.to)) {
        let content = "decided for each endpoint of the service: ask for its pod";
        return line(text, "policies", content);
    }
    let pod = |id: &ObjectName| Some((cluster.pods.get_key_value(id)?, &cluster.namespaces));
    let candidate = |((id, pod), namespaces)| policy::candidate(id, pod, namespaces);
    let own = pod(id).map(candidate);
    let other = match target {
        Target::Pod(namespace, name) => pod(&(namespace.clone(), name.clone())).map(candidate),
        Target::Address(address) => cluster
            .pods
            .iter()
            .find(|(_, pod)| {
                let recorded = pod.networks.iter().flat_map(|recorded| &recorded.addresses);
                recorded.map(IpNet::addr).any(|it| it == *address)
            })
            .map(|(id, pod)| policy::candidate(id, pod, &cluster.namespaces)),
    };
    let port = packet.tcp.map(|port| (Protocol::Tcp, port));
    let ends = [
        (Direction::Egress, own, other, packet.to),
        (Direction::Ingress, other, own, packet.from),
    ];
    for (direction, pod, other, address) in ends {
        let Some(pod) = pod else {
            continue;
        };
        let connection = Connection {
            pod,
            other,
            address,
            port,
        };
        let verdict = policies.verdict(direction, &connection);
        let content = format!("of {}/{}: {verdict}", pod.namespace, pod.name);
        line(text, &direction.to_string().to_lowercase(), &content);
    }
}

fn pod_of<'a>(cluster: &'a Cluster, id: &ObjectName) -> Result<&'a Pod, ToolError> {
    cluster.pods.get(id).ok_or_else(|| {
        let (namespace, name) = id;
        ToolError::Unknown(format!(
            "pod {namespace}/{name} is not on the pod network: it does not exist, has no node yet, \
             uses its node's network, or has ended"
        ))
    })
}

fn describe_row(
    db: &Db,
    id: &ObjectName,
    pod: &Pod,
    recorded: &RecordedAddresses,
    text: &mut String,
) {
    let port = pod_port(id);
    let Some(row) = db.nb_named(Table::LogicalSwitchPort, &port).next() else {
        line(
            text,
            "row",
            &format!("missing: there is no Logical_Switch_Port {port}"),
        );
        return;
    };
    let mut holders = db.nb_parents(Table::LogicalSwitch, "ports", row.uuid());
    let switch = holders
        .next()
        .and_then(|it| it.str("name"))
        .unwrap_or("no switch");
    let addresses = row.str("addresses").unwrap_or_default();
    line(
        text,
        "row",
        &format!("Logical_Switch_Port {port} on {switch}: {addresses}"),
    );
    let expected = recorded.mac.map(|mac| {
        let all = recorded.addresses.iter();
        all.fold(mac.to_string(), |text, it| format!("{text} {}", it.addr()))
    });
    if expected.is_some_and(|expected| expected != addresses) {
        line(text, "", "its addresses are not those of the annotation");
    }
    if switch != pod.node {
        line(
            text,
            "",
            &format!("its switch is not that of the node {}", pod.node),
        );
    }
    let key = Key::pod(id.clone()).to_string();
    if db
        .nb_of_object(Table::LogicalSwitchPort, &key)
        .next()
        .is_none()
    {
        line(
            text,
            "",
            "it does not belong to this controller: --adopt takes it over",
        );
    }
    if row.map("options").str("iface-id-ver") != Some(&pod.uid) {
        line(
            text,
            "",
            "its iface-id-ver is not the pod's uid: it is that of an earlier pod",
        );
    }
}

/// The port of an attachment to another network than the default one.
pub(super) fn attached(db: &Db, attachment: &Attachment) -> String {
    let port = attached_port(attachment);
    let Some(row) = db.nb_named(Table::LogicalSwitchPort, &port).next() else {
        return format!("missing: there is no Logical_Switch_Port {port}");
    };
    let mut holders = db.nb_parents(Table::LogicalSwitch, "ports", row.uuid());
    let switch = holders.next().and_then(|it| it.str("name"));
    let addresses = row.str("addresses").unwrap_or_default();
    format!(
        "Logical_Switch_Port {port} on {}: {addresses}",
        switch.unwrap_or("no switch")
    )
}

/// The services with the pod among their endpoints.
fn services_of(cluster: &Cluster, recorded: &RecordedAddresses) -> Vec<String> {
    let mut found = Vec::new();
    for ((namespace, service_name), slice) in cluster.slices.all() {
        let is_its = |address: IpAddr| recorded.addresses.iter().any(|it| it.addr() == address);
        let mut own = slice.endpoints.iter().filter(|it| is_its(it.address));
        let Some(endpoint) = own.next() else {
            continue;
        };
        let id = (namespace.clone(), service_name.clone());
        let Some(service) = cluster.services.get(&id) else {
            found.push(format!(
                "{namespace}/{service_name}: it has no cluster IP, or is another proxy's"
            ));
            continue;
        };
        let ips: Vec<_> = service
            .cluster_ips
            .iter()
            .map(ToString::to_string)
            .collect();
        let ports: Vec<_> = service
            .ports
            .iter()
            .filter_map(|port| {
                let (_, target) = slice.ports.get(&port.name)?;
                let protocol = port.protocol.api_name();
                Some(format!("{}/{protocol} to {target}", port.port))
            })
            .collect();
        let state = match (endpoint.ready, endpoint.serving) {
            (true, _) => "ready",
            (false, true) => "not ready, but serving: used if no endpoint is ready",
            (false, false) => "not ready: not used",
        };
        found.push(format!(
            "{namespace}/{} {} {}: {state}",
            service_name,
            ips.join(","),
            ports.join(", ")
        ));
    }
    found
}

/// The packet that the pod would send.
fn packet(
    cluster: &Cluster,
    id: &ObjectName,
    (pod, recorded): (&Pod, &RecordedAddresses),
    target: &Target,
    port: Option<u16>,
) -> Result<Packet, ToolError> {
    let unknown = |what: &str| ToolError::Unknown(format!("{what} has no address yet"));
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

fn join(addresses: &[IpNet]) -> String {
    let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

fn line(text: &mut String, name: &str, content: &str) {
    // Writing to a String can't fail.
    let _ = writeln!(text, "{name:<10} {content}");
}
