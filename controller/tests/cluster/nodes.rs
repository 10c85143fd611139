//! Subnets of nodes, and what goes with a node.

use podwire_tests::apiserver::{ApiServer, node};
use podwire_tests::ovn::Central;
use serde_json::json;

use crate::fixture::{Running, annotation, await_network, await_row, column, pod_of, populate};
use crate::policies::policy;

#[tokio::test(flavor = "multi_thread")]
async fn addresses_are_of_both_families_where_the_cluster_has_both() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    let subnets = "10.128.0.0/14/23,fd00:10::/48/64";
    let mut controller = Running::start(&central, &server, &["--cluster-subnets", subnets]);
    controller.idle().await;
    let entry = await_network(&server, "default", "db");
    assert_eq!(
        entry["ip_addresses"],
        json!(["10.128.2.3/23", "fd00:10:0:1::3/64"])
    );
    assert_eq!(
        entry["gateway_ips"],
        json!(["10.128.2.1", "fd00:10:0:1::1"])
    );
    assert_eq!(
        column(&central, "Logical_Switch", "node-b", "other_config"),
        json!({
            "subnet": "10.128.2.0/23", "ipv6_prefix": "fd00:10:0:1::", "ct-zone-limit": "131072",
        })
    );
    central.nbctl("--wait=sb sync");
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_nodes_with_one_subnet_the_older_keeps_it_and_the_other_is_told() {
    let (central, server) = (Central::start(), ApiServer::start());
    for (name, created) in [
        ("a-younger", "2026-02-01T00:00:00Z"),
        ("older", "2026-01-01T00:00:00Z"),
    ] {
        let mut node = node(name, "192.0.2.1");
        node["metadata"]["creationTimestamp"] = created.into();
        let subnets = json!({ "default": "10.244.7.0/24" }).to_string();
        node["metadata"]["annotations"]["k8s.ovn.org/node-subnets"] = subnets.into();
        server.apply(node);
    }
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let subnets = |name| {
        let node = server.object("Node", "", name).unwrap();
        annotation(&node, "k8s.ovn.org/node-subnets").unwrap()["default"].clone()
    };
    assert_eq!(subnets("older"), json!("10.244.7.0/24"));
    assert_eq!(subnets("a-younger"), json!(["10.244.0.0/24"]));
    let events = server.events();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["reason"], "SubnetConflict");
    assert_eq!(events[0]["involvedObject"]["name"], "a-younger");
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chassis_of_a_node_that_is_gone_goes_too_though_nobody_watched() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    for (chassis, address) in [
        ("node-a", "192.0.2.1"),
        ("node-b", "192.0.2.2"),
        ("other", "192.0.2.3"),
    ] {
        central.sbctl(format!("chassis-add {chassis} geneve {address}"));
    }
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    server.delete_object("Node", "", "node-a");
    await_row(&central, "Logical_Switch", "node-a", false);
    controller.stop().await.unwrap();
    let chassis = || {
        let rows = central.southbound().rows("Chassis").unwrap();
        let mut names: Vec<_> = rows.iter().map(|row| row["name"].clone()).collect();
        names.sort_by_key(ToString::to_string);
        names
    };
    assert_eq!(chassis(), ["node-b", "other"]);

    server.delete_object("Node", "", "node-b");
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    controller.stop().await.unwrap();
    assert_eq!(chassis(), ["other"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_southbound_database_only_the_node_that_is_gone_waits() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    let flags = ["--sb-db", "unix:/nonexistent"];
    let mut controller = Running::start(&central, &server, &flags);
    controller.idle().await;
    server.delete_object("Node", "", "node-a");
    server.apply(pod_of("node-b", "later"));
    await_network(&server, "default", "later");
    await_row(&central, "Logical_Switch", "node-a", true);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_may_have_their_pod_cidrs() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    for (name, cidrs) in [
        ("node-a", json!(["10.8.1.0/24", "fd08:1::/64"])),
        ("node-b", json!(null)),
    ] {
        let mut node = server.object("Node", "", name).unwrap();
        node["spec"]["podCIDRs"] = cidrs;
        server.apply(node);
    }
    let mut controller = Running::start(&central, &server, &["--use-pod-cidrs"]);
    controller.idle().await;
    let entry = await_network(&server, "default", "web");
    assert_eq!(
        entry["ip_addresses"],
        json!(["10.8.1.3/24", "fd08:1::3/64"])
    );
    let told = server.await_events("a node without", |events| !events.is_empty());
    assert_eq!(told[0]["involvedObject"]["name"], "node-b");
    let message = told[0]["message"].as_str().unwrap();
    assert!(message.contains("--allocate-node-cidrs"), "{message}");
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_southbound_database_what_is_to_be_said_of_others_is_said() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    controller.stop().await.unwrap();
    server.delete_object("Node", "", "node-a");
    let cidr = json!([{ "from": [{ "ipBlock": { "cidr": "10.0.0.0/33" } }] }]);
    server.apply(policy(
        "default",
        "wrong",
        json!({ "podSelector": {}, "ingress": cidr }),
    ));
    let flags = ["--sb-db", "unix:/nonexistent"];
    let controller = Running::start(&central, &server, &flags);
    server.await_events("the mistake", |events| {
        events
            .iter()
            .any(|it| it["involvedObject"]["name"] == "wrong")
    });
    await_row(&central, "Logical_Switch", "node-a", true);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_condition_of_a_node_is_the_node_roles_once_that_has_said_something() {
    let (central, server) = (Central::start(), ApiServer::start());
    let reasons = [("a", "NoRouteCreated"), ("b", "PodwireNodeNotInSync")];
    for (name, reason) in reasons {
        let mut node = node(name, "192.0.2.1");
        node["status"]["conditions"] = json!([
            { "type": "NetworkUnavailable", "status": "True", "reason": reason },
        ]);
        server.apply(node);
    }
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let seen = reasons.map(|(name, _)| {
        let node = server.object("Node", "", name).unwrap();
        assert!(annotation(&node, "k8s.ovn.org/node-subnets").is_some());
        let condition = &node["status"]["conditions"][0];
        json!([condition["status"], condition["reason"]])
    });
    let expected = [
        json!(["False", "PodwireSubnet"]),
        json!(["True", "PodwireNodeNotInSync"]),
    ];
    assert_eq!(seen, expected);
    controller.stop().await.unwrap();
}
