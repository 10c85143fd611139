//! The few members of a configuration that the plugin itself acts on.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::{ConfError, read};
use crate::spec::fields::Fields;
use crate::spec::{CniVersion, Command};

/// What the plugin must know of a configuration to post it. All else is read by the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preamble {
    /// The version to answer in.
    pub cni_version: CniVersion,
    /// `agentSocket`: the agent's socket, when it is not the default one.
    pub agent_socket: Option<PathBuf>,
    /// `timeoutSeconds`: the plugin's deadline; see [`NetConf::timeout`](super::NetConf::timeout).
    pub timeout: Option<Duration>,
    /// Whether there is an `ipam` section: the plugin that it names gets our environment.
    pub delegates: bool,
}

impl Preamble {
    /// Reads the preamble of a configuration for this verb. It builds nothing for the members
    /// it passes over, however many annotations there are.
    ///
    /// # Errors
    /// Not a JSON object; no served version, or one that lacks the verb; a wrong `agentSocket`
    /// or `timeoutSeconds`, which for DEL count as absent (see
    /// [`NetConf::parse_for_del`](super::NetConf::parse_for_del)).
    pub fn parse(text: &str, command: Command) -> Result<Self, ConfError> {
        let Members {
            cni_version,
            agent_socket,
            timeout,
            ipam,
        } = Members::of(text)?;
        let mut fields = Fields::root(Map::from_iter([
            ("cniVersion".to_owned(), cni_version),
            ("agentSocket".to_owned(), agent_socket),
            ("timeoutSeconds".to_owned(), timeout),
        ]));
        let cni_version = read::version(&mut fields)?;
        cni_version.allows(command)?;
        let mut faults = read::FaultList::of(match command {
            Command::Del => read::Faults::SetAside,
            _ => read::Faults::Refuse,
        });
        Ok(Self {
            cni_version,
            agent_socket: faults.settle(read::agent_socket(&mut fields))?,
            timeout: faults.settle(read::timeout(&mut fields))?,
            delegates: ipam.is_some(),
        })
    }

    /// The version in which to answer this configuration, whatever else is wrong with it; the
    /// latest when it names none that is served.
    pub fn version(text: &str) -> CniVersion {
        let version = Members::of(text).and_then(|members| {
            let version = ("cniVersion".to_owned(), members.cni_version);
            read::version(&mut Fields::root(Map::from_iter([version])))
        });
        version.unwrap_or(CniVersion::LATEST)
    }
}

#[derive(Deserialize)]
struct Members {
    #[serde(rename = "cniVersion", default)]
    cni_version: Value,
    #[serde(rename = "agentSocket", default)]
    agent_socket: Value,
    #[serde(rename = "timeoutSeconds", default)]
    timeout: Value,
    #[serde(default)]
    ipam: Option<IgnoredAny>,
}

impl Members {
    fn of(text: &str) -> Result<Self, ConfError> {
        // serde's derive takes a list for a struct too.
        if !text.trim_start().starts_with('{') {
            return Err(ConfError::NotJson("it does not begin with '{'".to_owned()));
        }
        serde_json::from_str(text).map_err(|error| ConfError::NotJson(error.to_string()))
    }
}

#[cfg(test)]
mod tests;
