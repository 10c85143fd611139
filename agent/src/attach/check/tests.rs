use ipnet::{IpNet, Ipv4Net};
use podwire_cni::spec::CniVersion;
use podwire_netns::{LinkState, ObservedRoute};

use super::*;

/// RT_TABLE_MAIN (rtnetlink(7)).
const MAIN_TABLE: u32 = 254;

fn prev() -> CniResult {
    CniResult::from_json(
        br#"{"cniVersion":"1.1.0",
            "interfaces":[{"name":"h","mac":"fe:00:00:00:00:01"},
                          {"name":"eth0","mac":"0a:58:0a:01:02:03","mtu":1400,"sandbox":"/run/netns/a"}],
            "ips":[{"address":"10.1.2.3/24","gateway":"10.1.2.1","interface":1},{"address":"fd00::3/64","interface":1}],
            "routes":[{"dst":"0.0.0.0/0","gw":"10.1.2.1"},{"dst":"10.9.0.0/16"}]}"#,
    )
    .unwrap()
}

fn seen() -> Observed {
    let route = |dst: &str, gateway: Option<&str>| ObservedRoute {
        dst: dst.parse().unwrap(),
        gateway: gateway.map(|text| text.parse().unwrap()),
        mtu: None,
        priority: 0,
        table: MAIN_TABLE,
        scope: 0,
        protocol: 4,
    };
    Observed {
        link: LinkState {
            ifindex: 2,
            name: "eth0".into(),
            up: true,
            mac: Some([0x0a, 0x58, 0x0a, 1, 2, 3].into()),
            mtu: 1400,
            kind: Some("veth".into()),
            peer_ifindex: Some(7),
            group: 0,
            master: None,
        },
        addresses: vec![
            "10.1.2.3/24".parse().unwrap(),
            "fd00::3/64".parse().unwrap(),
            "fe80::1/64".parse().unwrap(),
        ],
        routes: vec![
            route("0.0.0.0/0", Some("10.1.2.1")),
            route("10.9.0.0/16", None),
            route("10.1.2.0/24", None),
        ],
        defaults_elsewhere: Vec::new(),
        tx_checksum: None,
    }
}

/// Every difference, and what puts each right.
fn all(prev: &CniResult, seen: Option<&Observed>) -> Vec<Difference> {
    let mut found = pod_differences(prev, 1, &prev.interfaces[1], seen, "");
    let seen: Vec<(usize, Observed)> = seen.map(|seen| (1, seen.clone())).into_iter().collect();
    found.extend(lost_routes(prev, &seen, ""));
    found
}

fn found(prev: &CniResult, seen: Option<&Observed>) -> Option<String> {
    all(prev, seen).into_iter().next().map(|it| it.what)
}

#[test]
fn a_default_route_that_was_moved_to_another_link_is_not_lost_and_others_are() {
    let mut seen = seen();
    seen.routes.clear();
    let lost = |seen: &Observed| lost_routes(&prev(), &[(1, seen.clone())], "").len();
    let all = lost(&seen);
    seen.defaults_elsewhere.push(IpNet::V4(Ipv4Net::default()));
    assert_eq!(lost(&seen), all - 1, "of one default route");
}

#[test]
fn each_thing_that_went_with_an_address_has_its_own_command() {
    let mut seen = seen();
    seen.addresses.clear();
    seen.routes.clear();
    let fixes: Vec<String> = all(&prev(), Some(&seen))
        .into_iter()
        .flat_map(|it| it.fix)
        .collect();
    assert_eq!(
        fixes,
        [
            "ip addr add 10.1.2.3/24 dev eth0",
            "ip addr add fd00::3/64 dev eth0 nodad",
            "ip route add 0.0.0.0/0 via 10.1.2.1 dev eth0",
            "ip route add 10.9.0.0/16 dev eth0",
        ]
    );
}

#[test]
fn a_next_hop_in_no_subnet_of_the_pod_is_set_as_on_the_link() {
    let mut prev = prev();
    prev.routes[0].gw = Some("169.254.1.1".parse().unwrap());
    prev.routes[0].priority = Some(100);
    let lost = all(&prev, Some(&seen()));
    assert_eq!(
        lost[0].fix.as_deref(),
        Some("ip route add 0.0.0.0/0 via 169.254.1.1 dev eth0 metric 100 onlink")
    );
}

#[test]
fn what_add_answered_is_no_difference_in_any_version() {
    for version in CniVersion::ALL {
        let prev = CniResult::from_json(prev().to_json(version).as_bytes()).unwrap();
        assert_eq!(found(&prev, Some(&seen())), None, "{version}");
    }
}

#[test]
fn each_difference_is_told_in_words() {
    type Change = fn(&mut Observed);
    let cases: [(Change, &str); 6] = [
        (|it| it.link.up = false, "interface eth0 is down"),
        (
            |it| it.link.mac = Some([0x0a; 6].into()),
            "interface eth0 has MAC 0a:0a:0a:0a:0a:0a, and should have 0a:58:0a:01:02:03",
        ),
        (
            |it| it.link.mtu = 1500,
            "interface eth0 has MTU 1500, and should have 1400",
        ),
        (
            |it| _ = it.addresses.remove(0),
            "interface eth0 has lost address 10.1.2.3/24",
        ),
        (
            |it| _ = it.addresses.remove(1),
            "interface eth0 has lost address fd00::3/64",
        ),
        (
            |it| _ = it.routes.remove(0),
            "interface eth0 has lost the route to 0.0.0.0/0 by 10.1.2.1",
        ),
    ];
    for (change, expected) in cases {
        let mut seen = seen();
        change(&mut seen);
        assert_eq!(found(&prev(), Some(&seen)).as_deref(), Some(expected));
    }
    assert_eq!(
        found(&prev(), None).as_deref(),
        Some("the pod has no interface eth0")
    );
    let mut rerouted = seen();
    rerouted.routes[0].gateway = Some("10.1.2.9".parse().unwrap());
    assert!(found(&prev(), Some(&rerouted)).is_some());
}

#[test]
fn what_a_later_plugin_changed_and_wrote_into_prev_result_is_no_difference() {
    let (mut prev, mut seen) = (prev(), seen());
    prev.interfaces[1].mac = Some("02:00:00:00:00:09".into());
    prev.interfaces[1].mtu = Some(1300);
    seen.link.mac = Some([2, 0, 0, 0, 0, 9].into());
    seen.link.mtu = 1300;
    assert_eq!(found(&prev, Some(&seen)), None);
}
