//! `kubectl podwire sysdump`: one file with what every node, every controller and the API server
//! know, without secrets.

pub(super) mod databases;

use std::io::Read as _;
use std::path::PathBuf;

use flate2::read::GzDecoder;
use futures_util::StreamExt as _;
use futures_util::stream::iter;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, LogParams};
use podwire_daemon::bundle::{Files, is_other_archive};
use podwire_daemon::output::show;
use serde_json::json;

use super::exec::Cluster;
use super::objects::{OwnPod, Part, agent_on};
use super::{Common, Failure};

/// Nodes that are asked at once.
const AT_ONCE: usize = 8;
/// Lines of a container's log.
const LINES: i64 = 10_000;
/// The largest log, in bytes.
const LARGEST_LOG: i64 = 4 << 20;
/// The most that a node's bundle unpacks to, in bytes.
const LARGEST_BUNDLE: u64 = 256 << 20;

/// What is listed of the API server: group, version, kind, plural, and whether of podwire's
/// namespace alone. Never Secrets.
const KINDS: [(&str, &str, &str, &str, bool); 12] = [
    ("", "v1", "Node", "nodes", false),
    ("", "v1", "Namespace", "namespaces", false),
    ("", "v1", "Pod", "pods", false),
    ("", "v1", "Service", "services", false),
    (
        "discovery.k8s.io",
        "v1",
        "EndpointSlice",
        "endpointslices",
        false,
    ),
    (
        "networking.k8s.io",
        "v1",
        "NetworkPolicy",
        "networkpolicies",
        false,
    ),
    ("", "v1", "ConfigMap", "configmaps", true),
    ("", "v1", "Event", "events", true),
    ("apps", "v1", "DaemonSet", "daemonsets", true),
    ("apps", "v1", "Deployment", "deployments", true),
    ("apps", "v1", "StatefulSet", "statefulsets", true),
    ("coordination.k8s.io", "v1", "Lease", "leases", true),
];

/// The flags of `kubectl podwire sysdump`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The file has no tokens, keys or passwords, and no Secret is read. It has names \
                  and addresses of nodes, pods and services."
)]
pub struct SysdumpArgs {
    /// File to write, ending in .tar.gz, or directory; it must not exist yet
    #[arg(default_value = "podwire-sysdump.tar.gz")]
    path: PathBuf,
    #[command(flatten)]
    common: Common,
}

/// Files of one source: name, and text or why there is none.
type Texts = Vec<(String, Result<String, String>)>;

impl SysdumpArgs {
    pub(super) async fn run(self) -> Result<bool, Failure> {
        let shown = self.path.display().to_string();
        let refused = |problem: &str| Failure::Unknown(format!("{shown}: {problem}"));
        if is_other_archive(&self.path) {
            return Err(refused("only .tar.gz archives are written"));
        }
        if self.path.symlink_metadata().is_ok() {
            return Err(refused("it exists"));
        }
        let cluster = self.common.cluster().await?;
        let (nodes, pods) = (cluster.nodes().await?, cluster.own_pods().await?);
        let mut files = Files::default();
        for kind in KINDS {
            let mut listed = objects(&cluster, kind).await;
            if let ("discovery.k8s.io", _, name, plural, is_own) = kind
                && listed.is_err()
            {
                // Kubernetes before 1.21 has no other.
                let older = (kind.0, "v1beta1", name, plural, is_own);
                listed = objects(&cluster, older).await.or(listed);
            }
            let listed = listed.map_err(|it| it.to_string());
            files.put(&format!("objects/{}.json", kind.3), listed);
        }
        let asked = iter(pods.iter().map(|pod| of_pod(&cluster, pod)));
        let texts: Vec<Texts> = asked.buffered(AT_ONCE).collect().await;
        let of_databases = databases::of(&cluster, &pods).await;
        for (file, text) in texts.into_iter().flatten().chain(of_databases) {
            files.put(&file, text);
        }
        for node in &nodes {
            if agent_on(&pods, &node.name).is_none() {
                let why = Err("no pod of podwire's agent runs on it");
                files.put(&format!("nodes/{}/bundle.json", node.name), why);
            }
        }
        let index = json!({
            "podwire": env!("CARGO_PKG_VERSION"),
            "server": cluster.server,
            "missing": files.missing(),
        });
        files.put_json("sysdump.json", &index);
        files.write(&self.path).map_err(|source| Failure::File {
            path: shown.clone(),
            source,
        })?;
        let mut text = format!("wrote {shown} with {} files\n", files.count());
        for missing in files.missing() {
            text.push_str(&format!("without {}: {}\n", missing.file, missing.why));
        }
        show(&text).map_err(Failure::Output)?;
        Ok(files.missing().is_empty())
    }
}

/// Objects of a kind, one per line, without what says who wrote which field.
async fn objects(
    cluster: &Cluster,
    (group, version, kind, plural, is_own): (&str, &str, &str, &str, bool),
) -> Result<String, Failure> {
    let kind = GroupVersionKind::gvk(group, version, kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    let api: Api<DynamicObject> = match is_own {
        true => Api::namespaced_with(cluster.client.clone(), &cluster.namespace, &resource),
        false => Api::all_with(cluster.client.clone(), &resource),
    };
    let mut text = String::new();
    for mut object in cluster.list(&api, "").await? {
        object.metadata.managed_fields = None;
        if let Some(annotations) = &mut object.metadata.annotations {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
        let line = serde_json::to_string(&object).unwrap_or_default();
        text.push_str(&(line + "\n"));
    }
    Ok(text)
}

/// What one of podwire's pods knows.
async fn of_pod(cluster: &Cluster, pod: &OwnPod) -> Texts {
    let (directory, commands): (String, &[(&str, &[&str])]) = match pod.part {
        Part::Agent => (format!("nodes/{}", pod.node), &[]),
        Part::NodeRole => (
            format!("nodes/{}", pod.node),
            &[(
                "node-show.json",
                &["podwire", "node", "show", "--in-cluster", "-o", "json"],
            )],
        ),
        Part::Controller => (
            format!("controllers/{}", pod.name),
            &[
                (
                    "status.json",
                    &["podwire-controller", "status", "-o", "json"],
                ),
                ("pending.txt", &["podwire-controller", "--dry-run"]),
            ],
        ),
        Part::Northbound => (format!("ovn/northbound/{}", pod.name), &[]),
        Part::Southbound => (format!("ovn/southbound/{}", pod.name), &[]),
        Part::OvnController | Part::OpenVswitch => {
            (format!("nodes/{}/{}", pod.node, pod.name), &[])
        }
    };
    let mut texts = Texts::new();
    for container in pod.part.containers() {
        let log = format!("{directory}/{container}.log");
        texts.push((log, log_of(cluster, pod, container).await));
    }
    let container = pod.part.container();
    if pod.part == Part::Agent {
        texts.extend(bundle(cluster, pod, &directory).await);
    }
    for (file, command) in commands {
        let text = match &pod.away {
            Some(away) => Err(away.clone()),
            None => match cluster.exec(&pod.name, container, command).await {
                Ok(output) if output.stdout.is_empty() => Err(output.complaint()),
                Ok(output) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
                Err(why) => Err(why),
            },
        };
        texts.push((format!("{directory}/{file}"), text));
    }
    texts
}

async fn log_of(cluster: &Cluster, pod: &OwnPod, container: &str) -> Result<String, String> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let wanted = LogParams {
        container: Some(container.to_owned()),
        limit_bytes: Some(LARGEST_LOG),
        tail_lines: Some(LINES),
        timestamps: true,
        ..LogParams::default()
    };
    let log = cluster.answered(pods.logs(&pod.name, &wanted)).await;
    log.map_err(|failure| failure.to_string())
}

/// The files of the bundle that a node's agent makes.
async fn bundle(cluster: &Cluster, pod: &OwnPod, directory: &str) -> Texts {
    let name = |file: &str| format!("{directory}/{file}");
    let unpacked = match &pod.away {
        Some(away) => Err(away.clone()),
        None => {
            let command = ["podwire", "bundle", "-"];
            let output = cluster
                .exec(&pod.name, pod.part.container(), &command)
                .await;
            output.and_then(|output| match output.code {
                0 => unpacked(&output.stdout),
                _ => Err(output.complaint()),
            })
        }
    };
    match unpacked {
        Ok(files) => files
            .into_iter()
            .map(|(file, text)| (name(&file), Ok(text)))
            .collect(),
        Err(why) => vec![(name("bundle.json"), Err(why))],
    }
}

/// The files of an archive, without its directory's name.
fn unpacked(archive: &[u8]) -> Result<Vec<(String, String)>, String> {
    let failed = |error: std::io::Error| format!("its bundle can't be read: {error}");
    let limited = GzDecoder::new(archive).take(LARGEST_BUNDLE);
    let mut files = Vec::new();
    for entry in tar::Archive::new(limited).entries().map_err(failed)? {
        let mut entry = entry.map_err(failed)?;
        let path = entry.path().map_err(failed)?;
        // A node's answer chooses no place outside of its own directory.
        let plain = path.components().skip(1).filter_map(|part| match part {
            std::path::Component::Normal(name) => name.to_str(),
            _ => None,
        });
        let file = plain.collect::<Vec<_>>().join("/");
        let mut text = Vec::new();
        entry.read_to_end(&mut text).map_err(failed)?;
        files.push((file, String::from_utf8_lossy(&text).into_owned()));
    }
    Ok(files)
}
