use super::*;

#[test]
fn the_row_bears_what_ovn_operators_and_del_look_for() {
    let ports = planned(&[spec(&["10.1.2.3/24", "fd00::3/64"], &["10.1.2.1"])]).unwrap();
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
        ..spec(&[], &[])
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
fn a_port_on_a_bridge_records_where_it_is_and_a_port_of_the_nodes_own_network_does_not() {
    let own = planned(&[spec(&[], &[])]).unwrap().remove(0);
    assert!(
        ["bridge", "vlan", "ofport-request"]
            .iter()
            .all(|key| { !own.external_ids.contains_key(&format!("podwire.io/{key}")) })
    );
    let switch_port = SwitchPort {
        bridge: Some("br1".to_owned()),
        vlan: "vlan_mode native-untagged, tag 7, trunks 1-9".parse().ok(),
        ofport_request: Some(12),
    };
    let there = InterfaceSpec {
        switch_port: switch_port.clone(),
        logical_port: Some("lp".to_owned()),
        ..spec(&["10.1.2.3/24"], &[])
    };
    let there = planned(&[there]).unwrap().remove(0);
    let ids = &there.external_ids;
    assert_eq!(
        (there.iface_id.as_str(), ids["iface-id"].as_str()),
        ("lp", "lp")
    );
    assert_eq!(ids["podwire.io/bridge"], "br1");
    assert_eq!(
        ids["podwire.io/vlan"],
        "vlan_mode native-untagged, tag 7, trunks 1-9"
    );
    assert_eq!(SwitchPort::of(ids), switch_port);
    assert_eq!(
        there.link.pod_ipv6,
        PodIpv6::Usual,
        "its network may have routers"
    );
}

#[test]
fn limits_are_passed_on_as_they_are() {
    let interface = InterfaceSpec {
        bandwidth: Bandwidth {
            ingress_rate: Some(2),
            egress_rate: Some(1),
        },
        ..InterfaceSpec::default()
    };
    let bandwidth = planned(&[interface]).unwrap()[0].bandwidth;
    assert_eq!(
        (bandwidth.ingress_rate, bandwidth.egress_rate),
        (Some(2), Some(1))
    );
}
