//! What a new leader does in a cluster with something of everything, whatever is listed last.

use podwire_controller::run::Progress;
use podwire_tests::apiserver::{ApiServer, Request, endpoints, node, pod, service};
use podwire_tests::ovn::Central;
use serde_json::json;

use crate::fixture::{Running, await_network, await_row, populate};
use crate::layer3::{asking, divided};
use crate::multi_policies;
use crate::policies::{TESTS, policy};
use crate::primary::{labelled, primary};
use crate::tiered::apply_all;
use crate::user_networks::{OF_NAMESPACE, is_made, layer2, namespace, of_namespace, of_team};

/// What a leader watches beside nodes and pods, without which it does not begin.
const KINDS: [&str; 11] = [
    "namespaces",
    "networkpolicies",
    "clusternetworkpolicies",
    "adminnetworkpolicies",
    "baselineadminnetworkpolicies",
    "network-attachment-definitions",
    "multi-networkpolicies",
    "userdefinednetworks",
    "clusteruserdefinednetworks",
    "services",
    "endpointslices",
];

fn fill(server: &ApiServer) {
    populate(server);
    server.apply(namespace("default", "none"));
    server.apply(policy("default", "deny", json!({ "podSelector": {} })));
    apply_all(server);
    // A primary network with a service of its own.
    server.apply(labelled("shop"));
    server.apply(of_namespace("blue", &primary("10.1.0.0/24")));
    server.apply(service("shop", "front", "10.96.0.11", 80));
    server.apply(endpoints("shop", "front", &["10.244.0.7"], 8080));
    // One of the cluster's.
    server.apply(namespace(TESTS, "red"));
    server.apply(of_team("red", "red", &layer2("10.2.0.0/24")));
    // One of layer 3, with a policy.
    server.apply(divided("green", "10.3.0.0/16/24"));
    let of_all = json!({ "podSelector": {}, "policyTypes": ["Ingress"] });
    server.apply(multi_policies::policy("deny", "default/green", &of_all));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_has_nothing_to_do_whatever_is_listed_last() {
    let (central, server) = (Central::start(), ApiServer::start());
    fill(&server);
    let mut controller = Running::start(&central, &server, &[]);
    is_made(&server, (OF_NAMESPACE, "shop", "blue"));
    server.apply(asking("node-a", "of-green", "green"));
    server.apply(pod("node-a", "shop", "web", "uid-of-shop", json!({})));
    await_network(&server, "shop", "web");
    await_row(&central, "Logical_Switch_Port", "default_of-green", true);
    // With all that it writes for the pods.
    let is_done = |it: &Progress| it.is_ready && it.is_idle && it.pods == 4;
    controller.until(is_done).await;
    // The first has nothing withheld: what the others do is compared with it.
    let mut first = None;
    for withheld in [None].into_iter().chain(KINDS.map(Some)) {
        // Without the node of the former round.
        let is_done = |it: &Progress| it.is_ready && it.is_idle && it.nodes == 2;
        controller.until(is_done).await;
        controller.stop().await.unwrap();
        let begun = server.requests().len();
        server.withhold(withheld);
        controller = Running::start(&central, &server, &[]);
        server.await_requests("watches of all other kinds", |all| {
            let watches = all.iter().skip(begun).filter(|it| it.is_watch());
            let has = |kind: &str| watches.clone().any(|it| it.path.ends_with(kind));
            let mut others = KINDS.iter().filter(|kind| Some(**kind) != withheld);
            others.all(|kind| has(kind))
        });
        // A node that comes later is processed with what came before, or after it.
        let later = format!("node-{}", withheld.unwrap_or("first"));
        server.apply(node(&later, "192.0.2.99"));
        await_row(&central, "Logical_Switch", &later, true);
        server.withhold(None);
        let is_done = |it: &Progress| it.is_ready && it.is_idle && it.nodes == 3;
        let done = controller.until(is_done).await;
        // Events are sent beside what it does.
        let beside = |path: &str| path.contains("/leases") || path.contains("/events");
        let is_write = |it: &&Request| it.method != "GET" && !beside(&it.path);
        let all = server.requests();
        let writes = all.iter().skip(begun).filter(is_write);
        let mut writes: Vec<_> = writes
            .map(|it| format!("{} {}", it.method, it.path).replace(&later, "LATER"))
            .collect();
        writes.sort_unstable();
        let done = (done.operations, writes);
        let first = first.get_or_insert_with(|| done.clone());
        assert_eq!(done, *first, "{withheld:?}");
        server.delete_object("Node", "", &later);
        await_row(&central, "Logical_Switch", &later, false);
    }
    controller.stop().await.unwrap();
}
