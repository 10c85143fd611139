//! Any entry, written and read again; anything else, read or refused.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use macaddr::MacAddr6;
use podwire_netns::Route;
use proptest::prelude::*;
use serde_json::json;

use super::tests::parse;
use super::*;

prop_compose! {
    fn any_mac()(bytes: [u8; 6]) -> MacAddr6 {
        let [first, rest @ ..] = bytes;
        let [b, c, d, e, f] = rest;
        MacAddr6::new(first & 0xfe | 0x02, b, c, d, e, f)
    }
}

prop_compose! {
    fn any_v4()(low in 0x0a00_0001..0x0aff_ffffu32, prefix in 8..=32u8) -> IpNet {
        IpNet::new(IpAddr::V4(low.into()), prefix).unwrap()
    }
}

prop_compose! {
    fn any_v6()(low: u64, prefix in 48..=128u8) -> IpNet {
        IpNet::new(IpAddr::V6(((0xfd << 120) + u128::from(low)).into()), prefix).unwrap()
    }
}

fn any_route() -> impl Strategy<Value = Route> {
    (
        prop_oneof![(any_v4(), any_v4()), (any_v6(), any_v6())],
        any::<bool>(),
    )
        .prop_map(|((dst, hop), has_hop)| Route::new(dst.trunc(), has_hop.then_some(hop.addr())))
}

prop_compose! {
    fn any_interface()(
        mac in any_mac(),
        v4 in prop::option::of(any_v4()),
        v6 in prop::option::of(any_v6()),
        gateways in prop::collection::vec(prop_oneof![any_v4(), any_v6()], 0..3),
        routes in prop::collection::vec(any_route(), 0..4),
        mtu in prop::option::of(1280..=65535u32),
        lla in prop::option::of(any::<u64>()),
    ) -> InterfaceSpec {
        let mut gateways: Vec<_> = gateways.into_iter().map(|net| net.addr()).collect();
        let link_local = |low| Ipv6Addr::from((0xfe80 << 112) + u128::from(low));
        if !gateways.iter().any(IpAddr::is_ipv6) {
            gateways.extend(lla.map(|low| IpAddr::V6(link_local(low))));
        }
        InterfaceSpec {
            mac: Some(mac),
            addresses: v4.into_iter().chain(v6).collect(),
            gateways,
            routes,
            mtu,
            ..InterfaceSpec::default()
        }
    }
}

/// The annotation that describes these interfaces.
fn written(networks: &BTreeMap<NetworkKey, InterfaceSpec>) -> String {
    let entry = |interface: &InterfaceSpec| {
        let is_link_local =
            |ip: &&IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let (link_local, gateways): (Vec<&IpAddr>, Vec<&IpAddr>) =
            interface.gateways.iter().partition(is_link_local);
        let routes = interface
            .routes
            .iter()
            .map(|route| json!({"dest": route.dst, "nextHop": route.gateway}));
        json!({
            "mac_address": interface.mac.unwrap().to_string().to_lowercase(),
            "ip_addresses": interface.addresses,
            "gateway_ips": gateways,
            "routes": routes.collect::<Vec<_>>(),
            "mtu": interface.mtu,
            "ipv6_lla_gateway_ip": link_local.first(),
        })
    };
    let member =
        |(key, interface): (&NetworkKey, &InterfaceSpec)| (key.to_string(), entry(interface));
    Value::Object(networks.iter().map(member).collect()).to_string()
}

fn any_key() -> impl Strategy<Value = NetworkKey> {
    prop_oneof![
        Just(NetworkKey::Default),
        (
            "[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?",
            "[a-z0-9]([a-z0-9.-]{0,8}[a-z0-9])?",
            0..5u32
        )
            .prop_map(|(namespace, name, index)| NetworkKey::Nad {
                namespace,
                name,
                index
            }),
    ]
}

fn any_json() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        ".{0,12}",
        Just("10.0.0.5/24".to_owned()),
        Just("fd00::5/64".to_owned()),
        Just("0a:58:0a:f4:00:05".to_owned()),
        Just("10.0.0.1".to_owned()),
        Just("primary".to_owned()),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    let name = prop::sample::select(vec![
        "default",
        "ns/nad",
        "ns/nad/1",
        "mac_address",
        "ip_address",
        "ip_addresses",
        "gateway_ip",
        "gateway_ips",
        "routes",
        "dest",
        "nextHop",
        "mtu",
        "ipv6_lla_gateway_ip",
        "tunnel_id",
        "role",
        "other",
    ]);
    leaf.prop_recursive(4, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_written_reads_the_same(mut networks in prop::collection::btree_map(any_key(),
        any_interface(), 0..4)) {
        for (key, interface) in &mut networks {
            interface.nad = matches!(key, NetworkKey::Nad { .. }).then(|| key.to_string());
        }
        let annotation = written(&networks);
        prop_assert_eq!(parse(&annotation).unwrap(), networks, "{}", annotation);
    }

    #[test]
    fn any_text_is_read_or_refused(text in ".*") {
        let _ = parse(&text);
    }

    #[test]
    fn any_json_is_read_or_refused_by_name(json in any_json()) {
        if let Err(error) = parse(&json.to_string()) {
            prop_assert!(error.to_string().starts_with("annotation k8s.ovn.org/pod-networks"), "{}",
                error);
        }
    }
}
