//! `kubectl podwire trace`: a packet of a pod, from its node to where it should arrive.

use std::fmt;
use std::net::IpAddr;

use itertools::Itertools as _;
use podwire_daemon::output::OutputArgs;
use serde::Serialize;

use super::exec::Cluster;
use super::objects::{OwnPod, Part, agent_of, runs};
use super::{Common, Failure, print};
use crate::tools::Target;

/// The flags of `kubectl podwire trace`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Nothing is sent. Exit code 0: it arrives; 1: it does not, or a node could \
                        not be asked."
)]
pub struct TraceArgs {
    /// The pod that sends: NAMESPACE/NAME
    #[arg(value_name = "POD-A")]
    from: Target,
    /// The pod that receives, NAMESPACE/NAME, or any IP address
    #[arg(value_name = "POD-B")]
    to: Target,
    /// TCP port of the destination, instead of ICMP echo
    #[arg(long, value_name = "NUMBER")]
    port: Option<u16>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    common: Common,
}

/// The way of a packet.
#[derive(Debug, Serialize)]
struct Way {
    arrives: bool,
    from: End,
    to: End,
    /// What each component that was asked says, in the packet's order.
    steps: Vec<Step>,
}

/// A pod, or an address outside of the cluster.
#[derive(Debug, Serialize)]
struct End {
    /// NAMESPACE/NAME; null for an address of no pod.
    pod: Option<String>,
    node: Option<String>,
    address: IpAddr,
}

/// What one component does with the packet.
#[derive(Debug, Serialize)]
struct Step {
    /// The node; null for the controller.
    node: Option<String>,
    component: &'static str,
    /// Whether it lets the packet on; null if it could not be asked.
    passes: Option<bool>,
    what: String,
}

impl TraceArgs {
    pub(super) async fn run(self) -> Result<bool, Failure> {
        let cluster = self.common.cluster().await?;
        let own = cluster.own_pods().await?;
        let from = match &self.from {
            Target::Pod(namespace, name) => find(&cluster, namespace, name, None).await?,
            Target::Address(address) => {
                let what = format!("POD-A {address}: write NAMESPACE/NAME of the pod that sends");
                return Err(Failure::Unknown(what));
            }
        };
        let family = Some(from.address.is_ipv4());
        let to = match &self.to {
            Target::Pod(namespace, name) => find(&cluster, namespace, name, family).await?,
            Target::Address(address) => End {
                pod: None,
                node: None,
                address: *address,
            },
        };
        let mut steps = Vec::new();
        steps.extend(self.controller(&cluster, &own, &from, &to).await);
        steps.extend(self.sender(&cluster, &own, &from, &to).await);
        steps.extend(receiver(&cluster, &own, &from, &to).await);
        let way = Way {
            arrives: steps.iter().all(|step| step.passes == Some(true)),
            from,
            to,
            steps,
        };
        print(self.output.output, &way, || way.to_string())?;
        Ok(way.arrives)
    }

    /// The policies and the logical network, as the controller explains them.
    async fn controller(
        &self,
        cluster: &Cluster,
        own: &[OwnPod],
        from: &End,
        to: &End,
    ) -> Option<Step> {
        let pod = own.iter().find(|it| runs(it, Part::Controller))?;
        let target = to.pod.clone().unwrap_or_else(|| to.address.to_string());
        let port = self.port.map(|port| port.to_string());
        let sender = from.pod.as_deref().unwrap_or_default();
        let mut command = vec![
            "podwire-controller",
            "explain",
            "pod",
            sender,
            "--to",
            &target,
        ];
        if let Some(port) = &port {
            command.extend(["--port", port]);
        }
        let answer = cluster
            .exec(&pod.name, pod.part.container(), &command)
            .await;
        let (passes, what) = match answer {
            Ok(output) if output.stdout.is_empty() => (None, output.complaint()),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stdout)
                    .trim_end()
                    .to_owned();
                (Some(output.code == 0), text)
            }
            Err(why) => (None, why),
        };
        Some(Step {
            node: None,
            component: "controller",
            passes,
            what,
        })
    }

    /// What the sender's node does with it.
    async fn sender(&self, cluster: &Cluster, own: &[OwnPod], from: &End, to: &End) -> Vec<Step> {
        let address = to.address.to_string();
        let port = self.port.map(|port| port.to_string());
        let sender = from.pod.as_deref().unwrap_or_default();
        let mut command = vec!["podwire", "trace", sender, &address, "-o", "json"];
        if let Some(port) = &port {
            command.extend(["--port", port]);
        }
        let traced = match agent_of(own, from.node.as_deref()) {
            Ok(pod) => cluster.ask(&pod.name, pod.part.container(), &command).await,
            Err(why) => Err(why),
        };
        let step = |component, passes, what| Step {
            node: from.node.clone(),
            component,
            passes,
            what,
        };
        let traced = match traced {
            Ok(traced) => traced,
            Err(why) => return vec![step("agent", None, why)],
        };
        let parts = [
            ("OVN", &traced["ovn"]),
            ("Open vSwitch", &traced["openVswitch"]),
        ];
        let parts = parts.into_iter().filter(|(_, part)| !part.is_null());
        parts
            .map(|(component, part)| {
                let passes = match part["verdict"].as_str() {
                    Some("arrives") => Some(true),
                    Some("unknown") | None => None,
                    Some(_) => Some(traced["arrives"] == true),
                };
                let what = part["what"].as_str().unwrap_or_default().to_owned();
                step(component, passes, what)
            })
            .collect()
    }
}

/// Whether the receiver's port is as its ADD made it, if it is on another node.
async fn receiver(cluster: &Cluster, own: &[OwnPod], from: &End, to: &End) -> Option<Step> {
    let (pod, node) = (to.pod.as_deref()?, to.node.as_deref()?);
    if Some(node) == from.node.as_deref() {
        return None;
    }
    let command = ["podwire", "check", pod, "-o", "json"];
    let checked = match agent_of(own, Some(node)) {
        Ok(agent) => {
            cluster
                .ask(&agent.name, agent.part.container(), &command)
                .await
        }
        Err(why) => Err(why),
    };
    let (passes, what) = match checked {
        Ok(checked) => {
            let attachments = checked["attachments"].as_array().into_iter().flatten();
            let is_busy = attachments.clone().any(|it| it["busy"] == true);
            let differences = attachments.flat_map(|it| it["differences"].as_array());
            let mut differences = differences.flatten().filter_map(|it| it["what"].as_str());
            let differences = differences.join("; ");
            match (differences.is_empty(), is_busy) {
                (true, true) => (None, format!("{pod} is being worked on")),
                (true, false) => (Some(true), format!("{pod} is attached as its ADD made it")),
                (false, _) => (Some(false), differences),
            }
        }
        Err(why) => (None, why),
    };
    Some(Step {
        node: Some(node.to_owned()),
        component: "attachment",
        passes,
        what,
    })
}

/// A pod of the cluster, with its address of the given family, or its first.
async fn find(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    is_v4: Option<bool>,
) -> Result<End, Failure> {
    let named = format!("{namespace}/{name}");
    let pod = cluster.pod(namespace, name).await?;
    let status = pod.status.unwrap_or_default();
    let mut addresses = status.pod_ips.into_iter().flatten().map(|it| it.ip);
    let addresses: Vec<IpAddr> = match status.pod_ip {
        Some(first) => {
            let others: Vec<String> = addresses.collect();
            let all = std::iter::once(first).chain(others);
            all.filter_map(|it| it.parse().ok()).collect()
        }
        None => addresses
            .by_ref()
            .filter_map(|it| it.parse().ok())
            .collect(),
    };
    let fits = |it: &&IpAddr| is_v4.is_none_or(|is_v4| it.is_ipv4() == is_v4);
    let address = addresses.iter().find(fits).copied().ok_or_else(|| {
        let family = match is_v4 {
            Some(true) => "IPv4 ",
            Some(false) => "IPv6 ",
            None => "",
        };
        Failure::Unknown(format!("pod {named} has no {family}address yet"))
    })?;
    Ok(End {
        pod: Some(named),
        node: pod.spec.and_then(|it| it.node_name),
        address,
    })
}

/// For people.
impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "from  {}", self.from)?;
        writeln!(f, "to    {}", self.to)?;
        for step in &self.steps {
            let place = step.node.as_deref().map(|node| format!(" on {node}"));
            let verdict = match step.passes {
                Some(true) => "passes",
                Some(false) => "does not pass",
                None => "could not be asked",
            };
            let place = place.unwrap_or_default();
            writeln!(f, "\n{}{place}: {verdict}", step.component)?;
            for line in step.what.lines() {
                writeln!(f, "    {line}")?;
            }
        }
        let end = match self.arrives {
            true => "it arrives",
            false if self.steps.iter().any(|it| it.passes == Some(false)) => "it does not arrive",
            false => "unknown whether it arrives",
        };
        writeln!(f, "\n{end}")
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        match (&self.pod, &self.node) {
            (Some(pod), Some(node)) => write!(f, ", {pod} on {node}"),
            (Some(pod), None) => write!(f, ", {pod}, on no node yet"),
            (None, _) => write!(f, ", of no pod that was named"),
        }
    }
}
