//! Attachments side by side: of one container, and of several.

use super::{SHOULD, SHOULD_SINCE_0_4, WITH_ADDRESSES, members};
use crate::bench::{Attached, Bench, IFNAME};
use crate::case::{Case, Held, require};
use crate::ip::Link;
use crate::spec::Verb;

pub(super) const CASES: &[Case] = &[
    Case::new(
        "attachment/two-interfaces",
        two_interfaces,
        SHOULD_SINCE_0_4,
    )
    .section("2, ADD")
    .says(
        "a given container ID may be added to a specific network more than once only if each \
             addition is done with a different interface name",
    ),
    Case::new("attachment/del-of-one", del_of_one, SHOULD_SINCE_0_4)
        .section("General considerations (0.4)")
        .says(
            "Plugins that store state should do so using a primary key of `(network name, \
             CNI_CONTAINERID, CNI_IFNAME)`",
        ),
    Case::new("attachment/others-untouched", others_untouched, SHOULD)
        .section("2, DEL")
        .says(
            "should […] delete the interface defined by `CNI_IFNAME` inside the container at \
             `CNI_NETNS`",
        ),
    Case::new("attachment/add-again", add_again, SHOULD)
        .section("2, ADD")
        .says("A runtime should not call `ADD` twice (without an intervening DEL)"),
    Case::new("attachment/own-addresses", own_addresses, SHOULD)
        .of(WITH_ADDRESSES)
        .section("Overview")
        .says(
            "_network_ refers to a group of endpoints that are uniquely addressable that can \
             communicate amongst each other",
        ),
];

/// The second interface of a container.
const SECOND: &str = "net1";

fn two_interfaces(bench: &Bench<'_>) -> Held {
    let first = bench.attach()?;
    let second = bench.attach_to(&first.container, SECOND, bench.conf())?;
    link(&first)?;
    link(&second)?;
    bench.detach(&second)?;
    bench.detach(&first)
}

fn del_of_one(bench: &Bench<'_>) -> Held {
    let before = bench.warm_up(&bench.conf())?;
    let first = bench.attach()?;
    let with_first = bench.footprint()?;
    let second = bench.attach_to(&first.container, SECOND, bench.conf())?;
    let whole = link(&first)?;
    bench.detach(&second)?;
    let seen = first.container.link(IFNAME)?;
    require(seen.as_ref() == Some(&whole), || {
        format!("DEL of {SECOND} changed {IFNAME}: {whole:?}, then {seen:?}")
    })?;
    let now = bench.footprint()?;
    let gone = with_first.beyond(&now);
    require(gone.is_empty(), || {
        format!("DEL of {SECOND} took from {IFNAME}: {}", gone.join(", "))
    })?;
    bench.detach(&first)?;
    super::nothing_left(&bench.footprint()?.beyond(&before), "both DELs")
}

fn others_untouched(bench: &Bench<'_>) -> Held {
    let [gone, stays] = [bench.attach()?, bench.attach()?];
    let whole = link(&stays)?;
    bench.detach(&gone)?;
    let seen = stays.container.link(IFNAME)?;
    require(seen.as_ref() == Some(&whole), || {
        format!("DEL of one container changed another's {IFNAME}: {whole:?}, then {seen:?}")
    })
}

fn add_again(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    bench.detach(&attached)?;
    let add = bench.call(Verb::Add).of(&attached.container);
    add.run()?.object()?;
    require(attached.container.link(IFNAME)?.is_some(), || {
        format!("after ADD, DEL and ADD there is no {IFNAME}")
    })
}

fn own_addresses(bench: &Bench<'_>) -> Held {
    let [one, other] = [bench.attach()?, bench.attach()?];
    for ip in members(&one.result["ips"]) {
        let same = members(&other.result["ips"])
            .iter()
            .any(|it| it["address"] == ip["address"]);
        require(!same, || format!("two containers have {}", ip["address"]))?;
    }
    Ok(())
}

fn link(attached: &Attached) -> Result<Link, crate::case::Verdict> {
    let found = attached.container.link(&attached.ifname)?;
    match found {
        Some(link) => Ok(link),
        None => crate::case::broken(format!("there is no {} in the container", attached.ifname)),
    }
}
