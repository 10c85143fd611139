//! podwire as a network of podman's CNI backend.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::net::IpAddr;

use podwire_tests::runtime::{Podman, documented};
use podwire_tests::{AgentOptions, Place, TestNode, links, traffic};

fn address(place: &Place) -> IpAddr {
    links::first_address(place, "eth0").unwrap()
}

#[test]
fn containers_run_reach_each_other_and_leave_nothing() {
    let node = TestNode::with_ovs().unwrap();
    let _agent = node.start_agent(&AgentOptions::default()).unwrap();
    let podman = Podman::start(&node, &documented("podman").unwrap()).unwrap();
    let web = podman.start_container("web").unwrap();
    podman.start_container("db").unwrap();

    let (web_place, db_place) = (podman.place("web").unwrap(), podman.place("db").unwrap());
    traffic::ping(node.place(), address(&web_place), 1).unwrap();
    traffic::tcp_echo(&web_place, &db_place, address(&db_place), 1 << 16).unwrap();
    let target = address(&db_place).to_string();
    podman
        .run(&["exec", "web", "ping", "-c", "1", &target])
        .unwrap();
    // podman names a container as a pod without a namespace.
    let row = node.interface_of(&web).unwrap().unwrap();
    assert_eq!(row["external_ids"]["iface-id"], "web");
    drop((web_place, db_place));

    podman
        .run(&["rm", "--force", "--time=0", "web", "db"])
        .unwrap();
    node.leftovers().unwrap().assert_none();
}
