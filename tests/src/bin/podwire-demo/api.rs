//! The Kubernetes API of the demo's cluster: a real API server where there is one, else the tests'
//! stand-in.

use std::net::IpAddr;

use podwire_tests::apiserver::ApiServer;
use podwire_tests::controller::Controller;
use podwire_tests::kubernetes::Kubernetes;
use podwire_tests::ovn::Central;
use podwire_tests::{AgentOptions, Failure, TestNode};
use serde_json::Value;

use crate::stage::Stage;

/// What podwire may do, as a cluster's administrator applies it.
const MANIFESTS: [&str; 4] = [
    "deploy/kubernetes/namespace/namespace.yaml",
    "deploy/controller/rbac.yaml",
    "deploy/node/rbac.yaml",
    "deploy/kubernetes/base/rbac.yaml",
];

/// What has the objects.
pub(crate) enum Api {
    /// etcd and kube-apiserver.
    Real(Kubernetes),
    /// A server of the tests.
    StandIn(ApiServer),
}

impl Api {
    /// Starts it on the central machine, at an address that all machines reach.
    pub(crate) fn start(stage: &Stage, central: &Central, at: IpAddr) -> Result<Self, ()> {
        let machine = central.machine();
        if !Kubernetes::is_built() {
            let title = "a stand-in for the Kubernetes API; `make kubernetes` for a real one";
            return stage.step(title, || {
                let server = ApiServer::start_at(machine.place(), at);
                let remark = format!("at {}", server.url());
                Ok((Self::StandIn(server), remark))
            });
        }
        stage.step(
            "Kubernetes: etcd, kube-apiserver, podwire's RBAC manifests",
            || {
                let kubernetes = Kubernetes::start_at(machine, at);
                kubernetes.apply_files(&MANIFESTS);
                kubernetes.kubectl(&["create", "namespace", "tests"], "")?;
                let remark = kubernetes.version();
                Ok((Self::Real(kubernetes), remark))
            },
        )
    }

    /// Starts a podwire-controller.
    pub(crate) fn controller(&self, central: &Central, identity: &str) -> Controller {
        match self {
            Self::StandIn(server) => Controller::start(central, server, identity, ""),
            Self::Real(kubernetes) => {
                let access = kubernetes.access(central.machine(), "podwire-controller");
                let flags = "--lease-namespace podwire-system";
                Controller::start_by(central, identity, flags, &access)
            }
        }
    }

    /// The flags by which `podwire node run` finds it.
    pub(crate) fn node_flags(&self, node: &TestNode) -> [String; 2] {
        self.flags(node, "podwire-node")
    }

    /// Has an agent watch the pods of its node.
    pub(crate) fn watched(&self, node: &TestNode, name: &str, by: AgentOptions) -> AgentOptions {
        by.with(self.flags(node, "podwire"))
            .with(format!("--node-name {name}"))
    }

    fn flags(&self, node: &TestNode, account: &str) -> [String; 2] {
        match self {
            Self::StandIn(server) => ["--k8s-apiserver".to_owned(), server.url()],
            Self::Real(kubernetes) => ["--kubeconfig".to_owned(), kubernetes.access(node, account)],
        }
    }

    /// The variable by which a person's tools find it.
    pub(crate) fn environment(&self, node: &TestNode) -> (&'static str, String) {
        match self {
            Self::StandIn(server) => ("PODWIRE_K8S_APISERVER", server.url()),
            Self::Real(kubernetes) => ("KUBECONFIG", kubernetes.access(node, "podwire-controller")),
        }
    }

    /// Creates an object, and gives what became of it.
    pub(crate) fn create(&self, mut object: Value) -> Result<Value, Failure> {
        match self {
            Self::StandIn(server) => {
                server.apply(object.clone());
                Ok(object)
            }
            Self::Real(kubernetes) => {
                // Kubernetes before 1.21 has the same in v1beta1.
                let is_slice = object["kind"] == "EndpointSlice";
                if is_slice && !kubernetes.has("discovery.k8s.io/v1") {
                    object["apiVersion"] = "discovery.k8s.io/v1beta1".into();
                }
                kubernetes.create(&object)
            }
        }
    }

    /// Waits until an object has an annotation, and gives its entry of the default network.
    pub(crate) fn await_annotation(
        &self,
        object: (&str, &str, &str),
        name: &str,
    ) -> Result<Value, Failure> {
        let object = match self {
            Self::StandIn(server) => {
                server.await_object(object, |it| !it["metadata"]["annotations"][name].is_null())
            }
            Self::Real(kubernetes) => kubernetes.await_annotation(object, name)?,
        };
        let text = object["metadata"]["annotations"][name].as_str();
        let annotation: Value = serde_json::from_str(text.unwrap_or_default()).unwrap_or_default();
        Ok(annotation["default"].clone())
    }

    /// Deletes an object.
    pub(crate) fn delete(&self, kind: &str, namespace: &str, name: &str) -> Result<(), Failure> {
        match self {
            Self::StandIn(server) => server.delete_object(kind, namespace, name),
            Self::Real(kubernetes) => kubernetes.delete(kind, namespace, name)?,
        }
        Ok(())
    }
}
