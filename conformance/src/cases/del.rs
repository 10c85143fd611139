//! DEL: what it removes, and how little information it must work with.

use super::{
    EVERY_KIND, MUST_SINCE_1_0, SHOULD, SHOULD_SINCE_0_4, SHOULD_SINCE_0_4_THEN_MUST,
    SHOULD_THEN_MUST, WITH_INTERFACE, nothing_left,
};
use crate::bench::{Attached, Bench, IFNAME};
use crate::case::{Case, Held, require};
use crate::spec::Verb;

// Sentences that several cases check.
const MISSING: &str = "return success if the interface in question, or any modifications added, \
    are missing";

pub(super) const CASES: &[Case] = &[
    Case::new("del/removes-interface", removes_interface, SHOULD)
        .section("2, DEL")
        .says(
            "should […] delete the interface defined by `CNI_IFNAME` inside the container at \
             `CNI_NETNS`",
        ),
    Case::new("del/releases-all", releases_all, SHOULD)
        .of(EVERY_KIND)
        .section("Parameters, DEL (0.4)")
        .says(
            "A delete operation should release all resources held by the supplied containerid in \
             the configured network",
        ),
    Case::new("del/repeated", repeated, SHOULD_SINCE_0_4_THEN_MUST)
        .of(EVERY_KIND)
        .section("2, DEL")
        .says(
            "Plugins MUST accept multiple `DEL` calls for the same (`CNI_CONTAINERID`, \
             `CNI_IFNAME`) pair",
        ),
    Case::new("del/never-added", never_added, SHOULD_THEN_MUST)
        .of(EVERY_KIND)
        .section("2, DEL")
        .says(MISSING),
    Case::new("del/interface-gone", interface_gone, SHOULD_THEN_MUST)
        .of(WITH_INTERFACE)
        .section("2, DEL")
        .says(MISSING),
    Case::new(
        "del/without-prev-result",
        without_prev_result,
        SHOULD_SINCE_0_4,
    )
    .of(EVERY_KIND)
    .section("2, DEL")
    .says(
        "Plugins should still return without error if `prevResult` is empty for a `DEL` \
             command",
    ),
    Case::new(
        "del/without-netns",
        without_netns,
        SHOULD_SINCE_0_4_THEN_MUST,
    )
    .of(EVERY_KIND)
    .section("2, DEL")
    .says("Optional environment parameters: `CNI_NETNS`"),
    Case::new("del/empty-netns", empty_netns, SHOULD_SINCE_0_4)
        .of(EVERY_KIND)
        .section("Parameters, DEL (0.4)")
        .says(
            "When `CNI_NETNS` and/or `prevResult` are not provided, the plugin should clean up \
             as many resources as possible and return a successful response",
        ),
    Case::new("del/netns-gone", netns_gone, SHOULD)
        .of(EVERY_KIND)
        .section("2, DEL")
        .says(
            "clean up its own resources even if the container network namespace and/or container \
             network interface no longer exist",
        ),
    Case::new(
        "del/repeated-after-netns",
        repeated_after_netns,
        MUST_SINCE_1_0,
    )
    .of(EVERY_KIND)
    .section("3, Lifecycle & Ordering")
    .says("_delete_ may be followed by additional _deletes_"),
];

fn removes_interface(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    bench.detach(&attached)?;
    require(attached.container.link(IFNAME)?.is_none(), || {
        format!("after DEL {IFNAME} is still in the container")
    })
}

fn releases_all(bench: &Bench<'_>) -> Held {
    let before = bench.warm_up(&bench.conf())?;
    let attached = bench.attach()?;
    bench.detach(&attached)?;
    nothing_left(&bench.footprint()?.beyond(&before), "DEL")
}

fn repeated(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    for _ in 0..3 {
        bench.detach(&attached)?;
    }
    Ok(())
}

fn never_added(bench: &Bench<'_>) -> Held {
    let del = bench.call(Verb::Del).of(&bench.container()?);
    del.run()?.success()
}

fn interface_gone(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    attached.container.ip(&["link", "delete", IFNAME])?;
    bench.detach(&attached)
}

fn without_prev_result(bench: &Bench<'_>) -> Held {
    let before = bench.warm_up(&bench.conf())?;
    let attached = bench.attach()?;
    let del = bench.call_for(Verb::Del, &attached);
    del.without_member("prevResult").run()?.success()?;
    nothing_left(
        &bench.footprint()?.beyond(&before),
        "DEL without prevResult",
    )
}

fn without_netns(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    attached.container.remove_netns()?;
    let del = bench.call_for(Verb::Del, &attached);
    del.unset("CNI_NETNS").run()?.success()
}

fn empty_netns(bench: &Bench<'_>) -> Held {
    gone(bench, |bench, attached| {
        let del = bench.call_for(Verb::Del, attached);
        del.without_member("prevResult")
            .set("CNI_NETNS", "")
            .run()?
            .success()
    })
}

fn netns_gone(bench: &Bench<'_>) -> Held {
    gone(bench, |bench, attached| bench.detach(attached))
}

fn repeated_after_netns(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    bench.detach(&attached)?;
    attached.container.remove_netns()?;
    bench.detach(&attached)?;
    let del = bench.call_for(Verb::Del, &attached);
    del.set("CNI_NETNS", "").run()?.success()
}

/// Takes the namespace from under an attachment, deletes it in this way, and looks for a rest.
fn gone(bench: &Bench<'_>, delete: fn(&Bench<'_>, &Attached) -> Held) -> Held {
    let before = bench.warm_up(&bench.conf())?;
    let attached = bench.attach()?;
    attached.container.remove_netns()?;
    delete(bench, &attached)?;
    let left = bench.host.settled(&before, &bench.container_ids())?;
    nothing_left(&left, "DEL without the namespace")
}
