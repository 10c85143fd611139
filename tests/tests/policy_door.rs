//! Isolated pods and the ways by a node: who reaches them by node ports, external addresses and
//! load balancers' ones, from where, and as whom. The table of docs/policy.md, by connections.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::controller::Controller;
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{NodeRun, Place, Pod, Words as _};
use serde_json::{Value, json};

const NETWORKS: &str = "k8s.ovn.org/pod-networks";
/// The machine outside; the asked node, and the other one.
const OUTSIDE: &str = "172.31.0.1";
const NODES: [&str; 2] = ["172.31.0.2", "172.31.0.3"];
/// The management port of the asked node.
const DOOR: &str = "10.244.0.2";
/// What the node gives its own pods that come back by it.
const NEIGHBOUR: &str = "169.254.169.6";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Outside,
    PodHere,
    PodElsewhere,
    Host,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    NodePort,
    External,
    Balancer,
}

/// A cell of the table.
#[derive(Clone, Copy, Debug)]
struct Cell {
    client: Client,
    way: Way,
    /// Whether the endpoint is on the asked node.
    is_here: bool,
    /// `externalTrafficPolicy: Local`.
    is_local: bool,
}

/// The policies, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Absent,
    Deny,
    AllowOutside,
    AllowPods,
}

fn cells() -> Vec<Cell> {
    use {Client::*, Way::*};
    let mut cells = Vec::new();
    for client in [Outside, PodHere, PodElsewhere, Host] {
        for way in [NodePort, External, Balancer] {
            for (is_here, is_local) in [(true, false), (false, false), (true, true), (false, true)]
            {
                cells.push(Cell {
                    client,
                    way,
                    is_here,
                    is_local,
                });
            }
        }
    }
    cells
}

impl Cell {
    /// Of its service: one for each kind of endpoint and of policy.
    fn number(self) -> u16 {
        10 + 2 * u16::from(self.is_here) + u16::from(self.is_local)
    }

    fn to(self) -> SocketAddr {
        let n = self.number();
        let text = match self.way {
            Way::NodePort => format!("{}:{}", NODES[0], 30000 + n),
            Way::External => format!("203.0.113.{n}:80"),
            Way::Balancer => format!("203.0.113.{}:80", n + 100),
        };
        text.parse().unwrap()
    }

    /// Whom the endpoint sees, if nothing is isolated; `own` is the client's address, if it is a
    /// pod. With a local policy an endpoint elsewhere is for the cluster's own clients.
    fn source(self, own: Option<IpAddr>) -> Option<IpAddr> {
        let is_from_outside = match self.client {
            Client::Outside => true,
            Client::PodElsewhere => self.way == Way::NodePort,
            Client::PodHere | Client::Host => false,
        };
        if is_from_outside && self.is_local && !self.is_here {
            return None;
        }
        let text = match (self.client, self.way) {
            // OVN's own load balancers.
            (Client::PodHere | Client::PodElsewhere, Way::External | Way::Balancer) => return own,
            (Client::Host, _) => DOOR,
            _ if !self.is_here => DOOR,
            (Client::Outside, _) => OUTSIDE,
            (Client::PodElsewhere, _) => NODES[1],
            (Client::PodHere, _) => NEIGHBOUR,
        };
        Some(text.parse().unwrap())
    }
}

impl Policy {
    const ALL: [Self; 4] = [
        Self::Absent,
        Self::Deny,
        Self::AllowOutside,
        Self::AllowPods,
    ];

    fn object(self) -> Option<Value> {
        let client = json!({ "podSelector": { "matchLabels": { "app": "client" } } });
        let outside = json!({ "ipBlock": { "cidr": format!("{OUTSIDE}/32") } });
        let (name, ingress) = match self {
            Self::Absent => return None,
            Self::Deny => ("deny", json!([])),
            Self::AllowOutside => ("outside", json!([{ "from": [outside] }])),
            Self::AllowPods => ("pods", json!([{ "from": [client] }])),
        };
        Some(json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "namespace": "tests", "name": name, "uid": name },
            "spec": {
                "podSelector": { "matchLabels": { "app": "web" } },
                "policyTypes": ["Ingress"], "ingress": ingress,
            },
        }))
    }

    /// Whether the endpoint's policies let a source pass.
    fn allows(self, cell: Cell, source: IpAddr, own: Option<IpAddr>) -> bool {
        let is_of_its_node = cell.is_here && source.to_string() == DOOR;
        is_of_its_node
            || match self {
                Self::Absent => true,
                Self::Deny => false,
                Self::AllowOutside => source.to_string() == OUTSIDE,
                Self::AllowPods => Some(source) == own,
            }
    }
}

/// A node with `podwire node run`, and its agent.
fn join(server: &ApiServer, central: &Central, node: &OvnNode) -> NodeRun {
    let name = &*node.name;
    server.apply(apiserver::node(name, &node.tunnel_address()));
    let line = format!(
        "node run --mode ovn --node-name {name} --interface {} --cluster-subnet 10.244.0.0/16 \
         --service-cidr 10.96.0.0/16 --ovn-remote tcp:{OUTSIDE}:6642 --k8s-apiserver {}",
        node.uplink(),
        server.url()
    );
    let run = NodeRun::start(node, line.words());
    central.await_chassis(name);
    central.await_up(&format!("k8s-{name}"), true);
    run
}

/// A pod with a label, wired.
fn pod<'n>(server: &ApiServer, node: &'n OvnNode, name: &str, app: &str) -> (Pod<'n>, IpAddr) {
    let pod = node.pod(name);
    let mut object = apiserver::pod_on(&node.name, &pod, json!({}));
    object["metadata"]["labels"] = json!({ "app": app });
    server.apply(object);
    let is_there = |pod: &Value| pod["metadata"]["annotations"][NETWORKS].is_string();
    let object = server.await_object(("Pod", &pod.namespace, name), is_there);
    let entry = object["metadata"]["annotations"][NETWORKS].as_str();
    let entry: Value = serde_json::from_str(entry.unwrap()).unwrap();
    let entry = &entry["default"];
    let address = entry["ip_addresses"][0].as_str().unwrap();
    let address = address.split('/').next().unwrap().parse().unwrap();
    let pod = pod.on_default_network(entry);
    pod.add().success();
    (pod, address)
}

/// Tells each client whom it looks like.
fn serve(pod: &Pod<'_>, address: IpAddr) {
    let listener = pod
        .place()
        .run(|| TcpListener::bind((address, 8080)))
        .unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, peer)) = listener.accept() {
            let _ = stream.write_all(peer.ip().to_string().as_bytes());
        }
    });
}

fn ask(from: &Place, to: SocketAddr, limit: Duration) -> Option<IpAddr> {
    from.run(|| {
        let mut stream = TcpStream::connect_timeout(&to, limit).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.parse().ok()
    })
}

/// The service of a cell, and its endpoint.
fn service(server: &ApiServer, cell: Cell, address: IpAddr, node: &str) {
    let n = cell.number();
    let name = format!("s{n}");
    let mut service = apiserver::service("tests", &name, &format!("10.96.0.{n}"), 80);
    let spec = &mut service["spec"];
    spec["type"] = "LoadBalancer".into();
    spec["ports"][0]["nodePort"] = (30000 + n).into();
    spec["externalIPs"] = json!([format!("203.0.113.{n}")]);
    spec["externalTrafficPolicy"] = if cell.is_local { "Local" } else { "Cluster" }.into();
    let balancer = json!([{ "ip": format!("203.0.113.{}", n + 100) }]);
    service["status"] = json!({ "loadBalancer": { "ingress": balancer } });
    let mut slice = apiserver::endpoints("tests", &name, &[&address.to_string()], 8080);
    slice["endpoints"][0]["nodeName"] = node.into();
    server.apply(slice);
    server.apply(service);
}

#[test]
fn nobody_passes_a_policy_by_a_node_and_everybody_is_seen_as_the_table_says() {
    let central = Central::start();
    let nodes = [("node-a", 1), ("node-b", 2)].map(|(name, number)| {
        let node = central.bare_node(name, number);
        node.start_controller();
        node
    });
    let add = ["route", "add", "203.0.113.0/24", "via", NODES[0]];
    central.machine().run("ip", add);
    let outside = central.machine().place();
    let server = ApiServer::start_at(outside, OUTSIDE.parse().unwrap());
    let controller = Controller::start(&central, &server, "one", "");
    controller.await_log("all rows are in sync");
    let runs = nodes.each_ref().map(|node| join(&server, &central, node));
    let options = OvnNode::agent_options();
    let agents = nodes.each_ref().map(|node| node.start_agent(&options));
    let webs = [0, 1].map(|at| pod(&server, &nodes[at], &format!("web-{at}"), "web"));
    let clients = [0, 1].map(|at| pod(&server, &nodes[at], &format!("client-{at}"), "client"));
    for (web, address) in &webs {
        serve(web, *address);
    }
    let northbound = central.northbound();
    for cell in cells().into_iter().filter(|it| it.client == Client::Host) {
        let at = usize::from(!cell.is_here);
        service(&server, cell, webs[at].1, &nodes[at].name);
    }
    let await_row = |table: &str, column: &str, name: &str, until: &str| {
        let condition = json!([[column, "==", name]]);
        let waited = northbound.wait(table, condition, until, &["name"], json!([]));
        waited.unwrap();
    };
    for n in 10..14 {
        let balancer = format!("Service_tests/s{n}_TCP_cluster");
        await_row("Load_Balancer", "name", &balancer, "!=");
    }
    for (at, run) in runs.iter().enumerate() {
        let is_there = || {
            let table = nodes[at].run("nft", "list table inet podwire-services");
            (10..14).all(|n| table.contains(&format!("203.0.113.{n}")))
                && webs
                    .iter()
                    .all(|(_, address)| table.contains(&address.to_string()))
        };
        let mut settled = 1;
        run.await_log("services follow the cluster", settled);
        while !is_there() {
            settled += 1;
            run.await_log("services follow the cluster", settled);
        }
    }

    let from = |client: Client| match client {
        Client::Outside => (outside, None),
        Client::PodHere => (clients[0].0.place(), Some(clients[0].1)),
        Client::PodElsewhere => (clients[1].0.place(), Some(clients[1].1)),
        Client::Host => (nodes[0].place(), None),
    };
    let mut wrong = Vec::new();
    for policy in Policy::ALL {
        if let Some(object) = policy.object() {
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            server.apply(object);
            let acl = match policy {
                Policy::Deny => "NP:tests:Ingress".to_owned(),
                _ => format!("NP:tests:{name}:Ingress:0"),
            };
            await_row("ACL", "name", &acl, "!=");
        }
        central.sync();
        thread::scope(|scope| {
            let asked = cells().into_iter().map(|cell| {
                let (place, own) = from(cell.client);
                let source = cell.source(own);
                let expected = source.filter(|source| policy.allows(cell, *source, own));
                let limit = match expected {
                    Some(_) => Duration::from_secs(10),
                    None => Duration::from_secs(1),
                };
                let asked = scope.spawn(move || ask(place, cell.to(), limit));
                (cell, expected, asked)
            });
            let asked: Vec<_> = asked.collect();
            for (cell, expected, asked) in asked {
                let seen = asked.join().unwrap();
                if seen != expected {
                    wrong.push(format!("{policy:?}, {cell:?}: {seen:?}, not {expected:?}"));
                }
            }
        });
        if let Some(object) = policy.object()
            && policy != Policy::Deny
        {
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            server.delete_object("NetworkPolicy", "tests", &name);
            await_row("ACL", "name", &format!("NP:tests:{name}:Ingress:0"), "==");
        }
    }
    assert!(wrong.is_empty(), "{} cells: {wrong:#?}", wrong.len());
    drop(agents);
    for run in runs {
        run.stop();
    }
    assert!(controller.stop().success());
}
