//! The log line of each operation (docs/logging.md).

use super::trace::{Operation, Outcome, Phase};

/// Writes an operation's line; its steps are another line, of level debug. An operation that
/// repeats the last answer is of level debug as well.
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
    // A call site of tracing has its level at compile time.
    macro_rules! line {
        ($level:ident, $text:literal, $($outcome:tt)*) => {
            tracing::$level!(
                verb,
                pod,
                container,
                ifname,
                duration_ms,
                $($outcome)*,
                trace_id,
                parent_id,
                $text
            )
        };
    }
    match (&operation.outcome, repeated) {
        (Outcome::Ok(outcome), true) => line!(debug, "{verb} ok", outcome),
        (Outcome::Ok(outcome), false) => line!(info, "{verb} ok", outcome),
        (Outcome::Failed { code, msg }, true) => {
            line!(
                debug,
                "{verb} failed",
                outcome = "failed",
                code,
                error = msg
            );
        }
        (Outcome::Failed { code, msg }, false) => {
            line!(warn, "{verb} failed", outcome = "failed", code, error = msg);
        }
    }
    if !operation.phases.is_empty() {
        tracing::debug!(verb, pod, container, ifname, phases = %Phases(&operation.phases), "{verb} \
            steps");
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
