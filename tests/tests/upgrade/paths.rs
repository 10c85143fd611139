//! Paths through a network of two nodes, with traffic over them, and what is in place there.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::controller::Controller;
use podwire_tests::ovn::{BOTH_FAMILIES, Central, OvnNode};
use podwire_tests::probes::{self, EchoServer, PORTS, Probes};
use podwire_tests::{Agent, AgentOptions, NodeRun, Pod, Row, traffic};
use serde_json::{Value, json};

/// Those of the northbound database that podwire-controller writes.
pub(crate) const TABLES: [&str; 14] = [
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
];

const OUTSIDE: &str = "172.31.0.1";
const SERVICES: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
const NODE_PORT: u16 = 30080;
const PORT: u16 = 8080;

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

/// What is in place: rows of the northbound database, and [`on_nodes`].
pub(crate) fn in_place(central: &Central, nodes: &[OvnNode]) -> BTreeSet<String> {
    let mut all = on_nodes(nodes);
    let northbound = central.northbound();
    for table in TABLES {
        for row in northbound.rows(table).unwrap() {
            all.insert(format!("{table}: {}", without_later_keys(row)));
        }
    }
    all
}

/// A row without its version, and without the keys that came since the earlier revision, or may go:
/// the chassis of nodes' ports, and the limit of connections, which a switch may not know.
fn without_later_keys(mut row: Row) -> Value {
    row.remove("_version");
    let keys = |row: &mut Row, column: &str, key: &str| {
        let map = row.get_mut(column).and_then(Value::as_object_mut);
        map.map(|map| map.remove(key));
    };
    keys(&mut row, "other_config", "ct-zone-limit");
    let name = row.get("name").and_then(Value::as_str).unwrap_or_default();
    if name.starts_with("k8s-") || name.starts_with("podwire-door-") {
        keys(&mut row, "options", "requested-chassis");
    }
    row.into()
}

/// Of each node rows of Open vSwitch, links, addresses, rules, routes and nftables; without what
/// counts or tells the time.
pub(crate) fn on_nodes(nodes: &[OvnNode]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for node in nodes {
        for (table, columns) in [
            ("Bridge", "_uuid,name,ports"),
            ("Port", "_uuid,name,interfaces,external_ids"),
            ("Interface", "_uuid,name,external_ids,ofport"),
        ] {
            let list = format!("--format=csv --no-headings --columns={columns} list {table}");
            add(
                &mut all,
                &format!("{}: {table}", node.name),
                &node.vsctl(list),
            );
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
            let place = format!("{}: {program} {line}", node.name);
            add(&mut all, &place, &node.run(program, line));
        }
    }
    all
}

fn add(all: &mut BTreeSet<String>, place: &str, text: &str) {
    let lines = text.lines().map(str::trim).filter(|it| !it.is_empty());
    // The carrier of a userspace datapath's own ports comes and goes.
    let steady = |line: &str| line.replace(",LOWER_UP", "").replace(" linkdown", "");
    all.extend(lines.map(|line| format!("{place}: {}", steady(line))));
}

/// Of what is in place, what is other than before.
pub(crate) fn changes(before: &BTreeSet<String>, after: &BTreeSet<String>) -> Vec<String> {
    let gone = before.difference(after).map(|it| format!("- {it}"));
    let new = after.difference(before).map(|it| format!("+ {it}"));
    gone.chain(new).collect()
}

/// All paths with traffic over them.
pub(crate) struct Traffic<'n> {
    nodes: &'n [OvnNode; 2],
    probes: Vec<Probes>,
    refused: Probes,
    _servers: Vec<EchoServer>,
}

impl Traffic<'_> {
    /// Says that nothing was lost, and nothing passed that must not.
    #[track_caller]
    pub(crate) fn proves(&self, step: &str) {
        let answered = probes::all_answered(&self.probes);
        let sent = answered.unwrap_or_else(|error| {
            panic!("after {step}: {error}\n{}", self.drops());
        });
        assert_eq!(self.refused.answered(), 0, "after {step}: the policy");
        println!("after {step}: {sent} answered, none lost");
    }

    /// Says that every path is there again by itself, and that nothing passed that must not.
    #[track_caller]
    pub(crate) fn comes_back(&self, step: &str) {
        // What is on its way is lost a second later.
        let _ = probes::all_answered(&self.probes);
        let lost = probes::settle(&self.probes).unwrap();
        assert_eq!(self.refused.answered(), 0, "after {step}: the policy");
        println!("after {step}: {lost} lost, of {} paths", self.probes.len());
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

/// Two nodes and what a cluster has beside them.
pub(crate) struct Cluster {
    pub(crate) central: Central,
    pub(crate) server: ApiServer,
    pub(crate) nodes: [OvnNode; 2],
}

/// A pod with its addresses.
pub(crate) type Wired<'n> = (Pod<'n>, Vec<IpAddr>);
/// web and side on the first node, db, which a service has, and closed, which a policy isolates, on
/// the second.
pub(crate) type Pods<'n> = [Wired<'n>; 4];

impl Cluster {
    #[track_caller]
    pub(crate) fn start() -> Self {
        let central = Central::start();
        let server = ApiServer::start_at(central.machine().place(), OUTSIDE.parse().unwrap());
        let nodes = [("node-a", 1), ("node-b", 2)].map(|(name, number)| {
            let node = central.bare_node(name, number);
            node.start_controller();
            node
        });
        Self {
            central,
            server,
            nodes,
        }
    }

    #[track_caller]
    pub(crate) fn start_controller(&self, identity: &str) -> Controller {
        Controller::start(&self.central, &self.server, identity, BOTH_FAMILIES)
    }

    /// The leader, and one that stands by.
    #[track_caller]
    pub(crate) fn start_controllers(&self) -> [Controller; 2] {
        let first = self.start_controller("one");
        first.await_log("all rows are in sync");
        let second = self.start_controller("two");
        second.await_log("standing by");
        [first, second]
    }

    /// `podwire node run` on each node.
    #[track_caller]
    pub(crate) fn join(&self) -> [NodeRun; 2] {
        let Self {
            central,
            server,
            nodes,
        } = self;
        nodes.each_ref().map(|it| it.join(central, server))
    }

    #[track_caller]
    pub(crate) fn start_agent<'n>(&self, node: &'n OvnNode) -> Agent<'n> {
        let options = OvnNode::agent_options();
        node.start_agent(&AgentOptions::watching(options, &self.server, &node.name))
    }

    /// The pods, once everything that leads to them is in place.
    #[track_caller]
    pub(crate) fn wire(&self, runs: &[NodeRun; 2]) -> Pods<'_> {
        let Self { server, nodes, .. } = self;
        let [a, b] = nodes;
        let places = [(a, "web"), (a, "side"), (b, "db"), (b, "closed")];
        let pods = places.map(|(node, name)| node.wired(server, name, name));
        server.apply(pod_policy());
        let (_, far) = &pods[2];
        publish(server, far);
        for (node, run) in nodes.iter().zip(runs) {
            run.await_services(|| {
                let table = node.run("nft", "list table inet podwire-services");
                far.iter().all(|it| table.contains(&it.to_string()))
            });
        }
        a.await_doors(server, &runs[0], &["node-b"]);
        b.await_doors(server, &runs[1], &["node-a"]);
        self.central.sync();
        pods
    }

    /// Removes the pods and what the node role made, and says that nothing is left.
    #[track_caller]
    pub(crate) fn take_down<'n>(
        &self,
        pods: impl IntoIterator<Item = Wired<'n>>,
        runs: impl IntoIterator<Item = NodeRun>,
        agents: impl IntoIterator<Item = Agent<'n>>,
    ) {
        for (pod, _) in pods {
            pod.del().success();
            self.server.delete_object("Pod", &pod.namespace, &pod.name);
        }
        for (node, run) in self.nodes.iter().zip(runs) {
            run.stop();
            node.podwire("node cleanup").success("podwire node cleanup");
        }
        for agent in agents {
            agent.stop();
        }
        let nodes = self.nodes.iter();
        nodes.for_each(|it| it.leftovers().assert_none());
    }

    /// One more pod on the first node, which db reaches.
    #[track_caller]
    pub(crate) fn wire_late(&self, pods: &Pods<'_>) -> Wired<'_> {
        let (late, addresses) = self.nodes[0].wired(&self.server, "late", "late");
        for &address in &addresses {
            traffic::udp_echo(pods[2].0.place(), late.place(), address, 1000).unwrap();
        }
        (late, addresses)
    }

    /// Traffic over every path, which has been answered on each.
    #[track_caller]
    pub(crate) fn start_traffic(&self, pods: &Pods<'_>) -> Traffic<'_> {
        let Self { central, nodes, .. } = self;
        let [a, b] = nodes;
        let [web, side, db, closed] = pods;
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
}
