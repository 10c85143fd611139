//! Errors of the suite itself. They never count as a plugin's failure.

use std::io;
use std::path::PathBuf;

/// A step of the suite that did not work.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// A system call or file operation failed.
    #[error("{step}: {source}")]
    System {
        /// What was being done, and to what.
        step: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A program of the machine, or a command given by the caller, failed.
    #[error("`{command}` {end}: {output}")]
    Program {
        /// The command.
        command: String,
        /// How it ended.
        end: String,
        /// What it printed, both streams.
        output: String,
    },
    /// The plugin is not a file that can be run.
    #[error("the plugin {} is not an executable file", .0.display())]
    NoPlugin(PathBuf),
    /// The network configuration can't be used.
    #[error("the network configuration: {0}")]
    Conf(String),
    /// A case of the suite panicked.
    #[error("the case panicked: {0}")]
    Panic(String),
}

/// Names the step that a system error belongs to.
pub(crate) trait Step<T> {
    /// Turns the error into [`Trouble::System`]; `step` is evaluated on error only.
    fn step<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T, Trouble>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T, Trouble> {
        self.map_err(|error| Trouble::System {
            step: step().into(),
            source: error.into(),
        })
    }
}
