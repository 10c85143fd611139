//! `make demo-ovn`: two nodes in one OVN network, a pod on each, traffic through the tunnel between
//! them.

use std::path::PathBuf;

use podwire_tests::ovn::{Central, LogicalPort, OvnNode, POD_MTU};
use podwire_tests::{Agent, Failure, Pod};

use crate::picture::Block;
use crate::proof::{Proof, expect};
use crate::stage::{self, Stage};
use crate::{kept_logs, machines, marks, nothing_left, nothing_left_on, table, talk};

/// A pod that has been wired.
struct Wired<'node> {
    pod: Pod<'node>,
    port: LogicalPort,
    add_ms: f64,
    host_veth: String,
    ofport: String,
}

/// Runs the demo. A failure has been told already; what is left of it is the directory of its logs.
pub(crate) fn run(stage: &Stage) -> Result<(), Option<PathBuf>> {
    let proof = stage.silent(Proof::start).map_err(|()| None)?;
    let central = stage
        .step(
            "central: northbound and southbound database, ovn-northd",
            || {
                let central = Central::start();
                let version = central.machine().run("ovn-northd", "--version");
                Ok((
                    central,
                    version.lines().next().unwrap_or_default().to_owned(),
                ))
            },
        )
        .map_err(|()| None)?;
    let mut nodes = Vec::new();
    for (name, number) in [("node-a", 1), ("node-b", 2)] {
        let title = format!("{name}: Open vSwitch, ovn-controller, on the underlay");
        let node = stage.step(&title, || {
            let node = central.node(name, number);
            central.add_switch(&node);
            let remark = format!("tunnels from {}", node.tunnel_address());
            Ok((node, remark))
        });
        nodes.push(node.map_err(|()| kept_logs(&[central.machine()]))?);
    }
    let machines = machines(&central, &nodes);
    let marks = marks(&machines);
    let namespaces = in_network(stage, &central, &nodes).map_err(|()| kept_logs(&machines))?;
    // Whatever the machines had ends with them; only then can it be proven.
    drop(nodes);
    drop(central);
    nothing_left(stage, &proof, &marks, &namespaces)
}

fn in_network(stage: &Stage, central: &Central, nodes: &[OvnNode]) -> Result<Vec<u64>, ()> {
    let mut agents = Vec::new();
    for node in nodes {
        let title = format!("{}: podwire agent --mode ovn", node.name);
        agents.push(stage.step(&title, || {
            let agent = node.start_agent(&OvnNode::agent_options());
            Ok((agent, "ready: ovn-controller is connected".to_owned()))
        })?);
    }
    let mut pods = Vec::new();
    for (node, (name, number)) in nodes.iter().zip([("web", 11), ("db", 12)]) {
        let title = format!(
            "{}: ADD demo/{name}, until OVN has installed its port",
            node.name
        );
        pods.push(stage.step(&title, || add(central, node, name, number))?);
    }
    let [web, db] = pods.as_slice() else {
        unreachable!("two nodes, two pods")
    };
    talk(stage, &web.pod, &db.pod, [&db.port.ipv4(), &db.port.ipv6()])?;
    stage.say(&format!("\n{}", picture(nodes, &pods).text()));
    for (agent, wired) in agents.iter().zip(&pods) {
        let (name, container) = (&wired.pod.name, &wired.pod.container);
        let chart = || table::chart_of_add(agent, &format!("demo/{name}"), container, wired.add_ms);
        stage.say(stage.silent(chart)?.trim_end_matches('\n'));
        stage.say("");
    }
    for wired in &pods {
        let title = format!(
            "DEL demo/{}, and OVN says that its port is down",
            wired.pod.name
        );
        stage.step(&title, || {
            let del = wired.pod.del();
            del.success();
            central.await_up(&wired.port.name, false);
            Ok(((), stage::milliseconds(del.duration())))
        })?;
    }
    stage.step("no link, no OVS row and no record of a pod is left", || {
        nothing_left_on(nodes)?;
        Ok(((), String::new()))
    })?;
    stage.step("the agents stop", || {
        agents
            .into_iter()
            .try_for_each(stopped)
            .map(|()| ((), String::new()))
    })?;
    stage.silent(|| {
        let machines = nodes.iter().map(|node| node.place());
        let sandboxes = pods.iter().map(|wired| wired.pod.place());
        let places = machines.chain(sandboxes).chain([central.machine().place()]);
        Ok(places.map(|place| place.network_inode()).collect())
    })
}

fn stopped(agent: Agent<'_>) -> Result<(), Failure> {
    let status = agent.stop();
    expect("the agent", "exit status 0", status.success(), || {
        status.to_string()
    })
}

/// Makes a pod and its logical port, and wires it.
fn add<'node>(
    central: &Central,
    node: &'node OvnNode,
    name: &str,
    number: u8,
) -> Result<(Wired<'node>, String), Failure> {
    let mut pod = node.pod(name);
    pod.namespace = "demo".into();
    let port = LogicalPort::of(&pod, node, number);
    central.add_port(&port);
    let pod = pod.on_default_network(&port.entry());
    let add = pod.add();
    add.success();
    let row = node.await_ofport_of(&pod.container);
    let wired = Wired {
        port,
        add_ms: add.duration().as_secs_f64() * 1e3,
        host_veth: row["name"].as_str().unwrap_or_default().to_owned(),
        ofport: row["ofport"].to_string(),
        pod,
    };
    Ok((wired, stage::milliseconds(add.duration())))
}

/// What there is while the pods talk.
fn picture(nodes: &[OvnNode], pods: &[Wired<'_>]) -> Block {
    const TUNNEL: &str = "br-phy";
    let machine = |(node, wired): (&OvnNode, &Wired<'_>)| {
        let sandbox = Block::titled(
            &format!("demo/{}", wired.pod.name),
            &Block::lines([
                format!("eth0  {}/24", wired.port.ipv4()),
                format!("      {}/64", wired.port.ipv6()),
                format!("      {}, MTU {POD_MTU}", wired.port.mac()),
            ]),
        );
        let bridge = Block::lines([
            format!("  │ {}", wired.host_veth),
            format!("  │ ofport {}, iface-id {}", wired.ofport, wired.port.name),
            "br-int   flows by ovn-controller".to_owned(),
            "  │".to_owned(),
            format!("{TUNNEL}   {}", node.tunnel_address()),
        ]);
        Block::titled(&node.name, &sandbox.above(bridge))
    };
    let machines: Vec<Block> = nodes.iter().zip(pods).map(machine).collect();
    let [left, right] = machines.as_slice() else {
        unreachable!("two nodes")
    };
    let row = left.beside(right, "══ geneve ══", left.line_with(TUNNEL));
    let central = Block::titled(
        "central  172.31.0.1",
        &Block::lines([
            "ovn-northd: northbound ─▶ southbound",
            "router cluster: switches node-a, node-b",
        ]),
    );
    let (width, middle) = (row.width(), row.width() / 2);
    let ends = [left.width() / 2, width - right.width() / 2];
    let underlay = Block::lines(["│ underlay 172.31.0.0/24"]).from(middle);
    central
        .centred(width)
        .above(underlay)
        .above(Block::fork(ends[0], middle, ends[1]))
        .above(row)
}
