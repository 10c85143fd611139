//! The network configuration, as a runtime passes it on stdin.

mod preamble;
mod read;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use macaddr::MacAddr6;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

pub use preamble::Preamble;

use super::{
    CniResult, CniVersion, Dns, ErrorCode, FieldError, ResultError, SpecError, VersionError,
};

/// The configuration of one network for one call (CNI spec, section 1, "Plugin configuration
/// objects", with what section 3, "Deriving execution configuration", adds).
#[derive(Debug, Clone)]
pub struct NetConf {
    /// The version to answer in.
    pub cni_version: CniVersion,
    /// The network's name: `[a-zA-Z0-9][a-zA-Z0-9_.-]*`.
    pub name: String,
    /// The plugin's file name.
    pub plugin_type: String,
    /// What the runtime knows about this container.
    pub runtime: RuntimeConfig,
    /// `args.cni`, the older way for a runtime to say such things.
    pub args: CniArgs,
    /// The plugin to delegate address management to.
    pub ipam: Option<IpamConf>,
    /// The MTU for the pod's interface in bytes, 68 to 65535; 0 in the configuration is none.
    pub mtu: Option<u32>,
    /// The resolver's configuration to hand out.
    pub dns: Dns,
    /// The agent's socket, when it is not the default one.
    pub agent_socket: Option<PathBuf>,
    /// `timeoutSeconds`: the plugin's deadline for ADD, CHECK and GC; DEL and STATUS take it only
    /// when it is shorter than their own.
    pub timeout: Option<Duration>,
    /// `portSecurity`: whether the switch lets a pod speak for itself alone; without it the node's
    /// own setting counts.
    pub port_security: Option<bool>,
    /// `quietPods`: whether a pod with IPv6 neither probes for its link-local address nor asks for
    /// routers; without it the node's own setting counts.
    pub quiet_pods: Option<bool>,
    /// The `namespace/name` of the NetworkAttachmentDefinition this configuration is from.
    pub net_attach_def_name: Option<String>,
    /// The capabilities that the configuration asks the runtime for.
    pub capabilities: BTreeMap<String, bool>,
    /// GC: the attachments to keep; see [`NetConf::valid_attachments`].
    pub(super) attachments: Option<Vec<Attachment>>,
    /// Members that are not listed here, as they came.
    pub others: Map<String, Value>,
    /// What a lenient parse found wrong and set aside; empty after a strict one.
    pub ignored: Vec<FieldError>,
    /// The configuration as it came, byte for byte: a delegated plugin gets it so.
    pub raw: Box<RawValue>,
    prev_result: Option<Value>,
}

/// `runtimeConfig`: values for the capabilities that the configuration asks for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RuntimeConfig {
    /// `ips`: static addresses.
    pub ips: Vec<RequestedIp>,
    /// `mac`: a static hardware address.
    pub mac: Option<MacAddr6>,
    /// `io.kubernetes.cri.pod-annotations`: all annotations of the pod.
    pub pod_annotations: BTreeMap<String, String>,
    /// `bandwidth`: limits of the pod's traffic.
    pub bandwidth: Option<Bandwidth>,
    /// Other capabilities (`portMappings`, `dns`, `cgroupPath`, …), as they came. podwire does
    /// not act on them, so a fault in them is not its to report.
    pub others: Map<String, Value>,
}

/// `args.cni`, by the conventions of containernetworking/cni.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CniArgs {
    /// `ips`: static addresses.
    pub ips: Vec<RequestedIp>,
    /// `mac`: a static hardware address.
    pub mac: Option<MacAddr6>,
    /// The rest (`labels`, …), as it came.
    pub others: Map<String, Value>,
}

/// An address that somebody asked for: with a prefix length or without, both occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestedIp {
    /// The address.
    pub address: IpAddr,
    /// The length of the subnet's prefix, when given.
    pub prefix_len: Option<u8>,
}

/// The `bandwidth` capability. "Ingress" is towards the pod. 0 is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bandwidth {
    /// Towards the pod, in bit/s.
    pub ingress_rate: u64,
    /// Towards the pod, the burst in bits.
    pub ingress_burst: u64,
    /// From the pod, in bit/s.
    pub egress_rate: u64,
    /// From the pod, the burst in bits.
    pub egress_burst: u64,
}

/// The `ipam` section.
#[derive(Debug, Clone, PartialEq)]
pub struct IpamConf {
    /// The file name of the plugin to delegate to; holds no path separator.
    pub plugin_type: String,
    /// The whole section, as it came.
    pub section: Map<String, Value>,
}

/// One attachment of a container to a network, as GC lists them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachment {
    /// The container's id.
    pub container_id: String,
    /// The interface's name in the container.
    pub ifname: String,
}

/// Why a configuration was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfError {
    /// Not a JSON object. Code 6.
    #[error("the network configuration is not a JSON object: {0}")]
    NotJson(String),
    /// No version to serve. Code 1.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// A member is missing or wrong. Code 7.
    #[error("network configuration: {0}")]
    Field(#[from] FieldError),
    /// The prevResult cannot be read. Code 7.
    #[error("network configuration, prevResult: {0}")]
    PrevResult(ResultError),
}

impl NetConf {
    /// Reads a configuration for any verb but DEL.
    ///
    /// # Errors
    /// Names the first member that is missing or wrong, and its value.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfError> {
        read::conf(bytes, read::Faults::Refuse)
    }

    /// Reads a configuration for DEL: only the version, the name and the type must be right.
    /// Every other member that is wrong counts as absent and is listed in
    /// [`ignored`](Self::ignored). An ADD that is refused for such a member is followed by its
    /// DEL, and a DEL that fails is repeated without end and keeps the pod from going away.
    ///
    /// # Errors
    /// Not a JSON object, no served version, no valid name or type.
    pub fn parse_for_del(bytes: &[u8]) -> Result<Self, ConfError> {
        read::conf(bytes, read::Faults::SetAside)
    }

    /// What the plugins before us in the chain made (ADD), or what we answered (CHECK, DEL).
    /// Read when asked for, since a DEL must not fail of it.
    ///
    /// # Errors
    /// Names the member that is wrong, and its value.
    pub fn prev_result(&self) -> Result<Option<CniResult>, ConfError> {
        let Some(value) = &self.prev_result else {
            return Ok(None);
        };
        CniResult::from_value(value.clone())
            .map(Some)
            .map_err(ConfError::PrevResult)
    }

    /// GC: the attachments to keep, from `cni.dev/valid-attachments` or, where only that is
    /// there, `cni.dev/attachments` (the specification's text and libcni disagreed on the
    /// name, so libcni sends both). An empty list, which Go writes as null, says that none is
    /// valid. `None` says that there is no list, and then GC must not remove anything.
    pub fn valid_attachments(&self) -> Option<&[Attachment]> {
        self.attachments.as_deref()
    }

    /// The static addresses asked for: the capability's, or else those of `args.cni`.
    pub fn requested_ips(&self) -> &[RequestedIp] {
        if self.runtime.ips.is_empty() {
            &self.args.ips
        } else {
            &self.runtime.ips
        }
    }

    /// The hardware address asked for: the capability's, or else that of `args.cni`.
    pub fn requested_mac(&self) -> Option<MacAddr6> {
        self.runtime.mac.or(self.args.mac)
    }
}

impl RequestedIp {
    /// Reads `10.0.0.1` and `10.0.0.1/24`.
    pub fn parse(text: &str) -> Option<Self> {
        if let Ok(address) = text.parse() {
            return Some(Self {
                address,
                prefix_len: None,
            });
        }
        let net: IpNet = text.parse().ok()?;
        Some(Self {
            address: net.addr(),
            prefix_len: Some(net.prefix_len()),
        })
    }
}

impl ConfError {
    /// The code a runtime is told.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotJson(_) => ErrorCode::DECODE,
            Self::Version(_) => ErrorCode::INCOMPATIBLE_VERSION,
            Self::Field(_) | Self::PrevResult(_) => ErrorCode::INVALID_CONFIG,
        }
    }
}

impl From<ConfError> for SpecError {
    fn from(error: ConfError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<VersionError> for SpecError {
    fn from(error: VersionError) -> Self {
        Self::new(ErrorCode::INCOMPATIBLE_VERSION, error.to_string())
    }
}

#[cfg(test)]
mod tests;
