//! With OVN: pods of podwire-controller, the agent and the node role on two nodes.

use std::cell::RefCell;

use podwire_tests::apiserver::{ApiServer, pod_on};
use podwire_tests::controller::Controller;
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{Agent, Pod, links, traffic};
use serde_json::{Value, json};

use crate::build::{mac, udp};
use crate::catalogue::{End, Scene, forgeries};
use crate::layers::{
    FLOWS, Layer, NFTABLES, OVN, PORT_SECURITY, REVERSE_PATH, assert_documented, stopped_by,
};
use crate::scene::{Places, delete_flows, ears, flush_filters, forget_filter, underlay};

struct Cluster<'n> {
    central: &'n Central,
    server: ApiServer,
    nodes: &'n [OvnNode; 2],
    controller: Controller,
    agents: Vec<Agent<'n>>,
}

impl<'n> Cluster<'n> {
    fn start(central: &'n Central, nodes: &'n [OvnNode; 2]) -> Self {
        let server = ApiServer::start_in(central.machine().place());
        for node in nodes {
            let mut object = node.api_object();
            let addresses = object["status"]["addresses"].as_array_mut().unwrap();
            addresses.push(json!({"type": "InternalIP", "address": node.underlay_ipv6()}));
            server.apply(object);
        }
        let flags = "--cluster-subnets 10.128.0.0/14/24,fd00:10:128::/48/64";
        let controller = Controller::start(central, &server, "one", flags);
        controller.await_log("all rows are in sync");
        for node in nodes {
            node.start_controller();
            let init = node.podwire(node.host_arguments("init", None));
            init.success("podwire node init");
            central.await_chassis(&node.name);
            central.await_up(&format!("k8s-{}", node.name), true);
        }
        let agents = nodes.iter();
        let agents = agents.map(|node| node.start_agent(&OvnNode::agent_options()));
        let agents = agents.collect();
        Self {
            central,
            server,
            nodes,
            controller,
            agents,
        }
    }

    fn pod(&self, node: usize, name: &str) -> (Pod<'n>, End) {
        let node = &self.nodes[node];
        let pod = node.pod(name);
        self.server.apply(pod_on(&node.name, &pod, json!({})));
        let networks = "k8s.ovn.org/pod-networks";
        let is_there = |pod: &Value| pod["metadata"]["annotations"][networks].is_string();
        let object = self
            .server
            .await_object(("Pod", &pod.namespace, name), is_there);
        let networks = object["metadata"]["annotations"][networks]
            .as_str()
            .unwrap();
        let networks: Value = serde_json::from_str(networks).unwrap();
        let pod = pod.on_default_network(&networks["default"]);
        pod.add().success();
        let end = end(&networks["default"]);
        (pod, end)
    }

    /// The tunnel key of a row of the southbound database.
    fn key(&self, table: &str, condition: &str) -> u32 {
        let found = format!("--bare --columns=tunnel_key find {table} {condition}");
        self.central.sbctl(found).trim().parse().unwrap()
    }
}

fn end(entry: &Value) -> End {
    let address = |at: usize| {
        let net = entry["ip_addresses"][at].as_str().unwrap();
        net.split('/').next().unwrap().to_owned()
    };
    End {
        mac: mac(entry["mac_address"].as_str().unwrap()),
        v4: address(0).parse().unwrap(),
        v6: address(1).parse().unwrap(),
    }
}

/// The end with a number of a node's subnets.
fn end_of_node(node: &OvnNode, number: u8) -> End {
    let subnet = node.number;
    End {
        mac: [0x0a, 0x58, 10, 128, subnet, number],
        v4: [10, 128, subnet, number].into(),
        v6: format!("fd00:10:128:{subnet}::{number}").parse().unwrap(),
    }
}

#[test]
fn nobody_hears_what_a_pod_must_not_say() {
    let central = Central::start();
    let nodes = [("node-a", 1), ("node-b", 2)];
    let nodes = nodes.map(|(name, number)| central.bare_node(name, number));
    let cluster = Cluster::start(&central, &nodes);
    let (pod, own) = cluster.pod(0, "forger");
    let (beside, neighbour) = cluster.pod(0, "neighbour");
    let (far, other) = cluster.pod(1, "other");
    central.sync();
    let scene = Scene {
        own,
        neighbour,
        gateway: end_of_node(&nodes[0], 1),
        host: end_of_node(&nodes[0], 2),
        other,
        other_host: end_of_node(&nodes[1], 2),
        nodes: [underlay(&nodes[0]), underlay(&nodes[1])],
        ports: &[6640, 6641, 6642, 6643, 6644],
        host_end: mac(&links::find(nodes[0].place(), pod.host_link()).unwrap().mac),
        database: ["172.31.0.1", "fd00:31::1"].map(|it| it.parse().unwrap()),
    };
    // As OVN sends to the other pod, of its own router (ovn-architecture(7), Tunnel
    // Encapsulations).
    let network = cluster.key("Datapath_Binding", "external_ids:name=node-b");
    let egress = cluster.key(
        "Port_Binding",
        &format!("logical_port={}_other", far.namespace),
    );
    let inner_gateway = end_of_node(&nodes[1], 1);
    let tunnelled = |tag: &[u8]| {
        let mut header = vec![2, 0, 0x65, 0x58];
        header.extend((network << 8).to_be_bytes());
        header.extend([0x01, 0x02, 0x80, 1]);
        header.extend((1 << 16 | egress).to_be_bytes());
        let macs = (inner_gateway.mac, other.mac);
        let from = ("198.51.100.66".parse().unwrap(), 1001);
        [header, udp(macs, from, (other.v4.into(), 1001), tag)].concat()
    };
    let forgeries = forgeries(&scene, tunnelled);
    for to in scene.reachable() {
        traffic::ping_until_answered(pod.place(), to).unwrap();
    }
    let places = Places {
        central: &central,
        nodes: &nodes,
        host_link: "ovn-k8s-mp0",
        forger: pod.place(),
        beside: beside.place(),
        far: far.place(),
    };
    let ears = ears(&places, &scene);
    let agents = RefCell::new(cluster.agents);
    let controller = RefCell::new(Some(cluster.controller));
    let without_flows = || {
        agents.borrow_mut().clear();
        delete_flows(&nodes[0]);
    };
    let without_port_security = || {
        // It would restore the row.
        drop(controller.borrow_mut().take());
        central.nbctl(format!("lsp-set-port-security {}_forger", pod.namespace));
        central.sync();
    };
    let without_nftables = || flush_filters(&nodes, &["prerouting", "forward", "input"]);
    let without_filter = || forget_filter(&nodes[0], &pod);
    let layers: [Layer<'_>; 4] = [
        (FLOWS, &without_flows),
        (PORT_SECURITY, &without_port_security),
        (NFTABLES, &without_nftables),
        (REVERSE_PATH, &without_filter),
    ];
    let stopped = stopped_by(&ears, &forgeries, &layers, Some(OVN));
    assert_documented(&stopped, 2);
    // Though advertisements were heard in the end, nobody believes them.
    let learned = "-6 route show proto ra";
    assert_eq!(beside.run("ip", learned), "");
    assert_eq!(nodes[0].run("ip", learned), "");
}
