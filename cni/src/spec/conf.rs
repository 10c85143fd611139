//! The network configuration, as a runtime passes it on stdin.

mod on_bridge;
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

pub use on_bridge::{OVS_CNI, OnBridge, Vlan, Vlans};
pub use preamble::Preamble;
pub use read::unicast_mac;

use super::{
    CniResult, CniVersion, Dns, ErrorCode, FieldError, ResultError, SpecError, VersionError,
};

/// The configuration of one network for one call (CNI spec, section 1, "Plugin configuration
/// objects", with what section 3, "Deriving execution configuration", adds).
#[derive(Debug, Clone)]
pub struct NetConf {
    /// The version of the answer.
    pub cni_version: CniVersion,
    /// The network's name: `[a-zA-Z0-9][a-zA-Z0-9_.-]*`.
    pub name: String,
    /// The plugin's file name.
    pub plugin_type: String,
    /// What the runtime knows about this container.
    pub runtime: RuntimeConfig,
    /// `args.cni`, the older way for a runtime to pass such values.
    pub args: CniArgs,
    /// The plugin to delegate address management to.
    pub ipam: Option<IpamConf>,
    /// The MTU for the pod's interface in bytes, 68 to 65535; 0 in the configuration is none.
    pub mtu: Option<u32>,
    /// The resolver's configuration to hand out.
    pub dns: Dns,
    /// The agent's socket, if not the default one.
    pub agent_socket: Option<PathBuf>,
    /// `timeoutSeconds`: the plugin's deadline for ADD, CHECK and GC; DEL and STATUS use it only if
    /// it is shorter than their own.
    pub timeout: Option<Duration>,
    /// `portSecurity`: whether a pod may send from its own addresses only; absent: the node
    /// decides.
    pub port_security: Option<bool>,
    /// `quietPods`: whether IPv6 pods skip duplicate address detection of their link-local address
    /// and router solicitations; absent: the node decides.
    pub quiet_pods: Option<bool>,
    /// The `namespace/name` of the NetworkAttachmentDefinition that this configuration comes from.
    pub net_attach_def_name: Option<String>,
    /// `physicalNetworkName` of a configuration with `topology` localnet, if it has one.
    pub physical_network_name: Option<String>,
    /// Whether it is of a network of OVN that is on a physical one: `topology` is localnet.
    pub is_localnet: bool,
    /// `bridge` and ovs-cni's other members: the port is on that bridge of Open vSwitch, and
    /// neither annotations nor the node's subnets give it addresses. None for a network of the
    /// node's own.
    pub on_bridge: Option<OnBridge>,
    /// The capabilities that the configuration requests from the runtime.
    pub capabilities: BTreeMap<String, bool>,
    /// GC: the attachments to keep; see [`NetConf::valid_attachments`].
    pub(super) attachments: Option<Vec<Attachment>>,
    /// Members not listed here, unchanged.
    pub others: Map<String, Value>,
    /// Invalid members that a lenient parse skipped; empty after a strict one.
    pub ignored: Vec<FieldError>,
    /// The configuration, byte for byte, as a delegated plugin gets it.
    pub raw: Box<RawValue>,
    prev_result: Option<Value>,
}

/// `runtimeConfig`: values for the requested capabilities.
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
    /// Other capabilities (`portMappings`, `dns`, `cgroupPath`, …), unchanged. podwire does not act
    /// on them, and so does not report errors in them.
    pub others: Map<String, Value>,
}

/// `args.cni`, by the conventions of containernetworking/cni.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CniArgs {
    /// `ips`: static addresses.
    pub ips: Vec<RequestedIp>,
    /// `mac`: a static hardware address.
    pub mac: Option<MacAddr6>,
    /// `ovnPort`: the logical port of OVN, in a configuration of ovs-cni's.
    pub ovn_port: Option<String>,
    /// The rest (`labels`, …), unchanged.
    pub others: Map<String, Value>,
}

/// A requested address, with or without a prefix length; both occur.
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
    /// The whole section, unchanged.
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
    /// Parses a configuration for any verb but DEL.
    ///
    /// # Errors
    /// Names the first member that is missing or invalid, and its value.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfError> {
        read::conf(bytes, read::Faults::Refuse)
    }

    /// Parses a configuration for DEL: only the version, the name and the type must be valid. Every
    /// other invalid member counts as absent and is listed in [`ignored`](Self::ignored). An ADD
    /// that is refused because of such a member is followed by its DEL, and a failed DEL is
    /// repeated for ever and keeps the pod from being deleted.
    ///
    /// # Errors
    /// No JSON object, no supported version, no valid name or type.
    pub fn parse_for_del(bytes: &[u8]) -> Result<Self, ConfError> {
        read::conf(bytes, read::Faults::SetAside)
    }

    /// The result of the previous plugins in the chain (ADD), or of podwire's own ADD (CHECK, DEL).
    /// Parsed on demand, because a DEL must not fail because of it.
    ///
    /// # Errors
    /// Names the invalid member and its value.
    pub fn prev_result(&self) -> Result<Option<CniResult>, ConfError> {
        let Some(value) = &self.prev_result else {
            return Ok(None);
        };
        CniResult::from_value(value.clone())
            .map(Some)
            .map_err(ConfError::PrevResult)
    }

    /// GC: the attachments to keep, from `cni.dev/valid-attachments` or, if that is absent, from
    /// `cni.dev/attachments` (the specification and libcni disagreed on the name, so libcni sends
    /// both). An empty list, which Go writes as null, means that none is valid. `None` means that
    /// there is no list; then GC must not remove anything.
    pub fn valid_attachments(&self) -> Option<&[Attachment]> {
        self.attachments.as_deref()
    }

    /// The requested static addresses: the capability's, or else those of `args.cni`.
    pub fn requested_ips(&self) -> &[RequestedIp] {
        if self.runtime.ips.is_empty() {
            &self.args.ips
        } else {
            &self.runtime.ips
        }
    }

    /// The requested hardware address: the capability's, or else that of `args.cni`.
    pub fn requested_mac(&self) -> Option<MacAddr6> {
        self.runtime.mac.or(self.args.mac)
    }
}

impl RequestedIp {
    /// Parses `10.0.0.1` and `10.0.0.1/24`.
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
    /// The code for the runtime.
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
