//! `make demo`, `make demo-ovn`, `make demo-node`, `make demo-gateway`, `make demo-underlay`,
//! `make demo-networks`, `make demo-cluster`, `make demo-policy` and `make cluster`: podwire's main
//! job, shown on real components in a few seconds.
//!
//! A private Open vSwitch and agent, two pods wired from their annotations by the plugin as a
//! runtime would exec it, traffic between them, CHECK, DEL, and proof that nothing is left. All of
//! it lives in namespaces of its own, which end with this process: an interrupt needs no handler,
//! for the kernel takes the namespaces, the mounts and the daemons.

mod api;
mod cluster;
mod gateway;
mod networks;
mod node;
mod ovn;
mod picture;
mod policy;
mod proof;
mod reach;
mod stage;
mod table;
mod underlay;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::controller::Controller;
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{Agent, AgentOptions, Failure, Pod, Step, TestNode, conf, links, traffic};
use serde_json::{Value, json};

use proof::{Proof, expect};
use stage::Stage;

/// TCP payload each way; enough to fill every buffer on the path more than once.
const TCP_BYTES: usize = 8 << 20;
const MTU: u64 = 1400;
const ROUTE: &str = "10.96.0.0/12";

/// What a pod's annotation says.
struct Wish {
    name: &'static str,
    mac: &'static str,
    addresses: [&'static str; 2],
}

const WISHES: [Wish; 2] = [
    Wish {
        name: "web",
        mac: "0a:58:0a:f4:01:0b",
        addresses: ["10.244.1.11", "fd00:10:244:1::b"],
    },
    Wish {
        name: "db",
        mac: "0a:58:0a:f4:01:0c",
        addresses: ["10.244.1.12", "fd00:10:244:1::c"],
    },
];

/// A pod that has been wired.
pub(crate) struct Wired<'node> {
    wish: &'static Wish,
    pod: Pod<'node>,
    result: Value,
    add_ms: f64,
}

fn main() -> ExitCode {
    let stage = Stage::new();
    let started = Instant::now();
    let story = match std::env::args().nth(1).as_deref() {
        Some("node") => node::run,
        Some("ovn") => ovn::run,
        Some("cluster") => cluster::run,
        Some("stay") => cluster::stay,
        Some("policy") => policy::run,
        Some("networks") => networks::run,
        Some("gateway") => gateway::run,
        Some("underlay") => underlay::run,
        _ => run,
    };
    match story(&stage) {
        Ok(()) => {
            stage.say(&format!(
                "\nDone in {:.1} s.",
                started.elapsed().as_secs_f64()
            ));
            ExitCode::SUCCESS
        }
        Err(logs) => {
            match logs {
                Some(directory) => {
                    stage.say(&format!("\nThe demo failed. Logs: {}", directory.display()))
                }
                None => stage.say("\nThe demo failed before there was a log."),
            }
            ExitCode::FAILURE
        }
    }
}

/// Runs the demo. A failure has been told already; what is left of it is the directory of its logs.
fn run(stage: &Stage) -> Result<(), Option<PathBuf>> {
    let proof = stage.silent(Proof::start).map_err(|_| None)?;
    let node = stage
        .step(
            "a node of its own: network namespace, mount namespace, empty /run",
            || Ok((TestNode::new(), String::new())),
        )
        .map_err(|_| None)?;
    let mark = node.process_mark();
    let namespaces = on_node(stage, &node).map_err(|()| kept_logs(&[&node]))?;
    // Whatever the node had ends with it; only then can it be proven.
    drop(node);
    nothing_left(stage, &proof, &[mark], &namespaces)
}

fn on_node(stage: &Stage, node: &TestNode) -> Result<Vec<u64>, ()> {
    stage.step("ovsdb-server and ovs-vswitchd, their own", || {
        node.start_ovsdb_server();
        node.start_vswitchd();
        let version = node.run("ovs-vswitchd", "--version");
        Ok(((), version.lines().next().unwrap_or_default().to_owned()))
    })?;
    let agent = stage.step("podwire agent, plain-OVS mode", || {
        let options = AgentOptions::default()
            .subnet("10.244.1.0/24")
            .subnet("fd00:10:244:1::/64");
        Ok((
            node.start_agent(&options),
            "/run/podwire/agent.sock".to_owned(),
        ))
    })?;

    let mut pods = Vec::new();
    for wish in &WISHES {
        pods.push(stage.step(&format!("ADD demo/{}", wish.name), || add(node, wish))?);
    }
    for wired in &pods {
        let title = format!(
            "demo/{} has its addresses, MAC, MTU {MTU} and route to {ROUTE}",
            wired.wish.name
        );
        stage.step(&title, || as_wished(wired).map(|()| ((), String::new())))?;
    }
    let [web, db] = pods.as_slice() else {
        unreachable!("two wishes, two pods")
    };
    talk(stage, &web.pod, &db.pod, db.wish.addresses)?;

    let table = stage.silent(|| table::render(node, &agent, &pods))?;
    stage.say(&table);

    for wired in &pods {
        stage.step(&format!("CHECK demo/{}", wired.wish.name), || {
            let check = wired.pod.check(&wired.result);
            check.success();
            Ok(((), stage::milliseconds(check.duration())))
        })?;
    }
    for wired in &pods {
        stage.step(&format!("DEL demo/{}", wired.wish.name), || {
            let del = wired.pod.del();
            del.success();
            Ok(((), stage::milliseconds(del.duration())))
        })?;
    }
    stage.step("no link, no OVS row and no record of a pod is left", || {
        let left = node.leftovers();
        expect("the node", "nothing left", left.is_empty(), || {
            left.to_string()
        })?;
        Ok(((), String::new()))
    })?;
    stage.step("the agent stops, and no process of it stays", || {
        let status = agent.stop();
        let processes = node.processes();
        expect("the agent", "exit status 0", status.success(), || {
            status.to_string()
        })?;
        let only_ovs = processes == ["ovs-vswitchd", "ovsdb-server"];
        expect(
            "the node's processes",
            "only Open vSwitch",
            only_ovs,
            || processes.join(", "),
        )?;
        Ok(((), String::new()))
    })?;
    stage.silent(|| {
        let places = pods
            .iter()
            .map(|wired| wired.pod.place())
            .chain([node.place()]);
        Ok(places.map(|place| place.network_inode()).collect())
    })
}

/// Wires one pod from its annotation.
fn add<'node>(
    node: &'node TestNode,
    wish: &'static Wish,
) -> Result<(Wired<'node>, String), Failure> {
    let [v4, v6] = wish.addresses;
    let mut pod = node.pod(wish.name).on_default_network(&json!({
        "ip_addresses": [format!("{v4}/24"), format!("{v6}/64")],
        "mac_address": wish.mac,
        "gateway_ips": ["10.244.1.1", "fd00:10:244:1::1"],
        "routes": [{"dest": ROUTE, "nextHop": "10.244.1.1"}],
    }));
    pod.namespace = "demo".into();
    let mut conf = conf();
    conf["mtu"] = json!(MTU);
    let add = pod.exec("ADD", &conf);
    let result = add.success();
    let add_ms = add.duration().as_secs_f64() * 1e3;
    Ok((
        Wired {
            wish,
            pod,
            result,
            add_ms,
        },
        stage::milliseconds(add.duration()),
    ))
}

/// Compares what the kernel says of the pod's interface with what was wished.
fn as_wished(wired: &Wired<'_>) -> Result<(), Failure> {
    let place = wired.pod.place();
    let name = format!("eth0 of demo/{}", wired.wish.name);
    let eth0 = links::find(place, "eth0");
    let (mac, mtu) = eth0.map(|link| (link.mac, link.mtu)).unwrap_or_default();
    expect(
        &format!("MAC of {name}"),
        wired.wish.mac,
        mac == wired.wish.mac,
        || mac.clone(),
    )?;
    expect(
        &format!("MTU of {name}"),
        &MTU.to_string(),
        mtu == MTU,
        || mtu.to_string(),
    )?;
    let [v4, v6] = wired.wish.addresses;
    let wished = [format!("{v4}/24"), format!("{v6}/64")];
    let addresses = links::addresses(place, "eth0");
    expect(
        &format!("addresses of {name}"),
        &wished.join(", "),
        addresses == wished,
        || addresses.join(", "),
    )?;
    let routes = links::routes(place, "-4");
    let there = routes
        .iter()
        .any(|route| route["dst"] == ROUTE && route["gateway"] == "10.244.1.1");
    expect(
        &format!("routes of {name}"),
        &format!("{ROUTE} by 10.244.1.1"),
        there,
        || format!("{routes:?}"),
    )
}

/// Pings and TCP from one pod to another's addresses.
fn talk(stage: &Stage, web: &Pod<'_>, db: &Pod<'_>, addresses: [&str; 2]) -> Result<(), ()> {
    for address in addresses {
        stage.step(&format!("demo/web pings {address}"), || {
            let printed = traffic::ping(web.place(), parsed(address)?, 3)?;
            let times = printed
                .lines()
                .find(|line| line.starts_with("rtt"))
                .unwrap_or_default();
            Ok(((), times.to_owned()))
        })?;
    }
    let size = format!("{} MiB", TCP_BYTES >> 20);
    for address in addresses {
        let title = format!("demo/web and {address} exchange {size} by TCP");
        stage.step(&title, || {
            let started = Instant::now();
            traffic::tcp_echo(web.place(), db.place(), parsed(address)?, TCP_BYTES)?;
            Ok(((), stage::milliseconds(started.elapsed())))
        })?;
    }
    Ok(())
}

fn parsed(address: &str) -> Result<IpAddr, Failure> {
    address
        .parse()
        .map_err(std::io::Error::other)
        .step(|| format!("read the address {address}"))
}

/// The machine of the central programs, and the nodes.
/// The central machine on the network of the machines; the outside of the cluster.
const CENTRAL: IpAddr = IpAddr::V4(Ipv4Addr::new(172, 31, 0, 1));

/// A demo's story on two nodes of a cluster, and the proof that nothing of it is left. The story
/// returns the network namespaces that it had.
fn on_two_nodes(
    stage: &Stage,
    story: impl FnOnce(&Central, &ApiServer, &[OvnNode]) -> Result<Vec<u64>, ()>,
) -> Result<(), Option<PathBuf>> {
    let proof = stage.silent(Proof::start).map_err(|()| None)?;
    let central = stage.step(
        "central: OVN's databases, ovn-northd, a stand-in for the API",
        || {
            let central = Central::start();
            let version = central.machine().run("ovn-northd", "--version");
            let version = version.lines().next().unwrap_or_default().to_owned();
            Ok((central, version))
        },
    );
    let central = central.map_err(|()| None)?;
    let server = ApiServer::start_at(central.machine().place(), CENTRAL);
    let names = ["node-a", "node-b"].into_iter().zip(1..);
    let nodes = names.map(|(name, number)| {
        stage.step(&format!("{name}: Open vSwitch, ovn-controller"), || {
            let node = central.node(name, number);
            server.apply(apiserver::node(name, &node.tunnel_address()));
            Ok((node, String::new()))
        })
    });
    let nodes: Result<Vec<OvnNode>, ()> = nodes.collect();
    let nodes = nodes.map_err(|()| kept_logs(&[central.machine()]))?;
    let machines = machines(&central, &nodes);
    let marks = marks(&machines);
    let namespaces = story(&central, &server, &nodes).map_err(|()| kept_logs(&machines))?;
    // Whatever the machines had ends with them; only then can it be proven.
    drop(server);
    drop(nodes);
    drop(central);
    nothing_left(stage, &proof, &marks, &namespaces)
}

/// The controller of such a cluster, and the nodes' agents.
fn controller_and_agents<'node>(
    stage: &Stage,
    central: &Central,
    server: &ApiServer,
    nodes: &'node [OvnNode],
) -> Result<(Controller, Vec<Agent<'node>>), ()> {
    let controller = stage.step("podwire-controller leads", || {
        let controller = Controller::start(central, server, "one", "");
        controller.await_log("all rows are in sync");
        Ok((controller, String::new()))
    })?;
    let options = OvnNode::agent_options();
    let agents = nodes.iter().map(|node| node.start_agent(&options));
    Ok((controller, agents.collect()))
}

fn machines<'all>(central: &'all Central, nodes: &'all [OvnNode]) -> Vec<&'all TestNode> {
    std::iter::once(central.machine())
        .chain(nodes.iter().map(|node| &**node))
        .collect()
}

fn marks(machines: &[&TestNode]) -> Vec<String> {
    machines
        .iter()
        .map(|machine| machine.process_mark())
        .collect()
}

/// The last step, once whatever the machines had has ended with them.
fn nothing_left(
    stage: &Stage,
    proof: &Proof,
    marks: &[String],
    namespaces: &[u64],
) -> Result<(), Option<PathBuf>> {
    stage
        .step("nothing is left on this machine", || {
            proof.nothing_left(marks, namespaces)
        })
        .map_err(|()| None)
}

/// Whether the nodes have nothing of a pod any more.
fn nothing_left_on(nodes: &[OvnNode]) -> Result<(), Failure> {
    nodes.iter().try_for_each(|node| {
        let left = node.leftovers();
        expect(&node.name, "nothing left", left.is_empty(), || {
            left.to_string()
        })
    })
}

fn kept_logs(nodes: &[&TestNode]) -> Option<PathBuf> {
    let directory = std::env::temp_dir().join(format!("podwire-demo.{}", std::process::id()));
    let keep = |(number, node): (usize, &&TestNode)| {
        let directory = directory.join(format!("node-{number}"));
        std::fs::create_dir_all(&directory).step(|| "make a directory")?;
        node.keep_logs(&directory)
    };
    match nodes.iter().enumerate().try_for_each(keep) {
        Ok(()) => Some(directory),
        Err(failure) => {
            let logs: String = nodes.iter().map(|node| node.logs()).collect();
            eprintln!("the logs could not be kept: {failure}\n{logs}");
            None
        }
    }
}
