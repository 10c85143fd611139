//! Nothing comes to pods that policies of the cluster close, from their first packet on.

use serde_json::json;

use crate::flood::{FIRST, restart_everything, start_pods, starts};
use crate::packets::Network;
use crate::policies::{TESTS, labelled, namespace};

use super::{has_tiers, of_cluster};

/// Two that let nobody of this cluster in: one that denies all pods, and one with a rule that
/// fails closed.
fn close(network: &Network) {
    let server = &network.server;
    server.apply(namespace(TESTS, json!({})));
    let subject =
        |app: &str| json!({ "pods": { "namespaceSelector": {}, "podSelector": labelled(app) } });
    for (app, peer) in [("closed-0", "namespaces"), ("closed-1", "unknown")] {
        let rules = json!([{ "action": "Deny", "from": [{ peer: {} }] }]);
        let spec = json!({ "subject": subject(app), "ingress": rules });
        server.apply(of_cluster(app, &spec));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_a_policy_of_the_cluster_closes_receives_nothing() {
    let (network, controller) = Network::start(&[]);
    if has_tiers(&network.central).await {
        start_pods(&network, close, starts());
    }
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_restarts_and_no_order_of_objects_opens_what_is_closed() {
    let (network, mut controller) = Network::start(&FIRST);
    if has_tiers(&network.central).await {
        let kinds = ["clusternetworkpolicies", "namespaces", "pods"];
        controller = restart_everything(&network, controller, close, &kinds).await;
    }
    controller.stop().await.unwrap();
}
