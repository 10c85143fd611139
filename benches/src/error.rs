//! Errors of a benchmark. A measured operation never fails silently: a sample of a failed ADD would
//! be worse than none.

use std::io;

/// A step of the benchmark that did not work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A fixture failed.
    #[error(transparent)]
    Fixture(#[from] podwire_tests::Failure),
    /// A system call or file operation failed.
    #[error("{step}: {source}")]
    System {
        /// What was being done, and to what.
        step: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A measured program ended badly.
    #[error("{program} for seat {seat} ended with {status}: {output}")]
    Program {
        /// The program and its verb.
        program: String,
        /// Which seat it worked for.
        seat: usize,
        /// How it ended.
        status: String,
        /// What it printed, both streams.
        output: String,
    },
    /// The kernel refused a message of the floor.
    #[error("the kernel refused {message}: {source}")]
    Netlink {
        /// The message.
        message: String,
        /// Its errno.
        source: io::Error,
    },
    /// ovsdb-server refused a transaction of the floor, or answered nonsense.
    #[error("OVSDB {step}: {answer}")]
    Ovsdb {
        /// What was asked.
        step: &'static str,
        /// The answer.
        answer: String,
    },
    /// The agent's trace of an operation lacks what the measure needs.
    #[error("the trace of {container} has no {missing}: {trace}")]
    Trace {
        /// CNI_CONTAINERID.
        container: String,
        /// What is missing.
        missing: &'static str,
        /// The trace as it is.
        trace: String,
    },
    /// After a DEL something was left.
    #[error("{subject} left behind: {left}")]
    Leftovers {
        /// Whose DEL it was.
        subject: &'static str,
        /// What is left.
        left: String,
    },
}

/// Names the step that a system error belongs to.
pub trait Step<T> {
    /// Turns the error into an [`Error::System`] of this step; `step` is evaluated on error only.
    ///
    /// # Errors
    /// The error itself, named.
    fn step<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T, Error> {
        self.map_err(|error| Error::System {
            step: step().into(),
            source: error.into(),
        })
    }
}
