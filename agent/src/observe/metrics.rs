//! The agent's own counters (docs/metrics.md).
//!
//! Operations are counted when they have ended, from their trace; a wait costs two atomic
//! additions. Numbers that others keep are read when the page is fetched: see
//! [`Reading`](super::Reading).

use std::time::Duration;

use podwire_daemon::words;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::durations::{Durations, Labels, durations};
use super::trace::{Operation, Outcome};
use super::waits::{Wait, WaitFor, Waits};

/// The verbs whose series exist from the start, so that a rate is right from the first operation
/// on.
const VERBS: [&str; 5] = ["ADD", "DEL", "CHECK", "GC", "STATUS"];

/// A verb, and an error code.
type VerbAndCode = (Labels<1>, [(&'static str, u32); 1]);

words! {
    /// What was repaired: something left behind, or lost.
    pub enum Repair {
        /// An ADD that an earlier agent did not finish was undone.
        InterruptedAdd = "interrupted-add",
        /// A DEL that an earlier agent or a lost database left unfinished was carried out.
        InterruptedDel = "interrupted-del",
        /// A port whose link was gone was removed at start.
        PortWithoutLink = "port-without-link",
        /// What the runtime no longer lists was removed by GC.
        Unlisted = "unlisted",
        /// What an earlier attachment of the same key left was removed by an ADD.
        Leftover = "leftover",
        /// An older sandbox of the same pod was removed by an ADD.
        OlderSandbox = "older-sandbox",
        /// A running pod's port that the database had lost was restored.
        LostPort = "lost-port",
        /// The record of an attachment that has no link any more was removed.
        StaleRecord = "stale-record",
        /// An attachment for which no DEL came was removed after the grace.
        Abandoned = "abandoned",
    }
}

words! {
    /// What became of a DEL in the spool.
    pub enum Spooled {
        /// It was carried out.
        CarriedOut = "carried-out",
        /// It failed, and stays for another try.
        Failed = "failed",
        /// It could never be carried out.
        Dropped = "dropped",
    }
}

words! {
    /// What became of a report for a pod's Event.
    pub enum EventOutcome {
        /// A new Event was created.
        Posted = "posted",
        /// An existing Event's count was raised.
        Counted = "counted",
        /// It was reported a short while ago.
        Held = "held",
        /// There were too many reports.
        Dropped = "dropped",
        /// The API server did not accept it.
        Failed = "failed",
    }
}

/// Upper bounds in seconds for the start of a pod, in which the runtime has its part.
const STARTS: [f64; 10] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// The counters; one set for the process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    operations: Durations<2>,
    phases: Durations<2>,
    failures: Family<VerbAndCode, Counter>,
    starts: Histogram,
    waits: Waits,
    repairs: [Counter; Repair::ALL.len()],
    spooled: [Counter; Spooled::ALL.len()],
    events: [Counter; EventOutcome::ALL.len()],
    address_claims: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("podwire");
        let build = [("version", env!("CARGO_PKG_VERSION"))];
        registry.register("build", "The agent's build", Info::new(build));
        let operations = durations(
            &mut registry,
            "operation_duration",
            "How long operations took, from the whole request to its answer",
        );
        for verb in VERBS {
            for outcome in ["ok", "failed"] {
                operations.get_or_create_owned(&[("verb", verb), ("outcome", outcome)]);
            }
        }
        let phases = durations(
            &mut registry,
            "phase_duration",
            "How long the steps of operations took; steps may overlap",
        );
        let failures = Family::default();
        registry.register(
            "operation_failures",
            "Failed operations, by CNI error code",
            failures.clone(),
        );
        let starts = Histogram::new(STARTS);
        registry.register_with_unit(
            "pod_network_ready",
            "From the API server's first word of a new pod of this node to its first interface",
            Unit::Seconds,
            starts.clone(),
        );
        let waits = Waits::register(&mut registry);
        let repairs = counters(
            &mut registry,
            "repairs",
            "Things repaired that had been left behind or lost",
            Repair::ALL.map(|repair| ("what", repair.word())),
        );
        let spooled = counters(
            &mut registry,
            "spool_dels",
            "DELs taken from the spool, by outcome",
            Spooled::ALL.map(|spooled| ("outcome", spooled.word())),
        );
        let events = counters(
            &mut registry,
            "events",
            "Reports for Kubernetes Events on pods, by outcome",
            EventOutcome::ALL.map(|it| ("outcome", it.word())),
        );
        let address_claims = Counter::default();
        registry.register(
            "address_claims",
            "Claims of other hosts to addresses that pods have on physical networks, once in 10 s \
             for each address",
            address_claims.clone(),
        );
        Self {
            registry,
            operations,
            phases,
            failures,
            starts,
            waits,
            repairs,
            spooled,
            events,
            address_claims,
        }
    }
}

impl Metrics {
    /// Counts an operation that has ended.
    pub fn operation(&self, operation: &Operation) {
        let verb = ("verb", operation.verb);
        let outcome = ("outcome", operation.outcome.word());
        self.operations
            .get_or_create(&[verb, outcome])
            .observe(operation.duration_micros / 1e6);
        if let Outcome::Failed { code, .. } = operation.outcome {
            self.failures
                .get_or_create(&([verb], [("code", code)]))
                .inc();
        }
        for phase in &operation.phases {
            self.phases
                .get_or_create(&[verb, ("phase", phase.name)])
                .observe(phase.duration_micros / 1e6);
        }
    }

    /// A pod has its first interface, this long after the API server told of it.
    pub fn pod_has_network(&self, since: Duration) {
        self.starts.observe(since.as_secs_f64());
    }

    /// An operation begins to wait; the wait ends when the answer is dropped.
    pub fn wait(&self, wait: WaitFor) -> Wait<'_> {
        self.waits.begin(wait)
    }

    /// So many things were repaired.
    pub fn repaired(&self, repair: Repair, count: usize) {
        self.repairs[repair as usize].inc_by(count as u64);
    }

    /// A DEL of the spool was looked at.
    pub fn spooled(&self, outcome: Spooled) {
        self.spooled[outcome as usize].inc();
    }

    /// A report for a pod's Event was handled.
    pub fn event(&self, outcome: EventOutcome) {
        self.events[outcome as usize].inc();
    }

    /// Another host claimed a pod's address.
    pub fn address_claimed(&self) {
        self.address_claims.inc();
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }
}

/// Counters that are there from the start, each with one label.
fn counters<const N: usize>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    labels: Labels<N>,
) -> [Counter; N] {
    let family = Family::<Labels<1>, Counter>::default();
    registry.register(name, help, family.clone());
    labels.map(|label| family.get_or_create_owned(&[label]))
}

#[cfg(test)]
mod tests;
