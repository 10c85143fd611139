//! How long new pods wait for ovn-northd and their nodes, as the leader sees it in the southbound
//! database.

use podwire_tests::apiserver::{ApiServer, node};
use podwire_tests::ovn::Central;
use serde_json::Value;

use crate::fixture::{Running, annotation, pod_of};

const NODE: &str = "node-a";

/// Waits until the leader tells delays that are as wanted.
fn told(server: &ApiServer, wanted: impl Fn(&Value) -> bool) -> Value {
    let told = |lease: &Value| annotation(lease, "podwire.io/ovn-delays");
    let is_so = |lease: &Value| told(lease).is_some_and(|told| wanted(&told));
    let lease = ("Lease", "podwire-system", "podwire-controller");
    told(&server.await_object(lease, is_so)).unwrap()
}

/// Waits until the leader has seen what happened before: it renews its Lease later.
fn await_renewal(server: &ApiServer) {
    let time = |lease: &Value| lease["spec"]["renewTime"].clone();
    let lease = ("Lease", "podwire-system", "podwire-controller");
    let before = time(&server.object(lease.0, lease.1, lease.2).unwrap());
    server.await_object(lease, |lease| time(lease) != before);
}

/// A node that has joined OVN, and a controller that has done all there is to do.
async fn start() -> (Central, ApiServer, Running) {
    let (central, server) = (Central::start(), ApiServer::start());
    server.apply(node(NODE, "192.0.2.1"));
    central.sbctl(format!("chassis-add {NODE} geneve 192.0.2.1"));
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    (central, server, controller)
}

/// Claims the pod's port for the node, as ovn-controller does.
fn claim(central: &Central) {
    let chassis = central.sbctl(format!("--bare --columns=_uuid find Chassis name={NODE}"));
    central.sbctl(format!(
        "set Port_Binding default_web chassis={}",
        chassis.trim()
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_for_ovn_northd_and_the_node_are_told_apart() {
    let (central, server, controller) = start().await;
    let before = told(&server, |told| told["waiting"] == 0);
    assert_eq!(before["northd"], Value::Null);

    // Without ovn-northd a pod waits for it, and for nobody else.
    central.end_northd();
    server.apply(pod_of(NODE, "web"));
    told(&server, |told| {
        told["waiting"] == 1 && told["longestMs"] != 0
    });
    central.start_northd();
    let there = told(&server, |told| told["northd"]["pods"] == 1);
    assert_eq!(there["waiting"], 0);
    assert_eq!(there["nodes"], Value::Null);

    // As ovn-controller does it, in two transactions.
    claim(&central);
    await_renewal(&server);
    central.sbctl("set Port_Binding default_web up=true");
    told(&server, |told| told["nodes"]["pods"] == 1);

    // A pod that goes before it came waits no longer.
    central.end_northd();
    server.apply(pod_of(NODE, "db"));
    told(&server, |told| told["waiting"] == 1);
    server.delete("default", "db");
    let gone = told(&server, |told| told["waiting"] == 0);
    assert_eq!(gone["northd"]["pods"], 1);
    controller.stop().await.unwrap();
}

/// Ten seconds are waited through twice, beside other tests.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_waits_for_long_is_told_for_whom() {
    let (central, server, controller) = start().await;
    let event = |reason: &str| {
        let told = |all: &[Value]| {
            let mut all = all.iter();
            let told = all.find(|event| event["reason"] == *reason)?;
            assert_eq!(told["involvedObject"]["name"], "web");
            Some(told["message"].to_string())
        };
        told(&server.await_events(reason, |all| told(all).is_some())).unwrap()
    };
    central.end_northd();
    server.apply(pod_of(NODE, "web"));
    let note = event("WaitingForNorthd");
    assert!(note.contains("default_web has not come"), "{note}");
    central.start_northd();
    told(&server, |told| told["northd"]["pods"] == 1);
    claim(&central);
    let note = event("WaitingForOvnController");
    assert!(note.contains("of node node-a has not installed"), "{note}");
    controller.stop().await.unwrap();
    // Each of them once.
    assert_eq!(server.events().len(), 2, "{:#?}", server.events());
}
