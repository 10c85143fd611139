//! The verbs of the specification.

use std::fmt;
use std::str::FromStr;

/// A verb: the value of `CNI_COMMAND`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// Attach the container to the network.
    Add,
    /// Undo an ADD; succeeds if nothing is left to undo.
    Del,
    /// Compare what exists with the result of ADD.
    Check,
    /// Remove every attachment that is not in the list of valid ones.
    Gc,
    /// Report whether an ADD would be served.
    Status,
    /// List the supported versions.
    Version,
}

impl Command {
    /// Every verb.
    pub const ALL: [Self; 6] = [
        Self::Add,
        Self::Del,
        Self::Check,
        Self::Gc,
        Self::Status,
        Self::Version,
    ];

    /// The verb as `CNI_COMMAND` and the wire format spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }
}

impl FromStr for Command {
    type Err = ();

    /// Exact: the specification's verbs are upper case.
    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL
            .into_iter()
            .find(|command| command.as_str() == text)
            .ok_or(())
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
