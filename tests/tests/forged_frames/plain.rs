//! In plain mode: pods of the agent and the node role on two nodes, with tunnels between them.

use std::cell::RefCell;
use std::net::IpAddr;

use podwire_tests::apiserver::ApiServer;
use podwire_tests::machine::await_well;
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{AgentOptions, NodeRun, Pod, addresses, links, traffic};

use crate::build::{mac, udp};
use crate::catalogue::{End, Scene, forgeries};
use crate::layers::{FLOWS, Layer, NFTABLES, REVERSE_PATH, assert_documented, stopped_by};
use crate::scene::{Places, delete_flows, ears, flush_filters, forget_filter, underlay};

/// Of podwire's own tunnels, on either end.
const TUNNEL_KEY: u32 = 28791;

fn pod<'n>(node: &'n OvnNode, name: &str) -> (Pod<'n>, End) {
    let pod = node.pod(name);
    let given = addresses(&pod.add().success()).unwrap();
    let end = End {
        mac: mac(&links::find(pod.place(), "eth0").unwrap().mac),
        v4: given
            .iter()
            .find_map(|it| match it {
                IpAddr::V4(ip) => Some(*ip),
                IpAddr::V6(_) => None,
            })
            .unwrap(),
        v6: given
            .iter()
            .find_map(|it| match it {
                IpAddr::V6(ip) => Some(*ip),
                IpAddr::V4(_) => None,
            })
            .unwrap(),
    };
    (pod, end)
}

/// The pods' gateway, which is the node itself.
fn gateway(node: &OvnNode) -> End {
    let number = node.number;
    End {
        mac: mac(&links::find(node.place(), "br-int").unwrap().mac),
        v4: [10, 244, number, 1].into(),
        v6: format!("fd00:10:244:{number}::1").parse().unwrap(),
    }
}

#[test]
fn nobody_hears_what_a_pod_must_not_say() {
    let central = Central::start();
    let nodes = [("node-a", 1), ("node-b", 2)];
    let nodes = nodes.map(|(name, number)| central.bare_node(name, number));
    let (mut servers, mut runs, mut agents) = (Vec::new(), Vec::new(), Vec::new());
    let line = |verb: &str, node: &OvnNode, server: &ApiServer| {
        format!("{} --always-tunnel", node.plain_arguments(verb, server))
    };
    for node in &nodes {
        node.without_bridge();
        let server = ApiServer::start_in(node.place());
        nodes
            .iter()
            .for_each(|node| server.apply(node.plain_object()));
        runs.push(NodeRun::start(node, line("run", node, &server)));
        let options = AgentOptions::default().with("--subnet node");
        agents.push(node.start_agent(&options));
        servers.push(server);
    }
    for (node, server) in nodes.iter().zip(&servers) {
        await_well(node, line("show", node, server));
    }
    let (forger, own) = pod(&nodes[0], "forger");
    let (beside, neighbour) = pod(&nodes[0], "neighbour");
    let (far, other) = pod(&nodes[1], "other");
    let scene = Scene {
        own,
        neighbour,
        gateway: gateway(&nodes[0]),
        host: gateway(&nodes[0]),
        other,
        other_host: gateway(&nodes[1]),
        nodes: [underlay(&nodes[0]), underlay(&nodes[1])],
        database: ["172.31.0.1", "fd00:31::1"].map(|it| it.parse().unwrap()),
        ports: &[6640],
        host_end: mac(&links::find(nodes[0].place(), forger.host_link())
            .unwrap()
            .mac),
    };
    let end = mac(&links::find(nodes[1].place(), "podwire-tun").unwrap().mac);
    let tunnelled = |tag: &[u8]| {
        let mut header = vec![0, 0, 0x65, 0x58];
        header.extend((TUNNEL_KEY << 8).to_be_bytes());
        let from = (neighbour.v4.into(), 1001);
        [
            header,
            udp((own.mac, end), from, (other.v4.into(), 1001), tag),
        ]
        .concat()
    };
    let forgeries = forgeries(&scene, tunnelled);
    for to in scene.reachable() {
        traffic::ping_until_answered(forger.place(), to).unwrap();
    }
    let places = Places {
        central: &central,
        nodes: &nodes,
        host_link: "br-int",
        forger: forger.place(),
        beside: beside.place(),
        far: far.place(),
    };
    let ears = ears(&places, &scene);
    let (agents, runs) = (RefCell::new(agents), RefCell::new(runs));
    let without_flows = || {
        agents.borrow_mut().clear();
        delete_flows(&nodes[0]);
    };
    let without_nftables = || {
        // It would restore them.
        runs.borrow_mut()
            .drain(..)
            .for_each(|run| assert!(run.stop().success()));
        flush_filters(&nodes, &["forward", "input"]);
    };
    let without_filter = || forget_filter(&nodes[0], &forger);
    let layers: [Layer<'_>; 3] = [
        (FLOWS, &without_flows),
        (NFTABLES, &without_nftables),
        (REVERSE_PATH, &without_filter),
    ];
    let stopped = stopped_by(&ears, &forgeries, &layers, None);
    assert_documented(&stopped, 1);
    // Though advertisements were heard in the end, nobody believes them.
    let learned = "-6 route show proto ra";
    assert_eq!(beside.run("ip", learned), "");
    assert_eq!(nodes[0].run("ip", learned), "");
}
