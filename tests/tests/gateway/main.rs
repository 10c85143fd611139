//! A gateway router of OVN's that shares the node's addresses with its host, on the operator's
//! br-ex: pods leave by it, and host and pods keep their own packets.

mod announced;
mod local;
mod modes;
mod ovn_kubernetes;
mod path_mtu;
mod primary;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::controller::Controller;
use podwire_tests::ovn::{BOTH_FAMILIES, Central, OvnNode, POD_MTU};
use podwire_tests::{Agent, NodeRun, Place, traffic};
use serde_json::{Value, json};

/// The outside, which is also the router of the default routes.
const OUTSIDE: [&str; 2] = ["172.31.0.1", "fd00:31::1"];
const LIMIT: Duration = Duration::from_secs(10);
/// How long nothing answers to what is dropped.
const SHORT: Duration = Duration::from_secs(1);

struct Cluster {
    central: Central,
    server: ApiServer,
    /// None under another control plane.
    _controller: Option<Controller>,
    node: OvnNode,
    /// That of the node.
    profile: &'static str,
}

fn start() -> Cluster {
    start_by("adopt")
}

fn start_by(profile: &'static str) -> Cluster {
    start_with(profile, "shared")
}

fn start_with(profile: &'static str, mode: &str) -> Cluster {
    let central = Central::start();
    let at = OUTSIDE[0].parse().unwrap();
    let server = ApiServer::start_at(central.machine().place(), at);
    let flags = format!("{BOTH_FAMILIES} --gateway-mode {mode}");
    let controller = Controller::start(&central, &server, "one", &flags);
    controller.await_log("all rows are in sync");
    let node = match profile {
        "adopt" => central.bare_node_by_bridge("node-a", 1),
        _ => central.bare_node_by_nic("node-a", 1),
    };
    node.start_controller();
    Cluster {
        central,
        server,
        _controller: Some(controller),
        node,
        profile,
    }
}

impl Cluster {
    fn line(&self, verb: &str, mode: &str) -> Vec<String> {
        let how = (verb, self.profile);
        let mut line = self.node.joining_by_bridge(how, &self.server, mode);
        line.extend(["--mtu".to_owned(), POD_MTU.to_string()]);
        line
    }

    fn run(&self, mode: &str) -> NodeRun {
        let line = self.line("run", mode);
        self.node.join_by(&self.central, &self.server, line)
    }

    /// Has the node share its addresses with a gateway router, and starts an agent on it.
    fn share(&self) -> (NodeRun, Agent<'_>) {
        let run = self.run_shared();
        let agent = self.node.start_agent(&OvnNode::agent_options());
        (run, agent)
    }

    fn run_shared(&self) -> NodeRun {
        let run = self.run("shared");
        self.await_router(true);
        run.await_log("flows of br-ex, for host and gateway router", 1);
        self.await_answers(&run);
        run
    }

    /// Waits until the node knows that its pods' answers come back to its host, if OVN can have
    /// that.
    fn await_answers(&self, run: &NodeRun) {
        if !Central::has_marks() {
            return;
        }
        self.server.await_object(("Node", "", "node-a"), |node| {
            node["metadata"]["annotations"]["k8s.ovn.org/podwire-answers"] == "host"
        });
        let table = || self.node.run("nft", "list table inet podwire-node");
        let mut changes = 1;
        while !table().contains("fib saddr type != local return") {
            run.await_log("nftables table inet podwire-node", changes);
            changes += 1;
        }
        self.central.sync();
    }

    /// Whom a pod sees in place of a client from outside.
    fn client(&self, outside: &str, led: &str) -> Option<IpAddr> {
        let seen = if Central::has_marks() { outside } else { led };
        seen.parse().ok()
    }

    /// Waits until the gateway router is there, or is not, and the node has taken it up.
    fn await_router(&self, is_there: bool) {
        let until = if is_there { "!=" } else { "==" };
        let named = json!([["name", "==", "GR_node-a"]]);
        let northbound = self.central.northbound();
        northbound
            .wait("Logical_Router", named, until, &["name"], json!([]))
            .unwrap();
        self.central.sync();
    }

    /// Makes node port 30080 a service of these addresses of a pod of node-a, with this external
    /// traffic policy; 30086 by IPv6.
    fn publish(&self, namespace: &str, policy: &str, addresses: &[IpAddr]) {
        for (address, cluster_ip) in addresses.iter().zip(["10.96.0.10", "fd00:96::10"]) {
            let name = if address.is_ipv4() { "web" } else { "web6" };
            let mut service = apiserver::service(namespace, name, cluster_ip, 80);
            service["spec"]["type"] = "NodePort".into();
            service["spec"]["externalTrafficPolicy"] = policy.into();
            service["spec"]["ports"][0]["nodePort"] = 30080.into();
            let mut slice = apiserver::endpoints(namespace, name, &[&address.to_string()], 8080);
            if address.is_ipv6() {
                slice["addressType"] = "IPv6".into();
                service["spec"]["ports"][0]["nodePort"] = 30086.into();
            }
            slice["endpoints"][0]["nodeName"] = json!("node-a");
            self.server.apply(slice);
            self.server.apply(service);
        }
    }

    /// Waits until a node leads clients there.
    fn await_published(&self, node: &OvnNode, run: &NodeRun, addresses: &[IpAddr]) {
        run.await_services(|| {
            let table = node.run("nft", "list table inet podwire-services");
            let mut all = addresses.iter().map(ToString::to_string);
            table.contains("30080") && all.all(|it| table.contains(&it))
        });
        self.central.sync();
    }

    fn outside(&self) -> &Place {
        self.central.machine().place()
    }

    fn node_addresses(&self) -> [IpAddr; 2] {
        let own = [self.node.tunnel_address(), self.node.underlay_ipv6()];
        own.map(|it| it.parse().unwrap())
    }

    /// Everybody reaches everybody, in both families.
    fn assert_all_reached(&self, pod: &Place) {
        for (outside, own) in OUTSIDE.iter().zip(self.node_addresses()) {
            let outside: IpAddr = outside.parse().unwrap();
            let host = self.node.place();
            for from in [pod, host] {
                traffic::ping_until_answered(from, outside).unwrap();
                assert_eq!(seen_outside(from, self.outside(), outside), own);
                traffic::tcp_echo(from, self.outside(), outside, 1 << 18).unwrap();
            }
            traffic::tcp_echo(self.outside(), host, own, 1 << 18).unwrap();
            traffic::ping(self.outside(), own, 3).unwrap();
            // The node's own address is its host's, for its pods, too.
            traffic::tcp_echo(pod, host, own, 1 << 16).unwrap();
        }
    }
}

/// Whom the outside sees, and answers to.
fn seen_outside(from: &Place, outside: &Place, address: IpAddr) -> IpAddr {
    let server = outside.run(|| UdpSocket::bind((address, 0))).unwrap();
    let any: IpAddr = match address {
        IpAddr::V4(_) => [0; 4].into(),
        IpAddr::V6(_) => [0; 16].into(),
    };
    let client = from.run(|| UdpSocket::bind((any, 0))).unwrap();
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(LIMIT)).unwrap();
    }
    client
        .send_to(b"who", server.local_addr().unwrap())
        .unwrap();
    let (_, peer) = server.recv_from(&mut [0; 8]).unwrap();
    server.send_to(b"you", peer).unwrap();
    client.recv_from(&mut [0; 8]).unwrap();
    peer.ip()
}

/// How many packets the bridge had from the gateway router.
fn packets_of_router(node: &OvnNode) -> u64 {
    let flows = node.appctl("bridge/dump-flows br-ex");
    let own = flows.lines().filter(|line| line.contains("0x1->ct_mark"));
    let counts = own.filter_map(|line| line.split("n_packets=").nth(1)?.split(',').next());
    counts.map(|count| count.parse::<u64>().unwrap()).sum()
}

#[test]
fn pods_leave_by_a_gateway_router_with_the_address_of_their_node_and_the_host_keeps_its_packets() {
    let cluster = start();
    let Cluster {
        central,
        server,
        node,
        ..
    } = &cluster;
    let (run, agent) = cluster.share();
    let (pod, _) = node.wired(server, "web", "web");
    central.sync();
    cluster.assert_all_reached(pod.place());
    // Nodes' databases are not for pods, by whichever way these leave.
    let database: SocketAddr = format!("{}:6642", OUTSIDE[0]).parse().unwrap();
    let open = |from: &Place| from.run(|| TcpStream::connect_timeout(&database, SHORT).is_ok());
    assert!(open(node.place()));
    assert!(!open(pod.place()));
    let sent = packets_of_router(node);
    assert!(sent > 100, "{sent} packets by the gateway router");

    // Others may delete the flows, and ovs-vswitchd starts without any.
    node.run("ovs-ofctl", "-O OpenFlow14 del-flows br-ex");
    run.await_log("restored flows of br-ex", 1);
    cluster.assert_all_reached(pod.place());
    let entry = |node: &Value| {
        let text = node["metadata"]["annotations"]["k8s.ovn.org/l3-gateway-config"].as_str();
        let all: Value = serde_json::from_str(text.unwrap_or("{}")).unwrap();
        all["default"].clone()
    };
    let announced = entry(&server.object("Node", "", "node-a").unwrap());
    assert_eq!(announced["mode"], "shared");
    assert_eq!(announced["interface-id"], "br-ex_node-a");
    assert_eq!(announced["next-hops"], json!(OUTSIDE));
    node.kill_vswitchd();
    node.start_vswitchd();
    node.configure_gateway();
    run.await_log("restored flows of br-ex", 2);
    central.sync();
    cluster.assert_all_reached(pod.place());
    let now = entry(&server.object("Node", "", "node-a").unwrap());
    assert_eq!(now, announced);

    // Back to the host's own routing: nothing of it is left.
    assert!(run.stop().success());
    let run = cluster.run("routed");
    server.await_object(("Node", "", "node-a"), |node| entry(node)["mode"] == "");
    cluster.await_router(false);
    let flows = node.appctl("bridge/dump-flows br-ex");
    assert!(!flows.contains("ct("), "{flows}");
    cluster.assert_all_reached(pod.place());
    assert_eq!(packets_of_router(node), 0);
    assert!(run.stop().success());
    drop(agent);
}

/// Whom a server on a pod sees.
fn seen_by(server: &TcpListener, from: &Place, to: SocketAddr) -> Option<IpAddr> {
    let client = from.run(|| TcpStream::connect_timeout(&to, SHORT));
    let mut client = client.ok()?;
    let (mut accepted, peer) = server.accept().unwrap();
    accepted.write_all(b"you").unwrap();
    drop(accepted);
    let mut read = String::new();
    client.set_read_timeout(Some(LIMIT)).unwrap();
    client.read_to_string(&mut read).unwrap();
    assert_eq!(read, "you");
    Some(peer.ip())
}

#[test]
fn a_node_port_of_such_a_node_leads_to_its_pods_and_lets_in_nobody_whom_a_policy_refuses() {
    let cluster = start();
    let Cluster {
        central,
        server,
        node,
        ..
    } = &cluster;
    let (run, agent) = cluster.share();
    let (web, addresses) = node.wired(server, "web", "web");
    let at = SocketAddr::new(addresses[0], 8080);
    let listener = web.place().run(|| TcpListener::bind(at)).unwrap();
    cluster.publish("tests", "Local", &addresses);
    cluster.await_published(node, &run, &addresses);
    let [own, _] = cluster.node_addresses();
    let by = SocketAddr::new(own, 30080);
    let seen = seen_by(&listener, cluster.outside(), by);
    assert_eq!(seen, cluster.client(OUTSIDE[0], "169.254.169.6"));
    // From the pod itself, and from the host.
    assert!(seen_by(&listener, web.place(), by).is_some());
    assert!(seen_by(&listener, node.place(), by).is_some());

    let namespace = web.namespace.clone();
    server.apply(json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": namespace, "uid": "namespace" },
    }));
    server.apply(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "nobody", "namespace": namespace, "uid": "nobody" },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress"] },
    }));
    let key = format!("namespace/{}", web.namespace);
    let of_namespace = json!(["map", [["podwire.io/key", key]]]);
    let group = json!([
        ["external_ids", "includes", of_namespace],
        ["ports", "!=", ["set", []]]
    ]);
    let northbound = central.northbound();
    northbound
        .wait("Port_Group", group, "!=", &["name"], json!([]))
        .unwrap();
    central.sync();
    assert_eq!(seen_by(&listener, cluster.outside(), by), None);
    // kubelet's probes come from the host, and pass.
    assert!(seen_by(&listener, node.place(), at).is_some());

    // One that allows the outside by its address knows it where its answers come back to the host.
    server.apply(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "outside", "namespace": namespace, "uid": "outside" },
        "spec": {
            "podSelector": {}, "policyTypes": ["Ingress"],
            "ingress": [{ "from": [{ "ipBlock": { "cidr": format!("{}/32", OUTSIDE[0]) } }] }],
        },
    }));
    let name = format!("{namespace}:outside");
    let of_policy = json!(["map", [["k8s.ovn.org/name", name]]]);
    let allows = json!([["external_ids", "includes", of_policy]]);
    northbound
        .wait("ACL", allows, "!=", &["match"], json!([]))
        .unwrap();
    central.sync();
    let seen = seen_by(&listener, cluster.outside(), by);
    assert_eq!(
        seen,
        OUTSIDE[0].parse().ok().filter(|_| Central::has_marks())
    );
    drop(agent);
    assert!(run.stop().success());
}

/// The whole of it on a machine of which podwire itself moves the NIC.
#[test]
fn a_moved_nic_carries_hosts_pods_and_clients_of_node_ports_by_a_gateway_router() {
    let cluster = start_by("bridged");
    let Cluster {
        central,
        server,
        node,
        ..
    } = &cluster;
    node.register(server);
    server.await_object(("Node", "", "node-a"), |node| {
        node["metadata"]["annotations"]["k8s.ovn.org/node-subnets"].is_string()
    });
    let said = node.podwire(cluster.line("init", "shared"));
    let said = said.success("podwire node init");
    assert!(said.contains("made uplink eth0 in br-ex"), "{said}");
    node.deafen();
    let (run, agent) = cluster.share();
    let (web, addresses) = node.wired(server, "web", "web");
    central.sync();
    cluster.assert_all_reached(web.place());
    cluster.publish("tests", "Cluster", &addresses);
    cluster.await_published(node, &run, &addresses);
    let clients = [
        cluster.client(OUTSIDE[0], "169.254.169.6"),
        cluster.client(OUTSIDE[1], "fd69::6"),
    ];
    let ports = cluster.node_addresses().into_iter().zip([30080, 30086]);
    for ((address, client), (own, port)) in addresses.iter().zip(clients).zip(ports) {
        let at = SocketAddr::new(*address, 8080);
        let listener = web.place().run(|| TcpListener::bind(at)).unwrap();
        let by = SocketAddr::new(own, port);
        assert_eq!(seen_by(&listener, cluster.outside(), by), client);
        assert!(seen_by(&listener, node.place(), by).is_some());
        assert!(seen_by(&listener, web.place(), by).is_some());
    }
    assert!(packets_of_router(node) > 100);
    path_mtu::assert_told(&cluster, web.place());

    drop(agent);
    assert!(run.stop().success());
    node.run("nft", "delete table netdev deaf");
    let back = node.podwire("node rollback");
    back.success("podwire node rollback");
    traffic::ping_until_answered(node.place(), OUTSIDE[0].parse().unwrap()).unwrap();
    let bridges = node.vsctl("list-br");
    assert!(!bridges.contains("br-ex"), "{bridges}");
}

#[test]
fn a_node_with_a_gateway_router_and_one_without_reach_each_other_and_the_outside() {
    let cluster = start();
    let Cluster {
        central,
        server,
        node,
        ..
    } = &cluster;
    let other = central.bare_node("node-b", 2);
    other.start_controller();
    let runs = [cluster.run("shared"), other.join(central, server)];
    cluster.await_router(true);
    runs[0].await_log("flows of br-ex, for host and gateway router", 1);
    let options = OvnNode::agent_options();
    let agents = [node.start_agent(&options), other.start_agent(&options)];
    let (web, web_addresses) = node.wired(server, "web", "web");
    let (db, db_addresses) = other.wired(server, "db", "db");
    central.sync();
    let own = [other.tunnel_address(), other.underlay_ipv6()];
    for family in 0..2 {
        let (web_at, db_at) = (web_addresses[family], db_addresses[family]);
        traffic::ping_until_answered(web.place(), db_at).unwrap();
        traffic::tcp_echo(web.place(), db.place(), db_at, 1 << 18).unwrap();
        traffic::tcp_echo(db.place(), web.place(), web_at, 1 << 18).unwrap();
        let outside: IpAddr = OUTSIDE[family].parse().unwrap();
        for pod in [&db, &web] {
            traffic::ping_until_answered(pod.place(), outside).unwrap();
        }
        let seen = seen_outside(db.place(), cluster.outside(), outside);
        assert_eq!(seen.to_string(), own[family]);
        let seen = seen_outside(web.place(), cluster.outside(), outside);
        assert_eq!(seen, cluster.node_addresses()[family]);
        // The other node's host is outside of this node.
        let other_host: IpAddr = own[family].parse().unwrap();
        let seen = seen_outside(web.place(), other.place(), other_host);
        assert_eq!(seen, cluster.node_addresses()[family]);
    }
    // A client that the other node leads here is seen where there is a door.
    cluster.await_answers(&runs[0]);
    if Central::has_marks() {
        other.await_doors(server, &runs[1], &["node-a"]);
        node.await_doors(server, &runs[0], &["node-b"]);
    }
    cluster.publish("tests", "Cluster", &web_addresses);
    cluster.await_published(&other, &runs[1], &web_addresses);
    let at = SocketAddr::new(web_addresses[0], 8080);
    let listener = web.place().run(|| TcpListener::bind(at)).unwrap();
    let by = SocketAddr::new(own[0].parse().unwrap(), 30080);
    let seen = seen_by(&listener, cluster.outside(), by);
    assert_eq!(seen, cluster.client(OUTSIDE[0], "10.244.1.2"));
    drop(agents);
    for run in runs {
        assert!(run.stop().success());
    }
}
