//! Whether a NIC can be moved into the gateway bridge without a risk: what podwire can't move, or
//! can't verify afterwards, is refused before the first change.

use std::path::Path;

use kube::Client as Api;

use crate::actual::gateways;
use crate::items::{Actual, ObservedLink, stand_ins};
use crate::manager;
use crate::moved::NicConfig;
use crate::nft;
use crate::reach;

/// Kinds of links that are moved: physical ones, which have none, one of two ends of a cable
/// between namespaces, and what is on top of physical ones.
const KINDS: [&str; 4] = ["", "veth", BOND, VLAN];
const BOND: &str = "bond";
const VLAN: &str = "vlan";

/// Why the NIC can't be moved.
pub(crate) async fn of_nic(
    nic: &str,
    bridge: &str,
    actual: &Actual,
    api: Option<&Api>,
) -> Vec<String> {
    let Some(link) = actual.links.get(nic) else {
        return vec![format!("--interface {nic}: there is no such link")];
    };
    let mut found = lasting(nic, bridge, link, actual).await;
    found.extend(passing(nic, link, actual, api));
    if !found.is_empty() {
        return found;
    }
    for ip in actual.held.get(nic).map(gateways).unwrap_or_default() {
        if let Err(error) = reach::gateway(nic, link.index, ip).await {
            found.push(format!("{error}: it could not be verified after the move"));
        }
    }
    if let Some(api) = api
        && let Err(error) = reach::api_server(api).await
    {
        found.push(format!("{error}: it could not be verified after the move"));
    }
    found
}

/// What the NIC still lacks, which somebody may just be giving it; nothing of one that can't be
/// moved anyway.
pub(crate) async fn lacks(
    nic: &str,
    bridge: &str,
    actual: &Actual,
    api: Option<&Api>,
) -> Vec<String> {
    let Some(link) = actual.links.get(nic) else {
        return Vec::new();
    };
    let passing = passing(nic, link, actual, api);
    match passing.is_empty() || !lasting(nic, bridge, link, actual).await.is_empty() {
        true => Vec::new(),
        false => passing,
    }
}

/// What keeps it from being moved until it is configured.
fn passing(nic: &str, link: &ObservedLink, actual: &Actual, api: Option<&Api>) -> Vec<String> {
    let mut found = Vec::new();
    if !link.up || !link.carrier {
        found.push(format!("{nic} has no carrier: is its cable connected?"));
    }
    let managed = actual.managed.get(nic);
    found.extend(managed.and_then(|it| it.undone(nic)));
    let held = actual.held.get(nic);
    if !held.is_some_and(NicConfig::has_addresses) {
        found.push(format!("{nic} has no address"));
    }
    if held.is_none_or(|held| gateways(held).is_empty()) && api.is_none() {
        found.push(format!(
            "{nic} has no default route with a gateway, and no API server is named: nothing could \
             tell whether the move has succeeded"
        ));
    }
    found
}

async fn lasting(nic: &str, bridge: &str, link: &ObservedLink, actual: &Actual) -> Vec<String> {
    let mut found = of_link(nic, bridge, link, actual);
    found.extend(manager::hidden(nic));
    let has_row = actual.switch.bridges.contains_key(bridge);
    // ovs-vswitchd removes a bridge's own link a moment after its row.
    let is_others = |link: &ObservedLink| !["openvswitch", "tun"].contains(&&*link.kind);
    if actual.links.get(bridge).is_some_and(is_others) && !has_row {
        found.push(format!(
            "there is a link {bridge} already, which is no bridge of Open vSwitch: remove or \
             rename it"
        ));
    }
    found.extend(actual.immovable.get(nic).into_iter().flatten().cloned());
    let held = actual.held.get(nic);
    let stand_ins = held.map(stand_ins).unwrap_or_default();
    match actual.managed.get(nic) {
        Some(manager) if [BOND, VLAN].contains(&&*link.kind) => found.push(format!(
            "{} configures {nic}, a link of kind {}: that is not moved yet",
            manager.name(),
            link.kind
        )),
        Some(manager) => found.extend(manager.refusals(nic, bridge, &stand_ins).await),
        None => found.extend(manager(nic)),
    }
    found.extend(firewall(nic, bridge).await);
    if actual.firewalld.is_some() {
        found.push(format!(
            "firewalld runs, and has zones for {nic}, not for {bridge}: that is not supported yet"
        ));
    }
    found
}

fn of_link(nic: &str, bridge: &str, link: &ObservedLink, actual: &Actual) -> Vec<String> {
    let links = &actual.links;
    let mut found = Vec::new();
    let sys = Path::new("/sys/class/net").join(nic);
    if !KINDS.contains(&&*link.kind) {
        found.push(format!(
            "{nic} is a link of kind {}: only physical NICs, bonds and VLANs are moved",
            link.kind
        ));
    }
    // The bridge keeps the MAC address that it gets.
    let takes_mac = std::fs::read_to_string(sys.join("bonding/fail_over_mac"));
    if link.kind == BOND && takes_mac.is_ok_and(|it| it.starts_with("active")) {
        found.push(format!(
            "{nic} takes the MAC address of its active member, and {bridge} would keep that of \
             another: set fail_over_mac to none"
        ));
    }
    if sys.join("wireless").exists() || sys.join("phy80211").exists() {
        found.push(format!(
            "{nic} is wireless: an access point takes no other MAC addresses than its own"
        ));
    }
    if let Some(master) = link.master {
        let master = links.iter().find(|(_, link)| link.index == master);
        let master = master.map_or("another link", |(name, _)| name);
        found.push(format!(
            "{nic} is a part of {master}: name that, or free {nic}"
        ));
    }
    let above = links.iter().filter(|(_, other)| {
        other.below == Some(link.index) && !["", "veth"].contains(&&*other.kind)
    });
    for (name, other) in above {
        found.push(format!(
            "{name} ({}) is on {nic}: it would lose its packets to the bridge",
            other.kind
        ));
    }
    found
}

/// The program that configures the NIC, and would do so again after the move.
fn manager(nic: &str) -> Option<String> {
    let manager = manager::other(nic)?;
    Some(format!(
        "{manager} manages {nic}, and would configure it again after the move: have \
         systemd-networkd or NetworkManager configure {nic}, or nothing that watches it"
    ))
}

/// Rules that name the NIC would no longer match its packets, which come from the bridge: an accept
/// of ssh would no longer accept it.
async fn firewall(nic: &str, bridge: &str) -> Option<String> {
    let rules = match nft::ruleset().await {
        Ok(rules) => rules,
        Err(error) => return Some(format!("the firewall's rules can't be read: {error}")),
    };
    let named = format!("\"{nic}\"");
    let rule = rules.lines().find(|line| line.contains(&named))?;
    Some(format!(
        "a rule of nftables names {nic} (`{}`), and would not match packets of {bridge}: have it \
         name {bridge}, too",
        rule.trim()
    ))
}
