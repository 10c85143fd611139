//! `kubectl podwire status`: every node in one table, and what is wrong.

mod ovn;

use std::fmt::{self, Write as _};

use futures_util::StreamExt as _;
use futures_util::stream::iter;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use podwire_daemon::output::OutputArgs;
use serde::Serialize;
use serde_json::Value;

use super::exec::Cluster;
use super::objects::{NodeObject, OwnPod, Part, agent_on};
use super::{Common, Failure, print};
use crate::lease::NAME;
use ovn::OvnView;

/// Nodes that are asked at once.
const AT_ONCE: usize = 16;
/// The most problems of one node that are shown to people.
const MOST: usize = 8;

/// The flags of `kubectl podwire status`.
#[derive(Debug, clap::Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    common: Common,
}

/// The whole cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ClusterView {
    /// Everything could be asked, and nothing is wrong.
    is_well: bool,
    controller: ControllerView,
    ovn: OvnView,
    nodes: Vec<NodeView>,
}

/// What the controllers say.
#[derive(Debug, Default, Serialize)]
struct ControllerView {
    /// What `podwire-controller status -o json` says; null if none could be asked.
    status: Option<Value>,
    problems: Vec<String>,
}

/// A node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeView {
    name: String,
    /// What `podwire status -o json` says on it; null if its agent could not be asked.
    status: Option<Value>,
    /// What is wrong, in words.
    problems: Vec<Problem>,
}

#[derive(Debug, Serialize)]
struct Problem {
    what: String,
    /// Commands, to be run on the node.
    fix: Vec<String>,
}

impl Problem {
    fn of(what: impl Into<String>) -> Self {
        let (what, fix) = (what.into(), Vec::new());
        Self { what, fix }
    }
}

impl StatusArgs {
    pub(super) async fn run(self) -> Result<bool, Failure> {
        let cluster = self.common.cluster().await?;
        let (nodes, pods) = (cluster.nodes().await?, cluster.own_pods().await?);
        let asked = nodes.iter().map(|node| node_view(&cluster, node, &pods));
        let nodes = iter(asked).buffered(AT_ONCE).collect();
        let controller = controller_view(&cluster, &pods);
        let ovn = OvnView::of(&cluster, &pods);
        let (controller, ovn, nodes): (_, _, Vec<_>) = tokio::join!(controller, ovn, nodes);
        let is_well = controller.problems.is_empty()
            && ovn.problems.is_empty()
            && !nodes.is_empty()
            && nodes.iter().all(|node| node.problems.is_empty());
        let view = ClusterView {
            is_well,
            controller,
            ovn,
            nodes,
        };
        print(self.output.output, &view, || view.to_string())?;
        Ok(is_well)
    }
}

async fn controller_view(cluster: &Cluster, pods: &[OwnPod]) -> ControllerView {
    let mut view = ControllerView::default();
    let mut controllers = of_part(pods, Part::Controller).peekable();
    if controllers.peek().is_none() && has_led(cluster, pods).await {
        let none = format!(
            "no pod of podwire-controller in namespace {}",
            cluster.namespace
        );
        view.problems.push(none);
    }
    for pod in controllers {
        let command = ["podwire-controller", "status", "-o", "json"];
        match (&pod.away, &view.status) {
            (Some(away), _) => view.problems.push(away.clone()),
            // One answers for all.
            (None, Some(_)) => {}
            (None, None) => match cluster.ask(&pod.name, pod.part.container(), &command).await {
                Ok(status) => view.status = Some(status),
                Err(why) => view.problems.push(why),
            },
        }
    }
    if let Some(status) = &view.status
        && status["isWell"] != true
    {
        let problems = status["problems"].as_array().into_iter().flatten();
        let problems =
            problems.map(|it| format!("{}: {}", text(it, "object"), text(it, "message")));
        view.problems.extend(problems);
        if view.problems.is_empty() {
            let advice = status["northd"]["advice"].as_str();
            let leader = || format!("leader: {}", text(status, "leader"));
            view.problems
                .push(advice.map_or_else(leader, |advice| format!("ovn-northd: {advice}")));
        }
    }
    view
}

/// Whether a controller belongs here: not in plain mode, nor beside another control plane.
async fn has_led(cluster: &Cluster, pods: &[OwnPod]) -> bool {
    let of_ovn = [Part::Northbound, Part::Southbound, Part::OvnController];
    if pods.iter().any(|it| of_ovn.contains(&it.part)) {
        return true;
    }
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    // Who can't be asked may have one.
    !matches!(cluster.answered(leases.get_opt(NAME)).await, Ok(None))
}

async fn node_view(cluster: &Cluster, node: &NodeObject, pods: &[OwnPod]) -> NodeView {
    let mut problems: Vec<Problem> = node.unready.iter().map(Problem::of).collect();
    let of_node = |part| of_part(pods, part).filter(|pod| pod.node == node.name);
    // The node role's own report is in the agent's answer.
    for part in [Part::NodeRole, Part::OvnController, Part::OpenVswitch] {
        let own: Vec<_> = of_node(part).collect();
        problems.extend(
            own.iter()
                .filter_map(|pod| pod.away.as_ref())
                .map(Problem::of),
        );
        if own.is_empty() && of_part(pods, part).next().is_some() {
            let missing = format!("no pod of {}, which other nodes have", part.word());
            problems.push(Problem::of(missing));
        }
    }
    let agent = agent_on(pods, &node.name);
    let mut status = None;
    match agent {
        None => problems.push(Problem::of(
            "no pod of podwire's agent; if it runs as a unit of systemd: podwire doctor, there",
        )),
        Some(OwnPod {
            away: Some(away), ..
        }) => problems.push(Problem::of(away)),
        Some(pod) => {
            let container = pod.part.container();
            let ask = async |tool: &str| {
                let command = ["podwire", tool, "-o", "json"];
                cluster.ask(&pod.name, container, &command).await
            };
            let (said, examined) = tokio::join!(ask("status"), ask("doctor"));
            let said = said.map(|it| status = Some(it));
            let found = examined.as_ref().map(findings).unwrap_or_default();
            // Doctor finds more, also without an agent.
            if let (Err(why), true) = (said, found.is_empty()) {
                problems.push(Problem::of(why));
            }
            problems.extend(found);
            problems.extend(examined.err().map(Problem::of));
        }
    }
    if let Some(status) = &status {
        problems.extend(unsaid(status, &problems));
    }
    NodeView {
        name: node.name.clone(),
        status,
        problems,
    }
}

/// What doctor found wrong.
fn findings(examined: &Value) -> Vec<Problem> {
    let subjects = examined.as_array().into_iter().flatten();
    let findings = subjects.flat_map(|it| it["findings"].as_array().into_iter().flatten());
    let wrong = findings.filter(|it| it["wrong"] == true);
    let commands = |it: &Value| {
        let commands = it["fix"].as_array().into_iter().flatten();
        commands
            .filter_map(|it| it.as_str().map(str::to_owned))
            .collect()
    };
    wrong
        .map(|it| Problem {
            what: text(it, "what").to_owned(),
            fix: commands(it),
        })
        .collect()
}

/// What the agent's status says is wrong, if doctor found nothing.
fn unsaid(status: &Value, found: &[Problem]) -> Vec<Problem> {
    if !found.is_empty() {
        return Vec::new();
    }
    let mut problems = Vec::new();
    if status["ready"] != true {
        let reasons = status["reasons"].as_array().into_iter().flatten();
        problems.extend(reasons.filter_map(Value::as_str).map(Problem::of));
        if problems.is_empty() {
            problems.push(Problem::of("the agent is not ready"));
        }
    }
    let role = &status["nodeRole"];
    if role["hangs"] == true {
        problems.push(Problem::of("node role: it does not answer"));
    } else if role["runs"] == true && role["well"] != true {
        problems.push(Problem::of(format!("node role: {}", text(role, "status"))));
    }
    problems
}

fn of_part(pods: &[OwnPod], part: Part) -> impl Iterator<Item = &OwnPod> {
    pods.iter().filter(move |pod| pod.part == part)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// For people.
impl fmt::Display for ClusterView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = vec![
            [
                "NODE",
                "AGENT",
                "NODE ROLE",
                "OVN-CONTROLLER",
                "PODWIRE",
                "OPEN VSWITCH",
                "PODS",
            ]
            .map(str::to_owned),
        ];
        rows.extend(self.nodes.iter().map(NodeView::row));
        let width = |column: usize| {
            let widths = rows.iter().map(|row| row[column].chars().count());
            widths.max().unwrap_or_default()
        };
        for row in &rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let _ = write!(line, "{cell:<width$}  ", width = width(column));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        writeln!(f)?;
        if let Some(status) = &self.controller.status {
            writeln!(f, "controller: led by {}", text(status, "leader"))?;
        }
        for problem in &self.controller.problems {
            writeln!(f, "controller: {problem}")?;
        }
        write!(f, "{}", self.ovn)?;
        for node in &self.nodes {
            for Problem { what, fix } in node.problems.iter().take(MOST) {
                writeln!(f, "{}: {what}", node.name)?;
                for command in fix {
                    writeln!(f, "    fix, on the node: {command}")?;
                }
            }
            if node.problems.len() > MOST {
                writeln!(f, "{}: and {} more", node.name, node.problems.len() - MOST)?;
            }
        }
        let wrong = self
            .nodes
            .iter()
            .filter(|it| !it.problems.is_empty())
            .count();
        match (self.is_well, self.nodes.len()) {
            (_, 0) => writeln!(f, "the cluster has no nodes"),
            (true, number) => writeln!(f, "all is well on {number} nodes"),
            (false, number) => writeln!(f, "something is wrong on {wrong} of {number} nodes"),
        }
    }
}

impl NodeView {
    fn row(&self) -> [String; 7] {
        let Some(status) = &self.status else {
            let unknown = || "-".to_owned();
            let name = self.name.clone();
            let agent = "no answer".to_owned();
            return [
                name,
                agent,
                unknown(),
                unknown(),
                unknown(),
                unknown(),
                unknown(),
            ];
        };
        let either = |is: bool, yes: &str, no: &str| (if is { yes } else { no }).to_owned();
        let role = &status["nodeRole"];
        let controller = &status["controller"];
        [
            self.name.clone(),
            either(status["ready"] == true, "ready", "not ready"),
            match (role["runs"] == true, role["well"] == true) {
                _ if role.is_null() => "-".to_owned(),
                _ if role["hangs"] == true => "no answer".to_owned(),
                (true, true) => "in sync".to_owned(),
                (true, false) => "not in sync".to_owned(),
                (false, _) => "does not run".to_owned(),
            },
            match controller.is_null() {
                true => "-".to_owned(),
                false => either(controller["ok"] == true, "connected", "no connection"),
            },
            text(status, "version").to_owned(),
            status["ovsVersion"].as_str().unwrap_or("-").to_owned(),
            status["attachments"]["live"]
                .as_u64()
                .unwrap_or_default()
                .to_string(),
        ]
    }
}
