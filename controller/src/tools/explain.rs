mod reach;
mod service;

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use itertools::Itertools as _;
use podwire_cluster::service::Endpoint;
use podwire_daemon::output::Format;
use podwire_ovs::nb::Table;
use podwire_ovs::replica::Db;
use serde::Serialize;

use super::{ToolError, View};
use crate::cluster::{Cluster, ObjectName, Pod};
use crate::config::Config;
use crate::ipam::RecordedAddresses;
use crate::key::{Attachment, Key};
use crate::names::{attached_port, pod_port};

pub use reach::{Target, TargetError};
pub use service::explain_service;

use reach::{Reaches, reach};

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

/// The state of a pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Explanation {
    /// NAMESPACE/NAME.
    pod: String,
    node: String,
    /// Those of its annotation.
    addresses: Vec<IpNet>,
    mac: Option<String>,
    /// On the default network.
    port: Port,
    /// The primary network that locks that port, if the pod has one.
    primary_network: Option<String>,
    /// The services that it reaches by that port nevertheless.
    #[serde(skip)]
    open: [ObjectName; 2],
    /// Its ports on other networks.
    networks: Vec<OnNetwork>,
    /// The services with the pod among their endpoints.
    services: Vec<Serving>,
    /// Whether a packet of its arrives, if a destination was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    reaches: Option<Reaches>,
}

/// A logical port, which may be missing: then its switch and addresses are null.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Port {
    name: String,
    switch: Option<String>,
    addresses: Option<String>,
    /// What of it is not as the pod's object says.
    problems: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OnNetwork {
    /// The key in `k8s.ovn.org/pod-networks`.
    entry: String,
    network: String,
    port: Port,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Serving {
    /// NAMESPACE/NAME.
    service: String,
    cluster_ips: Vec<IpAddr>,
    /// As `80/TCP to 8080`.
    ports: Vec<String>,
    /// What of the endpoint the service uses.
    endpoint: &'static str,
}

/// The state of a pod, and whether it reaches a destination; false if it does not.
///
/// # Errors
/// See [`ToolError`].
pub async fn explain(
    config: &Config,
    format: Format,
    question: &Question,
) -> Result<(String, bool), ToolError> {
    let view = View::open(config).await?;
    let (namespace, name) = &question.pod;
    let cluster = &view.state.cluster;
    let pod = pod_of(cluster, &question.pod)?;
    let recorded = pod.networks.clone().unwrap_or_default();
    let networks = view.state.networks.of(&question.pod);
    let networks = networks.map(|(entry, network)| {
        let attachment = Attachment::of(&question.pod, entry);
        let port = attached_port(&attachment);
        OnNetwork {
            entry: entry.to_string(),
            network: network.name().to_string(),
            port: view.ovsdb.read(|db| Port::of(db, port)),
        }
    });
    let mut explanation = Explanation {
        pod: format!("{namespace}/{name}"),
        node: pod.node.to_string(),
        addresses: recorded.addresses.to_vec(),
        mac: recorded.mac.map(|it| it.to_string()),
        port: view
            .ovsdb
            .read(|db| Port::of_pod(db, &question.pod, pod, &recorded)),
        primary_network: view
            .state
            .primary_held(&question.pod)
            .map(|it| it.name().to_string()),
        open: view.state.open_to_locked(),
        networks: networks.collect(),
        services: services_of(cluster, &recorded),
        reaches: None,
    };
    if let Some(target) = &question.to {
        let ends = (pod, &recorded);
        explanation.reaches = Some(reach(config, &view, question, target, ends).await?);
    }
    let arrives = explanation.reaches.as_ref().is_none_or(|it| it.arrives);
    let text = format.encode(&explanation, || explanation.to_string());
    Ok((text.map_err(ToolError::Format)?, arrives))
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "pod {} on node {}", self.pod, self.node)?;
        let mut line = |name: &str, content: &str| writeln!(f, "{name:<10} {content}");
        match &*self.addresses {
            [] => line(
                "annotation",
                "missing: the controller has not given it an address, see its Events",
            )?,
            addresses => {
                let mac = self.mac.as_deref().unwrap_or_default();
                line(
                    "annotation",
                    &format!("{} {mac}", addresses.iter().join(", ")),
                )?;
            }
        }
        line("row", &self.port.to_string())?;
        for problem in &self.port.problems {
            line("", problem)?;
        }
        if let Some(network) = &self.primary_network {
            let open = self
                .open
                .each_ref()
                .map(|(namespace, name)| format!("{namespace}/{name}"));
            let line_of = format!(
                "by its primary network {network}: its node alone reaches it by that port, and it \
                 reaches the services {} alone",
                open.join(" and ")
            );
            line("locked", &line_of)?;
        }
        for OnNetwork {
            entry,
            network,
            port,
        } in &self.networks
        {
            line("network", &format!("{entry} on {network}: {port}"))?;
        }
        if self.services.is_empty() {
            line("service", "none")?;
        }
        for serving in &self.services {
            line("service", &serving.to_string())?;
        }
        for (name, content) in self.reaches.iter().flat_map(Reaches::lines) {
            line(&name, &content)?;
        }
        Ok(())
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        let Some(addresses) = &self.addresses else {
            return write!(f, "missing: there is no Logical_Switch_Port {name}");
        };
        let switch = self.switch.as_deref().unwrap_or("no switch");
        write!(f, "Logical_Switch_Port {name} on {switch}: {addresses}")
    }
}

impl fmt::Display for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.cluster_ips.is_empty() {
            return write!(f, "{}: {}", self.service, self.endpoint);
        }
        let ips: Vec<_> = self.cluster_ips.iter().map(ToString::to_string).collect();
        let (ips, ports) = (ips.join(","), self.ports.join(", "));
        write!(f, "{} {ips} {ports}: {}", self.service, self.endpoint)
    }
}

fn pod_of<'a>(cluster: &'a Cluster, id: &ObjectName) -> Result<&'a Pod, ToolError> {
    cluster.pods.get(id).ok_or_else(|| {
        let (namespace, name) = id;
        ToolError::Missing(format!(
            "pod {namespace}/{name} is not on the pod network: it does not exist, has no node yet, \
             uses its node's network, or has ended"
        ))
    })
}

/// The pod with an address on the default network.
fn pod_at(cluster: &Cluster, address: IpAddr) -> Option<(&ObjectName, &Pod)> {
    cluster.pods.iter().find(|(_, pod)| {
        let mut recorded = pod.networks.iter().flat_map(|it| &it.addresses);
        recorded.any(|it| it.addr() == address)
    })
}

impl Port {
    fn of(db: &Db, name: String) -> Self {
        let row = db.nb_named(Table::LogicalSwitchPort, &name).next();
        let switch = row.as_ref().and_then(|row| {
            let mut holders = db.nb_parents(Table::LogicalSwitch, "ports", row.uuid());
            Some(holders.next()?.str("name")?.to_owned())
        });
        let addresses = row.map(|row| row.str("addresses").unwrap_or_default().to_owned());
        Self {
            name,
            switch,
            addresses,
            problems: Vec::new(),
        }
    }

    /// With what of it is not as the pod's object says.
    fn of_pod(db: &Db, id: &ObjectName, pod: &Pod, recorded: &RecordedAddresses) -> Self {
        let mut port = Self::of(db, pod_port(id));
        let Some(row) = db.nb_named(Table::LogicalSwitchPort, &port.name).next() else {
            return port;
        };
        let expected = recorded.mac.map(|mac| {
            let all = recorded.addresses.iter();
            all.fold(mac.to_string(), |text, it| format!("{text} {}", it.addr()))
        });
        let mut problem = |text: &str| port.problems.push(text.to_owned());
        if expected.is_some() && expected != port.addresses {
            problem("its addresses are not those of the annotation");
        }
        if port.switch.as_deref() != Some(&*pod.node) {
            problem(&format!("its switch is not that of the node {}", pod.node));
        }
        let key = Key::pod(id.clone()).to_string();
        let mut own = db.nb_of_object(Table::LogicalSwitchPort, &key);
        if own.next().is_none() {
            problem("it does not belong to this controller: --adopt takes it over");
        }
        if row.map("options").str("iface-id-ver") != Some(&pod.uid) {
            problem("its iface-id-ver is not the pod's uid: it is that of an earlier pod");
        }
        port
    }
}

/// The port of an attachment to another network than the default one, as text.
pub(super) fn attached(db: &Db, attachment: &Attachment) -> String {
    Port::of(db, attached_port(attachment)).to_string()
}

/// The services with the pod among their endpoints.
fn services_of(cluster: &Cluster, recorded: &RecordedAddresses) -> Vec<Serving> {
    let is_its = |address: IpAddr| recorded.addresses.iter().any(|it| it.addr() == address);
    let found = cluster
        .slices
        .all()
        .filter_map(|((namespace, name), slice)| {
            let endpoint = slice.endpoints.iter().find(|it| is_its(it.address))?;
            let mut serving = Serving {
                service: format!("{namespace}/{name}"),
                cluster_ips: Vec::new(),
                ports: Vec::new(),
                endpoint: "it has no cluster IP, or is another proxy's",
            };
            let id = (namespace.clone(), name.clone());
            if let Some(service) = cluster.services.get(&id) {
                serving.cluster_ips.clone_from(&service.cluster_ips);
                let ports = service.ports.iter().filter_map(|port| {
                    let (_, target) = slice.ports.get(&port.name)?;
                    let protocol = port.protocol.api_name();
                    Some(format!("{}/{protocol} to {target}", port.port))
                });
                serving.ports = ports.collect();
                serving.endpoint = state_of(endpoint);
            }
            Some(serving)
        });
    found.collect()
}

/// Whether a service uses an endpoint.
fn state_of(endpoint: &Endpoint) -> &'static str {
    match (endpoint.ready, endpoint.serving) {
        (true, _) => "ready",
        (false, true) => "not ready, but serving: used if no endpoint is ready",
        (false, false) => "not ready: not used",
    }
}
