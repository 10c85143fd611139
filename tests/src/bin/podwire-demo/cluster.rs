//! `make demo-cluster`: a cluster's network on podwire and OVN alone. Two controllers, of which one
//! leads; two nodes with `podwire node` and the agent; pods, a service, and the leader killed.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use podwire_tests::apiserver;
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{Agent, Failure, NodeRun, Pod, Step, agent_binary, controller_binary, traffic};
use serde_json::json;

use crate::api::Api;
use crate::picture::Block;
use crate::proof::Proof;
use crate::stage::{self, Stage};
use crate::{CENTRAL, kept_logs, machines, marks, nothing_left, nothing_left_on};

const NODE_SUBNETS: &str = "k8s.ovn.org/node-subnets";
const POD_NETWORKS: &str = "k8s.ovn.org/pod-networks";
const VIP: &str = "10.96.0.10";
const NODE_PORT: u16 = 30010;
/// The load balancer of the API server's own service.
const OWN_SERVICE: &str = "Service_default/kubernetes_TCP_cluster";

const SHELL: &str = "
A network of one node is up, with two pods, tests/web and tests/db. This is a shell on that node:
  podwire status                                   the node at a glance
  podwire ports; podwire timings                   its pods; where each ADD spent its time
  podwire trace web db --port 80                   what becomes of a packet
  podwire flows web                                what is dropped of a pod's packets
  podwire-controller explain pod tests/web --to tests/db
  ovn-nbctl show; ovs-vsctl show                   what is below
The network ends with the shell (exit).
";

/// A pod that has been wired.
struct Wired<'node> {
    pod: Pod<'node>,
    address: IpAddr,
}

/// Runs the demo. A failure has been told already; what is left of it is the directory of its logs.
pub(crate) fn run(stage: &Stage) -> Result<(), Option<PathBuf>> {
    let proof = stage.silent(Proof::start).map_err(|()| None)?;
    let title = "central: OVN's databases, ovn-northd";
    let central = stage.step(title, || Ok((Central::start(), String::new())));
    let central = central.map_err(|()| None)?;
    let mut nodes = Vec::new();
    for (name, number) in [("node-a", 1), ("node-b", 2)] {
        let title = format!("{name}: Open vSwitch and ovn-controller, of no network yet");
        let node = stage.step(&title, || {
            let node = central.bare_node(name, number);
            node.start_controller();
            let remark = format!("at {}", node.tunnel_address());
            Ok((node, remark))
        });
        nodes.push(node.map_err(|()| kept_logs(&[central.machine()]))?);
    }
    let machines = machines(&central, &nodes);
    let marks = marks(&machines);
    let api = Api::start(stage, &central, CENTRAL).map_err(|()| kept_logs(&machines))?;
    in_cluster(stage, &central, &api, &nodes).map_err(|()| kept_logs(&machines))?;
    let namespaces = machines
        .iter()
        .map(|machine| machine.place().network_inode());
    let namespaces: Vec<_> = namespaces.collect();
    // Whatever the machines had ends with them; only then can it be proven.
    drop(api);
    drop(nodes);
    drop(central);
    nothing_left(stage, &proof, &marks, &namespaces)
}

/// Runs a network of one node for as long as somebody's shell on that node lasts.
pub(crate) fn stay(stage: &Stage) -> Result<(), Option<PathBuf>> {
    let proof = stage.silent(Proof::start).map_err(|()| None)?;
    let title = "OVN's databases, ovn-northd; node-a: Open vSwitch and ovn-controller";
    let made = stage.step(title, || {
        let central = Central::start();
        let node = central.bare_node("node-a", 1);
        node.start_controller();
        Ok(((central, node), String::new()))
    });
    let (central, node) = made.map_err(|()| None)?;
    let nodes = [node];
    let machines = machines(&central, &nodes);
    let marks = marks(&machines);
    let api = Api::start(stage, &central, CENTRAL).map_err(|()| kept_logs(&machines))?;
    shell(stage, &central, &api, &nodes[0]).map_err(|()| kept_logs(&machines))?;
    let namespaces: Vec<_> = machines
        .iter()
        .map(|it| it.place().network_inode())
        .collect();
    drop((api, nodes, central));
    nothing_left(stage, &proof, &marks, &namespaces)
}

fn shell(stage: &Stage, central: &Central, api: &Api, node: &OvnNode) -> Result<(), ()> {
    let _controller = stage.step("podwire-controller", || {
        let controller = api.controller(central, "one");
        controller.await_log("all rows are in sync");
        Ok((controller, String::new()))
    })?;
    let (run, agent) = join(stage, central, api, node)?;
    let [web, db] = [add(stage, api, node, "web")?, add(stage, api, node, "db")?];
    talk(stage, "web to db", &web, &db, None)?;
    stage.say(SHELL);
    let code = stage.silent(|| {
        let programs = [agent_binary(), controller_binary()];
        let own = programs
            .iter()
            .filter_map(|it| it.parent())
            .map(PathBuf::from);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(own.chain(std::env::split_paths(&path)));
        let path = path
            .map_err(std::io::Error::other)
            .step(|| "find the programs")?;
        let mut shell = Command::new(std::env::var_os("SHELL").unwrap_or("/bin/sh".into()));
        shell
            .env("PATH", path)
            // One server has both databases.
            .env("OVN_NB_DB", format!("tcp:{CENTRAL}:6642"))
            .env("OVN_SB_DB", format!("tcp:{CENTRAL}:6642"))
            .envs([api.environment(node)]);
        node.place().run(|| shell.status()).step(|| "run a shell")
    })?;
    stage.say(&format!(
        "\nThe shell has ended ({code}); the network is removed."
    ));
    leave(
        stage,
        central,
        api,
        (std::slice::from_ref(node), vec![run]),
        &[&web, &db],
    )?;
    stage.step("the agent stops", || {
        agent.stop();
        Ok(((), String::new()))
    })
}

fn in_cluster(stage: &Stage, central: &Central, api: &Api, nodes: &[OvnNode]) -> Result<(), ()> {
    let first = stage.step("podwire-controller one leads", || {
        let controller = api.controller(central, "one");
        controller.await_log("all rows are in sync");
        Ok((controller, String::new()))
    })?;
    let second = stage.step("podwire-controller two stands by", || {
        let controller = api.controller(central, "two");
        controller.await_log("standing by");
        Ok((controller, String::new()))
    })?;
    let (mut runs, mut agents) = (Vec::new(), Vec::new());
    for node in nodes {
        let (run, agent) = join(stage, central, api, node)?;
        runs.push(run);
        agents.push(agent);
    }
    let mut pods = Vec::new();
    for (node, name) in nodes.iter().zip(["web", "db"]) {
        pods.push(add(stage, api, node, name)?);
    }
    let [web, db] = &pods[..] else {
        unreachable!("two nodes, two pods")
    };
    talk(
        stage,
        "web to db, through the tunnel between the nodes",
        web,
        db,
        None,
    )?;
    let vip = stage.step("a service in front of db", || {
        let namespace = &db.pod.namespace;
        let mut service = apiserver::service(namespace, "front", VIP, 80);
        service["spec"]["type"] = "NodePort".into();
        service["spec"]["ports"][0]["nodePort"] = NODE_PORT.into();
        api.create(service)?;
        let ends = [&*db.address.to_string()];
        api.create(apiserver::endpoints(namespace, "front", &ends, 8080))?;
        let row = format!("Service_{namespace}/front_TCP_cluster");
        let vips = json!([
            "map",
            [[format!("{VIP}:80"), format!("{}:8080", db.address)]]
        ]);
        let condition = json!([["name", "==", row], ["vips", "==", vips]]);
        let northbound = central.northbound();
        northbound.wait("Load_Balancer", condition, "!=", &["name"], json!([]))?;
        central.sync();
        let vip: SocketAddr = SocketAddr::new(VIP.parse().unwrap_or(db.address), 80);
        for (node, run) in nodes.iter().zip(&runs) {
            await_endpoint(node, run, db.address)?;
        }
        let remark = format!("{vip} and node port {NODE_PORT}, one Load_Balancer row");
        Ok((vip, remark))
    })?;
    talk(stage, "web to db by the service", web, db, Some(vip))?;
    stage.step("node-a's own processes to db by the service", || {
        let listening = SocketAddr::new(db.address, 8080);
        let (host, pod) = (nodes[0].place(), db.pod.place());
        traffic::tcp_echo_by(host, pod, listening, Some(vip), 1 << 16)?;
        Ok(((), String::new()))
    })?;
    stage.step("a client outside to db by node-a's node port", || {
        let node = nodes[0].tunnel_address().parse();
        let node: IpAddr = node
            .map_err(std::io::Error::other)
            .step(|| "read node-a's address")?;
        let (by, listening) = (
            SocketAddr::new(node, NODE_PORT),
            SocketAddr::new(db.address, 8080),
        );
        let (outside, pod) = (central.machine().place(), db.pod.place());
        traffic::tcp_echo_by(outside, pod, listening, Some(by), 1 << 16)?;
        Ok(((), format!("{CENTRAL} to {by}")))
    })?;
    stage.say(&format!("\n{}", picture(nodes, [web, db], vip).text()));
    stage.step(
        "the leader is killed; the stand-by takes over when its lease is over",
        || {
            let killed = Instant::now();
            first.kill();
            let line = second.await_log("all rows are in sync");
            let counts = line.split_once(" operations=").map(|(_, rest)| rest);
            let seconds = killed.elapsed().as_secs_f64();
            let operations = counts.and_then(|it| it.split(' ').next()).unwrap_or("?");
            let remark = format!("after {seconds:.1} s, with {operations} operations");
            Ok(((), remark))
        },
    )?;
    talk(
        stage,
        "web to db still, and by the service",
        web,
        db,
        Some(vip),
    )?;
    let late = add(stage, api, &nodes[0], "late")?;
    talk(stage, "late to web, on the same node", &late, web, None)?;
    leave(stage, central, api, (nodes, runs), &[&late, web, db])?;
    stage.step("the agents and the controller stop", || {
        for agent in agents {
            agent.stop();
        }
        second.stop();
        Ok(((), String::new()))
    })
}

/// Waits until a node's table of services leads to an endpoint. Service and endpoints may come in
/// either order.
fn await_endpoint(node: &OvnNode, run: &NodeRun, address: IpAddr) -> Result<(), Failure> {
    for settled in 1.. {
        run.await_log("services follow the cluster", settled);
        let table = node.run("nft", "list table inet podwire-services");
        if table.contains(&address.to_string()) {
            break;
        }
    }
    Ok(())
}

/// Has a node join: its object, its subnet, `podwire node run`, the agent.
fn join<'node>(
    stage: &Stage,
    central: &Central,
    api: &Api,
    node: &'node OvnNode,
) -> Result<(NodeRun, Agent<'node>), ()> {
    let name = &*node.name;
    stage.step(
        &format!("{name} joins: the controller gives it a subnet"),
        || {
            api.create(apiserver::node(name, &node.tunnel_address()))?;
            let subnets = api.await_annotation(("Node", "", name), NODE_SUBNETS)?;
            let subnet = subnets[0].as_str().unwrap_or_default().to_owned();
            Ok(((), subnet))
        },
    )?;
    let run = stage.step(
        &format!("{name}: podwire node run, until it is ready"),
        || {
            let [access, value] = api.node_flags(node);
            let line = format!(
                "node run --mode ovn --node-name {name} --interface {} \
                 --cluster-subnet 10.244.0.0/16 \
                 --service-cidr 10.96.0.0/16 --ovn-remote tcp:{CENTRAL}:6642 {access} {value}",
                node.uplink()
            );
            let run = NodeRun::start(node, line);
            central.await_chassis(name);
            central.await_up(&format!("k8s-{name}"), true);
            Ok((run, format!("k8s-{name} is up")))
        },
    )?;
    stage.step(&format!("{name}: podwire agent --mode ovn"), || {
        let options = api.watched(node, name, OvnNode::agent_options());
        Ok(((run, node.start_agent(&options)), String::new()))
    })
}

/// Creates a pod in the API and wires it.
fn add<'node>(
    stage: &Stage,
    api: &Api,
    node: &'node OvnNode,
    name: &str,
) -> Result<Wired<'node>, ()> {
    let title = format!("{}: pod {name}: address, logical port, ADD", node.name);
    stage.step(&title, || {
        let mut pod = node.pod(name);
        let made = api.create(apiserver::pod_on(&node.name, &pod, json!({})))?;
        let uid = made["metadata"]["uid"].as_str().unwrap_or_default();
        uid.clone_into(&mut pod.uid);
        let entry = api.await_annotation(("Pod", &pod.namespace, name), POD_NETWORKS)?;
        let address = entry["ip_address"].as_str().unwrap_or_default();
        let address: IpAddr = address
            .split('/')
            .next()
            .and_then(|it| it.parse().ok())
            .ok_or_else(|| std::io::Error::other(entry.to_string()))
            .step(|| "read the pod's annotation")?;
        let add = pod.add();
        let took = stage::milliseconds(add.duration());
        add.success();
        Ok((Wired { pod, address }, format!("{address}, ADD in {took}")))
    })
}

fn talk(
    stage: &Stage,
    title: &str,
    from: &Wired<'_>,
    to: &Wired<'_>,
    by: Option<SocketAddr>,
) -> Result<(), ()> {
    stage.step(title, || {
        traffic::ping_until_answered(from.pod.place(), to.address)?;
        let listening = SocketAddr::new(to.address, 8080);
        traffic::tcp_echo_by(from.pod.place(), to.pod.place(), listening, by, 1 << 20)?;
        Ok(((), "1 MiB each way, byte for byte".to_owned()))
    })
}

/// Deletes everything, and looks for what is left.
fn leave(
    stage: &Stage,
    central: &Central,
    api: &Api,
    (nodes, runs): (&[OvnNode], Vec<NodeRun>),
    pods: &[&Wired<'_>],
) -> Result<(), ()> {
    stage.step("the pods, the service and the nodes are deleted", || {
        for wired in pods {
            wired.pod.del().success();
            api.delete("Pod", &wired.pod.namespace, &wired.pod.name)?;
        }
        let namespace = &pods[0].pod.namespace;
        if pods.len() > 2 {
            api.delete("Service", namespace, "front")?;
            api.delete("EndpointSlice", namespace, "front-1")?;
        }
        for (node, run) in nodes.iter().zip(runs) {
            run.stop();
            let cleaned = node.podwire("node cleanup");
            cleaned.success("podwire node cleanup");
            api.delete("Node", "", &node.name)?;
        }
        Ok(((), String::new()))
    })?;
    stage.step(
        "no row of theirs is left in OVN, no link and no port on a node",
        || {
            let northbound = central.northbound();
            for table in [
                "Logical_Switch",
                "Logical_Switch_Port",
                "Load_Balancer",
                "Gateway_Chassis",
            ] {
                // A real API server has a service of its own, and the nodes' doors share a switch.
                let others = match table {
                    "Logical_Switch" => json!([["name", "!=", "podwire_doors"]]),
                    "Load_Balancer" => json!([["name", "!=", OWN_SERVICE]]),
                    _ => json!([]),
                };
                northbound.wait(table, others, "==", &["_uuid"], json!([]))?;
            }
            nothing_left_on(nodes)?;
            Ok((
                (),
                "but the router, the group and the switch that all nodes share".to_owned(),
            ))
        },
    )
}

/// What there is while the pods talk.
fn picture(nodes: &[OvnNode], pods: [&Wired<'_>; 2], vip: SocketAddr) -> Block {
    const TUNNEL: &str = "br-phy";
    let machines = nodes.iter().zip(pods).map(|(node, wired)| {
        let pod = Block::lines([format!("eth0  {}", wired.address)]);
        let below = Block::lines([
            "  │".to_owned(),
            "br-int   podwire agent: pods".to_owned(),
            "  │      podwire node: the host".to_owned(),
            format!("{TUNNEL}   {}", node.tunnel_address()),
        ]);
        let name = format!("tests/{}", wired.pod.name);
        Block::titled(&node.name, &Block::titled(&name, &pod).above(below))
    });
    let machines: Vec<Block> = machines.collect();
    let [left, right] = machines.as_slice() else {
        unreachable!("two nodes")
    };
    let row = left.beside(right, "══ geneve ══", left.line_with(TUNNEL));
    let central = Block::titled(
        &format!("control plane  {CENTRAL}"),
        &Block::lines([
            "Kubernetes ─▶ podwire-controller (one leads, two stands by)".to_owned(),
            "  ─▶ northbound ─▶ ovn-northd ─▶ southbound".to_owned(),
            format!("service front {vip}, node port {NODE_PORT}"),
        ]),
    );
    let (width, middle) = (row.width(), row.width() / 2);
    let ends = [left.width() / 2, width - right.width() / 2];
    central
        .centred(width)
        .above(Block::lines(["│"]).from(middle))
        .above(Block::fork(ends[0], middle, ends[1]))
        .above(row)
}
