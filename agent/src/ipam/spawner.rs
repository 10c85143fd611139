//! A separate process that starts IPAM plugins.
//!
//! The agent never forks: what a fork inherits from a running agent (locks, memory, a seccomp
//! filter, dropped capabilities) is useless to a plugin, and exec inherits the lock-down. So before
//! it starts a thread or drops a capability, the agent starts itself a second time, with the hidden
//! subcommand [`SUBCOMMAND`]. That process has no async runtime.
//!
//! It is the supervisor ([`supervise`]). It starts the worker ([`main_loop`]), which runs each
//! plugin in a thread of its own, and starts another worker if a signal ends one. Both have the
//! same socket as standard input. The socket preserves packet boundaries, so a worker that dies in
//! the middle of a message spoils only that message, and the agent is told ([`SpawnError::Gone`]).
//!
//! Supervisor, worker and plugins have no capability and can gain none (`podwire` drops them before
//! [`supervise`]). The worker runs only files in the plugin directories that it was started with,
//! so an attacker who takes over the agent can't have it run another program.
//!
//! Messages are JSON (see `wire`); requests and replies are matched by number, and any number of
//! them may be in progress. When the agent's end closes, for whatever reason, the worker kills what
//! it still runs and exits, and the supervisor follows. That is why neither uses PR_SET_PDEATHSIG:
//! the signal would end the worker before it could do so, and it is sent when the parent *thread*
//! ends (prctl(2)).

mod client;
mod process;
mod run;
mod wire;

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

pub use client::{Spawner, SpawnerProcess};
pub use process::{main_loop, supervise};

use serde::{Deserialize, Serialize};

/// The argument with which `podwire` becomes the supervisor; the plugin directories follow it.
pub const SUBCOMMAND: &str = "spawner";

/// The argument with which `podwire` becomes the worker; the plugin directories follow it.
pub const WORKER: &str = "spawner-worker";

/// PATH of a plugin, as some call other tools.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The limit for a program's standard output and standard error, each, in bytes.
pub const OUTPUT_MAX: usize = 1 << 20;

/// A plugin to run. It gets no argument.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Its file, in or below a plugin directory.
    pub path: String,
    /// Its environment; nothing is inherited. PATH, and variables that make a loader or a shell run
    /// other code, are dropped.
    pub env: Vec<(String, String)>,
    /// Its standard input.
    pub stdin: String,
    /// Its time limit. When it is over, the program and its process group are killed.
    pub timeout: Duration,
}

/// The result of a program that ended by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// How it ended.
    pub exit: Exit,
    /// Its standard output; bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// Its standard error; bytes that are not UTF-8 are replaced.
    pub stderr: String,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It exited with this status.
    Status(i32),
    /// This signal killed it.
    Signal(i32),
}

/// Why there is no [`Output`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpawnError {
    /// The program could not be started.
    #[error("{path} could not be started: {reason}")]
    Start {
        /// The program.
        path: String,
        /// The system's error.
        reason: String,
        /// errno, if there is one.
        errno: Option<i32>,
    },
    /// The program exceeded its time limit and was killed.
    #[error(
        "{path} did not end within {} ms and was killed{}",
        timeout.as_millis(),
        last_words(stderr)
    )]
    Timeout {
        /// The program.
        path: String,
        /// Its time limit.
        timeout: Duration,
        /// Its standard error so far.
        stderr: String,
    },
    /// The program exceeded the output limit and was killed.
    #[error("{path} wrote more than {OUTPUT_MAX} bytes to its standard {stream} and was killed")]
    TooMuchOutput {
        /// The program.
        path: String,
        /// "output" or "error".
        stream: String,
    },
    /// The spawner failed to write to the program or to read from it, and killed it.
    #[error("{path}: {reason}")]
    Io {
        /// The program.
        path: String,
        /// The step and the system's error.
        reason: String,
    },
    /// The request is too large for the spawner.
    #[error("{path}: a request of {size} bytes is larger than the spawner accepts ({limit})")]
    TooLarge {
        /// The program.
        path: String,
        /// The request's size in bytes.
        size: usize,
        /// The largest in bytes.
        limit: usize,
    },
    /// The spawner does not answer.
    #[error(
        "the spawner did not answer a request to run {path} within {} ms",
        waited.as_millis()
    )]
    Unresponsive {
        /// The program.
        path: String,
        /// How long the agent waited.
        waited: Duration,
    },
    /// The spawner ended before the plugin did. There is a new one, or the agent exits to get one.
    #[error("the spawner process ended while it ran {path}")]
    Gone {
        /// The program.
        path: String,
    },
}

/// `ended with status 1`, `was killed by signal 11`.
impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "ended with status {status}"),
            Self::Signal(signal) => write!(f, "was killed by signal {signal}"),
        }
    }
}

/// Whether a path is one of these directories or below one, judged by its text alone.
pub(super) fn is_within(path: &Path, directories: &[PathBuf]) -> bool {
    let stays = path.components().all(|part| part != Component::ParentDir);
    stays && directories.iter().any(|dir| path.starts_with(dir))
}

/// The end of a program's output, for an error.
pub(crate) fn last_words(stderr: &str) -> String {
    const SHOWN: usize = 400;
    let text = stderr.trim_end();
    let mut from = text.len().saturating_sub(SHOWN);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    match &text[from..] {
        "" => String::new(),
        words => format!("; its standard error ends with {words:?}"),
    }
}

#[cfg(test)]
pub(super) mod fixture;
#[cfg(test)]
mod tests;
