//! Delegated IPAM plugins (CNI spec, section 4, "Delegated Plugin Execution").
//!
//! A network configuration with an `ipam` section names a plugin by its file name. It is searched
//! for in CNI_PATH and run with the parameters and the whole configuration of the call; its answer
//! is used unchanged. Every plugin has ADD, DEL and CHECK. GC and STATUS came with version 1.1.0,
//! and the plugin may be older: if it does not know the verb, the answer is [`Answer::NotServed`].
//! That is no failure, since such a plugin has nothing to collect and no reason to report.
//!
//! If an ADD fails for any reason other than a refusal by the plugin (a timeout, an unreadable
//! result), an address may have been allocated nevertheless. The caller's rollback then runs DEL,
//! as after a failure of its own.

mod error;
mod remarks;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use podwire_cni::env::Invocation;
use podwire_cni::spec::{CniResult, Command, ErrorCode, ResultError, SpecError};
use serde::Deserialize;

use super::spawner::{Exec, Exit, Output, Spawner, is_within};
pub use error::DelegateError;
pub use remarks::Remarks;

/// An IPAM plugin that was found, and the call to run it for.
#[derive(Debug, Clone)]
pub struct Delegate<'a> {
    /// The call.
    pub call: Call<'a>,
    kind: &'a str,
    path: PathBuf,
    spawner: &'a Spawner,
}

/// The agent's own call; the plugin gets the same.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The parameters. Their verb is ignored, because a failed ADD is followed by a DEL.
    pub invocation: &'a Invocation,
    /// The whole network configuration, unchanged.
    pub config: &'a str,
    /// The other variables of the runtime's environment.
    pub environment: &'a BTreeMap<String, String>,
    /// Collects what the plugin writes to standard error.
    pub remarks: &'a Remarks,
    /// The plugin's time limit.
    pub timeout: Duration,
}

/// The answer to a verb that not every plugin knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The plugin served it.
    Served,
    /// The plugin is older than the verb.
    NotServed,
}

impl<'a> Delegate<'a> {
    /// Finds the plugin `kind` in those directories of CNI_PATH that are a plugin directory or
    /// below one; the spawner runs nothing else.
    ///
    /// # Errors
    /// [`DelegateError::NotAName`], [`DelegateError::NotFound`].
    pub fn find(
        kind: &'a str,
        call: Call<'a>,
        spawner: &'a Spawner,
    ) -> Result<Self, DelegateError> {
        let path = file(kind, &call.invocation.path, spawner.directories())?;
        Ok(Self {
            call,
            kind,
            path,
            spawner,
        })
    }

    /// ADD: the addresses, routes and DNS that the plugin chose.
    ///
    /// # Errors
    /// [`DelegateError`].
    pub async fn add(&self) -> Result<CniResult, DelegateError> {
        let stdout = self.run(Command::Add).await?;
        let result =
            CniResult::from_json(stdout.as_bytes()).map_err(|reason| DelegateError::Result {
                kind: self.kind.to_owned(),
                command: Command::Add,
                reason,
            })?;
        if result.ips.is_empty() {
            return Err(DelegateError::NoAddress {
                kind: self.kind.to_owned(),
            });
        }
        Ok(result)
    }

    /// DEL: releases what ADD allocated. A plugin that refuses the configuration's version has
    /// allocated nothing for it.
    ///
    /// # Errors
    /// [`DelegateError`].
    pub async fn del(&self) -> Result<(), DelegateError> {
        match self.run(Command::Del).await {
            Ok(_) => Ok(()),
            Err(DelegateError::Refused { error, .. })
                if error.code == ErrorCode::INCOMPATIBLE_VERSION =>
            {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// CHECK: whether the plugin still holds what is in the configuration's prevResult.
    ///
    /// # Errors
    /// [`DelegateError`].
    pub async fn check(&self) -> Result<(), DelegateError> {
        self.run(Command::Check).await.map(drop)
    }

    /// GC: releases what belongs to none of the configuration's valid attachments. A plugin that
    /// refuses the configuration's version holds nothing for it.
    ///
    /// # Errors
    /// [`DelegateError`].
    pub async fn gc(&self) -> Result<Answer, DelegateError> {
        match self.run(Command::Gc).await {
            Ok(_) => Ok(Answer::Served),
            Err(DelegateError::Refused { error, .. })
                if is_unknown_verb(&error) || error.code == ErrorCode::INCOMPATIBLE_VERSION =>
            {
                Ok(Answer::NotServed)
            }
            Err(error) => Err(error),
        }
    }

    /// STATUS: whether the plugin would serve an ADD. A plugin that does not know the verb is asked
    /// for its versions instead, because an ADD in a version that it lacks is sure to fail. The
    /// time limit is that of both.
    ///
    /// # Errors
    /// [`DelegateError`].
    pub async fn status(&self) -> Result<Answer, DelegateError> {
        let started = Instant::now();
        match self.run(Command::Status).await {
            Ok(_) => Ok(Answer::Served),
            Err(DelegateError::Refused { error, .. }) if is_unknown_verb(&error) => {
                let mut rest = self.clone();
                rest.call.timeout = self.call.timeout.saturating_sub(started.elapsed());
                rest.confirm_version().await?;
                Ok(Answer::NotServed)
            }
            Err(error) => Err(error),
        }
    }

    async fn confirm_version(&self) -> Result<(), DelegateError> {
        let stdout = self.run(Command::Version).await?;
        let supported = serde_json::from_str(&stdout)
            .map(|Versions { supported_versions }| supported_versions)
            .map_err(|error| DelegateError::Result {
                kind: self.kind.to_owned(),
                command: Command::Version,
                reason: ResultError::NotJson(error.to_string()),
            })?;
        // A configuration that got this far has a version; otherwise the plugin decides.
        match serde_json::from_str(self.call.config) {
            Ok(Versioned {
                cni_version: version,
            }) if !supported.contains(&version) => Err(DelegateError::Version {
                kind: self.kind.to_owned(),
                version,
                supported,
            }),
            _ => Ok(()),
        }
    }

    /// Runs the plugin, and returns its standard output if it succeeded.
    async fn run(&self, command: Command) -> Result<String, DelegateError> {
        let call = self.call;
        let exec = Exec {
            path: self.path.to_string_lossy().into_owned(),
            env: environment(call, command),
            stdin: call.config.to_owned(),
            timeout: call.timeout,
        };
        let kind = || self.kind.to_owned();
        let ended = self.spawner.run(exec).await;
        if let Ok(Output { stderr, .. }) = &ended
            && !stderr.trim().is_empty()
        {
            tracing::debug!(plugin = self.kind, %command, "IPAM plugin: {}", stderr.trim());
            call.remarks.add(stderr);
        }
        match ended {
            Ok(Output {
                exit: Exit::Status(0),
                stdout,
                ..
            }) => Ok(stdout),
            Ok(Output {
                exit,
                stdout,
                stderr,
            }) => match SpecError::from_json(stdout.as_bytes()) {
                Some(error) => Err(DelegateError::Refused {
                    kind: kind(),
                    command,
                    error,
                }),
                None => Err(DelegateError::Died {
                    kind: kind(),
                    command,
                    exit,
                    stderr,
                }),
            },
            Err(source) => Err(DelegateError::Run {
                kind: kind(),
                command,
                source,
            }),
        }
    }
}

/// The file of the plugin `kind`.
fn file(kind: &str, cni_path: &str, directories: &[PathBuf]) -> Result<PathBuf, DelegateError> {
    if matches!(kind, "" | "." | "..") || kind.contains(['/', '\0']) {
        return Err(DelegateError::NotAName {
            kind: kind.to_owned(),
        });
    }
    let mut paths = cni_path.split(':').map(|it| Path::new(it).join(kind));
    let found = paths.find(|path| is_within(path, directories) && is_executable_file(path));
    found.ok_or_else(|| DelegateError::NotFound {
        kind: kind.to_owned(),
        searched: cni_path.to_owned(),
        directories: directories.to_vec(),
    })
}

/// All variables of a call (CNI spec, section 4: "the same environment"); the spawner drops some.
/// Every plugin treats an empty parameter as unset, so it is left out here.
fn environment(call: Call<'_>, command: Command) -> Vec<(String, String)> {
    let invocation = call.invocation;
    let mut environment = call.environment.clone();
    let parameters = [
        ("CNI_COMMAND", command.as_str()),
        ("CNI_CONTAINERID", &invocation.container_id),
        ("CNI_NETNS", &invocation.netns),
        ("CNI_IFNAME", &invocation.ifname),
        ("CNI_ARGS", &invocation.args),
        ("CNI_PATH", &invocation.path),
    ];
    let given = parameters
        .into_iter()
        .filter(|(_, value)| !value.is_empty());
    environment.extend(given.map(|(name, value)| (name.to_owned(), value.to_owned())));
    environment.into_iter().collect()
}

fn is_executable_file(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Whether a plugin's answer to GC or STATUS means that it does not know the verb.
///
/// The code for that is 4, an invalid CNI_COMMAND. But the reference plugins' skeleton before 1.1
/// first checks the container id and answers 3 (as host-local 1.1.1 does). Neither verb concerns a
/// container, so 3 has no other meaning here.
fn is_unknown_verb(error: &SpecError) -> bool {
    matches!(
        error.code,
        ErrorCode::INVALID_ENVIRONMENT | ErrorCode::UNKNOWN_CONTAINER
    )
}

/// The answer to VERSION.
#[derive(Deserialize)]
struct Versions {
    #[serde(rename = "supportedVersions")]
    supported_versions: Vec<String>,
}

/// A configuration's version.
#[derive(Deserialize)]
struct Versioned {
    #[serde(rename = "cniVersion")]
    cni_version: String,
}

#[cfg(test)]
mod tests;
