//! Bandwidth limits of pods: on the rows of their ports, gone with them, and nobody else's touched.

use podwire_tests::annotation::entry;
use podwire_tests::{AgentOptions, Pod, Row, TestNode, conf};
use serde_json::{Value, json};

fn limited(ingress: u64, egress: u64) -> Value {
    let mut conf = conf();
    conf["capabilities"]["bandwidth"] = json!(true);
    conf["runtimeConfig"] = json!({"bandwidth": {
        "ingressRate": ingress, "ingressBurst": 8_000_000, "egressRate": egress,
        "egressBurst": 8_000_000,
    }});
    conf
}

fn shaped_pod(node: &TestNode, number: u8) -> Pod<'_> {
    let pod = node
        .pod(&format!("web-{number}"))
        .on_default_network(&entry(number));
    pod.exec("ADD", &limited(20_000_000, 10_000_000)).success();
    pod
}

fn port_of(node: &TestNode, pod: &Pod<'_>) -> Row {
    let interface = node.interface_of(&pod.container).unwrap();
    let ports = node.ovsdb_rows("Port");
    let port = ports
        .into_iter()
        .find(|port| port["name"] == interface["name"]);
    port.unwrap()
}

fn qos(node: &TestNode) -> Vec<Row> {
    node.ovsdb_rows("QoS")
}

#[test]
fn a_pod_is_limited_both_ways_and_its_limits_go_with_it() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.numbered_pod(11);
    pod.exec("ADD", &limited(20_000_000, 10_000_000)).success();

    let interface = node.interface_of(&pod.container).unwrap();
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

    pod.del().success();
    node.leftovers().assert_none();
}

#[test]
fn a_sandbox_that_takes_another_ones_place_takes_its_limits_away() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let first = node.numbered_pod(11);
    first.exec("ADD", &limited(20_000_000, 0)).success();
    let second = first.another_sandbox();
    second.exec("ADD", &limited(0, 10_000_000)).success();
    assert!(qos(&node).is_empty(), "{:?}", qos(&node));
    second.del().success();
    first.del().success();
    node.leftovers().assert_none();
}

#[test]
fn qos_rows_of_other_writers_stay() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.wired_pod(11);
    // An operator's row, shared by the pod's port and the bridge's own.
    let port = port_of(&node, &pod)["name"].as_str().unwrap().to_owned();
    node.vsctl(format!(
        "--id=@shared create qos type=linux-htb other_config:max-rate=1000000 -- set port \
         {port} qos=@shared -- set port br-int qos=@shared"
    ));
    pod.del().success();
    assert_eq!(qos(&node).len(), 1);
    let ports = node.ovsdb_rows("Port");
    let bridge = ports.iter().find(|port| port["name"] == "br-int").unwrap();
    assert_eq!(bridge["qos"], qos(&node)[0]["_uuid"]);
}

/// What `ovs-vsctl` removes of a shaped pod's port leaves its QoS row, a root row, behind.
#[test]
fn a_qos_row_whose_port_somebody_removed_goes_with_the_pod() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = shaped_pod(&node, 11);
    let port = port_of(&node, &pod)["name"].as_str().unwrap().to_owned();
    node.vsctl(format!("del-port {port}"));
    pod.del().success();
    assert!(qos(&node).is_empty(), "{:?}", qos(&node));
}

#[test]
fn ports_that_come_back_leave_no_qos_row_of_their_earlier_ones() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pods = [11, 12].map(|number| shaped_pod(&node, number));
    node.vsctl("del-br br-int");
    for pod in &pods {
        node.await_ofport_of(&pod.container);
    }
    agent.await_ready(true);
    assert_eq!(qos(&node).len(), 2, "one each: {:?}", qos(&node));
    for pod in &pods {
        pod.del().success();
    }
    assert!(qos(&node).is_empty(), "{:?}", qos(&node));
}

#[test]
fn qos_rows_that_no_port_uses_are_removed_by_gc_and_at_start_and_others_are_not() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let unused = |id: &str, keys: &str| {
        node.vsctl(format!("create qos type=linux-htb {keys}"));
        assert!(qos(&node).len() > 1, "{id}");
    };
    // Another program's, without our keys.
    node.vsctl("create qos type=linux-htb external_ids:owner=me");
    unused("of a reboot", "external_ids:sandbox=abc");
    let done = node.podwire("gc --dry-run");
    assert_eq!(done.status.code(), Some(1), "{}", done.stdout);
    assert!(done.stdout.contains("1 QoS row"), "{}", done.stdout);
    let done = node.podwire("gc");
    assert_eq!(done.status.code(), Some(0), "{}", done.stdout);
    assert_eq!(qos(&node).len(), 1);
    let agent = agent.kill_and_restart_with(|| {
        unused("while no agent ran", "external_ids:sandbox=abc");
    });
    agent.await_ready(true);
    assert_eq!(qos(&node).len(), 1);
    assert_eq!(qos(&node)[0]["external_ids"]["owner"], "me");
}

/// The bridge is removed and made again all the time. An ADD whose bridge went just before its
/// transaction arrived is made on the new one, or leaves nothing.
#[test]
fn an_add_that_meets_a_bridge_made_anew_is_whole_or_leaves_nothing() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    for number in 11..31 {
        let pod = node
            .pod(&format!("web-{number}"))
            .on_default_network(&entry(number));
        let conf = limited(20_000_000, 0);
        let adding = pod.spawn("ADD", &conf);
        node.vsctl("del-br br-int");
        let added = adding.wait_with_output().unwrap().status.success();
        if added {
            node.await_ofport_of(&pod.container);
        }
        pod.del().success();
    }
    assert!(qos(&node).is_empty(), "{:?}", qos(&node));
}
