mod real;

use super::frontends::Key;
use super::table::Contents;
use super::*;
use podwire_cluster::service::{Endpoint, Service, ServicePort, Slice};
use podwire_cluster::{Name, Slices};

use crate::cluster::Store;

fn here() -> LocalNode {
    LocalNode {
        node: "node-a".to_owned(),
        addresses: [
            "192.0.2.11".parse().unwrap(),
            "2001:db8::11".parse().unwrap(),
        ]
        .into(),
        pods: Vec::new(),
        locked: BTreeSet::new(),
        router_leads: false,
    }
}

#[test]
fn a_gateway_router_leads_what_has_pods_and_the_host_what_has_its_own_endpoints() {
    let here = LocalNode {
        pods: vec!["10.244.0.0/16".parse().unwrap()],
        router_leads: true,
        ..here()
    };
    let own: IpAddr = "192.0.2.11".parse().unwrap();
    let of = |local: bool, endpoints: &[(&str, &str)], gateway: &[IpAddr]| {
        let service = Service {
            external_ips: vec!["198.51.100.10".parse().unwrap()],
            is_external_local: local,
            ..Service::default()
        };
        let frontends = Frontends::of(&cluster(service, endpoints), &here, |_| true);
        let led = frontends.led(&here, gateway);
        let led = led.iter().map(|it| format!("{}:{}", it.address, it.port));
        let node_port = Key {
            protocol: Protocol::Tcp,
            address: own,
            port: 30080,
        };
        let ends = frontends.by_key[&node_port].endpoints.clone();
        (led.collect::<Vec<_>>(), ends)
    };
    let both = ["192.0.2.11:30080", "198.51.100.10:80"];
    let (far, near) = (("10.244.2.7", "node-b"), ("10.244.1.5", "node-a"));
    assert_eq!(of(false, &[far], &[own]).0, both);
    assert_eq!(of(true, &[near], &[own]).0, both);
    // No node port of another address is the gateway router's.
    assert_eq!(of(false, &[far], &[]).0, both[1..]);
    let none: [&str; 0] = [];
    assert_eq!(of(true, &[far], &[own]).0, none);
    assert_eq!(of(false, &[], &[own]).0, none);
    assert_eq!(of(false, &[("192.0.2.12", "node-b")], &[own]).0, none);
    let (led, ends) = of(false, &[near, ("192.0.2.11", "node-a")], &[own]);
    assert_eq!((&led[..], ends.len()), (&none.map(String::from)[..], 1));
    assert_eq!(ends[0].ip(), own);
}

fn store<N: Ord, V>(name: N, object: V) -> Store<N, V> {
    Store {
        objects: [(name, object)].into(),
        is_listed: true,
    }
}

/// A service on 10.96.0.10:80 and node port 30080, with endpoints on these nodes.
fn cluster(service: Service, endpoints: &[(&str, &str)]) -> Cluster {
    let endpoints = endpoints.iter().map(|(address, node)| Endpoint {
        address: address.parse().unwrap(),
        node: Some((*node).into()),
        ready: true,
        serving: true,
    });
    let slice = Slice {
        endpoints: endpoints.collect(),
        ports: [("web".to_owned(), (Protocol::Tcp, 8080))].into(),
    };
    let service = Service {
        cluster_ips: vec!["10.96.0.10".parse().unwrap()],
        ports: vec![ServicePort {
            name: "web".to_owned(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: Some(30080),
        }],
        ..service
    };
    let name = |name: &str| (Name::from("ns"), Name::from(name));
    let mut slices = Slices::default();
    slices.set(("ns".into(), "web-1".into()), Some(("web".into(), slice)));
    Cluster {
        services: store(name("web"), service),
        slices,
        slices_are_listed: true,
        ..Cluster::default()
    }
}

fn contents(cluster: &Cluster) -> Contents {
    let here = LocalNode {
        pods: vec!["10.244.0.0/16".parse().unwrap()],
        ..here()
    };
    Contents::of(&Frontends::of(cluster, &here, |_| true), &here)
}

#[test]
fn an_endpoint_that_comes_is_a_few_elements_and_one_that_goes_too() {
    let one = [("10.244.1.5", "node-a")];
    let two = [("10.244.1.5", "node-a"), ("10.244.2.5", "node-b")];
    let before = contents(&cluster(Service::default(), &one));
    let after = contents(&cluster(Service::default(), &two));
    let script = after.script(Some(&before.seen()));
    let expected = "\
add chain inet podwire-services any-of-2-tcp4
add rule inet podwire-services any-of-2-tcp4 dnat ip to ip daddr . tcp dport . numgen random mod 2 \
map @endpoints-tcp4
delete element inet podwire-services services4 { 6 . 10.96.0.10 . 80 }
delete element inet podwire-services services4 { 6 . 192.0.2.11 . 30080 }
add element inet podwire-services endpoints-tcp4 { 10.96.0.10 . 80 . 1 : 10.244.2.5 . 8080 }
add element inet podwire-services endpoints-tcp4 { 192.0.2.11 . 30080 . 1 : 10.244.2.5 . 8080 }
add element inet podwire-services services4 { 6 . 10.96.0.10 . 80 : goto any-of-2-tcp4 }
add element inet podwire-services services4 { 6 . 192.0.2.11 . 30080 : goto any-of-2-tcp4 }
flush chain inet podwire-services any-of-1-tcp4
delete chain inet podwire-services any-of-1-tcp4
";
    let unmarked = |script: &str| -> Vec<String> {
        let lines = script.lines();
        lines
            .map(|line| line.split(" comment ").next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(unmarked(&script), unmarked(expected));
    let back = before.script(Some(&after.seen()));
    assert_eq!(back.lines().count(), script.lines().count(), "{back}");
    assert_eq!(after.script(Some(&after.seen())), "");
}

#[test]
fn with_a_local_policy_the_outside_gets_endpoints_of_this_node_alone() {
    let service = Service {
        is_external_local: true,
        ..Service::default()
    };
    let ends = [("10.244.1.5", "node-a"), ("10.244.2.5", "node-b")];
    let frontends = Frontends::of(&cluster(service.clone(), &ends), &here(), |_| true);
    let key = |address: &str, port| Key {
        protocol: Protocol::Tcp,
        address: address.parse().unwrap(),
        port,
    };
    let all: Vec<SocketAddr> = vec![
        "10.244.1.5:8080".parse().unwrap(),
        "10.244.2.5:8080".parse().unwrap(),
    ];
    let frontend = &frontends.by_key[&key("192.0.2.11", 30080)];
    assert_eq!(frontend.endpoints, all[..1]);
    // A client on this node is not of the outside.
    assert_eq!(frontend.inner, all);
    assert_eq!(frontends.by_key[&key("10.96.0.10", 80)].endpoints, all);

    let frontends = Frontends::of(&cluster(service, &ends[1..]), &here(), |_| true);
    let frontend = &frontends.by_key[&key("192.0.2.11", 30080)];
    assert!(
        frontend.endpoints.is_empty() && frontend.elsewhere,
        "{frontend:?}"
    );
}

#[test]
fn what_nft_lists_is_read_as_it_was_written() {
    // As nft 1.0.6 prints it, with numbers.
    let listed = serde_json::json!({"nftables": [
        {"set": {"name": "ranges4", "flags": ["interval"],
            "elem": [{"concat": [6, "10.0.0.1", 80, {"prefix": {"addr": "10.9.0.0",
            "len": 16}}]}]}},
        {"map": {"name": "services4", "map": "verdict",
            "elem": [[{"concat": [6, "10.0.0.1", 80]}, {"goto": {"target": "any-of-2-v4"}}]]}},
        {"map": {"name": "client-port-tcp-10.0.0.1-80", "elem": [[{"elem": {"val": "10.9.9.9"}},
        80]]}},
        {"chain": {"name": "any-of-2-v4"}},
        {"rule": {"chain": "any-of-2-v4", "comment": "podwire 01"}},
    ]});
    let seen = read(&listed);
    let element = |set: &str, key: &str| {
        seen.elements
            .get(&(set.to_owned(), key.to_owned()))
            .map(String::as_str)
    };
    assert_eq!(
        element("ranges4", "6 . 10.0.0.1 . 80 . 10.9.0.0/16"),
        Some("")
    );
    assert_eq!(
        element("services4", "6 . 10.0.0.1 . 80"),
        Some("goto any-of-2-v4")
    );
    assert_eq!(seen.elements.len(), 2);
    assert_eq!(seen.chains["any-of-2-v4"], ["podwire 01"]);
}

#[test]
fn an_address_of_something_else_is_no_front_and_the_older_service_s_is_not_a_younger_one_s() {
    let addresses = ["10.96.0.10", "192.0.2.11", "10.244.3.3", "198.51.100.1"];
    let addresses = addresses.map(|it| it.parse().unwrap()).to_vec();
    let mut cluster = cluster(Service::default(), &[("10.244.1.3", "node-a")]);
    let services = &mut cluster.services.objects;
    let web = services.first_key_value().unwrap().1.clone();
    for (name, created) in [("a-younger", 7), ("older", 3)] {
        let other = Service {
            created,
            cluster_ips: vec![format!("10.96.0.{created}").parse().unwrap()],
            external_ips: addresses.clone(),
            balancer_ips: addresses.clone(),
            ports: vec![ServicePort {
                node_port: None,
                ..web.ports[0].clone()
            }],
            ..Service::default()
        };
        services.insert((Name::from("ns"), Name::from(name)), other);
    }
    let here = LocalNode {
        pods: vec!["10.244.0.0/16".parse().unwrap()],
        ..here()
    };
    let frontends = Frontends::of(&cluster, &here, |_| true);
    let of = |address: &str| {
        let address: SocketAddr = address.parse().unwrap();
        let mut frontends = frontends.by_key.iter();
        let found =
            frontends.find(|(key, _)| (key.address, key.port) == (address.ip(), address.port()));
        found.map(|(_, frontend)| frontend.service.1.as_str())
    };
    assert_eq!(of("10.96.0.10:80"), Some("web"));
    assert_eq!(of("198.51.100.1:80"), Some("older"));
    assert_eq!(of("10.96.0.7:80"), Some("a-younger"));
    assert_eq!(of("192.0.2.11:80"), None);
    assert_eq!(of("10.244.3.3:80"), None);
    assert_eq!(frontends.refused.len(), 2);
}
