//! What the rows are for: packets between pods on two nodes, and to services.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::socket::{Shutdown, shutdown};
use podwire_tests::apiserver::{ApiServer, endpoints, node, pod_on, service};
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{Agent, Place, Pod, traffic};
use serde_json::{Value, json};

use crate::fixture::{Running, await_network, await_row};

/// Two nodes with an agent each, and the controller.
pub(crate) struct Network {
    pub(crate) central: Central,
    pub(crate) server: ApiServer,
    pub(crate) nodes: [OvnNode; 2],
    /// The definition of their namespaces' primary network, if wired pods have one.
    pub(crate) primary: Option<&'static str>,
}

impl Network {
    pub(crate) fn start(flags: &[&str]) -> (Self, Running) {
        let (central, server) = (Central::start(), ApiServer::start());
        let nodes = [("node-a", 1), ("node-b", 2)].map(|(name, number)| {
            let machine = central.node(name, number);
            server.apply(node(name, &machine.tunnel_address()));
            machine
        });
        let controller = Running::start(&central, &server, flags);
        let network = Self {
            central,
            server,
            nodes,
            primary: None,
        };
        (network, controller)
    }

    pub(crate) fn start_agents(&self) -> [Agent<'_>; 2] {
        let options = OvnNode::agent_options();
        let nodes = self.nodes.each_ref();
        nodes.map(|node| node.start_agent(&options))
    }

    /// A pod on one of the nodes, wired.
    fn pod(&self, node: usize, name: &str) -> (Pod<'_>, IpAddr) {
        let node = &self.nodes[node];
        let pod = node.pod(name);
        self.server.apply(pod_on(&node.name, &pod, json!({})));
        let entry = await_network(&self.server, &pod.namespace, name);
        let address = entry["ip_addresses"][0].as_str().unwrap();
        let address = address.split('/').next().unwrap().parse().unwrap();
        let pod = pod.on_default_network(&entry);
        pod.add().success();
        (pod, address)
    }

    /// A service on port 80 in front of port 8080 of endpoints, each of a node and ready or ending;
    /// changed as its spec is wanted. Returns where it listens, once all nodes have it.
    pub(crate) fn service(
        &self,
        number: u8,
        ends: &[(IpAddr, &str, bool)],
        spec: &Value,
        row: &str,
    ) -> SocketAddr {
        let (name, vip) = (format!("s{number}"), format!("10.96.0.{number}"));
        let addresses: Vec<_> = ends
            .iter()
            .map(|(address, ..)| address.to_string())
            .collect();
        let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
        let mut slice = endpoints("default", &name, &addresses, 8080);
        for (at, (_, node, is_ready)) in ends.iter().enumerate() {
            slice["endpoints"][at]["nodeName"] = (*node).into();
            let conditions =
                json!({ "ready": is_ready, "serving": true, "terminating": !is_ready });
            slice["endpoints"][at]["conditions"] = conditions;
        }
        self.server.apply(slice);
        let mut service = service("default", &name, &vip, 80);
        for (key, value) in spec.as_object().unwrap() {
            service["spec"][key] = value.clone();
        }
        self.server.apply(service);
        let row = format!("Service_default/{name}_TCP_{row}");
        await_row(&self.central, "Load_Balancer", &row, true);
        if !ends.is_empty() {
            let empty = json!(["map", [[format!("{vip}:80"), ""]]]);
            let condition = json!([["name", "==", row], ["vips", "!=", empty]]);
            let northbound = self.central.northbound();
            northbound
                .wait("Load_Balancer", condition, "!=", &["name"], json!([]))
                .unwrap();
        }
        self.central.sync();
        SocketAddr::new(vip.parse().unwrap(), 80)
    }
}

/// Tells each client who it is, until it is dropped.
pub(crate) struct Named {
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

impl Named {
    pub(crate) fn start(place: &Place, address: IpAddr, name: &'static str) -> Self {
        let listener = place.run(|| TcpListener::bind((address, 8080))).unwrap();
        let accepting = listener.try_clone().unwrap();
        let thread = thread::spawn(move || {
            while let Ok((mut client, _)) = accepting.accept() {
                let _ = client.write_all(name.as_bytes());
            }
        });
        Self {
            listener,
            thread: Some(thread),
        }
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        // accept(2) returns EINVAL then.
        let _ = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Who answers.
pub(crate) fn ask(from: &Place, to: SocketAddr) -> Result<String, ErrorKind> {
    let asked = from.run(|| {
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(10))?;
        let mut name = String::new();
        stream.read_to_string(&mut name).map(|_| name)
    });
    asked.map_err(|error: std::io::Error| error.kind())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_reach_each_other_across_nodes_and_the_service_in_front_of_one() {
    let (network, controller) = Network::start(&[]);
    let agents = network.start_agents();
    let (web, web_address) = network.pod(0, "web");
    let (db, db_address) = network.pod(1, "db");
    traffic::ping_until_answered(web.place(), db_address).unwrap();
    traffic::tcp_echo(web.place(), db.place(), db_address, 1 << 20).unwrap();
    traffic::tcp_echo(db.place(), web.place(), web_address, 1 << 20).unwrap();

    let by = network.service(10, &[(db_address, "node-b", true)], &json!({}), "cluster");
    let listening = SocketAddr::new(db_address, 8080);
    traffic::tcp_echo_by(web.place(), db.place(), listening, Some(by), 1 << 16).unwrap();
    // The one that serves reaches itself through its own service.
    traffic::tcp_echo_by(db.place(), db.place(), listening, Some(by), 1 << 16).unwrap();
    drop(agents);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_service_leads_to_the_endpoints_that_it_should() {
    let (network, controller) = Network::start(&[]);
    let agents = network.start_agents();
    let (a, a_address) = network.pod(0, "a");
    let (b, b_address) = network.pod(1, "b");
    let (client, _) = network.pod(0, "client");
    let named = [
        Named::start(a.place(), a_address, "a"),
        Named::start(b.place(), b_address, "b"),
    ];
    traffic::ping_until_answered(client.place(), b_address).unwrap();
    let (on_a, on_b) = ((a_address, "node-a", true), (b_address, "node-b", true));
    let many = |from: &Place, to| -> Vec<String> {
        let answers = (0..12).map(|_| ask(from, to));
        answers
            .map(|answer| answer.unwrap_or_else(|error| panic!("{to}: {error}")))
            .collect()
    };

    // All endpoints in turn, and with affinity one of them.
    let plain = network.service(1, &[on_a, on_b], &json!({}), "cluster");
    let answers = many(client.place(), plain);
    assert!(
        answers.contains(&"a".into()) && answers.contains(&"b".into()),
        "{answers:?}"
    );
    let affine = json!({ "sessionAffinity": "ClientIP" });
    let affine = network.service(2, &[on_a, on_b], &affine, "cluster");
    let mut answers = many(client.place(), affine);
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");

    // Without endpoints a client is told at once.
    let none = network.service(3, &[], &json!({}), "cluster");
    assert_eq!(ask(client.place(), none), Err(ErrorKind::ConnectionRefused));

    // Only where none is ready, those that end.
    let ending = (a_address, "node-a", false);
    let mixed = network.service(4, &[ending, on_b], &json!({}), "cluster");
    assert!(many(client.place(), mixed).iter().all(|name| name == "b"));
    let ending = network.service(5, &[ending], &json!({}), "cluster");
    assert_eq!(ask(b.place(), ending).as_deref(), Ok("a"));

    // Each node's own, and where a node has none, none.
    let local = json!({ "internalTrafficPolicy": "Local" });
    let both = network.service(6, &[on_a, on_b], &local, "node_switch_node-b");
    assert!(many(client.place(), both).iter().all(|name| name == "a"));
    assert!(many(b.place(), both).iter().all(|name| name == "b"));
    let one = network.service(7, &[on_b], &local, "node_switch_node-b");
    assert_eq!(ask(b.place(), one).as_deref(), Ok("b"));
    assert_eq!(ask(client.place(), one), Err(ErrorKind::ConnectionRefused));

    // Inside of the cluster an external address leads to all endpoints, whatever its policy.
    let external = json!({
        "type": "LoadBalancer", "externalTrafficPolicy": "Local", "externalIPs": ["198.51.100.7"],
    });
    network.service(8, &[on_b], &external, "cluster");
    let external = SocketAddr::new("198.51.100.7".parse().unwrap(), 80);
    assert_eq!(ask(client.place(), external).as_deref(), Ok("b"));
    drop((named, agents));
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_of_both_families_and_protocols_leads_to_its_endpoint_by_each() {
    let subnets = "10.244.0.0/16/24,fd00:10:244::/48/64";
    let (network, controller) = Network::start(&["--cluster-subnets", subnets]);
    let agents = network.start_agents();
    let (client, _) = network.pod(0, "client");
    let (web, _) = network.pod(1, "web");
    let entry = await_network(&network.server, &web.namespace, "web");
    let vips = ["10.96.0.20", "fd00:10:96::20"];
    let mut service = service("default", "both", vips[0], 80);
    service["spec"]["clusterIPs"] = json!(vips);
    service["spec"]["ports"] = json!([
        { "name": "t", "protocol": "TCP", "port": 80 },
        { "name": "u", "protocol": "UDP", "port": 80 },
    ]);
    network.server.apply(service);
    let addresses: [IpAddr; 2] = [0, 1].map(|at| {
        let text = entry["ip_addresses"][at].as_str().unwrap();
        text.split('/').next().unwrap().parse().unwrap()
    });
    for (family, address) in ["IPv4", "IPv6"].iter().zip(&addresses) {
        let mut slice = endpoints("default", "both", &[&address.to_string()], 8080);
        slice["metadata"]["name"] = format!("both-{}", family.to_lowercase()).into();
        slice["addressType"] = (*family).into();
        slice["ports"] = json!([
            { "name": "t", "protocol": "TCP", "port": 8080 },
            { "name": "u", "protocol": "UDP", "port": 8080 },
        ]);
        network.server.apply(slice);
    }
    for protocol in ["TCP", "UDP"] {
        let row = format!("Service_default/both_{protocol}_cluster");
        let vips = [
            [format!("{}:80", vips[0]), format!("{}:8080", addresses[0])],
            [
                format!("[{}]:80", vips[1]),
                format!("[{}]:8080", addresses[1]),
            ],
        ];
        let condition = json!([["name", "==", row], ["vips", "==", ["map", vips]]]);
        let northbound = network.central.northbound();
        northbound
            .wait("Load_Balancer", condition, "!=", &["name"], json!([]))
            .unwrap();
    }
    network.central.sync();
    for (vip, address) in vips.iter().zip(addresses) {
        traffic::ping_until_answered(client.place(), address).unwrap();
        let by = Some(SocketAddr::new(vip.parse().unwrap(), 80));
        let listening = SocketAddr::new(address, 8080);
        traffic::tcp_echo_by(client.place(), web.place(), listening, by, 1 << 16).unwrap();
        traffic::udp_echo_by(client.place(), web.place(), listening, by, 1000).unwrap();
    }
    drop(agents);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_talks_to_an_endpoint_that_goes_talks_to_another_by_udp_and_stays_by_tcp() {
    let (network, controller) = Network::start(&[]);
    let agents = network.start_agents();
    let (client, _) = network.pod(0, "client");
    let (a, a_address) = network.pod(0, "a");
    let (b, b_address) = network.pod(1, "b");
    let protocols = ["TCP", "UDP"];
    let ports = |number: u16| {
        let port =
            |protocol: &str| json!({ "name": protocol, "protocol": protocol, "port": number });
        Value::from_iter(protocols.map(port))
    };
    let mut service = service("default", "s", "10.96.0.30", 80);
    service["spec"]["ports"] = ports(80);
    network.server.apply(service);
    let lead_to = |address: IpAddr| {
        let mut slice = endpoints("default", "s", &[&address.to_string()], 8080);
        slice["ports"] = ports(8080);
        network.server.apply(slice);
        for protocol in protocols {
            let row = format!("Service_default/s_{protocol}_cluster");
            let vips = json!(["map", [["10.96.0.30:80", format!("{address}:8080")]]]);
            let condition = json!([["name", "==", row], ["vips", "==", vips]]);
            let northbound = network.central.northbound();
            northbound
                .wait("Load_Balancer", condition, "!=", &["name"], json!([]))
                .unwrap();
        }
        network.central.sync();
    };
    let server = |pod: &Pod<'_>, address: IpAddr| {
        let socket = pod.place().run(|| UdpSocket::bind((address, 8080)));
        let socket = socket.unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        socket
    };
    let servers = [server(&a, a_address), server(&b, b_address)];
    let vip: SocketAddr = "10.96.0.30:80".parse().unwrap();
    let socket = client.place().run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    // Until a server hears it: what is sent again and again keeps its connection.
    let talk = |server: &UdpSocket| {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            socket.send_to(b"hello", vip).unwrap();
            if let Ok((_, from)) = server.recv_from(&mut [0; 16]) {
                return server.send_to(b"hello", from).unwrap();
            }
            assert!(Instant::now() < until, "the client's datagrams don't come");
        }
    };
    lead_to(a_address);
    traffic::ping_until_answered(client.place(), b_address).unwrap();
    talk(&servers[0]);
    let listener = a
        .place()
        .run(|| TcpListener::bind((a_address, 8080)))
        .unwrap();
    let mut stream = client.place().run(|| TcpStream::connect(vip)).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();

    lead_to(b_address);
    talk(&servers[1]);
    // A pod that ends may still answer by the connections that it has.
    stream.write_all(b"hello").unwrap();
    let limit = Some(Duration::from_secs(10));
    accepted.set_read_timeout(limit).unwrap();
    accepted.read_exact(&mut [0; 5]).unwrap();
    drop(agents);
    controller.stop().await.unwrap();
}
