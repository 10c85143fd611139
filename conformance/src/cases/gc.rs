//! GC: what the runtime no longer lists goes, and nothing else.

use serde_json::{Value, json};

use super::{EVERY_KIND, MUST_SINCE_1_1, SHOULD_SINCE_1_1, nothing_left};
use crate::bench::{Attached, Bench, IFNAME};
use crate::case::{Case, Held, require};
use crate::spec::Verb;

pub(super) const CASES: &[Case] = &[
    Case::new("gc/parameters", parameters, MUST_SINCE_1_1)
        .of(EVERY_KIND)
        .section("2, GC")
        .says("Required environment parameters: `CNI_COMMAND`, `CNI_PATH`"),
    Case::new("gc/removes-stale", removes_stale, SHOULD_SINCE_1_1)
        .of(EVERY_KIND)
        .section("2, GC")
        .says("A plugin SHOULD remove as many stale resources as possible"),
    Case::new("gc/keeps-valid", keeps_valid, MUST_SINCE_1_1)
        .of(EVERY_KIND)
        .section("2, GC")
        .says(
            "The network plugin may then remove any resources related to attachments that do not \
             exist in this set",
        ),
    Case::new("gc/by-ifname", by_ifname, SHOULD_SINCE_1_1)
        .section("2, GC")
        .says(
            "`ifname` (string): the value of CNI_IFNAME as provided during the CNI ADD operation",
        ),
    Case::new("gc/own-network", own_network, MUST_SINCE_1_1)
        .of(EVERY_KIND)
        .section("2, GC")
        .says(
            "`cni.dev/valid-attachments`: The list of **still valid** attachments to this \
             network",
        ),
    Case::new("gc/repeated", repeated, SHOULD_SINCE_1_1)
        .of(EVERY_KIND)
        .section("2, GC")
        .says("Plugins should generally complete a `GC` action without error"),
    Case::new("gc/del-afterwards", del_afterwards, MUST_SINCE_1_1)
        .of(EVERY_KIND)
        .section("2, DEL")
        .says(
            "Plugins MUST accept multiple `DEL` calls […] and return success if the interface in \
             question, or any modifications added, are missing",
        ),
];

/// The member of the configuration that lists what is to stay.
pub(super) const VALID: &str = "cni.dev/valid-attachments";

/// The list of these attachments.
pub(super) fn valid(attached: &[&Attached]) -> Value {
    let listed = attached
        .iter()
        .map(|it| json!({"containerID": it.container.id, "ifname": it.ifname}));
    listed.collect()
}

fn parameters(bench: &Bench<'_>) -> Held {
    let gc = bench.call(Verb::Gc).member(VALID, json!([]));
    gc.unset("CNI_ARGS").run()?.success()
}

fn removes_stale(bench: &Bench<'_>) -> Held {
    bench.warm_up(&bench.conf())?;
    let stays = bench.attach()?;
    let before = bench.footprint()?;
    let stale = bench.attach()?;
    stale.container.remove_netns()?;
    collect(bench, &[&stays])?;
    let left = bench.host.settled(&before, &bench.container_ids())?;
    nothing_left(&left, "GC")
}

fn keeps_valid(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let (link, held) = (attached.container.link(IFNAME)?, bench.footprint()?);
    collect(bench, &[&attached])?;
    let now = attached.container.link(IFNAME)?;
    require(now == link, || {
        format!("GC changed {IFNAME} of a valid attachment: {link:?}, then {now:?}")
    })?;
    let gone = held.beyond(&bench.footprint()?);
    require(gone.is_empty(), || {
        format!("GC took from a valid attachment: {}", gone.join(", "))
    })
}

fn by_ifname(bench: &Bench<'_>) -> Held {
    bench.warm_up(&bench.conf())?;
    let stays = bench.attach()?;
    let before = bench.footprint()?;
    let stale = bench.attach_to(&stays.container, "net1", bench.conf())?;
    // As if its interface had been removed without a DEL.
    stale.container.ip(&["link", "delete", "net1"])?;
    collect(bench, &[&stays])?;
    let left = bench.host.settled(&before, &bench.container_ids())?;
    nothing_left(&left, "GC of one of a container's two attachments")?;
    require(stays.container.link(IFNAME)?.is_some(), || {
        format!("GC of net1 took {IFNAME}")
    })
}

fn own_network(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let (link, held) = (attached.container.link(IFNAME)?, bench.footprint()?);
    let gc = bench.call(Verb::Gc).member("name", "another-network");
    gc.member(VALID, json!([])).run()?.success()?;
    let gone = held.beyond(&bench.footprint()?);
    let is_same = attached.container.link(IFNAME)? == link;
    require(gone.is_empty() && is_same, || {
        format!(
            "GC of another network took from this one: {}",
            gone.join(", ")
        )
    })
}

fn repeated(bench: &Bench<'_>) -> Held {
    collect(bench, &[])?;
    let attached = bench.attach()?;
    bench.detach(&attached)?;
    collect(bench, &[])?;
    collect(bench, &[])
}

fn del_afterwards(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    attached.container.remove_netns()?;
    collect(bench, &[])?;
    bench.detach(&attached)
}

fn collect(bench: &Bench<'_>, stay: &[&Attached]) -> Held {
    let gc = bench.call(Verb::Gc).member(VALID, valid(stay));
    gc.run()?.success()
}
