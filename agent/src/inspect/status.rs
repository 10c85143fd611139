//! The node in one look: what an ADD needs and whether it is there, how many ports there are and
//! how they are doing, what waits, and what failed last.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use podwire_cni::spool::Spool;
use serde::{Deserialize, Serialize};

use super::{Filter, now_micros, ports};
use crate::attach::{Agent, Error, Health, Node};
use crate::config::Wait;
use crate::journal::State;
use crate::observe::{Operation, Outcome};
use crate::pods::sources::{PodName, SourceState};
use crate::ports::{PortError, PortState, SwitchView};

/// How many failures are shown.
const FAILURES: usize = 5;
/// How long a failure is shown that nothing has repeated.
const RECENT_MICROS: u64 = 10 * 60 * 1_000_000;
/// How long it is shown when its pod seems to be gone. Runtimes send a DEL at once for a sandbox
/// whose ADD failed, and kubelet makes another sandbox within 10 to 15 seconds (`backOffPeriod` in
/// pkg/kubelet/kubelet.go): without one the pod is gone.
const RETRY_MICROS: u64 = 60 * 1_000_000;

/// What `GET /v1/status` answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusView {
    /// The agent's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// `plain` or `ovn`.
    pub mode: String,
    /// What an ADD waits for: `ofport` or `ovn-installed`.
    pub wait: String,
    /// Whether an ADD would be served.
    pub ready: bool,
    /// Whether running pods may have lost their connectivity.
    pub degraded: bool,
    /// Why an ADD would not be served.
    pub reasons: Vec<String>,
    /// Open vSwitch's database.
    pub database: Database,
    /// The version of ovs-vswitchd, when it answers.
    pub ovs_version: Option<String>,
    /// Whether ovs-vswitchd answers.
    pub vswitchd: Reachable,
    /// The name of the pods' bridge.
    pub bridge: String,
    /// The switch.
    pub switch: SwitchView,
    /// Whether ovn-controller is connected; only where an ADD waits for it.
    pub controller: Option<Reachable>,
    /// The sources of annotations that are watched.
    pub sources: Vec<SourceView>,
    /// The ports by how they are doing.
    pub ports: PortCounts,
    /// The intent log by state.
    pub attachments: Attachments,
    /// Operations under way.
    pub operations: usize,
    /// How many are admitted at once.
    pub max_operations: usize,
    /// MTU of a pod to which nobody gave one, in bytes.
    pub mtu: u32,
    /// The file in which `mtu` can be set; None when the command line names it, above which no file
    /// is.
    pub mtu_file: Option<PathBuf>,
    /// The node's own subnets.
    pub subnets: Vec<SubnetView>,
    /// DELs that wait.
    pub spool: SpoolView,
    /// Pods that an ADD waits for.
    pub awaited: Vec<String>,
    /// Failures of the last ten minutes, of a pod that is gone for one minute; newest first; of one
    /// pod, or one verb without a pod, only the newest.
    pub failures: Vec<Failure>,
}

/// Open vSwitch's database.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Database {
    /// Its socket.
    pub socket: PathBuf,
    /// Whether the agent's replica is current.
    pub current: bool,
    /// The connection's state in words.
    pub state: String,
}

/// Something that should answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reachable {
    /// Whether it does.
    pub ok: bool,
    /// What is wrong otherwise.
    pub problem: Option<String>,
}

/// A watched source of annotations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SourceView {
    /// `kube` or `dir`.
    pub source: String,
    /// Where.
    pub place: String,
    /// Whether all that it has was read once.
    pub is_read: bool,
    /// How many pods it knows.
    pub pods: usize,
    /// What is wrong with it.
    pub problem: Option<String>,
    /// For how long, in seconds.
    pub failing_seconds: Option<u64>,
}

/// Ports by how they are doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortCounts {
    /// In use.
    pub up: usize,
    /// Not taken up yet.
    pub waiting: usize,
    /// Their links can't be used.
    pub failed: usize,
}

/// Records of the intent log by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Attachments {
    /// An ADD is under way, or was interrupted.
    pub adding: usize,
    /// Living.
    pub live: usize,
    /// Rows are still to go.
    pub deleting: usize,
}

/// A subnet of the node's own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SubnetView {
    /// The subnet.
    pub subnet: String,
    /// Its gateway.
    pub gateway: String,
    /// Addresses held.
    pub used: u64,
    /// Addresses for pods in all; as many as the number can tell.
    pub capacity: u64,
}

/// The spool of DELs that found no agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpoolView {
    /// How many wait.
    pub entries: usize,
    /// Why that can't be told.
    pub problem: Option<String>,
}

/// An operation that failed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Failure {
    /// When it began, in microseconds since 1970.
    pub started_unix_micros: u64,
    /// The verb.
    pub verb: String,
    /// `namespace/name`.
    pub pod: Option<String>,
    /// CNI_CONTAINERID.
    pub container: String,
    /// The CNI error code.
    pub code: u32,
    /// The message.
    pub msg: String,
}

/// Looks at the node.
///
/// # Errors
/// The kernel does not tell of the host's links.
pub async fn status(agent: &Agent) -> Result<StatusView, Error> {
    let node = &*agent.node;
    let health = Health::look(node).await;
    let (current, state) = match &health.ports {
        Some(PortError::DatabaseSilent { .. }) => (false, "does not answer".to_owned()),
        _ => node.ports.connection(),
    };
    let config = &node.config;
    let reasons = health.reasons();
    Ok(StatusView {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        mode: config.ovn.mode.name().to_owned(),
        wait: config.ovn.wait.name().to_owned(),
        ready: reasons.is_empty(),
        degraded: health.degraded,
        database: Database {
            socket: config.ovsdb.clone(),
            current,
            state,
        },
        ovs_version: health.version.clone(),
        vswitchd: Reachable::from(health.switch.as_ref()),
        bridge: config.bridge.clone(),
        switch: node.ports.switch(),
        controller: (config.ovn.wait == Wait::OvnInstalled)
            .then(|| Reachable::from(health.controller.as_ref())),
        sources: node.sources.states().into_iter().map(source).collect(),
        ports: port_counts(node).await?,
        attachments: attachments(node),
        operations: agent.under_way(),
        max_operations: node.live.borrow().max_operations,
        mtu: node.default_mtu(),
        mtu_file: agent.mtu_file.clone(),
        subnets: subnets(node),
        spool: spool(&config.socket),
        awaited: node
            .sources
            .awaited()
            .iter()
            .map(ToString::to_string)
            .collect(),
        failures: failures(
            &agent.recorder.operations(usize::MAX),
            |pod| pod_name(pod).and_then(|name| agent.node.sources.exists(&name)),
            now_micros(),
        ),
        reasons,
    })
}

impl<E: std::error::Error> From<Option<&E>> for Reachable {
    fn from(problem: Option<&E>) -> Self {
        Self {
            ok: problem.is_none(),
            problem: problem.map(ToString::to_string),
        }
    }
}

fn source(state: SourceState) -> SourceView {
    let (since, problem) = state.failing.unzip();
    SourceView {
        source: state.source.name().to_owned(),
        place: state.place,
        is_read: state.is_read,
        pods: state.pods,
        problem,
        failing_seconds: since.map(|since| since.as_secs()),
    }
}

async fn port_counts(node: &Node) -> Result<PortCounts, Error> {
    let mut counts = PortCounts::default();
    for port in ports(node, &Filter::default()).await?.ports {
        match port.state {
            PortState::Up => counts.up += 1,
            PortState::AwaitsOfport | PortState::AwaitsOvn => counts.waiting += 1,
            PortState::Failed => counts.failed += 1,
        }
    }
    Ok(counts)
}

fn attachments(node: &Node) -> Attachments {
    let mut counts = Attachments::default();
    for (state, _) in node.journal.entries().0 {
        match state {
            State::Adding => counts.adding += 1,
            State::Live => counts.live += 1,
            State::Deleting => counts.deleting += 1,
        }
    }
    counts
}

fn subnets(node: &Node) -> Vec<SubnetView> {
    let fits = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
    let usage = node.addresses.usage().into_iter();
    usage
        .map(|usage| SubnetView {
            subnet: usage.subnet.to_string(),
            gateway: usage.gateway.to_string(),
            used: fits(usage.used),
            capacity: fits(usage.capacity),
        })
        .collect()
}

fn spool(socket: &Path) -> SpoolView {
    let names = Spool::open(socket).and_then(|spool| spool.names());
    match names {
        Ok(names) => SpoolView {
            entries: names.len(),
            problem: None,
        },
        Err(error) => SpoolView {
            entries: 0,
            problem: Some(error.to_string()),
        },
    }
}

/// A pod as a trace has it, `namespace/name`.
fn pod_name(pod: &str) -> Option<PodName> {
    let (namespace, name) = pod.split_once('/')?;
    Some(PodName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

/// The recent failures that nothing has made good since: a later success of the same verb for the
/// same pod does, and in the end the pod's own end. Whether a pod exists `exists` says, where
/// anybody knows it; else the DEL of its sandbox does.
fn failures(
    operations: &[Operation],
    exists: impl Fn(&str) -> Option<bool>,
    now: u64,
) -> Vec<Failure> {
    let mut seen = HashSet::new();
    let mut deleted = HashSet::new();
    let mut failures = Vec::new();
    let age = |it: &Operation| {
        let ended = it.started_unix_micros + it.duration_micros as u64;
        now.saturating_sub(ended)
    };
    let is_recent = |it: &&Operation| age(it) < RECENT_MICROS;
    for operation in operations.iter().rev().filter(is_recent) {
        if operation.verb == "DEL" && operation.outcome.code() == 0 {
            deleted.insert(operation.container.as_str());
        }
        let whose = match &operation.pod {
            Some(pod) => pod.clone(),
            None => operation.container.clone(),
        };
        let exists = operation.pod.as_deref().and_then(&exists);
        let is_there = exists.unwrap_or(!deleted.contains(operation.container.as_str()));
        let is_newest = seen.insert((operation.verb, whose));
        if let Outcome::Failed { code, msg } = &operation.outcome
            && is_newest
            && (is_there || age(operation) < RETRY_MICROS)
        {
            failures.push(Failure {
                started_unix_micros: operation.started_unix_micros,
                verb: operation.verb.to_owned(),
                pod: operation.pod.clone(),
                container: operation.container.clone(),
                code: *code,
                msg: msg.clone(),
            });
        }
        if failures.len() == FAILURES {
            break;
        }
    }
    failures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::{Subject, Trace};

    fn operation(verb: &'static str, pod: &str, at: u64, outcome: Outcome) -> Operation {
        let subject = Subject {
            container: format!("sandbox of {pod}"),
            pod: Some(pod.to_owned()),
            ..Subject::default()
        };
        Operation {
            started_unix_micros: at,
            duration_micros: 0.0,
            ..Trace::start().end(verb, subject, outcome)
        }
    }

    fn failed() -> Outcome {
        Outcome::Failed {
            code: 11,
            msg: "later".into(),
        }
    }

    fn shown(operations: &[Operation], exists: Option<bool>, now: u64) -> Vec<String> {
        let failures = failures(operations, |_| exists, now).into_iter();
        failures.flat_map(|it| it.pod).collect()
    }

    #[test]
    fn a_failure_is_shown_until_it_is_made_good_or_ten_minutes_old() {
        let operations = [
            operation("ADD", "a", 0, failed()),
            operation("ADD", "b", 2, failed()),
            operation("ADD", "b", 3, Outcome::Ok("ok")),
            operation("ADD", "c", 4, failed()),
        ];
        assert_eq!(shown(&operations, None, 5), ["c", "a"]);
        assert_eq!(shown(&operations, None, RECENT_MICROS), ["c"]);
        assert!(shown(&operations, None, RECENT_MICROS + 4).is_empty());
    }

    #[test]
    fn a_failure_of_a_pod_that_is_gone_is_shown_for_as_long_as_kubelet_would_need_to_try_again() {
        let operations = [
            operation("ADD", "a", 0, failed()),
            operation("DEL", "a", 1, Outcome::Ok("ok")),
        ];
        let [add, _] = &operations;
        for (operations, exists, is_kept) in [
            (&operations[..], None, false),
            (&operations[..], Some(true), true),
            (std::slice::from_ref(add), None, true),
            (std::slice::from_ref(add), Some(false), false),
        ] {
            assert_eq!(shown(operations, exists, RETRY_MICROS - 1), ["a"]);
            let later = shown(operations, exists, RETRY_MICROS);
            assert_eq!(!later.is_empty(), is_kept, "{exists:?} {later:?}");
        }
    }
}
