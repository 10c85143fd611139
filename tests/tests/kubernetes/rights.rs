//! What the tokens of podwire's service accounts can do at a real API server: that of `make
//! kubernetes`, or another that `$PODWIRE_KUBERNETES` names. Without one these tests do nothing.

use podwire_tests::TestNode;
use podwire_tests::kubernetes::Kubernetes;
use serde_json::{Value, json};

const ACCOUNTS: [&str; 3] = ["podwire", "podwire-node", "podwire-controller"];
const POD: &str = "/api/v1/namespaces/default/pods/web";
const NODE: &str = "/api/v1/nodes/node-a";

/// An API server with podwire's roles, a node and a pod.
fn cluster(machine: &TestNode) -> Option<Kubernetes> {
    if !Kubernetes::is_built() {
        eprintln!("not run: there is no API server; `make kubernetes` builds one");
        return None;
    }
    machine.run("ip", "address add 192.0.2.1/32 dev lo");
    let kubernetes = Kubernetes::start_at(machine, "192.0.2.1".parse().unwrap());
    kubernetes.apply_files(&[
        "deploy/kubernetes/namespace/namespace.yaml",
        "deploy/controller/rbac.yaml",
        "deploy/node/rbac.yaml",
        "deploy/kubernetes/base/rbac.yaml",
    ]);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}});
    kubernetes.create(&node).unwrap();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"nodeName": "node-a", "containers": [{"name": "web", "image": "harmless"}]},
    });
    kubernetes.create(&pod).unwrap();
    Some(kubernetes)
}

/// What nobody with a stolen token is to change.
fn specs(kubernetes: &Kubernetes) -> [Value; 2] {
    ["pod/web", "node/node-a"].map(|object| {
        let text = kubernetes.kubectl(&["get", object, "-o", "json"], "");
        let object: Value = serde_json::from_str(&text.unwrap()).unwrap();
        object["spec"].clone()
    })
}

#[test]
fn no_stolen_token_changes_an_image_a_taint_or_another_spec() {
    let machine = TestNode::new();
    let Some(kubernetes) = cluster(&machine) else {
        return;
    };
    let before = specs(&kubernetes);
    let image = json!({"spec": {"containers": [{"name": "web", "image": "evil"}]}});
    let taint = json!({"spec": {"taints": [], "unschedulable": true}});
    for account in ACCOUNTS {
        let token = kubernetes.token(account).unwrap();
        let patch = |path: &str, patch: &Value| kubernetes.patch(&token, path, patch).unwrap().0;
        assert_eq!(patch(POD, &image), 403, "{account}");
        assert_eq!(patch(NODE, &taint), 403, "{account}");
        // Whoever may patch a status is told that all is well, and nothing has changed.
        let may = |is_allowed| if is_allowed { 200 } else { 403 };
        let pod_status = patch(&format!("{POD}/status"), &image);
        assert_eq!(pod_status, may(account == "podwire-controller"));
        let node_status = patch(&format!("{NODE}/status"), &taint);
        assert_eq!(node_status, may(account != "podwire"));
    }
    assert_eq!(specs(&kubernetes), before);
}

#[test]
fn a_patch_of_the_status_writes_an_annotation_unless_the_object_is_another_by_then() {
    let machine = TestNode::new();
    let Some(kubernetes) = cluster(&machine) else {
        return;
    };
    let token = kubernetes.token("podwire-controller").unwrap();
    for path in [POD, NODE] {
        let path = format!("{path}/status");
        let annotation = |uid: &Value| {
            let metadata = json!({"uid": uid, "annotations": {"k8s.ovn.org/x": "written"}});
            json!({ "metadata": metadata })
        };
        let other = annotation(&"00000000-0000-0000-0000-000000000000".into());
        let (code, refusal) = kubernetes.patch(&token, &path, &other).unwrap();
        assert!(matches!(code, 409 | 422), "{refusal}");

        let (_, object) = kubernetes.patch(&token, &path, &json!({})).unwrap();
        let own = annotation(&object["metadata"]["uid"]);
        let (code, written) = kubernetes.patch(&token, &path, &own).unwrap();
        assert_eq!(code, 200, "{written}");
        let written = &written["metadata"]["annotations"]["k8s.ovn.org/x"];
        assert_eq!(written, "written");
    }
}
