//! The database is lost while pods live, or outlives them: ports come back, or go.

use std::net::IpAddr;

use podwire_tests::annotation::{GATEWAY_V4, GATEWAY_V6, ipv4, ipv6};
use podwire_tests::{Agent, AgentOptions, Pod, TestNode, links, traffic};
use serde_json::json;

fn start(node: &TestNode) -> Agent<'_> {
    node.start_agent(&AgentOptions::for_numbered_pods())
}

fn host_end<'pod>(pod: &'pod Pod<'_>) -> &'pod str {
    pod.host_link()
}

/// Both pods have their ports again, talk to each other and to the node by both families, and are
/// as CHECK wants them.
fn assert_alive(node: &TestNode, pods: [&Pod<'_>; 2]) {
    for pod in pods {
        node.await_ofport(host_end(pod)).unwrap();
    }
    // The gateway comes back by itself, once the bridge's own port is in use: perhaps after those
    // of the pods.
    let gateways = [format!("{GATEWAY_V4}/24"), format!("{GATEWAY_V6}/64")];
    let gateways = gateways.each_ref().map(String::as_str);
    links::await_addresses(node.place(), "br-int", &gateways);
    for address in [ipv4(12), ipv6(12)] {
        let address: IpAddr = address.parse().unwrap();
        traffic::ping(pods[0].place(), address, 2).unwrap();
        traffic::ping(node.place(), address, 2).unwrap();
        traffic::tcp_echo(pods[0].place(), pods[1].place(), address, 1 << 16).unwrap();
    }
}

#[test]
fn ports_of_living_pods_come_back_when_the_database_is_begun_anew() {
    let node = TestNode::with_ovs();
    let agent = start(&node);
    let [one, two] = [11, 12].map(|number| node.wired_pod(number));
    let before = links::find(one.place(), "eth0").unwrap().index;
    let ids = |pod: &Pod<'_>| node.interface_of(&pod.container).unwrap()["external_ids"].clone();
    let recorded = ids(&one);
    node.lose_database();
    node.start_ovsdb_server();
    assert_alive(&node, [&one, &two]);
    assert_eq!(ids(&one), recorded);
    assert_eq!(links::find(one.place(), "eth0").unwrap().index, before);
    agent.await_ready(true);
    let third = node.wired_pod(13);
    for pod in [&one, &two, &third] {
        pod.del().success();
    }
    node.leftovers().assert_none();
}

#[test]
fn ports_of_living_pods_come_back_when_the_whole_open_vswitch_is_replaced() {
    let node = TestNode::with_ovs();
    let _agent = start(&node);
    let [one, two] = [11, 12].map(|number| node.wired_pod(number));
    node.kill_vswitchd();
    node.lose_database();
    node.start_ovsdb_server();
    node.start_vswitchd();
    assert_alive(&node, [&one, &two]);
}

#[test]
fn ports_of_living_pods_come_back_when_nobody_saw_the_database_go() {
    let node = TestNode::with_ovs();
    let agent = start(&node);
    let [one, two] = [11, 12].map(|number| node.wired_pod(number));
    agent.stop();
    node.lose_database();
    node.start_ovsdb_server();
    let _agent = start(&node);
    assert_alive(&node, [&one, &two]);
}

#[test]
fn ports_of_living_pods_come_back_with_a_bridge_that_somebody_removed() {
    let node = TestNode::with_ovs();
    let _agent = start(&node);
    let [one, two] = [11, 12].map(|number| node.wired_pod(number));
    node.vsctl("del-br br-int");
    assert_alive(&node, [&one, &two]);
}

#[test]
fn in_ovn_mode_ports_come_back_once_ovn_controller_has_made_the_bridge_again() {
    let node = TestNode::with_ovs();
    node.add_bridge("br-int");
    let options = AgentOptions::default().with("--mode ovn --wait ofport");
    let agent = Agent::launch(&node, &options).unwrap();
    let [one, two] = [11, 12].map(|number| node.wired_pod(number));
    node.lose_database();
    node.start_ovsdb_server();
    node.await_vswitchd();
    // An ADD is refused only by a replica in sync, and then whoever would make the bridge has had
    // its chance.
    let third = node.numbered_pod(13);
    third.add().error();
    assert!(
        node.ovsdb_rows("Bridge").is_empty(),
        "it is not ours to make"
    );
    node.add_bridge("br-int");
    for pod in [&one, &two] {
        node.await_ofport(host_end(pod)).unwrap();
    }
    traffic::ping(one.place(), ipv4(12).parse().unwrap(), 2).unwrap();
    drop(agent);
}

#[test]
fn of_a_pod_that_ended_while_the_database_was_lost_nothing_comes_back() {
    let node = TestNode::with_ovs();
    let agent = start(&node);
    let [one, two, mut gone] = [11, 12, 13].map(|number| node.wired_pod(number));
    let recorder = links::LinkRecorder::start(node.place());
    node.lose_database();
    gone.remove_netns();
    recorder.await_gone(host_end(&gone));
    node.start_ovsdb_server();
    assert_alive(&node, [&one, &two]);
    agent.await_log("ports of running pods; restored them");
    assert!(node.interface_of(&gone.container).is_none());
    // Its address is free for another pod.
    let other = node.wired_pod(13);
    for pod in [&one, &two, &other] {
        pod.del().success();
    }
    node.leftovers().assert_none();
}

#[test]
fn of_two_sandboxes_of_one_pod_the_newer_keeps_the_port_when_the_database_is_lost() {
    let node = TestNode::with_ovs();
    let _agent = start(&node);
    let old = node.wired_pod(11);
    let new = old.another_sandbox();
    new.add().success();
    let other = node.wired_pod(12);
    node.lose_database();
    node.start_ovsdb_server();
    assert_alive(&node, [&new, &other]);
    assert!(node.interface_of(&old.container).is_none());
}

#[test]
fn rows_that_outlived_a_reboot_go_before_the_first_add_is_served_and_others_stay() {
    let node = TestNode::with_ovs();
    let agent = start(&node);
    let [gone, living] = [11, 12].map(|number| node.wired_pod(number));
    agent.kill();
    // What a reboot takes: links, namespaces and all of /run. What of ours still has a link is kept
    // even without a record.
    node.run("ip", format!("link del {}", host_end(&gone)));
    std::fs::remove_dir_all(node.path("/run/podwire")).unwrap();
    // As ovn-kubernetes writes it, for a link that is not there.
    node.ovsdb()
        .transact(&[
            json!({"op": "insert", "table": "Interface", "uuid-name": "i",
                "row": {"name": "0123456789abcde",
                "external_ids": ["map", [["sandbox", "0123456789abcdef"], ["iface-id",
                "ns_foreign"]]]}}),
            json!({"op": "insert", "table": "Port", "uuid-name": "p",
                "row": {"name": "0123456789abcde", "interfaces": ["named-uuid", "i"]}}),
            json!({"op": "mutate", "table": "Bridge", "where": [["name", "==", "br-int"]],
                "mutations": [["ports", "insert", ["set", [["named-uuid", "p"]]]]]}),
        ])
        .unwrap();

    let _agent = start(&node);
    assert!(node.interface_of(&gone.container).is_none());
    assert!(node.interface_of(&living.container).is_some());
    assert!(node.interface_of("0123456789abcdef").is_some());
    traffic::ping(node.place(), ipv4(12).parse().unwrap(), 1).unwrap();
    let again = node.wired_pod(11);
    again.del().success();
}
