//! Bandwidth limits of pods: on the rows of their ports, gone with them, and nobody else's touched.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use podwire_tests::annotation::entry;
use podwire_tests::{AgentOptions, Pod, Row, TestNode, conf};
use serde_json::{Value, json};

fn limited(ingress: u64, egress: u64) -> Value {
    let mut conf = conf();
    conf["capabilities"]["bandwidth"] = json!(true);
    conf["runtimeConfig"] = json!({"bandwidth": {
        "ingressRate": ingress, "ingressBurst": 8_000_000, "egressRate": egress, "egressBurst": 8_000_000,
    }});
    conf
}

fn port_of(node: &TestNode, pod: &Pod<'_>) -> Row {
    let interface = node.interface_of(&pod.container).unwrap().unwrap();
    let ports = node.ovsdb_rows("Port").unwrap();
    let port = ports
        .into_iter()
        .find(|port| port["name"] == interface["name"]);
    port.unwrap()
}

fn qos(node: &TestNode) -> Vec<Row> {
    node.ovsdb_rows("QoS").unwrap()
}

#[test]
fn a_pod_is_limited_both_ways_and_its_limits_go_with_it() {
    let node = TestNode::with_ovs().unwrap();
    let _agent = node
        .start_agent(&AgentOptions::for_numbered_pods())
        .unwrap();
    let pod = node.pod("web").unwrap().on_default_network(&entry(11));
    pod.exec("ADD", &limited(20_000_000, 10_000_000))
        .unwrap()
        .success()
        .unwrap();

    let interface = node.interface_of(&pod.container).unwrap().unwrap();
    assert_eq!(
        interface["ingress_policing_rate"], 10_000,
        "kbit/s from the pod"
    );
    assert_eq!(interface["ingress_policing_burst"], 1000);
    let rows = qos(&node);
    assert_eq!(rows.len(), 1);
    assert_eq!(port_of(&node, &pod)["qos"], rows[0]["_uuid"]);
    assert_eq!(rows[0]["type"], "linux-htb");
    assert_eq!(
        rows[0]["other_config"]["max-rate"], "20000000",
        "bit/s to the pod"
    );
    assert_eq!(rows[0]["external_ids"]["sandbox"], pod.container.as_str());

    pod.del().unwrap().success().unwrap();
    node.leftovers().unwrap().assert_none();
}

#[test]
fn a_sandbox_that_takes_another_ones_place_takes_its_limits_away() {
    let node = TestNode::with_ovs().unwrap();
    let _agent = node
        .start_agent(&AgentOptions::for_numbered_pods())
        .unwrap();
    let first = node.pod("web").unwrap().on_default_network(&entry(11));
    first
        .exec("ADD", &limited(20_000_000, 0))
        .unwrap()
        .success()
        .unwrap();
    let second = first.another_sandbox().unwrap();
    second
        .exec("ADD", &limited(0, 10_000_000))
        .unwrap()
        .success()
        .unwrap();
    assert!(qos(&node).is_empty(), "{:?}", qos(&node));
    second.del().unwrap().success().unwrap();
    first.del().unwrap().success().unwrap();
    node.leftovers().unwrap().assert_none();
}

#[test]
fn qos_rows_of_other_writers_stay() {
    let node = TestNode::with_ovs().unwrap();
    let _agent = node
        .start_agent(&AgentOptions::for_numbered_pods())
        .unwrap();
    let pod = node.pod("web").unwrap().on_default_network(&entry(11));
    pod.add().unwrap().success().unwrap();
    // An operator's row, shared by the pod's port and the bridge's own.
    let port = port_of(&node, &pod)["name"].as_str().unwrap().to_owned();
    node.vsctl(&[
        "--id=@shared",
        "create",
        "qos",
        "type=linux-htb",
        "other_config:max-rate=1000000",
        "--",
        "set",
        "port",
        &port,
        "qos=@shared",
        "--",
        "set",
        "port",
        "br-int",
        "qos=@shared",
    ])
    .unwrap();
    pod.del().unwrap().success().unwrap();
    assert_eq!(qos(&node).len(), 1);
    let ports = node.ovsdb_rows("Port").unwrap();
    let bridge = ports.iter().find(|port| port["name"] == "br-int").unwrap();
    assert_eq!(bridge["qos"], qos(&node)[0]["_uuid"]);
}
