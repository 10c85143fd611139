//! The pools against a model: any order of allocations, claims, releases and restarts.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const SUBNETS: [&str; 3] = [
    "10.0.0.0/28,exclude=10.0.0.8/31",
    "10.1.0.0/29,range=10.1.0.2-10.1.0.4",
    "fd00::/123,gateway=fd00::9",
];

#[derive(Debug, Clone)]
enum Step {
    Allocate { owner: u8 },
    Claim { owner: u8, address: IpAddr },
    Release { owner: u8, address: IpAddr },
    ReleaseAll { owner: u8 },
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let owner = 0..20u8;
    let address = prop_oneof![
        (0..=17u32).prop_map(|low| Family::V4.address(u128::from(0x0a00_0000 + low))),
        (0..=9u32).prop_map(|low| Family::V4.address(u128::from(0x0a01_0000 + low))),
        (0..=33u128).prop_map(|low| Family::V6.address((0xfd << 120) + low)),
    ];
    prop_oneof![
        6 => owner.clone().prop_map(|owner| Step::Allocate { owner }),
        2 => (owner.clone(), address.clone()).prop_map(|(owner, address)| Step::Claim { owner,
            address }),
        2 => (owner.clone(), address).prop_map(|(owner, address)| Step::Release { owner, address }),
        4 => owner.prop_map(|owner| Step::ReleaseAll { owner }),
        1 => Just(Step::Restart),
    ]
}

fn owner(number: u8) -> Owner {
    Owner {
        network: "pods".to_owned(),
        container_id: number.to_string(),
        ifname: "eth0".to_owned(),
        pod: None,
    }
}

/// What must be true, kept in the plainest way: who holds what, and when what was last released.
#[derive(Default)]
struct Model {
    held: BTreeMap<IpAddr, Owner>,
    released: BTreeMap<IpAddr, usize>,
}

impl Model {
    /// All that a subnet could hand out now, the longest unused first: what was never used shares
    /// the first place.
    fn best(&self, spec: &SubnetSpec) -> Vec<IpAddr> {
        let all = spec
            .assignable()
            .into_iter()
            .flat_map(|(first, last)| first..=last);
        let free: Vec<_> = all
            .map(|number| spec.family().address(number))
            .filter(|ip| !self.held.contains_key(ip))
            .collect();
        let age = |ip: &IpAddr| self.released.get(ip).map_or(0, |at| at + 1);
        let least = free.iter().map(age).min();
        free.into_iter()
            .filter(|ip| Some(age(ip)) == least)
            .collect()
    }

    fn check(&self, pools: &Pools) {
        for (address, owner) in &self.held {
            assert_eq!(pools.owner_of(*address), Some(owner), "{address}");
        }
        let held: BTreeMap<_, _> = pools
            .holders()
            .flat_map(|(owner, addresses)| {
                addresses.iter().map(|address| (*address, owner.clone()))
            })
            .collect();
        assert_eq!(held, self.held);
        let used: u128 = pools
            .usage()
            .iter()
            .map(|usage| usage.used + usage.claimed_beside_ranges)
            .sum();
        assert_eq!(used, self.held.len() as u128);
    }
}

fn specs() -> Vec<SubnetSpec> {
    SUBNETS.iter().map(|text| text.parse().unwrap()).collect()
}

/// What the caller does at start: claims what its records say, in any order, and restores the
/// cursor.
fn rebuilt(pools: &Pools, backwards: bool) -> Pools {
    let mut records: Vec<(Owner, IpAddr)> = pools
        .holders()
        .flat_map(|(owner, addresses)| addresses.iter().map(|address| (owner.clone(), *address)))
        .collect();
    if backwards {
        records.reverse();
    }
    let mut rebuilt = Pools::new(specs()).unwrap();
    if backwards {
        rebuilt.restore_cursor(&pools.cursor());
    }
    for (owner, address) in records {
        rebuilt.claim(address, &owner).unwrap();
    }
    if !backwards {
        rebuilt.restore_cursor(&pools.cursor());
    }
    rebuilt
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_address_is_ever_shared_reserved_outside_or_reused_too_soon(
        steps in prop::collection::vec(step(), 1..120)
    ) {
        let specs = specs();
        let mut pools = Pools::new(specs.clone()).unwrap();
        let mut model = Model::default();
        for (now, step) in steps.into_iter().enumerate() {
            match step {
                Step::Allocate { owner: number } => {
                    let room = |family| {
                        specs.iter().filter(|spec| spec.family() == family)
                            .map(|spec| model.best(spec)).find(|best| !best.is_empty())
                    };
                    let expected = [room(Family::V4), room(Family::V6)];
                    match pools.allocate(&owner(number)) {
                        Ok(given) => {
                            prop_assert_eq!(given.len(), 2);
                            for (allocated, best) in given.iter().zip(expected) {
                                let address = allocated.address.addr();
                                prop_assert!(best.is_some_and(|best| best.contains(&address)), "{}",
                                    address);
                                model.held.insert(address, owner(number));
                            }
                        }
                        Err(error) => prop_assert!(expected.contains(&None), "{}", error),
                    }
                }
                Step::Claim { owner: number, address } => {
                    let spec = specs.iter().find(|spec| spec.subnet().contains(&address));
                    match pools.claim(address, &owner(number)) {
                        Ok(_) => {
                            prop_assert!(spec.is_some_and(|spec| spec.reserved(address).is_none()));
                            let before = model.held.insert(address, owner(number));
                            prop_assert!(before.is_none_or(|before| before == owner(number)));
                        }
                        Err(PoolError::Taken { holder, .. }) => {
                            prop_assert_eq!(model.held.get(&address), Some(&holder));
                            prop_assert_ne!(holder, owner(number));
                        }
                        Err(PoolError::OutsideSubnets { .. }) => prop_assert!(spec.is_none()),
                        Err(PoolError::Reserved { reserved, .. }) => {
                            prop_assert_eq!(spec.unwrap().reserved(address), Some(reserved));
                        }
                        Err(other) => prop_assert!(false, "{}", other),
                    }
                }
                Step::Release { owner: number, address } => {
                    match pools.release(address, &owner(number)) {
                        Ok(true) => {
                            prop_assert_eq!(model.held.remove(&address), Some(owner(number)));
                            model.released.insert(address, now * 1000);
                        }
                        Ok(false) => prop_assert!(!model.held.contains_key(&address)),
                        Err(_) => prop_assert!(model.held.get(&address)
                            .is_some_and(|held| *held != owner(number))),
                    }
                }
                Step::ReleaseAll { owner: number } => {
                    // Two addresses of one subnet that go in one step go in this order.
                    for (order, address) in pools.release_all(&owner(number)).into_iter()
                        .enumerate() {
                        prop_assert_eq!(model.held.remove(&address), Some(owner(number)));
                        model.released.insert(address, now * 1000 + order);
                    }
                }
                Step::Restart => {
                    let usage = pools.usage();
                    pools = rebuilt(&pools, now % 2 == 0);
                    prop_assert_eq!(pools.usage(), usage);
                }
            }
            model.check(&pools);
        }
    }

    #[test]
    fn rebuilt_pools_go_on_exactly_as_the_original_would(
        steps in prop::collection::vec(step(), 1..80),
        backwards: bool,
    ) {
        let mut original = Pools::new(specs()).unwrap();
        for step in steps {
            let _ = match step {
                Step::Allocate { owner: number } => original.allocate(&owner(number)).map(drop),
                Step::Claim { owner: number, address } => original.claim(address, &owner(number))
                    .map(drop),
                Step::Release { owner: number, address } => original.release(address,
                    &owner(number)).map(drop),
                Step::ReleaseAll { owner: number } => {
                    original.release_all(&owner(number));
                    Ok(())
                }
                Step::Restart => Ok(()),
            };
        }
        let mut copy = rebuilt(&original, backwards);
        prop_assert_eq!(copy.usage(), original.usage());
        prop_assert_eq!(copy.cursor(), original.cursor());
        for number in 100..130 {
            prop_assert_eq!(copy.allocate(&owner(number)), original.allocate(&owner(number)));
        }
    }

    #[test]
    fn any_text_as_a_subnet_is_read_or_refused(text in ".{0,60}") {
        let _ = text.parse::<SubnetSpec>();
    }

    #[test]
    fn near_misses_of_a_subnet_are_read_or_refused(
        text in "(10\\.0\\.0\\.[0-9]{1,3}|fd00::[0-9]?)/[0-9]{1,3}\
                (,(gateway|range|exclude)=[0-9.:/-]{0,24}){0,3}"
    ) {
        if let Ok(spec) = text.parse::<SubnetSpec>() {
            let mut pools = Pools::new(vec![spec.clone()]).unwrap();
            let given = pools.allocate(&owner(1)).unwrap()[0].address.addr();
            prop_assert!(spec.subnet().contains(&given) && spec.reserved(given).is_none());
        }
    }
}
