//! An upgrade under traffic, from the programs of an earlier revision to these, in the order of
//! docs/whole-network.md: no packet is lost, and nothing that is in place changes. `make
//! test-upgrade` runs it; without the earlier programs it does nothing.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::controller::Controller;
use podwire_tests::ovn::{BOTH_FAMILIES, Central, OvnNode};
use podwire_tests::probes::{self, EchoServer, PORTS, Probes};
use podwire_tests::{Agent, AgentOptions, NodeRun, Pod, traffic};
use serde_json::{Value, json};

const OUTSIDE: &str = "172.31.0.1";
const SERVICES: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
const NODE_PORT: u16 = 30080;
const PORT: u16 = 8080;

/// The directory with the links that the fixtures start: $PODWIRE_UPGRADE/now, beside `earlier` and
/// `later` with the programs. A package replaces programs as [`Programs::replace`] does.
struct Programs(PathBuf);

impl Programs {
    fn find() -> Option<Self> {
        let found = std::env::var_os("PODWIRE_UPGRADE").map(PathBuf::from);
        if found.is_none() {
            eprintln!("not run: `make test-upgrade` builds the earlier programs");
        }
        found.map(Self)
    }

    fn replace(&self, version: &str, programs: &[&str]) {
        for program in programs {
            let (new, link) = (self.0.join("new"), self.0.join("now").join(program));
            let _ = std::fs::remove_file(&new);
            std::os::unix::fs::symlink(self.0.join(version).join(program), &new).unwrap();
            std::fs::rename(&new, link).unwrap();
        }
    }
}

fn pod_policy() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": "tests", "name": "shop", "uid": "shop" },
        "spec": {
            "podSelector": { "matchLabels": { "app": "closed" } },
            "policyTypes": ["Ingress"],
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "web" } } }] }],
        },
    })
}

/// A service with a node port before these addresses of a pod on the second node.
fn publish(server: &ApiServer, addresses: &[IpAddr]) {
    let ports = |port: u16| {
        json!([{ "name": "main", "protocol": "UDP", "port": port, "nodePort": NODE_PORT,
                 "targetPort": PORT }])
    };
    for address in addresses {
        let mut slice = apiserver::endpoints("tests", "db", &[&address.to_string()], PORT);
        slice["ports"] = ports(PORT);
        slice["endpoints"][0]["nodeName"] = "node-b".into();
        if address.is_ipv6() {
            slice["addressType"] = "IPv6".into();
            slice["metadata"]["name"] = "db-6".into();
        }
        server.apply(slice);
    }
    let mut service = apiserver::service("tests", "db", SERVICES[0], 80);
    service["spec"]["type"] = "NodePort".into();
    service["spec"]["clusterIPs"] = json!(SERVICES);
    service["spec"]["ports"] = ports(80);
    server.apply(service);
}

/// What is in place: rows of the northbound database, and of each node rows of Open vSwitch, links,
/// addresses, rules, routes and nftables; without what counts or tells the time.
fn in_place(central: &Central, nodes: &[OvnNode]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut add = |place: &str, text: &str| {
        let lines = text.lines().map(str::trim).filter(|it| !it.is_empty());
        // The carrier of a userspace datapath's own ports comes and goes.
        let steady = |line: &str| line.replace(",LOWER_UP", "").replace(" linkdown", "");
        all.extend(lines.map(|line| format!("{place}: {}", steady(line))));
    };
    for table in [
        "Logical_Switch",
        "Logical_Switch_Port",
        "Logical_Router",
        "Logical_Router_Port",
        "Logical_Router_Policy",
        "Logical_Router_Static_Route",
        "Load_Balancer",
        "Load_Balancer_Group",
        "Port_Group",
        "Address_Set",
        "ACL",
        "NAT",
        "Meter",
        "Copp",
    ] {
        let rows = central.nbctl(format!(
            "--format=csv --data=json --no-headings list {table}"
        ));
        add(table, &rows);
    }
    for node in nodes {
        for (table, columns) in [
            ("Bridge", "_uuid,name,ports"),
            ("Port", "_uuid,name,interfaces,external_ids"),
            ("Interface", "_uuid,name,external_ids,ofport"),
        ] {
            let list = format!("--format=csv --no-headings --columns={columns} list {table}");
            add(&format!("{}: {table}", node.name), &node.vsctl(list));
        }
        for (program, line) in [
            ("ip", "-o link show"),
            ("ip", "-o address show"),
            ("ip", "rule show"),
            ("ip", "-6 rule show"),
            ("ip", "route show table all"),
            ("ip", "-6 route show table all"),
            ("nft", "-s list ruleset"),
        ] {
            add(
                &format!("{}: {program} {line}", node.name),
                &node.run(program, line),
            );
        }
    }
    all
}

/// Of what is in place, what is other than before.
fn changes(before: &BTreeSet<String>, after: &BTreeSet<String>) -> Vec<String> {
    let gone = before.difference(after).map(|it| format!("- {it}"));
    let new = after.difference(before).map(|it| format!("+ {it}"));
    gone.chain(new).collect()
}

/// All paths with traffic over them.
struct Traffic<'n> {
    nodes: &'n [OvnNode; 2],
    probes: Vec<Probes>,
    refused: Probes,
    _servers: Vec<EchoServer>,
}

impl Traffic<'_> {
    /// Says that nothing was lost, and nothing passed that must not.
    #[track_caller]
    fn proves(&self, step: &str) {
        let answered = probes::all_answered(&self.probes);
        let sent = answered.unwrap_or_else(|error| {
            panic!("after {step}: {error}\n{}", self.drops());
        });
        assert_eq!(self.refused.answered(), 0, "after {step}: the policy");
        println!("after {step}: {sent} answered, none lost");
    }

    /// What Open vSwitch counted of what it dropped.
    fn drops(&self) -> String {
        let mut all = String::new();
        for node in self.nodes {
            let counted = node.appctl("coverage/show");
            let drops = counted.lines().filter(|it| it.contains("drop"));
            drops.for_each(|line| all.push_str(&format!("{}: {line}\n", node.name)));
        }
        all
    }
}

fn start_traffic<'n>(
    central: &Central,
    nodes: &'n [OvnNode; 2],
    [web, side, db, closed]: [(&Pod<'_>, &[IpAddr]); 4],
) -> Traffic<'n> {
    let [a, b] = nodes;
    let echoes = [side, db, closed].into_iter().flat_map(|(pod, addresses)| {
        let at = |it: &IpAddr| {
            let echo = EchoServer::start(pod.place(), SocketAddr::new(*it, PORT));
            echo.unwrap()
        };
        addresses.iter().map(at).collect::<Vec<_>>()
    });
    let servers = echoes.collect();
    let mut all = Vec::new();
    let mut next = 5000;
    for family in [0, 1] {
        let service: IpAddr = SERVICES[family].parse().unwrap();
        let outside = central.machine().place();
        let node = [a.tunnel_address(), a.underlay_ipv6()][family]
            .parse()
            .unwrap();
        let paths = [
            (
                "a pod to one beside it",
                web.0.place(),
                side.1[family],
                PORT,
            ),
            (
                "a pod to one of the other node",
                web.0.place(),
                db.1[family],
                PORT,
            ),
            (
                "a pod that a policy lets pass",
                web.0.place(),
                closed.1[family],
                PORT,
            ),
            ("a pod to a service", web.0.place(), service, 80),
            ("a node to a service", a.place(), service, 80),
            ("a pod's own node to it", b.place(), db.1[family], PORT),
            ("a client outside to a node port", outside, node, NODE_PORT),
        ];
        for (name, from, to, port) in paths {
            let ports = next;
            next += PORTS + 10;
            let to = SocketAddr::new(to, port);
            probes::until_answered(from, to, ports).unwrap();
            all.push(Probes::start(name, from, to, ports + 10));
        }
    }
    probes::settle(&all).unwrap();
    let to = SocketAddr::new(closed.1[0], PORT);
    Traffic {
        nodes,
        probes: all,
        refused: Probes::start("a pod that a policy refuses", side.0.place(), to, 5000),
        _servers: servers,
    }
}

fn wired<'n>(node: &'n OvnNode, server: &ApiServer, name: &str) -> (Pod<'n>, Vec<IpAddr>) {
    node.wired(server, name, name)
}

fn start_agent<'n>(node: &'n OvnNode, server: &ApiServer) -> Agent<'n> {
    node.start_agent(&AgentOptions::watching(
        OvnNode::agent_options(),
        server,
        &node.name,
    ))
}

#[test]
fn pods_keep_talking_while_every_part_is_replaced_and_nothing_in_place_changes() {
    let Some(programs) = Programs::find() else {
        return;
    };
    programs.replace("earlier", &["podwire", "podwire-cni", "podwire-controller"]);
    let central = Central::start();
    let server = ApiServer::start_at(central.machine().place(), OUTSIDE.parse().unwrap());
    let start_controller =
        |identity: &str| Controller::start(&central, &server, identity, BOTH_FAMILIES);
    let first = start_controller("one");
    first.await_log("all rows are in sync");
    let second = start_controller("two");
    second.await_log("standing by");
    let nodes = [("node-a", 1), ("node-b", 2)].map(|(name, number)| {
        let node = central.bare_node(name, number);
        node.start_controller();
        node
    });
    let runs = nodes.each_ref().map(|it| it.join(&central, &server));
    let agents = nodes.each_ref().map(|it| start_agent(it, &server));
    let [a, b] = &nodes;
    let (web, _) = wired(a, &server, "web");
    let (side, near) = wired(a, &server, "side");
    let (db, far) = wired(b, &server, "db");
    let (closed, isolated) = wired(b, &server, "closed");
    server.apply(pod_policy());
    publish(&server, &far);
    for (node, run) in nodes.iter().zip(&runs) {
        run.await_services(|| {
            let table = node.run("nft", "list table inet podwire-services");
            far.iter().all(|it| table.contains(&it.to_string()))
        });
    }
    a.await_doors(&server, &runs[0], &["node-b"]);
    b.await_doors(&server, &runs[1], &["node-a"]);
    central.sync();

    let traffic = start_traffic(
        &central,
        &nodes,
        [
            (&web, &[][..]),
            (&side, &near),
            (&db, &far),
            (&closed, &isolated),
        ],
    );
    traffic.proves("the start");
    let before = in_place(&central, &nodes);

    // 1. ovn-controller, as its pod's preStop ends it; the same version here.
    for node in &nodes {
        node.hand_over_controller();
        node.start_controller();
    }
    central.sync();
    traffic.proves("ovn-controller");
    // 2. ovn-northd.
    central.end_northd();
    central.start_northd();
    central.sync();
    traffic.proves("ovn-northd");
    let now = in_place(&central, &nodes);
    assert_eq!(
        changes(&before, &now),
        Vec::<String>::new(),
        "by OVN's restart"
    );

    // 3. podwire-controller: the one that stands by first, as a rollout may, then the leader.
    programs.replace("later", &["podwire-controller"]);
    second.stop();
    let second = start_controller("two");
    second.await_log("standing by");
    first.stop();
    let told = second.await_log("all rows are in sync");
    println!("podwire-controller: {told}");
    central.sync();
    traffic.proves("podwire-controller");
    let now = in_place(&central, &nodes);
    assert_eq!(changes(&before, &now), Vec::<String>::new(), "{told}");

    // The node role, and the agent with its plugin, node by node.
    programs.replace("later", &["podwire", "podwire-cni"]);
    let runs: Vec<_> = nodes
        .iter()
        .zip(runs)
        .map(|(node, run)| {
            assert!(run.stop().success());
            let run = NodeRun::start(node, node.joining("run", &server));
            assert_eq!(run.count("restored "), 0, "{}", run.log());
            run
        })
        .collect();
    traffic.proves("podwire node run");
    let after = in_place(&central, &nodes);
    let (rules, others): (Vec<_>, Vec<_>) = changes(&before, &after)
        .into_iter()
        .partition(|it| it.contains(": nft "));
    assert_eq!(others, Vec::<String>::new(), "by the node role");
    println!("of its own nftables: {rules:#?}");
    let before = after;
    let agents: Vec<_> = nodes
        .iter()
        .zip(agents)
        .map(|(node, agent)| {
            assert!(agent.stop().success());
            let agent = start_agent(node, &server);
            agent.await_log(r#""message":"ready","ports":2"#);
            agent
        })
        .collect();
    traffic.proves("the agent");
    let now = in_place(&central, &nodes);
    assert_eq!(
        changes(&before, &now),
        Vec::<String>::new(),
        "by the agents"
    );

    // What the former programs made, the new ones find right, and undo; and new pods come.
    for node in &nodes {
        node.podwire("check").success("podwire check");
        node.podwire("doctor");
    }
    let (late, addresses) = wired(a, &server, "late");
    for &address in &addresses {
        traffic::udp_echo(db.place(), late.place(), address, 1000).unwrap();
    }
    traffic.proves("a pod by the new programs");

    // 4. Open vSwitch, node by node: nothing is forwarded until it has its flows again, and no more
    // is needed for that.
    for node in &nodes {
        node.kill_vswitchd();
        node.start_vswitchd();
    }
    probes::settle(&traffic.probes).unwrap();
    traffic.proves("ovs-vswitchd");
    drop(traffic);
    for pod in [late, web, side, db, closed] {
        pod.del().success();
        server.delete_object("Pod", &pod.namespace, &pod.name);
    }
    for (node, run) in nodes.iter().zip(runs) {
        run.stop();
        node.podwire("node cleanup").success("podwire node cleanup");
    }
    for agent in agents {
        agent.stop();
    }
    assert!(second.stop().success());
    nodes.iter().for_each(|it| it.leftovers().assert_none());
}
