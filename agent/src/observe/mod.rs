//! What the agent did and how long each step took: traces, one log line for each operation,
//! metrics, and Kubernetes Events on pods that could not be wired.
//!
//! Only the task that runs an operation writes its trace, so recording a phase takes two clock
//! reads and a push, without a lock. Everything else is derived from the trace when the operation
//! has ended.

mod durations;
pub mod events;
mod format;
mod log;
mod metrics;
mod output;
mod reading;
mod recorder;
mod trace;
mod traceparent;
mod waits;

pub use format::PageFormat;
pub use metrics::{EventOutcome, Metrics, Repair, Spooled};
pub use output::{LogError, LogOutput};
pub use reading::{Reading, SubnetReading, WatchReading};
pub use recorder::Recorder;
pub use trace::{NORTHD_STEP, Operation, Outcome, Phase, Subject, Trace};
pub use traceparent::{TraceParent, TraceParentError};
pub use waits::{Wait, WaitFor};
