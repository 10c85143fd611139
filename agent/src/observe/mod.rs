//! What the agent did and how long each step took: one trace per operation, kept in memory for people and benchmarks, and
//! one log line when it ends.
//!
//! A trace is written by the task that runs the operation and by nobody else, so recording a phase is two clock reads and a
//! push, with no lock. Only the finished trace goes into the shared ring.

mod output;

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

pub use output::{LogError, LogOutput};

/// How many finished operations are kept.
const KEPT_OPERATIONS: usize = 4096;

/// One step of an operation; steps may overlap, as the OVSDB transaction and the pod-side netlink work of an ADD do.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Phase {
    /// The part it belongs to and what it did, such as `netlink: veth pair`.
    pub name: &'static str,
    /// Microseconds from the operation's start.
    pub start_micros: f64,
    /// Microseconds that it took.
    pub duration_micros: f64,
}

/// How an operation ended.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Outcome {
    /// It succeeded; serialised as the word `ok`.
    Ok(&'static str),
    /// It failed with this CNI error code and message.
    Failed {
        /// The CNI error code.
        code: u32,
        /// The error's message, as the runtime sees it.
        msg: String,
    },
}

/// A finished operation.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// The CNI verb.
    pub verb: &'static str,
    /// CNI_CONTAINERID; empty for GC and STATUS.
    pub container: String,
    /// CNI_IFNAME; empty for GC and STATUS.
    pub ifname: String,
    /// `namespace/name`, when the runtime named a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// TRACEPARENT as the runtime passed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// When the request had arrived whole, in microseconds since 1970.
    pub started_unix_micros: u64,
    /// How long it took, in microseconds.
    pub duration_micros: f64,
    /// How it ended.
    pub outcome: Outcome,
    /// The steps, in the order in which they ended.
    pub phases: Vec<Phase>,
}

/// The record of one running operation.
#[derive(Debug)]
pub struct Trace {
    started: Instant,
    started_wall: SystemTime,
    phases: Vec<Phase>,
}

impl Trace {
    /// Starts the clock.
    pub fn start() -> Self {
        Self {
            started: Instant::now(),
            started_wall: SystemTime::now(),
            phases: Vec::with_capacity(16),
        }
    }

    /// Records a step that ran from `start` until now.
    pub fn phase(&mut self, name: &'static str, start: Instant) {
        self.span(name, start, start.elapsed());
    }

    /// Records a step of which start and length are known.
    pub fn span(&mut self, name: &'static str, start: Instant, duration: Duration) {
        self.phases.push(Phase {
            name,
            start_micros: micros(start.saturating_duration_since(self.started)),
            duration_micros: micros(duration),
        });
    }

    /// How long the operation has run.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

/// Who an operation was for.
#[derive(Debug, Clone, Default)]
pub struct Subject {
    /// CNI_CONTAINERID.
    pub container: String,
    /// CNI_IFNAME.
    pub ifname: String,
    /// `namespace/name`.
    pub pod: Option<String>,
    /// TRACEPARENT.
    pub traceparent: Option<String>,
}

/// The operations that ended lately, newest last.
#[derive(Debug, Default)]
pub struct Recorder {
    operations: Mutex<VecDeque<Operation>>,
}

impl Recorder {
    /// Keeps a finished operation and logs it in one line.
    pub fn finish(&self, verb: &'static str, subject: Subject, trace: Trace, outcome: Outcome) {
        let duration = trace.elapsed();
        let pod = subject.pod.as_deref().unwrap_or("");
        let (container, ifname, ms) = (
            &subject.container,
            &subject.ifname,
            duration.as_secs_f64() * 1e3,
        );
        match &outcome {
            Outcome::Ok(_) => tracing::info!(verb, container, ifname, pod, ms, "done"),
            Outcome::Failed { code, msg } => {
                tracing::warn!(verb, container, ifname, pod, ms, code, "{msg}")
            }
        }
        let operation = Operation {
            verb,
            container: subject.container,
            ifname: subject.ifname,
            pod: subject.pod,
            traceparent: subject.traceparent,
            started_unix_micros: trace
                .started_wall
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| {
                    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
                }),
            duration_micros: micros(duration),
            outcome,
            phases: trace.phases,
        };
        let mut operations = self.lock();
        if operations.len() == KEPT_OPERATIONS {
            operations.pop_front();
        }
        operations.push_back(operation);
    }

    /// The kept operations, oldest first, at most `last` of them.
    pub fn operations(&self, last: usize) -> Vec<Operation> {
        let operations = self.lock();
        operations
            .iter()
            .skip(operations.len().saturating_sub(last))
            .cloned()
            .collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Operation>> {
        // A panic while the ring was held leaves it whole: every change is one push or pop.
        self.operations
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn micros(duration: Duration) -> f64 {
    // Tenths are what the clock can tell; more digits only make the JSON longer.
    (duration.as_nanos() as f64 / 100.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_the_newest_operations_and_drops_the_oldest() {
        let recorder = Recorder::default();
        for n in 0..KEPT_OPERATIONS + 3 {
            let subject = Subject {
                container: n.to_string(),
                ..Subject::default()
            };
            recorder.finish("ADD", subject, Trace::start(), Outcome::Ok("ok"));
        }
        let kept = recorder.operations(usize::MAX);
        assert_eq!(kept.len(), KEPT_OPERATIONS);
        assert_eq!(kept[0].container, "3");
        assert_eq!(
            recorder.operations(1)[0].container,
            (KEPT_OPERATIONS + 2).to_string()
        );
    }

    #[test]
    fn a_trace_is_serialised_as_the_tools_read_it() {
        let recorder = Recorder::default();
        let mut trace = Trace::start();
        trace.span(
            "netlink: veth pair",
            trace.started + Duration::from_micros(10),
            Duration::from_nanos(250_040),
        );
        let outcome = Outcome::Failed {
            code: 11,
            msg: "later".into(),
        };
        recorder.finish(
            "ADD",
            Subject {
                pod: Some("a/b".into()),
                ..Subject::default()
            },
            trace,
            outcome,
        );
        let json = serde_json::to_value(recorder.operations(1)).unwrap();
        assert_eq!(json[0]["phases"][0]["startMicros"], 10.0);
        assert_eq!(json[0]["phases"][0]["durationMicros"], 250.0);
        assert_eq!(json[0]["outcome"]["code"], 11);
        assert_eq!(json[0]["pod"], "a/b");
    }
}
