//! Errors of fixtures, complete enough for the reader of a test log.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

/// A step of a fixture that did not work. What the code under test answers is never a `Failure`
/// until a test asks for success (see [`crate::PluginRun::success`]).
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A system call or file operation failed.
    #[error("{step}: {source}")]
    System {
        /// What was being done, and to what.
        step: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// An awaited event did not come in time.
    #[error("waited {waited:?} for {awaited}; instead: {seen}")]
    Deadline {
        /// What was awaited.
        awaited: String,
        /// For how long.
        waited: Duration,
        /// What was there when the wait ended.
        seen: String,
    },
    /// A program ended with another status than success.
    #[error("`{command}` ended with {status}: {output}")]
    Exit {
        /// The program and its arguments.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// What it printed, both streams.
        output: String,
    },
    /// ovsdb-server refused a request or answered something that is not JSON-RPC.
    #[error("OVSDB request {request}: {answer}")]
    Ovsdb {
        /// The request as sent.
        request: String,
        /// The answer, or what stood in its place.
        answer: String,
    },
    /// An HTTP server answered something else than was asked for.
    #[error("GET {path} on {server}: {answer}")]
    Http {
        /// The path of the request.
        path: String,
        /// The server's socket or address.
        server: String,
        /// The answer.
        answer: String,
    },
    /// Something is not as it should be.
    #[error("{object}: expected {expected}, found {seen}")]
    Unlike {
        /// What was looked at.
        object: String,
        /// What should have been there.
        expected: String,
        /// What was there.
        seen: String,
    },
    /// A container runtime refused a CRI call, or did not answer it.
    #[error("CRI {method}: {}{message}", code.map_or(String::new(),
        |code| format!("code {code}: ")))]
    Cri {
        /// The call.
        method: &'static str,
        /// Of google.rpc.Code; `None` when there was no answer.
        code: Option<u32>,
        /// What the runtime said, or what stood in its place.
        message: String,
    },
    /// Packets did not arrive, or not as sent.
    #[error("{traffic}: {detail}")]
    Traffic {
        /// Which traffic, from where to where.
        traffic: String,
        /// What happened.
        detail: String,
    },
}

/// Names the step that a system error belongs to.
pub trait Step<T> {
    /// Turns the error into a [`Failure::System`] of this step; `step` is evaluated on error only.
    fn step<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T, Failure>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T, Failure> {
        self.map_err(|e| Failure::System {
            step: step().into(),
            source: e.into(),
        })
    }
}

/// Ends the test, at the place that called the fixture.
pub trait OrFail<T> {
    /// The value; panics with what failed.
    #[track_caller]
    fn or_fail(self) -> T;
}

impl<T> OrFail<T> for Result<T, Failure> {
    #[track_caller]
    fn or_fail(self) -> T {
        match self {
            Ok(value) => value,
            Err(failure) => panic!("{failure}"),
        }
    }
}

/// The end of a log, as a failure shows it: its last lines, each cut where it is long. Without that
/// a program that logs without bound would fill the log of the tests as well.
pub fn tail(log: &str) -> String {
    const LINES: usize = 40;
    const LINE: usize = 1000;
    let lines: Vec<&str> = log.lines().collect();
    let mut text = String::new();
    for line in &lines[lines.len().saturating_sub(LINES)..] {
        let shown: String = line.chars().take(LINE).collect();
        let rest = line.len() - shown.len();
        text.push_str(&shown);
        if rest > 0 {
            text.push_str(&format!("… ({rest} bytes more)"));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_log_without_bound_a_bounded_end_is_shown() {
        let log = format!(
            "{}\n{}\nlast",
            "first\n".repeat(1 << 16),
            "x".repeat(1 << 20)
        );
        let shown = tail(&log);
        assert!(shown.len() < 100_000, "{} bytes", shown.len());
        assert!(shown.ends_with("(1047576 bytes more)\nlast\n"), "{shown}");
    }
}
