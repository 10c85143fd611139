//! Addresses of pods, and the writes that announce them.

use podwire_tests::apiserver::{ApiServer, node, service};
use podwire_tests::ovn::Central;
use serde_json::json;

use crate::fixture::{
    PORTS, Running, await_network, await_row, column, names, pod_of, populate, populated,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_gets_what_it_asks_for_or_is_told_why_not() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    let asking = |name: &str, address: &str| {
        let mut pod = pod_of("node-a", name);
        pod["metadata"]["annotations"] = json!({
            "podwire.io/ip-addresses": address,
            "podwire.io/mac-address": format!("02:00:00:00:00:{:02}", name.len()),
        });
        pod
    };
    server.apply(asking("fixed", "10.244.0.200"));
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let entry = await_network(&server, "default", "fixed");
    assert_eq!(entry["ip_address"], "10.244.0.200/24");
    assert_eq!(entry["mac_address"], "02:00:00:00:00:05");
    assert_eq!(
        column(
            &central,
            "Logical_Switch_Port",
            "default_fixed",
            "port_security"
        ),
        "02:00:00:00:00:05 10.244.0.200"
    );
    server.apply(asking("second", "10.244.0.200"));
    let told = server.await_events("a refusal", |events| !events.is_empty());
    let message = told[0]["message"].as_str().unwrap();
    assert!(message.contains("which pod default/fixed has"), "{message}");
    assert_eq!(told[0]["involvedObject"]["name"], "second");
    // It gets it when it is free.
    server.delete("default", "fixed");
    let entry = await_network(&server, "default", "second");
    assert_eq!(entry["ip_address"], "10.244.0.200/24");
    controller.stop().await.unwrap();

    // Both the address and the MAC address outlive a restart.
    let mut again = Running::start(&central, &server, &[]);
    let compared = again.idle().await;
    assert_eq!((compared.operations, compared.writes), (0, 0));
    again.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_so_many_requests_are_under_way_and_none_is_forgotten() {
    let (central, server, mut controller) = populated().await;
    let patches = || {
        server
            .requests()
            .iter()
            .filter(|it| it.method == "PATCH")
            .count()
    };
    let before = patches();
    server.hold(true);
    for number in 0..100 {
        server.apply(pod_of("node-a", &format!("many-{number}")));
    }
    await_row(&central, "Logical_Switch_Port", "default_many-99", true);
    server.await_requests("32 of them", |requests| {
        requests.iter().filter(|it| it.method == "PATCH").count() == before + 32
    });
    server.hold(false);
    for number in 0..100 {
        await_network(&server, "default", &format!("many-{number}"));
    }
    let done = controller.idle().await;
    assert_eq!(patches() as u64, done.writes);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_on_its_node_s_network_is_left_alone() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    let mut host = pod_of("node-a", "a-host");
    host["spec"]["hostNetwork"] = true.into();
    server.apply(host.clone());
    let mut controller = Running::start(&central, &server, &[]);
    let done = controller.idle().await;
    assert_eq!(done.pods, 2);
    assert_eq!(names(&central, "Logical_Switch_Port"), PORTS);
    let known = server.object("Pod", "default", "a-host").unwrap();
    assert_eq!(
        known["metadata"]["annotations"],
        host["metadata"]["annotations"]
    );
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_for_which_no_address_is_left_is_told_so_however_long_its_name_is() {
    let (central, server) = (Central::start(), ApiServer::start());
    server.apply(node("node-a", "192.0.2.1"));
    // Of eight addresses four are not for pods.
    for number in 0..4 {
        server.apply(pod_of("node-a", &format!("early-{number}")));
    }
    let flags = ["--cluster-subnets", "10.244.0.0/28/29"];
    let mut controller = Running::start(&central, &server, &flags);
    controller.idle().await;
    let longest = format!("{}-{}", "a".repeat(231), "b".repeat(21));
    server.apply(pod_of("node-a", &longest));
    let told = server.await_events("a refusal", |events| !events.is_empty());
    assert_eq!(told[0]["involvedObject"]["name"], longest);
    let message = told[0]["message"].as_str().unwrap();
    assert!(message.contains("give nodes larger subnets"), "{message}");
    // Nothing else stops for it.
    server.apply(service("default", "front", "10.96.0.10", 80));
    let row = "Service_default/front_TCP_cluster";
    await_row(&central, "Load_Balancer", row, true);
    controller.stop().await.unwrap();
}
