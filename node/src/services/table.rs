//! The nftables table of services as text: the fixed part, what each frontend adds, and the
//! difference between two tables: pure.
//!
//! A frontend is an element of `services`, which leads to the chain for its number of endpoints,
//! and one element of its protocol's `endpoints` for each of those. So an endpoint that is added or
//! removed changes a few elements, whatever else there is.
//!
//! A frontend whose clients stick to their endpoints has chains of its own and two maps, which the
//! packets themselves fill: `affinity-…` see what each new connection became, and keep the
//! endpoint's address and port by the client. Two, as nft 1.0.6 has room for 16 bytes of key and 16
//! of value in the rule that fills a map, and ends by an assertion if either takes more.
//!
//! Protocols are numbers here, and in nft's lists: it takes their names from /etc/protocols, which
//! an image need not have.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use podwire_cluster::gateway::led;
use podwire_cluster::service::Protocol;

use super::frontends::{Frontends, Key, LocalNode};
use crate::LINK;
use crate::firewall::{BY_ROUTER, delete, mark};
use crate::nft::SERVICES as NAME;

/// Where the endpoints for clients on this node begin in `endpoints`.
const INNER: usize = 1 << 15;
/// The maximum number of endpoints of one frontend.
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
pub(crate) struct Observed {
    pub(crate) sets: BTreeSet<String>,
    pub(crate) chains: BTreeMap<String, Vec<String>>,
    pub(crate) elements: BTreeMap<(String, String), String>,
}

impl Contents {
    /// The table for these frontends. Packets to endpoints that are neither pods nor here get this
    /// node's address as their source, because their answers would not come back otherwise. Those
    /// from outside to pods here with a primary network of their own get a mark.
    pub(crate) fn of(frontends: &Frontends, here: &LocalNode) -> Self {
        let mut contents = Self::default();
        for (ip, family) in [("ip", "4"), ("ip6", "6")] {
            contents.fixed(ip, family);
        }
        contents.chain("rejected", None, &["reject"]);
        contents.hooks();
        for (key, frontend) in &frontends.by_key {
            contents.frontend(key, frontend);
            for endpoint in frontend.endpoints.iter().chain(&frontend.inner) {
                let ip = endpoint.ip();
                let set = match here.locked.contains(&ip) {
                    true if frontend.is_external => "locked",
                    false if !here.addresses.contains(&ip) && !here.is_pod(endpoint) => "outside",
                    _ => continue,
                };
                let protocol = key.protocol.number();
                let of = format!("{ip} . {protocol} . {}", endpoint.port());
                contents.element(set, ip, of, String::new());
                if set == "locked" {
                    contents.element("locked-pods", ip, ip.to_string(), String::new());
                }
            }
        }
        for v4 in [true, false] {
            contents.by_router(v4);
        }
        contents
    }

    /// Leads what is for the ports of such pods to OVN's router, except what the host itself asks
    /// them. By their primary network they don't answer to the management port, which is a
    /// neighbour on the default one.
    fn by_router(&mut self, v4: bool) {
        let (ip, family) = if v4 { ("ip", "4") } else { ("ip6", "6") };
        let name = format!("locked{family}");
        if !self.elements.keys().any(|(set, _)| *set == name) {
            return;
        }
        let key = format!("{ip} daddr . meta l4proto . th dport");
        let to = format!("oifname \"{LINK}\" ct direction original {key} @{name}");
        self.sets.insert(name, format!("set {{ typeof {key}; }}"));
        let source = format!(
            "{to} ct status dnat fib saddr type local snat {ip} to {}",
            led(v4)
        );
        // An error about an answer has no port.
        let pods = format!("locked-pods{family}");
        self.sets
            .insert(pods.clone(), format!("set {{ typeof {ip} daddr; }}"));
        let errors =
            format!("oifname \"{LINK}\" ct state related ct direction original {ip} daddr @{pods}");
        let marks = [&to, &errors].map(|what| {
            ["ct status dnat", "fib saddr type != local"]
                .map(|whose| format!("{what} {whose} meta mark set meta mark | {BY_ROUTER:#010x}"))
        });
        let marks: Vec<&str> = marks.as_flattened().iter().map(String::as_str).collect();
        // Before sources are translated, and after everybody who looks at a packet's mark.
        let sources = "nat hook postrouting priority 95";
        self.chain(
            &format!("locked-sources{family}"),
            Some(sources),
            &[&source],
        );
        let after = "filter hook postrouting priority 300";
        self.chain(&format!("locked{family}"), Some(after), &marks);
    }

    fn fixed(&mut self, ip: &str, family: &str) {
        let key = format!("meta l4proto . {ip} daddr . th dport");
        let mut set = |name: &str, what: String| {
            self.sets.insert(format!("{name}{family}"), what);
        };
        for name in ["services", "inner", "affinity"] {
            set(name, format!("map {{ typeof {key} : verdict; }}"));
        }
        // One for each protocol: nft (1.0.6 to 1.1.7) takes `tcp dport` for TCP alone, and after
        // `th dport` in a value it refuses every later rule with the map ("conflicting protocols
        // specified").
        let index = "numgen random mod 65536";
        for protocol in Protocol::ALL.map(Protocol::name) {
            let end = format!("{ip} daddr . {protocol} dport");
            let what = format!("map {{ typeof {end} . {index} : {end}; }}");
            set(&format!("endpoints-{protocol}"), what);
        }
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
        // For nft 1.0.6 a connection's port has a type only once its protocol is named.
        let affinity = Protocol::ALL.iter().flat_map(|protocol| {
            each(&format!(
                "meta l4proto {} ct status dnat meta l4proto . ct original IP daddr . ct original \
                 proto-dst vmap @affinityF",
                protocol.name()
            ))
        });
        // At the end of the way, which is another one to this host's own endpoints, and before
        // anybody gives the packet another source, which ends the hook.
        let affinity: Vec<String> = affinity.collect();
        for name in ["postrouting", "input"] {
            // nft names the priority of translated sources, 100, in postrouting alone.
            let of = format!("nat hook {name} priority 90");
            hook(&format!("affinity-{name}"), &of, affinity.clone());
        }
        let ranges = each("KEY @rangedF KEY . IP saddr != @rangesF drop");
        hook("sources", "filter hook prerouting priority -110", ranges);
        let refused = each("KEY @dropsF drop").into_iter();
        let refused: Vec<String> = refused.chain(each("KEY @rejectsF goto rejected")).collect();
        for name in ["input", "forward", "output"] {
            let of = format!("filter hook {name} priority filter");
            hook(&format!("refuse-{name}"), &of, refused.clone());
        }
    }

    fn frontend(&mut self, key: &Key, frontend: &super::frontends::Frontend) {
        let at = format!("{} . {} . {}", key.protocol.number(), key.address, key.port);
        for net in &frontend.sources {
            // In nft's form.
            let net = match net.prefix_len() == net.max_prefix_len() {
                true => net.addr().to_string(),
                false => net.to_string(),
            };
            self.element("ranged", key.address, at.clone(), String::new());
            self.element(
                "ranges",
                key.address,
                format!("{at} . {net}"),
                String::new(),
            );
        }
        if frontend.endpoints.is_empty() {
            let set = if frontend.elsewhere {
                "drops"
            } else {
                "rejects"
            };
            self.element(set, key.address, at.clone(), String::new());
        }
        let inner = (frontend.inner != frontend.endpoints).then_some(&frontend.inner);
        let sides = [
            ("services", Some(&frontend.endpoints), 0),
            ("inner", inner, INNER),
        ];
        let sides = sides
            .into_iter()
            .filter_map(|(map, endpoints, offset)| Some((map, endpoints?, offset)));
        for (map, endpoints, offset) in sides.filter(|(_, endpoints, _)| !endpoints.is_empty()) {
            let mut chain = self.pick(key, endpoints, offset);
            if let Some(seconds) = frontend.affinity {
                chain = self.sticky(map, key, &chain);
                let learn = self.learn(key, seconds);
                self.element("affinity", key.address, at.clone(), format!("goto {learn}"));
            }
            self.element(map, key.address, at.clone(), format!("goto {chain}"));
        }
    }

    /// The chain for a random one of these endpoints.
    fn pick(&mut self, key: &Key, endpoints: &[SocketAddr], offset: usize) -> String {
        let count = endpoints.len().min(MOST);
        let (ip, family) = family(key.address);
        let protocol = key.protocol.name();
        let (inner, offset_text) = match offset {
            0 => ("", String::new()),
            _ => ("-inner", format!(" offset {offset}")),
        };
        let chain = format!("any-of-{count}{inner}-{protocol}{family}");
        let rule = format!(
            "dnat {ip} to {ip} daddr . {protocol} dport . numgen random mod {count}{offset_text} \
             map @endpoints-{protocol}{family}"
        );
        self.chain(&chain, None, &[&rule]);
        for (number, endpoint) in endpoints.iter().take(MOST).enumerate() {
            let at = format!("{} . {} . {}", key.address, key.port, offset + number);
            let to = format!("{} . {}", endpoint.ip(), endpoint.port());
            let map = format!("endpoints-{protocol}");
            self.element(&map, key.address, at, to);
        }
        chain
    }

    /// The chain for the client's last endpoint or, if it has none, for one of `others`.
    fn sticky(&mut self, map: &str, key: &Key, others: &str) -> String {
        let (ip, _) = family(key.address);
        let [addresses, ports] = clients(key);
        let protocol = key.protocol.name();
        let last = format!(
            "meta l4proto {protocol} dnat {ip} to {ip} saddr map @{addresses} : {ip} saddr map \
             @{ports}"
        );
        // One of the two may have expired a moment before the other, and an update keeps a value.
        let expired = [
            format!("delete @{addresses} {{ {ip} saddr : {ip} daddr }}"),
            format!("delete @{ports} {{ {ip} saddr : th dport }}"),
        ];
        let others = format!("goto {others}");
        let chain = format!("sticky-{map}-{}", name(key));
        self.chain(&chain, None, &[&last, &expired[0], &expired[1], &others]);
        chain
    }

    /// The chain that keeps the endpoint of a new connection by its client.
    fn learn(&mut self, key: &Key, seconds: u32) -> String {
        let (ip, _) = family(key.address);
        let [addresses, ports] = clients(key);
        let address = match key.address {
            IpAddr::V4(_) => "ipv4_addr",
            IpAddr::V6(_) => "ipv6_addr",
        };
        for (map, value) in [(&addresses, address), (&ports, "inet_service")] {
            let what = format!("type {address} : {value}; flags dynamic,timeout; size 65535;");
            self.sets.insert(map.clone(), format!("map {{ {what} }}"));
        }
        let rules = [
            (addresses, format!("{ip} daddr")),
            (ports, "th dport".to_owned()),
        ];
        let rules = rules.map(|(map, value)| {
            format!("update @{map} {{ ct original {ip} saddr timeout {seconds}s : {value} }}")
        });
        let chain = format!("learn-{}", name(key));
        self.chain(&chain, None, &[&rules[0], &rules[1]]);
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
    pub(crate) fn seen(&self) -> Observed {
        let chains = self.chains.iter().map(|(name, chain)| {
            let marks = chain.rules.iter().map(|rule| mark(rule)).collect();
            (name.clone(), marks)
        });
        Observed {
            sets: self.sets.keys().cloned().collect(),
            chains: chains.collect(),
            elements: self.elements.clone(),
        }
    }

    /// The script that turns the visible part into this table, in one transaction; empty if they
    /// are equal. None stands for no table.
    pub(crate) fn script(&self, seen: Option<&Observed>) -> String {
        let mut script = String::new();
        let nothing = Observed::default();
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
        delete(NAME) + &self.script(None)
    }
}

/// The maps of the clients that stick to an endpoint of this frontend: its address, and its port.
pub(super) fn clients(key: &Key) -> [String; 2] {
    ["address", "port"].map(|what| format!("client-{what}-{}", name(key)))
}

pub(super) fn is_of_clients(map: &str) -> bool {
    map.starts_with("client-")
}

/// A frontend in names of chains and maps, where nft has no colon.
fn name(key: &Key) -> String {
    let address = key.address.to_string().replace(':', "_");
    format!("{}-{address}-{}", key.protocol.name(), key.port)
}

fn family(address: IpAddr) -> (&'static str, &'static str) {
    match address {
        IpAddr::V4(_) => ("ip", "4"),
        IpAddr::V6(_) => ("ip6", "6"),
    }
}
