//! The rest of a cluster: a node beside the server, an agent that watches its pods, and the pods.

use serde_json::{Value, json};

use super::ApiServer;
use crate::{AgentOptions, Pod, TestNode};

impl ApiServer {
    /// A node with Open vSwitch, and an API server beside it.
    #[track_caller]
    pub fn beside_a_node() -> (TestNode, ApiServer) {
        let node = TestNode::with_ovs();
        let server = Self::start_in(node.place());
        (node, server)
    }

    /// Options of an agent for numbered pods that watches this server's pods of a node, and whose
    /// ADDs may wait for so many seconds: few for waits that end in vain, many for waits that end
    /// by an event.
    pub fn watched_by(&self, node_name: &str, seconds: &str) -> AgentOptions {
        AgentOptions::for_numbered_pods()
            .watching(self, node_name)
            .with(format!("--add-timeout {seconds}"))
    }
}

impl AgentOptions {
    /// Has the agent watch a server's pods of a node.
    pub fn watching(self, server: &ApiServer, node_name: &str) -> AgentOptions {
        self.with(format!(
            "--k8s-apiserver {} --node-name {node_name}",
            server.url()
        ))
    }
}

/// A pod on a node, with annotations, as [`ApiServer::apply`] takes it.
pub fn pod(node: &str, namespace: &str, name: &str, uid: &str, annotations: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid,
            "annotations": annotations,
            // What the real server keeps of who wrote what: more than all the rest.
            "managedFields": [{
                "manager": "kubelet", "operation": "Update", "apiVersion": "v1",
                "fieldsV1": { "f:metadata": { "f:annotations": { ".": {},
                "f:k8s.ovn.org/pod-networks": {} } } },
            }],
        },
        "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "pause" }] },
        "status": { "phase": "Pending" },
    })
}

/// A node as it joins: with one address of its own.
pub fn node(name: &str, address: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": format!("uid-of-{name}"),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            // As ovnkube-node and `podwire node` write it.
            "annotations": { "k8s.ovn.org/node-chassis-id": name },
        },
        "status": { "addresses": [{ "type": "InternalIP", "address": address }] },
    })
}

/// A ClusterIP service with one TCP port.
pub fn service(namespace: &str, name: &str, address: &str, port: u16) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": name, "namespace": namespace, "uid": format!("uid-of-{name}") },
        "spec": {
            "clusterIP": address,
            "clusterIPs": [address],
            "ports": [{ "name": "main", "protocol": "TCP", "port": port, "targetPort": port }],
        },
    })
}

/// A slice with a service's endpoints, all of them ready, on one TCP port.
pub fn endpoints(namespace: &str, service: &str, addresses: &[&str], port: u16) -> Value {
    let endpoints: Vec<Value> = addresses
        .iter()
        .map(|address| json!({ "addresses": [address], "conditions": { "ready": true } }))
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{service}-1"),
            "namespace": namespace,
            "labels": { "kubernetes.io/service-name": service },
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{ "name": "main", "protocol": "TCP", "port": port }],
    })
}

/// A fixture's pod as the API has it.
pub fn pod_on(node: &str, pod: &Pod<'_>, annotations: Value) -> Value {
    self::pod(node, &pod.namespace, &pod.name, &pod.uid, annotations)
}
