use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn conf(extra: Value) -> Vec<u8> {
    let mut conf = json!({"cniVersion": "1.1.0", "name": "pods", "type": "podwire-cni"});
    for (name, value) in extra.as_object().unwrap() {
        conf[name] = value.clone();
    }
    conf.to_string().into_bytes()
}

fn parse(extra: Value) -> NetConf {
    NetConf::parse(&conf(extra)).unwrap()
}

/// The code and text that a configuration is refused with.
fn refusal(extra: Value) -> (u32, String) {
    let error: SpecError = NetConf::parse(&conf(extra)).unwrap_err().into();
    (error.code.0, error.msg)
}

#[test]
fn the_smallest_configuration_is_enough() {
    let conf = parse(json!({}));
    assert_eq!(conf.cni_version, CniVersion::V1_1_0);
    assert_eq!(
        (conf.name.as_str(), conf.plugin_type.as_str()),
        ("pods", "podwire-cni")
    );
    assert!(conf.ipam.is_none() && conf.prev_result().unwrap().is_none());
    assert!(conf.valid_attachments().is_none());
}

#[test]
fn everything_a_runtime_writes_is_read() {
    let conf = parse(json!({
        "runtimeConfig": {
            "ips": ["10.1.0.5/16", "fd00::5"],
            "mac": "0a:58:0a:01:00:05",
            "io.kubernetes.cri.pod-annotations": {"k8s.ovn.org/pod-networks": "{}"},
            "bandwidth": {"ingressRate": 1000, "egressBurst": 9007199254740993u64},
            "portMappings": [{"hostPort": 80}],
        },
        "args": {"cni": {"ips": ["10.9.9.9"], "labels": {"a": "b"}}, "other": 1},
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/24"}]]},
        "mtu": 1400,
        "dns": {"nameservers": ["10.96.0.10"], "search": ["svc.local"]},
        "agentSocket": "/run/other.sock",
        "timeoutSeconds": 7,
        "netAttachDefName": "ns/blue",
        "capabilities": {"ips": true, "mac": false},
        "vlanID": 4,
    }));
    assert_eq!(conf.runtime.ips[0].prefix_len, Some(16));
    assert_eq!(
        conf.runtime.ips[1],
        RequestedIp {
            address: "fd00::5".parse().unwrap(),
            prefix_len: None
        }
    );
    assert_eq!(
        conf.runtime.mac,
        Some(MacAddr6::new(0x0a, 0x58, 0x0a, 1, 0, 5))
    );
    assert_eq!(
        conf.runtime.pod_annotations["k8s.ovn.org/pod-networks"],
        "{}"
    );
    let bandwidth = conf.runtime.bandwidth.unwrap();
    assert_eq!((bandwidth.ingress_rate, bandwidth.ingress_burst), (1000, 0));
    assert_eq!(
        bandwidth.egress_burst, 9_007_199_254_740_993,
        "no detour over a float"
    );
    assert_eq!(
        conf.runtime.others["portMappings"],
        json!([{"hostPort": 80}])
    );
    assert_eq!(conf.args.others["labels"], json!({"a": "b"}));
    assert_eq!(
        conf.requested_ips(),
        conf.runtime.ips,
        "the capability goes before args"
    );
    let ipam = conf.ipam.as_ref().unwrap();
    assert_eq!(
        (ipam.plugin_type.as_str(), ipam.section.len()),
        ("host-local", 2)
    );
    assert_eq!(conf.mtu, Some(1400));
    assert_eq!(conf.dns.search, ["svc.local"]);
    assert_eq!(
        conf.agent_socket.as_deref(),
        Some("/run/other.sock".as_ref())
    );
    assert_eq!(conf.timeout, Some(Duration::from_secs(7)));
    assert_eq!(conf.net_attach_def_name.as_deref(), Some("ns/blue"));
    assert_eq!(
        conf.capabilities,
        BTreeMap::from([("ips".into(), true), ("mac".into(), false)])
    );
    assert_eq!(
        conf.others.into_iter().collect::<Vec<_>>(),
        [("vlanID".to_owned(), json!(4))]
    );
}

#[test]
fn args_serve_where_the_capability_is_silent() {
    let conf = parse(json!({"args": {"cni": {"ips": ["10.9.9.9"], "mac": "02:00:00:00:00:01"}}}));
    assert_eq!(
        conf.requested_ips(),
        [RequestedIp::parse("10.9.9.9").unwrap()]
    );
    assert_eq!(conf.requested_mac(), "02:00:00:00:00:01".parse().ok());
}

#[test]
fn what_go_writes_for_nothing_is_nothing() {
    let conf = parse(json!({
        "ipam": {}, "dns": {}, "mtu": 0, "prevResult": null, "capabilities": null,
        "agentSocket": "", "args": null, "netAttachDefName": "",
        "runtimeConfig": {"ips": null, "mac": "", "io.kubernetes.cri.pod-annotations": null},
    }));
    assert!(conf.ipam.is_none() && conf.mtu.is_none() && conf.dns.is_empty());
    assert!(conf.agent_socket.is_none() && conf.runtime == RuntimeConfig::default());
    assert!(conf.prev_result().unwrap().is_none());
}

#[test]
fn a_refusal_names_the_member_and_its_value() {
    let cases = [
        (json!({"name": null}), 7, "name is missing"),
        (json!({"name": ""}), 7, "name is missing"),
        (
            json!({"name": "a/b"}),
            7,
            r#"name: "a/b" is not a network name"#,
        ),
        (
            json!({"name": "n".repeat(254)}),
            7,
            "is not a network name: at most 253",
        ),
        (json!({"name": 5}), 7, "name: 5 is not a string"),
        (json!({"type": null}), 7, "type is missing"),
        (json!({"cniVersion": null}), 1, "cniVersion is missing"),
        (
            json!({"cniVersion": "0.2.0"}),
            1,
            r#"cniVersion "0.2.0" is not supported"#,
        ),
        (
            json!({"cniVersion": "2.0.0"}),
            1,
            r#"cniVersion "2.0.0" is not supported"#,
        ),
        (json!({"cniVersion": 1}), 7, "cniVersion: 1 is not a string"),
        (json!({"mtu": 67}), 7, "mtu: 67 is not an MTU, 68 to 65535"),
        (json!({"mtu": 65536}), 7, "mtu: 65536 is not an MTU"),
        (json!({"mtu": -1}), 7, "mtu: -1 is not an MTU"),
        (json!({"mtu": 1400.5}), 7, "mtu: 1400.5 is not an MTU"),
        (json!({"mtu": "1400"}), 7, r#"mtu: "1400" is not an MTU"#),
        (
            json!({"dns": {"search": ["a", 4]}}),
            7,
            "dns.search[1]: 4 is not a string",
        ),
        (json!({"dns": []}), 7, "dns: a list is not an object"),
        (
            json!({"ipam": {"subnet": "10.0.0.0/8"}}),
            7,
            "ipam.type is missing",
        ),
        (
            json!({"ipam": {"type": "../sh"}}),
            7,
            r#"ipam.type: "../sh" is not the file name"#,
        ),
        (
            json!({"ipam": {"type": ".."}}),
            7,
            r#"ipam.type: ".." is not the file name"#,
        ),
        (
            json!({"agentSocket": "run/x"}),
            7,
            r#"agentSocket: "run/x" is not an absolute path"#,
        ),
        (
            json!({"timeoutSeconds": 0}),
            7,
            "timeoutSeconds: 0 is not a number of seconds",
        ),
        (
            json!({"timeoutSeconds": 3601}),
            7,
            "timeoutSeconds: 3601 is not a number of seconds",
        ),
        (
            json!({"capabilities": {"ips": "yes"}}),
            7,
            r#"capabilities.ips: "yes" is not true or false"#,
        ),
        (
            json!({"runtimeConfig": {"ips": ["10.0.0.1", "10.0.0.300"]}}),
            7,
            r#"runtimeConfig.ips[1]: "10.0.0.300""#,
        ),
        (
            json!({"runtimeConfig": {"ips": ["10.0.0.1/33"]}}),
            7,
            r#"runtimeConfig.ips[0]: "10.0.0.1/33""#,
        ),
        (
            json!({"runtimeConfig": {"ips": "10.0.0.1"}}),
            7,
            "runtimeConfig.ips: \"10.0.0.1\" is not a list",
        ),
        (
            json!({"runtimeConfig": {"mac": "0a:58:0a:01:00"}}),
            7,
            "runtimeConfig.mac: \"0a:58:0a:01:00\"",
        ),
        (
            json!({"runtimeConfig": {"mac": "01:00:5e:00:00:01"}}),
            7,
            "is not a unicast Ethernet address",
        ),
        (
            json!({"runtimeConfig": {"mac": "00:00:00:00:00:00"}}),
            7,
            "is not a unicast Ethernet address",
        ),
        (
            json!({"runtimeConfig": {"bandwidth": {"ingressRate": -1}}}),
            7,
            "runtimeConfig.bandwidth.ingressRate: -1",
        ),
        (
            json!({"runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"a/b": 1}}}),
            7,
            "runtimeConfig.io.kubernetes.cri.pod-annotations.a/b: 1 is not a string",
        ),
        (
            json!({"args": {"cni": {"mac": "x"}}}),
            7,
            r#"args.cni.mac: "x""#,
        ),
        (
            json!({"cni.dev/valid-attachments": [{"containerID": "a"}]}),
            7,
            "cni.dev/valid-attachments[0].ifname is missing",
        ),
        (
            json!({"cni.dev/valid-attachments": {}}),
            7,
            "cni.dev/valid-attachments: an object is not a list",
        ),
    ];
    for (extra, code, text) in cases {
        let (got, msg) = refusal(extra.clone());
        assert_eq!(got, code, "{extra}: {msg}");
        assert!(msg.contains(text), "{extra}: {msg}");
    }
}

#[test]
fn what_is_not_a_json_object_has_code_6() {
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    for bytes in [
        &b""[..],
        b"{",
        b"[]",
        b"null",
        b"{} {}",
        b"\xff",
        b"{\"name\":\"\xff\"}",
        &deep,
    ] {
        let error = NetConf::parse(bytes).unwrap_err();
        assert_eq!(error.code(), ErrorCode::DECODE, "{error}");
    }
}

#[test]
fn a_hostile_value_does_not_fill_the_message() {
    let (_, msg) = refusal(json!({"name": "\u{1b}é".repeat(10_000)}));
    assert!(
        msg.len() < 700 && !msg.contains('\u{1b}'),
        "{} bytes",
        msg.len()
    );
}

#[test]
fn del_sets_aside_what_add_would_refuse() {
    let faulty = conf(json!({
        "mtu": 3, "ipam": {"type": "host-local"}, "runtimeConfig": {"mac": "x"}, "prevResult": 5,
    }));
    let conf = NetConf::parse_for_del(&faulty).unwrap();
    assert!(conf.mtu.is_none() && conf.ipam.is_some());
    assert_eq!(conf.ignored.len(), 2, "{:?}", conf.ignored);
    assert!(
        conf.prev_result()
            .unwrap_err()
            .to_string()
            .contains("prevResult")
    );
    assert!(NetConf::parse_for_del(b"{\"cniVersion\":\"1.0.0\",\"name\":\"a b\"}").is_err());
}

#[test]
fn gc_tells_an_empty_list_from_none() {
    let one = json!([{"containerID": "c1", "ifname": "eth0"}]);
    let list = |extra| parse(extra).valid_attachments().map(<[_]>::len);
    assert_eq!(list(json!({})), None);
    assert_eq!(
        list(json!({"cni.dev/valid-attachments": null})),
        Some(0),
        "Go's empty list"
    );
    assert_eq!(list(json!({"cni.dev/valid-attachments": []})), Some(0));
    assert_eq!(list(json!({"cni.dev/attachments": one})), Some(1));
    assert_eq!(
        list(json!({"cni.dev/valid-attachments": one, "cni.dev/attachments": []})),
        Some(1)
    );
}

#[test]
fn the_raw_configuration_is_kept_byte_for_byte() {
    let text = br#"{ "type":"p","name":"n",  "cniVersion":"0.4.0","big":12345678901234567890123 }"#;
    assert_eq!(NetConf::parse(text).unwrap().raw.get().as_bytes(), text);
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = NetConf::parse(&bytes);
        let _ = NetConf::parse_for_del(&bytes);
    }

    /// Any JSON in any member is either read or refused by a message that names the member.
    #[test]
    fn no_json_makes_the_parser_panic(
        member in proptest::sample::select(vec![
            "cniVersion", "name", "type", "runtimeConfig", "args", "ipam", "mtu", "dns",
            "prevResult",
            "agentSocket", "timeoutSeconds", "capabilities", "cni.dev/valid-attachments",
        ]),
        value in any_json(),
    ) {
        match NetConf::parse(&conf(json!({member: value.clone()}))) {
            Ok(conf) => drop(conf.prev_result()),
            Err(error) => prop_assert!(error.to_string().contains(member), "{}", error),
        }
        drop(NetConf::parse_for_del(&conf(json!({member: value}))));
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    let name = prop_oneof![
        Just("ips".to_owned()),
        Just("mac".to_owned()),
        Just("cni".to_owned()),
        Just("type".to_owned()),
        Just("interfaces".to_owned()),
        Just("address".to_owned()),
        Just("nameservers".to_owned()),
        Just("containerID".to_owned()),
        ".{0,6}",
    ];
    leaf.prop_recursive(4, 32, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map(name.clone(), inner, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn on_bridge(extra: Value) -> OnBridge {
    let mut conf = json!({"bridge": "br1"});
    for (name, value) in extra.as_object().unwrap() {
        conf[name] = value.clone();
    }
    parse(conf).on_bridge.unwrap()
}

#[test]
fn vlan_and_trunk_say_which_vlans_a_port_is_in_as_with_ovs_cni() {
    for (extra, text) in [
        (json!({}), "vlan_mode trunk"),
        (json!({"trunk": []}), "vlan_mode trunk"),
        (json!({"vlan": 100}), "vlan_mode access, tag 100"),
        (json!({"vlan": 0}), "vlan_mode access, tag 0"),
        (
            json!({"trunk": [{"id": 42}, {"minID": 1000, "maxID": 1010}, {"id": 41}]}),
            "vlan_mode trunk, trunks 41-42,1000-1010",
        ),
        (
            json!({"vlan": 7, "trunk": [{"minID": 1, "maxID": 9, "id": 5}]}),
            "vlan_mode native-untagged, tag 7, trunks 1-9",
        ),
    ] {
        let vlan = on_bridge(extra).vlan;
        assert_eq!(vlan.to_string(), text);
        assert_eq!(text.parse(), Ok(vlan), "it is read as it was written");
    }
    assert_eq!(
        "1-3,9".parse::<Vlans>().unwrap().iter().collect::<Vec<_>>(),
        [1, 2, 3, 9]
    );
    for text in [
        "",
        "vlan_mode access",
        "vlan_mode trunk, tag 5",
        "vlan_mode trunk, trunks x",
    ] {
        assert_eq!(text.parse::<Vlan>(), Err(()), "{text:?}");
    }
}

#[test]
fn what_ovs_cni_has_and_podwire_has_not_is_refused_by_name_or_has_no_effect() {
    let conf = on_bridge(json!({
        "ofport_request": 0, "interface_type": "system", "deviceID": "",
        "socket_file": "unix:/run/db.sock", "configuration_path": "/etc/ovs.conf",
        "link_state_check_retries": 5, "link_state_check_interval": 1000,
    }));
    assert_eq!(conf.ofport_request, None);
    assert_eq!(conf.socket_file.as_deref(), Some("unix:/run/db.sock"));
    let range = |first: u16, last: u16| json!({"trunk": [{"minID": first, "maxID": last}]});
    for (extra, words) in [
        (json!({"bridge": "a/b"}), vec!["bridge", "a/b"]),
        (
            json!({"bridge": "sixteen-letters-"}),
            vec!["bridge", "sixteen-letters-"],
        ),
        (json!({"bridge": 5}), vec!["bridge", "5"]),
        (json!({"vlan": 4095}), vec!["vlan", "4095"]),
        (json!({"vlan": -1}), vec!["vlan", "-1"]),
        (json!({"vlan": "100"}), vec!["vlan", "100"]),
        (json!({"trunk": 5}), vec!["trunk", "5"]),
        (json!({"trunk": [{}]}), vec!["trunk[0].id"]),
        (
            json!({"trunk": [{"id": 4095}]}),
            vec!["trunk[0].id", "4095"],
        ),
        (
            json!({"trunk": [{"id": 1}, {"minID": 5}]}),
            vec!["trunk[1].maxID"],
        ),
        (json!({"trunk": [{"maxID": 5}]}), vec!["trunk[0].minID"]),
        (range(9, 8), vec!["trunk[0].maxID", "8", "9"]),
        (range(9, 5000), vec!["trunk[0].maxID", "5000"]),
        (
            json!({"ofport_request": 65280}),
            vec!["ofport_request", "65280"],
        ),
        (
            json!({"interface_type": "internal"}),
            vec!["interface_type", "internal", "system"],
        ),
        (
            json!({"interface_type": "dpdk"}),
            vec!["interface_type", "dpdk", "system"],
        ),
        (
            json!({"deviceID": "0000:18:00.2"}),
            vec!["deviceID", "0000:18:00.2"],
        ),
        (
            json!({"netAttachDefName": "ns/blue"}),
            vec!["bridge", "netAttachDefName"],
        ),
    ] {
        let mut conf = json!({"bridge": "br1"});
        for (name, value) in extra.as_object().unwrap() {
            conf[name] = value.clone();
        }
        let (code, text) = refusal(conf);
        assert_eq!(code, 7);
        assert!(
            words.iter().all(|word| text.contains(word)),
            "{text}: {words:?}"
        );
    }
    for name in ["vlan", "trunk", "ofport_request", "interface_type"] {
        let (_, text) = refusal(json!({ (name): [] }));
        assert!(text.contains(name) && text.contains("bridge"), "{text}");
    }
}

#[test]
fn a_configuration_of_ovs_cni_needs_no_bridge_for_a_logical_port_and_no_version() {
    let parse = |conf: Value| NetConf::parse(conf.to_string().as_bytes());
    let of = |extra: Value| {
        let mut conf = json!({"name": "mynet", "type": "ovs"});
        for (name, value) in extra.as_object().unwrap() {
            conf[name] = value.clone();
        }
        parse(conf)
    };
    let conf = of(json!({"args": {"cni": {"OvnPort": "lp", "MAC": "02:00:00:00:00:07"}}})).unwrap();
    assert_eq!(conf.on_bridge.as_ref().unwrap().bridge, None);
    assert_eq!(conf.args.ovn_port.as_deref(), Some("lp"));
    assert_eq!(conf.requested_mac(), "02:00:00:00:00:07".parse().ok());
    assert_eq!(conf.cni_version, CniVersion::V0_3_1);
    let of_podwire = parse(json!({"name": "n", "type": "podwire-cni", "bridge": "br1"}));
    assert_eq!(of_podwire.unwrap_err().code().0, 1);
    assert!(
        super::tests::parse(json!({"args": {"cni": {"ovnPort": "lp"}}}))
            .on_bridge
            .is_none(),
        "a pod of the default network chooses no logical port"
    );
}
