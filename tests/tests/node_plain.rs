//! `podwire node` in plain mode: nodes of a cluster without OVN and without a controller, whose
//! pods reach each other by routes and tunnels.

use std::net::IpAddr;

use podwire_tests::apiserver::ApiServer;
use podwire_tests::machine::await_well;
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{Agent, AgentOptions, NodeRun, Pod, addresses, traffic};
use serde_json::{Value, json};

/// Nodes, each with its own stand-in of the one API server, and a pod on each.
struct Cluster<'n> {
    nodes: &'n [OvnNode],
    servers: Vec<ApiServer>,
    runs: Vec<NodeRun>,
    agents: Vec<Agent<'n>>,
    pods: Vec<(Pod<'n>, Vec<IpAddr>)>,
}

impl<'n> Cluster<'n> {
    fn start(nodes: &'n [OvnNode]) -> Self {
        let mut cluster = Self {
            nodes,
            servers: Vec::new(),
            runs: Vec::new(),
            agents: Vec::new(),
            pods: Vec::new(),
        };
        for node in nodes {
            node.without_bridge();
            let server = ApiServer::start_in(node.place());
            for object in nodes.iter().map(OvnNode::plain_object) {
                server.apply(object);
            }
            // Ready before the agent starts, whose unit waits for it.
            let run = NodeRun::start(node, node.plain_arguments("run", &server));
            let options = AgentOptions::default().with("--subnet node");
            cluster.agents.push(node.start_agent(&options));
            cluster.runs.push(run);
            cluster.servers.push(server);
        }
        for (node, server) in nodes.iter().zip(&cluster.servers) {
            await_well(node, node.plain_arguments("show", server));
            let pod = node.pod(&format!("on-{}", node.name));
            let result = pod.add().success();
            let addresses = addresses(&result).unwrap();
            cluster.pods.push((pod, addresses));
        }
        cluster
    }

    fn apply(&self, object: &Value) {
        for server in &self.servers {
            server.apply(object.clone());
        }
    }

    fn routes(&self, at: usize) -> String {
        let of = |family| {
            let list = [family, "route", "show", "proto", "112"];
            self.nodes[at].run("ip", list)
        };
        of("-4") + &of("-6")
    }

    fn end(self) {
        for (pod, _) in &self.pods {
            pod.del().success();
        }
        for (at, (run, node)) in self.runs.into_iter().zip(self.nodes).enumerate() {
            assert!(run.stop().success());
            let done = node.podwire("node cleanup");
            done.success("podwire node cleanup");
            let links = node.run("ip", "-o link");
            assert!(!links.contains("podwire-tun"), "{links}");
            assert_eq!(node.run("nft", "list ruleset"), "");
            // Nobody tells the agent a subnet any more, and it says so.
            self.agents[at].await_ready(false);
        }
        drop(self.agents);
        for node in self.nodes {
            node.leftovers().assert_none();
        }
    }
}

#[test]
fn pods_of_nodes_without_a_controller_reach_each_other_by_routes_and_tunnels() {
    let central = Central::start();
    let router = central.router();
    let nodes = [
        central.bare_node("node-a", 1),
        central.bare_node("node-b", 2),
        central.bare_node_behind(&router, "node-c", 3),
    ];
    for node in &nodes[..2] {
        for (net, by) in [
            ("172.31.3.0/24", "172.31.0.254"),
            ("fd00:31:0:3::/64", "fd00:31::fe"),
        ] {
            node.run("ip", format!("route add {net} via {by}"));
        }
    }
    let cluster = Cluster::start(&nodes);
    // a and b share a network; c is behind a router.
    let routes = cluster.routes(0);
    for line in [
        "10.244.2.0/24 via 172.31.0.3 dev",
        "10.244.3.0/24 via 10.244.3.1 dev podwire-tun",
        "fd00:10:244:2::/64 via fd00:31::3 dev",
        "fd00:10:244:3::/64 via fd00:10:244:3::1 dev podwire-tun",
    ] {
        assert!(routes.contains(line), "{line}\n{routes}");
    }
    for (from, (pod, own)) in cluster.pods.iter().enumerate() {
        let prefix = format!("10.244.{}.", from + 1);
        assert!(own[0].to_string().starts_with(&prefix), "{own:?}");
        for (to, (other, addresses)) in cluster.pods.iter().enumerate() {
            for address in addresses.iter().filter(|_| from != to) {
                traffic::ping_until_answered(pod.place(), *address).unwrap();
                // More than a packet: a tunnel takes less than a pod's MTU.
                traffic::tcp_echo(pod.place(), other.place(), *address, 1 << 18).unwrap();
                let node = nodes[from].place();
                traffic::tcp_echo(node, other.place(), *address, 1 << 12).unwrap();
            }
        }
        // The outside knows no way to pods: its answers are to the node.
        for outside in ["172.31.0.1", "fd00:31::1"] {
            let (place, address) = (central.machine().place(), outside.parse().unwrap());
            traffic::tcp_echo(pod.place(), place, address, 1 << 12).unwrap();
        }
    }

    // A node that moves to another network, and back; one that goes.
    let mut moved = nodes[1].plain_object();
    moved["status"]["addresses"] = json!([{"type": "InternalIP", "address": "172.31.9.9"}]);
    cluster.apply(&moved);
    cluster.runs[0].await_log(
        "changed with the machine: route 10.244.2.0/24 via 10.244.2.1",
        1,
    );
    let show = nodes[0].plain_arguments("show", &cluster.servers[0]);
    await_well(&nodes[0], &show);
    assert!(nodes[0].vsctl("list interface").contains("172.31.9.9"));
    cluster.apply(&nodes[1].plain_object());
    let (a, b) = (&cluster.pods[0], &cluster.pods[1]);
    for address in &b.1 {
        traffic::ping_until_answered(a.0.place(), *address).unwrap();
    }
    await_well(&nodes[0], &show);
    assert!(!nodes[0].vsctl("list interface").contains("172.31.9.9"));
    for server in &cluster.servers {
        server.delete_object("Node", "", "node-c");
    }
    cluster.runs[0].await_log("changed with the machine: bridge podwire-tun", 2);
    await_well(&nodes[0], &show);
    assert!(!cluster.routes(0).contains("10.244.3.0/24"));
    cluster.apply(&nodes[2].plain_object());
    for address in &cluster.pods[2].1 {
        traffic::ping_until_answered(a.0.place(), *address).unwrap();
    }
    // What somebody changes or deletes comes back.
    nodes[0].vsctl("set-fail-mode podwire-tun secure");
    cluster.runs[0].await_log("restored bridge podwire-tun", 1);
    let tunnels = nodes[0].vsctl("list-ports podwire-tun");
    let tunnel = tunnels.lines().next().unwrap();
    nodes[0].vsctl(format!("set interface {tunnel} options:key=5"));
    cluster.runs[0].await_log(&format!("restored tunnel {tunnel}"), 1);
    nodes[0].vsctl("del-br podwire-tun");
    nodes[0].run("ip", "route del 10.244.2.0/24");
    nodes[0].run("rm", "/run/podwire/node/agent.toml");
    cluster.runs[0].await_log("restored route 10.244.2.0/24", 1);
    cluster.runs[0].await_log("restored file /run/podwire/node/agent.toml", 1);
    for (_, addresses) in &cluster.pods[1..] {
        for address in addresses {
            traffic::ping_until_answered(a.0.place(), *address).unwrap();
        }
    }
    cluster.end();
}

#[test]
fn two_nodes_with_one_subnet_are_refused() {
    let central = Central::start();
    let node = central.bare_node("node-a", 1);
    node.without_bridge();
    let server = ApiServer::start_in(node.place());
    server.apply(node.plain_object());
    let mut twin = node.plain_object();
    twin["metadata"]["name"] = json!("node-b");
    twin["spec"]["podCIDRs"] = json!(["10.244.0.0/16"]);
    server.apply(twin);
    let said = "podCIDRs 10.244.1.0/24 of node node-a: it overlaps 10.244.0.0/16 of node node-b: \
                give each node podCIDRs of its own";
    let planned = node.podwire(node.plain_arguments("plan", &server));
    assert_eq!(planned.status.code(), Some(1));
    assert!(
        planned.stdout.contains(&format!("\n! {said}\n")),
        "{planned:#?}"
    );
    let refused = node.podwire(node.plain_arguments("init", &server));
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        refused.stderr.contains(&format!("\n  {said}\n")),
        "{refused:#?}"
    );
    let run = NodeRun::launch(&node, node.plain_arguments("run", &server));
    run.await_state(said);
    // The agent gives no pod an address that may be another's.
    let options = AgentOptions::default().with("--subnet node");
    let agent = Agent::launch(&node, &options).unwrap();
    agent.await_health("the reason", |health| {
        health["reasons"].to_string().contains("podCIDRs")
    });
    let (_, examined) = node.podwire_json("doctor -o json");
    let examined = examined.to_string();
    assert!(examined.contains("node-role-unwell"), "{examined}");
    assert!(examined.contains(said), "{examined}");
    server.apply(other("node-b", "10.244.2.0/24", "172.31.0.9"));
    run.await_state("READY=1");
    agent.await_ready(true);
    assert!(run.stop().success());
}

/// Another node, as the API has it.
fn other(name: &str, subnet: &str, address: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name},
        "spec": {"podCIDRs": [subnet]},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    })
}

#[test]
fn a_node_whose_subnet_takes_what_this_one_needs_is_left_out_and_all_others_are_reached() {
    let central = Central::start();
    let node = central.bare_node("node-a", 1);
    node.without_bridge();
    let server = ApiServer::start_in(node.place());
    server.apply(node.plain_object());
    // Before this node is set up, and after.
    server.apply(other("wide", "172.16.0.0/12", "172.31.0.7"));
    server.apply(other("loop", "127.0.0.0/24", "172.31.0.8"));
    server.apply(other("node-b", "10.244.2.0/24", "172.31.0.9"));
    let routes = || node.run("ip", "-4 route show proto 112");
    let planned = node.podwire(node.plain_arguments("plan", &server)).stdout;
    for said in [
        "! podCIDRs 172.16.0.0/12 of node wide: this machine itself needs gateway 172.31.0.1, ",
        "! podCIDRs 127.0.0.0/24 of node loop: addresses of 127.0.0.0/8 are this host's own",
    ] {
        assert!(planned.contains(said), "{said}\n{planned}");
    }
    let run = NodeRun::start(&node, node.plain_arguments("run", &server));
    assert!(
        routes().starts_with("10.244.2.0/24 via 172.31.0.9 "),
        "{}",
        routes()
    );
    assert_eq!(routes().lines().count(), 1, "{}", routes());
    let before = routes();
    let said = "conflict: podCIDRs 10.244.0.0/16 of node twin: it overlaps 10.244.1.0/24 of node \
                node-a: give each node podCIDRs of its own";
    server.apply(other("twin", "10.244.0.0/16", "172.31.0.12"));
    run.await_log(said, 1);
    run.await_log(
        "conflict: podCIDRs 10.244.2.0/24 of node node-b: it overlaps",
        1,
    );
    assert_eq!(routes(), before);
    assert!(node.path("/run/podwire/node/agent.toml").exists());
    // One that joins meanwhile is reached.
    server.apply(other("node-c", "10.245.3.0/24", "172.31.0.13"));
    run.await_log("changed with the machine: route 10.245.3.0/24", 1);
    assert!(routes().starts_with(&before), "{}", routes());
    for name in ["twin", "wide", "loop"] {
        server.delete_object("Node", "", name);
    }
    run.await_log(
        "no longer a conflict: podCIDRs 127.0.0.0/24 of node loop",
        1,
    );
    assert!(run.stop().success());
    node.podwire("node cleanup").success("podwire node cleanup");
}

#[test]
fn podcidrs_that_contain_the_node_s_own_network_never_reach_the_agent() {
    let central = Central::start();
    let node = central.bare_node("node-a", 1);
    node.without_bridge();
    let server = ApiServer::start_in(node.place());
    let mut object = node.plain_object();
    object["spec"]["podCIDRs"] = json!(["172.31.0.0/24"]);
    server.apply(object);
    let addresses = || node.run("ip", "-o address show scope global");
    let before = addresses();
    let refused = node.podwire(node.plain_arguments("init", &server));
    let said = "podCIDRs 172.31.0.0/24 of node node-a: this machine itself needs ";
    assert_eq!(refused.status.code(), Some(1), "{refused:#?}");
    assert!(refused.stderr.contains(said), "{refused:#?}");
    let run = NodeRun::launch(&node, node.plain_arguments("run", &server));
    run.await_state(&format!("STATUS=nothing is set up: {said}"));
    assert!(!node.path("/run/podwire/node/agent.toml").exists());
    assert_eq!(addresses(), before);
    run.stop();
}
