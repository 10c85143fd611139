use proptest::prelude::*;

use super::*;
use crate::TUNNEL;
use crate::diff::{self, State, Step};
use crate::firewalld::FirewalldSeen;
use crate::journal::Undo;
use crate::observe::{
    AddressSeen, BridgeSeen, EndSeen, LinkSeen, NeighbourSeen, PortSeen, RouteSeen, SslSeen,
    SwitchSeen, TableSeen, TunnelSeen,
};
use crate::settings::Peer;

fn settings(subnets: &[&str]) -> Settings {
    Settings {
        mode: Mode::Ovn,
        node_name: "node-a".to_owned(),
        subnets_by_flag: true,
        peers: Vec::new(),
        always_tunnel: false,
        node_subnets: subnets.iter().map(|net| net.parse().unwrap()).collect(),
        cluster_subnets: vec!["10.244.0.0/16".parse().unwrap()],
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        interface: None,
        mtu: None,
        encap_ips: Vec::new(),
        encap_port: None,
        bridge_mappings: Default::default(),
        ovn_options: Default::default(),
        tuning: Default::default(),
        firewalld: crate::settings::Firewalld::Runtime,
        tls: Some(podwire_ovs::client::TlsKeys {
            private_key: "/k".into(),
            certificate: "/c".into(),
            ca_certificate: "/a".into(),
        }),
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
            bridges: [("br-int".to_owned(), bridge(2, false))].into(),
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

fn bridge(number: u8, ours: bool) -> BridgeSeen {
    BridgeSeen {
        uuid: uuid(number),
        datapath: "netdev".to_owned(),
        mac: None,
        local: None,
        mtu_request: None,
        ours,
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
        Item::Ssl(keys) => {
            observed.switch.ssl = made.then(|| SslSeen {
                uuid: uuid(9),
                keys: keys.clone(),
                ours: true,
            });
        }
        Item::Bridge(bridge) if made => {
            let link = LinkSeen {
                index: 8,
                up: false,
                mtu: bridge.mtu,
                mac: bridge.mac.clone(),
            };
            observed.links.insert(TUNNEL.to_owned(), link);
            let seen = BridgeSeen {
                mac: Some(bridge.mac.clone()),
                mtu_request: Some(bridge.mtu),
                ..self::bridge(5, true)
            };
            observed.switch.bridges.insert(bridge.name.clone(), seen);
        }
        Item::Bridge(bridge) => {
            observed.switch.bridges.remove(&bridge.name);
            observed.switch.tunnels.clear();
            observed.links.remove(TUNNEL);
        }
        Item::Tunnel(tunnel) if made => {
            let seen = TunnelSeen {
                port: uuid(6),
                interface: uuid(7),
                remote: Some(tunnel.remote.to_string()),
                node: tunnel.node.clone(),
                protected: true,
            };
            observed.switch.tunnels.insert(tunnel.name.clone(), seen);
        }
        Item::Tunnel(tunnel) => drop(observed.switch.tunnels.remove(&tunnel.name)),
        Item::File { path, text } if made => {
            observed.files.insert(path.clone(), text.clone());
        }
        Item::File { path, .. } => drop(observed.files.remove(path)),
        Item::LinkUp(name) => {
            if let Some(link) = observed.links.get_mut(name) {
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
        Item::Neighbour { link, ip, mac } => {
            observed.neighbours.retain(|seen| seen.ip != *ip);
            if made {
                observed.neighbours.push(NeighbourSeen {
                    link: link.clone(),
                    ip: *ip,
                    mac: Some(mac.clone()),
                    permanent: true,
                    ours: true,
                });
            }
        }
        Item::Route(route) => {
            observed
                .routes
                .retain(|seen| seen.destination != route.destination);
            if made {
                observed.routes.push(RouteSeen {
                    destination: route.destination,
                    via: Some(route.via),
                    link: Some(route.link.clone()),
                    source: route.source,
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
        Item::TunnelPort { chassis, port } => {
            let ends = observed.switch.ends.iter_mut().flatten();
            for end in ends.filter(|end| end.chassis == *chassis) {
                end.port = Some(port.to_string());
            }
        }
        Item::Firewalld(rule) => {
            let seen = observed.firewalld.as_mut().unwrap();
            if made {
                seen.rules.insert(rule.clone(), rule.zone.clone());
                if rule.permanent {
                    observed.switch.owned.insert(rule.mark(), None);
                }
            } else {
                seen.rules.remove(rule);
                observed.switch.owned.remove(&rule.mark());
            }
        }
        Item::Services | Item::Former(_) => {}
        Item::Table(table) => {
            observed.table = made.then(|| TableSeen {
                chains: table.chains.iter().map(|(name, _)| name.clone()).collect(),
                rules: table.marks(),
            });
        }
    }
}

/// Takes all steps that there are, and those that follow from them.
fn converge(plan: &Plan, observed: &mut Observed, journal: &[Undo]) -> Vec<Step> {
    let mut done = Vec::new();
    for _ in 0..5 {
        for item in &plan.items {
            if let Item::Sysctl { path, .. } = item
                && path
                    .split('/')
                    .nth(3)
                    .is_some_and(|link| link == "all" || observed.links.contains_key(link))
            {
                observed
                    .sysctls
                    .entry(path.clone())
                    .or_insert_with(|| "0".to_owned());
            }
        }
        let steps = diff::steps(&diff::findings(plan, observed, journal, false));
        steps.iter().for_each(|step| take(observed, step));
        done.extend(steps);
    }
    done
}

#[test]
fn tuning_mappings_tunnels_and_firewalld_converge_and_leave_nothing_but_others() {
    let mut settings = settings(&["10.244.1.0/24"]);
    settings.encap_ips = vec!["192.0.2.11".parse().unwrap(), "192.0.2.12".parse().unwrap()];
    settings.encap_port = Some(8080);
    settings.bridge_mappings = [("physnet1".to_owned(), "br-data".to_owned())].into();
    settings.ovn_options = [("ovn-monitor-all".to_owned(), "false".to_owned())].into();
    settings.firewalld = crate::settings::Firewalld::Permanent;
    settings.tuning = crate::settings::Tuning {
        cpus: Some("0".to_owned()),
        no_mlockall: true,
        handlers: Some(1),
        revalidators: Some(1),
    };
    let mut observed = machine();
    let start = "ExecStart=/usr/share/openvswitch/scripts/ovs-ctl start $OVS_CTL_OPTS\n";
    observed.units = UNITS.map(|unit| (unit.to_owned(), start.to_owned())).into();
    observed.switch.ends = Some(vec![EndSeen {
        uuid: uuid(12),
        chassis: "node-a".to_owned(),
        port: None,
    }]);
    observed.firewalld = Some(FirewalldSeen {
        uplink_zone: Some("public".to_owned()),
        ..FirewalldSeen::default()
    });
    let public = "ovn-bridge-mappings:public".to_owned();
    observed.switch.keys.insert(public, "br-public".to_owned());
    let before = observed.clone();
    let plan = Plan::of(&settings, &observed).unwrap();
    let items: Vec<String> = plan.items.iter().map(Item::to_string).collect();
    for line in [
        "external_ids:ovn-encap-ip = 192.0.2.11,192.0.2.12",
        "external_ids:ovn-bridge-mappings:physnet1 = br-data",
        "external_ids:ovn-monitor-all = false",
        "tunnels' UDP port of chassis node-a = 8080",
        "other_config:n-handler-threads = 1",
        "file /etc/systemd/system/ovs-vswitchd.service.d/90-podwire.conf",
        "file /etc/systemd/system/ovsdb-server.service.d/90-podwire.conf",
        "firewalld: link ovn-k8s-mp0 in zone trusted",
        "firewalld: 10.244.0.0/16 in zone trusted for good",
        "firewalld: UDP port 8080 in zone public",
    ] {
        assert!(items.iter().any(|it| it == line), "{line}\n{items:#?}");
    }
    let made = converge(&plan, &mut observed, &[]);
    let path = drop_in(UNITS[0]);
    let text = &observed.files[&path];
    assert!(text.contains("CPUAffinity=0\nExecStart=\n"), "{text}");
    assert!(
        text.ends_with("start $OVS_CTL_OPTS --no-mlockall\n"),
        "{text}"
    );
    assert_eq!(converge(&plan, &mut observed, &[]), []);
    // A reboot has taken the journal; of the runtime's rules firewalld has kept none.
    let journal: Vec<Undo> = made
        .iter()
        .filter_map(|step| match step {
            Step::Make(item @ Item::Firewalld(rule)) if !rule.permanent => {
                Some(Undo::Made(item.clone()))
            }
            _ => None,
        })
        .collect();
    converge(&Plan::default(), &mut observed, &journal);
    assert_eq!(observed.switch.keys, before.switch.keys);
    assert_eq!(observed.switch.owned, before.switch.owned);
    assert_eq!(observed.firewalld, before.firewalld);
    assert_eq!(observed.files, before.files);
}

#[test]
fn what_the_kernel_wrote_with_the_one_switch_for_ipv6_stays_as_long_as_that() {
    let link = |name: &str| format!("net/ipv6/conf/{name}/forwarding");
    let undo = |name: &str, was: &str| Undo::Sysctl {
        path: link(name),
        was: was.to_owned(),
        set: "1".to_owned(),
    };
    // The host forwarded between links of its own, one of which is a router's.
    let journal = [undo("all", "0"), undo("eth0", "0"), undo("eth1", "1")];
    let plan = Plan::routed(&settings(&["fd00:10:244:1::/64"]), &machine()).unwrap();
    let mut observed = machine();
    for name in ["all", "eth0", "eth1"] {
        observed.sysctls.insert(link(name), "1".to_owned());
    }
    let of_forwarding = |steps: Vec<Step>| -> Vec<(String, String)> {
        let sysctls = steps.into_iter().filter_map(|step| match step {
            Step::Remove(Item::Sysctl { path, value }) => Some((path, value)),
            _ => None,
        });
        sysctls.collect()
    };
    let steps = diff::steps(&diff::findings(&plan, &observed, &journal, false));
    assert_eq!(of_forwarding(steps), []);
    let nothing = Plan::default();
    let steps = diff::steps(&diff::findings(&nothing, &observed, &journal, false));
    let back = |name: &str, value: &str| (link(name), value.to_owned());
    assert_eq!(of_forwarding(steps), [back("eth0", "0"), back("all", "0")]);
    // The kernel has switched every link off with that.
    for name in ["all", "eth0", "eth1"] {
        observed.sysctls.insert(link(name), "0".to_owned());
    }
    let steps = diff::steps(&diff::findings(&nothing, &observed, &journal, false));
    assert_eq!(of_forwarding(steps), [back("eth1", "1")]);
}

#[test]
fn what_somebody_else_has_decided_stays() {
    let settings = settings(&["10.244.1.0/24"]);
    let mut observed = machine();
    observed.firewalld = Some(FirewalldSeen {
        uplink_zone: Some("public".to_owned()),
        ..FirewalldSeen::default()
    });
    let plan = Plan::of(&settings, &observed).unwrap();
    let rule = plan.items.iter().find_map(|item| match item {
        Item::Firewalld(rule) => Some(rule.clone()),
        _ => None,
    });
    let rule = rule.unwrap();
    let seen = observed.firewalld.as_mut().unwrap();
    seen.rules.insert(rule.clone(), "internal".to_owned());
    let findings = diff::findings(&plan, &observed, &[], false);
    let state = findings
        .into_iter()
        .find(|it| it.item == Item::Firewalld(rule.clone()));
    assert_eq!(state.unwrap().state, State::Well { ours: false });
    // A file of that name that is not ours is named before anything is changed.
    let mut tuned = settings;
    tuned.tuning.cpus = Some("0".to_owned());
    observed.units = UNITS.map(|unit| (unit.to_owned(), String::new())).into();
    observed
        .files
        .insert(drop_in(UNITS[0]), "[Service]\n".to_owned());
    let plan = Plan::of(&tuned, &observed).unwrap();
    let findings = diff::findings(&plan, &observed, &[], false);
    let files: Vec<&State> = findings
        .iter()
        .filter(|finding| matches!(finding.item, Item::File { .. }))
        .map(|finding| &finding.state)
        .collect();
    assert!(
        matches!(files[..], [State::Foreign(_), State::Missing]),
        "{files:?}"
    );
    tuned.tuning.no_mlockall = true;
    assert!(Plan::of(&tuned, &observed).is_err());
    observed.units.clear();
    tuned.tuning.no_mlockall = false;
    assert!(Plan::of(&tuned, &observed).is_err());
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
            source: None,
            ours: true,
            protocol: crate::PROTOCOL,
            table,
            metric: 0,
        });
    }
    let steps = diff::steps(&diff::findings(&Plan::default(), &observed, &[], false));
    assert_eq!(steps.len(), 1, "{steps:?}");
}

/// Another node of plain mode.
fn peer(name: &str, subnets: &[&str], addresses: &[&str]) -> Peer {
    Peer {
        name: name.to_owned(),
        subnets: subnets.iter().map(|net| net.parse().unwrap()).collect(),
        addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
    }
}

fn plain(peers: Vec<Peer>) -> Settings {
    Settings {
        mode: Mode::Plain,
        peers,
        cluster_subnets: Vec::new(),
        service_cidrs: Vec::new(),
        ovn_remote: None,
        tls: None,
        ..settings(&["10.244.1.0/24", "fd00:10:244:1::/64"])
    }
}

#[test]
fn a_node_on_the_same_network_is_reached_by_a_route_and_others_by_tunnels() {
    let near = peer(
        "b",
        &["10.244.2.0/24", "fd00:10:244:2::/64"],
        &["192.0.2.12"],
    );
    let far = peer("c", &["10.244.3.0/24"], &["198.51.100.3"]);
    let lines = |settings: &Settings| -> Vec<String> {
        let plan = Plan::of(settings, &machine()).unwrap();
        plan.items.iter().map(Item::to_string).collect()
    };
    let mut settings = plain(vec![near, far]);
    let plan = lines(&settings);
    for line in [
        "file /run/podwire/node/agent.toml",
        "bridge podwire-tun: MAC 0a:58:0a:f4:01:01, MTU 1442",
        "route 10.244.2.0/24 via 192.0.2.12 dev eth0",
        // It has no IPv6 address on our network.
        "route fd00:10:244:2::/64 via fd00:10:244:2::1 dev podwire-tun",
        "neighbour fd00:10:244:2::1 of podwire-tun at 0a:58:0a:f4:02:01, permanent",
        "route 10.244.3.0/24 via 10.244.3.1 dev podwire-tun",
        "sysctl net.ipv4.conf.podwire-tun.forwarding = 1",
        "sysctl net.ipv4.conf.br-int.forwarding = 1",
    ] {
        assert!(plan.iter().any(|it| it == line), "{line}\n{plan:#?}");
    }
    settings.always_tunnel = true;
    let plan = lines(&settings);
    let line = "route 10.244.2.0/24 via 10.244.2.1 dev podwire-tun";
    assert!(plan.iter().any(|it| it == line), "{plan:#?}");
    settings.peers.clear();
    let plan = lines(&settings);
    assert!(
        !plan.iter().any(|it| it.contains("podwire-tun")),
        "{plan:#?}"
    );
}

#[test]
fn subnets_that_overlap_are_refused() {
    for (peers, said) in [
        (
            vec![peer("b", &["10.244.0.0/16"], &[])],
            "subnet 10.244.1.0/24 of node node-a overlaps 10.244.0.0/16 of node b",
        ),
        (
            vec![
                peer("b", &["10.1.0.0/24"], &[]),
                peer("c", &["10.1.0.0/24"], &[]),
            ],
            "overlaps 10.1.0.0/24 of node",
        ),
        (
            vec![peer("b", &["192.0.0.0/16"], &[])],
            "subnet 192.0.0.0/16 of node b overlaps 192.0.2.11/24 of link eth0",
        ),
    ] {
        let refused = Plan::of(&plain(peers), &machine()).unwrap_err();
        assert!(refused.contains(said), "{refused}");
    }
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
    converge(&plan, &mut observed, &[]);
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
        is_plain: bool,
        kept in prop::collection::vec(any::<bool>(), 40),
    ) {
        let mut observed = machine();
        observed.force_forwarding = force_forwarding;
        if hostname {
            observed.switch.keys.insert("hostname".to_owned(), "other".to_owned());
        }
        let settings = match is_plain {
            true => plain(vec![
                peer("b", &["10.244.2.0/24"], &["192.0.2.12"]),
                peer("c", &["10.244.3.0/24", "fd00:3::/64"], &["198.51.100.3"]),
            ]),
            false => settings(&subnets),
        };
        if is_plain {
            // The agent's part.
            observed.links.insert("br-int".to_owned(), observed.links["eth0"].clone());
            for gateway in ["10.244.1.1/24", "fd00:10:244:1::1/64"] {
                observed.addresses.push(AddressSeen {
                    link: "br-int".to_owned(),
                    address: gateway.parse().unwrap(),
                    ..observed.addresses[0].clone()
                });
            }
        }
        let bare = observed.clone();
        let plan = Plan::of(&settings, &observed).unwrap();
        let steps = diff::steps(&diff::findings(&plan, &observed, &[], false));
        for (step, keep) in steps.iter().zip(kept) {
            if keep {
                take(&mut observed, step);
            }
        }
        converge(&plan, &mut observed, &[]);
        let findings = diff::findings(&plan, &observed, &[], false);
        for finding in &findings {
            prop_assert!(matches!(finding.state, State::Well { .. }), "{finding:?}");
        }
        prop_assert_eq!(converge(&plan, &mut observed, &[]), []);

        let made = plan.items.iter().filter(|item| !matches!(item, Item::Sysctl { .. }));
        let journal: Vec<Undo> = made.cloned().map(Undo::Made).collect();
        converge(&Plan::default(), &mut observed, &journal);
        // Sysctls go by the journal, which this machine has none of.
        observed.sysctls.clear();
        prop_assert_eq!(format!("{:?}", observed), format!("{:?}", bare));
    }
}
