//! The kustomizations at a real API server: that of `make kubernetes`, or another that
//! `$PODWIRE_KUBERNETES` names. Without one this does nothing.

use podwire_tests::TestNode;
use podwire_tests::kubernetes::Kubernetes;
use serde_json::{Value, json};

use super::sets::sets;

/// The object as a server of this release has it, or nothing if it has no such kind.
pub(super) fn for_release(kubernetes: &Kubernetes, mut object: Value) -> Option<Value> {
    let version = object["apiVersion"].as_str().unwrap().to_owned();
    // `make test-admission` tries these, at a release that has them.
    if object["kind"]
        .as_str()
        .unwrap()
        .starts_with("ValidatingAdmissionPolicy")
    {
        return None;
    }
    // Kubernetes 1.22 has it.
    let rolling = object.pointer_mut("/spec/updateStrategy/rollingUpdate");
    if let Some(rolling) =
        rolling.filter(|it| !it["maxSurge"].is_null() && !kubernetes.has("policy/v1"))
    {
        *rolling = json!({"maxUnavailable": 1});
    }
    if version == "v1" || kubernetes.has(&version) {
        return Some(object);
    }
    // Kubernetes 1.21 has it in v1.
    (version == "policy/v1").then(|| {
        object["apiVersion"] = "policy/v1beta1".into();
        object
    })
}

#[test]
fn a_real_api_server_takes_every_set() {
    if !Kubernetes::is_built() {
        eprintln!("not run: there is no API server; `make kubernetes` builds one");
        return;
    }
    let machine = TestNode::new();
    machine.run("ip", "address add 192.0.2.1/32 dev lo");
    let kubernetes = Kubernetes::start_at(&machine, "192.0.2.1".parse().unwrap());
    kubernetes.apply_files(&["deploy/kubernetes/namespace/namespace.yaml"]);
    for (set, objects) in sets() {
        let objects = objects.into_iter();
        let items: Vec<_> = objects
            .filter_map(|it| for_release(&kubernetes, it))
            .collect();
        if items.is_empty() {
            continue;
        }
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        let apply = ["apply", "--dry-run=server", "--validate=true", "-f", "-"];
        let told = kubernetes.kubectl(&apply, &list.to_string());
        let told = told.unwrap_or_else(|error| panic!("{set}: {error}"));
        assert_eq!(told.lines().count(), items.len(), "{set}: {told}");
    }
}
