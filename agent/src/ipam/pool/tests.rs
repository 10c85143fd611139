use super::*;

fn pools(subnets: &[&str]) -> Pools {
    Pools::new(subnets.iter().map(|text| text.parse().unwrap()).collect()).unwrap()
}

fn owner(container_id: &str) -> Owner {
    Owner {
        network: "pods".to_owned(),
        container_id: container_id.to_owned(),
        ifname: "eth0".to_owned(),
        pod: Some(format!("default/pod-{container_id}")),
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The addresses that `container_id` is given, as text.
fn allocate(pools: &mut Pools, container_id: &str) -> Vec<String> {
    let given = pools.allocate(&owner(container_id)).unwrap();
    given
        .iter()
        .map(|allocated| allocated.address.to_string())
        .collect()
}

#[test]
fn an_attachment_gets_one_address_of_each_family_with_its_subnets_prefix_and_gateway() {
    let mut pools = pools(&["fd00::/64", "10.0.0.0/24", "10.1.0.0/24"]);
    let expected =
        [("10.0.0.2/24", "10.0.0.1"), ("fd00::2/64", "fd00::1")].map(|(address, gateway)| {
            Allocated {
                address: address.parse().unwrap(),
                gateway: ip(gateway),
            }
        });
    assert_eq!(pools.allocate(&owner("a")).unwrap(), expected);
    assert_eq!(
        pools.addresses_of(&owner("a")),
        [ip("10.0.0.2"), ip("fd00::2")]
    );
}

#[test]
fn a_full_subnet_spills_over_into_the_next_of_its_family() {
    let mut pools = pools(&["10.0.0.0/30", "10.1.0.0/24"]);
    assert_eq!(allocate(&mut pools, "a"), ["10.0.0.2/30"]);
    assert_eq!(allocate(&mut pools, "b"), ["10.1.0.2/24"]);
    pools.release(ip("10.0.0.2"), &owner("a")).unwrap();
    assert_eq!(allocate(&mut pools, "c"), ["10.0.0.2/30"]);
}

#[test]
fn an_allocation_that_fails_in_one_family_takes_nothing_of_the_other() {
    let mut pools = pools(&["10.0.0.0/24", "fd00::/127"]);
    allocate(&mut pools, "a");
    let before = pools.usage();
    let error = pools.allocate(&owner("b")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no IPv6 address is left for pod default/pod-b, sandbox b, eth0: fd00::/127: 1 of 1 in use"
    );
    assert_eq!(pools.usage(), before);
    assert_eq!(pools.addresses_of(&owner("b")), [] as [IpAddr; 0]);
    // The address that was not taken is the next one's.
    pools.release_all(&owner("a"));
    assert_eq!(allocate(&mut pools, "c"), ["10.0.0.3/24", "fd00::1/127"]);
}

#[test]
fn exhaustion_names_every_subnet_of_the_family_with_its_size_and_use() {
    let mut pools = pools(&["10.0.0.0/29", "10.1.0.0/30", "fd00::/64"]);
    for n in 0..6 {
        allocate(&mut pools, &n.to_string());
    }
    let error = pools
        .allocate(&owner("0123456789abcdef"))
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "no IPv4 address is left for pod default/pod-0123456789abcdef, sandbox 0123456789ab, eth0: \
         10.0.0.0/29: 5 of 5 in use, 10.1.0.0/30: 1 of 1 in use"
    );
}

#[test]
fn pools_without_a_subnet_say_so() {
    let error = pools(&[]).allocate(&owner("a")).unwrap_err().to_string();
    assert_eq!(
        error,
        "there is no subnet to allocate an address for pod default/pod-a, sandbox a, eth0 from; \
         with `--subnet node`, `podwire node run --mode plain` provides the node's"
    );
}

#[test]
fn overlapping_subnets_are_refused() {
    for (one, other) in [
        ("10.0.0.0/16", "10.0.4.0/24"),
        ("10.0.4.0/24", "10.0.0.0/16"),
        ("fd00::/64", "fd00::/64"),
    ] {
        let specs = vec![
            one.parse().unwrap(),
            "10.9.0.0/24".parse().unwrap(),
            other.parse().unwrap(),
        ];
        let error = Pools::new(specs).unwrap_err();
        assert!(
            matches!(error, SpecError::SubnetsOverlap { .. }),
            "{one} {other}: {error}"
        );
    }
}

#[test]
fn a_released_address_comes_back_last_and_the_oldest_first() {
    let mut pools = pools(&["10.0.0.0/29"]);
    for (container, address) in [
        ("a", "10.0.0.2/29"),
        ("b", "10.0.0.3/29"),
        ("c", "10.0.0.4/29"),
    ] {
        assert_eq!(allocate(&mut pools, container), [address]);
    }
    for container in ["b", "a", "c"] {
        assert_eq!(pools.release_all(&owner(container)).len(), 1);
    }
    let order: Vec<_> = (0..5)
        .flat_map(|n| allocate(&mut pools, &n.to_string()))
        .collect();
    assert_eq!(
        order,
        [
            "10.0.0.5/29",
            "10.0.0.6/29",
            "10.0.0.3/29",
            "10.0.0.2/29",
            "10.0.0.4/29"
        ]
    );
}

#[test]
fn a_claimed_address_is_not_handed_out() {
    let mut pools = pools(&["10.0.0.0/29"]);
    let claimed = pools.claim(ip("10.0.0.3"), &owner("static")).unwrap();
    assert_eq!(claimed.address.to_string(), "10.0.0.3/29");
    assert_eq!(claimed.gateway, ip("10.0.0.1"));
    assert_eq!(allocate(&mut pools, "a"), ["10.0.0.2/29"]);
    assert_eq!(allocate(&mut pools, "b"), ["10.0.0.4/29"]);
}

#[test]
fn a_taken_address_is_refused_to_all_but_its_owner_who_is_named() {
    let mut pools = pools(&["10.0.0.0/24"]);
    pools
        .claim(ip("10.0.0.9"), &owner("4f1c9be0a7d25566"))
        .unwrap();
    let error = pools.claim(ip("10.0.0.9"), &owner("b")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "address 10.0.0.9 belongs to pod default/pod-4f1c9be0a7d25566, sandbox 4f1c9be0a7d2, eth0"
    );
    let without_pod = Owner {
        pod: None,
        ..owner("4f1c9be0a7d25566")
    };
    pools.claim(ip("10.0.0.9"), &without_pod).unwrap();
    assert_eq!(pools.addresses_of(&without_pod), [ip("10.0.0.9")]);
}

#[test]
fn an_address_outside_of_every_subnet_is_refused_with_the_subnets() {
    let mut pools = pools(&["10.0.0.0/24", "fd00::/64"]);
    let error = pools
        .claim(ip("10.0.1.9"), &owner("a"))
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "address 10.0.1.9 is in none of the node's subnets (10.0.0.0/24, fd00::/64)"
    );
}

#[test]
fn a_reserved_address_is_refused_with_what_it_is() {
    let mut pools = pools(&["10.0.0.0/24,exclude=10.0.0.64/28", "fd00::/64"]);
    let table = r#"
        10.0.0.0 => pods can't have address 10.0.0.0: it is the network address of 10.0.0.0/24
        10.0.0.255 => pods can't have address 10.0.0.255: it is the broadcast address of 10.0.0.0/24
        10.0.0.1 => pods can't have address 10.0.0.1: it is the gateway of 10.0.0.0/24
        10.0.0.70 => pods can't have address 10.0.0.70: it is the excluded part 10.0.0.64/28 of 10.0.0.0/24
        fd00:: => pods can't have address fd00::: it is the subnet-router anycast address of fd00::/64
    "#;
    for case in table.trim().lines() {
        let (address, expected) = case.trim().split_once(" => ").unwrap();
        assert_eq!(
            pools
                .claim(ip(address), &owner("a"))
                .unwrap_err()
                .to_string(),
            expected
        );
    }
}

#[test]
fn a_static_address_may_lie_beside_the_ranges_and_does_not_count_against_them() {
    let mut pools = pools(&["10.0.0.0/24,range=10.0.0.100-10.0.0.101"]);
    pools.claim(ip("10.0.0.9"), &owner("static")).unwrap();
    let usage = pools.usage()[0];
    assert_eq!(
        (usage.capacity, usage.used, usage.claimed_beside_ranges),
        (2, 0, 1)
    );
    pools.release(ip("10.0.0.9"), &owner("static")).unwrap();
    assert_eq!(pools.usage()[0].claimed_beside_ranges, 0);
    allocate(&mut pools, "a");
    allocate(&mut pools, "b");
    assert!(
        pools.allocate(&owner("c")).is_err(),
        "10.0.0.9 is never handed out unasked"
    );
}

#[test]
fn only_its_owner_releases_an_address_and_once_more_does_no_harm() {
    let mut pools = pools(&["10.0.0.0/24"]);
    allocate(&mut pools, "a");
    let error = pools.release(ip("10.0.0.2"), &owner("b")).unwrap_err();
    assert!(matches!(error, PoolError::Taken { holder, .. } if holder == owner("a")));
    assert_eq!(pools.owner_of(ip("10.0.0.2")), Some(&owner("a")));
    assert_eq!(pools.release(ip("10.0.0.2"), &owner("a")), Ok(true));
    assert_eq!(pools.release(ip("10.0.0.2"), &owner("a")), Ok(false));
    assert_eq!(pools.release(ip("192.0.2.1"), &owner("a")), Ok(false));
    assert_eq!(pools.addresses_of(&owner("a")), [] as [IpAddr; 0]);
    assert!(pools.release_all(&owner("a")).is_empty());
}

#[test]
fn a_restored_cursor_goes_on_behind_the_last_address_and_lets_the_released_rest() {
    let mut before = pools(&["10.0.0.0/29"]);
    for container in ["a", "b", "c"] {
        allocate(&mut before, container);
    }
    before.release_all(&owner("c"));
    before.release_all(&owner("a"));
    let kept = serde_json::to_string(&before.cursor()).unwrap();
    assert_eq!(
        kept,
        r#"[{"subnet":"10.0.0.0/29","next":"10.0.0.5","resting":["10.0.0.4","10.0.0.2"]}]"#
    );

    let mut after = pools(&["10.0.0.0/29"]);
    after.claim(ip("10.0.0.3"), &owner("b")).unwrap();
    after.restore_cursor(&serde_json::from_str::<Vec<Cursor>>(&kept).unwrap());
    let order: Vec<_> = (0..4)
        .flat_map(|n| allocate(&mut after, &n.to_string()))
        .collect();
    assert_eq!(
        order,
        ["10.0.0.5/29", "10.0.0.6/29", "10.0.0.4/29", "10.0.0.2/29"]
    );
}

#[test]
fn an_address_before_the_cursor_that_was_never_used_goes_before_a_released_one() {
    let mut pools = pools(&["10.0.0.0/29"]);
    let text = r#"[{"subnet":"10.0.0.0/29","next":"10.0.0.5"}]"#;
    pools.restore_cursor(&serde_json::from_str::<Vec<Cursor>>(text).unwrap());
    assert_eq!(allocate(&mut pools, "a"), ["10.0.0.5/29"]);
    pools.release_all(&owner("a"));
    let order: Vec<_> = (0..5)
        .flat_map(|n| allocate(&mut pools, &n.to_string()))
        .collect();
    assert_eq!(
        order,
        [
            "10.0.0.6/29",
            "10.0.0.2/29",
            "10.0.0.3/29",
            "10.0.0.4/29",
            "10.0.0.5/29"
        ]
    );
}

#[test]
fn a_cursor_that_no_longer_fits_is_passed_over() {
    let text = r#"[{"subnet":"10.9.0.0/24","next":"10.9.0.7"},
                   {"subnet":"10.0.0.0/29","next":"fd00::1","resting":["10.0.0.1","10.0.0.2","fd00::9"]}]"#;
    let mut pools = pools(&["10.0.0.0/29,exclude=10.0.0.3"]);
    pools.claim(ip("10.0.0.2"), &owner("a")).unwrap();
    pools.restore_cursor(&serde_json::from_str::<Vec<Cursor>>(text).unwrap());
    assert_eq!(pools.owner_of(ip("10.0.0.2")), Some(&owner("a")));
    assert_eq!(pools.cursor()[0].next, None);
    let order: Vec<_> = (0..3)
        .flat_map(|n| allocate(&mut pools, &n.to_string()))
        .collect();
    assert_eq!(order, ["10.0.0.4/29", "10.0.0.5/29", "10.0.0.6/29"]);
    assert!(pools.allocate(&owner("z")).is_err());
}

#[test]
fn what_rests_in_a_subnet_that_never_wraps_is_bounded() {
    let mut pools = pools(&["fd00::/64"]);
    let first = allocate(&mut pools, "first");
    pools.release_all(&owner("first"));
    for n in 0..RESTING_MAX + 100 {
        let container = n.to_string();
        assert_ne!(allocate(&mut pools, &container), first);
        pools.release_all(&owner(&container));
    }
    assert_eq!(pools.subnets[0].resting_len(), RESTING_MAX);
    assert_eq!(pools.cursor()[0].resting.len(), RESTING_KEPT);
}

#[test]
fn a_huge_subnet_counts_its_addresses_and_costs_no_more_than_a_small_one() {
    let mut pools = pools(&["fc00::/8"]);
    assert_eq!(pools.usage()[0].capacity, (1 << 120) - 2);
    assert_eq!(allocate(&mut pools, "a"), ["fc00::2/8"]);
}

#[test]
fn an_owner_reads_as_operators_know_it() {
    assert_eq!(
        owner("0123456789abcdef").to_string(),
        "pod default/pod-0123456789abcdef, sandbox 0123456789ab, eth0"
    );
    let without_pod = Owner {
        pod: None,
        ..owner("ab")
    };
    assert_eq!(without_pod.to_string(), "sandbox ab, eth0");
}
