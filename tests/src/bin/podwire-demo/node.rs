//! `make demo-node`: two machines with a router between them that `podwire node` makes nodes of one
//! OVN network, a client outside, every path between them, damage that is put back, and the
//! machines as they were before.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::machine::Snapshot;
use podwire_tests::ovn::{Central, OvnNode, Router};
use podwire_tests::{NodeRun, Place, Pod, traffic};
use serde_json::json;

use crate::picture::Block;
use crate::proof::{Proof, expect};
use crate::stage::{self, Stage};
use crate::{kept_logs, machines, marks, nothing_left};

/// TCP payload each way.
const BYTES: usize = 1 << 20;
const NODE_PORT: u16 = 30080;
/// What was compared.
const PROOF: &str = "    \
    Compared: links, addresses, routes of all tables, rules, permanent neighbours, nftables,
    sysctls of links, Open vSwitch's rows, files of podwire and Open vSwitch. Left out, as they are
    not podwire node's: what ovn-controller notes in the rows (ct-zone-*, ovn-nb-cfg*,
    ovn-startup-ts, ovn-chassis-idx-*, vlan-limit), the agent's files, br-int's MTU.\n";

/// Runs the demo. A failure has been told already; what is left of it is the directory of its logs.
pub(crate) fn run(stage: &Stage) -> Result<(), Option<PathBuf>> {
    let proof = stage.silent(Proof::start).map_err(|()| None)?;
    let central = stage.step(
        "central: OVN's databases and ovn-northd; the client outside",
        || Ok((Central::start(), "172.31.0.1".to_owned())),
    );
    let central = central.map_err(|()| None)?;
    let router = stage.step(
        "a router between the outside and each node's subnet",
        || {
            let routed = "172.31.0.0/24, 172.31.1.0/24, 172.31.2.0/24";
            Ok((central.router(), routed.to_owned()))
        },
    );
    let router = router.map_err(|()| kept_logs(&[central.machine()]))?;
    let mut nodes = Vec::new();
    for (name, number) in [("node-a", 1), ("node-b", 2)] {
        let title = format!("{name}: a machine with Open vSwitch, and nothing of OVN");
        let node = stage.step(&title, || {
            let node = central.bare_node_behind(&router, name, number);
            let remark = format!("{} {}", node.uplink(), node.tunnel_address());
            Ok((node, remark))
        });
        nodes.push(node.map_err(|()| kept_logs(&[central.machine()]))?);
    }
    let machines = machines(&central, &nodes);
    let marks = marks(&machines);
    let namespaces =
        in_network(stage, &central, &router, &nodes).map_err(|()| kept_logs(&machines))?;
    drop(nodes);
    drop(router);
    drop(central);
    nothing_left(stage, &proof, &marks, &namespaces)
}

fn in_network(
    stage: &Stage,
    central: &Central,
    router: &Router,
    nodes: &[OvnNode],
) -> Result<Vec<u64>, ()> {
    let mut before = Vec::new();
    let mut runs = Vec::new();
    let mut servers = Vec::new();
    for node in nodes {
        before.push(stage.silent(|| Ok(Snapshot::of(node)))?);
        let title = format!("{}: podwire node plan", node.name);
        let planned = stage.step(&title, || {
            let planned = node.podwire(node.host_arguments("plan", None)).stdout;
            let last = planned.lines().last().unwrap_or_default().to_owned();
            Ok((planned, last))
        })?;
        if runs.is_empty() {
            let lines: Vec<String> = planned.lines().map(|line| format!("    {line}")).collect();
            stage.say(&format!("{}\n", lines.join("\n")));
        }
        servers.push(stage.silent(|| {
            let server = ApiServer::start_in(node.place());
            server.apply(node.api_object());
            Ok(server)
        })?);
        let title = format!("{}: podwire node run, until the node is ready", node.name);
        runs.push(stage.step(&title, || {
            let line = node.host_arguments("run", servers.last());
            let started = Instant::now();
            let run = NodeRun::start(node, &line);
            Ok((run, stage::milliseconds(started.elapsed())))
        })?);
        let title = format!(
            "{}: ovn-controller joins, by the keys that podwire node set",
            node.name
        );
        stage.step(&title, || {
            node.start_controller();
            central.await_chassis(&node.name);
            central.add_host(node);
            central.await_up(&format!("k8s-{}", node.name), true);
            Ok(((), format!("k8s-{} is up", node.name)))
        })?;
    }
    let mut agents = Vec::new();
    let mut pods = Vec::new();
    for (node, name) in nodes.iter().zip(["web", "db"]) {
        agents.push(stage.silent(|| Ok(node.start_agent(&OvnNode::agent_options())))?);
        pods.push(stage.step(&format!("{}: ADD {name}", node.name), || {
            let (pod, port) = central.schedule(node, name, 11);
            pod.add().success();
            Ok((pod, port.ipv4()))
        })?);
    }
    let [web, db] = pods.as_slice() else {
        unreachable!("two nodes, two pods")
    };
    stage.step("a service in front of web", || {
        central.nbctl("lb-add web 10.96.0.80:80 10.128.1.11:8080 tcp");
        for node in nodes {
            central.nbctl(format!("ls-lb-add {} web", node.name));
        }
        central.sync();
        let mut service = apiserver::service("demo", "web", "10.96.0.80", 80);
        service["spec"]["type"] = "NodePort".into();
        service["spec"]["ports"][0]["nodePort"] = NODE_PORT.into();
        let mut slice = apiserver::endpoints("demo", "web", &["10.128.1.11"], 8080);
        slice["endpoints"][0]["nodeName"] = json!(nodes[0].name);
        for (server, run) in servers.iter().zip(&runs) {
            server.apply(service.clone());
            server.apply(slice.clone());
            run.await_log("services follow the cluster frontends=", 2);
        }
        Ok(((), format!("10.96.0.80:80, node port {NODE_PORT}")))
    })?;
    paths(stage, central, nodes, web, db)?;
    stage.say(&format!("\n{}", picture(nodes).text()));
    damage(stage, central, (&nodes[0], &servers[0]), web, &runs[0])?;

    let places = [central.machine().place(), router.place()]
        .into_iter()
        .chain(nodes.iter().map(|node| node.place()))
        .chain(pods.iter().map(Pod::place));
    let namespaces = places.map(Place::network_inode).collect();
    stage.silent(|| {
        for pod in &pods {
            pod.del().success();
        }
        for agent in agents {
            agent.stop();
        }
        Ok(())
    })?;
    for ((node, run), before) in nodes.iter().zip(runs).zip(before) {
        stage.step(&format!("{}: podwire node cleanup", node.name), || {
            run.stop();
            node.leave_network();
            let done = node.podwire("node cleanup").success("podwire node cleanup");
            Ok(((), done.lines().last().unwrap_or_default().to_owned()))
        })?;
        let title = format!("{}: byte for byte as before podwire node came", node.name);
        stage.step(&title, || {
            let after = Snapshot::of(node).without_notes_of_others();
            let differences = before.without_notes_of_others().differences(&after);
            expect(&node.name, "no difference", differences.is_empty(), || {
                differences.join("\n")
            })?;
            let what = "no difference".to_owned();
            Ok(((), what))
        })?;
    }
    stage.say(PROOF);
    Ok(namespaces)
}

/// Every path, each with what it passes.
fn paths(
    stage: &Stage,
    central: &Central,
    nodes: &[OvnNode],
    web: &Pod<'_>,
    db: &Pod<'_>,
) -> Result<(), ()> {
    let (outside, host) = (central.machine().place(), nodes[1].place());
    let to = |text: &str| -> SocketAddr { text.parse().unwrap_or_else(|_| unreachable!("{text}")) };
    let listening = to("10.128.1.11:8080");
    let cluster_ip = Some(to("10.96.0.80:80"));
    let node_port = Some(to(&format!("{}:{NODE_PORT}", nodes[1].tunnel_address())));
    stage.say("\n  Paths, 1 MiB each way by TCP, compared byte for byte:");
    let show = |title: &str, from: &Place, to: &Place, listening, by, path: &str| {
        stage.step(title, || {
            traffic::tcp_echo_by(from, to, listening, by, BYTES)?;
            Ok(((), path.to_owned()))
        })
    };
    let (web, db) = (web.place(), db.place());
    let path = "br-int, geneve by the router, br-int";
    show("pod to pod: db to web", db, web, listening, None, path)?;
    let listening_v6 = to("[fd00:10:128:1::b]:8080");
    show("pod to pod, IPv6", db, web, listening_v6, None, path)?;
    let path = "br-int, ovn-k8s-mp0, masquerade, uplink, router";
    let title = "pod to outside and back: web to the client";
    show(title, web, outside, to("172.31.0.1:7000"), None, path)?;
    let title = "pod to outside and back, IPv6";
    show(title, web, outside, to("[fd00:31::1]:7000"), None, path)?;
    let path = "router, nftables, ovn-k8s-mp0, geneve, br-int";
    let title = "outside to node-b's node port: the client to web";
    show(title, outside, web, listening, node_port, path)?;
    let path = "nftables, ovn-k8s-mp0, geneve, br-int";
    let title = "node-b's host to cluster IP: to web";
    show(title, host, web, listening, cluster_ip, path)?;
    let path = "OVN's load balancer, geneve, br-int";
    let title = "pod to cluster IP: db to web";
    show(title, db, web, listening, cluster_ip, path)
}

/// What somebody breaks is back at once, and so is the traffic.
fn damage(
    stage: &Stage,
    central: &Central,
    (node, server): (&OvnNode, &ApiServer),
    web: &Pod<'_>,
    run: &NodeRun,
) -> Result<(), ()> {
    let deeds: [(&str, &[&str], &str); 2] = [
        (
            "nft",
            &["flush", "ruleset"],
            "restored nftables table inet podwire-services",
        ),
        (
            "ip",
            &["address", "del", "10.128.1.2/24", "dev", "ovn-k8s-mp0"],
            "restored address 10.128.1.2/24",
        ),
    ];
    for (program, arguments, awaited) in deeds {
        let title = format!("node-a: {program} {}", arguments.join(" "));
        stage.step(&title, || {
            let started = Instant::now();
            node.run(program, arguments);
            run.await_log(awaited, 1);
            let back = stage::milliseconds(started.elapsed());
            await_well(node, server);
            let listening = "10.128.1.11:8080".parse().ok();
            let by = format!("{}:{NODE_PORT}", node.tunnel_address())
                .parse()
                .ok();
            if let (Some(listening), by @ Some(_)) = (listening, by) {
                let outside = central.machine().place();
                traffic::tcp_echo_by(outside, web.place(), listening, by, BYTES)?;
            }
            Ok(((), format!("restored after {back}, node port answers")))
        })?;
    }
    Ok(())
}

/// Waits until `podwire node show` finds every item as it should be.
fn await_well(node: &OvnNode, server: &ApiServer) {
    podwire_tests::machine::await_well(node, node.host_arguments("show", Some(server)));
}

fn picture(nodes: &[OvnNode]) -> Block {
    let machine = |node: &OvnNode| {
        let (number, pod) = (node.number, if node.number == 1 { "web" } else { "db" });
        let inside = Block::lines([
            format!("pod {pod}  10.128.{number}.11"),
            "  │".to_owned(),
            "br-int ── geneve".to_owned(),
            "  │".to_owned(),
            format!("ovn-k8s-mp0  10.128.{number}.2"),
            "  │ nftables: node ports, masquerade".to_owned(),
            format!("{}  {}", node.uplink(), node.tunnel_address()),
        ]);
        Block::titled(&node.name, &inside)
    };
    let machines: Vec<Block> = nodes.iter().map(machine).collect();
    let [left, right] = machines.as_slice() else {
        unreachable!("two nodes")
    };
    let row = left.beside(right, "══ geneve ══", left.line_with("br-int"));
    let (width, middle) = (row.width(), row.width() / 2);
    let ends = [left.width() / 2, width - right.width() / 2];
    let outside = Block::titled(
        "outside  172.31.0.1",
        &Block::lines(["a client, OVN's databases"]),
    );
    let router = Block::titled(
        "router",
        &Block::lines(["172.31.0.254, 172.31.1.1, 172.31.2.1"]),
    );
    outside
        .centred(width)
        .above(Block::lines(["│"]).from(middle))
        .above(router.centred(width))
        .above(Block::fork(ends[0], middle, ends[1]))
        .above(row)
}
