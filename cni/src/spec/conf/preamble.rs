//! The few members of a configuration that the plugin itself acts on.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::{ConfError, read};
use crate::spec::fields::Fields;
use crate::spec::{CniVersion, Command};

/// What the plugin needs of a configuration to post it. The agent reads everything else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preamble {
    /// The version of the answer.
    pub cni_version: CniVersion,
    /// `agentSocket`: the agent's socket, if not the default one.
    pub agent_socket: Option<PathBuf>,
    /// `timeoutSeconds`: the plugin's deadline; see [`NetConf::timeout`](super::NetConf::timeout).
    pub timeout: Option<Duration>,
    /// Whether there is an `ipam` section, whose plugin gets this plugin's environment.
    pub delegates: bool,
}

impl Preamble {
    /// Parses the preamble of a configuration for this verb. Skipped members cost no memory,
    /// however many annotations there are.
    ///
    /// # Errors
    /// No JSON object; no supported version, or one without the verb; an invalid `agentSocket` or
    /// `timeoutSeconds`, which for DEL counts as absent (see
    /// [`NetConf::parse_for_del`](super::NetConf::parse_for_del)).
    pub fn parse(text: &str, command: Command) -> Result<Self, ConfError> {
        let Members {
            cni_version,
            plugin_type,
            agent_socket,
            timeout,
            ipam,
        } = Members::of(text)?;
        let mut fields = Fields::root(Map::from_iter([
            ("cniVersion".to_owned(), cni_version),
            ("type".to_owned(), plugin_type),
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
            agent_socket: faults.resolve(read::agent_socket(&mut fields))?,
            timeout: faults.resolve(read::timeout(&mut fields))?,
            delegates: ipam.is_some(),
        })
    }

    /// The version in which to answer this configuration, whatever else is wrong with it; the
    /// latest if it names no supported one.
    pub fn version(text: &str) -> CniVersion {
        let version = Members::of(text).and_then(|members| {
            let version = ("cniVersion".to_owned(), members.cni_version);
            let plugin_type = ("type".to_owned(), members.plugin_type);
            read::version(&mut Fields::root(Map::from_iter([version, plugin_type])))
        });
        version.unwrap_or(CniVersion::LATEST)
    }
}

#[derive(Deserialize)]
struct Members {
    #[serde(rename = "cniVersion", default)]
    cni_version: Value,
    #[serde(rename = "type", default)]
    plugin_type: Value,
    #[serde(rename = "agentSocket", default)]
    agent_socket: Value,
    #[serde(rename = "timeoutSeconds", default)]
    timeout: Value,
    #[serde(default)]
    ipam: Option<IgnoredAny>,
}

impl Members {
    fn of(text: &str) -> Result<Self, ConfError> {
        // serde's derive also accepts a list for a struct.
        if !text.trim_start().starts_with('{') {
            return Err(ConfError::NotJson("it does not begin with '{'".to_owned()));
        }
        serde_json::from_str(text).map_err(|error| ConfError::NotJson(error.to_string()))
    }
}

#[cfg(test)]
mod tests;
