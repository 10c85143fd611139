use super::*;

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
        assert_eq!(ports[0].link.netdev_datapath, netdev_datapath);
    }
}

#[test]
fn ipv6_is_off_where_the_pod_has_ipv4_alone_and_quiet_where_it_was_given_an_address() {
    let ipv6 = |spec| planned(&[spec]).unwrap()[0].link.pod_ipv6;
    let ipv4 = || spec(&["10.1.2.3/24"], &["10.1.2.1"]);
    let dual = || spec(&["10.1.2.3/24", "fd00::3/64"], &[]);
    assert_eq!(ipv6(ipv4()), PodIpv6::Off);
    assert_eq!(ipv6(dual()), PodIpv6::Quiet);
    // It may configure itself, and so may one on a network that others route, but not one that was
    // given all that it needs.
    assert_eq!(ipv6(InterfaceSpec::default()), PodIpv6::Usual);
    assert_eq!(
        ipv6(InterfaceSpec {
            routes: vec![route("fd00:1::/64", None)],
            ..ipv4()
        }),
        PodIpv6::Assigned
    );
    for spec in [ipv4(), dual()] {
        let nad = Some("tenants/blue".to_owned());
        assert_eq!(ipv6(InterfaceSpec { nad, ..spec }), PodIpv6::Usual);
    }
}

#[test]
fn a_pod_that_was_given_its_routes_believes_no_router_unless_its_network_has_some() {
    let key = key("eth0");
    let subject = Subject {
        key: &key,
        pod: None,
        netns: "/n",
    };
    for (has_routers, ipv6) in [(false, PodIpv6::Assigned), (true, PodIpv6::Usual)] {
        let node = NodeFacts {
            quiet_pods: false,
            has_routers,
            ..node()
        };
        let ports = plan(&subject, &[spec(&["fd00::3/64"], &[])], &node).unwrap();
        assert_eq!(ports[0].link.pod_ipv6, ipv6);
    }
}

#[test]
fn the_mtu_has_its_bounds_and_ipv6_a_higher_lower_one() {
    let with_mtu = |addresses: &[&str], mtu| InterfaceSpec {
        mtu: Some(mtu),
        ..spec(addresses, &[])
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
    let cases = r#"
        0.0.0.0/0 => address 0.0.0.0/0 of eth0 is the unspecified address
        224.0.0.1/24 => address 224.0.0.1/24 of eth0 is a multicast address
        127.0.0.1/8 => address 127.0.0.1/8 of eth0 is a loopback address
        10.1.2.0/24 => address 10.1.2.0/24 of eth0 is its subnet's network address
        10.1.2.255/24 => address 10.1.2.255/24 of eth0 is its subnet's broadcast address
        ff02::1/64 => address ff02::1/64 of eth0 is a multicast address
        ::1/128 => address ::1/128 of eth0 is a loopback address
    "#;
    for case in cases.trim().lines() {
        let (address, expected) = case.trim().split_once(" => ").unwrap();
        assert_eq!(refusal(spec(&[address], &[])), expected);
    }
    assert!(planned(&[spec(&["10.1.2.0/31"], &[])]).is_ok(), "RFC 3021");
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
        let spec = InterfaceSpec {
            mac: Some(mac.into()),
            ..spec(&["10.1.2.3/24"], &[])
        };
        assert_eq!(refusal(spec), expected);
    }
}

#[test]
fn nothing_may_be_given_twice() {
    assert_eq!(
        refusal(spec(&["10.1.2.3/24", "10.1.2.3/16"], &[])),
        "address 10.1.2.3/16 is given twice for eth0"
    );
    assert_eq!(
        refusal(spec(&["10.1.2.3/24"], &["10.1.2.1", "10.1.2.2"])),
        "route 0.0.0.0/0 is given twice for eth0"
    );
    let two = [spec(&["10.1.2.3/24"], &[]), spec(&["10.1.3.3/24"], &[])];
    assert_eq!(
        planned(&two).unwrap_err().to_string(),
        "two interfaces have the same name eth0"
    );
}

#[test]
fn an_address_that_no_interface_may_have_is_refused_by_name() {
    for (address, what) in [
        ("127.0.0.2/8", "a loopback address"),
        (
            "::ffff:10.0.0.1/112",
            "an IPv4 address written as an IPv6 one",
        ),
        ("0.0.0.7/8", "an address of \"this network\" (0.0.0.0/8)"),
    ] {
        assert_eq!(
            refusal(spec(&[address], &[])),
            format!("address {address} of eth0 is {what}")
        );
    }
    // Of annotations these are refused where they are read; an IPAM plugin is the administrator's.
    for address in ["169.254.7.2/16", "9.8.7.6/7", "fd00::5/7"] {
        planned(&[spec(&[address], &[])]).unwrap();
    }
    // A gateway may be link-local: that of a network without a subnet on the link is.
    planned(&[spec(&["10.1.2.3/32"], &["169.254.1.1"])]).unwrap();
}

#[test]
fn more_than_any_pod_has_is_refused_by_its_count() {
    let addresses = (0..1_025).map(|n: u32| format!("10.0.{}.{}/8", n / 250, n % 250 + 1));
    let many = InterfaceSpec {
        addresses: addresses.map(|text| text.parse().unwrap()).collect(),
        ..InterfaceSpec::default()
    };
    assert_eq!(
        refusal(many),
        "1025 addresses for eth0: at most 1024 are allowed"
    );
    let many = InterfaceSpec {
        routes: vec![route("10.0.0.0/8", None); 4_097],
        ..InterfaceSpec::default()
    };
    assert_eq!(
        refusal(many),
        "4097 routes for eth0: at most 4096 are allowed"
    );
    let error = planned(&vec![InterfaceSpec::default(); 65]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "65 interfaces for eth0: at most 64 are allowed"
    );
}
