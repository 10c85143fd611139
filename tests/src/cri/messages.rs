//! Messages of `runtime.v1` (k8s.io/cri-api, pkg/apis/runtime/v1/api.proto); the numbers are the
//! fields'.

use std::collections::HashMap;

use prost::{Enumeration, Message};

/// What a pod's sandbox is to be.
#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxConfig {
    /// Whose sandbox.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<PodSandboxMetadata>,
    /// The pod's host name.
    #[prost(string, tag = "2")]
    pub hostname: String,
    /// The name servers that the containers are to use.
    #[prost(message, optional, tag = "4")]
    pub dns_config: Option<DnsConfig>,
    /// Ports of the node that lead into the pod.
    #[prost(message, repeated, tag = "5")]
    pub port_mappings: Vec<PortMapping>,
    /// The pod's annotations.
    #[prost(map = "string, string", tag = "7")]
    pub annotations: HashMap<String, String>,
    /// What only Linux has.
    #[prost(message, optional, tag = "8")]
    pub linux: Option<LinuxPodSandboxConfig>,
}

/// By what kubelet knows a sandbox.
#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxMetadata {
    /// The pod's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The pod's uid.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// The pod's namespace.
    #[prost(string, tag = "3")]
    pub namespace: String,
    /// Counts the sandboxes of one pod.
    #[prost(uint32, tag = "4")]
    pub attempt: u32,
}

/// Of a sandbox' resolv.conf.
#[derive(Clone, PartialEq, Message)]
pub struct DnsConfig {
    /// Addresses of name servers.
    #[prost(string, repeated, tag = "1")]
    pub servers: Vec<String>,
}

/// A port of the node that leads into the pod.
#[derive(Clone, PartialEq, Message)]
pub struct PortMapping {
    /// TCP unless told.
    #[prost(enumeration = "Protocol", tag = "1")]
    pub protocol: i32,
    /// In the pod.
    #[prost(int32, tag = "2")]
    pub container_port: i32,
    /// On the node.
    #[prost(int32, tag = "3")]
    pub host_port: i32,
}

/// Of a port mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Protocol {
    /// TCP.
    Tcp = 0,
    /// UDP.
    Udp = 1,
}

/// What only Linux has.
#[derive(Clone, PartialEq, Message)]
pub struct LinuxPodSandboxConfig {
    /// The cgroup below which the sandbox has its own.
    #[prost(string, tag = "1")]
    pub cgroup_parent: String,
}

/// What the runtime knows of a sandbox.
#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxStatus {
    /// The sandbox, and the container id that CNI plugins see.
    #[prost(string, tag = "1")]
    pub id: String,
    /// 0 is ready, 1 is not.
    #[prost(int32, tag = "3")]
    pub state: i32,
    /// Its addresses.
    #[prost(message, optional, tag = "5")]
    pub network: Option<PodSandboxNetworkStatus>,
}

impl PodSandboxStatus {
    /// All addresses of the sandbox, the first first.
    pub fn addresses(&self) -> Vec<&str> {
        let network = self.network.iter();
        network
            .flat_map(|it| {
                std::iter::once(it.ip.as_str())
                    .chain(it.additional_ips.iter().map(|further| further.ip.as_str()))
            })
            .filter(|address| !address.is_empty())
            .collect()
    }
}

/// A sandbox' addresses.
#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxNetworkStatus {
    /// The first.
    #[prost(string, tag = "1")]
    pub ip: String,
    /// The others.
    #[prost(message, repeated, tag = "2")]
    pub additional_ips: Vec<PodIp>,
}

/// An address.
#[derive(Clone, PartialEq, Message)]
pub struct PodIp {
    /// Without a prefix length.
    #[prost(string, tag = "1")]
    pub ip: String,
}

/// One thing that the runtime says of itself.
#[derive(Clone, PartialEq, Message)]
pub struct RuntimeCondition {
    /// `RuntimeReady` or `NetworkReady`.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// Whether it is.
    #[prost(bool, tag = "2")]
    pub status: bool,
    /// Why not, in a word.
    #[prost(string, tag = "3")]
    pub reason: String,
    /// Why not.
    #[prost(string, tag = "4")]
    pub message: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RunPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) config: Option<PodSandboxConfig>,
}

/// The request of several calls, and the answer of one.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PodSandboxId {
    #[prost(string, tag = "1")]
    pub(super) pod_sandbox_id: String,
}

impl PodSandboxId {
    pub(super) fn of(sandbox: &str) -> PodSandboxId {
        PodSandboxId {
            pod_sandbox_id: sandbox.to_owned(),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodSandboxStatusRequest {
    #[prost(string, tag = "1")]
    pub(super) pod_sandbox_id: String,
    #[prost(bool, tag = "2")]
    pub(super) verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodSandboxStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<PodSandboxStatus>,
    #[prost(map = "string, string", tag = "2")]
    pub(super) info: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusRequest {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(message, repeated, tag = "1")]
    pub(super) conditions: Vec<RuntimeCondition>,
}
