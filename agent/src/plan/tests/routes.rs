use super::*;

#[test]
fn gateways_become_default_routes_and_link_routes_come_before_those_that_need_them() {
    let mut interface = spec(&["10.1.2.3/24", "fd00::3/64"], &["10.1.2.1", "fd00::1"]);
    interface.routes = vec![
        route("10.9.0.7/16", Some("10.1.2.9")),
        route("10.8.0.0/16", None),
    ];
    let ports = planned(&[interface]).unwrap();
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
    let ports = planned(&[spec(
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
fn next_hops_that_lead_nowhere_are_refused() {
    assert_eq!(
        refusal(spec(&["10.1.2.3/24"], &["fd00::1"])),
        "gateway fd00::1 of eth0 needs an IPv6 address on the interface, which has none"
    );
    assert_eq!(
        refusal(spec(&["10.1.2.3/24"], &["10.1.2.3"])),
        "gateway 10.1.2.3 of eth0 is the interface's own address"
    );
    assert_eq!(
        refusal(spec(&["10.1.2.3/24"], &["224.0.0.1"])),
        "gateway 224.0.0.1 of eth0 is a multicast address"
    );
    let with_route = |dst, gateway| InterfaceSpec {
        routes: vec![route(dst, Some(gateway))],
        ..spec(&["10.1.2.3/24", "fd00::3/64"], &[])
    };
    assert_eq!(
        refusal(with_route("10.9.0.0/16", "fd00::1")),
        "route 10.9.0.0/16 of eth0 has gateway fd00::1: one is IPv4, the other IPv6"
    );
}
