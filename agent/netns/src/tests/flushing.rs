use std::collections::HashMap;

use super::super::conntrack::{self, Plan};
use super::*;

/// Entries of which five are of the two addresses, and two are of others.
fn make_entries() -> Vec<IpAddr> {
    let entry = |words: &str| {
        run(&format!(
            "conntrack -I -p tcp --state ESTABLISHED -t 600 {words}"
        ));
    };
    entry("-s 10.1.2.3 -d 10.9.9.9 --sport 1000 --dport 80");
    entry("-s 10.9.9.9 -d 10.1.2.3 --sport 1001 --dport 80");
    entry("-s 10.1.2.3 -d 10.9.9.9 --sport 1000 --dport 80 -w 7");
    // To a service's address, which leads to the pod.
    entry(
        "-s 10.9.9.9 -d 10.96.0.1 --sport 1002 --dport 80 \
         -r 10.1.2.3 -q 10.9.9.9 --reply-port-src 8080 --reply-port-dst 1002",
    );
    entry("-s fd00:1::3 -d fd00:9::9 --sport 1003 --dport 80");
    entry("-s 10.1.2.30 -d 10.9.9.9 --sport 1004 --dport 80");
    entry("-s fd00:1::30 -d fd00:9::9 --sport 1005 --dport 80");
    vec!["10.1.2.3".parse().unwrap(), "fd00:1::3".parse().unwrap()]
}

#[test]
fn conntrack_entries_of_the_addresses_go_and_others_stay() {
    on_own_host(async |netlink| {
        let pod = make_entries();
        let other: Vec<IpAddr> = vec!["10.200.0.1".parse().unwrap()];
        let (none, five) = tokio::join!(
            netlink.flush_conntrack(other),
            netlink.flush_conntrack(pod.clone())
        );
        assert_eq!((none.unwrap(), five.unwrap()), (0, 5));
        assert_eq!(run("conntrack -C").trim(), "2");
        assert_eq!(netlink.flush_conntrack(pod).await.unwrap(), 0);
    });
}

#[test]
fn to_read_all_and_to_filter_remove_the_same_entries() {
    for plan in [Plan::ReadAll, Plan::Filter] {
        on_own_thread(move || {
            let mut removed: HashMap<_, _> = make_entries().into_iter().map(|ip| (ip, 0)).collect();
            let mut socket =
                socket::Netlink::open(netlink_sys::protocols::NETLINK_NETFILTER).unwrap();
            conntrack::flush(&mut socket, plan, &mut removed).unwrap();
            assert_eq!(removed.values().sum::<usize>(), 5, "{plan:?}");
            assert_eq!(run("conntrack -C").trim(), "2", "{plan:?}");
        });
    }
}

#[test]
fn a_table_is_read_or_filtered_by_what_costs_less() {
    let few_entries = Plan::cheapest(2, 1000, 262_144);
    assert_eq!(few_entries, Some(Plan::ReadAll));
    assert_eq!(Plan::cheapest(2, 100_000, 262_144), Some(Plan::Filter));
    // A burst of DELs goes in one.
    assert_eq!(Plan::cheapest(200, 100_000, 262_144), Some(Plan::ReadAll));
    assert_eq!(Plan::cheapest(2, 0, 262_144), None);
    assert_eq!(Plan::cheapest(0, 1000, 262_144), None);
}
