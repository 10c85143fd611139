use proptest::prelude::*;

use super::*;

/// `*` on 172.16.24.2/24 and net0 on 172.16.26.2/24 and fd26::2/64.
fn interfaces() -> Vec<InterfaceSpec> {
    let interface = |name: Option<&str>, addresses: &[&str]| InterfaceSpec {
        pod_ifname: name.map(str::to_owned),
        addresses: addresses
            .iter()
            .map(|address| address.parse().unwrap())
            .collect(),
        ..InterfaceSpec::default()
    };
    vec![
        interface(None, &["172.16.24.2/24"]),
        interface(Some("net0"), &["172.16.26.2/24", "fd26::2/64"]),
    ]
}

/// For each interface its gateways and its routes, as text.
fn applied(annotation: &str) -> Vec<String> {
    let mut interfaces = interfaces();
    apply(annotation, &mut interfaces).unwrap();
    let route = |route: &Route| format!("{} via {}", route.dst, route.gateway.unwrap());
    let interface = |interface: &InterfaceSpec| {
        let gateways = interface
            .gateways
            .iter()
            .map(|gateway| format!("default via {gateway}"));
        gateways
            .chain(interface.routes.iter().map(route))
            .collect::<Vec<_>>()
            .join(", ")
    };
    interfaces.iter().map(interface).collect()
}

#[test]
fn a_route_goes_to_its_dev_or_to_the_interface_that_reaches_its_gateway() {
    let annotation = r#"[{"dst":"172.16.29.1/24","gw":"172.16.24.1"},{"dst":"172.16.30.0/24","gw":"172.16.26.1"},
        {"dst":"fd30::/64","gw":"fd26::1"},{"dst":"172.16.31.0/24","gw":"10.9.9.9","dev":"net0"},
        {"dst":"172.16.32.0/24","gw":"172.16.26.9","dev":"*"}]"#;
    let star = "172.16.29.0/24 via 172.16.24.1, 172.16.32.0/24 via 172.16.26.9";
    let net0 = "172.16.30.0/24 via 172.16.26.1, fd30::/64 via fd26::1, 172.16.31.0/24 via 10.9.9.9";
    assert_eq!(applied(annotation), [star, net0]);
}

#[test]
fn a_default_route_becomes_a_gateway_and_only_once() {
    let annotation = r#"[{"dst":"0.0.0.0/0","gw":"172.16.26.1"},{"dst":"0.0.0.0/0","gw":"172.16.26.1","dev":"net0"},
        {"dst":"::/0","gw":"fd26::1"}]"#;
    assert_eq!(
        applied(annotation),
        ["", "default via 172.16.26.1, default via fd26::1"]
    );
}

#[test]
fn a_default_route_beside_an_interface_that_has_one_is_refused_by_name() {
    let refusal = |annotation: &str| {
        let mut interfaces = interfaces();
        interfaces[0].gateways = vec!["172.16.24.1".parse().unwrap()];
        apply(annotation, &mut interfaces).map_err(|error| error.to_string())
    };
    let expected = r#"annotation ovnNetworkRoutes, [0].dst: "0.0.0.0/0": a second default gateway of the pod; * has the first"#;
    for gateway in ["172.16.26.1", "172.16.24.9"] {
        let annotation = format!(r#"[{{"dst":"0.0.0.0/0","gw":"{gateway}"}}]"#);
        assert_eq!(refusal(&annotation).unwrap_err(), expected);
    }
    for same_or_of_another_family in [
        r#"[{"dst":"0.0.0.0/0","gw":"172.16.24.1"}]"#,
        r#"[{"dst":"::/0","gw":"fd26::1"}]"#,
    ] {
        refusal(same_or_of_another_family).unwrap();
    }
    let two = r#"[{"dst":"0.0.0.0/0","gw":"172.16.24.1"},{"dst":"0.0.0.0/0","gw":"172.16.26.1"}]"#;
    assert!(apply(two, &mut interfaces()).is_err());
}

#[test]
fn each_refusal_names_element_field_and_value() {
    let table = r#"
        {} => : {}: not a list
        [7] => , [0]: 7: not an object
        [{"gw":"172.16.24.1"}] => , [0].dst: missing
        [{"dst":"10.0.0.0","gw":"172.16.24.1"}] => , [0].dst: "10.0.0.0": not an address with a prefix length
        [{"dst":"10.0.0.0/8"}] => , [0].gw: missing
        [{"dst":"10.0.0.0/8","gw":"x"}] => , [0].gw: "x": not an IP address
        [{"dst":"10.0.0.0/8","gw":"fd26::1"}] => , [0].gw: "fd26::1": not in the address family of its destination 10.0.0.0/8
        [{"dst":"10.0.0.0/8","gw":"10.9.9.9"}] => , [0].gw: "10.9.9.9": not within the subnet of any of the pod's interfaces, so the route needs a dev
        [{"dst":"10.0.0.0/8","gw":"172.16.24.1","dev":"net7"}] => , [0].dev: "net7": none of the pod's interfaces
    "#;
    for case in table.trim().lines() {
        let (annotation, expected) = case.trim().split_once(" => ").unwrap();
        let error = apply(annotation, &mut interfaces())
            .unwrap_err()
            .to_string();
        assert_eq!(error, format!("annotation ovnNetworkRoutes{expected}"));
    }
}

proptest! {
    #[test]
    fn any_routes_are_applied_or_refused(
        text in r#"\[\{"dst":"[0-9a-f:./]{0,12}","gw":"[0-9a-f:.]{0,12}","dev":"[a-z0-9*]{0,5}"\}\]"#
    ) {
        let _ = apply(&text, &mut interfaces());
    }
}
