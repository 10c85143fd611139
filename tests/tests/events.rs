//! Kubernetes Events on pods that could not be wired, against a stand-in API server.

use podwire_tests::annotation::{default_network, entry};
use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::scrape::Scrape;
use podwire_tests::{Agent, CniError, Pod, TestNode};
use serde_json::{Value, json};

fn start<'node>(node: &'node TestNode, server: &ApiServer) -> Agent<'node> {
    let agent = node.start_agent(&server.watched_by("n1", "1"));
    server.await_watches(1);
    agent
}

fn annotated(server: &ApiServer, pod: &Pod<'_>, annotations: Value) {
    server.apply(apiserver::pod_on("n1", pod, annotations));
}

/// Has a wrong annotation refused.
fn annotated_wrongly(server: &ApiServer, pod: &Pod<'_>) -> CniError {
    let wrong = default_network(&json!({ "mac_address": "no" }));
    annotated(server, pod, wrong);
    pod.add().error()
}

/// Another sandbox of it, which fares no better.
fn fails_again(pod: &Pod<'_>) {
    let sandbox = pod.another_sandbox();
    sandbox.add().error();
}

fn told(agent: &Agent<'_>, outcome: &str) -> f64 {
    let (_, page) = agent.get("/metrics");
    let page = Scrape::parse(&page).unwrap();
    page.value("podwire_events_total", &[("outcome", outcome)])
        .unwrap()
}

#[test]
fn a_bad_annotation_is_told_on_the_pod_once_and_not_again() {
    let (node, server) = ApiServer::beside_a_node();
    let agent = start(&node, &server);
    let pod = node.pod("web");
    let error = annotated_wrongly(&server, &pod);
    let events = server.await_events("an Event", |events| !events.is_empty());
    let event = &events[0];
    assert_eq!(event["involvedObject"]["kind"], "Pod");
    assert_eq!(event["involvedObject"]["name"], "web");
    assert_eq!(event["involvedObject"]["uid"], pod.uid.as_str());
    assert_eq!(event["reason"], "InvalidNetworkAnnotation");
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["message"], error.msg.as_str());
    assert_eq!(
        event["source"],
        json!({ "component": "podwire", "host": "n1" })
    );
    assert_eq!(event["count"], 1);
    for _ in 0..3 {
        fails_again(&pod);
    }
    // Another pod's Event comes after whatever the three might have been.
    let other = node.pod("other");
    annotated_wrongly(&server, &other);
    let events = server.await_events("the other's", |events| events.len() > 1);
    let names: Vec<_> = events
        .iter()
        .map(|it| it["involvedObject"]["name"].clone())
        .collect();
    assert_eq!(names, ["web", "other"]);
    assert!(
        !server
            .requests()
            .iter()
            .any(|request| request.method == "PATCH")
    );
    assert_eq!(told(&agent, "held"), 3.0);
}

#[test]
fn what_keeps_a_node_from_wiring_pods_is_told_on_the_node() {
    let (node, server) = ApiServer::beside_a_node();
    let _agent = start(&node, &server);
    let pod = node.pod("web");
    annotated(&server, &pod, default_network(&entry(11)));
    node.kill_vswitchd();
    pod.add().error();
    let events = server.await_events("an Event", |events| !events.is_empty());
    let event = &events[0];
    let about = json!({ "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1" });
    for field in ["kind", "name", "uid"] {
        assert_eq!(event["involvedObject"][field], about[field], "{event:#}");
    }
    assert_eq!(event["reason"], "NetworkNotReady");
    let message = event["message"].as_str().unwrap();
    assert!(message.contains("ovs-vswitchd"), "{message}");
}

#[test]
fn each_reason_that_the_owner_can_fix_has_its_word() {
    let (node, server) = ApiServer::beside_a_node();
    let _agent = start(&node, &server);
    let first = node.pod("first");
    annotated(&server, &first, default_network(&entry(11)));
    first.add().success();

    let same_address = node.pod("same-address");
    annotated(&server, &same_address, default_network(&entry(11)));
    let small = node.pod("small");
    let mut annotations = default_network(&entry(12));
    annotations["podwire.io/mtu"] = json!("1000");
    annotated(&server, &small, annotations);
    let bare = node.pod("bare");
    annotated(&server, &bare, json!({}));
    let replaced = node.pod("replaced");
    let known = apiserver::pod(
        "n1",
        &replaced.namespace,
        &replaced.name,
        "other-uid",
        json!({}),
    );
    server.apply(known);
    let absent = node.pod("absent");
    for pod in [&absent, &same_address, &small, &bare, &replaced] {
        pod.add().error();
    }
    let events = server.await_events("four Events", |events| events.len() >= 4);
    let told: Vec<_> = events
        .iter()
        .map(|event| {
            let word = |value: &Value| value.as_str().unwrap().to_owned();
            (
                word(&event["involvedObject"]["name"]),
                word(&event["reason"]),
            )
        })
        .collect();
    let expected = [
        ("same-address", "AddressInUse"),
        ("small", "MTURefused"),
        ("bare", "NetworkAnnotationMissing"),
        ("replaced", "PodUIDMismatch"),
    ];
    let expected: Vec<_> = expected
        .map(|(pod, reason)| (pod.to_owned(), reason.to_owned()))
        .into();
    assert_eq!(told, expected, "and nothing on a pod that nobody knows");
    assert_eq!(
        events[3]["involvedObject"]["uid"], "other-uid",
        "the one that people see"
    );
}

#[test]
fn an_api_server_that_refuses_or_hangs_costs_no_add_anything() {
    let (node, server) = ApiServer::beside_a_node();
    let agent = start(&node, &server);
    server.forbid_events(true);
    let pod = node.pod("web");
    annotated_wrongly(&server, &pod);
    agent.await_log("can't post Events on pods");
    assert!(server.events().is_empty());

    server.forbid_events(false);
    server.hold(true);
    let good = node.pod("good");
    annotated(&server, &good, default_network(&entry(11)));
    fails_again(&pod);
    server.await_requests("the Event's request", |requests| {
        requests.iter().filter(|it| it.method == "POST").count() == 2
    });
    good.del().success();
    server.hold(false);
    server.await_events("the Event", |events| events.len() == 1);
}
