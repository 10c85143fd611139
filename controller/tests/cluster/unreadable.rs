//! Objects that can't be read: they stay what they were, and hold up no other.

use podwire_tests::apiserver::{ApiServer, endpoints, node, pod, service};
use podwire_tests::ovn::Central;
use serde_json::json;

use crate::fixture::{
    Running, annotation, await_network, await_row, column, names, pod_of, populated,
};

const NETWORKS: &str = "k8s.ovn.org/pod-networks";

/// As the API accepts it, and as one of Kubernetes' own tests makes it: with a time that is null.
#[tokio::test(flavor = "multi_thread")]
async fn an_odd_service_holds_up_no_other_neither_in_the_watch_nor_at_a_start() {
    let (central, server, mut controller) = populated().await;
    let mut odd = service("default", "odd", "10.96.0.11", 80);
    odd["status"]["conditions"] = json!([{ "type": "A", "lastTransitionTime": null }]);
    server.apply(odd);
    await_row(
        &central,
        "Load_Balancer",
        "Service_default/odd_TCP_cluster",
        true,
    );
    let unreadable = |name: &str| {
        let mut unreadable = service("default", name, "10.96.0.10", 80);
        unreadable["spec"]["ports"] = "all of them".into();
        unreadable
    };
    for name in ["front", "strange"] {
        server.apply(unreadable(name));
    }
    server.apply(service("default", "good", "10.96.0.12", 80));
    await_row(
        &central,
        "Load_Balancer",
        "Service_default/good_TCP_cluster",
        true,
    );
    let balancers = [
        "Service_default/front_TCP_cluster",
        "Service_default/good_TCP_cluster",
        "Service_default/odd_TCP_cluster",
    ];
    assert_eq!(names(&central, "Load_Balancer"), balancers);
    server.await_events("Events", |events| events.len() == 2);
    controller.idle().await;
    controller.stop().await.unwrap();

    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    assert_eq!(names(&central, "Load_Balancer"), balancers);
    server.delete_object("Service", "default", "front");
    await_row(
        &central,
        "Load_Balancer",
        "Service_default/front_TCP_cluster",
        false,
    );
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_can_not_be_read_keeps_its_address_as_long_as_its_row_exists() {
    let (central, server, controller) = populated().await;
    controller.stop().await.unwrap();
    let web = server.object("Pod", "default", "web").unwrap();
    let mut unreadable = web.clone();
    unreadable["spec"]["hostNetwork"] = "no".into();
    unreadable["metadata"]["annotations"] = json!({});
    server.apply(unreadable);
    // By a request and by what somebody wrote: nobody else gets the address.
    let wish = json!({ "podwire.io/ip-addresses": "10.244.0.3" });
    server.apply(pod("node-a", "default", "asks", "asks", wish));
    let written = json!({ NETWORKS: web["metadata"]["annotations"][NETWORKS] });
    server.apply(pod("node-a", "default", "writes", "writes", written));

    // Nothing rests here.
    let mut controller = Running::resting(
        std::time::Duration::ZERO,
        &central,
        &server,
        &["--identity", "me"],
    );
    controller.idle().await;
    let addresses = |port: &str| column(&central, "Logical_Switch_Port", port, "addresses");
    assert_eq!(addresses("default_web"), "0a:58:0a:f4:00:03 10.244.0.3");
    assert_ne!(addresses("default_writes"), addresses("default_web"));
    server.await_events("who has it", |events| {
        let mut messages = events.iter().filter_map(|event| event["message"].as_str());
        messages.any(|it| it.contains("10.244.0.3") && it.contains("default/web"))
    });

    // What is known again changes nothing; its end frees the address.
    let before = controller.idle().await.operations;
    server.apply(web.clone());
    server.apply(node("node-c", "192.0.2.3"));
    await_row(&central, "Logical_Switch", "node-c", true);
    assert_eq!(addresses("default_web"), "0a:58:0a:f4:00:03 10.244.0.3");
    assert!(controller.idle().await.operations > before);
    server.delete("default", "web");
    await_row(&central, "Logical_Switch_Port", "default_web", false);
    let asks = await_network(&server, "default", "asks");
    assert_eq!(asks["ip_address"], "10.244.0.3/24");
    controller.idle().await;
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_can_not_be_read_keeps_its_subnet_and_its_pods_their_ports() {
    let (central, server, controller) = populated().await;
    server.delete("default", "db");
    await_row(&central, "Logical_Switch_Port", "default_db", false);
    controller.stop().await.unwrap();
    for name in ["node-a", "node-b"] {
        let mut unreadable = server.object("Node", "", name).unwrap();
        unreadable["status"]["addresses"] = "none".into();
        server.apply(unreadable);
    }
    server.apply(node("node-c", "192.0.2.3"));
    server.apply(pod_of("node-a", "late"));
    let mut controller = Running::start(&central, &server, &[]);
    await_row(&central, "Logical_Switch", "node-c", true);
    controller.idle().await;
    let subnet = server.object("Node", "", "node-c").unwrap();
    let subnet = annotation(&subnet, "k8s.ovn.org/node-subnets").unwrap();
    assert_eq!(subnet["default"], json!(["10.244.2.0/24"]));
    let ports = names(&central, "Logical_Switch_Port");
    for port in ["default_late", "default_web", "k8s-node-a", "k8s-node-b"] {
        assert!(ports.iter().any(|it| it == port), "{port} {ports:?}");
    }
    server.delete_object("Node", "", "node-b");
    await_row(&central, "Logical_Switch", "node-b", false);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slice_that_can_not_be_read_at_a_start_keeps_its_part_of_the_service_s_balancer() {
    let (central, server, controller) = populated().await;
    controller.stop().await.unwrap();
    let slice = |name: &str, addresses: &[&str]| {
        let mut slice = endpoints("default", "front", addresses, 8080);
        slice["metadata"]["name"] = name.into();
        slice
    };
    let mut unreadable = slice("front-1", &[]);
    unreadable["endpoints"] = "none".into();
    server.apply(unreadable);
    server.apply(slice("front-2", &["10.244.1.3", "10.244.1.9"]));
    let mut controller = Running::start(&central, &server, &[]);
    let all = "10.244.0.3:8080,10.244.1.3:8080,10.244.1.9:8080";
    await_backends(&central, all);
    controller.idle().await;
    // What the other slice no longer has is nobody's; nor is what this one does not have.
    server.apply(slice("front-2", &["10.244.1.9"]));
    await_backends(&central, "10.244.0.3:8080,10.244.1.9:8080");
    server.apply(slice("front-1", &["10.244.0.8"]));
    await_backends(&central, "10.244.0.8:8080,10.244.1.9:8080");
    server.delete_object("EndpointSlice", "default", "front-1");
    await_backends(&central, "10.244.1.9:8080");
    controller.idle().await;
    controller.stop().await.unwrap();
}

fn await_backends(central: &Central, backends: &str) {
    let vips = json!([["vips", "==", ["map", [["10.96.0.10:80", backends]]]]]);
    let northbound = central.northbound();
    let found = northbound.wait("Load_Balancer", vips, "!=", &["name"], json!([]));
    found.unwrap_or_else(|error| panic!("{backends}: {error}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_service_gets_an_address_of_one_that_can_not_be_read() {
    let (central, server, controller) = populated().await;
    controller.stop().await.unwrap();
    let mut front = service("default", "front", "10.96.0.10", 80);
    front["spec"]["ports"] = "all of them".into();
    server.apply(front);
    let mut thief = service("default", "a-thief", "10.96.0.11", 80);
    thief["spec"]["externalIPs"] = json!(["10.96.0.10"]);
    server.apply(thief);
    let mut controller = Running::start(&central, &server, &[]);
    let row = "Service_default/a-thief_TCP_cluster";
    await_row(&central, "Load_Balancer", row, true);
    controller.idle().await;
    let vips = column(&central, "Load_Balancer", row, "vips");
    assert_eq!(vips, json!({ "10.96.0.11:80": "" }));
    // Its address is free when it is gone.
    server.delete_object("Service", "default", "front");
    let both = json!([["10.96.0.10:80", ""], ["10.96.0.11:80", ""]]);
    let vips = json!([["vips", "==", ["map", both]]]);
    let northbound = central.northbound();
    northbound
        .wait("Load_Balancer", vips, "!=", &["name"], json!([]))
        .unwrap();
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_known_of_an_object_is_served_though_it_can_not_be_read_any_more() {
    let (central, server, mut controller) = populated().await;
    let mut web = server.object("Pod", "default", "web").unwrap();
    web["status"]["podIPs"] = 4.into();
    server.apply(web);
    let mut front = service("default", "front", "10.96.0.10", 80);
    front["spec"]["ports"] = "all of them".into();
    server.apply(front);
    server.await_events("both", |events| {
        events
            .iter()
            .filter(|it| it["reason"] == "Unreadable")
            .count()
            == 2
    });
    // Somebody removes the pod's port; the service's endpoints change.
    central.nbctl("lsp-del default_web");
    await_row(&central, "Logical_Switch_Port", "default_web", true);
    server.apply(endpoints("default", "front", &["10.244.1.3"], 8080));
    let vips = json!([[
        "vips",
        "==",
        ["map", [["10.96.0.10:80", "10.244.1.3:8080"]]]
    ]]);
    let northbound = central.northbound();
    northbound
        .wait("Load_Balancer", vips, "!=", &["name"], json!([]))
        .unwrap();
    controller.idle().await;
    controller.stop().await.unwrap();
}

/// As JSON, objects within etcd's limit have up to 9 MiB; beyond 16 MiB they can't be read.
#[tokio::test(flavor = "multi_thread")]
async fn large_objects_hold_up_no_other_in_the_watch() {
    let (central, server, controller) = populated().await;
    let large = |name: &str, length: usize| {
        let mut pod = pod_of("node-a", name);
        pod["spec"]["note"] = "<".repeat(length).into();
        pod
    };
    server.apply(large("large", 5 << 20));
    await_row(&central, "Logical_Switch_Port", "default_large", true);
    server.apply(large("web", 17 << 20));
    server.await_events("an Event", |events| !events.is_empty());
    server.apply(pod_of("node-a", "after"));
    await_row(&central, "Logical_Switch_Port", "default_after", true);
    await_row(&central, "Logical_Switch_Port", "default_web", true);
    server.delete_object("Pod", "default", "web");
    await_row(&central, "Logical_Switch_Port", "default_web", false);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn five_objects_that_are_too_large_for_a_page_of_a_list_are_on_several() {
    let (central, server) = (Central::start(), ApiServer::start());
    server.apply(node("node-a", "192.0.2.1"));
    server.apply(pod_of("node-a", "web"));
    for number in 0..5 {
        let mut large = pod_of("node-a", &format!("large-{number}"));
        // Nothing is written of it: what is looked at is how it is listed.
        large["spec"]["hostNetwork"] = true.into();
        large["spec"]["note"] = "<".repeat(7 << 20).into();
        server.apply(large);
    }
    let mut controller = Running::start(&central, &server, &[]);
    assert_eq!(controller.idle().await.pods, 1);
    await_row(&central, "Logical_Switch_Port", "default_web", true);
    controller.stop().await.unwrap();
}
