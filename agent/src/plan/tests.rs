use super::*;
use crate::netns::Route;

const ID: &str = "3f2b9c0d1e4a5b6c7d8e9f00112233445566778899aabbccddeeff0011223344";

fn key(ifname: &str) -> AttachmentKey {
    AttachmentKey {
        network: "pods".into(),
        container_id: ID.into(),
        ifname: ifname.into(),
    }
}

fn pod() -> PodRef {
    PodRef {
        namespace: Some("default".into()),
        name: "web".into(),
        uid: Some("uid-1".into()),
    }
}

fn node() -> NodeFacts {
    NodeFacts {
        bridge: "br-int".into(),
        netdev_datapath: true,
        default_mtu: 1500,
    }
}

fn intent(addresses: &[&str], gateways: &[&str]) -> InterfaceSpec {
    InterfaceSpec {
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        gateways: gateways.iter().map(|text| text.parse().unwrap()).collect(),
        ..InterfaceSpec::default()
    }
}

fn route(dst: &str, gateway: Option<&str>) -> Route {
    Route::new(
        dst.parse().unwrap(),
        gateway.map(|text| text.parse().unwrap()),
    )
}

fn planned(interfaces: &[InterfaceSpec]) -> Result<Vec<PortPlan>, PlanError> {
    let (key, pod) = (key("eth0"), pod());
    plan(
        &Subject {
            key: &key,
            pod: Some(&pod),
            netns: "/run/netns/a",
        },
        interfaces,
        &node(),
    )
}

fn refusal(intent: InterfaceSpec) -> String {
    planned(&[intent]).unwrap_err().to_string()
}

#[test]
fn the_row_bears_what_ovn_operators_and_del_look_for() {
    let ports = planned(&[intent(&["10.1.2.3/24", "fd00::3/64"], &["10.1.2.1"])]).unwrap();
    let ids: Vec<(&str, &str)> = ports[0]
        .external_ids
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    assert_eq!(
        ids,
        [
            ("attached_mac", "0a:58:0a:01:02:03"),
            ("iface-id", "default_web"),
            ("iface-id-ver", "uid-1"),
            ("ip_addresses", "10.1.2.3/24,fd00::3/64"),
            ("pod-if-name", "eth0"),
            ("podwire.io/ifname", "eth0"),
            ("podwire.io/netns", "/run/netns/a"),
            ("podwire.io/network", "pods"),
            ("podwire.io/pod", "default/web"),
            ("sandbox", ID),
        ]
    );
}

#[test]
fn a_container_without_a_pod_is_known_by_its_id_and_a_later_interface_by_its_name_as_well() {
    let cases = [
        (Some(pod()), "eth0", "default_web".to_owned()),
        (Some(pod()), "net1", "default_web_net1".to_owned()),
        (
            Some(PodRef {
                namespace: None,
                ..pod()
            }),
            "eth0",
            "web".to_owned(),
        ),
        (None, "eth0", ID.to_owned()),
        (None, "net1", format!("{ID}_net1")),
    ];
    for (pod, ifname, expected) in cases {
        let key = key(ifname);
        let subject = Subject {
            key: &key,
            pod: pod.as_ref(),
            netns: "/n",
        };
        let ports = plan(&subject, &[InterfaceSpec::default()], &node()).unwrap();
        assert_eq!(ports[0].iface_id, expected);
        assert_eq!(ports[0].external_ids["iface-id"], expected);
    }
}

#[test]
fn a_port_of_a_network_attachment_definition_is_named_as_ovn_kubernetes_names_it() {
    for (nad, iface_id) in [
        ("blue/tenant-a", "blue.tenant.a_default_web"),
        ("blue/tenant-a/1", "blue.tenant.a.1_default_web"),
    ] {
        let (key, pod) = (key("net1"), pod());
        let subject = Subject {
            key: &key,
            pod: Some(&pod),
            netns: "/n",
        };
        let interface = InterfaceSpec {
            nad: Some(nad.to_owned()),
            ..InterfaceSpec::default()
        };
        let ports = plan(&subject, &[interface], &node()).unwrap();
        assert_eq!(ports[0].iface_id, iface_id);
        let ids = &ports[0].external_ids;
        assert_eq!(ids["iface-id"], iface_id);
        assert_eq!(ids["k8s.ovn.org/nad"], nad);
        assert_eq!(ids["k8s.ovn.org/network"], "pods");
    }
}

#[test]
fn the_ports_of_a_list_of_interfaces_are_named_as_the_lists_controllers_name_them() {
    let listed = |pod_ifname: Option<&str>, port_name| InterfaceSpec {
        pod_ifname: pod_ifname.map(str::to_owned),
        port_name,
        ..intent(&[], &[])
    };
    let names = |key: &AttachmentKey, interfaces: &[InterfaceSpec]| -> Vec<String> {
        let pod = pod();
        let subject = Subject {
            key,
            pod: Some(&pod),
            netns: "/run/netns/a",
        };
        let ports = plan(&subject, interfaces, &node()).unwrap();
        ports.into_iter().map(|port| port.iface_id).collect()
    };
    let (any, named) = (PortName::Pod, PortName::PodAndInterface);
    let list = [listed(None, any), listed(Some("net0"), named)];
    assert_eq!(
        names(&key("eth0"), &list),
        ["default_web", "default_web_net0"]
    );
    assert_eq!(
        names(&key("net1"), &list),
        ["default_web", "default_web_net0"]
    );
    let first = [listed(Some("eth0"), named)];
    assert_eq!(names(&key("eth0"), &first), ["default_web_eth0"]);
}

#[test]
fn limits_are_passed_on_as_they_are() {
    let wish = InterfaceSpec {
        ingress_rate: Some(2),
        egress_rate: Some(1),
        ..InterfaceSpec::default()
    };
    let bandwidth = planned(&[wish]).unwrap()[0].bandwidth;
    assert_eq!(
        (bandwidth.ingress_rate, bandwidth.egress_rate),
        (Some(2), Some(1))
    );
}

#[test]
fn gateways_become_default_routes_and_link_routes_come_before_those_that_need_them() {
    let mut wish = intent(&["10.1.2.3/24", "fd00::3/64"], &["10.1.2.1", "fd00::1"]);
    wish.routes = vec![
        route("10.9.0.7/16", Some("10.1.2.9")),
        route("10.8.0.0/16", None),
    ];
    let ports = planned(&[wish]).unwrap();
    let routes: Vec<(String, Option<String>, bool)> = ports[0]
        .link
        .routes
        .iter()
        .map(|route| {
            (
                route.dst.to_string(),
                route.gateway.map(|gw| gw.to_string()),
                route.onlink,
            )
        })
        .collect();
    assert_eq!(
        routes,
        [
            ("10.8.0.0/16".into(), None, false),
            ("0.0.0.0/0".into(), Some("10.1.2.1".into()), false),
            ("::/0".into(), Some("fd00::1".into()), false),
            ("10.9.0.0/16".into(), Some("10.1.2.9".into()), false),
        ]
    );
}

#[test]
fn a_next_hop_outside_every_subnet_is_taken_to_be_on_the_link_and_a_link_local_one_always_is() {
    let ports = planned(&[intent(
        &["10.1.2.3/32", "fd00::3/128"],
        &["169.254.1.1", "fe80::1"],
    )])
    .unwrap();
    let onlink: Vec<bool> = ports[0]
        .link
        .routes
        .iter()
        .map(|route| route.onlink)
        .collect();
    assert_eq!(onlink, [true, false]);
}

#[test]
fn tx_checksum_offload_is_turned_off_only_on_a_userspace_datapath() {
    for netdev_datapath in [true, false] {
        let (key, node) = (
            key("eth0"),
            NodeFacts {
                netdev_datapath,
                ..node()
            },
        );
        let subject = Subject {
            key: &key,
            pod: None,
            netns: "/n",
        };
        let ports = plan(&subject, &[InterfaceSpec::default()], &node).unwrap();
        assert_eq!(ports[0].link.pod_tx_checksum_off, netdev_datapath);
    }
}

#[test]
fn ipv6_is_turned_off_where_the_pod_is_known_to_have_ipv4_alone() {
    let off = |intent: &InterfaceSpec| {
        let key = key("eth0");
        let subject = Subject {
            key: &key,
            pod: None,
            netns: "/n",
        };
        plan(&subject, std::slice::from_ref(intent), &node()).unwrap()[0]
            .link
            .pod_ipv6_off
    };
    assert!(off(&intent(&["10.1.2.3/24"], &["10.1.2.1"])));
    assert!(!off(&intent(&["10.1.2.3/24", "fd00::3/64"], &[])));
    assert!(!off(&InterfaceSpec {
        routes: vec![route("fd00:1::/64", None)],
        ..intent(&["10.1.2.3/24"], &[])
    }));
    // It may configure itself, and so may one on a network that others route.
    assert!(!off(&InterfaceSpec::default()));
    assert!(!off(&InterfaceSpec {
        nad: Some("tenants/blue".to_owned()),
        ..intent(&["10.1.2.3/24"], &[])
    }));
}

#[test]
fn the_mtu_has_its_bounds_and_ipv6_a_higher_lower_one() {
    let with_mtu = |addresses: &[&str], mtu| InterfaceSpec {
        mtu: Some(mtu),
        ..intent(addresses, &[])
    };
    for (addresses, mtu) in [
        (["10.1.2.3/24"], 68),
        (["10.1.2.3/24"], 65_535),
        (["fd00::3/64"], 1280),
    ] {
        assert_eq!(
            planned(&[with_mtu(&addresses, mtu)]).unwrap()[0].link.mtu,
            mtu
        );
    }
    assert_eq!(
        refusal(with_mtu(&["10.1.2.3/24"], 67)),
        "mtu 67 of eth0 is not between 68 and 65535"
    );
    assert_eq!(
        refusal(with_mtu(&["10.1.2.3/24"], 65_536)),
        "mtu 65536 of eth0 is not between 68 and 65535"
    );
    assert_eq!(
        refusal(with_mtu(&["fd00::3/64"], 1279)),
        "mtu 1279 of eth0 is not between 1280 and 65535 (IPv6 needs at least 1280)"
    );
}

#[test]
fn what_can_be_no_hosts_address_is_refused_by_name_and_value() {
    let cases = [
        (
            "0.0.0.0/0",
            "address 0.0.0.0/0 of eth0 is the unspecified address",
        ),
        (
            "224.0.0.1/24",
            "address 224.0.0.1/24 of eth0 is a multicast address",
        ),
        (
            "127.0.0.1/8",
            "address 127.0.0.1/8 of eth0 is a loopback address",
        ),
        (
            "10.1.2.0/24",
            "address 10.1.2.0/24 of eth0 is its subnet's network address",
        ),
        (
            "10.1.2.255/24",
            "address 10.1.2.255/24 of eth0 is its subnet's broadcast address",
        ),
        (
            "ff02::1/64",
            "address ff02::1/64 of eth0 is a multicast address",
        ),
        ("::1/128", "address ::1/128 of eth0 is a loopback address"),
    ];
    for (address, expected) in cases {
        assert_eq!(refusal(intent(&[address], &[])), expected);
    }
    assert!(
        planned(&[intent(&["10.1.2.0/31"], &[])]).is_ok(),
        "RFC 3021"
    );
}

#[test]
fn macs_that_no_interface_can_bear_are_refused() {
    for (mac, expected) in [
        ([0; 6], "mac 00:00:00:00:00:00 of eth0 is all zero"),
        (
            [1, 0, 0x5e, 0, 0, 1],
            "mac 01:00:5E:00:00:01 of eth0 is a group address",
        ),
    ] {
        let wish = InterfaceSpec {
            mac: Some(mac.into()),
            ..intent(&["10.1.2.3/24"], &[])
        };
        assert_eq!(refusal(wish), expected);
    }
}

#[test]
fn next_hops_that_lead_nowhere_are_refused() {
    assert_eq!(
        refusal(intent(&["10.1.2.3/24"], &["fd00::1"])),
        "gateway fd00::1 of eth0 needs an IPv6 address on the interface, and there is none"
    );
    assert_eq!(
        refusal(intent(&["10.1.2.3/24"], &["10.1.2.3"])),
        "gateway 10.1.2.3 of eth0 is the interface's own address"
    );
    assert_eq!(
        refusal(intent(&["10.1.2.3/24"], &["224.0.0.1"])),
        "gateway 224.0.0.1 of eth0 is a multicast address"
    );
    let with_route = |dst, gateway| InterfaceSpec {
        routes: vec![route(dst, Some(gateway))],
        ..intent(&["10.1.2.3/24", "fd00::3/64"], &[])
    };
    assert_eq!(
        refusal(with_route("10.9.0.0/16", "fd00::1")),
        "route 10.9.0.0/16 of eth0 goes by fd00::1: one is IPv4, the other IPv6"
    );
}

#[test]
fn nothing_may_be_given_twice() {
    assert_eq!(
        refusal(intent(&["10.1.2.3/24", "10.1.2.3/16"], &[])),
        "address 10.1.2.3/16 is given twice for eth0"
    );
    assert_eq!(
        refusal(intent(&["10.1.2.3/24"], &["10.1.2.1", "10.1.2.2"])),
        "route 0.0.0.0/0 is given twice for eth0"
    );
    let two = [intent(&["10.1.2.3/24"], &[]), intent(&["10.1.3.3/24"], &[])];
    assert_eq!(
        planned(&two).unwrap_err().to_string(),
        "two interfaces are both to be named eth0"
    );
}

#[test]
fn the_result_lists_both_ends_and_ties_addresses_to_the_pods() {
    let (key, pod) = (key("eth0"), pod());
    let subject = Subject {
        key: &key,
        pod: Some(&pod),
        netns: "/run/netns/a",
    };
    let second = InterfaceSpec {
        pod_ifname: Some("net0".into()),
        ..intent(&["10.9.0.3/24"], &[])
    };
    let ports = plan(
        &subject,
        &[intent(&["10.1.2.3/24"], &["10.1.2.1"]), second],
        &node(),
    )
    .unwrap();
    let result = result::result(
        &subject,
        &ports,
        &["h1".into(), "h2".into()],
        Default::default(),
    );
    let names: Vec<(&str, Option<&str>)> = result
        .interfaces
        .iter()
        .map(|link| (link.name.as_str(), link.sandbox.as_deref()))
        .collect();
    let sandbox = Some("/run/netns/a");
    assert_eq!(
        names,
        [
            ("h1", None),
            ("eth0", sandbox),
            ("h2", None),
            ("net0", sandbox)
        ]
    );
    assert_eq!(
        (result.ips[0].interface, result.ips[1].interface),
        (Some(1), Some(3))
    );
    assert_eq!(result.ips[0].gateway, Some("10.1.2.1".parse().unwrap()));
    assert_eq!(result.ips[1].gateway, None);
    assert_eq!(result.routes.len(), 1);
}

#[test]
fn the_result_names_the_gateway_of_each_addresss_own_subnet() {
    let mut wish = intent(
        &["10.1.2.3/24", "10.9.0.3/24", "fd00::3/64", "10.8.0.3/24"],
        &[],
    );
    let gateways = ["10.9.0.1", "10.1.2.1", "fd00::1"];
    wish.subnet_gateways = gateways.map(|text| text.parse().unwrap()).to_vec();
    let key = key("eth0");
    let subject = Subject {
        key: &key,
        pod: None,
        netns: "/run/netns/a",
    };
    let ports = plan(&subject, &[wish], &node()).unwrap();
    let result = result::result(&subject, &ports, &["h1".into()], Default::default());
    let named: Vec<_> = result.ips.iter().map(|ip| ip.gateway).collect();
    let gateway = |text: &str| Some(text.parse().unwrap());
    assert_eq!(
        named,
        [
            gateway("10.1.2.1"),
            gateway("10.9.0.1"),
            gateway("fd00::1"),
            None
        ]
    );
    assert!(result.routes.is_empty(), "none of them is a default route");
}
