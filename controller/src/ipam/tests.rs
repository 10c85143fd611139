use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::name::ObjectName;

fn subnets(text: &str) -> Subnets {
    let networks = text.split(',').map(|one| one.parse().unwrap()).collect();
    Subnets::new(networks)
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn claim(
    addresses: &mut Addresses,
    number: u32,
    whose: (&str, &str),
    had: &[IpNet],
    now: Instant,
) -> Result<Vec<IpNet>, AddressError> {
    let had = Had {
        addresses: had.to_vec(),
        mac: None,
    };
    let whose = (&whose.0.into(), &whose.1.into());
    let claimed = addresses.claim(&pod(number), whose, &had, &Request::default(), now);
    claimed.map(|assigned| assigned.addresses.clone())
}

fn pod(number: u32) -> ObjectName {
    ("ns".into(), format!("p{number}").into())
}

#[test]
fn a_cluster_subnet_that_can_not_be_divided_is_refused_by_name() {
    let table = r#"
        10.244.0.0/16 => expected three parts
        10.244.0.0/16/x => no number
        10.244.0/16/24 => no network
        10.244.0.1/16/24 => bits beyond
        10.244.0.0/16/15 => does not fit
        10.244.0.0/16/30 => does not fit
        fd00::/48/126 => does not fit
    "#;
    for case in table.trim().lines() {
        let (text, problem) = case.trim().split_once(" => ").unwrap();
        let error = text.parse::<ClusterSubnet>().unwrap_err().to_string();
        assert!(
            error.contains(problem) && error.contains(text),
            "{text}: {error}"
        );
    }
}

#[test]
fn nodes_get_the_next_subnet_of_each_family_and_more_networks_extend_one() {
    let mut subnets = subnets("10.0.0.0/25/26,fd00::/56/64,10.9.0.0/26/26");
    for (node, expected) in [
        ("a", ["10.0.0.0/26", "fd00::/64"]),
        ("b", ["10.0.0.64/26", "fd00:0:0:1::/64"]),
        ("c", ["10.9.0.0/26", "fd00:0:0:2::/64"]),
    ] {
        subnets.complete(node).unwrap();
        assert_eq!(subnets.of(node), expected.map(net));
    }
    let error = subnets.complete("d").unwrap_err().to_string();
    assert!(error.contains("10.0.0.0/25, 10.9.0.0/26"), "{error}");
    subnets.release("b");
    subnets.complete("d").unwrap();
    assert_eq!(subnets.of("d")[0], net("10.0.0.64/26"));
}

#[test]
fn what_a_node_had_is_kept_unless_it_is_no_part_of_the_cluster_or_another_s() {
    let mut subnets = subnets("10.0.0.0/16/24");
    let had = ["192.0.2.0/24", "10.0.3.0/25", "10.0.5.0/24", "10.0.6.0/24"].map(net);
    subnets.keep("a", &had).unwrap();
    assert_eq!(subnets.of("a"), [net("10.0.5.0/24")]);
    subnets.keep("a", &had).unwrap();
    let taken = SubnetError::Taken {
        subnet: net("10.0.5.0/24"),
        holder: "a".to_owned(),
    };
    assert_eq!(subnets.keep("b", &[net("10.0.5.0/24")]), Err(taken));
}

#[test]
fn a_freed_address_rests_before_another_pod_gets_it() {
    let (mut addresses, now) = (Addresses::default(), Instant::now());
    addresses.set_node("n", &[net("10.0.0.0/29")]);
    let take = |addresses: &mut Addresses, number, now| {
        let claimed = claim(addresses, number, ("uid", "n"), &[], now);
        claimed.map(|claimed| claimed[0].addr().to_string())
    };
    for (number, expected) in [(3, "10.0.0.3"), (4, "10.0.0.4"), (5, "10.0.0.5")] {
        assert_eq!(take(&mut addresses, number, now).as_deref(), Ok(expected));
    }
    assert_eq!(take(&mut addresses, 4, now).as_deref(), Ok("10.0.0.4"));
    take(&mut addresses, 6, now).unwrap();
    assert!(matches!(
        take(&mut addresses, 7, now),
        Err(AddressError::Full { .. })
    ));
    addresses.release(&pod(4), now);
    let Err(AddressError::Resting { until, .. }) = take(&mut addresses, 7, now) else {
        panic!("the address is given at once");
    };
    assert_eq!(until - now, Duration::from_secs(30));
    assert_eq!(take(&mut addresses, 7, until).as_deref(), Ok("10.0.0.4"));
}

#[test]
fn a_pod_keeps_what_it_had_where_it_can() {
    let (mut addresses, now) = (Addresses::default(), Instant::now());
    addresses.set_node("n", &[net("10.0.0.0/24"), net("fd00::/64")]);
    let had = ["10.0.0.77/24", "fd00::4d/64"].map(net);
    let claimed = claim(&mut addresses, 1, ("uid", "n"), &had, now).unwrap();
    assert_eq!(claimed, had);
    // Another one's, one that is nobody's to have, and one of elsewhere.
    let had = ["10.0.0.77/24", "fd00::1/64", "192.0.2.9/24"].map(net);
    let claimed = claim(&mut addresses, 2, ("uid", "n"), &had, now).unwrap();
    assert_eq!(claimed, ["10.0.0.78/24", "fd00::4e/64"].map(net));
    // Another pod of the name is another pod.
    let claimed = claim(&mut addresses, 1, ("other", "n"), &[], now).unwrap();
    assert_eq!(claimed[0], net("10.0.0.79/24"));
}

proptest! {
    #[test]
    fn no_two_pods_ever_share_an_address(
        steps in proptest::collection::vec((0..20_u32, 0..2_u8, any::<bool>(), 0..40_u64), 1..200),
    ) {
        let mut addresses = Addresses::default();
        let mut now = Instant::now();
        addresses.set_node("n0", &[net("10.0.0.0/28")]);
        addresses.set_node("n1", &[net("10.0.1.0/28")]);
        for (number, node, is_there, seconds) in steps {
            now += Duration::from_secs(seconds);
            let node = format!("n{node}");
            if is_there {
                let _ = claim(&mut addresses, number, (&node, &node), &[], now);
            } else {
                addresses.release(&pod(number), now);
            }
            let mut all: Vec<_> = (0..20)
                .filter_map(|it| Some(addresses.of(&pod(it))?.addresses.clone()))
                .flatten()
                .collect();
            let count = all.len();
            all.sort();
            all.dedup();
            prop_assert_eq!(all.len(), count);
            let is_for_pods = |it: &IpNet| (3..15).any(|place| nth(it.trunc(), place) == *it);
            prop_assert!(all.iter().all(is_for_pods));
        }
    }

    #[test]
    fn an_annotation_says_what_was_written(places in proptest::collection::btree_set(3..200_u32,
        1..3)) {
        let addresses: Vec<_> = places.iter().map(|place| nth(net("10.0.0.0/24"), *place))
            .collect();
        let mac = "02:00:00:00:00:0A".parse().unwrap();
        let mut assigned = Assigned { addresses, mac };
        let written = write_pod_networks(&assigned);
        let had = Had { addresses: assigned.addresses.clone(), mac: Some(mac) };
        prop_assert_eq!(read_pod_networks(&written), had);
        prop_assert!(read_pod_networks(&written).is(&assigned));
        assigned.mac = super::mac(assigned.addresses[0].addr());
        prop_assert!(!read_pod_networks(&written).is(&assigned));
    }
}

#[test]
fn a_request_is_met_or_refused_with_a_reason() {
    let (mut addresses, now) = (Addresses::default(), Instant::now());
    addresses.set_node("n", &[net("10.0.0.0/24"), net("fd00::/64")]);
    let mut take = |number, ips, mac| {
        let request = Request::parse(ips, mac).map_err(|error| error.to_string())?;
        let claimed = addresses.claim(
            &pod(number),
            (&"uid".into(), &"n".into()),
            &Had::default(),
            &request,
            now,
        );
        let claimed = claimed.map_err(|error| error.to_string())?;
        let first = claimed.addresses[0].addr();
        Ok::<_, String>(format!(
            "{first} {} {}",
            claimed.addresses[1].addr(),
            claimed.mac
        ))
    };
    let given = take(1, Some("10.0.0.77, fd00::77"), Some("02:00:00:00:00:01"));
    assert_eq!(given.unwrap(), "10.0.0.77 fd00::77 02:00:00:00:00:01");
    // What it does not ask for it gets as any other.
    let given = take(2, Some("fd00::9"), None);
    assert_eq!(given.unwrap(), "10.0.0.78 fd00::9 0a:58:0a:00:00:4e");
    let own = take(3, Some("10.0.0.80"), Some("0a:58:0a:00:00:50"));
    assert!(own.is_ok(), "{own:?}");
    for (ips, mac, reason) in [
        (
            Some("10.0.0.77"),
            None,
            "requests 10.0.0.77, which pod ns/p1 has",
        ),
        (
            Some("10.0.1.9"),
            None,
            "node's subnets are 10.0.0.0/24, fd00::/64",
        ),
        (Some("10.0.0.2"), None, "without their first three"),
        (Some("10.0.0.255"), None, "and the last"),
        (Some("10.0.0.9,10.0.0.10"), None, "one family"),
        (
            Some("ten"),
            None,
            "podwire.io/ip-addresses: \"ten\" is no IP address",
        ),
        (
            None,
            Some("02:00:00:00:00:01"),
            "02:00:00:00:00:01, which pod ns/p1 has",
        ),
        (None, Some("0a:58:0a:00:00:63"), "begin with 0a:58"),
        (None, Some("01:00:5e:00:00:01"), "podwire.io/mac-address"),
    ] {
        let refused = take(9, ips, mac).unwrap_err();
        assert!(refused.contains(reason), "{refused}");
    }
    // One that another pod has left may be asked for at once.
    addresses.release(&pod(1), now);
    let request = Request::parse(Some("10.0.0.77"), Some("02:00:00:00:00:01")).unwrap();
    let again = addresses.claim(
        &pod(4),
        (&"uid".into(), &"n".into()),
        &Had::default(),
        &request,
        now,
    );
    assert_eq!(again.unwrap().addresses[0], net("10.0.0.77/24"));
}

#[test]
fn the_pod_cidrs_of_a_node_are_its_subnets_unless_another_has_a_part_of_them() {
    let mut subnets = Subnets::new(Vec::new());
    let texts = |list: &[&str]| list.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
    subnets
        .assign("a", &texts(&["fd00:1::/64", "10.1.0.0/24"]))
        .unwrap();
    assert_eq!(subnets.of("a"), ["10.1.0.0/24", "fd00:1::/64"].map(net));
    subnets.assign("a", &texts(&["10.1.0.0/24"])).unwrap();
    assert_eq!(subnets.of("a"), ["10.1.0.0/24"].map(net));
    for (list, reason) in [
        (&[][..], "--allocate-node-cidrs"),
        (&["10.1.0.0/16"], "node a has 10.1.0.0/24"),
        (&["10.2.0.0/30"], "no room"),
        (&["10.2.0.0/24", "10.3.0.0/24"], "one of each family"),
        (&["ten"], "no network"),
    ] {
        let refused = subnets.assign("b", &texts(list)).unwrap_err().to_string();
        assert!(refused.contains(reason), "{refused}");
        assert_eq!(subnets.of("b"), []);
    }
}

#[test]
fn networks_that_overlap_are_found() {
    let networks =
        ["10.0.0.0/16/24", "fd00::/48/64", "10.0.9.0/24/26"].map(|it| it.parse().unwrap());
    assert_eq!(ClusterSubnet::overlapping(&networks[..2]), None);
    let found = ClusterSubnet::overlapping(&networks);
    assert_eq!(found, Some((net("10.0.0.0/16"), net("10.0.9.0/24"))));
}

#[test]
fn a_mac_is_the_one_that_the_node_role_and_ovn_kubernetes_derive() {
    let mac = |ip: &str| super::mac(ip.parse().unwrap()).to_string();
    // From ovn-kubernetes' own test of IPAddrToHWAddr.
    assert_eq!(mac("192.168.1.5"), "0a:58:c0:a8:01:05");
    assert_eq!(mac("fd01::1234"), "0a:58:11:37:a6:26");
}

#[test]
fn a_pod_keeps_the_mac_that_was_derived_in_another_way_before() {
    let (mut addresses, now) = (Addresses::default(), Instant::now());
    addresses.set_node("n", &[net("fd00::/64")]);
    let mut mac_of = |number, mac: &str| {
        let had = Had {
            addresses: vec![net(&format!("fd00::{number}/64"))],
            mac: Some(mac.parse().unwrap()),
        };
        let whose = (&"uid".into(), &"n".into());
        let claimed = addresses.claim(&pod(number), whose, &had, &Request::default(), now);
        claimed.unwrap().mac.to_string()
    };
    assert_eq!(mac_of(5, "0a:58:00:00:00:05"), "0a:58:00:00:00:05");
    // Another address' is not its own.
    let own = mac("fd00::6".parse().unwrap()).to_string();
    assert_eq!(mac_of(6, "0a:58:00:00:00:07"), own);
}
