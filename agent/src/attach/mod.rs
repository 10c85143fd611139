//! ADD, DEL, CHECK, GC and STATUS, each told as a short story; who goes when, deadlines and rollback.
//!
//! A verb here says what is done in which order and what happens when a step fails. How a step is done is the business of
//! the rooms below: [`crate::netns`] for the kernel, [`crate::ports`] for Open vSwitch, [`crate::ipam`] for addresses.

mod add;
mod addresses;
mod audit;
mod bandwidth;
mod call;
mod check;
mod connections;
mod deadline;
mod del;
mod error;
mod gc;
mod intent;
mod leftovers;
mod notice;
mod planned;
mod queue;
mod reading;
mod ready;
mod recover;
mod rows;
mod said;
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
use tokio::sync::watch;

pub use addresses::Addresses;
pub use audit::Audit;
pub use call::{Call, Refused};
pub use check::Difference;
pub use connections::Connections;
pub use error::Error;
pub use leftovers::Leftover;
pub use recover::Restored;
pub use turns::{Cancel, Reason};

use crate::config::{Config, Live, Mode};
use crate::flows::Flows;
use crate::ipam::spawner::Spawner;
use crate::journal::Journal;
use crate::netns::Netlink;
use crate::observe::events::Events;
use crate::observe::{Metrics, Operation, Outcome, Recorder, Subject, Trace};
use crate::plan::MAX_MTU;
use crate::pods::sources::Sources;
use crate::ports::Ports;
use turns::Turns;

/// How long a verb waits for what is usually there at once: a current replica, the look through what was found at start.
const READY_DEADLINE: Duration = Duration::from_secs(2);

/// MTU of a pod on a node without an uplink, in bytes: Ethernet's.
const UNKNOWN_UPLINK_MTU: u32 = 1500;
/// The same where packets go through a tunnel: what ovn-kubernetes takes when nobody says.
const UNKNOWN_TUNNEL_MTU: u32 = 1400;

/// Everything that the verbs work with; one for the process.
#[derive(Debug)]
pub struct Agent {
    /// The settings that stay what they were at the start.
    pub config: Config,
    /// Where the node's MTU can be set; None when the command line names it.
    pub mtu_file: Option<PathBuf>,
    /// Those that may change.
    pub live: watch::Sender<Live>,
    /// The largest MTU that fits the node's uplink, in bytes, less the tunnel's overhead in OVN mode; None while there is no
    /// uplink.
    pub uplink_mtu: watch::Sender<Option<u32>>,
    /// The kernel.
    pub netlink: Netlink,
    /// Open vSwitch.
    pub ports: Ports,
    /// The flows of the bridge; None in OVN mode.
    pub flows: Option<Flows>,
    /// The intent log.
    pub journal: Journal,
    /// Who has which address.
    pub addresses: Addresses,
    /// What connection tracking is still to forget.
    pub connections: Connections,
    /// Starts delegated IPAM plugins.
    pub spawner: Spawner,
    /// Where annotations come from.
    pub sources: Sources,
    /// What was done.
    pub recorder: Recorder,
    /// How often, and how long it took.
    pub metrics: Arc<Metrics>,
    /// Tells pods' owners; None without an API server.
    events: Option<Events>,
    started: SystemTime,
    /// True once what was found at start has been looked through.
    pub settled: watch::Receiver<bool>,
    pod_lines: Turns<(String, String)>,
    sandbox_lines: Turns<(String, String)>,
    operations: AtomicUsize,
}

/// The parts of an agent that are made before it.
#[derive(Debug)]
pub struct Parts {
    /// The settings.
    pub config: Config,
    /// Where the node's MTU can be set; None when the command line names it.
    pub mtu_file: Option<PathBuf>,
    /// The kernel.
    pub netlink: Netlink,
    /// Open vSwitch.
    pub ports: Ports,
    /// The intent log.
    pub journal: Journal,
    /// Who has which address.
    pub addresses: Addresses,
    /// Starts delegated IPAM plugins.
    pub spawner: Spawner,
    /// Where annotations come from.
    pub sources: Sources,
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// Tells pods' owners; None without an API server.
    pub events: Option<Events>,
    /// True once what was found at start has been looked through.
    pub settled: watch::Receiver<bool>,
}

/// What the plugin prints.
#[derive(Debug)]
pub struct Reply {
    /// On its standard output: the result, or the error object.
    pub answer: Result<String, String>,
    /// On its standard error; empty when it passes nothing on.
    pub stderr: String,
}

impl Agent {
    /// Puts the parts together, on the current tokio runtime.
    pub fn new(parts: Parts) -> Self {
        let live = watch::Sender::new(parts.config.live.clone());
        let flows = (parts.config.ovn.mode == Mode::Plain)
            .then(|| Flows::keep(parts.ports.clone(), &parts.config, live.subscribe()));
        Self {
            live,
            flows,
            uplink_mtu: watch::Sender::new(None),
            config: parts.config,
            mtu_file: parts.mtu_file,
            netlink: parts.netlink,
            ports: parts.ports,
            journal: parts.journal,
            addresses: parts.addresses,
            connections: Connections::default(),
            spawner: parts.spawner,
            sources: parts.sources,
            recorder: Recorder::start(),
            metrics: parts.metrics,
            events: parts.events,
            started: SystemTime::now(),
            settled: parts.settled,
            pod_lines: Turns::default(),
            sandbox_lines: Turns::default(),
            operations: AtomicUsize::new(0),
        }
    }

    /// Serves one request.
    pub async fn serve(self: Arc<Self>, body: Bytes, cancel: Arc<Cancel>) -> Reply {
        let trace = Trace::start();
        let call = match Call::parse(&body) {
            Ok(call) => call,
            Err(Refused { version, error }) => {
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
        let mut trace = trace;
        let result = self.admit_and_run(&call, &cancel, &mut trace).await;
        let outcome = match &result {
            Ok(_) => Outcome::Ok("ok"),
            Err(error) => {
                self.tell_owner(&call, error);
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
        self.metrics.operation(&operation);
        self.recorder.finish(operation);
    }

    async fn admit_and_run(
        &self,
        call: &Call,
        cancel: &Arc<Cancel>,
        trace: &mut Trace,
    ) -> Result<String, Error> {
        let _admitted = self.admit()?;
        match call.verb {
            Command::Add => self.add(call, cancel, trace).await,
            Command::Del => self.del(call, trace).await.map(|()| String::new()),
            Command::Check => self.check(call, trace).await.map(|()| String::new()),
            Command::Gc => self.gc(call, trace).await.map(|()| String::new()),
            Command::Status => self.status(call).await.map(|()| String::new()),
            // The plugin answers it alone; who asks the agent gets the same.
            Command::Version => Ok(version_json()),
        }
    }

    /// MTU of an interface to which nobody gave one, in bytes.
    pub fn default_mtu(&self) -> u32 {
        let live = self.live.borrow();
        let uplink = match (*self.uplink_mtu.borrow(), self.config.ovn.mode) {
            (Some(uplink), _) => uplink,
            (None, Mode::Plain) => UNKNOWN_UPLINK_MTU,
            (None, Mode::Ovn) => UNKNOWN_TUNNEL_MTU,
        };
        let most = live.max_mtu.unwrap_or(MAX_MTU);
        live.mtu.unwrap_or(uplink).min(most)
    }

    fn admit(&self) -> Result<Admitted<'_>, Error> {
        let limit = self.live.borrow().max_operations;
        let admitted = Admitted(&self.operations);
        if self.operations.fetch_add(1, Ordering::Relaxed) >= limit {
            return Err(Error::Busy { limit });
        }
        Ok(admitted)
    }

    /// Waits until what was found at start has been looked through: before that, nobody knows which addresses are taken.
    async fn settled(&self, patience: Duration) -> Result<(), Error> {
        let mut settled = self.settled.clone();
        if *settled.borrow() {
            return Ok(());
        }
        let in_time = tokio::time::timeout(patience, settled.wait_for(|settled| *settled)).await;
        if matches!(in_time, Ok(Ok(_))) {
            return Ok(());
        }
        drop(in_time);
        // The usual reason is the database; its error says more.
        self.ports.ready(Duration::ZERO).await?;
        Err(Error::Starting {
            awaited: "the ports that are already there",
            waited: patience,
        })
    }

    /// How many operations are under way.
    pub fn under_way(&self) -> usize {
        self.operations.load(Ordering::Relaxed)
    }

    /// What `GET /v1/health` answers: that the agent serves, and whether an ADD would succeed. With patience the answer is held
    /// back until one would, or the time is up.
    pub async fn health(&self, patience: Duration) -> String {
        let ready = self.await_ready(patience).await;
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

/// One of the operations under way.
struct Admitted<'a>(&'a AtomicUsize);

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What IPAM plugins had to say. A plugin that passes nothing on is of an older version, and then our log has it.
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
