//! Kubernetes' objects with the fields that are used. Each may be absent or null; all others are
//! ignored, whatever they contain. Names and meanings are those of Kubernetes' own types.

use std::collections::BTreeMap;

use podwire_apiserver::object::{Metadata, Object, or_default};
use serde::Deserialize;

/// Declares types of which every field may be absent or null.
macro_rules! api {
    ($($type:ident { $($(#[$name:meta])? $field:ident: $of:ty,)* })*) => { $(
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        #[allow(missing_docs, reason = "Kubernetes documents them")]
        pub struct $type { $(
            $(#[$name])?
            #[serde(deserialize_with = "or_default")]
            pub $field: $of,
        )* }
    )* };
}

/// Declares kinds of objects.
macro_rules! kinds {
    ($($kind:ident: $api:literal $plural:literal,)*) => { $(
        impl Object for $kind {
            const API: &'static str = $api;
            const KIND: &'static str = stringify!($kind);
            const PLURAL: &'static str = $plural;

            fn metadata(&self) -> &Metadata {
                &self.metadata
            }
        }
    )* };
}

kinds! {
    Node: "v1" "nodes",
    Pod: "v1" "pods",
    Service: "v1" "services",
    EndpointSlice: "discovery.k8s.io/v1" "endpointslices",
    ConfigMap: "v1" "configmaps",
    Lease: "coordination.k8s.io/v1" "leases",
}

api! {
    Node {
        metadata: Metadata,
        spec: NodeSpec,
        status: NodeStatus,
    }
    NodeSpec {
        #[serde(rename = "podCIDR")] pod_cidr: String,
        #[serde(rename = "podCIDRs")] pod_cidrs: Vec<String>,
    }
    NodeStatus {
        addresses: Vec<NodeAddress>,
        conditions: Vec<NodeCondition>,
    }
    NodeAddress {
        r#type: String,
        address: String,
    }
    NodeCondition {
        r#type: String,
        status: String,
    }

    Pod {
        metadata: Metadata,
        spec: PodSpec,
        status: PodStatus,
    }
    PodSpec {
        node_name: String,
        host_network: bool,
    }
    PodStatus {
        phase: String,
        #[serde(rename = "podIP")] pod_ip: String,
        #[serde(rename = "podIPs")] pod_ips: Vec<PodIp>,
    }
    PodIp {
        ip: String,
    }

    Service {
        metadata: Metadata,
        spec: ServiceSpec,
        status: ServiceStatus,
    }
    ServiceSpec {
        #[serde(rename = "clusterIP")] cluster_ip: String,
        #[serde(rename = "clusterIPs")] cluster_ips: Vec<String>,
        #[serde(rename = "externalIPs")] external_ips: Vec<String>,
        external_traffic_policy: String,
        health_check_node_port: Option<i64>,
        internal_traffic_policy: String,
        load_balancer_source_ranges: Vec<String>,
        ports: Vec<ServicePort>,
        publish_not_ready_addresses: bool,
        session_affinity: String,
        session_affinity_config: SessionAffinityConfig,
    }
    ServicePort {
        name: String,
        node_port: Option<i64>,
        port: Option<i64>,
        protocol: String,
    }
    SessionAffinityConfig {
        #[serde(rename = "clientIP")] client_ip: ClientIpConfig,
    }
    ClientIpConfig {
        timeout_seconds: Option<i64>,
    }
    ServiceStatus {
        load_balancer: LoadBalancerStatus,
    }
    LoadBalancerStatus {
        ingress: Vec<LoadBalancerIngress>,
    }
    LoadBalancerIngress {
        ip: String,
        ip_mode: String,
    }

    EndpointSlice {
        metadata: Metadata,
        endpoints: Vec<Endpoint>,
        ports: Vec<EndpointPort>,
    }
    Endpoint {
        addresses: Vec<String>,
        conditions: EndpointConditions,
        node_name: String,
        topology: BTreeMap<String, String>,
    }
    EndpointConditions {
        ready: Option<bool>,
        serving: Option<bool>,
    }
    EndpointPort {
        name: String,
        port: Option<i64>,
        protocol: String,
    }

    ConfigMap {
        metadata: Metadata,
    }
    Lease {
        metadata: Metadata,
        spec: LeaseSpec,
    }
    LeaseSpec {
        holder_identity: String,
        lease_duration_seconds: i64,
        renew_time: String,
    }
}

impl Endpoint {
    /// The name of its node. v1beta1 had a field for it only from Kubernetes 1.20 on, behind a
    /// feature gate.
    pub fn node(&self) -> Option<&str> {
        let topology = self.topology.get("kubernetes.io/hostname");
        let known = Some(&self.node_name).filter(|name| !name.is_empty());
        known.or(topology).map(String::as_str)
    }
}

impl NodeSpec {
    /// `podCIDRs`, or the older `podCIDR`.
    pub fn all_pod_cidrs(&self) -> impl Iterator<Item = &String> {
        let one = Some(&self.pod_cidr).filter(|it| self.pod_cidrs.is_empty() && !it.is_empty());
        self.pod_cidrs.iter().chain(one)
    }
}

impl NodeStatus {
    /// The addresses of type InternalIP, in the form that they have.
    pub fn internal_ips(&self) -> impl Iterator<Item = &String> {
        let internal = self.addresses.iter().filter(|it| it.r#type == "InternalIP");
        internal.map(|it| &it.address)
    }
}

impl ServiceSpec {
    /// `clusterIPs`, or the older `clusterIP`.
    pub fn all_cluster_ips(&self) -> impl Iterator<Item = &String> {
        let one = Some(&self.cluster_ip).filter(|_| self.cluster_ips.is_empty());
        self.cluster_ips.iter().chain(one)
    }
}
