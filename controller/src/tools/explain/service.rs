//! What is known of a service: its addresses, its endpoints, its rows.

use std::fmt;
use std::net::IpAddr;

use itertools::Itertools as _;
use podwire_daemon::output::Format;
use serde::Serialize;

use super::{pod_at, state_of};
use crate::cluster::ObjectName;
use crate::config::Config;
use crate::diff::{IN_SYNC, Plan};
use crate::key::{Key, Of};
use crate::tools::{ToolError, View};

/// The state of a service.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Explanation {
    /// NAMESPACE/NAME.
    service: String,
    cluster_ips: Vec<IpAddr>,
    external_ips: Vec<IpAddr>,
    /// Of its load balancer.
    balancer_ips: Vec<IpAddr>,
    /// As `80/TCP, node port 30080`.
    ports: Vec<String>,
    endpoints: Vec<EndpointAnswer>,
    /// Why some of it is not done.
    problem: Option<String>,
    rows: Vec<RowAnswer>,
    /// Rows that the database has for it and that it should not have.
    superfluous_rows: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct EndpointAnswer {
    address: IpAddr,
    /// NAMESPACE/NAME of the pod with that address; null: it is no pod's.
    pod: Option<String>,
    node: Option<String>,
    /// As `8080/TCP`.
    ports: Vec<String>,
    /// Whether the service uses it.
    state: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RowAnswer {
    table: &'static str,
    name: String,
    state: &'static str,
    /// The columns in which the database's row differs.
    differs: Vec<&'static str>,
}

impl Explanation {
    fn is_well(&self) -> bool {
        let mut rows = self.rows.iter();
        self.problem.is_none() && self.superfluous_rows == 0 && rows.all(|it| it.state == IN_SYNC)
    }
}

/// The state of a service; false if its rows are not as they should be.
///
/// # Errors
/// See [`ToolError`].
pub async fn explain_service(
    config: &Config,
    format: Format,
    id: &ObjectName,
) -> Result<(String, bool), ToolError> {
    let mut view = View::open(config).await?;
    // So that it is known which addresses are refused.
    drop(view.pending());
    let (namespace, name) = id;
    let View { state, ovsdb, .. } = &mut view;
    let Some(service) = state.cluster.services.get(id).cloned() else {
        return Err(ToolError::Missing(format!(
            "service {namespace}/{name} has no rows: it does not exist, has no cluster IP, or is \
             another proxy's"
        )));
    };
    let adopt = config.rules()?.adopt;
    let (problem, (seen, superfluous_rows), wanted) = ovsdb.read(|db| {
        let plan = Plan::new(db, adopt);
        let (wanted, problem) = state.service_rows(id, &plan);
        let key = Key::object(Of::Service, id.clone());
        let (seen, superfluous) = plan.statuses(&key, &wanted);
        let seen: Vec<_> = seen.into_iter().map(|(status, _)| status).collect();
        (problem, (seen, superfluous), wanted)
    });
    let rows = wanted.iter().zip(seen).map(|(row, status)| RowAnswer {
        table: row.table.name(),
        name: row.name.clone(),
        state: status.word(),
        differs: status.columns(),
    });
    let cluster = &state.cluster;
    let pod_of = |address: IpAddr| {
        let ((namespace, name), _) = pod_at(cluster, address)?;
        Some(format!("{namespace}/{name}"))
    };
    let endpoints = cluster.slices.of(namespace, name).flat_map(|slice| {
        slice.endpoints.iter().map(|endpoint| EndpointAnswer {
            address: endpoint.address,
            pod: pod_of(endpoint.address),
            node: endpoint.node.as_deref().map(str::to_owned),
            ports: slice
                .ports
                .values()
                .map(|(protocol, port)| format!("{port}/{}", protocol.api_name()))
                .collect(),
            state: state_of(endpoint),
        })
    });
    let ports = service.ports.iter().map(|port| {
        let text = format!("{}/{}", port.port, port.protocol.api_name());
        match port.node_port {
            Some(node_port) => format!("{text}, node port {node_port}"),
            None => text,
        }
    });
    let explanation = Explanation {
        service: format!("{namespace}/{name}"),
        ports: ports.collect(),
        endpoints: endpoints.collect(),
        problem,
        rows: rows.collect(),
        superfluous_rows,
        cluster_ips: service.cluster_ips,
        external_ips: service.external_ips,
        balancer_ips: service.balancer_ips,
    };
    let text = format.encode(&explanation, || explanation.to_string());
    Ok((text.map_err(ToolError::Format)?, explanation.is_well()))
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, content: &str| writeln!(f, "{name:<10} {content}");
        line("service", &self.service)?;
        for (name, ips) in [
            ("cluster", &self.cluster_ips),
            ("external", &self.external_ips),
            ("balancer", &self.balancer_ips),
        ] {
            if !ips.is_empty() {
                line(name, &ips.iter().join(", "))?;
            }
        }
        for port in &self.ports {
            line("port", port)?;
        }
        if self.endpoints.is_empty() {
            line("endpoint", "none: connections are rejected")?;
        }
        for endpoint in &self.endpoints {
            let EndpointAnswer { address, state, .. } = endpoint;
            let pod = endpoint.pod.as_deref().unwrap_or("no pod");
            let node = endpoint.node.as_deref().unwrap_or("no node");
            let ports = endpoint.ports.join(", ");
            line(
                "endpoint",
                &format!("{address} of {pod} on {node}, {ports}: {state}"),
            )?;
        }
        if let Some(problem) = &self.problem {
            line("problem", problem)?;
        }
        for row in &self.rows {
            let RowAnswer {
                table, name, state, ..
            } = row;
            let columns = match &*row.differs {
                [] => String::new(),
                columns => format!(" in {}", columns.join(", ")),
            };
            line("row", &format!("{table} {name}: {state}{columns}"))?;
        }
        match self.superfluous_rows {
            0 => Ok(()),
            many => line("row", &format!("{many} more that it should not have")),
        }
    }
}
