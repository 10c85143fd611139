use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

fn subnets(text: &str) -> Subnets {
    let networks = text.split(',').map(|one| one.parse().unwrap()).collect();
    Subnets::new(networks)
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn pod(number: u32) -> (String, String) {
    ("ns".to_owned(), format!("p{number}"))
}

#[test]
fn a_cluster_subnet_that_can_not_be_divided_is_refused_by_name() {
    for (text, problem) in [
        ("10.244.0.0/16", "not three parts"),
        ("10.244.0.0/16/x", "no number"),
        ("10.244.0/16/24", "no network"),
        ("10.244.0.1/16/24", "bits beyond"),
        ("10.244.0.0/16/15", "does not fit"),
        ("10.244.0.0/16/30", "does not fit"),
        ("fd00::/48/126", "does not fit"),
    ] {
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
    let claim = |addresses: &mut Addresses, number, now| {
        let claimed = addresses.claim(&pod(number), ("uid", "n"), &[], now);
        claimed.map(|claimed| claimed[0].addr().to_string())
    };
    for (number, expected) in [(3, "10.0.0.3"), (4, "10.0.0.4"), (5, "10.0.0.5")] {
        assert_eq!(claim(&mut addresses, number, now).as_deref(), Ok(expected));
    }
    assert_eq!(claim(&mut addresses, 4, now).as_deref(), Ok("10.0.0.4"));
    claim(&mut addresses, 6, now).unwrap();
    assert!(matches!(
        claim(&mut addresses, 7, now),
        Err(AddressError::Full { .. })
    ));
    addresses.release(&pod(4), now);
    let Err(AddressError::Resting { until, .. }) = claim(&mut addresses, 7, now) else {
        panic!("the address is given at once");
    };
    assert_eq!(until - now, Duration::from_secs(30));
    assert_eq!(claim(&mut addresses, 7, until).as_deref(), Ok("10.0.0.4"));
}

#[test]
fn a_pod_keeps_what_it_had_where_it_can() {
    let (mut addresses, now) = (Addresses::default(), Instant::now());
    addresses.set_node("n", &[net("10.0.0.0/24"), net("fd00::/64")]);
    let had = ["10.0.0.77/24", "fd00::4d/64"].map(net);
    let claimed = addresses.claim(&pod(1), ("uid", "n"), &had, now).unwrap();
    assert_eq!(claimed, had);
    // Another one's, one that is nobody's to have, and one of elsewhere.
    let had = ["10.0.0.77/24", "fd00::1/64", "192.0.2.9/24"].map(net);
    let claimed = addresses.claim(&pod(2), ("uid", "n"), &had, now).unwrap();
    assert_eq!(claimed, ["10.0.0.78/24", "fd00::4e/64"].map(net));
    // Another pod of the name is another pod.
    let claimed = addresses.claim(&pod(1), ("other", "n"), &[], now).unwrap();
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
                let _ = addresses.claim(&pod(number), (&node, &node), &[], now);
            } else {
                addresses.release(&pod(number), now);
            }
            let mut all: Vec<_> = (0..20).flat_map(|it| addresses.of(&pod(it)).to_vec()).collect();
            let count = all.len();
            all.sort();
            all.dedup();
            prop_assert_eq!(all.len(), count);
            let is_for_pods = |it: &IpNet| (3..15).any(|place| nth(it.trunc(), place) == *it);
            prop_assert!(all.iter().all(is_for_pods));
        }
    }

    #[test]
    fn an_annotation_says_what_was_written(places in proptest::collection::btree_set(3..200_u32, 1..3)) {
        let addresses: Vec<_> = places.iter().map(|place| nth(net("10.0.0.0/24"), *place)).collect();
        let written = write_pod_networks(&addresses).unwrap();
        prop_assert_eq!(read_pod_networks(&written), addresses.clone());
        prop_assert!(pod_networks_say(&written, &addresses));
        prop_assert!(!pod_networks_say(&written, &addresses[1..]));
    }
}
