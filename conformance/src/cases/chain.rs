//! prevResult: a plugin that is not the first of its chain.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{MUST_SINCE_1_0, SHOULD_THEN_MUST, members};
use crate::bench::{Bench, IFNAME};
use crate::case::{Case, Held, Verdict, require};
use crate::chain;
use crate::container::Container;
use crate::spec::Level::Should;
use crate::spec::Version::{self, V0_3_0};
use crate::spec::{Level, Verb};
use crate::subject::Kind;

pub(super) const CASES: &[Case] = &[
    Case::new(
        "chain/prev-result-accepted",
        prev_result_accepted,
        super::MUST,
    )
    .section("2, ADD")
    .says(
        "If the plugin was supplied a `prevResult` as part of its input configuration, it \
             MUST handle `prevResult`",
    ),
    Case::new("chain/prev-result-echoed", prev_result_merged, ECHOED)
        .until(Version::V0_4_0)
        .section("Network Configuration Lists (0.4)")
        .says("plugins SHOULD echo the contents of the `prevResult` field to their stdout"),
    Case::new(
        "chain/prev-result-merged",
        prev_result_merged,
        MUST_SINCE_1_0,
    )
    .section("5, ADD Success")
    .says(
        "Plugins provided a `prevResult` key as part of their request configuration must \
             output it as their result, with any possible modifications made by that plugin \
             included",
    ),
    Case::new("chain/interface-indexes", interface_indexes, super::MUST)
        .section("5, ADD Success")
        .says(
            "`interface`: the index into the `interfaces` list indicating which interface this \
             IP configuration should be applied to",
        ),
    Case::new("chain/earlier-untouched", earlier_untouched, super::SHOULD)
        .section("3, Adding an attachment")
        .says(
            "For all additional plugins, the previous result is the result of the previous \
             plugins",
        ),
    Case::new(
        "chain/equivalent-result",
        equivalent_result,
        SHOULD_THEN_MUST,
    )
    .of(&[Kind::Chained])
    .section("5, ADD Success")
    .says(
        "If a plugin makes no changes that would be reflected in the _Success result_ type, \
             then it must output a result equivalent to the provided `prevResult`",
    ),
    Case::new("chain/undone", undone, super::SHOULD)
        .of(&[Kind::Chained])
        .section("2, DEL")
        .says("should […] undo any modifications applied in the plugin's `ADD` functionality"),
];

const ECHOED: &[(Version, Level)] = &[(V0_3_0, Should)];

/// The interface that an earlier plugin of the chain has made.
const EARLIER: &str = "before0";

fn prev_result_accepted(bench: &Bench<'_>) -> Held {
    chained(bench).map(drop)
}

fn prev_result_merged(bench: &Bench<'_>) -> Held {
    let (container, result) = chained(bench)?;
    let netns = container.netns.to_string_lossy();
    let earlier = listed(&result["interfaces"], "name", EARLIER)?;
    let interface = &members(&result["interfaces"])[earlier as usize];
    require(interface["sandbox"] == *netns, || {
        format!("{EARLIER} lost its sandbox: {interface}")
    })?;
    listed(&result["ips"], "address", chain::ADDRESS)?;
    listed(&result["routes"], "dst", chain::ROUTE)?;
    let servers = &result["dns"]["nameservers"];
    require(
        members(servers).contains(&json!(chain::NAME_SERVER)),
        || format!("dns.nameservers of prevResult is lost: {}", result["dns"]),
    )?;
    listed(&result["interfaces"], "name", IFNAME).map(drop)
}

fn interface_indexes(bench: &Bench<'_>) -> Held {
    let (container, result) = chained(bench)?;
    let of_link = |name: &str| -> Result<Vec<String>, Verdict> {
        let link = container.link(name)?;
        let addresses = link.map(|link| link.addresses).unwrap_or_default();
        Ok(addresses.iter().map(ToString::to_string).collect())
    };
    for (name, addresses) in [(EARLIER, of_link(EARLIER)?), (IFNAME, of_link(IFNAME)?)] {
        for ip in members(&result["ips"]) {
            let is_there = ip["address"]
                .as_str()
                .is_some_and(|text| addresses.iter().any(|address| address == text));
            let index = ip["interface"].as_u64();
            let interfaces = members(&result["interfaces"]);
            let interface = index.and_then(|index| interfaces.get(usize::try_from(index).ok()?));
            let shown = interface.map_or("none", |it| it["name"].as_str().unwrap_or("none"));
            require(!is_there || shown == name, || {
                format!(
                    "{} is on {name}, and `interface` leads to {shown}",
                    ip["address"]
                )
            })?;
        }
    }
    Ok(())
}

fn earlier_untouched(bench: &Bench<'_>) -> Held {
    let container = bench.container()?;
    let prev = chain::make(&container, EARLIER, bench.version)?;
    let before = container.link(EARLIER)?;
    let conf = bench.conf_with("prevResult", prev);
    let attached = bench.attach_to(&container, IFNAME, conf)?;
    let untouched = |when: &str| {
        let now = container.link(EARLIER)?;
        require(now == before, || {
            format!("{when} changed another plugin's {EARLIER}: {before:?}, then {now:?}")
        })
    };
    untouched("ADD")?;
    bench.detach(&attached)?;
    untouched("DEL")
}

fn equivalent_result(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let before = attached.container.before.clone().unwrap_or_default();
    // The MAC and MTU of the interface may be what it changed.
    for (member, key) in [
        ("interfaces", "name"),
        ("ips", "address"),
        ("routes", "dst"),
    ] {
        for element in members(&before[member]) {
            let value = element[key].as_str().unwrap_or_default();
            listed(&attached.result[member], key, value)?;
        }
    }
    let dns = &attached.result["dns"];
    require(*dns == before["dns"], || {
        format!("dns was {}, and is {dns}", before["dns"])
    })
}

fn undone(bench: &Bench<'_>) -> Held {
    let container = bench.container()?;
    let (link, routes) = (container.link(IFNAME)?, container.routes()?);
    let attached = bench.attach_to(&container, IFNAME, bench.conf())?;
    bench.detach(&attached)?;
    let now = container.link(IFNAME)?;
    require(now == link, || {
        format!("{IFNAME} was {link:?}, and is {now:?} after ADD and DEL")
    })?;
    let now = container.routes()?;
    require(now == routes, || {
        format!("the routes were {routes:?}, and are {now:?} after ADD and DEL")
    })
}

/// ADD after an earlier plugin of the chain.
fn chained(bench: &Bench<'_>) -> Result<(Arc<Container>, Value), Verdict> {
    let container = bench.container()?;
    let prev = chain::make(&container, EARLIER, bench.version)?;
    let add = bench.call(Verb::Add).of(&container);
    let result = add.member("prevResult", prev).run()?.object()?;
    Ok((container, result))
}

/// The index of the element whose member has this value.
fn listed(array: &Value, member: &str, value: &str) -> Result<u64, Verdict> {
    let found = members(array)
        .iter()
        .zip(0..)
        .find(|(element, _)| element[member] == value);
    match found {
        Some((_, index)) => Ok(index),
        None => crate::case::broken(format!("{value} is not in the result: {array}")),
    }
}
