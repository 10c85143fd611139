//! OVN mode on two machines: pods of both reach each other through OVN's tunnel, move, come back,
//! and leave nothing behind.

use std::net::IpAddr;
use std::thread;

use podwire_tests::ovn::{Central, LogicalPort, OvnNode};
use podwire_tests::{Agent, Pod, traffic};
use serde_json::Value;

fn agent(node: &OvnNode) -> Agent<'_> {
    node.start_agent(&OvnNode::agent_options())
}

/// An agent that waits a second for what can't come.
fn impatient_agent(node: &OvnNode) -> Agent<'_> {
    let options = OvnNode::agent_options().with("--add-timeout 1");
    node.start_agent(&options)
}

/// Pings and TCP from a pod to another's address of each family.
fn assert_reaches(from: &Pod<'_>, to: &Pod<'_>, port: &LogicalPort) {
    for address in [port.ipv4(), port.ipv6()] {
        let address: IpAddr = address.parse().unwrap();
        traffic::ping_until_answered(from.place(), address).unwrap();
        traffic::ping(from.place(), address, 3).unwrap();
        traffic::tcp_echo(from.place(), to.place(), address, 1 << 20).unwrap();
    }
}

/// The uuid of a sandbox' Interface row.
fn row(node: &OvnNode, pod: &Pod<'_>) -> Value {
    let row = node.interface_of(&pod.container).unwrap();
    row["_uuid"].clone()
}

#[test]
fn pods_on_two_nodes_reach_each_other_and_are_down_and_gone_after_del() {
    let (central, nodes) = Central::with_two_nodes();
    let agents = nodes.each_ref().map(agent);
    let (web, web_port) = central.schedule(&nodes[0], "web", 11);
    let (db, db_port) = central.schedule(&nodes[1], "db", 12);
    for pod in [&web, &db] {
        pod.add().success();
    }
    assert_reaches(&web, &db, &db_port);
    assert_reaches(&db, &web, &web_port);

    for (pod, port) in [(&web, &web_port), (&db, &db_port)] {
        central.await_up(&port.name, true);
        pod.del().success();
        central.await_up(&port.name, false);
    }
    drop(agents);
    for node in &nodes {
        node.leftovers().assert_none();
    }
}

#[test]
fn a_pod_that_moves_works_on_its_new_node_and_leaves_nothing_on_the_old_one() {
    let (central, nodes) = Central::with_two_nodes();
    let _agents = nodes.each_ref().map(agent);
    let (peer, _) = central.schedule(&nodes[0], "peer", 20);
    let (old, old_port) = central.schedule(&nodes[0], "web", 11);
    for pod in [&peer, &old] {
        pod.add().success();
    }

    // As a StatefulSet's pod moves: another uid under the same name, on the other node, before the
    // old sandbox is torn down.
    central.remove_port(&old_port.name);
    let (new, new_port) = central.schedule(&nodes[1], "web", 11);
    assert_eq!(new_port.name, old_port.name);
    new.add().success();
    assert_reaches(&peer, &new, &new_port);

    old.del().success();
    assert_reaches(&peer, &new, &new_port);
    assert!(node_has_no(&nodes[0], &old));
    peer.del().success();
    nodes[0].leftovers().assert_none();
}

fn node_has_no(node: &OvnNode, pod: &Pod<'_>) -> bool {
    node.interface_of(&pod.container).is_none()
}

#[test]
fn the_late_add_of_an_old_sandbox_is_refused_and_the_new_one_stays_connected() {
    let (central, node) = Central::with_node();
    let patient = agent(&node);
    let (peer, peer_port) = central.schedule(&node, "peer", 20);
    let (new, new_port) = central.schedule(&node, "web", 11);
    // The pod before it had the same name and address, and its sandbox' ADD is still to come.
    let old = node.pod("web").on_default_network(&new_port.entry());
    for pod in [&peer, &new] {
        pod.add().success();
    }
    drop(patient);

    let _impatient = impatient_agent(&node);
    let refusal = old.add().error();
    assert_eq!(refusal.code, 11);
    for uid in [&old.uid, &new.uid] {
        assert!(refusal.msg.contains(uid), "{}", refusal.msg);
    }
    assert!(node_has_no(&node, &old));
    node.await_installed(&new.container, true);
    assert_reaches(&peer, &new, &new_port);
    assert_reaches(&new, &peer, &peer_port);
    for pod in [&new, &peer, &old] {
        pod.del().success();
    }
    node.leftovers().assert_none();
}

#[test]
fn an_add_that_comes_before_the_logical_port_ends_when_that_is_made() {
    let (central, node) = Central::with_node();
    let _agent = agent(&node);
    let (web, port) = central.announce(&node, "web", 11);
    thread::scope(|scope| {
        let add = scope.spawn(|| web.add());
        node.await_ofport_of(&web.container);
        assert!(!add.is_finished());
        central.add_port(&port);
        add.join().unwrap().success();
    });
    let row = node.interface_of(&web.container).unwrap();
    assert_eq!(row["external_ids"]["ovn-installed"], "true");
}

#[test]
fn a_live_pod_whose_logical_port_vanishes_and_returns_is_left_alone() {
    let (central, node) = Central::with_node();
    let agent = agent(&node);
    let (peer, _) = central.schedule(&node, "peer", 20);
    let (web, port) = central.schedule(&node, "web", 11);
    for pod in [&peer, &web] {
        pod.add().success();
    }
    let before = row(&node, &web);
    central.remove_port(&port.name);
    node.await_installed(&web.container, false);
    central.add_port(&port);
    node.await_installed(&web.container, true);
    assert_eq!(row(&node, &web), before);
    assert_reaches(&peer, &web, &port);
    assert!(agent.get_json("/v1/health")["ready"].as_bool().unwrap());
}

#[test]
fn a_retried_add_replaces_the_row_and_does_not_believe_the_old_ones_installed() {
    let (central, node) = Central::with_node();
    let patient = agent(&node);
    let (first, port) = central.schedule(&node, "web", 11);
    first.add().success();
    let before = row(&node, &first);
    drop(patient);

    let impatient = impatient_agent(&node);
    // With ovn-controller stopped nobody can write the key anew: an answer of success would be the
    // old row's.
    node.signal_controller(nix::sys::signal::Signal::SIGSTOP);
    let second = first.another_sandbox();
    let refusal = second.add().error();
    assert!(
        refusal.msg.contains("ovn-controller does not answer"),
        "{}",
        refusal.msg
    );
    node.signal_controller(nix::sys::signal::Signal::SIGCONT);
    drop(impatient);

    let _agent = agent(&node);
    let third = first.another_sandbox();
    third.add().success();
    assert_ne!(row(&node, &third), before);
    let bearers = node.ovsdb_rows("Interface").into_iter();
    let bearers = bearers.filter(|row| row["external_ids"]["iface-id"] == port.name.as_str());
    assert_eq!(bearers.count(), 1);
}

#[test]
fn the_row_bears_what_ovn_kubernetes_and_its_tools_look_for() {
    let (central, node) = Central::with_node();
    let _agent = agent(&node);
    let (web, port) = central.schedule(&node, "web", 11);
    web.add().success();
    let ids = node.interface_of(&web.container).unwrap()["external_ids"].clone();
    assert_eq!(ids["iface-id"], "tests_web");
    assert_eq!(ids["iface-id-ver"], web.uid.as_str());
    assert_eq!(ids["attached_mac"], port.mac().as_str());
    assert_eq!(ids["sandbox"], web.container.as_str());
    for default_network_has_none in ["k8s.ovn.org/network", "k8s.ovn.org/nad"] {
        assert!(ids.get(default_network_has_none).is_none());
    }
}
