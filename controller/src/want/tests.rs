use podwire_cluster::claims::Refused;
use podwire_cluster::service::{Endpoint, Protocol, Service, ServicePort, Slice};
use podwire_ovs::value::Value;

use super::*;

use Protocol::{Tcp as TCP, Udp as UDP};

fn value<'a>(row: &'a Row, column: &str) -> Option<&'a Value> {
    row.columns.iter().find_map(|(name, value)| match value {
        Column::Value(value) if *name == column => Some(value),
        _ => None,
    })
}

fn port(name: &str, protocol: Protocol, port: u16) -> ServicePort {
    ServicePort {
        name: name.to_owned(),
        protocol,
        port,
        node_port: None,
    }
}

/// An endpoint; `state` is `ready`, `ending` or `gone`.
fn endpoint(address: &str, state: &str) -> Endpoint {
    Endpoint {
        address: address.parse().unwrap(),
        node: None,
        ready: state == "ready",
        serving: state != "gone",
    }
}

fn slice(endpoints: &[(&str, &str)], ports: &[(&str, Protocol, u16)]) -> Slice {
    let ports = ports
        .iter()
        .map(|(name, protocol, number)| ((*name).to_owned(), (*protocol, *number)));
    Slice {
        endpoints: endpoints
            .iter()
            .map(|(address, state)| endpoint(address, state))
            .collect(),
        ports: ports.collect(),
    }
}

fn of(addresses: &[&str], ports: &[ServicePort]) -> Service {
    Service {
        cluster_ips: addresses.iter().map(|it| it.parse().unwrap()).collect(),
        ports: ports.to_vec(),
        ..Service::default()
    }
}

/// The vips of a service's only load balancer, as `VIP=ENDPOINTS`.
fn vips(wanted: &Service, slices: &[Slice]) -> Vec<String> {
    let rows = service("ns", "svc", wanted, slices.iter(), &[], &Refused::new());
    let [row] = &rows[..] else {
        panic!("{rows:?}");
    };
    let vips = value(row, "vips").unwrap().as_map().unwrap();
    vips.strings()
        .map(|(vip, ends)| format!("{vip}={ends}"))
        .collect()
}

#[test]
fn endpoints_are_those_that_are_ready_else_those_that_still_serve_else_none() {
    let wanted = of(&["10.96.0.1"], &[port("", TCP, 80)]);
    let ports = [("", TCP, 8080)];
    for (endpoints, expected) in [
        (
            &[
                ("10.0.0.4", "ready"),
                ("10.0.0.3", "ready"),
                ("10.0.0.5", "ending"),
            ][..],
            "10.96.0.1:80=10.0.0.3:8080,10.0.0.4:8080",
        ),
        (
            &[("10.0.0.4", "ending"), ("10.0.0.3", "gone")],
            "10.96.0.1:80=10.0.0.4:8080",
        ),
        (&[("10.0.0.3", "gone")], "10.96.0.1:80="),
        (&[], "10.96.0.1:80="),
    ] {
        assert_eq!(vips(&wanted, &[slice(endpoints, &ports)]), [expected]);
    }
    // One endpoint in two slices, as while one is replaced by another, is one endpoint.
    let twice = [(); 2].map(|()| slice(&[("10.0.0.3", "ready")], &ports));
    assert_eq!(vips(&wanted, &twice), ["10.96.0.1:80=10.0.0.3:8080"]);
    let unready = Service {
        publish_unready: true,
        ..wanted
    };
    let slices = [slice(&[("10.0.0.3", "gone")], &ports)];
    assert_eq!(vips(&unready, &slices), ["10.96.0.1:80=10.0.0.3:8080"]);
}

#[test]
fn each_address_of_a_service_has_the_endpoints_of_its_family() {
    let wanted = of(
        &["10.96.0.1", "fd96::1", "192.0.2.7"],
        &[port("a", TCP, 80), port("b", TCP, 443)],
    );
    let slices = [
        slice(
            &[("10.0.0.3", "ready")],
            &[("a", TCP, 8080), ("b", TCP, 8443)],
        ),
        slice(&[("fd00::3", "ready")], &[("a", TCP, 8080)]),
    ];
    assert_eq!(
        vips(&wanted, &slices),
        [
            "10.96.0.1:443=10.0.0.3:8443",
            "10.96.0.1:80=10.0.0.3:8080",
            "192.0.2.7:443=10.0.0.3:8443",
            "192.0.2.7:80=10.0.0.3:8080",
            "[fd96::1]:443=",
            "[fd96::1]:80=[fd00::3]:8080",
        ]
    );
}

#[test]
fn each_protocol_of_a_service_is_a_load_balancer() {
    let wanted = of(&["10.96.0.1"], &[port("t", TCP, 53), port("u", UDP, 53)]);
    let slices = [slice(
        &[("10.0.0.3", "ready")],
        &[("u", UDP, 5353), ("t", TCP, 5353)],
    )];
    let rows = service("ns", "svc", &wanted, slices.iter(), &[], &Refused::new());
    let made: Vec<_> = rows
        .iter()
        .map(|row| (&*row.name, value(row, "protocol").unwrap().as_str()))
        .collect();
    assert_eq!(
        made,
        [
            ("Service_ns/svc_TCP_cluster", Some("tcp")),
            ("Service_ns/svc_UDP_cluster", Some("udp")),
        ]
    );
    assert!(
        rows.iter()
            .all(|row| row.parents.len() == 1 && row.parents[0].name == GROUP)
    );
}

#[test]
fn a_service_of_local_endpoints_has_a_load_balancer_for_each_node_that_has_some() {
    let mut wanted = of(&["10.96.0.1"], &[port("", TCP, 80)]);
    wanted.is_internal_local = true;
    wanted.external_ips = vec!["192.0.2.7".parse().unwrap()];
    let mut slices = [slice(
        &[("10.0.1.3", "ready"), ("10.0.2.3", "ending")],
        &[("", TCP, 8080)],
    )];
    for (endpoint, node) in slices[0].endpoints.iter_mut().zip(["a", "b"]) {
        endpoint.node = Some(node.into());
    }
    let rows = service(
        "ns",
        "svc",
        &wanted,
        slices.iter(),
        &["a", "b", "c", "d"],
        &Refused::new(),
    );
    let made: Vec<_> = rows
        .iter()
        .map(|row| {
            let vips = value(row, "vips").unwrap().as_map().unwrap();
            let vips: Vec<_> = vips.strings().collect();
            let parents: Vec<_> = row.parents.iter().map(|it| &*it.name).collect();
            (&*row.name, vips, parents)
        })
        .collect();
    let both = "10.0.1.3:8080";
    assert_eq!(
        made,
        [
            (
                "Service_ns/svc_TCP_cluster",
                vec![("192.0.2.7:80", both)],
                vec![GROUP]
            ),
            (
                "Service_ns/svc_TCP_node_switch_a",
                vec![("10.96.0.1:80", both)],
                vec!["a"]
            ),
            // On each node those that end still serve where none is ready.
            (
                "Service_ns/svc_TCP_node_switch_b",
                vec![("10.96.0.1:80", "10.0.2.3:8080")],
                vec!["b"]
            ),
            (
                "Service_ns/svc_TCP_node_switch_without_endpoints",
                vec![("10.96.0.1:80", "")],
                vec!["c", "d"]
            ),
        ]
    );
}

#[test]
fn affinity_has_the_client_s_address_choose_the_endpoint() {
    let mut wanted = of(&["10.96.0.1"], &[port("", TCP, 80)]);
    let fields = |wanted: &Service| {
        let rows = service("ns", "svc", wanted, [].iter(), &[], &Refused::new());
        value(&rows[0], "selection_fields").unwrap().clone()
    };
    assert_eq!(fields(&wanted), Value::empty());
    wanted.affinity = Some(10_800);
    assert_eq!(fields(&wanted), Value::set(["ip_src", "ip_dst"]));
}

#[test]
fn a_node_s_way_out_is_by_its_own_address_of_each_family() {
    let wanted = Node {
        addresses: ["192.0.2.1", "2001:db8::1"]
            .map(|it| it.parse().unwrap())
            .into(),
        ..Node::default()
    };
    let subnets = ["10.0.1.0/24", "fd00::/64"].map(|it| it.parse().unwrap());
    let rows = node("n", &wanted, &subnets, 0, None);
    let matches: Vec<_> = rows
        .iter()
        .filter_map(|row| value(row, "match")?.as_str())
        .collect();
    assert_eq!(
        matches,
        [
            r#"inport == "rtos-n" && ip4.dst == 192.0.2.1"#,
            r#"inport == "rtos-n" && ip6.dst == 2001:db8::1"#,
        ]
    );
    let hops: Vec<_> = rows
        .iter()
        .filter_map(|row| {
            value(row, "nexthop")
                .or_else(|| value(row, "nexthops"))?
                .as_str()
        })
        .collect();
    assert_eq!(hops, ["10.0.1.2", "fd00::2", "10.0.1.2", "fd00::2"]);
    // Its own interface has the MAC address that it says, else the one of its address.
    let ports = |node: &Node| {
        let rows = super::node("n", node, &subnets, 0, None);
        let port = rows.iter().find(|row| row.name == "k8s-n").unwrap();
        value(port, "addresses")
            .unwrap()
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(ports(&wanted), "0a:58:0a:00:01:02 10.0.1.2 fd00::2");
    let own = Node {
        mac: "02:00:00:00:00:07".parse().ok(),
        ..wanted.clone()
    };
    assert_eq!(ports(&own), "02:00:00:00:00:07 10.0.1.2 fd00::2");
    let port = rows
        .iter()
        .find(|row| row.name == "podwire-door-n")
        .unwrap();
    for column in ["addresses", "port_security"] {
        // The one that nodes derive, whatever the management port has.
        let mac = value(port, column).unwrap().as_str();
        assert_eq!(mac, Some("0a:58:0a:00:01:02"));
    }
    assert_eq!(port.parents[0].name, "podwire_doors");
    // No other node's interface gets one of the node's own ports.
    for name in ["k8s-n", "podwire-door-n"] {
        let port = rows.iter().find(|row| row.name == name).unwrap();
        let on_node = Value::map([("requested-chassis", "n")]);
        assert_eq!(value(port, "options"), Some(&on_node), "{name}");
    }
    // Without a chassis there is no row that names one, and without a subnet nothing.
    assert!(rows.iter().all(|row| row.table != Table::GatewayChassis));
    assert_eq!(node("n", &wanted, &[], 0, None), []);
}

#[test]
fn what_pods_answer_is_marked_and_led_to_their_host_where_ovn_can_mark() {
    let text = |text: &str| text.parse().unwrap();
    let gateway = podwire_cluster::gateway::Gateway {
        interface: "br-ex_n".to_owned(),
        mac: "52:54:00:aa:bb:01".parse().unwrap(),
        addresses: vec![text("192.0.2.11/24"), text("2001:db8::11/64")],
        next_hops: vec!["192.0.2.1".parse().unwrap(), "fe80::1".parse().unwrap()],
        vlan: None,
        mtu: Some(1400),
    };
    let subnets = [text("10.0.1.0/24"), text("fd00::/64")];
    let cluster = [text("10.0.0.0/16"), text("fd00::/48"), text("10.9.0.0/16")];
    let mut way = WayOut {
        gateway: &gateway,
        place: 2,
        cluster: &cluster,
        has_marks: true,
    };
    assert!(way.answers_return(&subnets));
    let all = node("n", &Node::default(), &subnets, 0, Some(&way));
    let of = |table: Table| all.iter().filter(move |row| row.table == table);
    let matches: Vec<_> = of(Table::Qos)
        .map(|row| value(row, "match").unwrap().as_str().unwrap())
        .collect();
    assert_eq!(
        matches,
        [
            "ct.rpl && ip4.src == 10.0.1.0/24",
            "ct.rpl && ip6.src == fd00::/64"
        ]
    );
    let policies = of(Table::RouterPolicy)
        .filter_map(|row| Some((value(row, "match")?.as_str()?, value(row, "nexthops")?)))
        .filter(|(matching, _)| matching.contains("pkt.mark"));
    let mark = r#"inport == "rtos-n" && pkt.mark == 33554432 && "#;
    let own: Vec<_> = policies
        .map(|(matching, hop)| (matching.strip_prefix(mark).unwrap(), hop.as_str()))
        .collect();
    assert_eq!(
        own,
        [
            ("ip4.dst == {10.0.0.0/16, 10.9.0.0/16}", None),
            ("ip4", Some("10.0.1.2")),
            ("ip6.dst == {fd00::/48}", None),
            ("ip6", Some("fd00::2")),
        ]
    );
    // Of a family whose pods' networks are not known, answers leave by the gateway router; of one
    // whose pods leave by the host, they come there anyway.
    way.cluster = &cluster[..1];
    assert!(!way.answers_return(&subnets));
    let mut of_one = gateway.clone();
    of_one.next_hops.truncate(1);
    way.gateway = &of_one;
    assert!(way.answers_return(&subnets));
    way.has_marks = false;
    assert!(!way.answers_return(&subnets));
    let all = node("n", &Node::default(), &subnets, 0, Some(&way));
    assert!(all.iter().all(|row| row.table != Table::Qos));
}

#[test]
fn a_balancer_s_address_that_some_may_not_use_is_the_nodes_to_serve() {
    let balancer_ips = ["192.0.2.7", "2001:db8::7"].map(|it| it.parse().unwrap());
    let mut wanted = Service {
        balancer_ips: balancer_ips.into(),
        source_ranges: vec!["198.51.100.0/24".parse().unwrap()],
        ..of(&["10.96.0.1"], &[port("", TCP, 80)])
    };
    let slices = [slice(&[("10.0.0.3", "ready")], &[("", TCP, 8080)])];
    let own = "10.96.0.1:80=10.0.0.3:8080";
    // The ranges are of the other family.
    let other = "[2001:db8::7]:80=";
    assert_eq!(vips(&wanted, &slices), [own, other]);
    // They don't restrict an external IP.
    wanted.external_ips = vec![wanted.balancer_ips[0]];
    let external = "192.0.2.7:80=10.0.0.3:8080";
    assert_eq!(vips(&wanted, &slices), [own, external, other]);
}
