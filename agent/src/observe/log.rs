//! The line that each operation leaves in the log (docs/logging.md).

use super::trace::{Operation, Outcome, Phase};

/// Writes an operation's line; its steps are another one, of level debug. What only repeats the last answer is of level
/// debug as well.
pub(super) fn operation(operation: &Operation, repeated: bool) {
    let verb = operation.verb;
    // What is None leaves no field.
    let pod = operation.pod.as_deref();
    let container = Some(&operation.container).filter(|it| !it.is_empty());
    let ifname = Some(&operation.ifname).filter(|it| !it.is_empty());
    let duration_ms = (operation.duration_micros / 10.0).round() / 100.0;
    let parent = operation.traceparent.as_ref();
    let trace_id = parent.map(|parent| parent.trace_id());
    let parent_id = parent.map(|parent| parent.parent_id());
    match &operation.outcome {
        Outcome::Ok(outcome) if repeated => tracing::debug!(
            verb,
            pod,
            container,
            ifname,
            duration_ms,
            outcome,
            trace_id,
            parent_id,
            "{verb} ok"
        ),
        Outcome::Ok(outcome) => tracing::info!(
            verb,
            pod,
            container,
            ifname,
            duration_ms,
            outcome,
            trace_id,
            parent_id,
            "{verb} ok"
        ),
        Outcome::Failed { code, msg } if repeated => tracing::debug!(
            verb,
            pod,
            container,
            ifname,
            duration_ms,
            outcome = "failed",
            code,
            error = msg,
            trace_id,
            parent_id,
            "{verb} failed"
        ),
        Outcome::Failed { code, msg } => tracing::warn!(
            verb,
            pod,
            container,
            ifname,
            duration_ms,
            outcome = "failed",
            code,
            error = msg,
            trace_id,
            parent_id,
            "{verb} failed"
        ),
    }
    if !operation.phases.is_empty() {
        tracing::debug!(verb, pod, container, ifname, phases = %Phases(&operation.phases), "{verb} steps");
    }
}

/// `queue 0.01 ms, netlink: veth pair 0.24 ms`.
struct Phases<'a>(&'a [Phase]);

impl std::fmt::Display for Phases<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, phase) in self.0.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            let milliseconds = phase.duration_micros / 1e3;
            write!(f, "{comma}{} {milliseconds:.2} ms", phase.name)?;
        }
        Ok(())
    }
}
