//! What pods and labels cost OVN under network policies, by its daemons' own counters: members of
//! sets and groups, and nothing that is computed as a whole.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use podwire_tests::Pod;
use podwire_tests::apiserver::{ApiServer, pod_on};
use podwire_tests::controller::Controller;
use podwire_tests::ovn::{Central, OvnNode};
use serde_json::{Value, json};

/// How often each is done: a run that has another cause is one of many.
const TIMES: u64 = 10;
const NETWORKS: &str = "k8s.ovn.org/pod-networks";

fn object(node: &OvnNode, pod: &Pod<'_>, app: &str) -> Value {
    let mut object = pod_on(&node.name, pod, json!({}));
    object["metadata"]["labels"] = json!({ "app": app });
    object
}

/// A pod with a label, wired.
fn wired<'n>(server: &ApiServer, node: &'n OvnNode, name: &str, app: &str) -> (Pod<'n>, IpAddr) {
    let pod = node.pod(name);
    server.apply(object(node, &pod, app));
    let is_there = |pod: &Value| pod["metadata"]["annotations"][NETWORKS].is_string();
    let object = server.await_object(("Pod", &pod.namespace, name), is_there);
    let entry = object["metadata"]["annotations"][NETWORKS].as_str();
    let entry: Value = serde_json::from_str(entry.unwrap()).unwrap();
    let entry = &entry["default"];
    let address = entry["ip_addresses"][0].as_str().unwrap();
    let address = address.split('/').next().unwrap().parse().unwrap();
    let pod = pod.on_default_network(entry);
    pod.add().success();
    (pod, address)
}

#[test]
fn a_label_and_a_pod_cost_members_and_no_whole_run_that_ovn_can_avoid() {
    let central = Central::start();
    let node = central.node("node-a", 1);
    let server = ApiServer::start_in(central.machine().place());
    server.apply(podwire_tests::apiserver::node(
        "node-a",
        &node.tunnel_address(),
    ));
    let controller = Controller::start(&central, &server, "one", "");
    controller.await_log("all rows are in sync");
    let agent = node.start_agent(&OvnNode::agent_options());
    let (web, address) = wired(&server, &node, "web", "web");
    let (client, client_address) = wired(&server, &node, "client", "other");
    server.apply(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": web.namespace, "name": "front", "uid": "uid-of-front" },
        "spec": {
            "podSelector": { "matchLabels": { "app": "web" } },
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "front" } } }] }],
        },
    }));
    // So that the set has more than one member, and always one.
    let (_friend, friend_address) = wired(&server, &node, "friend", "front");
    let southbound = central.southbound();
    let await_member = |address: IpAddr, until: &str| {
        let condition = json!([["addresses", "includes", address.to_string()]]);
        let waited = southbound.wait("Address_Set", condition, until, &["name"], json!([]));
        waited.unwrap();
    };
    await_member(friend_address, "!=");
    central.sync();

    let (northd, ovn_controller) = (central.northd_runs(), node.controller_runs());
    for time in 0..=TIMES {
        let is_front = time % 2 == 0;
        let app = if is_front { "front" } else { "other" };
        server.apply(object(&node, &client, app));
        await_member(client_address, if is_front { "!=" } else { "==" });
    }
    // Until its flows are in force.
    let to_web = SocketAddr::new(address, 8080);
    let _listener = web.place().run(|| TcpListener::bind(to_web)).unwrap();
    let connects = || {
        let limit = Duration::from_millis(500);
        client
            .place()
            .run(|| TcpStream::connect_timeout(&to_web, limit).is_ok())
    };
    let until = Instant::now() + Duration::from_secs(30);
    while !connects() {
        assert!(Instant::now() < until, "a label has no effect");
    }
    let (after, on_node) = (central.northd_runs(), node.controller_runs());
    for it in ["northd", "lflow"] {
        let run = after.since(&northd, it);
        assert!(run.whole < TIMES / 2, "labels, ovn-northd's {it}: {run:?}");
    }
    let flows = on_node.since(&ovn_controller, "logical_flow_output");
    assert!(
        flows.whole < TIMES / 2 && flows.steps > 0,
        "labels, ovn-controller: {flows:?}"
    );

    let (northd, ovn_controller) = (central.northd_runs(), node.controller_runs());
    for time in 0..TIMES {
        let (pod, _) = wired(&server, &node, &format!("pod-{time}"), "front");
        pod.del().success();
        server.delete(&pod.namespace, &pod.name);
    }
    let (after, on_node) = (central.northd_runs(), node.controller_runs());
    let flows = on_node.since(&ovn_controller, "logical_flow_output");
    assert!(
        flows.whole < TIMES / 2 && flows.steps > 0,
        "pods, ovn-controller: {flows:?}"
    );
    let run = after.since(&northd, "northd");
    // Since 25.03 at the latest a port, and a group's members, are steps for ovn-northd too.
    let version = central.machine().run("ovn-northd", "--version");
    let number = version.split_whitespace().nth(1).unwrap();
    let mut parts = number.split('.').map(|part| part.parse::<u32>().unwrap());
    let is_later = (parts.next(), parts.next()) >= (Some(25), Some(3));
    assert!(
        !is_later || run.whole < TIMES / 2,
        "pods, ovn-northd {number}: {run:?}"
    );
    drop(agent);
    assert!(controller.stop().success());
}
