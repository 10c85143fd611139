//! What a test of connectivity makes: a namespace with pods on every node, a service, a policy.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::kubectl::objects::waiting;

/// The port of pods.
pub(super) const PORT: u16 = 8080;
/// The port of pods on their node's network, where others may have 8080.
pub(super) const HOST_PORT: u16 = 18_080;
/// The port of the service.
pub(super) const SERVICE_PORT: u16 = 80;
/// The name of the service, and of its account.
pub(super) const NAME: &str = "connectivity";
/// The value of the label `app.kubernetes.io/name` of every object.
pub(super) const LABEL: &str = "podwire-connectivity";
/// The label by which the service and the policy select.
const ROLE: &str = "podwire.io/role";
/// The container's name.
pub(super) const CONTAINER: &str = "end";

/// A pod that answers and tries.
#[derive(Debug, Clone)]
pub(super) struct End {
    pub(super) name: String,
    pub(super) node: String,
    pub(super) role: Role,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A pod of the service. The policy lets the first one pass.
    Pod { is_friend: bool },
    /// On its node's network.
    Host,
    /// Whom the policy refuses.
    Stranger,
    /// Whom the policy isolates.
    Guarded,
}

/// The ends on these nodes.
pub(super) fn ends(nodes: &[String], has_policies: bool) -> Vec<End> {
    let end = |name: String, node: &String, role| End {
        name,
        node: node.clone(),
        role,
    };
    let mut ends = Vec::new();
    for (number, node) in nodes.iter().enumerate() {
        let is_friend = number == 0;
        ends.push(end(format!("pod-{number}"), node, Role::Pod { is_friend }));
        ends.push(end(format!("node-{number}"), node, Role::Host));
    }
    if let (Some(first), Some(last)) = (nodes.first(), nodes.last()) {
        ends.push(end("stranger".to_owned(), first, Role::Stranger));
        if has_policies {
            ends.push(end("guarded".to_owned(), last, Role::Guarded));
        }
    }
    ends
}

impl End {
    pub(super) fn port(&self) -> u16 {
        match self.role {
            Role::Host => HOST_PORT,
            _ => PORT,
        }
    }

    pub(super) fn object(&self, image: &str) -> Value {
        let role = match self.role {
            Role::Pod { is_friend: true } => "friend",
            Role::Pod { is_friend: false } => "pod",
            Role::Host => "node",
            Role::Stranger => "stranger",
            Role::Guarded => "guarded",
        };
        let serves = matches!(self.role, Role::Pod { .. });
        let port = self.port().to_string();
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": self.name, "labels": {
                "app.kubernetes.io/name": LABEL,
                ROLE: role,
                "podwire.io/serves": serves.to_string(),
            } },
            "spec": {
                // Not by the scheduler, which may find no place on a node that is to be tested.
                "nodeName": self.node,
                "hostNetwork": self.role == Role::Host,
                "serviceAccountName": NAME,
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 1,
                "restartPolicy": "Never",
                "tolerations": [{ "operator": "Exists" }],
                "containers": [{
                    "name": CONTAINER,
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["/usr/bin/podwire", "connectivity", "serve", "--port", port],
                    "resources": {
                        "requests": { "cpu": "10m", "memory": "16Mi" },
                        "limits": { "memory": "64Mi" },
                    },
                    "securityContext": {
                        "runAsNonRoot": true,
                        "runAsUser": 65532,
                        "readOnlyRootFilesystem": true,
                        "allowPrivilegeEscalation": false,
                        "capabilities": { "drop": ["ALL"] },
                        "seccompProfile": { "type": "RuntimeDefault" },
                    },
                }],
            },
        })
    }
}

pub(super) fn namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": { "name": name, "labels": {
            "app.kubernetes.io/name": LABEL,
            // For the pods on their nodes' networks.
            "pod-security.kubernetes.io/enforce": "privileged",
        } },
    })
}

pub(super) fn account() -> Value {
    json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": NAME } })
}

pub(super) fn service() -> Value {
    let ports = ["TCP", "UDP"].map(|protocol| {
        json!({ "name": protocol.to_lowercase(), "protocol": protocol, "port": SERVICE_PORT,
                "targetPort": PORT })
    });
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": NAME, "labels": { "app.kubernetes.io/name": LABEL } },
        "spec": {
            "type": "NodePort",
            "ipFamilyPolicy": "PreferDualStack",
            "selector": { "podwire.io/serves": "true" },
            "ports": ports,
        },
    })
}

pub(super) fn policy() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "name": NAME, "labels": { "app.kubernetes.io/name": LABEL } },
        "spec": {
            "podSelector": { "matchLabels": { ROLE: "guarded" } },
            "policyTypes": ["Ingress"],
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { ROLE: "friend" } } }] }],
        },
    })
}

/// Its addresses, once it runs.
///
/// # Errors
/// It never will, in words.
pub(super) fn addresses(pod: &Pod) -> Result<Vec<std::net::IpAddr>, String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let Some(status) = &pod.status else {
        return Ok(Vec::new());
    };
    let all = status.pod_ips.iter().flatten().map(|it| &it.ip);
    let addresses = all.filter_map(|ip| ip.parse().ok()).collect();
    match status.phase.as_deref() {
        Some("Running") => Ok(addresses),
        Some(phase @ ("Failed" | "Succeeded")) => {
            let why = status.message.as_deref().or(status.reason.as_deref());
            Err(format!(
                "pod {name} is {phase}: {}",
                why.unwrap_or("its program ended")
            ))
        }
        _ => Ok(Vec::new()),
    }
}

/// Why a pod does not run yet, in words.
pub(super) fn waits(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    waiting(&status).unwrap_or_else(|| {
        let phase = status.phase.as_deref();
        format!("it is {}", phase.unwrap_or("not seen by a kubelet"))
    })
}
