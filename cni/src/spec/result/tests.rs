use proptest::option;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::spec::{ErrorCode, SpecError};

fn pod_result() -> CniResult {
    CniResult {
        interfaces: vec![
            Interface {
                name: "0123456789abcde".into(),
                mac: Some("0a:00:00:00:00:01".into()),
                ..Interface::default()
            },
            Interface {
                name: "eth0".into(),
                mac: Some("0a:00:00:00:00:02".into()),
                sandbox: Some("/var/run/netns/a".into()),
                mtu: Some(1400),
                ..Interface::default()
            },
        ],
        ips: vec![
            IpConfig {
                address: "10.0.0.5/24".parse().unwrap(),
                gateway: "10.0.0.1".parse().ok(),
                interface: Some(1),
            },
            IpConfig {
                address: "fd00::5/64".parse().unwrap(),
                gateway: None,
                interface: Some(1),
            },
        ],
        routes: vec![Route {
            mtu: Some(1300),
            table: Some(0),
            ..Route::new("0.0.0.0/0".parse().unwrap(), "10.0.0.1".parse().ok())
        }],
        dns: Dns {
            nameservers: vec!["10.96.0.10".into()],
            ..Dns::default()
        },
    }
}

#[test]
fn each_version_is_written_as_its_specification_has_it() {
    let newest = json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            {"name": "0123456789abcde", "mac": "0a:00:00:00:00:01"},
            {"name": "eth0", "mac": "0a:00:00:00:00:02", "sandbox": "/var/run/netns/a",
            "mtu": 1400},
        ],
        "ips": [
            {"address": "10.0.0.5/24", "gateway": "10.0.0.1", "interface": 1},
            {"address": "fd00::5/64", "interface": 1},
        ],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1", "mtu": 1300, "table": 0}],
        "dns": {"nameservers": ["10.96.0.10"]},
    });
    assert_eq!(pod_result().to_value(CniVersion::V1_1_0), newest);

    let mut v1_0 = newest;
    v1_0["cniVersion"] = json!("1.0.0");
    v1_0["interfaces"][1].as_object_mut().unwrap().remove("mtu");
    v1_0["routes"] = json!([{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}]);
    assert_eq!(pod_result().to_value(CniVersion::V1_0_0), v1_0);

    for version in [CniVersion::V0_3_0, CniVersion::V0_3_1, CniVersion::V0_4_0] {
        let mut older = v1_0.clone();
        older["cniVersion"] = json!(version.as_str());
        older["ips"][0]["version"] = json!("4");
        older["ips"][1]["version"] = json!("6");
        assert_eq!(pod_result().to_value(version), older);
    }
}

#[test]
fn an_ipam_result_without_interfaces_is_read() {
    let text = br#"{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.2.3/16","gateway":"10.1.0.1"}],
        "routes":[{"dst":"0.0.0.0/0"}],"dns":{}}"#;
    let result = CniResult::from_json(text).unwrap();
    assert!(result.interfaces.is_empty() && result.dns.is_empty());
    assert_eq!(
        result.ips[0].address.to_string(),
        "10.1.2.3/16",
        "host bits stay"
    );
    assert_eq!(
        result.routes,
        [Route::new("0.0.0.0/0".parse().unwrap(), None)]
    );
}

#[test]
fn a_refusal_names_the_member_and_its_value() {
    let cases = [
        (json!([]), "an object"),
        (
            json!({"cniVersion": "0.2.0"}),
            r#"cniVersion "0.2.0" is not supported"#,
        ),
        (
            json!({"interfaces": [{"mac": "x"}]}),
            "interfaces[0].name is missing",
        ),
        (
            json!({"interfaces": ["eth0"]}),
            r#"interfaces[0]: "eth0" is not an object"#,
        ),
        (json!({"ips": [{}]}), "ips[0].address is missing"),
        (
            json!({"ips": [{"address": "10.0.0.1"}]}),
            r#"ips[0].address: "10.0.0.1" is not an address with a prefix"#,
        ),
        (
            json!({"ips": [{"address": "10.0.0.1/24", "gateway": "x"}]}),
            r#"ips[0].gateway: "x" is not an IP"#,
        ),
        (
            json!({"ips": [{"address": "10.0.0.1/24", "interface": 0}]}),
            "ips[0].interface: 0 is not an index",
        ),
        (
            json!({"ips": [{"address": "10.0.0.1/24", "interface": -1}]}),
            "ips[0].interface: -1 is not an index",
        ),
        (
            json!({"routes": [{"dst": "default"}]}),
            r#"routes[0].dst: "default" is not an address"#,
        ),
        (
            json!({"routes": [{"dst": "::/0", "mtu": 4294967296u64}]}),
            "routes[0].mtu: 4294967296 is not",
        ),
    ];
    for (value, text) in cases {
        let error: SpecError = CniResult::from_json(value.to_string().as_bytes())
            .unwrap_err()
            .into();
        assert_eq!(error.code, ErrorCode::DECODE);
        assert!(error.msg.contains(text), "{value}: {}", error.msg);
    }
    assert!(matches!(
        CniResult::from_json(b"oops"),
        Err(ResultError::NotJson(_))
    ));
}

#[test]
fn merging_keeps_prev_result_and_shifts_our_indexes() {
    let prev = CniResult {
        interfaces: vec![Interface {
            name: "first".into(),
            ..Interface::default()
        }],
        ips: vec![IpConfig {
            address: "192.0.2.1/32".parse().unwrap(),
            gateway: None,
            interface: Some(0),
        }],
        routes: vec![Route::new("192.0.2.0/24".parse().unwrap(), None)],
        dns: Dns {
            nameservers: vec!["9.9.9.9".into(), "10.96.0.10".into()],
            domain: Some("theirs".into()),
            ..Dns::default()
        },
    };
    let merged = pod_result().merge(prev);
    let names: Vec<_> = merged
        .interfaces
        .iter()
        .map(|interface| interface.name.as_str())
        .collect();
    assert_eq!(names, ["first", "0123456789abcde", "eth0"]);
    let indexes: Vec<_> = merged.ips.iter().map(|ip| ip.interface).collect();
    assert_eq!(indexes, [Some(0), Some(2), Some(2)]);
    assert_eq!(merged.routes[0].dst.to_string(), "192.0.2.0/24");
    assert_eq!(merged.dns.nameservers, ["9.9.9.9", "10.96.0.10"]);
    assert_eq!(merged.dns.domain.as_deref(), Some("theirs"));
}

proptest! {
    #[test]
    fn the_newest_version_round_trips(result in any_result()) {
        let text = result.to_json(CniVersion::V1_1_0);
        prop_assert_eq!(CniResult::from_json(text.as_bytes()).unwrap(), result);
    }

    #[test]
    fn an_older_version_loses_only_what_it_lacks(result in any_result(), at in 0..4usize) {
        let version = CniVersion::ALL[at];
        let read = CniResult::from_json(result.to_json(version).as_bytes()).unwrap();
        prop_assert_eq!(read, without_what_is_new(result));
    }

    /// Whatever is merged, each address points to the interface it pointed to before.
    #[test]
    fn merging_moves_no_address_to_another_interface(ours in any_result(), prev in any_result()) {
        let pointed = |result: &CniResult| -> Vec<_> {
            let interface = |ip: &IpConfig| ip.interface.map(|at| result.interfaces[at].clone());
            result.ips.iter().map(|ip| (ip.address, interface(ip))).collect()
        };
        let expected = [pointed(&prev), pointed(&ours)].concat();
        let merged = ours.merge(prev);
        prop_assert_eq!(pointed(&merged), expected);
    }
}

fn without_what_is_new(mut result: CniResult) -> CniResult {
    for interface in &mut result.interfaces {
        (interface.mtu, interface.socket_path, interface.pci_id) = (None, None, None);
    }
    for route in &mut result.routes {
        *route = Route::new(route.dst, route.gw);
    }
    result
}

fn any_result() -> impl Strategy<Value = CniResult> {
    let text = "[a-z0-9:/]{1,12}";
    let some = || option::of(text);
    let interface = (text, some(), some(), option::of(1u32..), some(), some()).prop_map(
        |(name, mac, sandbox, mtu, socket_path, pci_id)| Interface {
            name,
            mac,
            sandbox,
            mtu,
            socket_path,
            pci_id,
        },
    );
    let net = || {
        any::<(IpAddr, u8)>().prop_map(|(address, length)| {
            let most = if address.is_ipv4() { 32 } else { 128 };
            IpNet::new(address, length % (most + 1)).unwrap()
        })
    };
    let route = (
        net(),
        any::<Option<IpAddr>>(),
        option::of(1u32..),
        option::of(1u32..),
        option::of(1u32..),
        any::<Option<u32>>(),
        any::<Option<u32>>(),
    )
        .prop_map(|(dst, gw, mtu, advmss, priority, table, scope)| Route {
            dst,
            gw,
            mtu,
            advmss,
            priority,
            table,
            scope,
        });
    let texts = || proptest::collection::vec(text, 0..3);
    let dns =
        (texts(), some(), texts(), texts()).prop_map(|(nameservers, domain, search, options)| {
            Dns {
                nameservers,
                domain,
                search,
                options,
            }
        });
    let ip = (
        net(),
        any::<Option<IpAddr>>(),
        any::<Option<prop::sample::Index>>(),
    );
    (
        proptest::collection::vec(interface, 0..4),
        proptest::collection::vec(ip, 0..4),
        proptest::collection::vec(route, 0..4),
        dns,
    )
        .prop_map(|(interfaces, ips, routes, dns)| {
            let point = |at: prop::sample::Index| {
                (!interfaces.is_empty()).then(|| at.index(interfaces.len()))
            };
            let ips = ips
                .into_iter()
                .map(|(address, gateway, at)| IpConfig {
                    address,
                    gateway,
                    interface: at.and_then(point),
                })
                .collect();
            CniResult {
                interfaces,
                ips,
                routes,
                dns,
            }
        })
}
