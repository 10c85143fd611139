//! Isolated pods and the ways by a node: who reaches them by node ports, external addresses and
//! load balancers' ones, from where, and as whom. The table of docs/policy.md, by connections.

mod primary;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::controller::Controller;
use podwire_tests::managers::Manager;
use podwire_tests::ovn::{BOTH_FAMILIES, Central, OvnNode};
use podwire_tests::{Place, Pod};
use serde_json::{Value, json};

/// The machine outside; the asked node, and the other one.
const OUTSIDE: [&str; 2] = ["172.31.0.1", "fd00:31::1"];
const NODES: [[&str; 2]; 2] = [["172.31.0.2", "fd00:31::2"], ["172.31.0.3", "fd00:31::3"]];
/// The management port of the asked node.
const DOOR: [&str; 2] = ["10.244.0.2", "fd00:10:244::2"];
/// What the node gives its own pods that come back by it.
const NEIGHBOUR: [&str; 2] = ["169.254.169.6", "fd69::6"];

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
    /// The family: IPv4 or IPv6.
    v6: bool,
    udp: bool,
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
            for number in 0..16 {
                let bit = |at: u8| number >> at & 1 == 1;
                cells.push(Cell {
                    client,
                    way,
                    is_here: bit(0),
                    is_local: bit(1),
                    v6: bit(2),
                    udp: bit(3),
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
        let (address, port) = match self.way {
            Way::NodePort => (self.of(NODES[0]), 30000 + n),
            Way::External => (self.of(externals(n).each_ref().map(String::as_str)), 80),
            Way::Balancer => (
                self.of(externals(n + 100).each_ref().map(String::as_str)),
                80,
            ),
        };
        SocketAddr::new(address, port)
    }

    /// That of its family.
    fn of(self, both: [&str; 2]) -> IpAddr {
        both[usize::from(self.v6)].parse().unwrap()
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
        let both = match (self.client, self.way) {
            // OVN's own load balancers.
            (Client::PodHere | Client::PodElsewhere, Way::External | Way::Balancer) => return own,
            (Client::Host, _) => DOOR,
            (Client::Outside, _) => OUTSIDE,
            // Nodes are no clients that policies would know, and pods by a node port have theirs.
            _ if !self.is_here => DOOR,
            (Client::PodElsewhere, _) => NODES[1],
            (Client::PodHere, _) => NEIGHBOUR,
        };
        Some(self.of(both))
    }
}

/// An external address of both families.
fn externals(n: u16) -> [String; 2] {
    [format!("203.0.113.{n}"), format!("2001:db8:113::{n}")]
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
        let [v4, v6] = OUTSIDE;
        let outside = [format!("{v4}/32"), format!("{v6}/128")];
        let outside = outside.map(|cidr| json!({ "ipBlock": { "cidr": cidr } }));
        let (name, ingress) = match self {
            Self::Absent => return None,
            Self::Deny => ("deny", json!([])),
            Self::AllowOutside => ("outside", json!([{ "from": outside }])),
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
        let is_of_its_node = cell.is_here && source == cell.of(DOOR);
        is_of_its_node
            || match self {
                Self::Absent => true,
                Self::Deny => false,
                Self::AllowOutside => source == cell.of(OUTSIDE),
                Self::AllowPods => Some(source) == own,
            }
    }
}

/// Tells each client whom it looks like.
fn serve(pod: &Pod<'_>, address: IpAddr) {
    serve_at(pod, SocketAddr::new(address, 8080));
}

fn serve_at(pod: &Pod<'_>, at: SocketAddr) {
    let listener = pod.place().run(|| TcpListener::bind(at)).unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, peer)) = listener.accept() {
            let _ = stream.write_all(peer.ip().to_string().as_bytes());
        }
    });
    let socket = pod.place().run(|| UdpSocket::bind(at)).unwrap();
    thread::spawn(move || {
        while let Ok((_, peer)) = socket.recv_from(&mut [0; 64]) {
            let _ = socket.send_to(peer.ip().to_string().as_bytes(), peer);
        }
    });
}

/// How often a question by UDP is sent within its limit.
const QUESTIONS: u32 = 10;

fn ask(from: &Place, to: SocketAddr, udp: bool, limit: Duration) -> Option<IpAddr> {
    from.run(|| {
        if udp {
            let any: IpAddr = if to.is_ipv4() { "0.0.0.0" } else { "::" }.parse().unwrap();
            let socket = UdpSocket::bind((any, 0)).ok()?;
            socket.connect(to).ok()?;
            socket.set_read_timeout(Some(limit / QUESTIONS)).ok()?;
            let mut text = [0; 64];
            let answered = (0..QUESTIONS).find_map(|_| {
                socket.send(b"who").ok()?;
                socket.recv(&mut text).ok()
            });
            return std::str::from_utf8(&text[..answered?]).ok()?.parse().ok();
        }
        let mut stream = TcpStream::connect_timeout(&to, limit).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.parse().ok()
    })
}

/// The service of a cell, and its endpoint: its addresses and its node.
fn service(server: &ApiServer, namespace: &str, cell: Cell, endpoint: (&[IpAddr], &str)) {
    let (addresses, node) = endpoint;
    let n = cell.number();
    let name = format!("s{n}");
    let mut service = apiserver::service(namespace, &name, &format!("10.96.0.{n}"), 80);
    let spec = &mut service["spec"];
    spec["type"] = "LoadBalancer".into();
    spec["clusterIPs"] = json!([format!("10.96.0.{n}"), format!("fd00:96::{n}")]);
    let ports = [("main", "TCP"), ("more", "UDP")].map(|(name, protocol)| {
        let (node_port, to) = (30000 + n, 8080);
        json!({ "name": name, "protocol": protocol, "port": 80, "targetPort": to,
                "nodePort": node_port })
    });
    spec["ports"] = json!(ports);
    spec["externalIPs"] = json!(externals(n));
    spec["externalTrafficPolicy"] = if cell.is_local { "Local" } else { "Cluster" }.into();
    let balancer = externals(n + 100).map(|ip| json!({ "ip": ip }));
    service["status"] = json!({ "loadBalancer": { "ingress": balancer } });
    for address in addresses {
        let mut slice = apiserver::endpoints(namespace, &name, &[&address.to_string()], 8080);
        slice["endpoints"][0]["nodeName"] = node.into();
        slice["ports"] = json!([
            { "name": "main", "protocol": "TCP", "port": 8080 },
            { "name": "more", "protocol": "UDP", "port": 8080 },
        ]);
        if address.is_ipv6() {
            slice["addressType"] = "IPv6".into();
            slice["metadata"]["name"] = format!("{name}-6").into();
        }
        server.apply(slice);
    }
    server.apply(service);
}

#[test]
fn nobody_passes_a_policy_by_a_node_and_everybody_is_seen_as_the_table_says() {
    check(&Policy::ALL, false);
}

/// What firewalls do with IPv6 packets that come by another link than the one to their source:
/// firewalld with iptables (`mangle`), and with `strict-forward`. With nftables it has its own.
const STRICT: &str = "table ip6 strict {
    chain received {
        type filter hook prerouting priority mangle
        icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit } accept
        fib saddr . mark . iif oif missing counter drop
    }
    chain forwarded {
        type filter hook forward priority filter + 10
        fib saddr . mark . iif oif missing counter drop
    }
}";

#[test]
fn the_same_is_seen_where_firewalls_compare_the_link_with_the_way_back() {
    check(&[Policy::Absent, Policy::AllowOutside], true);
}

/// Asks in each cell of the table under these policies, on nodes with such firewalls or none.
/// The databases and two machines, with ways from outside to the external addresses.
fn machines() -> (Central, [OvnNode; 2]) {
    let central = Central::start();
    let nodes = [("node-a", 1), ("node-b", 2)].map(|(name, number)| {
        let node = central.bare_node(name, number);
        node.start_controller();
        node
    });
    for (net, by) in ["203.0.113.0/24", "2001:db8:113::/64"]
        .into_iter()
        .zip(NODES[0])
    {
        central
            .machine()
            .run("ip", ["route", "add", net, "via", by]);
    }
    (central, nodes)
}

/// The API server outside, and podwire-controller.
fn controlled(central: &Central) -> (ApiServer, Controller) {
    let outside = central.machine().place();
    let server = ApiServer::start_at(outside, OUTSIDE[0].parse().unwrap());
    let controller = Controller::start(central, &server, "one", BOTH_FAMILIES);
    controller.await_log("all rows are in sync");
    (server, controller)
}

fn check(policies: &[Policy], has_firewalls: bool) {
    let (central, nodes) = machines();
    let _firewalls = nodes.each_ref().map(|node| {
        has_firewalls.then(|| {
            node.run("sh", ["-c", &format!("nft -f - <<'END'\n{STRICT}\nEND")]);
            Manager::firewalld(node).unwrap()
        })
    });
    let outside = central.machine().place();
    let (server, controller) = controlled(&central);
    let runs = nodes.each_ref().map(|node| node.join(&central, &server));
    let options = OvnNode::agent_options();
    let agents = nodes.each_ref().map(|node| node.start_agent(&options));
    let wired = |at: usize, app: &str| nodes[at].wired(&server, &format!("{app}-{at}"), app);
    let [webs, clients] = ["web", "client"].map(|app| [0, 1].map(|at| wired(at, app)));
    for (web, addresses) in &webs {
        for address in addresses {
            serve(web, *address);
        }
    }
    let northbound = central.northbound();
    let is_one = |it: &Cell| it.client == Client::Host && !it.v6 && !it.udp;
    for cell in cells().into_iter().filter(is_one) {
        let at = usize::from(!cell.is_here);
        service(&server, "tests", cell, (&webs[at].1, &nodes[at].name));
    }
    let await_row = |table: &str, column: &str, name: &str, until: &str| {
        let condition = json!([[column, "==", name]]);
        let waited = northbound.wait(table, condition, until, &["name"], json!([]));
        waited.unwrap();
    };
    for n in 10..14 {
        let balancer = format!("Service_tests/s{n}_UDP_cluster");
        await_row("Load_Balancer", "name", &balancer, "!=");
    }
    for (at, run) in runs.iter().enumerate() {
        let is_there = || {
            let table = nodes[at].run("nft", "list table inet podwire-services");
            (10..14).all(|n| table.contains(&format!("203.0.113.{n}")))
                && webs.iter().all(|(_, addresses)| {
                    addresses.iter().all(|it| table.contains(&it.to_string()))
                })
        };
        run.await_services(is_there);
    }

    for (at, run) in runs.iter().enumerate() {
        nodes[at].await_doors(&server, run, &[&nodes[1 - at].name]);
    }

    let from = |cell: Cell| {
        let family = usize::from(cell.v6);
        match cell.client {
            Client::Outside => (outside, None),
            Client::PodHere => (clients[0].0.place(), Some(clients[0].1[family])),
            Client::PodElsewhere => (clients[1].0.place(), Some(clients[1].1[family])),
            Client::Host => (nodes[0].place(), None),
        }
    };
    let mut wrong = Vec::new();
    for policy in policies.iter().copied() {
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
        for node in &nodes {
            // Until then, what the switch has cached may let new connections pass.
            node.await_revalidated();
        }
        thread::scope(|scope| {
            let asked = cells().into_iter().map(|cell| {
                let (place, own) = from(cell);
                let source = cell.source(own);
                let expected = source.filter(|source| policy.allows(cell, *source, own));
                let limit = match expected {
                    Some(_) => Duration::from_secs(10),
                    None => Duration::from_secs(1),
                };
                let asked = scope.spawn(move || ask(place, cell.to(), cell.udp, limit));
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
