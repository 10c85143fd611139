//! What comes to a node from outside with an address of the pods' networks as its source: network
//! policies would believe it.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use serde_json::json;

use crate::{Cluster, ENDS, LIMIT, endpoints, machines, service};

/// Of the pods' networks, but the node has a route of its own to it.
const BY_ROUTE: [&str; 2] = ["10.129.7.9", "fd00:10:128:77::9"];

/// Another node's management port and pod, this node's port, and a pod beside the one asked.
const FORGED: [[&str; 4]; 2] = [
    ["10.128.2.2", "10.128.2.11", "10.128.1.2", "10.128.1.12"],
    [
        "fd00:10:128:2::2",
        "fd00:10:128:2::b",
        "fd00:10:128:1::2",
        "fd00:10:128:1::c",
    ],
];

#[test]
fn no_machine_outside_reaches_pods_with_an_address_of_nodes_or_pods() {
    let (v4, v6, node) = ENDS[0];
    let mut objects = Vec::new();
    for (n, is_v4, address) in [(10, true, v4), (11, false, v6)] {
        let name = format!("web-{n}");
        objects.push(service(&name, n, is_v4, json!({})));
        objects.push(endpoints(&name, &[(address, node)]));
    }
    let (central, nodes) = machines();
    let cluster = Cluster::start(&central, &nodes, &objects);
    // It is not the kernel that drops them, which has no such filter for IPv6.
    for link in ["all", nodes[0].uplink()] {
        let path = format!("/proc/sys/net/ipv4/conf/{link}/rp_filter");
        nodes[0].place().run(|| fs::write(path, "0")).unwrap();
    }
    let machine = central.machine();
    for (net, by) in [
        ("10.128.1.0/24", "172.31.0.2"),
        ("fd00:10:128:1::/64", "fd00:31::2"),
    ] {
        machine.run("ip", ["route", "add", net, "via", by]);
    }
    // On the loopback, so that neighbours are not asked with them.
    for address in FORGED.as_flattened().iter().chain(&BY_ROUTE) {
        machine.run("ip", ["address", "add", address, "dev", "lo"]);
    }
    for (to, by) in BY_ROUTE.iter().zip(["172.31.0.1", "fd00:31::1"]) {
        nodes[0].run("ip", ["route", "add", to, "via", by]);
    }
    let pod = cluster.pods[0].place();
    let ends = [
        (v4, "172.31.0.1", "172.31.0.2:30010"),
        (v6, "fd00:31::1", "[fd00:31::2]:30011"),
    ];
    let mut arrived = Vec::new();
    let sources = FORGED.into_iter().zip(BY_ROUTE);
    for ((address, own, node_port), (forged, by_route)) in ends.into_iter().zip(sources) {
        let listening = SocketAddr::new(address.parse().unwrap(), 8080);
        let server = pod.run(|| UdpSocket::bind(listening)).unwrap();
        server.set_read_timeout(Some(LIMIT)).unwrap();
        for to in [listening, node_port.parse().unwrap()] {
            let send = |from: &str| {
                let from_ip: IpAddr = from.parse().unwrap();
                let socket = machine.place().run(|| UdpSocket::bind((from_ip, 0)));
                socket.unwrap().send_to(from.as_bytes(), to).unwrap();
            };
            let hears = || {
                let mut bytes = [0; 64];
                let (length, _) = server.recv_from(&mut bytes).unwrap();
                std::str::from_utf8(&bytes[..length]).unwrap().to_owned()
            };
            for from in [own, by_route] {
                send(from);
                assert_eq!(hears(), from);
            }
            // They take the same way, so what was sent last is heard last.
            forged.iter().for_each(|from| send(from));
            send(own);
            let believed = std::iter::from_fn(|| Some(hears()).filter(|from| from != own));
            arrived.extend(believed.map(|from| format!("{from} to {to}")));
        }
    }
    assert!(arrived.is_empty(), "{arrived:#?}");
    cluster.end();
}
