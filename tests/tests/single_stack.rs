//! Clusters of one address family, on machines that have no address of the other: podwire's
//! controller, node role and agent on two nodes of a real OVN network.

use std::net::{IpAddr, SocketAddr};

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::controller::Controller;
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{Agent, NodeRun, Pod, Words, http, traffic};
use serde_json::{Value, json};

const NODE_PORT: u16 = 30010;

/// What the clusters differ in.
struct Family {
    cluster_subnets: &'static str,
    /// As the node role has it.
    cluster_subnet: &'static str,
    service_cidr: &'static str,
    vip: &'static str,
    /// The central machine's address on the underlay.
    central: &'static str,
    /// As the API has it.
    name: &'static str,
    /// ip(8)'s flag for the other one.
    absent: &'static str,
}

impl Family {
    fn of(&self, node: &OvnNode) -> IpAddr {
        let address = match self.name {
            "IPv6" => node.underlay_ipv6(),
            _ => node.tunnel_address(),
        };
        address.parse().unwrap()
    }

    fn central(&self) -> IpAddr {
        self.central.parse().unwrap()
    }
}

/// A node of the cluster.
struct Member<'n> {
    server: &'n ApiServer,
    node: &'n OvnNode,
    run: NodeRun,
    _agent: Agent<'n>,
}

impl<'n> Member<'n> {
    /// Has a node join.
    fn join(
        family: &'n Family,
        central: &'n Central,
        server: &'n ApiServer,
        node: &'n OvnNode,
    ) -> Self {
        let name = &*node.name;
        server.apply(apiserver::node(name, &family.of(node).to_string()));
        let line = format!(
            "node run --mode ovn --node-name {name} --interface {} --cluster-subnet {} \
             --service-cidr {} \
             --ovn-remote tcp:{} --k8s-apiserver {}",
            node.uplink(),
            family.cluster_subnet,
            family.service_cidr,
            SocketAddr::new(family.central(), 6642),
            server.url()
        );
        let run = NodeRun::start(node, line.words());
        central.await_chassis(name);
        central.await_up(&format!("k8s-{name}"), true);
        let options = OvnNode::agent_options().watching(server, name);
        Self {
            server,
            node,
            run,
            _agent: node.start_agent(&options),
        }
    }

    /// A pod of the node, wired.
    fn pod(&self, name: &str) -> (Pod<'n>, IpAddr) {
        let pod = self.node.pod(name);
        let object = apiserver::pod_on(&self.node.name, &pod, json!({}));
        self.server.apply(object);
        let networks = "k8s.ovn.org/pod-networks";
        let is_there = |pod: &Value| pod["metadata"]["annotations"][networks].is_string();
        let object = ("Pod", &*pod.namespace, name);
        let object = self.server.await_object(object, is_there);
        let entry = object["metadata"]["annotations"][networks].as_str();
        let entry: Value = serde_json::from_str(entry.unwrap()).unwrap();
        // There is one address alone.
        let address = entry["default"]["ip_address"].as_str().unwrap();
        let address = address.split('/').next().unwrap().parse().unwrap();
        pod.add().success();
        (pod, address)
    }

    /// Waits until the node's table of services has this endpoint.
    fn await_endpoint(&self, address: IpAddr) {
        let is_there = || {
            let table = self.node.run("nft", "list table inet podwire-services");
            table.contains(&address.to_string())
        };
        self.run.await_services(is_there);
    }
}

fn works(family: &Family) {
    let central = Central::start();
    let nodes = [("node-a", 1), ("node-b", 2)].map(|(name, number)| {
        let node = central.bare_node(name, number);
        let flush = format!("{} address flush scope global", family.absent);
        node.run("ip", flush);
        node.start_controller();
        node
    });
    let outside = central.machine().place();
    let flush = format!("{} address flush dev underlay scope global", family.absent);
    central.machine().run("ip", flush);
    let server = ApiServer::start_at(outside, family.central());
    let flags = format!(
        "--cluster-subnets {} --metrics-address [::]:9413",
        family.cluster_subnets
    );
    let controller = Controller::start(&central, &server, "one", &flags);
    controller.await_log("all rows are in sync");
    // As the kubelet does, by the address of its node.
    let page = SocketAddr::new(family.central(), 9413).to_string();
    let (status, _) = http::get_from(outside, &page, "/healthz").unwrap();
    assert_eq!(status, 200);

    let members = nodes
        .each_ref()
        .map(|node| Member::join(family, &central, &server, node));
    let [(web, web_address), (db, db_address)] =
        [(0, "web"), (1, "db")].map(|(at, name)| members[at].pod(name));
    central.sync();
    let hosts = nodes.each_ref().map(|node| (node.place(), family.of(node)));
    for (pod, address) in [(&web, web_address), (&db, db_address)] {
        for (host, own) in hosts {
            traffic::ping_until_answered(host, address).unwrap();
            traffic::tcp_echo(host, pod.place(), address, 1 << 16).unwrap();
            traffic::tcp_echo(pod.place(), host, own, 1 << 16).unwrap();
        }
        traffic::tcp_echo(pod.place(), outside, family.central(), 1 << 16).unwrap();
        let (status, _) = http::get_from(pod.place(), &page, "/healthz").unwrap();
        assert_eq!(status, 200);
    }
    traffic::ping_until_answered(web.place(), db_address).unwrap();
    traffic::tcp_echo(web.place(), db.place(), db_address, 1 << 20).unwrap();
    traffic::tcp_echo(db.place(), web.place(), web_address, 1 << 20).unwrap();

    let mut service = apiserver::service("tests", "front", family.vip, 80);
    service["spec"]["type"] = "NodePort".into();
    service["spec"]["ports"][0]["nodePort"] = NODE_PORT.into();
    service["spec"]["ipFamilies"] = json!([family.name]);
    server.apply(service);
    let mut slice = apiserver::endpoints("tests", "front", &[&db_address.to_string()], 8080);
    slice["addressType"] = family.name.into();
    server.apply(slice);
    let vip = SocketAddr::new(family.vip.parse().unwrap(), 80);
    let listening = SocketAddr::new(db_address, 8080);
    let vips = json!(["map", [[vip.to_string(), listening.to_string()]]]);
    let row = json!([
        ["name", "==", "Service_tests/front_TCP_cluster"],
        ["vips", "==", vips]
    ]);
    let northbound = central.northbound();
    northbound
        .wait("Load_Balancer", row, "!=", &["name"], json!([]))
        .unwrap();
    central.sync();
    for member in &members {
        member.await_endpoint(db_address);
    }
    let clients = [web.place(), db.place(), hosts[0].0, hosts[1].0];
    for client in clients {
        traffic::tcp_echo_by(client, db.place(), listening, Some(vip), 1 << 16).unwrap();
    }
    for (_, own) in hosts {
        let by = Some(SocketAddr::new(own, NODE_PORT));
        traffic::tcp_echo_by(outside, db.place(), listening, by, 1 << 16).unwrap();
        traffic::tcp_echo_by(web.place(), db.place(), listening, by, 1 << 16).unwrap();
    }

    for pod in [web, db] {
        pod.del().success();
    }
    for Member { node, run, .. } in members {
        run.stop();
        node.podwire("node cleanup").success("podwire node cleanup");
        node.leftovers().assert_none();
    }
    assert!(controller.stop().success());
}

#[test]
fn a_cluster_of_ipv6_alone_works() {
    works(&Family {
        cluster_subnets: "fd00:10:244::/48/64",
        cluster_subnet: "fd00:10:244::/48",
        service_cidr: "fd00:10:96::/112",
        vip: "fd00:10:96::10",
        central: "fd00:31::1",
        name: "IPv6",
        absent: "-4",
    });
}

#[test]
fn a_cluster_of_ipv4_alone_works() {
    works(&Family {
        cluster_subnets: "10.244.0.0/16/24",
        cluster_subnet: "10.244.0.0/16",
        service_cidr: "10.96.0.0/16",
        vip: "10.96.0.10",
        central: "172.31.0.1",
        name: "IPv4",
        absent: "-6",
    });
}
