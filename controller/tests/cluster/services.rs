//! Load balancers, and where they are.

use podwire_tests::apiserver::{ApiServer, endpoints, node, service};
use podwire_tests::ovn::Central;
use serde_json::json;

use crate::fixture::{Running, await_row, column, names, populate, populated};

#[tokio::test(flavor = "multi_thread")]
async fn a_load_balancer_that_somebody_takes_out_of_the_group_is_put_back() {
    let (central, _server, controller) = populated().await;
    let northbound = central.northbound();
    let before = column(
        &central,
        "Load_Balancer_Group",
        "clusterLBGroup",
        "load_balancer",
    );
    central.nbctl("clear Load_Balancer_Group clusterLBGroup load_balancer");
    let condition = json!([["load_balancer", "==", ["set", []]]]);
    northbound
        .wait("Load_Balancer_Group", condition, "==", &["name"], json!([]))
        .unwrap();
    let after = column(
        &central,
        "Load_Balancer_Group",
        "clusterLBGroup",
        "load_balancer",
    );
    assert_eq!(before, after);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_headless_service_and_an_alias_have_no_load_balancer() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    server.apply(service("default", "headless", "None", 80));
    server.apply(endpoints("default", "headless", &["10.244.0.3"], 8080));
    let mut alias = service("default", "alias", "", 80);
    alias["spec"] = json!({ "type": "ExternalName", "externalName": "example.org" });
    server.apply(alias);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    assert_eq!(
        names(&central, "Load_Balancer"),
        ["Service_default/front_TCP_cluster"]
    );
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_of_local_endpoints_follows_nodes_and_switches() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    let mut local = service("default", "front", "10.96.0.10", 80);
    local["spec"]["internalTrafficPolicy"] = "Local".into();
    server.apply(local);
    let mut slice = endpoints("default", "front", &["10.244.0.3"], 8080);
    slice["endpoints"][0]["nodeName"] = "node-a".into();
    server.apply(slice);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let balancers = |switch| {
        let row = column(&central, "Logical_Switch", switch, "load_balancer");
        let rows = central.northbound().rows("Load_Balancer").unwrap();
        let own = rows.iter().find(|it| it["_uuid"] == row);
        own.map(|it| {
            it["name"]
                .as_str()
                .unwrap()
                .replace("Service_default/front_TCP_", "")
        })
    };
    let without = Some("node_switch_without_endpoints".to_owned());
    assert_eq!(balancers("node-a").as_deref(), Some("node_switch_node-a"));
    assert_eq!(balancers("node-b"), without);
    server.apply(node("node-c", "192.0.2.3"));
    await_row(&central, "Logical_Switch", "node-c", true);
    let is_out = json!([
        ["name", "==", "node-c"],
        ["load_balancer", "==", ["set", []]]
    ]);
    let northbound = central.northbound();
    let awaited = |condition| {
        northbound
            .wait("Logical_Switch", condition, "==", &["name"], json!([]))
            .unwrap();
    };
    awaited(is_out.clone());
    assert_eq!(balancers("node-c"), without);
    // Somebody takes one out, or removes the switch.
    central.nbctl("clear Logical_Switch node-c load_balancer");
    awaited(is_out.clone());
    central.nbctl("ls-del node-c");
    await_row(&central, "Logical_Switch", "node-c", true);
    awaited(is_out);
    server.delete_object("Node", "", "node-a");
    await_row(
        &central,
        "Load_Balancer",
        "Service_default/front_TCP_node_switch_node-a",
        false,
    );
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_come_from_slices_of_v1beta1_where_the_server_has_no_v1() {
    let (central, server) = (Central::start(), ApiServer::start());
    server.has_slices_of("v1beta1");
    populate(&server);
    let mut slice = endpoints("default", "front", &["10.244.0.3"], 8080);
    slice["apiVersion"] = "discovery.k8s.io/v1beta1".into();
    server.apply(slice);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let row = "Service_default/front_TCP_cluster";
    let vips = json!({ "10.96.0.10:80": "10.244.0.3:8080" });
    assert_eq!(column(&central, "Load_Balancer", row, "vips"), vips);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slice_that_goes_to_another_service_leaves_its_former_one() {
    let (central, server, controller) = populated().await;
    server.apply(service("default", "other", "10.96.0.11", 80));
    await_row(
        &central,
        "Load_Balancer",
        "Service_default/other_TCP_cluster",
        true,
    );
    let mut slice = endpoints("default", "front", &["10.244.0.3", "10.244.1.3"], 8080);
    slice["metadata"]["labels"]["kubernetes.io/service-name"] = "other".into();
    server.apply(slice);
    let vips = |name: &str| {
        let row = format!("Service_default/{name}_TCP_cluster");
        column(&central, "Load_Balancer", &row, "vips")
    };
    let empty = json!(["map", [["10.96.0.10:80", ""]]]);
    let condition = json!([["vips", "==", empty]]);
    let northbound = central.northbound();
    let wait =
        |until, condition| northbound.wait("Load_Balancer", condition, until, &["name"], json!([]));
    wait("!=", condition).unwrap();
    let none = json!([["vips", "==", ["map", [["10.96.0.11:80", ""]]]]]);
    wait("==", none.clone()).unwrap();
    server.delete_object("EndpointSlice", "default", "front-1");
    wait("!=", none).unwrap();
    assert_eq!(vips("front"), json!({ "10.96.0.10:80": "" }));
    controller.stop().await.unwrap();
}

/// As kube-proxy has it: who else serves them, or how, says the object.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_another_s_to_serve_has_no_load_balancer_here() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    for (number, label) in ["service-proxy-name", "headless"].into_iter().enumerate() {
        let mut other = service("default", label, &format!("10.96.0.2{number}"), 80);
        let label = format!("service.kubernetes.io/{label}");
        other["metadata"]["labels"] = json!({ label: "" });
        server.apply(other);
    }
    let mut front = service("default", "front", "10.96.0.10", 80);
    front["status"]["loadBalancer"]["ingress"] = json!([
        { "ip": "198.51.100.1" },
        { "ip": "198.51.100.2", "ipMode": "VIP" },
        { "ip": "198.51.100.3", "ipMode": "Proxy" },
    ]);
    server.apply(front.clone());
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let row = "Service_default/front_TCP_cluster";
    assert_eq!(names(&central, "Load_Balancer"), [row]);
    let ends = "10.244.0.3:8080,10.244.1.3:8080";
    let vips = json!({
        "10.96.0.10:80": ends, "198.51.100.1:80": ends, "198.51.100.2:80": ends,
    });
    assert_eq!(column(&central, "Load_Balancer", row, "vips"), vips);
    // What not all clients may use, the nodes serve, which know who may.
    front["spec"]["loadBalancerSourceRanges"] = json!(["203.0.113.0/24"]);
    server.apply(front);
    let own = json!([["vips", "==", ["map", [["10.96.0.10:80", ends]]]]]);
    let northbound = central.northbound();
    let found = northbound.wait("Load_Balancer", own, "!=", &["name"], json!([]));
    found.unwrap();
    controller.idle().await;
    controller.stop().await.unwrap();
}
