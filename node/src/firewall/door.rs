//! What the tables do for packets by the door: from a node that was asked, to that of the
//! endpoint, and back.
//!
//! The asked node marks what it has from outside for a pod of another node, and gives it that
//! node's MAC address instead of a source of its own. The endpoint's node keeps by which node a
//! connection came, in the connection's mark, and leads the answers back there. That mark is the
//! last four bytes of the node's MAC address.

use std::net::IpAddr;

use ipnet::IpNet;
use itertools::Itertools as _;
use podwire_cluster::address::Mac;

use super::{BY_DOOR, Table};
use crate::settings::Door;
use crate::{DOOR, LINK};

/// What the connection tracking zones of connections by doors begin with: OVN takes its own from 1
/// upwards.
const ZONES: u32 = 0xf000;

/// A connection's mark: by which node it came.
fn mark(mac: Mac) -> u32 {
    let [_, _, last @ ..] = mac.bytes();
    u32::from_be_bytes(last)
}

/// A map from doors' MAC addresses.
fn by_mac(doors: &[Door], value: impl Fn(u32) -> u32) -> String {
    let pairs = doors.iter().map(|door| (door.mac, value(mark(door.mac))));
    let pairs = pairs.map(|(mac, value)| format!("{mac} : {value:#x}"));
    set(pairs)
}

/// A set or map of these elements.
fn set(mut elements: impl Iterator<Item = String>) -> String {
    format!("{{ {} }}", elements.join(", "))
}

/// The rules for what a door brings, before anybody else's.
///
/// One client may have two connections from the same port to one endpoint, by two nodes. What comes
/// by each node is tracked apart, so that the kernel sees both, and gives one another port.
///
/// And a firewall may drop what comes by another link than the one to its source, as firewalld does
/// (`IPv6_rpfilter`: `fib saddr . mark . iif`). With the mark, that link is the door.
pub(super) fn received(doors: &[Door]) -> Vec<String> {
    if doors.is_empty() {
        return Vec::new();
    }
    let zones = by_mac(doors, |mark| ZONES | (mark >> 8 & 0xfff));
    let zones = format!("iifname \"{DOOR}\" ct original zone set ether saddr map {zones}");
    vec![zones, with_mark()]
}

/// The rule that gives what came by the door its mark.
fn with_mark() -> String {
    format!("iifname \"{DOOR}\" meta mark set meta mark | {BY_DOOR:#010x}")
}

/// The rule that takes the mark from what came by the door (`==`), or by another link (`!=`).
fn without_mark(by: &str) -> String {
    let others = !BY_DOOR;
    format!("iifname {by} \"{DOOR}\" meta mark set meta mark & {others:#010x}")
}

impl Table {
    /// Marks what goes by the door; of other nodes only their doors' packets to pods pass.
    pub(super) fn by_door(&mut self, own: &[IpNet], doors: &[Door]) {
        let mark_it = format!("meta mark set meta mark | {BY_DOOR:#010x}");
        let mut rules = vec![without_mark("==")];
        let senders = by_mac(doors, |mark| mark);
        for subnet in own.iter().filter(|_| !doors.is_empty()) {
            let ip = family(subnet);
            rules.push(format!(
                "iifname \"{DOOR}\" ct direction original {ip} daddr {subnet} ct mark set ether \
                 saddr map {senders} accept"
            ));
        }
        rules.push(format!(
            "iifname \"{DOOR}\" ct direction original counter drop"
        ));
        if !doors.is_empty() {
            let marks = set(doors.iter().map(|door| format!("{:#x}", mark(door.mac))));
            rules.push(format!(
                "iifname \"{LINK}\" ct direction reply ct mark {marks} {mark_it}"
            ));
        }
        for subnet in own {
            let v4 = subnet.addr().is_ipv4();
            let ip = family(subnet);
            let nets = elsewhere(doors, v4).map(|(net, _)| net.to_string());
            let nets: Vec<String> = nets.collect();
            if nets.is_empty() {
                continue;
            }
            // A node does not take packets with its own source from another one. And nodes are no
            // clients that policies would know: they look as before.
            let nodes = doors.iter().flat_map(|door| &door.addresses);
            let nodes: Vec<String> = nodes
                .filter(|ip| ip.is_ipv4() == v4)
                .map(IpAddr::to_string)
                .collect();
            let others = match nodes.is_empty() {
                true => String::new(),
                false => format!("{ip} saddr != {} ", set(nodes.into_iter())),
            };
            let nets = set(nets.into_iter());
            // A connection that got another source before there was a door keeps it.
            rules.push(format!(
                "iifname != {{ \"{LINK}\", \"{DOOR}\" }} ct direction original ct status & snat \
                 == 0 {ip} daddr {nets} {others}{mark_it}"
            ));
        }
        // Once services are translated, and firewalls have looked (firewalld: filter + 10); before
        // packets are routed.
        self.chain("door", "filter hook prerouting priority filter + 20", rules);
        // Firewalls may look again at what is forwarded (firewalld 2.1: `strict-forward`).
        let rules = vec![with_mark(), without_mark("!=")];
        self.chain("door-forward", "filter hook forward priority filter", rules);
        // After everybody who looks at a packet's mark to translate its source.
        let rules = vec![
            without_mark("=="),
            format!("oifname \"{DOOR}\" ct direction original meta mark set {BY_DOOR:#010x}"),
            format!("oifname \"{DOOR}\" ct direction reply meta mark set ct mark"),
        ];
        self.chain("door-out", "filter hook postrouting priority 300", rules);
    }

    /// The table that gives packets by the door the MAC addresses of their nodes.
    pub(crate) fn door(doors: &[Door]) -> Self {
        let mut rules = Vec::new();
        for (ip, v4) in [("ip", true), ("ip6", false)] {
            let pairs: Vec<String> = elsewhere(doors, v4)
                .map(|(net, mac)| format!("{net} : {mac}"))
                .collect();
            if !pairs.is_empty() {
                let macs = set(pairs.into_iter());
                rules.push(format!(
                    "meta mark {BY_DOOR:#010x} ether daddr set {ip} daddr map {macs} meta mark set \
                     0 accept"
                ));
            }
        }
        if !doors.is_empty() {
            let macs = doors
                .iter()
                .map(|door| format!("{:#x} : {}", mark(door.mac), door.mac));
            let macs = set(macs);
            rules.push(format!(
                "ether daddr set meta mark map {macs} meta mark set 0 accept"
            ));
        }
        // The host has nothing to say here.
        rules.push("counter drop".to_owned());
        let mut table = Self::named(super::DOOR);
        let hook = format!("filter hook egress device \"{DOOR}\" priority 0");
        table.chain("out", &hook, rules);
        table
    }
}

fn family(subnet: &IpNet) -> &'static str {
    match subnet.addr().is_ipv4() {
        true => "ip",
        false => "ip6",
    }
}

/// The subnets of a family behind doors.
fn elsewhere(doors: &[Door], v4: bool) -> impl Iterator<Item = (&IpNet, Mac)> {
    let subnets = doors
        .iter()
        .flat_map(|door| door.subnets.iter().map(|net| (net, door.mac)));
    subnets.filter(move |(net, _)| net.addr().is_ipv4() == v4)
}
