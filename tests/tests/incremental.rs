//! What pods and labels cost OVN under network policies, by its daemons' own counters: members of
//! sets and groups, and nothing that is computed as a whole.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwire_tests::apiserver::{ApiServer, node, pod};
use podwire_tests::controller::Controller;
use podwire_tests::ovn::{Central, OvnNode};
use serde_json::{Value, json};

/// How often each is done: a run that has another cause is one of many.
const TIMES: u64 = 10;

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
    let (web, addresses) = node.wired(&server, "web", "web");
    let (client, client_addresses) = node.wired(&server, "client", "other");
    let (address, client_address) = (addresses[0], client_addresses[0]);
    server.apply(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": web.namespace, "name": "front", "uid": "uid-of-front" },
        "spec": {
            "podSelector": { "matchLabels": { "app": "web" } },
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "front" } } }] }],
        },
    }));
    // So that the set has more than one member, and always one.
    let (_friend, friend_addresses) = node.wired(&server, "friend", "front");
    let southbound = central.southbound();
    let await_member = |address: IpAddr, until: &str| {
        let condition = json!([["addresses", "includes", address.to_string()]]);
        let waited = southbound.wait("Address_Set", condition, until, &["name"], json!([]));
        waited.unwrap();
    };
    await_member(friend_addresses[0], "!=");
    central.sync();

    let (northd, ovn_controller) = (central.northd_runs(), node.controller_runs());
    for time in 0..=TIMES {
        let is_front = time % 2 == 0;
        let app = if is_front { "front" } else { "other" };
        server.apply(node.labelled(&client, app));
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
        let (pod, _) = node.wired(&server, &format!("pod-{time}"), "front");
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

/// Pods that come together.
const BURST: usize = 100;
/// Runs over everything that all of them may cost: ovn-northd takes up what it finds, and on OVN
/// 23.03 its own rows come back to it as changes. What it finds is 50 of a database's messages at
/// most (`ovsdb_idl_run`).
const RUNS: u64 = 4;

#[test]
fn pods_that_come_during_a_run_of_ovn_northd_share_the_next_ones() {
    let central = Central::start();
    let server = ApiServer::start_in(central.machine().place());
    server.apply(node("node-a", "192.0.2.1"));
    let controller = Controller::start(&central, &server, "one", "");
    controller.await_log("all rows are in sync");
    central.sync();

    // A run that lasts until all of them have come, and are written.
    let [_, northd] = central.pids();
    let signal = |signal| kill(Pid::from_raw(northd.cast_signed()), signal).unwrap();
    let before = central.northd_runs();
    signal(Signal::SIGSTOP);
    let name_of = |number| format!("pod-{number}");
    for number in 0..BURST {
        let name = name_of(number);
        let object = pod(
            "node-a",
            "default",
            &name,
            &format!("uid-of-{name}"),
            json!({}),
        );
        server.apply(object);
    }
    let is_written = |pod: &Value| {
        let annotations = &pod["metadata"]["annotations"];
        annotations.get("k8s.ovn.org/pod-networks").is_some()
    };
    for number in 0..BURST {
        server.await_object(("Pod", "default", &name_of(number)), is_written);
    }
    signal(Signal::SIGCONT);
    // It answers once everything is in the southbound database.
    central.sync();
    let after = central.northd_runs();
    for engine in ["northd", "lflow"] {
        let run = after.since(&before, engine);
        assert!(run.whole <= RUNS, "{engine}: {run:?}");
    }
    assert!(controller.stop().success());
}
