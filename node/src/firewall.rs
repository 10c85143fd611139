//! The text of podwire's nftables table: what the host does to packets between the pod network and
//! the outside.
//!
//! Each rule has a digest of its text as a comment. It identifies changed, missing and foreign
//! rules, however nft prints the text.

mod door;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use ipnet::IpNet;
use itertools::Itertools as _;
use podwire_cluster::address::management;
use podwire_cluster::gateway::led;
use serde::{Deserialize, Serialize};

use crate::LINK;
use crate::settings::{Door, Settings};

/// The table's family and name.
pub(crate) const NAME: &str = "inet podwire-node";

/// The same of the table for what leaves by the door.
pub(crate) const DOOR: &str = "netdev podwire-door";

/// The same of the table for what goes by OVN's router to pods of this node.
pub(crate) const ROUTER: &str = "netdev podwire-router";

/// All of them.
pub(crate) const NAMES: [&str; 3] = [NAME, DOOR, ROUTER];

/// The bit of a packet's mark that leads it to OVN's router, in place of the pod itself.
pub(crate) const BY_ROUTER: u32 = 0x0400_0000;

/// The bit of a packet's mark that leads it by the door. Kubernetes' own programs use the lower
/// half.
pub(crate) const BY_DOOR: u32 = 0x0100_0000;

/// A table as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Table {
    /// Its family and name, which older journals don't have.
    #[serde(default = "node_table")]
    pub(crate) name: String,
    /// Base chains, each with its hook.
    pub(crate) chains: Vec<(String, String)>,
    /// Rules: their chain and text, in order.
    pub(crate) rules: Vec<(String, String)>,
}

fn node_table() -> String {
    NAME.to_owned()
}

/// Ports of nodes that are not for pods: protocol and number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Guarded {
    /// The ends of tunnels. A node believes what other nodes' addresses send there, and a pod's
    /// packets leave with its node's.
    pub(crate) tunnels: BTreeSet<(&'static str, u16)>,
    /// Open vSwitch's and OVN's databases.
    pub(crate) databases: BTreeSet<(&'static str, u16)>,
}

impl Table {
    /// Without any rule.
    pub(crate) fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            chains: Vec::new(),
            rules: Vec::new(),
        }
    }

    /// The name, if it is one of podwire's tables.
    pub(crate) fn known(&self) -> Option<&'static str> {
        NAMES.into_iter().find(|name| self.name == *name)
    }

    /// The link that its hooks are at, if they are at one.
    pub(crate) fn link(name: &str) -> Option<&'static str> {
        match name {
            DOOR => Some(crate::DOOR),
            ROUTER => Some(LINK),
            _ => None,
        }
    }

    /// The table that gives marked packets for pods of this node the MAC address of OVN's router.
    pub(crate) fn router(mac: &str) -> Self {
        let others = !BY_ROUTER;
        let rule = format!(
            "meta mark & {BY_ROUTER:#010x} != 0 ether daddr set {mac} meta mark set meta mark & \
             {others:#010x}"
        );
        let mut table = Self::named(ROUTER);
        let hook = format!("filter hook egress device \"{LINK}\" priority 0");
        table.chain("out", &hook, vec![rule]);
        table
    }

    /// The table of the profile *routed*; with a door, `doors` are those of the other nodes.
    pub(crate) fn routed(settings: &Settings, guarded: &Guarded, doors: Option<&[Door]>) -> Self {
        let (subnets, of_family) = (&settings.node_subnets, pods(settings));
        let (mut rules, mut forged, mut forwarded) = (Vec::new(), Vec::new(), Vec::new());
        for subnet in subnets {
            let v4 = subnet.addr().is_ipv4();
            let (ip, neighbour) = (if v4 { "ip" } else { "ip6" }, led(v4));
            let management = management(subnet).addr();
            // OVN's router and this host lead answers of this node's pods back, so a pod sees the
            // client's own address, and so do network policies. But not that of itself or of its
            // neighbour, as the answer would not come back here: nor the management port's, which
            // policies always let pass, because kubelet's probes have it.
            rules.push(format!(
                "oifname \"{LINK}\" {ip} daddr {subnet} {ip} saddr {subnet} {ip} saddr != \
                 {management} snat {ip} to {neighbour}"
            ));
            let clients = format!(
                "oifname \"{LINK}\" {ip} daddr {subnet} {ip} saddr != {subnet} fib saddr type != \
                 local"
            );
            rules.push(match settings.answers_return {
                true => format!("{clients} return"),
                // By OVN's gateway router, answers to clients would leave with another source.
                false => format!("{clients} snat {ip} to {neighbour}"),
            });
            // OVN's router sends replies only to the management port's address.
            rules.push(format!(
                "oifname \"{LINK}\" {ip} saddr != {management} snat {ip} to {management}"
            ));
            // The outside has no route to pods.
            rules.push(format!(
                "oifname != \"{LINK}\" {ip} saddr {subnet} masquerade"
            ));
            // Policies believe these addresses. What of them another link leads to, as a VPN's, is
            // not the pods'.
            let nets = of_family(v4);
            let links = match doors {
                Some(_) => format!("{{ \"{LINK}\", \"{}\" }}", crate::DOOR),
                None => format!("\"{LINK}\""),
            };
            forged.push(format!(
                "iifname != {links} {ip} saddr {{ {nets} }} fib saddr oifname \"{LINK}\" \
                 counter drop"
            ));
            // That address is this host's alone.
            forwarded.push((
                "forward".to_owned(),
                format!("oifname \"{LINK}\" {ip} saddr {management} counter drop"),
            ));
        }
        forged.extend(doors.into_iter().flat_map(door::received));
        let mut table = Self::postrouting(rules);
        // Before node ports are translated, connections tracked, and firewalls look.
        table.chain("prerouting", "filter hook prerouting priority raw", forged);
        table.rules.extend(forwarded);
        if let Some(doors) = doors {
            table.by_door(subnets, doors);
        }
        let to_pods = format!("oifname \"{LINK}\"");
        table.guard(guarded, &[to_pods], &[format!("iifname \"{LINK}\"")]);
        table
    }

    /// The table of plain mode: the outside has no route to pods, but other nodes do.
    pub(crate) fn plain(settings: &Settings, guarded: &Guarded) -> Self {
        let (own, of_family) = (&settings.node_subnets, pods(settings));
        let bridge = &settings.bridge;
        let (mut masquerade, mut to_pods) = (Vec::new(), Vec::new());
        let mut from_pods = vec![format!("iifname \"{bridge}\"")];
        for subnet in own {
            let v4 = subnet.addr().is_ipv4();
            let (ip, nets) = (if v4 { "ip" } else { "ip6" }, of_family(v4));
            masquerade.push(format!(
                "oifname != \"{bridge}\" {ip} saddr {subnet} {ip} daddr != {{ {nets} }} masquerade"
            ));
            to_pods.push(format!("{ip} daddr {{ {nets} }}"));
            // Pods of other nodes reach this one by any link, with their own addresses.
            from_pods.push(format!("iifname != \"lo\" {ip} saddr {{ {nets} }}"));
        }
        let mut table = Self::postrouting(masquerade);
        table.guard(guarded, &to_pods, &from_pods);
        table
    }

    /// Drops what pods send to these ports of this node, or of anything beyond the pod network: a
    /// node listens on each of its addresses, and no place lists all addresses of all nodes. What a
    /// service leads to a tunnel's end comes from anybody.
    fn guard(&mut self, guarded: &Guarded, to_pods: &[String], from_pods: &[String]) {
        let Guarded { tunnels, databases } = guarded;
        let drops = |ports: Vec<&(&str, u16)>| {
            let ports = ports.iter();
            let mut ports = ports.map(|(protocol, port)| format!("{protocol} . {port}"));
            let ports = ports.join(", ");
            format!("meta l4proto . th dport {{ {ports} }} counter drop")
        };
        let all = drops(tunnels.union(databases).collect());
        for chain in ["forward", "input"] {
            let mut add = |text: String| self.rules.push((chain.to_owned(), text));
            if chain == "forward" {
                to_pods.iter().for_each(|it| add(format!("{it} return")));
            }
            from_pods.iter().for_each(|it| add(format!("{it} {all}")));
            if !tunnels.is_empty() {
                add(format!(
                    "ct status dnat {}",
                    drops(tunnels.iter().collect())
                ));
            }
            let hook = format!("filter hook {chain} priority filter");
            self.chains.push((chain.to_owned(), hook));
        }
    }

    fn postrouting(rules: Vec<String>) -> Self {
        let mut table = Self::named(NAME);
        table.chain("postrouting", "nat hook postrouting priority srcnat", rules);
        table
    }

    fn chain(&mut self, name: &str, hook: &str, rules: Vec<String>) {
        self.chains.push((name.to_owned(), hook.to_owned()));
        let rules = rules.into_iter().map(|rule| (name.to_owned(), rule));
        self.rules.extend(rules);
    }

    /// The comments of the rules, with their chains.
    pub(crate) fn marks(&self) -> Vec<(String, String)> {
        let marks = self.rules.iter();
        marks
            .map(|(chain, text)| (chain.clone(), mark(text)))
            .collect()
    }

    /// The script that re-creates the table in one transaction.
    pub(crate) fn script(&self) -> String {
        let name = &self.name;
        let mut script = delete(name);
        let _ = writeln!(script, "table {name} {{");
        for (chain, hook) in &self.chains {
            let _ = writeln!(
                script,
                "\tchain {chain} {{\n\t\ttype {hook}; policy accept;"
            );
            for (_, text) in self.rules.iter().filter(|(of, _)| of == chain) {
                let _ = writeln!(script, "\t\t{text} comment \"{}\"", mark(text));
            }
            let _ = writeln!(script, "\t}}");
        }
        let _ = writeln!(script, "}}");
        script
    }
}

/// The pods' networks of a family (IPv4 or not), as nft lists them.
fn pods(settings: &Settings) -> impl Fn(bool) -> String {
    let peers = settings.peers.iter().flat_map(|peer| &peer.subnets);
    let own = settings.node_subnets.iter();
    let nets = own.chain(&settings.cluster_subnets).chain(peers);
    let nets = IpNet::aggregate(&nets.copied().collect());
    move |v4| {
        let mut nets = nets.iter().filter(|net| net.addr().is_ipv4() == v4);
        nets.join(", ")
    }
}

/// The script that removes a table, if it exists.
pub(crate) fn delete(name: &str) -> String {
    // Adding it first makes the deletion valid.
    format!("add table {name}\ndelete table {name}\n")
}

/// A rule's identity: FNV-1a (64 bits) of its text.
pub(crate) fn mark(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("podwire {hash:016x}")
}
