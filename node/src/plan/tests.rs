use proptest::prelude::*;

use super::*;
use crate::diff::{self, State, Step};
use crate::observe::{
    AddressSeen, LinkSeen, NeighbourSeen, PortSeen, RouteSeen, SwitchSeen, TableSeen,
};

fn settings(subnets: &[&str]) -> Settings {
    Settings {
        node_name: "node-a".to_owned(),
        node_subnets: subnets.iter().map(|net| net.parse().unwrap()).collect(),
        cluster_subnets: vec!["10.244.0.0/16".parse().unwrap()],
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        interface: None,
        mtu: None,
        encap_ip: None,
        ovn_remote: Some("tcp:192.0.2.9:6642".to_owned()),
        bridge: "br-int".to_owned(),
    }
}

fn machine() -> Observed {
    let link = LinkSeen {
        index: 2,
        up: true,
        mtu: 1500,
        mac: "02:00:00:00:00:01".to_owned(),
    };
    Observed {
        switch: SwitchSeen {
            answers: true,
            root: Some(uuid(1)),
            bridges: [("br-int".to_owned(), uuid(2))].into(),
            ..SwitchSeen::default()
        },
        links: [("eth0".to_owned(), link)].into(),
        addresses: vec![AddressSeen {
            link: "eth0".to_owned(),
            address: "192.0.2.11/24".parse().unwrap(),
            ours: false,
            universe: true,
            global: true,
        }],
        default_link: Some("eth0".to_owned()),
        ..Observed::default()
    }
}

fn uuid(number: u8) -> podwire_ovs::value::Uuid {
    format!("00000000-0000-0000-0000-0000000000{number:02x}")
        .parse()
        .unwrap()
}

/// What a machine looks like once a step is taken.
fn take(observed: &mut Observed, step: &Step) {
    let (item, made) = match step {
        Step::Make(item) => (item, true),
        Step::Remove(item) => (item, false),
    };
    match item {
        Item::Key { key, value, .. } if made => {
            let was = observed.switch.keys.insert(key.clone(), value.clone());
            observed.switch.owned.entry(key.clone()).or_insert(was);
        }
        Item::Key { key, .. } => match observed.switch.owned.remove(key).flatten() {
            Some(was) => drop(observed.switch.keys.insert(key.clone(), was)),
            None => drop(observed.switch.keys.remove(key)),
        },
        Item::Port(port) if made => {
            let link = LinkSeen {
                index: 7,
                up: false,
                mtu: port.mtu,
                mac: port.mac.clone(),
            };
            observed.links.insert(LINK.to_owned(), link);
            observed.switch.port = Some(PortSeen {
                uuid: uuid(3),
                interface: Some(uuid(4)),
                bridge: Some((port.bridge.clone(), uuid(2))),
                kind: "internal".to_owned(),
                iface_id: Some(port.iface_id.clone()),
                mac: Some(port.mac.clone()),
                mtu_request: Some(port.mtu),
                mark: Some(crate::MADE.to_owned()),
                error: None,
            });
        }
        Item::Port(_) => {
            observed.switch.port = None;
            observed.links.remove(LINK);
        }
        Item::LinkUp => {
            if let Some(link) = observed.links.get_mut(LINK) {
                link.up = made;
            }
        }
        Item::Address(net) => {
            observed.addresses.retain(|seen| seen.address != *net);
            if made {
                observed.addresses.push(AddressSeen {
                    link: LINK.to_owned(),
                    address: *net,
                    ours: true,
                    universe: true,
                    global: true,
                });
            }
        }
        Item::Neighbour { ip, mac } => {
            observed.neighbours.retain(|seen| seen.ip != *ip);
            if made {
                observed.neighbours.push(NeighbourSeen {
                    ip: *ip,
                    mac: Some(mac.clone()),
                    permanent: true,
                    ours: true,
                });
            }
        }
        Item::Route { destination, via } => {
            observed
                .routes
                .retain(|seen| seen.destination != *destination);
            if made {
                observed.routes.push(RouteSeen {
                    destination: *destination,
                    via: Some(*via),
                    link: Some(LINK.to_owned()),
                    ours: true,
                    protocol: crate::PROTOCOL,
                    table: 254,
                    metric: 0,
                });
            }
        }
        Item::Sysctl { path, value } => {
            observed.sysctls.insert(path.clone(), value.clone());
        }
        Item::Services => {}
        Item::Table(table) => {
            observed.table = made.then(|| TableSeen {
                chains: table.chains.iter().map(|(name, _)| name.clone()).collect(),
                rules: table.marks(),
            });
        }
    }
}

/// Takes all steps that there are, and those that follow from them.
fn converge(plan: &Plan, observed: &mut Observed) -> Vec<Step> {
    let mut done = Vec::new();
    for _ in 0..5 {
        for item in &plan.items {
            if let Item::Sysctl { path, .. } = item
                && (!path.contains(LINK) || observed.links.contains_key(LINK))
            {
                observed
                    .sysctls
                    .entry(path.clone())
                    .or_insert_with(|| "0".to_owned());
            }
        }
        let steps = diff::steps(&diff::findings(plan, observed, &[], false));
        steps.iter().for_each(|step| take(observed, step));
        done.extend(steps);
    }
    done
}

#[test]
fn a_dual_stack_node_s_router_has_one_mac_and_the_host_the_second_address() {
    let plan = Plan::routed(
        &settings(&["10.244.1.0/24", "fd00:10:244:1::/64"]),
        &machine(),
    );
    let plan: Vec<String> = plan.unwrap().items.iter().map(Item::to_string).collect();
    for line in [
        "external_ids:ovn-encap-ip = 192.0.2.11",
        "external_ids:system-id = node-a",
        "port ovn-k8s-mp0 on br-int: iface-id k8s-node-a, MAC 0a:58:0a:f4:01:02, MTU 1442",
        "address 10.244.1.2/24 of ovn-k8s-mp0",
        "address fd00:10:244:1::2/64 of ovn-k8s-mp0",
        "neighbour fd00:10:244:1::1 of ovn-k8s-mp0 at 0a:58:0a:f4:01:01, permanent",
        "route 10.244.0.0/16 via 10.244.1.1 dev ovn-k8s-mp0",
        "sysctl net.ipv6.conf.all.forwarding = 1",
    ] {
        assert!(plan.iter().any(|it| it == line), "{line}\n{plan:#?}");
    }
}

#[test]
fn routes_of_others_with_our_protocol_number_are_not_ours_to_remove() {
    let mut observed = machine();
    for (link, table) in [("eth0", 254), (LINK, 100), (LINK, 254)] {
        observed.routes.push(RouteSeen {
            destination: "198.51.100.0/24".parse().unwrap(),
            via: Some("192.0.2.1".parse().unwrap()),
            link: Some(link.to_owned()),
            ours: true,
            protocol: crate::PROTOCOL,
            table,
            metric: 0,
        });
    }
    let steps = diff::steps(&diff::findings(&Plan::default(), &observed, &[], false));
    assert_eq!(steps.len(), 1, "{steps:?}");
}

#[test]
fn what_is_not_known_is_asked_for_by_its_flag() {
    let mut without = settings(&["10.244.1.0/24"]);
    without.ovn_remote = None;
    let said = Plan::routed(&without, &machine()).unwrap_err();
    assert!(said.contains("--ovn-remote"), "{said}");
    let mut observed = machine();
    observed.default_link = None;
    let said = Plan::routed(&settings(&["10.244.1.0/24"]), &observed).unwrap_err();
    assert!(said.contains("--interface"), "{said}");
    observed.default_link = Some("eth0".to_owned());
    observed.addresses.clear();
    let said = Plan::routed(&settings(&["10.244.1.0/24"]), &observed).unwrap_err();
    assert!(said.contains("--encap-ip"), "{said}");
}

#[test]
fn what_the_operator_tuned_stays() {
    let mut observed = machine();
    let probe = "ovn-remote-probe-interval".to_owned();
    observed
        .switch
        .keys
        .insert(probe.clone(), "5000".to_owned());
    let plan = Plan::routed(&settings(&["10.244.1.0/24"]), &observed).unwrap();
    converge(&plan, &mut observed);
    assert_eq!(observed.switch.keys[&probe], "5000");
    assert!(!observed.switch.owned.contains_key(&probe));
}

proptest! {
    /// Whatever part of the plan is there already, one way leads to the whole, nothing is to do
    /// there, and the empty plan leads back to the machine that had nothing of ours.
    #[test]
    fn any_part_of_it_becomes_the_whole_and_the_whole_becomes_nothing(
        subnets in prop::sample::select(vec![
            vec!["10.244.1.0/24"], vec!["fd00::/64"], vec!["10.244.1.0/24", "fd00::/64"],
        ]),
        force_forwarding: bool,
        hostname: bool,
        kept in prop::collection::vec(any::<bool>(), 40),
    ) {
        let mut observed = machine();
        observed.force_forwarding = force_forwarding;
        if hostname {
            observed.switch.keys.insert("hostname".to_owned(), "other".to_owned());
        }
        let bare = observed.clone();
        let plan = Plan::routed(&settings(&subnets), &observed).unwrap();
        let steps = diff::steps(&diff::findings(&plan, &observed, &[], false));
        for (step, keep) in steps.iter().zip(kept) {
            if keep {
                take(&mut observed, step);
            }
        }
        converge(&plan, &mut observed);
        let findings = diff::findings(&plan, &observed, &[], false);
        for finding in &findings {
            prop_assert!(matches!(finding.state, State::Well { .. }), "{finding:?}");
        }
        prop_assert_eq!(converge(&plan, &mut observed), []);

        converge(&Plan::default(), &mut observed);
        // Sysctls go by the journal, which this machine has none of.
        observed.sysctls.clear();
        prop_assert_eq!(format!("{:?}", observed), format!("{:?}", bare));
    }
}
