//! What podwire's own pods know, in a sysdump: logs, and what the tools in them answer.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::Component;
use std::time::Duration;

use flate2::read::GzDecoder;
use itertools::Itertools as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;
use podwire_daemon::bundle::{Files, Missing};
use serde::Deserialize;

use super::{Collected, Source};
use crate::kubectl::exec::Cluster;
use crate::kubectl::objects::{OwnPod, Part};

/// Lines of a container's log.
const LINES: i64 = 10_000;
/// The largest log, in bytes.
const LARGEST_LOG: i64 = 4 << 20;
/// The most that a node's bundle unpacks to, in bytes.
const LARGEST_BUNDLE: u64 = 256 << 20;
/// How long a node's bundle may take, if --timeout is not longer. `podwire bundle` collects for
/// 30 s at the most: a node with daemons that are stuck has one too.
const BUNDLE: Duration = Duration::from_secs(45);

const NODE_SHOW: &str = "podwire node show --in-cluster -o json";
const STATUS: &str = "podwire-controller status -o json";
const PENDING: &str = "podwire-controller --dry-run";

/// The files of each pod, the nodes' bundles last: they take longest.
pub(super) fn sources<'a>(
    cluster: &'a Cluster,
    pods: &'a [OwnPod],
    files: &'a Collected,
) -> Vec<Source<'a>> {
    let mut sources = Vec::new();
    let mut bundles = Vec::new();
    let mut taken = BTreeSet::new();
    let (run, away): (Vec<_>, Vec<_>) = pods.iter().partition(|pod| pod.away.is_none());
    for pod in run.into_iter().chain(away) {
        let mut directory = directory(pod);
        // While a rollout replaces a pod there are two: the one that runs is the node's.
        if !taken.insert((directory.clone(), pod.part.container())) {
            directory = format!("{directory}/{}", pod.name);
        }
        for container in pod.part.containers() {
            let restarted = pod.restarted.iter().any(|it| it == container);
            let logs = [("", false), ("-previous", true)];
            for (suffix, previous) in logs.into_iter().filter(|it| !it.1 || restarted) {
                let file = format!("{directory}/{container}{suffix}.log");
                let log = log_of(cluster, pod, container, previous);
                sources.push(Source::of_file(files, file, log));
            }
        }
        let commands: &[(&str, &'static str)] = match pod.part {
            Part::NodeRole => &[("node-show.json", NODE_SHOW)],
            Part::Controller => &[("status.json", STATUS), ("pending.txt", PENDING)],
            _ => &[],
        };
        for (file, command) in commands {
            let file = format!("{directory}/{file}");
            sources.push(Source::of_file(files, file, said(cluster, pod, command)));
        }
        if pod.part == Part::Agent {
            let file = format!("{directory}/bundle.json");
            let bundle = async move {
                let taken = match bundle(cluster, pod).await {
                    Ok(archive) => put(&mut files.borrow_mut(), &directory, &archive),
                    Err(why) => Err(why),
                };
                if let Err(why) = taken {
                    let index = format!("{directory}/bundle.json");
                    files.borrow_mut().put(&index, Err(why));
                }
            };
            bundles.push(Source::new(file, bundle));
        }
    }
    sources.extend(bundles);
    sources
}

fn directory(pod: &OwnPod) -> String {
    let OwnPod { name, node, .. } = pod;
    match pod.part {
        Part::Controller => format!("controllers/{name}"),
        Part::Northbound => format!("ovn/northbound/{name}"),
        Part::Southbound => format!("ovn/southbound/{name}"),
        _ if node.is_empty() => format!("unscheduled/{name}"),
        Part::Agent | Part::NodeRole => format!("nodes/{node}"),
        Part::OvnController | Part::OpenVswitch => format!("nodes/{node}/{name}"),
    }
}

/// What a command prints.
async fn said(cluster: &Cluster, pod: &OwnPod, command: &'static str) -> Result<String, String> {
    if let Some(away) = &pod.away {
        return Err(away.clone());
    }
    let words: Vec<&str> = command.split(' ').collect();
    let output = cluster
        .exec(&pod.name, pod.part.container(), &words)
        .await?;
    match output.stdout.is_empty() {
        true => Err(output.complaint()),
        false => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
    }
}

/// The end of a container's log; of the container before it, if it was restarted.
async fn log_of(
    cluster: &Cluster,
    pod: &OwnPod,
    container: &str,
    previous: bool,
) -> Result<String, String> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let wanted = LogParams {
        container: Some(container.to_owned()),
        limit_bytes: Some(LARGEST_LOG),
        previous,
        tail_lines: Some(LINES),
        timestamps: true,
        ..LogParams::default()
    };
    let log = cluster.answered(pods.logs(&pod.name, &wanted)).await;
    log.map_err(|failure| failure.to_string())
}

/// What a node's agent collects.
async fn bundle(cluster: &Cluster, pod: &OwnPod) -> Result<Vec<u8>, String> {
    if let Some(away) = &pod.away {
        return Err(away.clone());
    }
    let command = ["podwire", "bundle", "-"];
    let container = pod.part.container();
    let output = cluster.exec_within(BUNDLE, &pod.name, container, &command);
    let output = output.await?;
    // With code 1 too there is one, which says what is missing.
    match output.stdout.is_empty() {
        true => Err(output.complaint()),
        false => Ok(output.stdout),
    }
}

/// Adds the files of a node's archive, without its directory's name, and what it says that they
/// lack.
fn put(files: &mut Files, directory: &str, archive: &[u8]) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Index {
        missing: Vec<Missing>,
    }
    let failed = |error: std::io::Error| format!("its bundle can't be read: {error}");
    let limited = GzDecoder::new(archive).take(LARGEST_BUNDLE);
    let mut index = None;
    for entry in tar::Archive::new(limited).entries().map_err(failed)? {
        let mut entry = entry.map_err(failed)?;
        let path = entry.path().map_err(failed)?;
        // A node's answer chooses no place outside of its own directory.
        let mut plain = path.components().skip(1).filter_map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        });
        let file = plain.join("/");
        let mut text = Vec::new();
        entry.read_to_end(&mut text).map_err(failed)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        if file == "bundle.json" {
            index = serde_json::from_str::<Index>(&text).ok();
        }
        files.put(&format!("{directory}/{file}"), Ok::<_, String>(text));
    }
    let Index { missing } = index.ok_or("the bundle does not say what it lacks")?;
    for Missing { file, why } in missing {
        files.put(&format!("{directory}/{file}"), Err(why));
    }
    Ok(())
}
