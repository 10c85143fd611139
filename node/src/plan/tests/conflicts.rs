//! Settings that take what the machine needs for itself.

use super::machine::{in_use, machine, peer, plain, settings};
use super::*;
use crate::overlap::By;

fn conflicts(settings: &Settings, actual: &Actual) -> Vec<String> {
    let plan = Plan::of(settings, actual, false).unwrap();
    plan.conflicts.iter().map(Conflict::to_string).collect()
}

fn link(name: &str) -> By {
    By::Link(name.to_owned())
}

#[test]
fn whatever_setting_takes_what_the_machine_needs_is_named_with_it() {
    type Change = fn(&mut Settings);
    let cases: [(Change, &str); 9] = [
        (
            |it| it.node_subnets = vec!["192.0.2.0/25".parse().unwrap()],
            "--node-subnet 192.0.2.0/25: this machine itself needs gateway 192.0.2.1, 192.0.2.0/24 \
             of link eth0: name another network",
        ),
        (
            |it| it.node_subnets = vec!["192.0.2.128/25".parse().unwrap()],
            "--node-subnet 192.0.2.128/25: this machine itself needs 192.0.2.0/24 of link eth0: \
             name another network",
        ),
        (
            |it| {
                it.subnets_by_flag = false;
                it.node_subnets = vec!["192.0.2.0/25".parse().unwrap()];
            },
            "k8s.ovn.org/node-subnets 192.0.2.0/25: this machine itself needs gateway 192.0.2.1, \
             192.0.2.0/24 of link eth0: have the control plane assign another subnet",
        ),
        (
            |it| it.cluster_subnets.push("203.0.113.0/24".parse().unwrap()),
            "--cluster-subnet 203.0.113.0/24: this machine itself needs API server 203.0.113.5: \
             name another network",
        ),
        (
            |it| {
                it.service_cidrs = vec!["203.0.0.0/16".parse().unwrap()];
                let source = " (/etc/podwire/podwire.toml, line 2)".to_owned();
                it.origins.insert("--service-cidr", source);
            },
            "--service-cidr 203.0.0.0/16: this machine itself needs API server 203.0.113.5: name \
             another network (/etc/podwire/podwire.toml, line 2)",
        ),
        (
            |it| it.encap_ips = vec!["198.51.100.1".parse().unwrap()],
            "--encap-ip 198.51.100.1: this machine does not have this address: name one of \
             192.0.2.11",
        ),
        (
            |it| it.mtu = Some(1450),
            "--mtu 1450: eth0 has an MTU of 1500 bytes and tunnels take 58: name 1442 at most, or \
             raise the link's",
        ),
        (
            |it| {
                *it = plain(vec![peer("b", &["192.0.0.0/16"], &[])]);
            },
            "podCIDRs 192.0.0.0/16 of node b: this machine itself needs gateway 192.0.2.1, \
             192.0.2.0/24 of link eth0: give the cluster other podCIDRs",
        ),
        (
            |it| {
                let peers = vec![
                    peer("b", &["198.51.0.0/16"], &["192.0.2.12"]),
                    peer("c", &["10.244.3.0/24"], &["198.51.100.3"]),
                ];
                *it = plain(peers);
            },
            "podCIDRs 198.51.0.0/16 of node b: this machine itself needs node c 198.51.100.3: give \
             the cluster other podCIDRs",
        ),
    ];
    for (change, said) in cases {
        let mut wanted = settings(&["10.244.1.0/24"]);
        change(&mut wanted);
        assert_eq!(conflicts(&wanted, &machine()), [said]);
    }
    let mut narrow = machine();
    narrow.links.get_mut("eth0").unwrap().mtu = 1300;
    let dual = settings(&["10.244.1.0/24", "fd00:10:244:1::/64"]);
    let said = "--node-subnet 10.244.1.0/24, fd00:10:244:1::/64: eth0 has an MTU of 1300 bytes and \
                tunnels take 58, but pods need 1280: raise the link's to 1338 at least";
    assert_eq!(conflicts(&dual, &narrow), [said]);
    assert!(conflicts(&settings(&["10.244.1.0/24"]), &narrow).is_empty());
}

#[test]
fn nodes_with_one_subnet_are_in_conflict_and_only_they() {
    let peers = vec![
        peer("b", &["10.1.0.0/24"], &["192.0.2.12"]),
        peer("c", &["10.1.0.0/16"], &["192.0.2.13"]),
        peer("d", &["10.244.4.0/24", "10.244.5.0/24"], &["192.0.2.14"]),
        peer("e", &["127.0.0.0/24"], &["192.0.2.15"]),
        peer("f", &["10.244.6.0/24"], &["192.0.2.16"]),
    ];
    let plan = Plan::of(&plain(peers), &machine(), false).unwrap();
    let said: Vec<String> = plan.conflicts.iter().map(Conflict::to_string).collect();
    for text in [
        "podCIDRs 10.1.0.0/24 of node b: it overlaps 10.1.0.0/16 of node c: give each node \
         podCIDRs of its own",
        "podCIDRs 10.1.0.0/16 of node c: it overlaps 10.1.0.0/24 of node b: give each node \
         podCIDRs of its own",
        "podCIDRs 10.244.5.0/24 of node d: 10.244.4.0/24 is of the same family, and there may be \
         one of each",
        "podCIDRs 127.0.0.0/24 of node e: addresses of 127.0.0.0/8 are this host's own (loopback): \
         give the cluster other podCIDRs",
    ] {
        assert!(said.contains(&text.to_owned()), "{text}\n{said:#?}");
    }
    assert_eq!(said.len(), 4, "{said:#?}");
    assert!(!plan.conflicts.iter().any(Conflict::is_of_all));
    let routes = plan.items.iter().filter_map(|item| match item {
        Item::Route(route) => Some(route.destination.to_string()),
        _ => None,
    });
    assert_eq!(routes.collect::<Vec<_>>(), ["10.244.6.0/24"]);
    // With this node's own, nothing is set up.
    let twin = plain(vec![peer("b", &["10.244.0.0/16"], &[])]);
    let plan = Plan::of(&twin, &machine(), false).unwrap();
    assert!(plan.conflicts.iter().any(Conflict::is_of_subnets));
}

#[test]
fn what_is_podwire_s_own_or_a_service_s_is_in_no_conflict() {
    let mut actual = machine();
    actual.in_use.extend([
        in_use("10.96.0.1/32", By::Server("API server".to_owned())),
        in_use("10.96.0.10/32", By::Server("name server".to_owned())),
        in_use("10.96.7.7/32", link("kube-ipvs0")),
    ]);
    assert_eq!(conflicts(&settings(&["10.244.1.0/24"]), &actual), [""; 0]);
    actual.in_use = vec![
        in_use("10.96.0.2/32", By::Server("name server".to_owned())),
        in_use("10.96.7.0/24", link("eth1")),
    ];
    let said = "--service-cidr 10.96.0.0/16: this machine itself needs 10.96.7.0/24 of link \
                eth1, name server 10.96.0.2: name another network";
    assert_eq!(conflicts(&settings(&["10.244.1.0/24"]), &actual), [said]);
    // The pods' gateway on their bridge is the agent's.
    actual.in_use = vec![in_use("10.244.1.0/24", link("br-int"))];
    assert_eq!(conflicts(&plain(Vec::new()), &actual), [""; 0]);
    assert_eq!(conflicts(&settings(&["10.244.1.0/24"]), &actual).len(), 2);
}

#[test]
fn a_route_of_others_without_a_gateway_may_be_replaced_if_the_operator_says_so() {
    let mut actual = machine();
    actual.in_use.push(in_use("10.96.0.0/16", link("eth1")));
    actual.routes.push(ObservedRoute {
        destination: "10.96.0.0/16".parse().unwrap(),
        via: None,
        link: Some("eth1".to_owned()),
        source: None,
        ours: false,
        protocol: 4,
        table: 254,
        metric: 0,
        message: Default::default(),
    });
    let wanted = settings(&["10.244.1.0/24"]);
    let of = |actual: &Actual, take_over| Plan::of(&wanted, actual, take_over).unwrap().conflicts;
    assert_eq!(of(&actual, false).len(), 1);
    assert_eq!(of(&actual, true).len(), 0);
    // Never if the link has an address in it.
    let mut seen = actual.addresses[0].clone();
    seen.address = "10.96.0.7/16".parse().unwrap();
    actual.addresses.push(seen);
    assert_eq!(of(&actual, true).len(), 1);
}
