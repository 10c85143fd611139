//! The nftables table of services as text: the fixed part, what each front adds, and the difference
//! between two tables: pure.
//!
//! A front is an element of `services`, which leads to the chain for its number of endpoints, and
//! one element of `endpoints` for each of those. So an endpoint that is added or removed changes a
//! few elements, whatever else there is. A front whose clients stick to their endpoints has its own
//! chain and map.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::fronts::{Fronts, Key};
use crate::LINK;
use crate::firewall::{delete, mark};

/// The table's family and name.
pub(crate) const NAME: &str = "inet podwire-services";

/// Where the endpoints for clients on this node begin in `endpoints`.
const INNER: usize = 1 << 15;
/// The maximum number of endpoints of one front.
const MOST: usize = INNER;

/// The content of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    /// Sets and maps by name, with their definitions.
    pub(crate) sets: BTreeMap<String, String>,
    /// Chains: hook, and rules in order.
    pub(crate) chains: BTreeMap<String, Chain>,
    /// By set or map, and key: the value, if any.
    pub(crate) elements: BTreeMap<(String, String), String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) hook: Option<String>,
    pub(crate) rules: Vec<String>,
}

/// The visible part of the content: names, marks and elements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) sets: BTreeSet<String>,
    pub(crate) chains: BTreeMap<String, Vec<String>>,
    pub(crate) elements: BTreeMap<(String, String), String>,
}

impl Contents {
    /// The table for these fronts. Packets to endpoints that are neither pods nor here get this
    /// node's address as their source, because their answers would not come back otherwise.
    pub(crate) fn of(fronts: &Fronts, pods: &[IpNet], here: &BTreeSet<IpAddr>) -> Self {
        let mut contents = Self::default();
        for (ip, family) in [("ip", "4"), ("ip6", "6")] {
            contents.fixed(ip, family);
        }
        contents.chain("rejected", None, &["reject"]);
        contents.hooks();
        for (key, front) in &fronts.by_key {
            contents.front(key, front);
            let far = front
                .endpoints
                .iter()
                .chain(&front.inner)
                .filter(|endpoint| {
                    let ip = endpoint.ip();
                    !here.contains(&ip) && !pods.iter().any(|net| net.contains(&ip))
                });
            let far: Vec<SocketAddr> = far.copied().collect();
            for endpoint in far {
                let of = format!("{} . {} . {}", endpoint.ip(), key.protocol, endpoint.port());
                contents.element("outside", endpoint.ip(), of, String::new());
            }
        }
        contents
    }

    fn fixed(&mut self, ip: &str, family: &str) {
        let key = format!("meta l4proto . {ip} daddr . th dport");
        let mut set = |name: &str, what: String| {
            self.sets.insert(format!("{name}{family}"), what);
        };
        let index = "numgen random mod 65536";
        set("services", format!("map {{ typeof {key} : verdict; }}"));
        set("inner", format!("map {{ typeof {key} : verdict; }}"));
        let endpoints = format!("typeof {key} . {index} : {ip} daddr . th dport");
        set("endpoints", format!("map {{ {endpoints}; }}"));
        for name in ["rejects", "drops", "ranged"] {
            set(name, format!("set {{ typeof {key}; }}"));
        }
        let ranges = format!("typeof {key} . {ip} saddr; flags interval");
        set("ranges", format!("set {{ {ranges}; }}"));
        let outside = format!("typeof {ip} daddr . meta l4proto . th dport");
        set("outside", format!("set {{ {outside}; }}"));
    }

    fn hooks(&mut self) {
        let each = |rule: &str| -> Vec<String> {
            [("ip", "4"), ("ip6", "6")]
                .iter()
                .map(|(ip, family)| {
                    let key = format!("meta l4proto . {ip} daddr . th dport");
                    rule.replace("KEY", &key)
                        .replace("IP", ip)
                        .replace('F', family)
                })
                .collect()
        };
        let mut hook = |name: &str, hook: &str, rules: Vec<String>| {
            let chain = Chain {
                hook: Some(hook.to_owned()),
                rules,
            };
            self.chains.insert(name.to_owned(), chain);
        };
        let services = each("KEY vmap @servicesF");
        let inner = each("KEY vmap @innerF");
        let from_pods = inner
            .iter()
            .map(|rule| format!("iifname \"{LINK}\" {rule}"));
        let prerouting = from_pods.chain(services.clone()).collect();
        hook(
            "prerouting",
            "nat hook prerouting priority dstnat",
            prerouting,
        );
        let output = inner.into_iter().chain(services).collect();
        hook("output", "nat hook output priority -100", output);
        let outside =
            each("ct status dnat IP daddr . meta l4proto . th dport @outsideF masquerade");
        hook(
            "postrouting",
            "nat hook postrouting priority srcnat",
            outside,
        );
        let ranges = each("KEY @rangedF KEY . IP saddr != @rangesF drop");
        hook("sources", "filter hook prerouting priority -110", ranges);
        let refused = each("KEY @dropsF drop").into_iter();
        let refused: Vec<String> = refused.chain(each("KEY @rejectsF goto rejected")).collect();
        for name in ["input", "forward", "output"] {
            let of = format!("filter hook {name} priority filter");
            hook(&format!("refuse-{name}"), &of, refused.clone());
        }
    }

    fn front(&mut self, key: &Key, front: &super::fronts::Front) {
        let at = format!("{} . {} . {}", key.protocol, key.address, key.port);
        for net in &front.sources {
            // In nft's form.
            let net = match net.prefix_len() == net.max_prefix_len() {
                true => net.addr().to_string(),
                false => net.trunc().to_string(),
            };
            self.element("ranged", key.address, at.clone(), String::new());
            self.element(
                "ranges",
                key.address,
                format!("{at} . {net}"),
                String::new(),
            );
        }
        if front.endpoints.is_empty() {
            let set = if front.elsewhere { "drops" } else { "rejects" };
            self.element(set, key.address, at.clone(), String::new());
        } else if let Some(seconds) = front.affinity {
            let chain = self.sticky(key, &front.endpoints, seconds);
            self.element("services", key.address, at.clone(), format!("goto {chain}"));
        } else {
            self.pick("services", key, &at, &front.endpoints, 0);
        }
        if !front.inner.is_empty() && front.inner != front.endpoints {
            self.pick("inner", key, &at, &front.inner, INNER);
        }
    }

    /// A random one of these endpoints.
    fn pick(&mut self, map: &str, key: &Key, at: &str, endpoints: &[SocketAddr], offset: usize) {
        let count = endpoints.len().min(MOST);
        let (ip, family) = family(key.address);
        let chain = match offset {
            0 => format!("any-of-{count}-v{family}"),
            _ => format!("any-of-{count}-inner-v{family}"),
        };
        let offset_text = match offset {
            0 => String::new(),
            _ => format!(" offset {offset}"),
        };
        let rule = format!(
            "dnat {ip} to meta l4proto . {ip} daddr . th dport . numgen random mod \
             {count}{offset_text} map @endpoints{family}"
        );
        self.chain(&chain, None, &[&rule]);
        self.element(map, key.address, at.to_owned(), format!("goto {chain}"));
        for (number, endpoint) in endpoints.iter().take(MOST).enumerate() {
            let at = format!("{at} . {}", offset + number);
            let to = format!("{} . {}", endpoint.ip(), endpoint.port());
            self.element("endpoints", key.address, at, to);
        }
    }

    /// The client's last endpoint, or another one.
    fn sticky(&mut self, key: &Key, endpoints: &[SocketAddr], seconds: u32) -> String {
        let (ip, _) = family(key.address);
        let name = digest(key);
        let map = clients(key);
        // By types: with typeof, nft 1.0.6 reads the port as one of any protocol, and refuses the
        // rules below, which are for one, at the next change of the table.
        let entry = match key.address {
            IpAddr::V4(_) => "type ipv4_addr : ipv4_addr . inet_service",
            IpAddr::V6(_) => "type ipv6_addr : ipv6_addr . inet_service",
        };
        let kind = format!("map {{ {entry}; flags dynamic,timeout; size 65535; }}");
        self.sets.insert(map.clone(), kind);
        let chain = format!("sticky-{name}");
        let protocol = &key.protocol;
        let known = format!("meta l4proto {protocol} dnat {ip} to {ip} saddr map @{map}");
        let mut choices = Vec::new();
        for (number, endpoint) in endpoints.iter().take(MOST).enumerate() {
            // Named after the endpoint, so that other endpoints' chains stay when one is removed.
            let of = mark(&endpoint.to_string()).replace("podwire ", "");
            let to = format!("stick-{name}-{of}");
            let (address, port) = (endpoint.ip(), endpoint.port());
            let learn =
                format!("update @{map} {{ {ip} saddr timeout {seconds}s : {address} . {port} }}");
            let dnat = format!("meta l4proto {protocol} dnat {ip} to {endpoint}");
            self.chain(&to, None, &[&learn, &dnat]);
            choices.push(format!("{number} : goto {to}"));
        }
        let choices = format!("{{ {} }}", choices.join(", "));
        let any = format!(
            "numgen random mod {} vmap {choices}",
            endpoints.len().min(MOST)
        );
        self.chain(&chain, None, &[&known, &any]);
        chain
    }

    fn chain(&mut self, name: &str, hook: Option<&str>, rules: &[&str]) {
        let chain = Chain {
            hook: hook.map(str::to_owned),
            rules: rules.iter().map(|rule| (*rule).to_owned()).collect(),
        };
        self.chains.insert(name.to_owned(), chain);
    }

    fn element(&mut self, set: &str, of: IpAddr, key: String, value: String) {
        let (_, family) = family(of);
        self.elements.insert((format!("{set}{family}"), key), value);
    }

    /// Its visible part.
    pub(crate) fn seen(&self) -> Seen {
        let chains = self.chains.iter().map(|(name, chain)| {
            let marks = chain.rules.iter().map(|rule| mark(rule)).collect();
            (name.clone(), marks)
        });
        Seen {
            sets: self.sets.keys().cloned().collect(),
            chains: chains.collect(),
            elements: self.elements.clone(),
        }
    }

    /// The script that turns the visible part into this table, in one transaction; empty if they
    /// are equal. None stands for no table.
    pub(crate) fn script(&self, seen: Option<&Seen>) -> String {
        let mut script = String::new();
        let nothing = Seen::default();
        let from = seen.unwrap_or(&nothing);
        if seen.is_none() {
            let _ = writeln!(script, "add table {NAME}");
        }
        let to = self.seen();
        for name in to.sets.difference(&from.sets) {
            let what = &self.sets[name];
            let (kind, what) = what.split_once(' ').unwrap_or(("set", what));
            let _ = writeln!(script, "add {kind} {NAME} {name} {what}");
        }
        let changed = |name: &&String| from.chains.get(*name) != to.chains.get(*name);
        let changed: Vec<&String> = self.chains.keys().filter(changed).collect();
        // All of them first, because rules lead from one to another.
        for name in &changed {
            let chain = &self.chains[*name];
            let _ = match (&chain.hook, from.chains.contains_key(*name)) {
                (_, true) => writeln!(script, "flush chain {NAME} {name}"),
                (None, false) => writeln!(script, "add chain {NAME} {name}"),
                (Some(hook), false) => {
                    writeln!(
                        script,
                        "add chain {NAME} {name} {{ type {hook}; policy accept; }}"
                    )
                }
            };
        }
        for name in &changed {
            for rule in &self.chains[*name].rules {
                let mark = mark(rule);
                let _ = writeln!(script, "add rule {NAME} {name} {rule} comment \"{mark}\"");
            }
        }
        for ((set, key), value) in &from.elements {
            if to.elements.get(&(set.clone(), key.clone())) != Some(value) {
                let _ = writeln!(script, "delete element {NAME} {set} {{ {key} }}");
            }
        }
        for ((set, key), value) in &to.elements {
            if from.elements.get(&(set.clone(), key.clone())) != Some(value) {
                let value = if value.is_empty() {
                    String::new()
                } else {
                    format!(" : {value}")
                };
                let _ = writeln!(script, "add element {NAME} {set} {{ {key}{value} }}");
            }
        }
        let gone = from
            .chains
            .keys()
            .filter(|name| !to.chains.contains_key(*name));
        let gone: Vec<&String> = gone.collect();
        for name in &gone {
            let _ = writeln!(script, "flush chain {NAME} {name}");
        }
        for name in &gone {
            let _ = writeln!(script, "delete chain {NAME} {name}");
        }
        for name in from.sets.difference(&to.sets) {
            let _ = writeln!(script, "delete set {NAME} {name}");
        }
        script
    }

    /// The script that re-creates the table, whatever exists.
    pub(crate) fn anew(&self) -> String {
        // Adding it first makes the deletion valid if it does not exist.
        format!("add table {NAME}\n{}{}", delete(NAME), self.script(None))
    }
}

/// The map of the clients that stick to an endpoint of this front.
pub(super) fn clients(key: &Key) -> String {
    format!("clients-{}", digest(key))
}

pub(super) fn is_of_clients(map: &str) -> bool {
    map.starts_with("clients-")
}

fn digest(key: &Key) -> String {
    mark(&format!("{key:?}")).replace("podwire ", "")
}

fn family(address: IpAddr) -> (&'static str, &'static str) {
    match address {
        IpAddr::V4(_) => ("ip", "4"),
        IpAddr::V6(_) => ("ip6", "6"),
    }
}
