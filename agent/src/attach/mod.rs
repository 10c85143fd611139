//! ADD, DEL, CHECK, GC and STATUS; their order, deadlines and rollback.
//!
//! A verb here states which steps are done in which order, and what happens if one fails. The
//! modules below do the steps: [`podwire_netns`] in the kernel, [`crate::ports`] in Open vSwitch,
//! [`crate::ipam`] for addresses.

mod add;
mod assignment;
mod bandwidth;
mod call;
mod check;
mod connections;
mod deadline;
mod defence;
mod del;
mod error;
mod gc;
mod handles;
mod holders;
mod kept;
mod leased;
mod lines;
mod links;
mod metadata;
mod notice;
mod on_bridge;
mod ovs_cni;
mod physical;
mod planned;
mod queue;
mod reading;
mod ready;
mod removal;
mod renewal;
mod rows;
mod secured;
mod status;
mod turns;
mod undo;
mod wait;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use hyper::body::Bytes;
use podwire_cni::spec::{CniVersion, Command};

pub use call::{Call, Refused};
pub use check::{Difference, Fault};
pub(crate) use check::{
    Expected, HostEnd, lost_routes, made_port, mute_ports, pod_differences, row_differences,
};
pub use connections::Connections;
pub use error::Error;
pub use handles::Handles;
pub use holders::LastHolders;
pub use kept::Kept;
pub(crate) use kept::keep_addresses;
pub use lines::Lines;
pub(crate) use links::{is_made_in, is_ours, link_names, namespace_of, pod_ends};
pub(crate) use ready::await_ready;
pub(crate) use removal::{detach, remove, remove_by};
pub(crate) use status::Health;
pub(crate) use turns::Place;
pub use turns::{Cancel, Reason};

use crate::observe::events::Events;
use crate::observe::{Operation, Outcome, Recorder, Subject, Trace};

/// How long a verb waits for what is usually there at once: a current replica, the cleanup at
/// start.
pub(crate) const READY_DEADLINE: Duration = Duration::from_secs(2);

/// Admits requests, executes their verbs on the node, and records them.
#[derive(Debug)]
pub struct Agent {
    /// The verbs' handles.
    pub node: Arc<Handles>,
    /// The record of operations.
    pub recorder: Recorder,
    /// The file in which the node's MTU can be set; None if the command line sets it.
    pub(crate) mtu_file: Option<PathBuf>,
    /// Reports failures to pods' owners; None without an API server.
    events: Option<Events>,
    started: SystemTime,
    /// ADDs, CHECKs and GCs in progress.
    limited: AtomicUsize,
    /// The other operations in progress.
    others: AtomicUsize,
}

/// The plugin's output.
#[derive(Debug)]
pub struct Reply {
    /// On its standard output: the result, or the error object.
    pub answer: Result<String, String>,
    /// Its standard error; empty if the plugin does not pass it on.
    pub stderr: String,
}

impl Agent {
    /// An agent for this node, on the current tokio runtime.
    pub fn new(node: Arc<Handles>, mtu_file: Option<PathBuf>, events: Option<Events>) -> Self {
        Self {
            node,
            recorder: Recorder::default(),
            mtu_file,
            events,
            started: SystemTime::now(),
            limited: AtomicUsize::new(0),
            others: AtomicUsize::new(0),
        }
    }

    /// Serves one request.
    pub async fn serve(self: Arc<Self>, body: Bytes, cancel: Arc<Cancel>) -> Reply {
        let mut trace = Trace::start();
        let call = match Call::parse(&body) {
            Ok(call) => call,
            Err(Refused { is_moot: true, .. }) => {
                let outcome = Outcome::Ok("ok");
                self.record(trace.end(Command::Del.as_str(), Subject::default(), outcome));
                return Reply {
                    answer: Ok(String::new()),
                    stderr: String::new(),
                };
            }
            Err(Refused { version, error, .. }) => {
                let outcome = Outcome::Failed {
                    code: error.code.0,
                    msg: error.to_string(),
                };
                self.record(trace.end("refused", Subject::default(), outcome));
                return Reply {
                    answer: Err(error.to_json(version)),
                    stderr: String::new(),
                };
            }
        };
        drop(body);
        let version = call.conf.cni_version;
        let result = self.admit_and_run(&call, &cancel, &mut trace).await;
        let outcome = match &result {
            Ok(_) => {
                if call.verb == Command::Add
                    && let Some(pod) = &call.pod
                    && let Some(since) = self.node.sources.has_network(pod)
                {
                    self.node.metrics.pod_has_network(since);
                }
                Outcome::Ok("ok")
            }
            Err(error) => {
                if let Some(events) = &self.events {
                    notice::report(events, &self.node, &call, error);
                }
                Outcome::Failed {
                    code: error.code().0,
                    msg: error.to_spec().to_string(),
                }
            }
        };
        let stderr = remarks(&call);
        self.record(trace.end(call.verb.as_str(), subject(call), outcome));
        Reply {
            answer: result.map_err(|error| error.to_spec().to_json(version)),
            stderr,
        }
    }

    fn record(&self, operation: Operation) {
        self.node.metrics.operation(&operation);
        self.recorder.finish(operation);
    }

    async fn admit_and_run(
        &self,
        call: &Call,
        cancel: &Arc<Cancel>,
        trace: &mut Trace,
    ) -> Result<String, Error> {
        let _admitted = self.admit(call.verb)?;
        let node = &*self.node;
        match call.verb {
            Command::Add => return add::add(node, call, cancel, trace).await,
            Command::Del => del::del(node, call, trace).await?,
            Command::Check => check::check(node, call, trace).await?,
            Command::Gc => gc::gc(node, call, trace).await?,
            Command::Status => status::status(node, call, cancel).await?,
            // The plugin answers it by itself; other clients get the same answer.
            Command::Version => return Ok(version_json()),
        }
        Ok(String::new())
    }

    /// DEL and STATUS have as many places of their own: pods must end, and the node must not become
    /// NotReady, however many ADDs wait.
    fn admit(&self, verb: Command) -> Result<Admitted<'_>, Error> {
        let limit = self.node.live.borrow().max_operations;
        let operations = match verb {
            Command::Add | Command::Check | Command::Gc => &self.limited,
            Command::Del | Command::Status | Command::Version => &self.others,
        };
        let admitted = Admitted(operations);
        if operations.fetch_add(1, Ordering::Relaxed) >= limit {
            return Err(Error::Busy { limit });
        }
        Ok(admitted)
    }

    /// Number of operations in progress.
    pub fn under_way(&self) -> usize {
        self.limited.load(Ordering::Relaxed) + self.others.load(Ordering::Relaxed)
    }

    /// The answer to `GET /metrics`.
    pub async fn metrics_page(&self) -> String {
        reading::metrics_page(self).await
    }

    /// The answer to `GET /v1/health`: whether an ADD would succeed. With `patience`, it is held
    /// back until one would, or the time is up.
    pub async fn health(&self, patience: Duration) -> String {
        let ready = await_ready(&self.node, patience).await;
        let reasons = match &ready {
            Ok(()) => Vec::new(),
            Err(error) => vec![error.to_string()],
        };
        serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "ready": ready.is_ok(),
            "reasons": reasons,
        })
        .to_string()
    }
}

/// One of the operations in progress.
struct Admitted<'a>(&'a AtomicUsize);

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What IPAM plugins wrote to standard error. A CNI plugin that does not pass it on is of an older
/// version; then it is logged.
fn remarks(call: &Call) -> String {
    let remarks = call.remarks.take();
    if call.takes_stderr || remarks.trim().is_empty() {
        return remarks;
    }
    tracing::info!(attachment = %call.key, "IPAM plugin: {}", remarks.trim());
    String::new()
}

fn subject(call: Call) -> Subject {
    Subject {
        pod: call.pod.as_ref().map(ToString::to_string),
        container: call.key.container_id,
        ifname: call.key.ifname,
        traceparent: call.traceparent,
    }
}

fn version_json() -> String {
    let supported: Vec<&str> = CniVersion::ALL
        .iter()
        .map(|version| version.as_str())
        .collect();
    serde_json::json!({ "cniVersion": CniVersion::LATEST.as_str(), "supportedVersions": supported })
        .to_string()
}
