//! OVN mode on two machines: pods of both reach each other through OVN's tunnel, and what a pod leaves behind is nothing.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::net::IpAddr;

use podwire_tests::ovn::{Central, LogicalPort, OvnNode};
use podwire_tests::{Pod, traffic};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A pod with its logical port made and its annotation written.
fn pod<'node>(
    central: &Central,
    node: &'node OvnNode,
    name: &str,
    number: u8,
) -> (Pod<'node>, LogicalPort) {
    let pod = node.pod(name).unwrap();
    let port = LogicalPort::of(&pod, node, number);
    central.add_port(&port).unwrap();
    (pod.on_default_network(&port.entry()), port)
}

#[test]
fn pods_on_two_nodes_reach_each_other_and_are_gone_after_del() {
    let central = Central::start().unwrap();
    let nodes = [
        central.node("node-a", 1).unwrap(),
        central.node("node-b", 2).unwrap(),
    ];
    nodes
        .iter()
        .for_each(|node| central.add_switch(node).unwrap());
    let agents = nodes
        .each_ref()
        .map(|node| node.start_agent(&OvnNode::agent_options()).unwrap());
    let [(web, web_port), (db, db_port)] = [
        pod(&central, &nodes[0], "web", 11),
        pod(&central, &nodes[1], "db", 12),
    ];
    for pod in [&web, &db] {
        pod.add().unwrap().success().unwrap();
    }

    for address in [db_port.ipv4(), db_port.ipv6()] {
        traffic::ping_until_answered(web.place(), ip(&address)).unwrap();
        traffic::ping(web.place(), ip(&address), 5).unwrap();
        traffic::tcp_echo(web.place(), db.place(), ip(&address), 1 << 20).unwrap();
    }

    for (pod, port) in [(&web, &web_port), (&db, &db_port)] {
        central.await_up(&port.name, true).unwrap();
        pod.del().unwrap().success().unwrap();
        central.await_up(&port.name, false).unwrap();
    }
    drop(agents);
    for node in &nodes {
        node.leftovers().unwrap().assert_none();
    }
}
