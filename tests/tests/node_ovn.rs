//! A machine that `podwire node init` made a part of a real OVN network: what goes between the host,
//! a pod, a service and the outside.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::traffic;

#[test]
fn host_and_pod_reach_each_other_and_the_pod_reaches_the_outside() {
    let central = Central::start().unwrap();
    let node = central.node_without_controller("node-a", 1).unwrap();
    node.make_bridge().unwrap();
    node.start_controller().unwrap();
    let uplink = node.uplink();
    let init = [
        &[
            "node",
            "init",
            "--node-name",
            "node-a",
            "--interface",
            uplink,
        ][..],
        &[
            "--node-subnet",
            "10.128.1.0/24",
            "--cluster-subnet",
            "10.128.0.0/14",
        ],
        &[
            "--service-cidr",
            "10.96.0.0/16",
            "--ovn-remote",
            "tcp:172.31.0.1:6642",
        ],
    ];
    let done = node.podwire(&init.concat()).unwrap();
    done.success("podwire node init").unwrap();
    // ovn-controller has joined by what init told it.
    central.await_chassis("node-a").unwrap();

    // The controller's part: the switch, the management port's logical port, the way out, a service.
    central.add_switch(&node).unwrap();
    let nbctl = |arguments: &[&str]| central.nbctl(arguments).unwrap();
    nbctl(&["lsp-add", "node-a", "k8s-node-a"]);
    nbctl(&[
        "lsp-set-addresses",
        "k8s-node-a",
        "0a:58:0a:80:01:02 10.128.1.2",
    ]);
    nbctl(&[
        "--policy=src-ip",
        "lr-route-add",
        "cluster",
        "10.128.1.0/24",
        "10.128.1.2",
    ]);
    nbctl(&["lb-add", "web", "10.96.0.10:80", "10.128.1.11:8080", "tcp"]);
    nbctl(&["ls-lb-add", "node-a", "web"]);
    central.await_up("k8s-node-a", true).unwrap();

    let _agent = node.start_agent(&OvnNode::agent_options()).unwrap();
    let (pod, port) = central.schedule(&node, "web", 11).unwrap();
    pod.add().unwrap().success().unwrap();
    central.sync().unwrap();
    let (host, outside) = (node.place(), central.machine().place());
    let address = port.ipv4().parse().unwrap();
    traffic::ping_until_answered(host, address).unwrap();
    traffic::tcp_echo(host, pod.place(), address, 1 << 16).unwrap();
    let (listening, service) = ("10.128.1.11:8080", "10.96.0.10:80");
    let service = Some(service.parse().unwrap());
    traffic::tcp_echo_by(
        host,
        pod.place(),
        listening.parse().unwrap(),
        service,
        1 << 16,
    )
    .unwrap();
    // The outside knows no way to pods: an answer is one to the node's own address.
    let central_address = "172.31.0.1".parse().unwrap();
    traffic::tcp_echo(pod.place(), outside, central_address, 1 << 16).unwrap();
    traffic::udp_echo(pod.place(), outside, central_address, 1000).unwrap();

    pod.del().unwrap().success().unwrap();
    let done = node.podwire(&["node", "cleanup"]).unwrap();
    done.success("podwire node cleanup").unwrap();
    node.leftovers().unwrap().assert_none();
}
