//! The door of a node: when it says that it has one, what is restored, what cleanup leaves; and one
//! client that two nodes lead to the same pod.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::controller::Controller;
use podwire_tests::ovn::{BOTH_FAMILIES, Central, OvnNode, door};
use podwire_tests::{AgentOptions, NodeRun, traffic};
use serde_json::{Value, json};

const OUTSIDE: &str = "172.31.0.1";

/// The outside with a controller and its API server.
fn start() -> (Central, ApiServer, Controller) {
    let central = Central::start();
    let server = ApiServer::start_at(central.machine().place(), OUTSIDE.parse().unwrap());
    let controller = Controller::start(&central, &server, "one", BOTH_FAMILIES);
    controller.await_log("all rows are in sync");
    (central, server, controller)
}

fn bare(central: &Central, name: &str, number: u8) -> OvnNode {
    let node = central.bare_node(name, number);
    node.start_controller();
    node
}

#[test]
fn a_door_is_announced_while_it_is_there_restored_and_cleaned_up() {
    let (central, server, controller) = start();
    let node = bare(&central, "node-a", 1);
    let run = node.join(&central, &server);
    let says = |wanted: Option<&str>| {
        server.await_object(("Node", "", "node-a"), |node: &Value| door(node) == wanted);
    };
    says(Some("0a:58:0a:f4:00:02"));

    let (v4, v6) = (
        "rule and route of IPv4 by podwire-door",
        "rule and route of IPv6 by podwire-door",
    );
    let table = "nftables table netdev podwire-door";
    for (tool, damage, item, time) in [
        ("ip", "rule del table 28772", v4, 1),
        ("ip", "-6 rule del table 28772", v6, 1),
        ("ip", "route flush table 28772", v4, 2),
        ("ip", "address flush dev podwire-door", v4, 3),
        ("nft", "delete table netdev podwire-door", table, 1),
        ("nft", "flush chain netdev podwire-door out", table, 2),
        ("ip", "link set podwire-door down", "link podwire-door", 1),
        ("ovs-vsctl", "del-port podwire-door", "port podwire-door", 1),
    ] {
        node.run(tool, damage);
        run.await_log(&format!("restored {item}"), time);
    }
    // With the port, all that the kernel has on its link was gone.
    central.await_up("podwire-door-node-a", true);
    says(Some("0a:58:0a:f4:00:02"));
    let shown = node.podwire(node.joining("show", &server));
    assert_eq!(shown.status.code(), Some(0), "{}", shown.stdout);

    // Others must not use it once OVN has no such port.
    assert!(controller.stop().success());
    central.nbctl("lsp-del podwire-door-node-a");
    says(Some(""));

    run.stop();
    let api = format!("--node-name node-a --k8s-apiserver {}", server.url());
    let done = node.podwire(format!("node cleanup --cluster {api}"));
    done.success("podwire node cleanup");
    says(None);
    for (tool, list) in [
        ("ip", "rule"),
        ("ip", "-6 rule"),
        ("ip", "route show table all"),
        ("ip", "-6 route show table all"),
        ("ip", "link"),
        ("nft", "list ruleset"),
        ("ovs-vsctl", "show"),
    ] {
        let left = node.run(tool, list);
        for trace in ["podwire-door", "28772", "169.254.169.8"] {
            assert!(!left.contains(trace), "{tool} {list}: {left}");
        }
    }
}

#[test]
fn a_cleanup_of_the_machine_alone_says_that_there_is_no_door_any_more() {
    let (central, server, controller) = start();
    for (name, number, is_told) in [("node-a", 1, false), ("node-b", 2, true)] {
        let node = bare(&central, name, number);
        let run = node.join(&central, &server);
        let is_there = |node: &Value| door(node).is_some_and(|mac| !mac.is_empty());
        server.await_object(("Node", "", name), is_there);
        run.stop();
        let api = match is_told {
            true => format!("--k8s-apiserver {}", server.url()),
            false => String::new(),
        };
        let done = node.podwire(format!("node cleanup --node-name {name} {api}"));
        let said = done.success("podwire node cleanup");
        let note = format!("note: the annotation k8s.ovn.org/podwire-door-mac of node {name} may");
        assert_eq!(said.contains(&note), !is_told, "{said}");
        let object = server.object("Node", "", name).unwrap();
        assert_eq!(door(&object).is_some(), !is_told, "{object}");
        assert!(!object["metadata"]["annotations"]["k8s.ovn.org/host-addresses"].is_null());
    }
    assert!(controller.stop().success());
}

/// The node port of [`publish`].
const NODE_PORT: u16 = 30080;

/// Has all nodes lead a node port of UDP and TCP to port 8080 of these addresses on the last one.
fn publish(
    (central, server): (&Central, &ApiServer),
    nodes: &[OvnNode],
    runs: &[NodeRun],
    addresses: &[IpAddr],
) {
    let mut service = apiserver::service("tests", "web", "10.96.0.10", 80);
    let spec = &mut service["spec"];
    spec["type"] = "NodePort".into();
    spec["clusterIPs"] = json!(["10.96.0.10", "fd00:96::10"]);
    let ports = |port: u16| {
        let of = |protocol: &str| {
            let name = protocol.to_lowercase();
            json!({ "name": name, "protocol": protocol, "port": port, "nodePort": NODE_PORT,
                    "targetPort": 8080 })
        };
        json!([of("TCP"), of("UDP")])
    };
    spec["ports"] = ports(80);
    for address in addresses {
        let mut slice = apiserver::endpoints("tests", "web", &[&address.to_string()], 8080);
        slice["ports"] = ports(8080);
        slice["endpoints"][0]["nodeName"] = nodes.last().map(|it| &*it.name).into();
        if address.is_ipv6() {
            slice["addressType"] = "IPv6".into();
            slice["metadata"]["name"] = "web-6".into();
        }
        server.apply(slice);
    }
    server.apply(service);
    for (node, run) in nodes.iter().zip(runs) {
        let others = nodes.iter().map(|it| &*it.name);
        let others: Vec<&str> = others.filter(|it| *it != node.name).collect();
        node.await_doors(server, run, &others);
        let is_there = || {
            let table = node.run("nft", "list table inet podwire-services");
            let mut all = addresses.iter().map(IpAddr::to_string);
            table.contains("30080") && all.all(|it| table.contains(&it))
        };
        run.await_services(is_there);
    }
    central.sync();
}

/// Whole packets from outside are larger than what the door and the pods' links take. Open
/// vSwitch's userspace datapath puts fragments together, and loses what is then too large.
#[test]
#[ignore = "wants the kernel's datapath: make test-kernel-doors"]
fn a_client_that_sends_more_than_the_door_takes_is_told_and_answered() {
    let (central, server, controller) = start();
    let nodes = [("node-a", 1), ("node-b", 2)];
    let nodes = nodes.map(|(name, number)| bare(&central, name, number));
    let runs = nodes.each_ref().map(|node| node.join(&central, &server));
    // Of the nodes' MTU, as a cluster's pods are.
    let options = AgentOptions::default().with("--mode ovn");
    let agent = nodes[1].start_agent(&options);
    let (web, addresses) = nodes[1].wired(&server, "web", "web");
    publish((&central, &server), &nodes, &runs, &addresses);
    let outside = central.machine();
    let asked = [nodes[0].tunnel_address(), nodes[0].underlay_ipv6()];
    for (address, asked) in addresses.iter().zip(&asked) {
        let listening = SocketAddr::new(*address, 8080);
        let by = SocketAddr::new(asked.parse().unwrap(), NODE_PORT);
        let told = format!("route get {asked}");
        assert!(!outside.run("ip", &told).contains("mtu"));
        let pod = web.place().run(|| UdpSocket::bind(listening)).unwrap();
        let any: IpAddr = if by.is_ipv4() { "0.0.0.0" } else { "::" }.parse().unwrap();
        let client = outside.place().run(|| UdpSocket::bind((any, 0))).unwrap();
        client.connect(by).unwrap();
        for socket in [&pod, &client] {
            let limit = Some(Duration::from_secs(1));
            socket.set_read_timeout(limit).unwrap();
        }
        let mut seen = [0; 2000];
        // The kernel tells the sender of a datagram that is too large in the addresses of a
        // connection that it knows: one to which a datagram has passed before.
        for sent in [vec![1; 10], vec![7; 1450]] {
            let source = (0..30).find_map(|_| {
                // The error of the datagram before is told here.
                let _ = client.send(&sent);
                let (length, source) = pod.recv_from(&mut seen).ok()?;
                (length == sent.len()).then_some(source)
            });
            let source = source.unwrap_or_else(|| {
                let shown = outside.run("ip", &told);
                panic!("{} bytes did not come by {by}: {shown}", sent.len())
            });
            assert_eq!(seen[..sent.len()], sent);
            let ip = if by.is_ipv4() { OUTSIDE } else { "fd00:31::1" };
            assert_eq!(source.ip().to_string(), ip);
            pod.send_to(&sent, source).unwrap();
            let answered = (0..30).find_map(|_| client.recv(&mut seen).ok());
            assert_eq!(answered, Some(sent.len()), "{by}");
        }
        assert!(outside.run("ip", &told).contains("mtu 1442"), "{by}");
        drop((pod, client));
        let places = (outside.place(), web.place());
        traffic::udp_echo_by(places.0, places.1, listening, Some(by), 4000).unwrap();
        outside.run("ip", "route flush cache");
        outside.run("ip", "-6 route flush cache");
        traffic::tcp_echo_by(places.0, places.1, listening, Some(by), 1 << 20).unwrap();
    }
    drop(agent);
    for run in runs {
        run.stop();
    }
    assert!(controller.stop().success());
}

#[test]
fn two_connections_from_one_port_by_two_nodes_stay_apart() {
    let (central, server, controller) = start();
    let nodes = [("node-a", 1), ("node-b", 2), ("node-c", 3)];
    let nodes = nodes.map(|(name, number)| bare(&central, name, number));
    let runs = nodes.each_ref().map(|node| node.join(&central, &server));
    let agent = nodes[2].start_agent(&OvnNode::agent_options());
    let (web, addresses) = nodes[2].wired(&server, "web", "web");
    let at = SocketAddr::new(addresses[0], 8080);
    let listening = web.place().run(|| UdpSocket::bind(at)).unwrap();
    thread::spawn(move || {
        while let Ok((_, peer)) = listening.recv_from(&mut [0; 64]) {
            let _ = listening.send_to(peer.to_string().as_bytes(), peer);
        }
    });
    publish((&central, &server), &nodes, &runs, &addresses);

    let client = central
        .machine()
        .place()
        .run(|| UdpSocket::bind((OUTSIDE, 5555)));
    let client = client.unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    // What the pod sees of the client by a node; the answer comes from that node's address.
    let by = |node: &OvnNode| -> SocketAddr {
        let asked = SocketAddr::new(node.tunnel_address().parse().unwrap(), NODE_PORT);
        let mut text = [0; 64];
        let answer = (0..10).find_map(|_| {
            client.send_to(b"who", asked).unwrap();
            client.recv_from(&mut text).ok()
        });
        let (length, from) = answer.unwrap_or_else(|| panic!("no answer by {asked}"));
        assert_eq!(from, asked);
        std::str::from_utf8(&text[..length])
            .unwrap()
            .parse()
            .unwrap()
    };
    let seen = [&nodes[0], &nodes[1], &nodes[0], &nodes[1]].map(by);
    assert_eq!(seen[0], SocketAddr::new(OUTSIDE.parse().unwrap(), 5555));
    assert_eq!(seen[1].ip(), seen[0].ip());
    assert_ne!(
        seen[1].port(),
        5555,
        "both are one connection to the pod's node"
    );
    assert_eq!(seen[..2], seen[2..]);
    drop(agent);
    for run in runs {
        run.stop();
    }
    assert!(controller.stop().success());
}
