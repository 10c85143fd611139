use proptest::prelude::*;

use super::*;

const POD_NETWORKS: (&str, &str) = (
    pod_networks::ANNOTATION,
    r#"{"default":{"mac_address":"0a:00:00:00:00:01"},"ns/nad":{"mac_address":"0a:00:00:00:00:02"}}"#,
);
const ANSWER: (&str, &str) = (
    ovn_interfaces::ANNOTATION,
    r#"[{"ip_address":"10.1.0.2/24","mac_address":"0a:00:00:00:00:03","interface":"net0"}]"#,
);
const LATER_ANSWER: (&str, &str) = (
    ovn_interfaces::LATER_ANNOTATION,
    r#"[{"ip_address":"10.1.0.2/24","mac_address":"0a:00:00:00:00:04","interface":"net0"}]"#,
);
const WISH: (&str, &str) = (
    ovn_network::ANNOTATION,
    r#"{"ovnNetwork":[{"name":"a","interface":"net0"}],"ovnNetworkRoutes":[{"dst":"10.8.0.0/16","gw":"10.1.0.8"}]}"#,
);
const FOREIGN_WISH: (&str, &str) = (ovn_network::LATER_ANNOTATION, r#"{"type":"sriov"}"#);
const ROUTES: (&str, &str) = (
    ovn_routes::ANNOTATION,
    r#"[{"dst":"10.9.0.0/16","gw":"10.1.0.9"}]"#,
);
const OVN: (&str, &str) = (
    ovn::ANNOTATION,
    r#"{"ip_address":"10.1.0.2/24","mac_address":"0a:00:00:00:00:05","gateway_ip":"10.1.0.1"}"#,
);

/// The last byte of the first interface's MAC, which tells whose word was heard, and its routes.
fn heard(network: &str, annotations: &[(&str, &str)]) -> Option<(u8, Vec<String>)> {
    let interfaces = read(network, "eth0", &[], annotations)?;
    let first = &interfaces[0];
    let routes = first
        .routes
        .iter()
        .map(|route| route.dst.to_string())
        .collect();
    Some((first.mac.unwrap().into_array()[5], routes))
}

#[test]
fn beside_a_default_network_for_the_infrastructure_the_primary_one_is_wired_too() {
    let locked = r#""default":{"mac_address":"0a:00:00:00:00:01","ip_addresses":["10.244.1.7/24"],
        "gateway_ips":["10.244.1.1"],"routes":[{"dest":"10.244.0.0/16","nextHop":"10.244.1.1"}],"role":"infrastructure-locked"}"#;
    let primary = r#""blue/udn":{"mac_address":"0a:00:00:00:00:02","ip_addresses":["10.200.0.3/24"],
        "gateway_ips":["10.200.0.1"],"tunnel_id":4,"role":"primary"}"#;
    let further = r#""blue/net":{"mac_address":"nonsense","role":"secondary"}"#;
    let read = |network, ifname, entries: &[&str]| {
        let text = format!("{{{}}}", entries.join(","));
        read(network, ifname, &[], &[(pod_networks::ANNOTATION, &text)])
    };
    assert_eq!(
        read("default", "eth0", &[locked]),
        None,
        "the controller has still to write the other"
    );
    let both = read("default", "eth0", &[locked, primary, further]).unwrap();
    let [default, udn] = &both[..] else {
        panic!("{both:?}");
    };
    assert_eq!(
        (default.pod_ifname.as_deref(), default.gateways.len()),
        (None, 0)
    );
    assert_eq!(default.routes.len(), 1);
    assert_eq!(udn.pod_ifname.as_deref(), Some("ovn-udn1"));
    assert_eq!(udn.nad.as_deref(), Some("blue/udn"));
    assert_eq!(
        udn.gateways,
        ["10.200.0.1".parse::<std::net::IpAddr>().unwrap()]
    );

    let alone = read("default", "net1", &[locked, primary]).unwrap();
    assert_eq!(alone.len(), 1, "a later interface of the default network");
    let alone = read("blue/udn", "net1", &[locked, primary]).unwrap();
    assert_eq!(alone.len(), 1, "a delegate's");
    let usual = locked.replace("infrastructure-locked", "primary");
    assert_eq!(read("default", "eth0", &[&usual]).unwrap().len(), 1);
    let second = primary.replace("blue/udn", "blue/other");
    let both = format!("{{{locked},{primary},{second}}}");
    let annotations = BTreeMap::from([(pod_networks::ANNOTATION.to_owned(), both)]);
    let attaching = Attaching {
        network: &NetworkKey::Default,
        ifname: "eth0",
        attached: &[],
    };
    let refusal = interfaces(&annotations, &attaching)
        .unwrap_err()
        .to_string();
    assert!(
        refusal.ends_with(r#"role: "primary": is listed twice"#),
        "{refusal}"
    );
}

#[test]
fn the_first_of_the_formats_that_speaks_is_heard() {
    let all = [POD_NETWORKS, ANSWER, LATER_ANSWER, WISH, ROUTES, OVN];
    let routes = |routes: &[&str]| {
        routes
            .iter()
            .map(|route| (*route).to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(heard("default", &all), Some((1, routes(&[]))));
    assert_eq!(heard("ns/nad", &all), Some((2, routes(&[]))));
    assert_eq!(
        heard("default", &all[1..]),
        Some((4, routes(&["10.9.0.0/16"])))
    );
    assert_eq!(
        heard("default", &[ANSWER, WISH, OVN]),
        Some((3, routes(&["10.8.0.0/16"])))
    );
    assert_eq!(heard("default", &[ANSWER, OVN]), Some((3, routes(&[]))));
    assert_eq!(heard("default", &[OVN]), Some((5, routes(&[]))));
}

#[test]
fn a_wish_that_is_not_answered_yet_silences_ovn_and_one_to_another_plugin_does_not() {
    assert_eq!(heard("default", &[WISH, OVN]), None);
    assert_eq!(
        heard("default", &[FOREIGN_WISH, OVN]),
        Some((5, Vec::new()))
    );
}

#[test]
fn only_pod_networks_speaks_of_further_networks() {
    assert_eq!(heard("ns/other", &[POD_NETWORKS, ANSWER, OVN]), None);
    assert_eq!(heard("default", &[]), None);
}

#[test]
fn one_definition_attached_again_gets_the_next_entry_that_is_not_attached_yet() {
    let three = (
        pod_networks::ANNOTATION,
        r#"{"ns/nad/2":{"mac_address":"0a:00:00:00:00:12"},
            "ns/nad/10":{"mac_address":"0a:00:00:00:00:1a"},
            "ns/nad":{"mac_address":"0a:00:00:00:00:10"},
            "ns/other":{"mac_address":"0a:00:00:00:00:20"}, "not a name": 3}"#,
    );
    let key = |attached: &[&str], network: &str| {
        let interfaces = read(network, "net1", attached, &[three])?;
        interfaces[0].nad.clone()
    };
    assert_eq!(key(&[], "ns/nad").as_deref(), Some("ns/nad"));
    assert_eq!(key(&["ns/other"], "ns/nad").as_deref(), Some("ns/nad"));
    assert_eq!(key(&["ns/nad"], "ns/nad").as_deref(), Some("ns/nad/2"));
    assert_eq!(
        key(&["ns/nad/2", "ns/nad"], "ns/nad").as_deref(),
        Some("ns/nad/10")
    );
    assert_eq!(
        key(&["ns/nad/2"], "ns/nad").as_deref(),
        Some("ns/nad"),
        "freed by a DEL"
    );
    assert_eq!(key(&["ns/nad", "ns/nad/2", "ns/nad/10"], "ns/nad"), None);
    assert_eq!(
        key(&[], "ns/nad/2").as_deref(),
        Some("ns/nad/2"),
        "the one that is named"
    );
    assert_eq!(key(&["ns/nad/2"], "ns/nad/2"), None);
    assert_eq!(key(&[], "ns/na"), None);
}

#[test]
fn a_default_route_goes_to_the_first_interface_or_to_one_that_asks_for_it() {
    let entry = r#"{"mac_address":"0a:00:00:00:00:01","ip_addresses":["10.1.0.2/24"],"gateway_ips":["10.1.0.1"],"ipv6_lla_gateway_ip":"fe80::1"}"#;
    let both = format!(r#"{{"default":{entry},"ns/nad":{entry}}}"#);
    let both = (pod_networks::ANNOTATION, both.as_str());
    let asks = |network: &str, ifname: &str, annotation: (&str, &str)| {
        let interfaces = read(network, ifname, &[], &[annotation]).unwrap();
        interfaces[0].gateways.len()
    };
    assert_eq!(asks("default", "eth0", both), 2);
    assert_eq!(
        asks("default", "net1", both),
        0,
        "the entry speaks of the first interface"
    );
    assert_eq!(asks("ns/nad", "net1", both), 2, "written on request only");
    assert_eq!(asks("default", "eth0", OVN), 1);
    assert_eq!(asks("default", "net1", OVN), 0);
    let list = |flag: &str| {
        format!(
            r#"[{{"ip_address":"10.1.0.2/24","mac_address":"0a:00:00:00:00:03","interface":"*","gateway_ip":"10.1.0.1"{flag}}}]"#
        )
    };
    for (flag, gateways) in [
        ("", 0),
        (r#","defaultGateway":"false""#, 0),
        (r#","defaultGateway":"true""#, 1),
    ] {
        let list = list(flag);
        for ifname in ["eth0", "net1"] {
            let annotation = (ovn_interfaces::ANNOTATION, list.as_str());
            assert_eq!(
                asks("default", ifname, annotation),
                gateways,
                "{ifname}{flag}"
            );
        }
    }
}

#[test]
fn the_mtu_of_a_wish_goes_to_the_interface_that_answers_it_unless_the_answer_has_one() {
    let wish = (
        ovn_network::ANNOTATION,
        r#"[{"name":"a","interface":"net0","mtu":"1300"},{"name":"a","interface":"net1","mtu":"1301"},{"name":"a","interface":"net9","mtu":"1309"}]"#,
    );
    let answer = (
        ovn_interfaces::ANNOTATION,
        r#"[{"ip_address":"10.1.0.2/24","mac_address":"0a:00:00:00:00:03","interface":"net0"},
            {"ip_address":"10.2.0.2/24","mac_address":"0a:00:00:00:00:04","interface":"net1","mtu":1200},
            {"ip_address":"10.3.0.2/24","mac_address":"0a:00:00:00:00:05","interface":"*"}]"#,
    );
    let interfaces = read("default", "eth0", &[], &[wish, answer]).unwrap();
    let mtus: Vec<_> = interfaces
        .iter()
        .map(|interface| (interface.pod_ifname.as_deref(), interface.mtu))
        .collect();
    assert_eq!(
        mtus,
        [
            (None, None),
            (Some("net0"), Some(1300)),
            (Some("net1"), Some(1200))
        ]
    );
}

#[test]
fn every_annotation_that_is_heard_is_kept_by_the_sources() {
    for (name, _) in [
        POD_NETWORKS,
        ANSWER,
        LATER_ANSWER,
        WISH,
        FOREIGN_WISH,
        ROUTES,
        OVN,
    ] {
        assert!(super::super::READ.contains(&name), "{name}");
    }
}

fn read(
    network: &str,
    ifname: &str,
    attached: &[&str],
    annotations: &[(&str, &str)],
) -> Option<Vec<InterfaceSpec>> {
    let annotations = annotations
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        .collect();
    let attached: Vec<NetworkKey> = attached.iter().map(|key| key.parse().unwrap()).collect();
    let attaching = Attaching {
        network: &network.parse().unwrap(),
        ifname,
        attached: &attached,
    };
    interfaces(&annotations, &attaching).unwrap()
}

proptest! {
    #[test]
    fn whatever_the_annotations_say_it_is_heard_or_refused_by_the_name_of_one_of_them(
        said in proptest::collection::btree_map(
            proptest::sample::select(&super::super::READ[..]).prop_map(str::to_owned),
            "(\\[|\\{|\")?(\"(default|interface|mac_address|ip_address|name)\":)?[ \
             -~]{0,20}(\\}|\\]|\")?",
            0..5,
        ),
        network in "default|ns/nad",
    ) {
        let attaching = Attaching { network: &network.parse().unwrap(), ifname: "eth0",
            attached: &[] };
        if let Err(error) = interfaces(&said, &attaching) {
            prop_assert!(said.contains_key(error.annotation)
                || error.annotation == ovn_routes::ANNOTATION);
        }
    }

    #[test]
    fn a_network_has_one_spelling(
        text in "default|[a-z0-9./-]{1,12}|[a-z]{1,3}/[a-z]{1,3}(/[0-9]{1,3})?"
    ) {
        if let Ok(key) = text.parse::<NetworkKey>() {
            prop_assert_eq!(key.to_string(), text);
        }
    }
}
