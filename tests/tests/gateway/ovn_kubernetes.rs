//! A node of podwire's under ovn-kubernetes' own control plane, whose gateway router leads clients
//! from outside to pods: the real one, where its program is there, and rows as it writes them.

mod rows;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use podwire_tests::process::Daemon;
use podwire_tests::{OrFail as _, Words as _};

use super::*;

/// How long a control plane may take to follow a service.
const SLOW: Duration = Duration::from_secs(30);
/// What the gateway router sends to pods in place of a client, by the traffic policy Cluster.
const JOIN: [&str; 2] = ["100.64.0.", "fd98::"];
/// Of both families: a load balancer's address, and an external IP. The outside routes both.
const BALANCER: [&str; 2] = ["198.51.100.10", "2001:db8:51::10"];
const EXTERNAL: [&str; 2] = ["198.51.100.11", "2001:db8:51::11"];
const NODE_PORTS: [u16; 2] = [30080, 30086];
const PORT: u16 = 8000;

/// A node with its br-ex, an API server that knows the pods' namespace, and no control plane.
fn alone() -> Cluster {
    let central = Central::start();
    let at = OUTSIDE[0].parse().unwrap();
    let server = ApiServer::start_at(central.machine().place(), at);
    let node = central.bare_node_by_bridge("node-a", 1);
    node.start_controller();
    let namespace = node.pod("any").namespace.clone();
    for name in [&*namespace, "tests"] {
        server.apply(json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": name, "uid": format!("namespace-{name}") },
        }));
    }
    for (net, own) in [BALANCER, EXTERNAL]
        .iter()
        .flat_map(|it| it.iter().zip([node.tunnel_address(), node.underlay_ipv6()]))
    {
        let family = if own.contains(':') { "-6" } else { "-4" };
        let route = format!("{family} route add {net} via {own}");
        central.machine().run("ip", route);
    }
    Cluster {
        central,
        server,
        _controller: None,
        node,
        profile: "adopt",
    }
}

/// A service of these endpoints of node-a, in the family of the first, with a node port.
fn service(name: &str, node_port: u16, policy: &str, ends: &[SocketAddr]) -> [Value; 2] {
    let v6 = ends[0].is_ipv6();
    let number = node_port % 256;
    let cluster_ip = match v6 {
        true => format!("fd00:96::{number:x}"),
        false => format!("10.96.0.{number}"),
    };
    let family = if v6 { "IPv6" } else { "IPv4" };
    let mut service = apiserver::service("tests", name, &cluster_ip, PORT);
    service["spec"]["type"] = "NodePort".into();
    service["spec"]["ipFamilies"] = json!([family]);
    service["spec"]["externalTrafficPolicy"] = policy.into();
    service["spec"]["ports"][0]["nodePort"] = node_port.into();
    let addresses: Vec<String> = ends.iter().map(|end| end.ip().to_string()).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let mut slice = apiserver::endpoints("tests", name, &addresses, ends[0].port());
    slice["addressType"] = family.into();
    for endpoint in slice["endpoints"].as_array_mut().unwrap() {
        endpoint["nodeName"] = json!("node-a");
    }
    [slice, service]
}

/// The same with an address of a load balancer, and an external IP.
fn balanced(name: &str, node_port: u16, policy: &str, end: SocketAddr) -> [Value; 2] {
    let family = usize::from(end.is_ipv6());
    let [slice, mut service] = service(name, node_port, policy, &[end]);
    service["spec"]["type"] = "LoadBalancer".into();
    service["spec"]["externalIPs"] = json!([EXTERNAL[family]]);
    service["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": BALANCER[family] }] } });
    [slice, service]
}

/// Waits until a server sees this of a client that comes this way.
#[track_caller]
fn await_seen(
    listener: &TcpListener,
    (from, by): (&Place, SocketAddr),
    wanted: impl Fn(Option<IpAddr>) -> bool,
) {
    let began = Instant::now();
    loop {
        let seen = seen_by(listener, from, by);
        if wanted(seen) {
            return;
        }
        assert!(began.elapsed() < SLOW, "{by}: {seen:?}");
    }
}

impl Cluster {
    fn apply(&self, objects: [Value; 2]) {
        objects.into_iter().for_each(|it| self.server.apply(it));
    }

    /// Clients from outside, the host and the pod itself reach the pod by its services' addresses,
    /// and it sees whom it is to see. `lead` has the control plane lead them.
    fn assert_led(
        &self,
        run: &NodeRun,
        web: &Place,
        addresses: &[IpAddr],
        lead: impl Fn(&str, [Value; 2]),
    ) {
        for policy in ["Cluster", "Local"] {
            for (family, address) in addresses.iter().enumerate() {
                let name = ["web", "web6"][family];
                let end = SocketAddr::new(*address, 8080);
                lead(policy, balanced(name, NODE_PORTS[family], policy, end));
            }
            if policy == "Cluster" {
                run.await_log("which leads 6 addresses of services", 1);
            }
            self.central.sync();
            for (family, address) in addresses.iter().enumerate() {
                let at = SocketAddr::new(*address, 8080);
                let listener = web.run(|| TcpListener::bind(at)).unwrap();
                let outside: IpAddr = OUTSIDE[family].parse().unwrap();
                for by in self.ways(family) {
                    await_seen(&listener, (self.outside(), by), |seen| match policy {
                        "Local" => seen == Some(outside),
                        _ => seen.is_some_and(|it| it.to_string().starts_with(JOIN[family])),
                    });
                    for from in [self.node.place(), web] {
                        await_seen(&listener, (from, by), |seen| seen.is_some());
                    }
                }
                drop(listener);
                for by in self.ways(family) {
                    let (outside, by) = (self.outside(), Some(by));
                    traffic::tcp_echo_by(outside, web, at, by, 1 << 18).unwrap();
                }
            }
        }
    }

    /// The addresses of [`balanced`] of a family.
    fn ways(&self, family: usize) -> [SocketAddr; 3] {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        [
            SocketAddr::new(self.node_addresses()[family], NODE_PORTS[family]),
            SocketAddr::new(address(BALANCER[family]), PORT),
            SocketAddr::new(address(EXTERNAL[family]), PORT),
        ]
    }

    /// What has an endpoint on this host is the host's, with both policies and beside a pod: no
    /// gateway router is asked, and the client keeps its address.
    fn assert_hosts_own(&self, pod: IpAddr) {
        let own = self.node_addresses()[0];
        let end = SocketAddr::new(own, 9000);
        let beside = SocketAddr::new(pod, 9000);
        let listener = self.node.place().run(|| TcpListener::bind(end)).unwrap();
        for (number, policy, ends) in [
            (30090, "Cluster", vec![end]),
            (30091, "Local", vec![end]),
            (30092, "Cluster", vec![end, beside]),
            (30093, "Local", vec![end, beside]),
        ] {
            self.apply(service(&format!("host-{number}"), number, policy, &ends));
            let by = SocketAddr::new(own, number);
            let outside = OUTSIDE[0].parse().ok();
            await_seen(&listener, (self.outside(), by), |seen| seen == outside);
            for _ in 0..4 {
                let seen = seen_by(&listener, self.outside(), by);
                assert_eq!(seen, outside, "{number}");
            }
        }
    }

    /// Whoever is not in a load balancer's source ranges does not get in.
    fn assert_ranges(&self, run: &NodeRun, web: &Place, address: IpAddr) {
        let at = SocketAddr::new(address, 8080);
        let listener = web.run(|| TcpListener::bind(at)).unwrap();
        let by = SocketAddr::new(BALANCER[0].parse().unwrap(), PORT);
        for (range, gets_in) in [("203.0.113.0/24", false), ("172.31.0.0/30", true)] {
            let [slice, mut service] = balanced("web", NODE_PORTS[0], "Local", at);
            service["spec"]["loadBalancerSourceRanges"] = json!([range]);
            self.apply([slice, service]);
            run.await_services(|| {
                let table = self.node.run("nft", "list table inet podwire-services");
                table.contains(range)
            });
            await_seen(&listener, (self.outside(), by), |seen| {
                seen.is_some() == gets_in
            });
        }
    }
}

/// ovn-kubernetes' control plane, by the program `ovnkube` of this directory.
fn master(cluster: &Cluster, programs: &Path, mode: &str) -> Daemon {
    // What it wants of the API server, some of it in early versions.
    cluster.server.has_slices_of("all");
    cluster.server.apply(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {},
        "metadata": { "name": "control-plane-status", "namespace": "ovn-kubernetes" },
    }));
    let mut command = Command::new(programs.join("ovnkube"));
    // One server has both databases.
    let at = OUTSIDE[0];
    let line = format!(
        "--init-master central {BOTH_FAMILIES} --k8s-service-cidrs 10.96.0.0/16,fd00:96::/112 \
         --nb-address tcp:{at}:6642 --sb-address tcp:{at}:6642 --gateway-mode {mode} \
         --k8s-apiserver {} --loglevel 5",
        cluster.server.url()
    );
    command.args(line.words());
    let machine = cluster.central.machine();
    machine.start_bare(&command, "ovnkube").or_fail()
}

fn programs() -> std::path::PathBuf {
    let named = std::env::var_os("OVN_KUBERNETES");
    named.expect("OVN_KUBERNETES names a directory").into()
}

#[test]
#[ignore = "needs ovn-kubernetes' own program: make test-ovn-kubernetes"]
fn ovn_kubernetes_takes_a_node_of_podwires_for_its_own() {
    let cluster = alone();
    let master = master(&cluster, &programs(), "shared");
    let run = cluster.run("shared");
    cluster.await_router(true);
    run.await_log("flows of br-ex, for host and gateway router", 1);
    let agent = cluster.node.start_agent(&OvnNode::agent_options());
    let (web, addresses) = cluster.node.wired(&cluster.server, "web", "web");
    cluster.central.sync();
    cluster.assert_all_reached(web.place());
    if let Some(file) = std::env::var_os("OVN_KUBERNETES_ROWS") {
        std::fs::write(file, cluster.central.nbctl("show")).unwrap();
    }
    let lead = |_: &str, objects| cluster.apply(objects);
    cluster.assert_led(&run, web.place(), &addresses, lead);
    cluster.assert_hosts_own(addresses[0]);
    cluster.assert_ranges(&run, web.place(), addresses[0]);
    drop(agent);
    assert!(run.stop().success());
    drop(master);
}

#[test]
#[ignore = "needs ovn-kubernetes' own program: make test-ovn-kubernetes"]
fn under_ovn_kubernetes_mode_local_pods_leave_by_the_host_of_a_node_of_podwires() {
    let cluster = alone();
    let master = master(&cluster, &programs(), "local");
    let run = cluster.run("local");
    let agent = cluster.node.start_agent(&OvnNode::agent_options());
    let (web, addresses) = cluster.node.wired(&cluster.server, "web", "web");
    cluster.central.sync();
    cluster.assert_all_reached(web.place());
    let at = SocketAddr::new(addresses[0], 8080);
    let listener = web.place().run(|| TcpListener::bind(at)).unwrap();
    cluster.apply(service("web", NODE_PORTS[0], "Local", &[at]));
    cluster.await_published(&cluster.node, &run, &addresses[..1]);
    let by = SocketAddr::new(cluster.node_addresses()[0], NODE_PORTS[0]);
    let outside = OUTSIDE[0].parse().ok();
    await_seen(&listener, (cluster.outside(), by), |seen| seen == outside);
    drop(agent);
    assert!(run.stop().success());
    drop(master);
}

#[test]
fn where_the_gateway_router_leads_clients_a_node_lets_it_and_keeps_what_is_its_own() {
    let cluster = alone();
    let Cluster {
        central,
        server,
        node,
        ..
    } = &cluster;
    node.register(server);
    rows::annotate(server);
    rows::write(central);
    let run = NodeRun::start(node, cluster.line("run", "shared"));
    central.await_chassis("node-a");
    let announced = server.await_object(("Node", "", "node-a"), |node| {
        rows::gateway(node)["mode"] == "shared"
    });
    rows::write_gateway(central, &rows::gateway(&announced));
    run.await_log("flows of br-ex, for host and gateway router", 1);
    let agent = node.start_agent(&OvnNode::agent_options());
    let (web, addresses) = rows::pod(&cluster);
    central.sync();
    cluster.assert_all_reached(web.place());
    let lead = |policy: &str, objects| {
        rows::write_balancer(&cluster, policy, &objects);
        cluster.apply(objects);
    };
    cluster.assert_led(&run, web.place(), &addresses, lead);
    cluster.assert_hosts_own(addresses[0]);
    cluster.assert_ranges(&run, web.place(), addresses[0]);

    // A start of ovs-vswitchd loses all flows.
    node.kill_vswitchd();
    node.start_vswitchd();
    node.configure_gateway();
    run.await_log("restored flows of br-ex", 1);
    central.sync();
    let at = SocketAddr::new(addresses[0], 8080);
    let listener = web.place().run(|| TcpListener::bind(at)).unwrap();
    let by = cluster.ways(0)[0];
    await_seen(&listener, (cluster.outside(), by), |seen| {
        seen == OUTSIDE[0].parse().ok()
    });
    // Nor does a start of the role without the API server change anything.
    let flows = || {
        node.appctl("bridge/dump-flows br-ex")
            .matches("ct_mark")
            .count()
    };
    let before = flows();
    assert!(run.stop().success());
    let shown = node.podwire(cluster.line("show", "shared"));
    assert!(shown.stdout.contains("flows of br-ex"), "{}", shown.stdout);
    let line = shown
        .stdout
        .lines()
        .find(|it| it.contains("flows of br-ex"));
    assert!(
        line.is_some_and(|it| it.starts_with("ok")),
        "{}",
        shown.stdout
    );
    assert_eq!(flows(), before);
    drop(agent);
}
