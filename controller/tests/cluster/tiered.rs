//! Policies of the whole cluster are refused, and say so; NetworkPolicies are not touched by that.

use podwire_controller::cluster::tiered::{CONDITION, Refusal};
use podwire_controller::want::policy::isolated_group;
use podwire_tests::apiserver::ApiServer;
use podwire_tests::ovn::Central;
use serde_json::{Value, json};

use crate::fixture::{PORTS, Running, await_row, populate, populated};

const KINDS: [(&str, &str); 3] = [
    ("ClusterNetworkPolicy", "v1alpha2"),
    ("AdminNetworkPolicy", "v1alpha1"),
    ("BaselineAdminNetworkPolicy", "v1alpha1"),
];

/// One of each kind.
pub(crate) fn apply_all(server: &ApiServer) {
    for (kind, version) in KINDS {
        server.apply(json!({
            "apiVersion": format!("policy.networking.k8s.io/{version}"), "kind": kind,
            "metadata": { "name": "default", "uid": format!("uid-of-{kind}") },
            "spec": { "subject": { "namespaces": {} }, "ingress": [{ "action": "Deny" }] },
            "status": { "conditions": [{ "type": "Other", "status": "True" }] },
        }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_of_the_cluster_is_refused_by_event_and_condition_and_others_go_on() {
    let (central, server, mut controller) = populated().await;
    apply_all(&server);
    server.apply(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": "default", "name": "deny", "uid": "uid-of-deny" },
        "spec": { "podSelector": {} },
    }));
    let own = |object: &Value| {
        let conditions = object["status"]["conditions"].as_array()?;
        conditions
            .iter()
            .find(|it| it["type"] == CONDITION)
            .cloned()
    };
    let mut reasons = Vec::new();
    for (kind, _) in KINDS {
        let object = server.await_object((kind, "", "default"), |it| own(it).is_some());
        let condition = own(&object).unwrap();
        assert_eq!(condition["status"], "False");
        assert!(condition["lastTransitionTime"].is_string());
        // Those of others stay.
        assert_eq!(object["status"]["conditions"][0]["type"], "Other");
        reasons.push(condition["reason"].clone());
    }
    let group = isolated_group(
        "default",
        podwire_controller::cluster::policy::Direction::Ingress,
    );
    await_row(&central, "Port_Group", &group, true);
    controller.idle().await;
    let acls = central.northbound().rows("ACL").unwrap();
    assert!(!acls.is_empty());
    // Debian 12's OVN has no tiers.
    let wanted = Refusal::of(acls.iter().any(|acl| acl.contains_key("tier")));
    assert!(reasons.iter().all(|it| *it == wanted.reason), "{reasons:?}");
    for (kind, _) in KINDS {
        let events = server.events();
        let mut own = events
            .iter()
            .filter(|it| it["regarding"]["kind"] == kind || it["involvedObject"]["kind"] == kind);
        let event = own.next().unwrap();
        assert_eq!(event["reason"], wanted.reason, "{event}");
        assert!(own.next().is_none(), "told twice");
    }
    assert!(Refusal::of(false).message.contains("OVN 23.06"));
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_without_policies_of_the_cluster_is_served() {
    let (central, server) = (Central::start(), ApiServer::start());
    server.lacks("policy.networking.k8s.io");
    populate(&server);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    for port in PORTS {
        await_row(&central, "Logical_Switch_Port", port, true);
    }
    controller.stop().await.unwrap();
}
