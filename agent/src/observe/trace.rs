//! The trace of one operation: who it was for, how it ended, and its steps.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::TraceParent;

/// The step of a slow ADD that waited for ovn-northd: ovn-controller had not got the port from the
/// southbound database when it was asked. The flows, which took the rest, are not told apart.
pub const NORTHD_STEP: &str = "ovn-northd: logical port";

/// One step of an operation; steps may overlap, as the OVSDB transaction and the pod-side netlink
/// work of an ADD do.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Phase {
    /// The part it belongs to and what it did, such as `netlink: veth pair`.
    pub name: &'static str,
    /// Microseconds from the operation's start.
    pub start_micros: f64,
    /// Microseconds that it took.
    pub duration_micros: f64,
    /// Whether the operation failed in it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
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

impl Outcome {
    /// `ok` or `failed`.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Ok(_) => "ok",
            Self::Failed { .. } => "failed",
        }
    }

    /// The code that the runtime is told; 0 for success.
    pub fn code(&self) -> u32 {
        match self {
            Self::Ok(_) => 0,
            Self::Failed { code, .. } => *code,
        }
    }
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
    pub traceparent: Option<TraceParent>,
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
    /// The step that has begun and not ended.
    under_way: Option<(&'static str, Instant)>,
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
    pub traceparent: Option<TraceParent>,
}

impl Trace {
    /// Starts the clock.
    pub fn start() -> Self {
        Self {
            started: Instant::now(),
            started_wall: SystemTime::now(),
            phases: Vec::with_capacity(24),
            under_way: None,
        }
    }

    /// Takes a step and records how long it took, or that the operation failed in it.
    pub async fn step<T, E>(
        &mut self,
        name: &'static str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let start = self.begin(name);
        let done = work.await?;
        self.phase(name, start);
        Ok(done)
    }

    /// Takes a step whose failure does not end the operation, and records how long it took.
    pub async fn timed<T>(&mut self, name: &'static str, work: impl Future<Output = T>) -> T {
        let start = self.begin(name);
        let done = work.await;
        self.phase(name, start);
        done
    }

    /// Begins a step, which [`Self::phase`] ends. One that is still under way when the operation
    /// fails is the step that failed.
    pub fn begin(&mut self, name: &'static str) -> Instant {
        let now = Instant::now();
        self.under_way = Some((name, now));
        now
    }

    /// Records the step that is under way as the one that failed.
    pub fn fail(&mut self) {
        if let Some((name, start)) = self.under_way.take() {
            self.span(name, start, start.elapsed());
            if let Some(phase) = self.phases.last_mut() {
                phase.failed = true;
            }
        }
    }

    /// Records a step that ran from `start` until now.
    pub fn phase(&mut self, name: &'static str, start: Instant) {
        self.span(name, start, start.elapsed());
    }

    /// Records a step of which start and length are known.
    pub fn span(&mut self, name: &'static str, start: Instant, duration: Duration) {
        self.under_way = None;
        self.phases.push(Phase {
            name,
            start_micros: micros(start.saturating_duration_since(self.started)),
            duration_micros: micros(duration),
            failed: false,
        });
    }

    /// Stops the clock.
    pub fn end(mut self, verb: &'static str, subject: Subject, outcome: Outcome) -> Operation {
        if matches!(outcome, Outcome::Failed { .. }) {
            self.fail();
        }
        let started = self.started_wall.duration_since(UNIX_EPOCH);
        Operation {
            verb,
            container: subject.container,
            ifname: subject.ifname,
            pod: subject.pod,
            traceparent: subject.traceparent,
            started_unix_micros: started.map_or(0, |since| {
                u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
            }),
            duration_micros: micros(self.started.elapsed()),
            outcome,
            phases: self.phases,
        }
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
    fn the_step_in_which_an_operation_fails_is_recorded_as_failed() {
        let mut trace = Trace::start();
        let queued = trace.begin("queue");
        trace.phase("queue", queued);
        trace.begin("annotations");
        let outcome = Outcome::Failed {
            code: 11,
            msg: "later".into(),
        };
        let operation = trace.end("ADD", Subject::default(), outcome);
        let steps: Vec<_> = operation
            .phases
            .iter()
            .map(|it| (it.name, it.failed))
            .collect();
        assert_eq!(steps, [("queue", false), ("annotations", true)]);
    }

    #[test]
    fn a_trace_is_serialised_as_the_tools_read_it() {
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
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let subject = Subject {
            pod: Some("a/b".into()),
            traceparent: TraceParent::parse(parent).ok(),
            ..Subject::default()
        };
        let json = serde_json::to_value(trace.end("ADD", subject, outcome)).unwrap();
        assert_eq!(json["phases"][0]["startMicros"], 10.0);
        assert_eq!(json["phases"][0]["durationMicros"], 250.0);
        assert_eq!(json["outcome"]["code"], 11);
        assert_eq!(json["pod"], "a/b");
        assert_eq!(json["traceparent"], parent);
    }
}
