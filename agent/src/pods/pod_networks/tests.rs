use std::collections::BTreeMap;

use macaddr::MacAddr6;
use podwire_netns::Route;

use super::*;

/// Every entry of the annotation.
pub(super) fn parse(
    annotation: &str,
) -> Result<BTreeMap<NetworkKey, InterfaceSpec>, AnnotationError> {
    let networks = PodNetworks::parse(annotation)?;
    let interface = |key: NetworkKey| Ok((key.clone(), networks.interface(&key)?.unwrap()));
    networks.keys().map(interface).collect()
}

fn key(text: &str) -> NetworkKey {
    text.parse().unwrap()
}

fn refusal(annotation: &str) -> String {
    parse(annotation).unwrap_err().to_string()
}

/// The refusal of a default network with these members beside a MAC.
fn entry_refusal(members: &str) -> String {
    refusal(&format!(
        r#"{{"default":{{"mac_address":"0a:58:0a:f4:00:05",{members}}}}}"#
    ))
}

#[test]
fn an_entry_of_ovn_kubernetes_is_read_whole() {
    let annotation = r#"{"default":{
        "ip_addresses":["10.244.0.5/24","fd00:10:244::5/64"],
        "mac_address":"0a:58:0a:f4:00:05",
        "gateway_ips":["10.244.0.1","fd00:10:244::1"],
        "routes":[{"dest":"10.96.0.0/16","nextHop":"10.244.0.1"},{"dest":"fd00:10:96::/112"}],
        "ipv6_lla_gateway_ip":"fe80::858:aff:fef4:1",
        "mtu":1400,"tunnel_id":7,"role":"primary","added_later":{"by":"a newer controller"}}}"#;
    let route = |dst: &str, gateway: Option<&str>| {
        Route::new(
            dst.parse().unwrap(),
            gateway.map(|gateway| gateway.parse().unwrap()),
        )
    };
    let expected = InterfaceSpec {
        mac: Some(MacAddr6::new(0x0a, 0x58, 0x0a, 0xf4, 0, 5)),
        addresses: vec![
            "10.244.0.5/24".parse().unwrap(),
            "fd00:10:244::5/64".parse().unwrap(),
        ],
        gateways: vec![
            "10.244.0.1".parse().unwrap(),
            "fd00:10:244::1".parse().unwrap(),
        ],
        routes: vec![
            route("10.96.0.0/16", Some("10.244.0.1")),
            route("fd00:10:96::/112", None),
        ],
        mtu: Some(1400),
        ..InterfaceSpec::default()
    };
    assert_eq!(
        parse(annotation).unwrap(),
        BTreeMap::from([(NetworkKey::Default, expected)])
    );
}

#[test]
fn a_mac_alone_is_enough_and_what_is_null_or_empty_is_absent() {
    let bare = r#"{"a/b":{"mac_address":"0a:58:0a:f4:00:05"}}"#;
    let empty = r#"{"a/b":{"mac_address":"0A-58-0A-F4-00-05","ip_addresses":null,"ip_address":"","gateway_ips":[],
        "gateway_ip":null,"routes":null,"ipv6_lla_gateway_ip":"","mtu":null,"tunnel_id":0,"role":""}}"#;
    let entry = parse(bare).unwrap().remove(&key("a/b")).unwrap();
    assert!(entry.addresses.is_empty() && entry.gateways.is_empty() && entry.routes.is_empty());
    assert_eq!(entry.mtu, None);
    assert_eq!(parse(empty).unwrap()[&key("a/b")], entry);
    assert_eq!(parse("{}").unwrap(), BTreeMap::new());
}

#[test]
fn the_singular_members_stand_for_lists_of_one_and_may_repeat_their_first() {
    let mac = r#""mac_address":"0a:58:0a:f4:00:05""#;
    let singular = r#""ip_address":"10.244.0.5/24","gateway_ip":"10.244.0.1""#;
    let plural = r#""ip_addresses":["10.244.0.5/24"],"gateway_ips":["10.244.0.1"]"#;
    let entry = |members: &str| parse(&format!(r#"{{"default":{{{mac},{members}}}}}"#)).unwrap();
    assert_eq!(entry(singular), entry(plural));
    assert_eq!(entry(&format!("{singular},{plural}")), entry(plural));
}

#[test]
fn a_host_part_of_an_address_stays_and_that_of_a_destination_goes() {
    let annotation = r#"{"default":{"mac_address":"0a:58:0a:f4:00:05","ip_addresses":["10.244.0.5/24"],
        "routes":[{"dest":"10.96.3.4/16"}]}}"#;
    let entry = &parse(annotation).unwrap()[&NetworkKey::Default];
    assert_eq!(entry.addresses[0].to_string(), "10.244.0.5/24");
    assert_eq!(entry.routes[0].dst.to_string(), "10.96.0.0/16");
}

#[test]
fn every_role_is_known() {
    for (role, is_locked, is_primary) in [
        ("primary", false, true),
        ("secondary", false, false),
        ("infrastructure-locked", true, false),
    ] {
        let annotation =
            format!(r#"{{"ns/nad":{{"mac_address":"0a:58:0a:f4:00:05","role":"{role}"}}}}"#);
        parse(&annotation).unwrap();
        let networks = PodNetworks::parse(&annotation).unwrap();
        assert_eq!(
            networks.is_locked(&key("ns/nad")).unwrap(),
            is_locked,
            "{role}"
        );
        assert_eq!(networks.primary().unwrap().is_some(), is_primary, "{role}");
    }
}

#[test]
fn a_link_local_gateway_stands_in_for_an_ipv6_one() {
    let gateways = |gateways: &str| {
        let annotation = format!(
            r#"{{"default":{{"mac_address":"0a:58:0a:f4:00:05","ip_addresses":["10.1.0.2/24","fd00::2/64"],
                "gateway_ips":{gateways},"ipv6_lla_gateway_ip":"fe80::1"}}}}"#
        );
        let gateways = parse(&annotation)
            .unwrap()
            .remove(&NetworkKey::Default)
            .unwrap()
            .gateways;
        gateways.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(gateways(r#"["10.1.0.1"]"#), ["10.1.0.1", "fe80::1"]);
    assert_eq!(gateways(r#"["fd00::1"]"#), ["fd00::1"]);
    assert_eq!(gateways("[]"), ["fe80::1"]);
}

#[test]
fn networks_are_told_apart_by_key() {
    let mac = r#"{"mac_address":"0a:58:0a:f4:00:05"}"#;
    let annotation =
        format!(r#"{{"default":{mac},"ns/nad":{mac},"ns/nad/1":{mac},"ns-2/nad.x/12":{mac}}}"#);
    let keys: Vec<_> = parse(&annotation)
        .unwrap()
        .into_keys()
        .map(|key| key.to_string())
        .collect();
    assert_eq!(keys, ["default", "ns/nad", "ns/nad/1", "ns-2/nad.x/12"]);
}

#[test]
fn what_is_wrong_with_one_network_keeps_no_other_from_the_pod() {
    let annotation =
        r#"{"default":{"mac_address":"0a:58:0a:f4:00:05"},"ns/bad":{"mac_address":"x"},"??":7}"#;
    let networks = PodNetworks::parse(annotation).unwrap();
    assert!(networks.interface(&NetworkKey::Default).unwrap().is_some());
    assert!(networks.interface(&key("ns/bad")).is_err());
    assert_eq!(networks.interface(&key("ns/other")).unwrap(), None);
    assert_eq!(
        networks.keys().collect::<Vec<_>>(),
        [NetworkKey::Default, key("ns/bad")]
    );
}

#[test]
fn a_refused_annotation_is_named_with_network_and_value() {
    let table = r#"
        { => : "{": not JSON: EOF while parsing an object at line 1 column 1
        [] => : []: not an object
        {"default":[]} => , network default: []: not an object
        {"default":{}} => , network default, mac_address: missing
        {"default":{"mac_address":null}} => , network default, mac_address: missing
        {"default":{"mac_address":""}} => , network default, mac_address: missing
        {"default":{"mac_address":7}} => , network default, mac_address: 7: not a string
        {"default":{"mac_address":"0a:58"}} => , network default, mac_address: "0a:58": not a MAC address of six bytes
        {"default":{"mac_address":"00:00:00:00:00:00"}} => , network default, mac_address: "00:00:00:00:00:00": not a MAC address for an interface: it is all zero
        {"default":{"mac_address":"01:58:0a:f4:00:05"}} => , network default, mac_address: "01:58:0a:f4:00:05": not a MAC address for an interface: it is a multicast address
    "#;
    for case in table.trim().lines() {
        let (annotation, expected) = case.trim().split_once(" => ").unwrap();
        let expected = format!("annotation k8s.ovn.org/pod-networks{expected}");
        assert_eq!(refusal(annotation), expected, "{annotation}");
    }
    let expected = "annotation k8s.ovn.org/pod-networks: \"\": not JSON: EOF while parsing a value \
                    at line 1 column 0";
    assert_eq!(refusal(""), expected);
}

#[test]
fn a_refused_member_is_named_with_its_value() {
    let table = r#"
        "ip_addresses":"10.0.0.5/24" => ip_addresses: "10.0.0.5/24": not a list
        "ip_addresses":[5] => ip_addresses[0]: 5: not a string
        "ip_addresses":["10.0.0.5/24",""] => ip_addresses[1]: "": not an address with a prefix length
        "ip_addresses":["10.0.0.300/24"] => ip_addresses[0]: "10.0.0.300/24": not an address with a prefix length
        "ip_addresses":["10.0.0.5"] => ip_addresses[0]: "10.0.0.5": not an address with a prefix length
        "ip_addresses":["fd00::5/129"] => ip_addresses[0]: "fd00::5/129": not an address with a prefix length
        "ip_addresses":["0.0.0.0/24"] => ip_addresses[0]: "0.0.0.0/24": not an address for an interface: it is the unspecified address
        "ip_addresses":["ff02::1/64"] => ip_addresses[0]: "ff02::1/64": not an address for an interface: it is a multicast address
        "ip_addresses":["127.0.0.1/8"] => ip_addresses[0]: "127.0.0.1/8": not an address for an interface: it is a loopback address
        "ip_addresses":["8.8.8.8/0"] => ip_addresses[0]: "8.8.8.8/0": not an address for an interface: it is in a network larger than any (its prefix is shorter than 8 bits)
        "ip_addresses":["fd00::5/0"] => ip_addresses[0]: "fd00::5/0": not an address for an interface: it is in a network larger than any (its prefix is shorter than 8 bits)
        "ip_addresses":["169.254.169.254/32"] => ip_addresses[0]: "169.254.169.254/32": not an address for an interface: it is an IPv4 link-local address
        "ip_addresses":["255.255.255.255/32"] => ip_addresses[0]: "255.255.255.255/32": not an address for an interface: it is the broadcast address
        "ip_addresses":["0.1.2.3/24"] => ip_addresses[0]: "0.1.2.3/24": not an address for an interface: it is an address of "this network" (0.0.0.0/8)
        "ip_addresses":["::ffff:10.0.0.5/120"] => ip_addresses[0]: "::ffff:10.0.0.5/120": not an address for an interface: it is an IPv4 address written as an IPv6 one
        "ip_addresses":["::1/128"] => ip_addresses[0]: "::1/128": not an address for an interface: it is a loopback address
        "gateway_ips":["127.0.0.1"] => gateway_ips[0]: "127.0.0.1": not an address for an interface: it is a loopback address
        "gateway_ips":["::ffff:10.0.0.1"] => gateway_ips[0]: "::ffff:10.0.0.1": not an address for an interface: it is an IPv4 address written as an IPv6 one
        "routes":[{"dest":"10.96.0.0/16","nextHop":"255.255.255.255"}] => routes[0].nextHop: "255.255.255.255": not an address for an interface: it is the broadcast address
        "ip_addresses":["10.0.0.5/24","10.0.0.5/16"] => ip_addresses[1]: "10.0.0.5/16": is listed twice
        "ip_address":"10.0.0.5" => ip_address: "10.0.0.5": not an address with a prefix length
        "ip_address":"10.0.0.6/24","ip_addresses":["10.0.0.5/24"] => ip_address: "10.0.0.6/24": conflicts with ip_addresses, which begins with "10.0.0.5/24"
        "gateway_ips":["10.0.0.1/24"] => gateway_ips[0]: "10.0.0.1/24": not an IP address
        "gateway_ips":["10.0.0.1","::"] => gateway_ips[1]: "::": not an address for an interface: it is the unspecified address
        "gateway_ips":["224.0.0.1"] => gateway_ips[0]: "224.0.0.1": not an address for an interface: it is a multicast address
        "gateway_ip":"10.0.0.2","gateway_ips":["10.0.0.1"] => gateway_ip: "10.0.0.2": conflicts with gateway_ips, which begins with "10.0.0.1"
        "routes":{} => routes: {}: not a list
        "routes":["10.96.0.0/16"] => routes[0]: "10.96.0.0/16": not an object
        "routes":[{"nextHop":"10.0.0.1"}] => routes[0].dest: missing
        "routes":[{"dest":"10.96.0.0"}] => routes[0].dest: "10.96.0.0": not an address with a prefix length
        "routes":[{"dest":"0.0.0.0/0"}] => routes[0].dest: "0.0.0.0/0": a default route: it belongs in gateway_ips
        "routes":[{"dest":"::/0","nextHop":"fd00::1"}] => routes[0].dest: "::/0": a default route: it belongs in gateway_ips
        "routes":[{"dest":"10.96.0.0/16","nextHop":"gw"}] => routes[0].nextHop: "gw": not an IP address
        "routes":[{"dest":"10.96.0.0/16"},{"dest":"10.97.0.0/16","nextHop":"fd00::1"}] => routes[1].nextHop: "fd00::1": not in the address family of its destination 10.97.0.0/16
        "routes":[{"dest":"fd00:1::/64","nextHop":"10.0.0.1"}] => routes[0].nextHop: "10.0.0.1": not in the address family of its destination fd00:1::/64
        "mtu":67 => mtu: 67: not an MTU between 68 and 65535
        "mtu":65536 => mtu: 65536: not an MTU between 68 and 65535
        "mtu":"1400" => mtu: "1400": not an MTU between 68 and 65535
        "mtu":1400.5 => mtu: 1400.5: not an MTU between 68 and 65535
        "mtu":-1 => mtu: -1: not an MTU between 68 and 65535
        "ip_addresses":["10.0.0.5/24","fd00::5/64"],"mtu":1279 => mtu: 1279: not an MTU between 1280 and 65535, as IPv6 needs
        "ipv6_lla_gateway_ip":"fd00::1" => ipv6_lla_gateway_ip: "fd00::1": not a link-local IPv6 address (fe80::/10)
        "ipv6_lla_gateway_ip":"169.254.0.1" => ipv6_lla_gateway_ip: "169.254.0.1": not a link-local IPv6 address (fe80::/10)
        "ipv6_lla_gateway_ip":"fe80" => ipv6_lla_gateway_ip: "fe80": not a link-local IPv6 address (fe80::/10)
        "role":"leader" => role: "leader": not a role; there are primary, secondary and infrastructure-locked
        "role":1 => role: 1: not a string
    "#;
    for case in table.trim().lines() {
        let (members, expected) = case.trim().split_once(" => ").unwrap();
        let expected = format!("annotation k8s.ovn.org/pod-networks, network default, {expected}");
        assert_eq!(entry_refusal(members), expected, "{members}");
    }
}

#[test]
fn the_bounds_of_an_mtu_are_allowed() {
    let mtu = |members: &str| {
        let annotation =
            format!(r#"{{"default":{{"mac_address":"0a:58:0a:f4:00:05",{members}}}}}"#);
        parse(&annotation).unwrap()[&NetworkKey::Default]
            .mtu
            .unwrap()
    };
    assert_eq!(mtu(r#""mtu":68,"ip_addresses":["10.0.0.5/24"]"#), 68);
    assert_eq!(mtu(r#""mtu":65535"#), 65535);
    assert_eq!(mtu(r#""mtu":1280,"ip_addresses":["fd00::5/64"]"#), 1280);
}

#[test]
fn a_long_value_is_shortened_in_its_refusal() {
    let error = entry_refusal(&format!(r#""role":"{}""#, "é".repeat(5000)));
    assert!(
        error.len() < 500 && error.contains("… (10002 bytes)"),
        "{error}"
    );
}

#[test]
fn an_annotation_larger_than_kubernetes_allows_is_refused_by_its_size() {
    let most = 256 << 10;
    let text = format!("{{{}}}", " ".repeat(most - 2));
    assert_eq!(parse(&text).unwrap(), BTreeMap::new());
    assert_eq!(
        refusal(&format!("{text} ")),
        "annotation k8s.ovn.org/pod-networks: 262145 bytes long; at most 262144 are allowed"
    );
}

#[test]
fn what_nobody_reads_refuses_no_pod() {
    for tunnel_id in ["-4", "4294967296", r#""four""#, "{}"] {
        let annotation = format!(
            r#"{{"default":{{"mac_address":"0a:58:0a:f4:00:05","tunnel_id":{tunnel_id}}}}}"#
        );
        parse(&annotation).unwrap();
    }
}

#[test]
fn deep_nesting_is_refused_and_not_followed() {
    let deep = format!(r#"{{"default":{}"#, "[".repeat(100_000));
    assert!(refusal(&deep).contains("recursion limit exceeded"));
}
