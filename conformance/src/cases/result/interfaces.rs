//! The version of a result and its interfaces.

use super::{is_in_sandbox, own_interface, own_link};
use crate::bench::{Bench, IFNAME};
use crate::case::{Held, not_applicable, require};
use crate::cases::members;

pub(super) fn version(bench: &Bench<'_>) -> Held {
    let result = bench.attach()?.result;
    require(result["cniVersion"] == bench.version.as_str(), || {
        format!(
            "asked in {}, it answered in {}",
            bench.version, result["cniVersion"]
        )
    })
}

pub(super) fn container_interface(bench: &Bench<'_>) -> Held {
    own_interface(&bench.attach()?).map(drop)
}

pub(super) fn host_interfaces(bench: &Bench<'_>) -> Held {
    let before = bench.footprint()?;
    let attached = bench.attach()?;
    let now = bench.footprint()?;
    let listed: Vec<&str> = members(&attached.result["interfaces"])
        .iter()
        .filter(|interface| !is_in_sandbox(interface))
        .filter_map(|interface| interface["name"].as_str())
        .collect();
    for link in now.links_beyond(&before) {
        require(listed.contains(&link.as_str()), || {
            format!("ADD made {link} on the host, and the result lists {listed:?} there")
        })?;
    }
    let there = crate::ip::links()?;
    for name in listed {
        require(there.iter().any(|link| link.name == name), || {
            format!("the result lists {name}, which the host does not have")
        })?;
    }
    Ok(())
}

pub(super) fn sandbox(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let sandbox = &own_interface(&attached)?.1["sandbox"];
    let netns = attached.container.netns.to_string_lossy();
    require(*sandbox == *netns, || {
        format!("sandbox is {sandbox}, and CNI_NETNS was {netns}")
    })
}

pub(super) fn no_sandbox_on_host(bench: &Bench<'_>) -> Held {
    let before = bench.footprint()?;
    let attached = bench.attach()?;
    let made = bench.footprint()?.links_beyond(&before);
    if made.is_empty() {
        return not_applicable("it makes no link on the host");
    }
    for interface in members(&attached.result["interfaces"]) {
        let name = interface["name"].as_str().unwrap_or_default();
        let is_on_host = made.iter().any(|made| made == name);
        require(!is_on_host || !is_in_sandbox(interface), || {
            format!(
                "{name} is on the host, and listed in sandbox {}",
                interface["sandbox"]
            )
        })?;
    }
    Ok(())
}

pub(super) fn mac(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let told = &own_interface(&attached)?.1["mac"];
    let seen = own_link(&attached)?.mac;
    let is_same = told
        .as_str()
        .is_some_and(|told| told.eq_ignore_ascii_case(&seen));
    require(is_same, || {
        format!("mac is {told}, and {IFNAME} has {seen}")
    })
}

pub(super) fn mtu(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let told = &own_interface(&attached)?.1["mtu"];
    let seen = own_link(&attached)?.mtu;
    require(*told == seen, || {
        format!("mtu is {told}, and {IFNAME} has {seen}")
    })
}
