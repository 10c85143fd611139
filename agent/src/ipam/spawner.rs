//! IPAM plugins are started by a process of their own.
//!
//! The agent never forks: what a fork inherits of an agent at work (locks, memory, a seccomp
//! filter, dropped capabilities) is of no use to a plugin, and exec inherits the lock-down. So
//! before it starts a thread or drops a capability the agent starts itself once more, as the hidden
//! subcommand [`SUBCOMMAND`]. No async runtime lives there.
//!
//! That process is the keeper ([`keep`]). It starts the worker ([`main_loop`]), which runs each
//! plugin in a thread of its own, and starts another when a signal ends it. Both hold the same
//! socket as standard input, which keeps the boundaries of packets: a worker that dies in the
//! middle of a message spoils that message alone. The agent hears of it ([`SpawnError::Gone`]).
//!
//! Both have no capability and can gain none (`podwire` drops them before [`keep`]), nor do the
//! plugins. The worker runs only what stands in a plugin directory, which it was told at its start:
//! whoever takes over the agent can't have it run a program of his own.
//!
//! Messages are JSON (see `wire`), requests and replies are matched by number, and any number may
//! be under way. When the agent's end closes, for whatever reason, the worker kills what it still
//! runs and exits, and the keeper with it. That is why neither asks for PR_SET_PDEATHSIG: the
//! signal would end it before it could, and is sent when the *thread* that started it ends
//! (prctl(2)).

mod client;
mod process;
mod run;
mod wire;

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

pub use client::{Spawner, SpawnerProcess};
pub use process::{keep, main_loop};

use serde::{Deserialize, Serialize};

/// The argument with which `podwire` becomes the keeper; the plugin directories follow it.
pub const SUBCOMMAND: &str = "spawner";

/// The argument with which `podwire` becomes the worker; the plugin directories follow it.
pub const WORKER: &str = "spawner-worker";

/// PATH of a plugin: some look for tools of their own.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a program may write to its standard output and to its standard error, each, in bytes.
pub const OUTPUT_MAX: usize = 1 << 20;

/// A plugin to run. It gets no argument.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Its file, in or below a plugin directory.
    pub path: String,
    /// Its environment: nothing is inherited. PATH, and variables by which a loader or a shell
    /// runs other code, are not passed on.
    pub env: Vec<(String, String)>,
    /// What it reads on its standard input.
    pub stdin: String,
    /// How long it may take. Then it is killed, with its process group.
    pub timeout: Duration,
}

/// What a program that ended by itself left behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// How it ended.
    pub exit: Exit,
    /// What it wrote to standard output; bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// What it wrote to standard error; bytes that are not UTF-8 are replaced.
    pub stderr: String,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It returned this status.
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
        /// The system's words.
        reason: String,
        /// errno, when there is one.
        errno: Option<i32>,
    },
    /// The program did not end in time, and was killed.
    #[error(
        "{path} did not end within {} ms and was killed{}",
        timeout.as_millis(),
        last_words(stderr)
    )]
    Timeout {
        /// The program.
        path: String,
        /// The time it had.
        timeout: Duration,
        /// What it had written to standard error.
        stderr: String,
    },
    /// The program wrote too much, and was killed.
    #[error("{path} wrote more than {OUTPUT_MAX} bytes to its standard {stream} and was killed")]
    TooMuchOutput {
        /// The program.
        path: String,
        /// "output" or "error".
        stream: String,
    },
    /// The spawner failed to feed the program or to read from it; it was killed.
    #[error("{path}: {reason}")]
    Io {
        /// The program.
        path: String,
        /// The step and the system's words.
        reason: String,
    },
    /// The request is too large for the spawner.
    #[error("{path}: a request of {size} bytes is more than the spawner takes ({limit})")]
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
        "the spawner did not answer within {} ms of being asked to run {path}",
        waited.as_millis()
    )]
    Unresponsive {
        /// The program.
        path: String,
        /// How long was waited.
        waited: Duration,
    },
    /// The spawner ended before the plugin did. There is a new one, or the agent ends to get one.
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

/// Whether a path is in one of these directories or below it, by its text alone.
pub(super) fn is_within(path: &Path, directories: &[PathBuf]) -> bool {
    let stays = path.components().all(|part| part != Component::ParentDir);
    stays && directories.iter().any(|dir| path.starts_with(dir))
}

/// The end of what a program said, for an error.
pub(crate) fn last_words(stderr: &str) -> String {
    const SHOWN: usize = 400;
    let text = stderr.trim_end();
    let mut from = text.len().saturating_sub(SHOWN);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    match &text[from..] {
        "" => String::new(),
        words => format!("; its standard error ends: {words:?}"),
    }
}

#[cfg(test)]
pub(super) mod fixture;
#[cfg(test)]
mod tests;
