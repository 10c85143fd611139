//! What the agent did and how long each step took, for people and for machines: traces, one log line for each operation,
//! metrics, and Events on the pods that could not be wired.
//!
//! An operation's trace is written by the task that runs it and by nobody else, so recording a phase is two clock reads and
//! a push, with no lock. All else is made of the trace when the operation has ended.

pub mod events;
mod format;
mod log;
mod metrics;
#[cfg(feature = "otel")]
mod otel;
mod output;
mod reading;
mod recorder;
mod trace;
mod traceparent;
mod waits;

pub use format::PageFormat;
pub use metrics::{Mended, Metrics, Spooled, Told};
pub use output::{LogError, LogOutput};
pub use reading::{Reading, SubnetReading, WatchReading};
pub use recorder::Recorder;
pub use trace::{Operation, Outcome, Phase, Subject, Trace};
pub use traceparent::{TraceParent, TraceParentError};
pub use waits::{Wait, WaitFor};
