//! The rest of a cluster: a node beside the server, an agent that watches its pods, and the pods.

use serde_json::{Value, json};

use super::ApiServer;
use crate::failure::Failure;
use crate::{AgentOptions, Pod, TestNode};

impl ApiServer {
    /// A node with Open vSwitch, and an API server beside it.
    pub fn beside_a_node() -> Result<(TestNode, ApiServer), Failure> {
        let node = TestNode::with_ovs()?;
        let server = Self::start_in(node.place())?;
        Ok((node, server))
    }

    /// Options of an agent for numbered pods that watches this server's pods of a node, and whose
    /// ADDs may wait for so many seconds: few for waits that end in vain, many for waits that end
    /// by an event.
    pub fn watched_by(&self, node_name: &str, seconds: &str) -> AgentOptions {
        AgentOptions::for_numbered_pods()
            .watching(self, node_name)
            .with(["--add-timeout", seconds])
    }
}

impl AgentOptions {
    /// Has the agent watch a server's pods of a node.
    pub fn watching(self, server: &ApiServer, node_name: &str) -> AgentOptions {
        self.with(["--k8s-apiserver", &server.url(), "--node-name", node_name])
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
                "fieldsV1": { "f:metadata": { "f:annotations": { ".": {}, "f:k8s.ovn.org/pod-networks": {} } } },
            }],
        },
        "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "pause" }] },
        "status": { "phase": "Pending" },
    })
}

/// A fixture's pod as the API has it.
pub fn pod_on(node: &str, pod: &Pod<'_>, annotations: Value) -> Value {
    self::pod(node, &pod.namespace, &pod.name, &pod.uid, annotations)
}
