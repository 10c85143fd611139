//! The same ways to pods of primary networks, whose ports on the default network are locked: by the
//! networks' routers, with the networks' policies. The endpoint here is in one network and the one
//! elsewhere in another, with the same addresses, which the asked node has no pod of.

use podwire_tests::ovn::primary_network;

use super::*;

/// Those of the endpoint here, and of the one elsewhere.
const NAMESPACES: [&str; 2] = ["shop", "bank"];
/// The management port of the other node.
const OTHER: [&str; 2] = ["10.244.1.2", "fd00:10:244:1::2"];
/// How long nothing comes.
const SHORT: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(10);

/// A pod of a primary network, wired, with its addresses on the default network and on that one.
struct Own<'n> {
    pod: Pod<'n>,
    default: Vec<IpAddr>,
    own: Vec<IpAddr>,
}

impl<'n> Own<'n> {
    fn wired(server: &ApiServer, node: &'n OvnNode, namespace: &str, name: &str) -> Self {
        let (pod, [default, own]) = node.wired_on_own(server, namespace, name);
        Self { pod, default, own }
    }
}

impl Cell {
    /// Whom a pod of a primary network sees, if nothing is isolated. None of its policies knows
    /// nodes.
    fn source_there(self) -> Option<IpAddr> {
        let by_host = self.client == Client::Outside
            || (self.client, self.way) == (Client::PodElsewhere, Way::NodePort);
        if by_host && self.is_local && !self.is_here {
            return None;
        }
        let both = match (self.client, self.way) {
            (Client::Outside, _) => OUTSIDE,
            // The other node's host leads its own pods.
            (Client::PodElsewhere, Way::External | Way::Balancer) if self.is_here => OTHER,
            (Client::PodElsewhere, Way::External | Way::Balancer) => NEIGHBOUR,
            _ if !self.is_here => DOOR,
            (Client::PodElsewhere, _) => NODES[1],
            (Client::PodHere | Client::Host, _) => NEIGHBOUR,
        };
        Some(self.of(both))
    }
}

/// A policy of a namespace, by the clients that it allows.
fn policy(server: &ApiServer, namespace: &str, name: &str, ingress: &Value) {
    server.apply(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": namespace, "name": name, "uid": format!("{namespace}-{name}") },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress"], "ingress": ingress },
    }));
}

#[test]
fn services_of_primary_networks_are_reached_by_every_node_and_their_policies_see_the_client() {
    check(("layer2", "10.1.0.0/24,fd01::/64"));
}

#[test]
fn the_same_holds_for_networks_with_a_subnet_for_each_node() {
    check(("layer3", "10.1.0.0/16/24,fd01::/48/64"));
}

fn check(shape: (&str, &str)) {
    let (central, nodes) = machines();
    let outside = central.machine().place();
    let (server, controller) = controlled(&central);
    let runs = nodes.each_ref().map(|node| node.join(&central, &server));
    let options = OvnNode::agent_options();
    let agents = nodes.each_ref().map(|node| node.start_agent(&options));
    // Where there are primary networks, pods wait for their namespaces.
    server.apply(json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": "tests", "uid": "uid-of-tests" },
    }));
    for namespace in NAMESPACES {
        primary_network(&server, namespace, shape);
    }
    let webs = [0, 1].map(|at| Own::wired(&server, &nodes[at], NAMESPACES[at], "web"));
    let clients = [0, 1].map(|at| nodes[at].wired(&server, &format!("client-{at}"), "client"));
    let friend = Own::wired(&server, &nodes[0], NAMESPACES[0], "friend");
    if shape.0 == "layer2" {
        assert_eq!(webs[0].own, webs[1].own);
    }
    for web in &webs {
        // On its own network alone.
        web.own.iter().for_each(|address| serve(&web.pod, *address));
    }
    let is_one = |it: &Cell| it.client == Client::Host && !it.v6 && !it.udp;
    for cell in cells().into_iter().filter(is_one) {
        let at = usize::from(!cell.is_here);
        let of = (&*webs[at].default, &*nodes[at].name);
        service(&server, NAMESPACES[at], cell, of);
    }
    let northbound = central.northbound();
    for address in webs.iter().flat_map(|web| &web.default) {
        let of = json!([["external_ip", "==", address.to_string()]]);
        northbound
            .wait("NAT", of, "!=", &["external_ip"], json!([]))
            .unwrap();
    }
    for (at, run) in runs.iter().enumerate() {
        run.await_services(|| {
            let table = nodes[at].run("nft", "list table inet podwire-services");
            let mut ends = webs.iter().flat_map(|web| &web.default);
            (10..14).all(|n| table.contains(&format!("203.0.113.{n}")))
                && ends.all(|it| table.contains(&it.to_string()))
                && ["@locked4", "@locked6"].iter().all(|it| table.contains(it))
        });
        run.await_log("nftables table netdev podwire-router", 1);
        nodes[at].await_doors(&server, run, &[&nodes[1 - at].name]);
    }
    let from = |cell: Cell| match cell.client {
        Client::Outside => outside,
        Client::PodHere => clients[0].0.place(),
        Client::PodElsewhere => clients[1].0.place(),
        Client::Host => nodes[0].place(),
    };
    // Everybody is asked, under policies that let these pass.
    let ask_all = |round: &str, passes: &dyn Fn(Cell, IpAddr) -> bool| {
        central.sync();
        nodes.iter().for_each(|node| node.await_revalidated());
        let mut wrong = Vec::new();
        thread::scope(|scope| {
            let asked = cells().into_iter().map(|cell| {
                let source = cell.source_there();
                let expected = source.filter(|source| passes(cell, *source));
                let limit = if expected.is_some() { LIMIT } else { SHORT };
                let place = from(cell);
                let asked = scope.spawn(move || ask(place, cell.to(), cell.udp, limit));
                (cell, expected, asked)
            });
            for (cell, expected, asked) in asked.collect::<Vec<_>>() {
                let seen = asked.join().unwrap();
                if seen != expected {
                    wrong.push(format!("{cell:?}: {seen:?}, not {expected:?}"));
                }
            }
        });
        assert!(
            wrong.is_empty(),
            "{round}: {} cells: {wrong:#?}",
            wrong.len()
        );
    };
    ask_all("without policies", &|_, _| true);

    let (here, there) = (&webs[0], &webs[1]);
    for v6 in [false, true] {
        let family = usize::from(v6);
        let mut cells = cells().into_iter();
        let of = |it: &Cell| it.is_here && !it.is_local && it.way == Way::NodePort;
        let cell = cells.find(|it| of(it) && it.v6 == v6 && !it.udp).unwrap();
        // A pod of the network, and one of another, are led as others are.
        let seen = ask(friend.pod.place(), cell.to(), false, LIMIT);
        assert_eq!(seen, Some(cell.of(NEIGHBOUR)));
        let seen = ask(there.pod.place(), cell.to(), false, LIMIT);
        assert_eq!(seen, Some(cell.of(NODES[1])));
        // By its address on the default network nobody reaches the endpoint, also not by a route to
        // its router.
        let at = SocketAddr::new(here.default[family], 8080);
        let own = nodes.each_ref().map(|node| node.place());
        for from in [
            clients[0].0.place(),
            clients[1].0.place(),
            there.pod.place(),
            own[0],
        ] {
            assert_eq!(ask(from, at, false, SHORT), None);
            assert_eq!(ask(from, at, true, SHORT), None);
        }
        let gateway = ["10.244.0.1", "fd00:10:244::1"][family];
        clients[0].0.place().run(|| {
            let to = at.ip().to_string();
            let mut command = std::process::Command::new("ip");
            command.args(["route", "add", &to, "via", gateway, "dev", "eth0"]);
            assert!(command.status().unwrap().success());
        });
        assert_eq!(ask(clients[0].0.place(), at, false, SHORT), None);
        assert_eq!(ask(clients[0].0.place(), at, true, SHORT), None);
        // A node reaches exposed ports alone.
        serve_at(&here.pod, SocketAddr::new(here.own[family], 9090));
        let other = SocketAddr::new(at.ip(), 9090);
        assert_eq!(ask(own[1], other, false, SHORT), None);
    }

    policy(&server, NAMESPACES[0], "nobody", &json!([]));
    let await_acl = |name: &str| {
        let of = json!([["name", "==", name]]);
        northbound
            .wait("ACL", of, "!=", &["name"], json!([]))
            .unwrap();
    };
    await_acl("NP:shop:Ingress");
    ask_all("closed here", &|cell, _| !cell.is_here);
    let allowed = OUTSIDE.map(|it| it.parse::<IpAddr>().unwrap());
    let [v4, v6] = OUTSIDE;
    let blocks = [format!("{v4}/32"), format!("{v6}/128")];
    let blocks = blocks.map(|cidr| json!({ "ipBlock": { "cidr": cidr } }));
    for namespace in NAMESPACES {
        policy(&server, namespace, "outside", &json!([{ "from": blocks }]));
        await_acl(&format!("NP:{namespace}:outside:Ingress:0"));
    }
    ask_all("open to the outside", &|_, source| {
        allowed.contains(&source)
    });

    for cell in cells() {
        let of = (cell.client, cell.way, cell.is_local);
        if of == (Client::Outside, Way::NodePort, false) && cell.udp {
            let web = if cell.is_here { here } else { there };
            assert_hears_of_errors(&web.pod, outside, cell.to());
        }
    }

    drop(agents);
    for run in runs {
        run.stop();
    }
    assert!(controller.stop().success());
}

/// The pod hears that an answer of its has not reached its client, and knows which answer.
#[track_caller]
fn assert_hears_of_errors(pod: &Pod<'_>, outside: &Place, by: SocketAddr) {
    let family = if by.is_ipv4() { "Icmp" } else { "Icmp6" };
    let heard = || {
        ["InDestUnreachs", "InErrors"].map(|what| {
            let shown = pod.run("nstat", format!("-asz {family}{what}"));
            let count = shown.split_whitespace().nth(2).unwrap();
            count.parse::<u32>().unwrap()
        })
    };
    let [before, unknown] = heard();
    let any: IpAddr = if by.is_ipv4() { "0.0.0.0" } else { "::" }.parse().unwrap();
    let has_heard = (0..QUESTIONS).any(|_| {
        // Without its socket the client's kernel refuses the answer.
        let socket = outside.run(|| UdpSocket::bind((any, 0))).unwrap();
        socket.send_to(b"who", by).unwrap();
        drop(socket);
        ask(outside, by, true, LIMIT).unwrap();
        heard()[0] > before
    });
    assert!(has_heard, "{by}: {:?}", heard());
    assert_eq!(heard()[1], unknown, "{by}");
}
