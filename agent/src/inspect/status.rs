//! The node at a glance: whether all that an ADD needs is there, the number and state of the ports,
//! what is waiting, and the latest failures.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwire_cni::spool::Spool;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{Filter, now_micros, ports};
use crate::attach::{Agent, Error, Handles, Health};
use crate::config::Wait;
use crate::journal::State;
use crate::observe::{NORTHD_STEP, Operation, Outcome};
use crate::pods::sources::{PodName, SourceState};
use crate::ports::{PortError, PortState, SwitchView};

/// Time limit for the names of the keys' files.
const KEYS_DEADLINE: Duration = Duration::from_secs(1);
/// The number of failures shown.
const FAILURES: usize = 5;
/// How long a failure is shown if it does not recur.
const RECENT_MICROS: u64 = 10 * 60 * 1_000_000;
/// How long it is shown if its pod seems to be gone. After a failed ADD, runtimes immediately send
/// a DEL, and kubelet creates another sandbox within 10 to 15 seconds (`backOffPeriod` in
/// pkg/kubelet/kubelet.go); without one, the pod is gone.
const RETRY_MICROS: u64 = 60 * 1_000_000;

/// The answer to `GET /v1/status`.
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
    /// The version of ovs-vswitchd, if it answers.
    pub ovs_version: Option<String>,
    /// Whether ovs-vswitchd answers.
    pub vswitchd: Reachable,
    /// The name of the pods' bridge.
    pub bridge: String,
    /// The switch.
    pub switch: SwitchView,
    /// Whether ovn-controller is connected; only if ADDs wait for it.
    pub controller: Option<Reachable>,
    /// The watched sources of annotations.
    pub sources: Vec<SourceView>,
    /// Number of ports by state.
    pub ports: PortCounts,
    /// Number of entries in the intent log by state.
    pub attachments: Attachments,
    /// Number of operations in progress.
    pub operations: usize,
    /// The limit of concurrent operations.
    pub max_operations: usize,
    /// MTU in bytes for pods without one of their own.
    pub mtu: u32,
    /// The file in which `mtu` can be set; None if the command line sets it, which no file
    /// overrides.
    pub mtu_file: Option<PathBuf>,
    /// The node's own subnets.
    pub subnets: Vec<SubnetView>,
    /// DELs waiting in the spool.
    pub spool: SpoolView,
    /// Pods that ADDs wait for.
    pub awaited: Vec<String>,
    /// Failures of the last ten minutes, or of the last minute for a pod that is gone; newest
    /// first, and only the newest for each pod, or for each verb without a pod.
    pub failures: Vec<Failure>,
    /// ADDs of the last ten minutes that waited for ovn-northd, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub northd: Option<NorthdWaits>,
}

/// ADDs that waited for ovn-northd.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NorthdWaits {
    /// Their number.
    pub adds: usize,
    /// All ADDs of that time.
    pub of: usize,
    /// The longest of these waits, in milliseconds.
    pub longest_ms: u64,
}

/// Open vSwitch's database.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Database {
    /// Its socket.
    pub socket: PathBuf,
    /// Whether the agent's replica is current.
    pub current: bool,
    /// The connection's state as text.
    pub state: String,
}

/// A process that should answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reachable {
    /// Whether it answers.
    pub ok: bool,
    /// Otherwise, the problem.
    pub problem: Option<String>,
}

/// A watched source of annotations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SourceView {
    /// `kube` or `dir`.
    pub source: String,
    /// Its name in errors.
    pub place: String,
    /// Whether it was read completely at least once.
    pub is_read: bool,
    /// Number of pods it knows.
    pub pods: usize,
    /// Its problem.
    pub problem: Option<String>,
    /// For how long, in seconds.
    pub failing_seconds: Option<u64>,
}

/// Number of ports by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortCounts {
    /// In use.
    pub up: usize,
    /// Not in use yet.
    pub waiting: usize,
    /// With unusable links.
    pub failed: usize,
}

/// Number of entries in the intent log by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Attachments {
    /// An ADD is in progress, or was interrupted.
    pub adding: usize,
    /// Live.
    pub live: usize,
    /// The rows still have to be removed.
    pub deleting: usize,
}

/// One of the node's own subnets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SubnetView {
    /// The subnet.
    pub subnet: String,
    /// Its gateway.
    pub gateway: String,
    /// Addresses held.
    pub used: u64,
    /// All addresses for pods; at most as many as the type can hold.
    pub capacity: u64,
}

/// The spool of DELs that found no agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpoolView {
    /// Number of waiting DELs.
    pub entries: usize,
    /// Why the number is unknown.
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

/// Collects the status.
///
/// # Errors
/// The kernel does not list the host's links.
pub async fn status(agent: &Agent) -> Result<StatusView, Error> {
    let node = &*agent.node;
    let health = Health::check(node).await;
    let (current, state) = match &health.ports {
        Some(PortError::DatabaseSilent { .. }) => (false, "does not answer".to_owned()),
        _ => node.ports.connection(),
    };
    let config = &node.config;
    let reasons = health.reasons();
    let mut switch = node.ports.switch();
    let deadline = Instant::now() + KEYS_DEADLINE;
    switch.ovn.keys = node.ports.southbound_keys(deadline).await;
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
        switch,
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
            |pod| PodName::parse(pod).and_then(|name| agent.node.sources.exists(&name)),
            now_micros(),
        ),
        northd: northd(&agent.recorder.operations(usize::MAX), now_micros()),
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

async fn port_counts(node: &Handles) -> Result<PortCounts, Error> {
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

fn attachments(node: &Handles) -> Attachments {
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

fn subnets(node: &Handles) -> Vec<SubnetView> {
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
    SpoolView {
        entries: names.as_ref().map_or(0, Vec::len),
        problem: names.err().map(|error| error.to_string()),
    }
}

/// The recent ADDs that waited for ovn-northd.
fn northd(operations: &[Operation], now: u64) -> Option<NorthdWaits> {
    let is_recent = |it: &&Operation| now.saturating_sub(it.started_unix_micros) < RECENT_MICROS;
    let adds = operations.iter().filter(|it| it.verb == "ADD");
    let mut waits = NorthdWaits::default();
    for add in adds.filter(is_recent) {
        waits.of += 1;
        if let Some(phase) = add.phases.iter().find(|it| it.name == NORTHD_STEP) {
            waits.adds += 1;
            let millis = (phase.duration_micros / 1e3) as u64;
            waits.longest_ms = waits.longest_ms.max(millis);
        }
    }
    (waits.adds > 0).then_some(waits)
}

/// Recent failures that have not been resolved: a later success of the same verb for the same pod
/// resolves one, and so does the end of the pod. `exists` tells whether a pod exists, if that is
/// known; otherwise the DEL of its sandbox does.
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
