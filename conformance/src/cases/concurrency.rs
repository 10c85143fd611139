//! Several containers at a time.

use std::collections::BTreeSet;
use std::thread;

use super::{EVERY_KIND, MUST_SINCE_0_4, WITH_ADDRESSES, WITH_INTERFACE, members, nothing_left};
use crate::bench::{Attached, Bench, IFNAME};
use crate::case::{Case, Held, Verdict, require};

// Sentences that several cases check.
const CONCURRENTLY: &str =
    "Plugins must handle being executed concurrently across different containers";

pub(super) const CASES: &[Case] = &[
    Case::new("concurrency/adds", adds, MUST_SINCE_0_4)
        .of(WITH_INTERFACE)
        .section("3, Lifecycle & Ordering")
        .says(CONCURRENTLY),
    Case::new(
        "concurrency/distinct-addresses",
        distinct_addresses,
        MUST_SINCE_0_4,
    )
    .of(WITH_ADDRESSES)
    .section("3, Lifecycle & Ordering")
    .says("If necessary, they must implement locking on shared resources (e.g. IPAM databases)"),
    Case::new("concurrency/adds-and-dels", adds_and_dels, MUST_SINCE_0_4)
        .of(EVERY_KIND)
        .section("3, Lifecycle & Ordering")
        .says(CONCURRENTLY),
];

const AT_ONCE: usize = 8;

fn adds(bench: &Bench<'_>) -> Held {
    for attached in add_at_once(bench)? {
        require(attached.container.link(IFNAME)?.is_some(), || {
            format!("after ADD there is no {IFNAME} in the container")
        })?;
    }
    Ok(())
}

fn distinct_addresses(bench: &Bench<'_>) -> Held {
    let mut seen = BTreeSet::new();
    for attached in add_at_once(bench)? {
        for ip in members(&attached.result["ips"]) {
            let address = ip["address"].to_string();
            require(seen.insert(address.clone()), || {
                format!("two of {AT_ONCE} ADDs at once got {address}")
            })?;
        }
    }
    Ok(())
}

fn adds_and_dels(bench: &Bench<'_>) -> Held {
    let before = bench.warm_up(&bench.conf())?;
    let first = add_at_once(bench)?;
    let second = thread::scope(|scope| {
        let dels: Vec<_> = first
            .iter()
            .map(|attached| scope.spawn(|| bench.detach(attached)))
            .collect();
        let second = add_at_once(bench);
        dels.into_iter().try_for_each(joined)?;
        second
    })?;
    thread::scope(|scope| {
        let dels: Vec<_> = second
            .iter()
            .map(|attached| scope.spawn(|| bench.detach(attached)))
            .collect();
        dels.into_iter().try_for_each(joined)
    })?;
    nothing_left(&bench.footprint()?.beyond(&before), "ADDs and DELs at once")
}

fn add_at_once(bench: &Bench<'_>) -> Result<Vec<Attached>, Verdict> {
    let containers: Vec<_> = (0..AT_ONCE)
        .map(|_| bench.container())
        .collect::<Result<_, _>>()?;
    thread::scope(|scope| {
        let adds: Vec<_> = containers
            .iter()
            .map(|container| scope.spawn(|| bench.attach_to(container, IFNAME, bench.conf())))
            .collect();
        adds.into_iter().map(joined).collect()
    })
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
