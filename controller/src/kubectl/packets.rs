//! `kubectl podwire capture` and `kubectl podwire flows`: packets at one pod's port, and those that
//! are dropped on the way.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;

use itertools::Itertools as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use podwire_daemon::output::{Format, OutputArgs, show, yaml};
use serde_json::{Value, json};

use super::exec::Cluster;
use super::objects::{OwnPod, Part, agent_of, runs};
use super::{Common, Failure};
use crate::tools::Target;

/// The flags of `kubectl podwire capture`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "As podwire capture on the pod's node: packets that were dropped on the way to \
                  the pod are not\nthere (kubectl podwire flows).\n\
                  Example: kubectl podwire capture shop/web | wireshark -k -i -"
)]
pub struct CaptureArgs {
    /// NAMESPACE/NAME
    #[arg(value_name = "POD")]
    pod: Target,
    /// Its interface, if it has several
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// The file, instead of standard output
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// End after that time
    #[arg(long, value_name = "SECONDS", default_value = "60")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// End after that many packets
    #[arg(long, value_name = "NUMBER")]
    packets: Option<u64>,
    #[command(flatten)]
    common: Common,
}

/// The flags of `kubectl podwire flows`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "As podwire flows on the pod's node, with the names of pods, and the \
                        policy that denies TCP. What\nis dropped on another node, before it \
                        comes to this one, is seen there: ask for the other pod.\nExit code 0: \
                        nothing was dropped; 1: something was, or the node could not be asked."
)]
pub struct FlowsArgs {
    /// NAMESPACE/NAME
    #[arg(value_name = "POD")]
    pod: Target,
    /// Its interface, if it has several
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// How long to look
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    common: Common,
}

/// A pod, and the agent's pod on its node.
struct Asked {
    name: String,
    agent: OwnPod,
}

impl Asked {
    async fn find(cluster: &Cluster, own: &[OwnPod], pod: &Target) -> Result<Self, Failure> {
        let Target::Pod(namespace, name) = pod else {
            return Err(Failure::Unknown("POD: write NAMESPACE/NAME".to_owned()));
        };
        let object = cluster.pod(namespace, name).await?;
        let name = format!("{namespace}/{name}");
        let node = object.spec.and_then(|it| it.node_name);
        let node = node.ok_or_else(|| Failure::Unknown(format!("pod {name} has no node yet")))?;
        let agent = agent_of(own, Some(&node)).map_err(Failure::Unknown)?;
        Ok(Self {
            name,
            agent: agent.clone(),
        })
    }

    /// Runs a tool of the node about the pod, and hands on what it prints.
    async fn stream(
        &self,
        cluster: &Cluster,
        tool: &str,
        interface: Option<&str>,
        flags: &[String],
        take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<i32, Failure> {
        let mut command = vec!["podwire", tool, &self.name];
        if let Some(interface) = interface {
            command.extend(["--interface", interface]);
        }
        command.extend(flags.iter().map(String::as_str));
        let (pod, container) = (&self.agent.name, self.agent.part.container());
        let ended = cluster.stream(pod, container, &command, take).await?;
        match ended.code {
            0 | 1 if ended.stderr.is_empty() || ended.code == 0 => {
                eprint!("{}", ended.stderr);
                Ok(ended.code)
            }
            _ => Err(Failure::Unknown(format!(
                "{}: {}",
                self.name,
                ended.complaint()
            ))),
        }
    }
}

impl CaptureArgs {
    pub(super) async fn run(self) -> Result<bool, Failure> {
        let path = self.write.as_deref().map(|it| it.display().to_string());
        let file = |source| Failure::File {
            path: path.clone().unwrap_or_default(),
            source,
        };
        let mut out: Box<dyn Write> = match &self.write {
            Some(path) => Box::new(File::create(path).map_err(file)?),
            None if io::stdout().is_terminal() => {
                let what = "standard output is a terminal: give --write FILE, or a pipe";
                return Err(Failure::Unknown(what.to_owned()));
            }
            None => Box::new(io::stdout()),
        };
        let cluster = self.common.cluster().await?;
        let own = cluster.own_pods().await?;
        let pod = Asked::find(&cluster, &own, &self.pod).await?;
        let mut flags = vec![format!("--seconds={}", self.seconds)];
        flags.extend(self.packets.map(|most| format!("--packets={most}")));
        let write = |bytes: &[u8]| out.write_all(bytes).and_then(|()| out.flush());
        let interface = self.interface.as_deref();
        let code = pod
            .stream(&cluster, "capture", interface, &flags, write)
            .await?;
        Ok(code == 0)
    }
}

impl FlowsArgs {
    pub(super) async fn run(self) -> Result<bool, Failure> {
        let cluster = self.common.cluster().await?;
        let own = cluster.own_pods().await?;
        let pod = Asked::find(&cluster, &own, &self.pod).await?;
        let names = names(&cluster).await?;
        let controller = own.iter().find(|it| runs(it, Part::Controller));
        let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
        let mut rest = Vec::new();
        let take = move |bytes: &[u8]| {
            rest.extend_from_slice(bytes);
            while let Some(end) = rest.iter().position(|it| *it == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                // The receiver lives as long as this, which ends it.
                let _ = sender.send(serde_json::from_slice::<Value>(&line).unwrap_or_default());
            }
            Ok(())
        };
        let flags = [
            format!("--seconds={}", self.seconds),
            "--output=json".to_owned(),
        ];
        let interface = self.interface.as_deref();
        let mut policies = HashMap::new();
        let shown = async {
            while let Some(mut dropped) = lines.recv().await {
                name_ends(&mut dropped, &names);
                let because = match controller {
                    Some(it) => denial(&cluster, it, &pod, &dropped, &mut policies).await,
                    None => None,
                };
                dropped["policy"] = json!(because);
                self.show(&pod, &dropped)?;
            }
            Ok(())
        };
        let streamed = pod.stream(&cluster, "flows", interface, &flags, take);
        let (code, ()) = tokio::try_join!(streamed, shown)?;
        if self.output.output == Format::Text && code == 0 {
            let said = format!("nothing was dropped in {} s\n", self.seconds);
            show(&said).map_err(Failure::Output)?;
        }
        Ok(code == 0)
    }

    fn show(&self, pod: &Asked, dropped: &Value) -> Result<(), Failure> {
        let text = match self.output.output {
            Format::Json => Ok(format!("{dropped}\n")),
            Format::Yaml => yaml(dropped).map(|it| format!("---\n{it}")),
            Format::Text => Ok(text(&pod.name, dropped)),
        };
        show(&text.map_err(Failure::Output)?).map_err(Failure::Output)
    }
}

/// The pods of the cluster by their addresses.
async fn names(cluster: &Cluster) -> Result<HashMap<String, String>, Failure> {
    let pods: Api<Pod> = Api::all(cluster.client.clone());
    let pods = cluster.list(&pods, "").await?;
    let own_network = |pod: &Pod| pod.spec.as_ref().and_then(|it| it.host_network) != Some(true);
    let named = pods.into_iter().filter(own_network).flat_map(|pod| {
        let (namespace, name) = (pod.metadata.namespace, pod.metadata.name);
        let name = format!(
            "{}/{}",
            namespace.unwrap_or_default(),
            name.unwrap_or_default()
        );
        let addresses = pod.status.and_then(|it| it.pod_ips).into_iter().flatten();
        addresses
            .map(move |it| (it.ip, name.clone()))
            .collect::<Vec<_>>()
    });
    Ok(named.collect())
}

fn name_ends(dropped: &mut Value, names: &HashMap<String, String>) {
    for (address, pod) in [("source", "sourcePod"), ("destination", "destinationPod")] {
        let name = dropped[address].as_str().and_then(|it| names.get(it));
        dropped[pod] = json!(name);
    }
}

/// What denies a TCP connection of two pods, or of the pod to an address, as the controller
/// explains it; None if it can't say, or allows it.
async fn denial(
    cluster: &Cluster,
    controller: &OwnPod,
    pod: &Asked,
    dropped: &Value,
    known: &mut HashMap<[String; 3], Option<String>>,
) -> Option<String> {
    let port = dropped["destinationPort"].as_u64()?;
    (dropped["protocol"] == "tcp").then_some(())?;
    let text = |field: &str| dropped[field].as_str().map(str::to_owned);
    let sender = text("sourcePod").or((dropped["direction"] == "from").then(|| pod.name.clone()))?;
    let question = [
        sender,
        text("destinationPod").or(text("destination"))?,
        port.to_string(),
    ];
    if let Some(known) = known.get(&question) {
        return known.clone();
    }
    let [from, to, port] = &question;
    let command = [
        "podwire-controller",
        "explain",
        "pod",
        from,
        "--to",
        to,
        "--port",
        port,
    ];
    let explained = cluster
        .exec(&controller.name, controller.part.container(), &command)
        .await;
    let said = explained
        .ok()
        .map(|it| String::from_utf8_lossy(&it.stdout).into_owned());
    let denied = said.as_deref().and_then(|said| {
        let mut lines = said.lines().filter(|line| line.contains("denied"));
        let line = lines.find(|it| it.starts_with("egress") || it.starts_with("ingress"))?;
        Some(line.split_whitespace().join(" "))
    });
    known.insert(question, denied.clone());
    denied
}

/// `3 packets to shop/db: tcp shop/web > shop/db port 5432: an ACL: ls_out_acl, …`
fn text(pod: &str, dropped: &Value) -> String {
    let end = |name: &str, address: &str| {
        let known = dropped[name].as_str().or(dropped[address].as_str());
        known.unwrap_or("any").to_owned()
    };
    let field = |name: &str| dropped[name].as_str().unwrap_or_default().to_owned();
    let packets = match dropped["packets"].as_u64().unwrap_or_default() {
        1 => "1 packet".to_owned(),
        many => format!("{many} packets"),
    };
    let mut text = format!(
        "{packets} {} {pod}: {}",
        field("direction"),
        field("protocol")
    );
    if !dropped["source"].is_null() || !dropped["destination"].is_null() {
        let [from, to] = [
            end("sourcePod", "source"),
            end("destinationPod", "destination"),
        ];
        text.push_str(&format!(" {from} > {to}"));
    }
    if let Some(port) = dropped["destinationPort"].as_u64() {
        text.push_str(&format!(" port {port}"));
    }
    text.push_str(&format!(": {}\n", field("reason")));
    if let Some(policy) = dropped["policy"].as_str() {
        text.push_str(&format!("    {policy}\n"));
    }
    text
}
