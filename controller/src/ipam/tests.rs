mod requests;
mod shared;

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::key::Attachment;
use podwire_cluster::ObjectName;

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
    recorded: &[IpNet],
    now: Instant,
) -> Result<Vec<IpNet>, AddressError> {
    claim_as(addresses, number, whose, former(recorded, false), now)
}

fn claim_as(
    addresses: &mut Addresses,
    number: u32,
    whose: (&str, &str),
    former: FormerAddresses,
    now: Instant,
) -> Result<Vec<IpNet>, AddressError> {
    let whose = (&whose.0.into(), &whose.1.into());
    let nothing = || Ok(Request::default());
    let claimed = addresses.claim(&pod(number), whose, &[former], nothing, now);
    claimed.map(|assigned| assigned.addresses.clone())
}

fn former(addresses: &[IpNet], is_certain: bool) -> FormerAddresses {
    let addresses = addresses.to_vec();
    let recorded = RecordedAddresses {
        addresses,
        ..RecordedAddresses::default()
    };
    FormerAddresses {
        recorded,
        is_certain,
    }
}

const REST: Duration = Duration::from_secs(30);

fn pod(number: u32) -> Attachment {
    let pod: ObjectName = ("ns".into(), format!("p{number}").into());
    pod.into()
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
fn what_a_node_had_is_kept_unless_it_is_another_s_and_refused_if_the_cluster_has_not_got_it() {
    let mut subnets = subnets("10.0.0.0/16/24,fd00::/56/64");
    for foreign in ["192.0.2.0/24", "10.0.3.0/25", "10.0.0.0/16", "10.0.3.7/24"] {
        let recorded = [net("fd00:0:0:7::/64"), net(foreign)];
        let error = subnets.keep("a", &recorded).unwrap_err().to_string();
        let named = "which is no part of --cluster-subnets 10.0.0.0/16/24,fd00::/56/64";
        assert!(
            error.contains(foreign) && error.contains(named),
            "{foreign}: {error}"
        );
        assert_eq!(subnets.of("a"), []);
    }
    let recorded = ["fd00:0:0:7::/64", "10.0.5.0/24", "10.0.6.0/24"].map(net);
    subnets.keep("a", &recorded).unwrap();
    assert_eq!(subnets.of("a"), ["10.0.5.0/24", "fd00:0:0:7::/64"].map(net));
    // What it has decides, whatever its annotation becomes.
    subnets.keep("a", &[net("192.0.2.0/24")]).unwrap();
    assert_eq!(subnets.of("a"), ["10.0.5.0/24", "fd00:0:0:7::/64"].map(net));
    let taken = SubnetError::Taken {
        subnet: net("10.0.5.0/24"),
        holder: "a".to_owned(),
        other: net("10.0.5.0/24"),
    };
    assert_eq!(subnets.keep("b", &[net("10.0.5.0/24")]), Err(taken));
}

#[test]
fn what_exists_is_held_though_the_setting_has_another_length_and_nothing_overlaps_it() {
    let mut subnets = subnets("10.0.0.0/22/25");
    let is_outside = |subnet: &str| subnets.outside(&[net(subnet)]).is_some();
    assert!(!is_outside("10.0.1.0/24") && is_outside("10.0.4.0/24") && is_outside("fd00::/64"));
    subnets.hold("a", [net("10.0.1.0/24"), net("10.0.3.0/24")]);
    subnets.hold("b", [net("10.0.0.0/23"), net("10.0.1.128/25")]);
    assert_eq!(subnets.of("a"), [net("10.0.1.0/24")]);
    assert_eq!(subnets.of("b"), []);
    let mut next = |node: &str| {
        subnets.complete(node).unwrap();
        subnets.of(node)[0].to_string()
    };
    let given = ["b", "c", "d", "e"].map(&mut next);
    let expected = [
        "10.0.0.0/25",
        "10.0.0.128/25",
        "10.0.2.0/25",
        "10.0.2.128/25",
    ];
    assert_eq!(given, expected);
}

#[test]
fn a_freed_address_rests_before_another_pod_gets_it() {
    let (mut addresses, now) = (Addresses::new(Layout::Nodes, REST), Instant::now());
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
    assert_eq!(until - now, REST);
    // A transaction failed, and the row may still have the address.
    let later = now + Duration::from_secs(20);
    addresses.rest_again(&pod(4).pod, later);
    assert!(take(&mut addresses, 7, until).is_err());
    assert_eq!(addresses.unused_from("n", later), None);
    assert_eq!(
        take(&mut addresses, 7, later + REST).as_deref(),
        Ok("10.0.0.4")
    );
    for number in 0..10 {
        addresses.release(&pod(number), now);
    }
    assert_eq!(addresses.unused_from("n", now), Some(now + REST));
    assert_eq!(addresses.unused_from("n", now + REST), Some(now + REST));
}

#[test]
fn what_a_pod_runs_with_it_keeps_or_is_told_who_else_has_it() {
    let (mut addresses, now) = (Addresses::new(Layout::Nodes, REST), Instant::now());
    addresses.set_node("n", &[net("10.0.0.0/24"), net("fd00::/64")]);
    let recorded = [net("10.0.0.77/32")];
    let claimed = claim_as(
        &mut addresses,
        1,
        ("uid", "n"),
        former(&recorded, true),
        now,
    )
    .unwrap();
    // It began when its node had one family.
    assert_eq!(claimed, [net("10.0.0.77/24")]);
    let twice = claim_as(
        &mut addresses,
        2,
        ("uid", "n"),
        former(&recorded, true),
        now,
    );
    let told = twice.unwrap_err().to_string();
    assert!(
        told.contains("10.0.0.77, which pod ns/p1 has too"),
        "{told}"
    );
    assert_eq!(addresses.of(&pod(2)), None);
    // An annotation proves nothing, so it gets another.
    let claimed = claim(&mut addresses, 2, ("uid", "n"), &recorded, now).unwrap();
    assert_eq!(claimed, ["10.0.0.78/24", "fd00::3/64"].map(net));
    // A family more for the node is no reason to give its pods others.
    addresses.set_node("m", &[net("10.0.1.0/24")]);
    let claimed = claim(&mut addresses, 3, ("uid", "m"), &[], now).unwrap();
    assert!(addresses.set_node("m", &[net("10.0.1.0/24"), net("fd00:1::/64")]));
    assert_eq!(addresses.of(&pod(3)).unwrap().addresses, claimed);
    let other = claim(&mut addresses, 4, ("uid", "m"), &[], now).unwrap();
    assert_eq!(other, ["10.0.1.4/24", "fd00:1::3/64"].map(net));
}

#[test]
fn a_pod_keeps_what_it_had_where_it_can() {
    let (mut addresses, now) = (Addresses::new(Layout::Nodes, REST), Instant::now());
    addresses.set_node("n", &[net("10.0.0.0/24"), net("fd00::/64")]);
    let recorded = ["10.0.0.77/24", "fd00::4d/64"].map(net);
    let claimed = claim(&mut addresses, 1, ("uid", "n"), &recorded, now).unwrap();
    assert_eq!(claimed, recorded);
    // Another one's, one that is nobody's to have, and one of elsewhere.
    let recorded = ["10.0.0.77/24", "fd00::1/64", "192.0.2.9/24"].map(net);
    let claimed = claim(&mut addresses, 2, ("uid", "n"), &recorded, now).unwrap();
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
        let mut addresses = Addresses::new(Layout::Nodes, REST);
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
    fn an_annotation_says_what_was_written(places in proptest::collection::btree_set(3..200_u128,
        1..3)) {
        let addresses: Vec<_> = places.iter().map(|place| nth(net("10.0.0.0/24"), *place))
            .collect();
        let mac = "02:00:00:00:00:0A".parse().unwrap();
        let mut assigned = Assigned { addresses, mac };
        let written = pod_network(&assigned.addresses, mac);
        let recorded = RecordedAddresses {
            addresses: assigned.addresses.clone(),
            mac: Some(mac),
            is_exact: true,
            is_locked: false,
        };
        prop_assert_eq!(read_pod_network(&written), recorded);
        let mut other = written.clone();
        other["gateway_ips"] = json!([]);
        prop_assert!(!read_pod_network(&other).is(&assigned));
        prop_assert!(read_pod_network(&written).is(&assigned));
        assigned.mac = super::mac(assigned.addresses[0].addr());
        prop_assert!(!read_pod_network(&written).is(&assigned));
    }
}

#[test]
fn the_pod_cidrs_of_a_node_are_its_subnets_unless_another_has_a_part_of_them() {
    let mut subnets = Subnets::new(Vec::new());
    let texts = |list: &[&str]| list.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
    let own = subnets.pod_cidrs("a", &texts(&["fd00:1::/64", "10.1.0.0/24"]));
    assert_eq!(own, Ok(["10.1.0.0/24", "fd00:1::/64"].map(net).to_vec()));
    subnets.hold("a", own.unwrap());
    assert!(subnets.pod_cidrs("a", &texts(&["10.1.0.0/24"])).is_ok());
    for (list, reason) in [
        (&[][..], "--allocate-node-cidrs"),
        (&["10.1.0.0/16"], "node a has 10.1.0.0/24"),
        (&["10.2.0.0/30"], "no room"),
        (&["10.2.0.0/24", "10.3.0.0/24"], "one of each family"),
        (&["ten"], "no network"),
    ] {
        let refused = subnets.pod_cidrs("b", &texts(list)).unwrap_err();
        assert!(refused.to_string().contains(reason), "{refused}");
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
