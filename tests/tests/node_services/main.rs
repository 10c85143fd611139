//! Services on the host, of two nodes on a real OVN with a client outside: every way to an
//! endpoint, and what becomes of them when endpoints come and go.

mod affinity;
mod content;
mod forged;
mod host;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{Agent, NodeRun, Place, Pod, traffic};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(10);

/// Two nodes that `podwire node run` keeps, each with its own stand-in of the one API server, a pod
/// on each, and the outside.
struct Cluster<'n> {
    central: &'n Central,
    nodes: &'n [OvnNode; 2],
    servers: [ApiServer; 2],
    runs: Vec<NodeRun>,
    agents: Vec<Agent<'n>>,
    pods: Vec<Pod<'n>>,
}

fn machines() -> (Central, [OvnNode; 2]) {
    let central = Central::start();
    let nodes = [("node-a", 1), ("node-b", 2)];
    let nodes = nodes.map(|(name, number)| central.bare_node(name, number));
    // The way to addresses of services that are no machine's.
    for (net, by) in [
        ("203.0.113.0/24", "172.31.0.2"),
        ("2001:db8:113::/64", "fd00:31::2"),
    ] {
        let add = ["route", "add", net, "via", by];
        central.machine().run("ip", add);
    }
    (central, nodes)
}

impl<'n> Cluster<'n> {
    fn start(central: &'n Central, nodes: &'n [OvnNode; 2], objects: &[Value]) -> Self {
        let servers = [0, 1].map(|at| ApiServer::start_in(nodes[at].place()));
        let mut cluster = Self {
            central,
            nodes,
            servers,
            runs: Vec::new(),
            agents: Vec::new(),
            pods: Vec::new(),
        };
        for object in objects {
            cluster.apply(object.clone());
        }
        for (at, node) in nodes.iter().enumerate() {
            cluster.add(at, node);
        }
        central.sync();
        cluster
    }

    fn add(&mut self, at: usize, node: &'n OvnNode) {
        let (server, name) = (&self.servers[at], node.name.as_str());
        server.apply(node.api_object());
        let run = NodeRun::launch(node, node.host_arguments("run", Some(server)));
        node.start_controller();
        run.await_state("READY=1");
        run.await_log("services follow the cluster", 1);
        self.central.await_chassis(name);
        self.runs.push(run);
        self.central.add_host(node);
        self.central.await_up(&format!("k8s-{name}"), true);
        self.agents
            .push(node.start_agent(&OvnNode::agent_options()));
        let pod = format!("on-{name}");
        let (pod, _) = self.central.schedule(node, &pod, 11);
        pod.add().success();
        self.pods.push(pod);
    }

    fn apply(&self, object: Value) {
        for server in &self.servers {
            server.apply(object.clone());
        }
    }

    /// Applies it once both nodes have taken it up.
    fn apply_and_wait(&self, object: Value) {
        let counts: Vec<usize> = self
            .runs
            .iter()
            .map(|run| run.count("services follow the cluster"))
            .collect();
        self.apply(object);
        for (run, count) in self.runs.iter().zip(counts) {
            run.await_log("services follow the cluster", count + 1);
        }
    }

    fn outside(&self) -> &Place {
        self.central.machine().place()
    }

    fn end(self) {
        for pod in &self.pods {
            pod.del().success();
        }
        drop(self.agents);
        for (run, node) in self.runs.into_iter().zip(self.nodes) {
            assert!(run.stop().success());
            let done = node.podwire("node cleanup");
            done.success("podwire node cleanup");
            let left = node.run("nft", "list ruleset");
            assert_eq!(left, "");
            node.leftovers().assert_none();
        }
    }
}

/// A service of both protocols: number `n` has 10.96.0.n, 203.0.113.n and 203.0.113.1n, or those of
/// IPv6, port 80, and node ports 30000 + n.
fn service(name: &str, n: u16, v4: bool, changes: Value) -> Value {
    let ip = if v4 {
        format!("10.96.0.{n}")
    } else {
        format!("fd00:10:96::{n}")
    };
    let external = |n: u16| match v4 {
        true => format!("203.0.113.{n}"),
        false => format!("2001:db8:113::{n}"),
    };
    let port = |name: &str, protocol: &str| {
        json!({
            "name": name, "protocol": protocol, "port": 80, "targetPort": 8080,
            "nodePort": 30000 + n,
        })
    };
    let mut object = apiserver::service("default", name, &ip, 80);
    object["spec"]["type"] = "LoadBalancer".into();
    object["spec"]["ports"] = json!([port("t", "TCP"), port("u", "UDP"), port("s", "SCTP")]);
    object["spec"]["externalIPs"] = json!([external(n)]);
    object["status"] = json!({"loadBalancer": {"ingress": [{"ip": external(n + 100)}]}});
    for (key, value) in changes.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    object
}

/// Its endpoints: address and node.
fn endpoints(name: &str, ends: &[(&str, &str)]) -> Value {
    let v4 = ends
        .first()
        .is_none_or(|(address, _)| !address.contains(':'));
    let ports = [("t", "TCP"), ("u", "UDP"), ("s", "SCTP")]
        .map(|(name, protocol)| json!({"name": name, "protocol": protocol, "port": 8080}));
    let mut object = apiserver::endpoints("default", name, &[], 8080);
    object["addressType"] = if v4 { "IPv4" } else { "IPv6" }.into();
    object["ports"] = json!(ports);
    object["endpoints"] = ends
        .iter()
        .map(|(address, node)| {
            json!({"addresses": [address], "nodeName": node,
            "conditions": {"ready": true}})
        })
        .collect();
    object
}

/// The four kinds of endpoint, as seen from node-a: a pod here and there, a host here and there.
const ENDS: [(&str, &str, &str); 4] = [
    ("10.128.1.11", "fd00:10:128:1::b", "node-a"),
    ("10.128.2.11", "fd00:10:128:2::b", "node-b"),
    ("172.31.0.2", "fd00:31::2", "node-a"),
    ("172.31.0.3", "fd00:31::3", "node-b"),
];

#[test]
fn every_client_reaches_every_kind_of_endpoint_by_every_address() {
    let mut objects = Vec::new();
    for (at, (v4, v6, node)) in ENDS.iter().enumerate() {
        for (is_v4, address) in [(true, v4), (false, v6)] {
            let n = 10 + 2 * u16::try_from(at).unwrap() + u16::from(is_v4);
            let name = format!("web-{n}");
            objects.push(service(&name, n, is_v4, json!({})));
            objects.push(endpoints(&name, &[(address, node)]));
        }
    }
    let (central, nodes) = machines();
    let cluster = Cluster::start(&central, &nodes, &objects);
    let (host, outside) = (nodes[0].place(), cluster.outside());
    let places = [
        cluster.pods[0].place(),
        cluster.pods[1].place(),
        host,
        nodes[1].place(),
    ];
    let mut failures = Vec::new();
    let mut paths = 0;
    for (at, (v4, v6, _)) in ENDS.iter().enumerate() {
        for (is_v4, address) in [(true, v4), (false, v6)] {
            let n = 10 + 2 * u16::try_from(at).unwrap() + u16::from(is_v4);
            let listening = SocketAddr::new(address.parse().unwrap(), 8080);
            let by = |v4: &str, v6: &str, port: u16| {
                let text = if is_v4 { v4 } else { v6 };
                SocketAddr::new(text.parse().unwrap(), port)
            };
            let cluster_ip = by(&format!("10.96.0.{n}"), &format!("fd00:10:96::{n}"), 80);
            let node_port = by("172.31.0.2", "fd00:31::2", 30000 + n);
            let external = by(&format!("203.0.113.{n}"), &format!("2001:db8:113::{n}"), 80);
            let m = n + 100;
            let balancer = by(&format!("203.0.113.{m}"), &format!("2001:db8:113::{m}"), 80);
            let pod = cluster.pods[0].place();
            for (what, from, by) in [
                ("host to cluster IP", host, cluster_ip),
                ("host to its node port", host, node_port),
                ("host to external IP", host, external),
                ("outside to node port", outside, node_port),
                ("outside to external IP", outside, external),
                ("outside to load balancer's IP", outside, balancer),
                ("pod to its node's node port", pod, node_port),
            ] {
                let to = places[at];
                let tcp = traffic::tcp_echo_by(from, to, listening, Some(by), 1 << 14);
                let udp = traffic::udp_echo_by(from, to, listening, Some(by), 1000);
                for (protocol, result) in [("TCP", tcp), ("UDP", udp)] {
                    paths += 1;
                    if let Err(error) = result {
                        failures.push(format!("{what}, {protocol}, {listening}: {error}"));
                    }
                }
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {paths} paths: {failures:#?}",
        failures.len()
    );
    let table = nodes[0].run("nft", "list map inet podwire-services services4");
    assert!(table.contains("sctp . 172.31.0.2 . 30011 : goto any-of-1-sctp4"));
    cluster.end();
}

#[test]
fn endpoints_come_and_go_and_clients_are_led_where_they_are() {
    let ends: Vec<(&str, &str)> = ENDS[..2].iter().map(|(v4, _, node)| (*v4, *node)).collect();
    let local = json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32000});
    let sticky = json!({"sessionAffinity": "ClientIP"});
    let objects = [
        service("web", 10, true, json!({})),
        endpoints("web", &ends[..1]),
        service("local", 11, true, local),
        endpoints("local", &ends[..1]),
        service("sticky", 12, true, sticky),
        endpoints("sticky", &ends),
        service("none", 13, true, json!({})),
    ];
    let (central, nodes) = machines();
    let cluster = Cluster::start(&central, &nodes, &objects);
    let (host, outside) = (nodes[0].place(), cluster.outside());
    let pods = [cluster.pods[0].place(), cluster.pods[1].place()];
    let listen = |at: usize| {
        let address = format!("{}:8080", ENDS[at].0);
        pods[at].run(|| TcpListener::bind(address)).unwrap()
    };
    let connect = |from: &Place, to: &str| {
        let to = to.parse().unwrap();
        from.run(|| TcpStream::connect_timeout(&to, LIMIT))
    };

    // Who has no endpoint says so at once.
    let refused = connect(host, "10.96.0.13:80").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);

    // A local policy keeps the client's address, and says where there are endpoints.
    let listeners = [listen(0), listen(1)];
    let stream = connect(outside, "172.31.0.2:30011").unwrap();
    let (_, peer) = listeners[0].accept().unwrap();
    assert_eq!(peer.ip(), "172.31.0.1".parse::<IpAddr>().unwrap());
    drop(stream);
    // Nobody looks like the node but itself: network policies always let its packets pass.
    for (from, seen) in [
        (outside, "172.31.0.1"),
        (pods[0], "169.254.169.6"),
        (host, "10.128.1.2"),
    ] {
        let _stream = connect(from, "172.31.0.2:30010").unwrap();
        let (_, peer) = listeners[0].accept().unwrap();
        assert_eq!(peer.ip(), seen.parse::<IpAddr>().unwrap());
    }
    for (address, status) in [("172.31.0.2", "200"), ("172.31.0.3", "503")] {
        let mut stream = connect(outside, &format!("{address}:32000")).unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        assert!(page.starts_with(&format!("HTTP/1.1 {status}")), "{page}");
    }
    // What is behind other nodes alone is dropped for the outside, not for this node's own clients.
    connect(nodes[1].place(), "172.31.0.3:30011").unwrap();
    listeners[0].accept().unwrap();

    // Clients that stick do so until their endpoint goes.
    let reached = |to: &str| {
        let stream = connect(outside, to).unwrap();
        // The client is connected before its server has heard of it.
        let mut fds = [0, 1].map(|at| PollFd::new(listeners[at].as_fd(), PollFlags::POLLIN));
        poll(&mut fds, PollTimeout::from(10_000_u16)).unwrap();
        let end = fds.iter().position(|fd| fd.any() == Some(true));
        listeners[end.unwrap()].accept().unwrap();
        drop(stream);
        end.unwrap()
    };
    let first = reached("172.31.0.2:30012");
    for _ in 0..8 {
        assert_eq!(reached("172.31.0.2:30012"), first);
    }
    let other = 1 - first;
    cluster.apply_and_wait(endpoints("sticky", &ends[other..=other]));
    assert_eq!(reached("172.31.0.2:30012"), other);
    cluster.apply_and_wait(endpoints("sticky", &ends));
    for _ in 0..8 {
        assert_eq!(reached("172.31.0.2:30012"), other);
    }
    // One that sticks to nobody sees both ends.
    cluster.apply_and_wait(endpoints("web", &ends));
    let seen: std::collections::BTreeSet<usize> =
        (0..40).map(|_| reached("172.31.0.2:30010")).collect();
    assert_eq!(seen.len(), 2);

    // A client of UDP that never stops is led to another endpoint when its own goes.
    cluster.apply_and_wait(endpoints("web", &ends[..1]));
    let servers = [0, 1].map(|at| {
        let address = format!("{}:8080", ENDS[at].0);
        let socket = pods[at].run(|| UdpSocket::bind(address)).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket
    });
    let client = outside.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    let mut bytes = [0; 16];
    client.send_to(b"one", "172.31.0.2:30010").unwrap();
    servers[0].recv(&mut bytes).unwrap();
    cluster.apply_and_wait(endpoints("web", &ends[1..]));
    client.send_to(b"two", "172.31.0.2:30010").unwrap();
    servers[1].recv(&mut bytes).unwrap();

    // All of it comes back after somebody has removed it.
    drop(listeners);
    nodes[0].run("nft", "flush ruleset");
    cluster.runs[0].await_log("restored nftables table inet podwire-services", 1);
    let listening = "10.128.2.11:8080".parse().unwrap();
    let by = Some("172.31.0.2:30010".parse().unwrap());
    traffic::tcp_echo_by(outside, pods[1], listening, by, 1000).unwrap();

    // The control plane is told of the node.
    let told = cluster.servers[0].object("Node", "", "node-a").unwrap();
    let annotations = &told["metadata"]["annotations"];
    assert_eq!(annotations["k8s.ovn.org/node-chassis-id"], "node-a");
    assert_eq!(
        annotations["k8s.ovn.org/node-mgmt-port-mac-address"],
        "0a:58:0a:80:01:02"
    );
    assert_eq!(
        annotations["k8s.ovn.org/host-addresses"],
        r#"["172.31.0.2","fd00:31::2"]"#
    );
    assert_eq!(
        annotations["k8s.ovn.org/node-primary-ifaddr"],
        r#"{"ipv4":"172.31.0.2/24","ipv6":"fd00:31::2/64"}"#
    );
    cluster.end();
}
