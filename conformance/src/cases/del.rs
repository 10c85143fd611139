//! DEL: what it removes, and how little information it must work with.

use super::{
    CASE, EVERY_KIND, MUST_SINCE_1_0, SHOULD, SHOULD_SINCE_0_4, WITH_INTERFACE, nothing_left,
};
use crate::bench::{Attached, Bench, IFNAME};
use crate::case::{Case, Held, require};
use crate::spec::Level::{Must, Should};
use crate::spec::Verb;
use crate::spec::Version::{V0_3_0, V0_4_0, V1_0_0};

pub(super) const CASES: &[Case] = &[
    Case {
        id: "del/removes-interface",
        section: "2, DEL",
        says: "should […] delete the interface defined by `CNI_IFNAME` inside the container at \
               `CNI_NETNS`",
        levels: SHOULD,
        test: removes_interface,
        ..CASE
    },
    Case {
        id: "del/releases-all",
        section: "Parameters, DEL (0.4)",
        says: "A delete operation should release all resources held by the supplied containerid in \
               the configured network",
        levels: SHOULD,
        kinds: EVERY_KIND,
        test: releases_all,
        ..CASE
    },
    Case {
        id: "del/repeated",
        section: "2, DEL",
        says: "Plugins MUST accept multiple `DEL` calls for the same (`CNI_CONTAINERID`, \
               `CNI_IFNAME`) pair",
        levels: &[(V0_4_0, Should), (V1_0_0, Must)],
        kinds: EVERY_KIND,
        test: repeated,
        ..CASE
    },
    Case {
        id: "del/never-added",
        section: "2, DEL",
        says: "return success if the interface in question, or any modifications added, are \
               missing",
        levels: &[(V0_3_0, Should), (V1_0_0, Must)],
        kinds: EVERY_KIND,
        test: never_added,
        ..CASE
    },
    Case {
        id: "del/interface-gone",
        section: "2, DEL",
        says: "return success if the interface in question, or any modifications added, are \
               missing",
        levels: &[(V0_3_0, Should), (V1_0_0, Must)],
        kinds: WITH_INTERFACE,
        test: interface_gone,
        ..CASE
    },
    Case {
        id: "del/without-prev-result",
        section: "2, DEL",
        says: "Plugins should still return without error if `prevResult` is empty for a `DEL` \
               command",
        levels: SHOULD_SINCE_0_4,
        kinds: EVERY_KIND,
        test: without_prev_result,
        ..CASE
    },
    Case {
        id: "del/without-netns",
        section: "2, DEL",
        says: "Optional environment parameters: `CNI_NETNS`",
        levels: &[(V0_4_0, Should), (V1_0_0, Must)],
        kinds: EVERY_KIND,
        test: without_netns,
        ..CASE
    },
    Case {
        id: "del/empty-netns",
        section: "Parameters, DEL (0.4)",
        says: "When `CNI_NETNS` and/or `prevResult` are not provided, the plugin should clean up \
               as many resources as possible and return a successful response",
        levels: SHOULD_SINCE_0_4,
        kinds: EVERY_KIND,
        test: empty_netns,
        ..CASE
    },
    Case {
        id: "del/netns-gone",
        section: "2, DEL",
        says: "clean up its own resources even if the container network namespace and/or container \
               network interface no longer exist",
        levels: SHOULD,
        kinds: EVERY_KIND,
        test: netns_gone,
        ..CASE
    },
    Case {
        id: "del/repeated-after-netns",
        section: "3, Lifecycle & Ordering",
        says: "_delete_ may be followed by additional _deletes_",
        levels: MUST_SINCE_1_0,
        kinds: EVERY_KIND,
        test: repeated_after_netns,
        ..CASE
    },
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
