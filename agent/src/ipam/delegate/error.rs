//! Errors of a plugin, and their codes for the runtime.

use std::path::PathBuf;

use nix::errno::Errno;
use podwire_cni::spec::{Command, ErrorCode, ResultError, SpecError};

use crate::ipam::spawner::{Exit, SpawnError, last_words};

/// Why a plugin gave no answer, or what it refused.
#[derive(Debug, thiserror::Error)]
pub enum DelegateError {
    /// `ipam.type` is more than a file name.
    #[error("ipam.type {kind:?} is not the file name of a plugin")]
    NotAName {
        /// As configured.
        kind: String,
    },
    /// No plugin directory in CNI_PATH contains it.
    #[error(
        "IPAM plugin {kind}: no executable file of that name in CNI_PATH ({searched:?}); podwire \
         only uses its plugin directories: {} (--cni-bin-dir adds one)",
        listed(directories)
    )]
    NotFound {
        /// As configured.
        kind: String,
        /// CNI_PATH.
        searched: String,
        /// The plugin directories.
        directories: Vec<PathBuf>,
    },
    /// The plugin could not be run to completion.
    #[error("IPAM plugin {kind}, {command}: {source}")]
    Run {
        /// The plugin.
        kind: String,
        /// The verb.
        command: Command,
        /// Why.
        source: SpawnError,
    },
    /// The plugin answered with an error.
    #[error("IPAM plugin {kind}, {command}: {error}")]
    Refused {
        /// The plugin.
        kind: String,
        /// The verb.
        command: Command,
        /// Its error.
        error: SpecError,
    },
    /// The plugin failed and printed no error object of the specification.
    #[error(
        "IPAM plugin {kind}, {command}: it {exit} without giving a reason{}",
        last_words(stderr)
    )]
    Died {
        /// The plugin.
        kind: String,
        /// The verb.
        command: Command,
        /// How it ended.
        exit: Exit,
        /// Its standard error.
        stderr: String,
    },
    /// The plugin's result could not be read.
    #[error("IPAM plugin {kind}, {command}: its result cannot be used: {reason}")]
    Result {
        /// The plugin.
        kind: String,
        /// The verb.
        command: Command,
        /// What is wrong with it.
        reason: ResultError,
    },
    /// The plugin's result contains no address.
    #[error("IPAM plugin {kind}, ADD: its result has no address")]
    NoAddress {
        /// The plugin.
        kind: String,
    },
    /// The plugin does not serve the configuration's version, as its VERSION says.
    #[error(
        "IPAM plugin {kind} supports the CNI versions {}, but the configuration has {version}",
        supported.join(", ")
    )]
    Version {
        /// The plugin.
        kind: String,
        /// The configuration's version.
        version: String,
        /// The versions that the plugin lists.
        supported: Vec<String>,
    },
}

fn listed(directories: &[PathBuf]) -> String {
    let shown: Vec<_> = directories
        .iter()
        .map(|dir| dir.display().to_string())
        .collect();
    shown.join(", ")
}

impl DelegateError {
    /// The code for the runtime: the plugin's own, if it gave one.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotAName { .. } | Self::NotFound { .. } => ErrorCode::INVALID_CONFIG,
            Self::Refused { error, .. } => error.code,
            Self::Version { .. } => ErrorCode::INCOMPATIBLE_VERSION,
            Self::Result { .. } | Self::NoAddress { .. } => ErrorCode::DECODE,
            Self::Died { .. } => ErrorCode::IO,
            Self::Run { source, .. } => match source {
                SpawnError::Timeout { .. }
                | SpawnError::Unresponsive { .. }
                | SpawnError::Gone { .. } => ErrorCode::TRY_AGAIN,
                // An upgrade is just writing the file.
                SpawnError::Start { errno, .. } if *errno == Some(Errno::ETXTBSY as i32) => {
                    ErrorCode::TRY_AGAIN
                }
                _ => ErrorCode::IO,
            },
        }
    }
}

/// The error for the runtime: the plugin's code and details, and its message after its name.
impl From<DelegateError> for SpecError {
    fn from(error: DelegateError) -> Self {
        let (code, mut msg) = (error.code(), error.to_string());
        let mut details = String::new();
        if let DelegateError::Refused {
            kind,
            command,
            error,
        } = error
        {
            msg = format!("IPAM plugin {kind}, {command}: {}", error.msg);
            details = error.details;
        }
        Self::new(code, msg).with_details(details)
    }
}
