mod conflicts;
mod machine;

use super::*;
use crate::TUNNEL;
use crate::actual::UNITS;
use crate::diff::{self, Step};
use crate::firewalld::ObservedFirewalld;
use crate::items::{ObservedRoute, Own, State, Undo};
use machine::{machine, peer, plain, settings};

#[test]
fn tuning_mappings_tunnels_and_firewalld_are_items() {
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
        buckets: Some(16384),
    };
    let mut actual = machine();
    let start = "ExecStart=/usr/share/openvswitch/scripts/ovs-ctl start $OVS_CTL_OPTS\n";
    actual.units = UNITS.map(|unit| (unit.to_owned(), start.to_owned())).into();
    actual.firewalld = Some(ObservedFirewalld {
        uplink_zone: Some("public".to_owned()),
        ..ObservedFirewalld::default()
    });
    let plan = Plan::of(&settings, &actual, false).unwrap();
    let items: Vec<String> = plan.items.iter().map(Item::to_string).collect();
    for line in [
        "external_ids:ovn-encap-ip = 192.0.2.11,192.0.2.12",
        "external_ids:ovn-bridge-mappings:physnet1 = br-data",
        "external_ids:ovn-monitor-all = false",
        "tunnels' UDP port of chassis node-a = 8080",
        "other_config:n-handler-threads = 1",
        "sysctl net.netfilter.nf_conntrack_buckets = 16384",
        "file /etc/systemd/system/ovs-vswitchd.service.d/90-podwire.conf",
        "file /etc/systemd/system/ovsdb-server.service.d/90-podwire.conf",
        "firewalld: link ovn-k8s-mp0 in zone trusted",
        "firewalld: 10.244.0.0/16 in zone trusted for good",
        "firewalld: UDP port 8080 in zone public",
    ] {
        assert!(items.iter().any(|it| it == line), "{line}\n{items:#?}");
    }
    let drop_in = plan.items.iter().find_map(|item| match item {
        Item::File(it) if it.path == drop_in(UNITS[0]) => Some(&it.text),
        _ => None,
    });
    let text = drop_in.unwrap();
    assert!(text.contains("CPUAffinity=0\nExecStart=\n"), "{text}");
    assert!(
        text.ends_with("start $OVS_CTL_OPTS --no-mlockall\n"),
        "{text}"
    );
}

#[test]
fn what_the_kernel_wrote_with_the_one_switch_for_ipv6_stays_as_long_as_that() {
    let link = |name: &str| format!("net/ipv6/conf/{name}/forwarding");
    let undo = |name: &str, was: &str| Undo::Sysctl {
        path: link(name),
        was: was.to_owned(),
        set: "1".to_owned(),
        all: None,
    };
    // The host forwarded between links of its own, one of which is a router's.
    let journal = [undo("all", "0"), undo("eth0", "0"), undo("eth1", "1")];
    let plan = Plan::routed(&settings(&["fd00:10:244:1::/64"]), &machine()).unwrap();
    let mut actual = machine();
    for name in ["all", "eth0", "eth1"] {
        actual.sysctls.insert(link(name), "1".to_owned());
    }
    let of_forwarding = |steps: Vec<Step>| -> Vec<(String, String)> {
        let sysctls = steps.into_iter().filter_map(|step| match step {
            Step::Remove(Item::Sysctl(it)) => Some((it.path, it.value)),
            _ => None,
        });
        sysctls.collect()
    };
    let steps = diff::steps(&diff::findings(&plan, &actual, &journal, false));
    assert_eq!(of_forwarding(steps), []);
    let nothing = Plan::default();
    let steps = diff::steps(&diff::findings(&nothing, &actual, &journal, false));
    let back = |name: &str, value: &str| (link(name), value.to_owned());
    assert_eq!(of_forwarding(steps), [back("eth0", "0"), back("all", "0")]);
    // The kernel has switched every link off with that.
    for name in ["all", "eth0", "eth1"] {
        actual.sysctls.insert(link(name), "0".to_owned());
    }
    let steps = diff::steps(&diff::findings(&nothing, &actual, &journal, false));
    assert_eq!(of_forwarding(steps), [back("eth1", "1")]);
}

/// The texts of a plan's sysctls and rules.
fn texts(plan: &Plan) -> (Vec<String>, Vec<String>) {
    let rules = plan.items.iter().find_map(|item| match item {
        Item::Table(table) => Some(&table.rules),
        _ => None,
    });
    let rules = rules.unwrap().iter();
    let rules = rules.map(|(chain, text)| format!("{chain}: {text}"));
    let sysctls = plan.items.iter().filter_map(|item| match item {
        Item::Sysctl(it) => Some(format!("{} = {}", it.path, it.value)),
        _ => None,
    });
    (sysctls.collect(), rules.collect())
}

#[test]
fn the_host_learns_no_route_from_a_link_to_pods() {
    for (has_ipv6, subnet) in [
        (true, "10.244.1.0/24"),
        (true, "fd00::/64"),
        (false, "10.0.0.0/8"),
    ] {
        let mut actual = machine();
        actual.has_ipv6 = has_ipv6;
        let mut settings = settings(&[subnet]);
        settings.cluster_subnets.clear();
        let (sysctls, _) = texts(&Plan::of(&settings, &actual, false).unwrap());
        for (path, wanted) in [
            ("net/ipv4/conf/ovn-k8s-mp0/accept_redirects", true),
            ("net/ipv6/conf/ovn-k8s-mp0/accept_ra", has_ipv6),
            ("net/ipv6/conf/ovn-k8s-mp0/accept_redirects", has_ipv6),
            // The machine's own.
            ("net/ipv6/conf/eth0/accept_redirects", false),
        ] {
            assert_eq!(
                sysctls.contains(&format!("{path} = 0")),
                wanted,
                "{path}: {sysctls:#?}"
            );
        }
    }
    let far = peer("c", &["10.244.3.0/24"], &["198.51.100.3"]);
    let mut settings = plain(vec![far]);
    let accepts = |link: &str| format!("net/ipv6/conf/{link}/accept_ra = 0");
    let (sysctls, _) = texts(&Plan::of(&settings, &machine(), false).unwrap());
    for link in ["br-int", TUNNEL] {
        assert!(sysctls.contains(&accepts(link)), "{sysctls:#?}");
    }
    // Whose own way out the pods' bridge is, learns it there.
    let mut actual = machine();
    actual
        .links
        .insert("br-int".to_owned(), actual.links["eth0"].clone());
    settings.interface = Some("br-int".to_owned());
    let (sysctls, _) = texts(&Plan::of(&settings, &actual, false).unwrap());
    assert!(!sysctls.contains(&accepts("br-int")), "{sysctls:#?}");
}

#[test]
fn pods_are_kept_off_the_tunnels_and_databases_of_nodes_wherever_they_listen() {
    let mut settings = settings(&["10.244.1.0/24"]);
    settings.encap_port = Some(8080);
    settings.ovn_remote = Some("tcp:192.0.2.9:16642".to_owned());
    let mut actual = machine();
    let types = ("ovn-encap-type".to_owned(), "geneve,vxlan".to_owned());
    actual.switch.keys.extend([types]);
    let (_, rules) = texts(&Plan::of(&settings, &actual, false).unwrap());
    let tunnels = "udp . 4789, udp . 6081, udp . 8080";
    let databases = "tcp . 6640, tcp . 6641, tcp . 6642, tcp . 6643, tcp . 6644, tcp . 16642";
    let drop = |ports: &str| format!("meta l4proto . th dport {{ {ports} }} counter drop");
    let from_pods = format!(
        "iifname \"ovn-k8s-mp0\" {}",
        drop(&format!("{databases}, {tunnels}"))
    );
    let by_services = format!("ct status dnat {}", drop(tunnels));
    let forged = "prerouting: iifname != \"ovn-k8s-mp0\" ip saddr { 10.244.0.0/16 } fib saddr \
                  oifname \"ovn-k8s-mp0\" counter drop";
    assert!(rules.contains(&forged.to_owned()), "{rules:#?}");
    assert_eq!(
        rules[6..],
        [
            "forward: oifname \"ovn-k8s-mp0\" return".to_owned(),
            format!("forward: {from_pods}"),
            format!("forward: {by_services}"),
            format!("input: {from_pods}"),
            format!("input: {by_services}"),
        ]
    );
    // Without a tunnel there is no end of one.
    let near = peer("b", &["10.244.2.0/24"], &["192.0.2.12"]);
    let (_, rules) = texts(&Plan::of(&plain(vec![near]), &machine(), false).unwrap());
    assert!(!rules.iter().any(|it| it.contains("6081")), "{rules:#?}");
    let nets = "10.244.1.0/24, 10.244.2.0/24";
    for rule in [
        format!("forward: ip daddr {{ {nets} }} return"),
        format!("forward: iifname \"br-int\" {}", drop("tcp . 6640")),
        format!(
            "input: iifname != \"lo\" ip saddr {{ {nets} }} {}",
            drop("tcp . 6640")
        ),
    ] {
        assert!(rules.contains(&rule), "{rule}\n{rules:#?}");
    }
}

#[test]
fn what_somebody_else_has_decided_stays() {
    let settings = settings(&["10.244.1.0/24"]);
    let mut actual = machine();
    actual.firewalld = Some(ObservedFirewalld {
        uplink_zone: Some("public".to_owned()),
        ..ObservedFirewalld::default()
    });
    let plan = Plan::of(&settings, &actual, false).unwrap();
    let rule = plan.items.iter().find_map(|item| match item {
        Item::Firewalld(rule) => Some(rule.clone()),
        _ => None,
    });
    let rule = rule.unwrap();
    let seen = actual.firewalld.as_mut().unwrap();
    seen.rules.insert(rule.clone(), "internal".to_owned());
    let findings = diff::findings(&plan, &actual, &[], false);
    let state = findings
        .into_iter()
        .find(|it| it.item == Item::Firewalld(rule.clone()));
    assert_eq!(state.unwrap().state, State::Well { ours: false });
    // A file of that name that is not ours is named before anything is changed.
    let mut tuned = settings;
    tuned.tuning.cpus = Some("0".to_owned());
    actual.units = UNITS.map(|unit| (unit.to_owned(), String::new())).into();
    actual
        .files
        .insert(drop_in(UNITS[0]), "[Service]\n".to_owned());
    let plan = Plan::of(&tuned, &actual, false).unwrap();
    let findings = diff::findings(&plan, &actual, &[], false);
    let files: Vec<&State> = findings
        .iter()
        .filter(|finding| matches!(finding.item, Item::File(_)))
        .map(|finding| &finding.state)
        .collect();
    assert!(
        matches!(files[..], [State::Foreign(_), State::Missing]),
        "{files:?}"
    );
    tuned.tuning.no_mlockall = true;
    assert!(Plan::of(&tuned, &actual, false).is_err());
    actual.units.clear();
    tuned.tuning.no_mlockall = false;
    assert!(Plan::of(&tuned, &actual, false).is_err());
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
fn tunnels_stay_for_a_moment_without_an_address_and_then_in_their_family() {
    let settings = settings(&["10.244.1.0/24"]);
    let mut actual = machine();
    let key = "ovn-encap-ip".to_owned();
    let before = "192.0.2.11".to_owned();
    actual.switch.keys.insert(key.clone(), before.clone());
    actual.switch.owned.insert(key, Own::Was(None));
    let mut other = actual.addresses.remove(0);
    other.address = "2001:db8::11/64".parse().unwrap();
    actual.addresses.push(other.clone());
    let ends = |actual: &Actual| {
        let plan = Plan::routed(&settings, actual).unwrap();
        let mut lines = plan.items.iter().map(Item::to_string);
        lines.find(|line| line.starts_with("external_ids:ovn-encap-ip"))
    };
    assert_eq!(
        ends(&actual).unwrap(),
        format!("external_ids:ovn-encap-ip = {before}")
    );
    other.address = "192.0.2.12/24".parse().unwrap();
    actual.addresses.push(other);
    assert_eq!(
        ends(&actual).unwrap(),
        "external_ids:ovn-encap-ip = 192.0.2.12"
    );
}

#[test]
fn routes_of_others_with_our_protocol_number_are_not_ours_to_remove() {
    let mut actual = machine();
    for (link, table) in [("eth0", 254), (LINK, 100), (LINK, 254)] {
        actual.routes.push(ObservedRoute {
            destination: "198.51.100.0/24".parse().unwrap(),
            via: Some("192.0.2.1".parse().unwrap()),
            link: Some(link.to_owned()),
            source: None,
            ours: true,
            protocol: crate::PROTOCOL,
            table,
            metric: 0,
            message: Default::default(),
        });
    }
    let steps = diff::steps(&diff::findings(&Plan::default(), &actual, &[], false));
    assert_eq!(steps.len(), 1, "{steps:?}");
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
        let plan = Plan::of(settings, &machine(), false).unwrap();
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
fn what_is_not_known_is_asked_for_by_its_flag() {
    let mut without = settings(&["10.244.1.0/24"]);
    without.ovn_remote = None;
    let said = Plan::routed(&without, &machine()).unwrap_err();
    assert!(said.contains("--ovn-remote"), "{said}");
    let mut actual = machine();
    actual.default_link = None;
    let said = Plan::routed(&settings(&["10.244.1.0/24"]), &actual).unwrap_err();
    assert!(said.contains("--interface"), "{said}");
    actual.default_link = Some("eth0".to_owned());
    actual.addresses.clear();
    let said = Plan::routed(&settings(&["10.244.1.0/24"]), &actual).unwrap_err();
    assert!(said.contains("--encap-ip"), "{said}");
}

#[test]
fn the_door_is_made_where_it_can_work_and_leads_once_ovn_has_it() {
    let mut settings = settings(&["10.244.1.0/24"]);
    let mut actual = machine();
    let has = |settings: &Settings, actual: &Actual, text: &str| {
        let plan = Plan::of(settings, actual, false).unwrap();
        plan.items
            .iter()
            .any(|item| item.to_string().contains(text))
            || plan.items.iter().any(|item| match item {
                Item::Table(table) => table.script().contains(text),
                _ => false,
            })
    };
    actual.has_egress = true;
    // Nobody tells of other nodes' doors.
    assert!(!has(&settings, &actual, "podwire-door"));
    let mac: podwire_cluster::address::Mac = "0a:58:0a:f4:02:02".parse().unwrap();
    settings.doors = Some(vec![crate::settings::Door {
        mac,
        subnets: vec!["10.244.2.0/24".parse().unwrap()],
        addresses: ["192.0.2.12".parse().unwrap()].into(),
    }]);
    actual.has_egress = false;
    assert!(!has(&settings, &actual, "podwire-door"));
    actual.has_egress = true;
    assert!(has(
        &settings,
        &actual,
        "port podwire-door on br-int: iface-id podwire-door-node-a"
    ));
    let leads = "10.244.2.0/24 : 0a:58:0a:f4:02:02";
    assert!(!has(&settings, &actual, leads));
    let port = crate::items::ObservedPort::installed();
    actual.switch.ports.insert(crate::DOOR, port);
    assert!(has(&settings, &actual, leads));
    assert!(has(&settings, &actual, "ip saddr != { 192.0.2.12 }"));
    // firewalld's check of IPv6 packets' way back is for both families' doors.
    actual.firewalld = Some(ObservedFirewalld::default());
    settings.node_subnets.push("fd00::/64".parse().unwrap());
    assert!(has(&settings, &actual, leads));
}
