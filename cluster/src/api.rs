//! Kubernetes' objects with the fields that are used. Each may be absent or null; all others are
//! ignored, whatever they contain. Names and meanings are those of Kubernetes' own types.

use std::collections::BTreeMap;
use std::ops::Deref;

use podwire_apiserver::object::{Metadata, Object, or_default};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer};
use serde_json::Value;

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
    Namespace: "v1" "namespaces",
    NetworkPolicy: "networking.k8s.io/v1" "networkpolicies",
    ClusterNetworkPolicy: "policy.networking.k8s.io/v1alpha2" "clusternetworkpolicies",
    AdminNetworkPolicy: "policy.networking.k8s.io/v1alpha1" "adminnetworkpolicies",
    BaselineAdminNetworkPolicy:
        "policy.networking.k8s.io/v1alpha1" "baselineadminnetworkpolicies",
    NetworkAttachmentDefinition:
        "k8s.cni.cncf.io/v1" "network-attachment-definitions",
    MultiNetworkPolicy: "k8s.cni.cncf.io/v1beta1" "multi-networkpolicies",
    UserDefinedNetwork: "k8s.ovn.org/v1" "userdefinednetworks",
    ClusterUserDefinedNetwork: "k8s.ovn.org/v1" "clusteruserdefinednetworks",
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
        allocatable: BTreeMap<String, String>,
        capacity: BTreeMap<String, String>,
        conditions: Vec<NodeCondition>,
    }
    NodeAddress {
        r#type: String,
        address: String,
    }
    NodeCondition {
        r#type: String,
        status: String,
        reason: String,
        message: String,
    }

    Pod {
        metadata: Metadata,
        spec: PodSpec,
        status: PodStatus,
    }
    PodSpec {
        node_name: String,
        host_network: bool,
        containers: Vec<Container>,
        init_containers: Vec<Container>,
    }
    Container {
        ports: Vec<ContainerPort>,
        restart_policy: String,
    }
    ContainerPort {
        name: String,
        container_port: Option<i64>,
        protocol: String,
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

    Namespace {
        metadata: OwnedMetadata,
    }
    NetworkPolicy {
        metadata: Metadata,
        spec: Part<NetworkPolicySpec>,
    }
    MultiNetworkPolicy {
        metadata: Metadata,
        spec: Part<NetworkPolicySpec>,
    }
    NetworkPolicySpec {
        pod_selector: Part<LabelSelector>,
        policy_types: Part<Vec<String>>,
        ingress: Part<Vec<Part<IngressRule>>>,
        egress: Part<Vec<Part<EgressRule>>>,
    }
    IngressRule {
        from: Vec<Part<Peer>>,
        ports: Vec<Part<PolicyPort>>,
    }
    EgressRule {
        to: Vec<Part<Peer>>,
        ports: Vec<Part<PolicyPort>>,
    }
    Peer {
        pod_selector: Option<LabelSelector>,
        namespace_selector: Option<LabelSelector>,
        ip_block: Option<IpBlock>,
    }
    IpBlock {
        cidr: String,
        except: Vec<String>,
    }
    PolicyPort {
        protocol: String,
        port: Option<IntOrString>,
        end_port: Option<i64>,
    }
    ClusterNetworkPolicy {
        metadata: Metadata,
        spec: Part<TieredPolicySpec>,
        status: Part<ConditionsStatus>,
    }
    AdminNetworkPolicy {
        metadata: Metadata,
        spec: Part<TieredPolicySpec>,
        status: Part<ConditionsStatus>,
    }
    BaselineAdminNetworkPolicy {
        metadata: Metadata,
        spec: Part<TieredPolicySpec>,
        status: Part<ConditionsStatus>,
    }
    TieredPolicySpec {
        tier: String,
        priority: Option<i64>,
        subject: TieredSubject,
        ingress: Vec<Part<TieredRule>>,
        egress: Vec<Part<TieredRule>>,
    }
    TieredSubject {
        namespaces: Option<LabelSelector>,
        pods: Option<NamespacedPod>,
    }
    NamespacedPod {
        namespace_selector: LabelSelector,
        pod_selector: LabelSelector,
    }
    TieredRule {
        name: String,
        action: String,
        from: Part<Vec<TieredPeer>>,
        to: Part<Vec<TieredPeer>>,
        protocols: Part<Vec<TieredProtocol>>,
        ports: Part<Vec<TieredPort>>,
    }
    TieredPeer {
        namespaces: Option<LabelSelector>,
        pods: Option<NamespacedPod>,
        networks: Vec<String>,
    }
    TieredProtocol {
        tcp: Option<TieredTransport>,
        udp: Option<TieredTransport>,
        sctp: Option<TieredTransport>,
        destination_named_port: String,
    }
    TieredTransport {
        destination_port: Option<TieredDestination>,
    }
    TieredDestination {
        number: Option<i64>,
        range: Option<TieredRange>,
    }
    TieredPort {
        port_number: Option<TieredNumber>,
        named_port: Option<String>,
        port_range: Option<TieredRange>,
    }
    TieredNumber {
        protocol: String,
        port: i64,
    }
    TieredRange {
        protocol: String,
        start: i64,
        end: i64,
    }
    ConditionsStatus {
        conditions: Vec<Value>,
    }
    LabelSelector {
        match_labels: BTreeMap<String, String>,
        match_expressions: Vec<LabelRequirement>,
    }
    LabelRequirement {
        key: String,
        operator: String,
        values: Vec<String>,
    }

    NetworkAttachmentDefinition {
        metadata: OwnedMetadata,
        spec: Part<NetworkAttachmentDefinitionSpec>,
    }
    NetworkAttachmentDefinitionSpec {
        config: String,
    }
    UserDefinedNetwork {
        metadata: OwnedMetadata,
        spec: Part<UserNetworkSpec>,
        status: Part<ConditionsStatus>,
    }
    ClusterUserDefinedNetwork {
        metadata: OwnedMetadata,
        spec: Part<ClusterUserNetworkSpec>,
        status: Part<ConditionsStatus>,
    }
    ClusterUserNetworkSpec {
        namespace_selector: Option<LabelSelector>,
        network: UserNetworkSpec,
        uplinks: Vec<String>,
    }
    UserNetworkSpec {
        topology: String,
        layer2: Option<UserNetworkConfig>,
        layer3: Option<UserNetworkLayer3>,
        localnet: Option<UserNetworkConfig>,
        transport: String,
    }
    UserNetworkConfig {
        role: String,
        mtu: Option<i64>,
        subnets: Vec<String>,
        exclude_subnets: Vec<String>,
        reserved_subnets: Vec<String>,
        infrastructure_subnets: Vec<String>,
        join_subnets: Vec<String>,
        #[serde(rename = "defaultGatewayIPs")] default_gateway_ips: Vec<String>,
        ipam: UserNetworkIpam,
        physical_network_name: String,
        vlan: Option<UserNetworkVlan>,
    }
    UserNetworkLayer3 {
        role: String,
        mtu: Option<i64>,
        subnets: Vec<UserNetworkSubnet>,
        join_subnets: Vec<String>,
    }
    UserNetworkSubnet {
        cidr: String,
        host_subnet: Option<i64>,
    }
    UserNetworkIpam {
        mode: String,
        lifecycle: String,
    }
    UserNetworkVlan {
        mode: String,
        access: UserNetworkAccessVlan,
    }
    UserNetworkAccessVlan {
        id: Option<i64>,
    }
    OwnerReference {
        api_version: String,
        kind: String,
        name: String,
        uid: String,
        controller: bool,
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

/// The metadata of an object, with whom it belongs to and what keeps it. Other kinds' are not read
/// for that.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "Kubernetes documents them")]
pub struct OwnedMetadata {
    #[serde(flatten)]
    pub metadata: Metadata,
    /// Empty unless the object is being deleted.
    #[serde(deserialize_with = "or_default")]
    pub deletion_timestamp: String,
    #[serde(deserialize_with = "or_default")]
    pub finalizers: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub owner_references: Vec<OwnerReference>,
}

impl OwnedMetadata {
    /// Whether the object is being deleted: it goes when its finalizers are gone.
    pub fn is_deleted(&self) -> bool {
        !self.deletion_timestamp.is_empty()
    }
}

impl Deref for OwnedMetadata {
    type Target = Metadata;

    fn deref(&self) -> &Metadata {
        &self.metadata
    }
}

/// A port: its number or its name.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
#[allow(missing_docs, reason = "Kubernetes documents them")]
pub enum IntOrString {
    Int(i64),
    String(String),
}

/// A part of an object that does not make the whole object unreadable: what is in the rest counts.
#[derive(Clone, Debug)]
pub enum Part<T> {
    /// It has the type that it should have.
    Read(T),
    /// It has another one; what is wrong.
    Unreadable(String),
}

impl<T: Default> Default for Part<T> {
    fn default() -> Self {
        Self::Read(T::default())
    }
}

impl Part<ConditionsStatus> {
    /// The conditions; none if they can't be read.
    pub fn conditions(&self) -> Vec<Value> {
        match self {
            Self::Read(status) => status.conditions.clone(),
            Self::Unreadable(_) => Vec::new(),
        }
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Part<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(match serde_json::from_value(value) {
            Ok(read) => Self::Read(read),
            Err(error) => Self::Unreadable(error.to_string()),
        })
    }
}

impl PodSpec {
    /// The ports of the containers that run as long as the pod: sidecars are init containers that
    /// are started again.
    pub fn ports(&self) -> impl Iterator<Item = &ContainerPort> {
        let is_sidecar = |container: &&Container| container.restart_policy == "Always";
        let sidecars = self.init_containers.iter().filter(is_sidecar);
        self.containers
            .iter()
            .chain(sidecars)
            .flat_map(|it| &it.ports)
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
