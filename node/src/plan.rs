//! The goal for the machine: one pure value.

mod bridged;
mod conflicts;
mod data_bridges;
mod door;
mod firewalld;
mod gateway;

mod guarded;
mod plain;
mod tuning;
mod uplink;

use ipnet::IpNet;
use podwire_cluster::address::{gateway, mac, management};
use podwire_cluster::gateway::Gateway;

use crate::firewall::Table;
use crate::items::{
    Actual, Address, Claim, ENCAP_IP, Item, Key, LinkUp, Neighbour, PROBE, Port, Route, SOON, Ssl,
    Sysctl, TunnelPort,
};
use crate::settings::{Mode, Profile, Settings};
use crate::{DOOR, LINK, MAPPING};

pub(crate) use bridged::boot_file;
pub(crate) use conflicts::Conflict;
pub(crate) use plain::AGENT_FILE;
pub(crate) use tuning::drop_in;
use uplink::{Uplink, mtu, overhead, uplink};

/// Everything to set up, in order of creation. A plan without items is for a machine with nothing
/// of podwire's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) items: Vec<Item>,
    /// The link to the other nodes.
    pub(crate) uplink: Option<String>,
    /// Remarks for the operator about how the plan came about.
    pub(crate) verdict: Vec<String>,
    /// Whether it has something to do in the southbound database.
    pub(crate) asks_southbound: bool,
    /// Settings that take what the machine needs for itself.
    pub(crate) conflicts: Vec<Conflict>,
    /// The gateway that the node announces, once it has the flows for it.
    pub(crate) gateway: Option<Gateway>,
}

impl Plan {
    /// The plan for the mode in the settings. With `take_over`, routes of others may be replaced.
    ///
    /// # Errors
    /// What is missing or impossible, as text.
    pub(crate) fn of(
        settings: &Settings,
        actual: &Actual,
        take_over: bool,
    ) -> Result<Self, String> {
        let mut conflicts = conflicts::find(settings, actual, take_over);
        let settings = &*conflicts::without_refused(settings, actual, &conflicts);
        let mut plan = match settings.mode {
            Mode::Ovn => Self::routed(settings, actual)?,
            Mode::Plain => Self::plain(settings, actual)?,
        };
        match settings.profile {
            Profile::Routed => {}
            Profile::Bridged => plan.bridge_nic(settings, actual)?,
            Profile::Adopt => plan.adopt(settings, actual)?,
        }
        if settings.shares {
            plan.share(settings, actual);
        }
        plan.data_bridges(settings, actual);
        conflicts.append(&mut plan.conflicts);
        plan.conflicts = conflicts;
        plan.pass_firewalld(settings, actual);
        plan.tune(settings, actual)?;
        Ok(plan)
    }

    /// The plan of the profile *routed*: the NIC is left alone, and packets between pods and the
    /// outside take the host's own routing through the management port.
    ///
    /// # Errors
    /// What is missing, as text.
    pub(crate) fn routed(settings: &Settings, actual: &Actual) -> Result<Self, String> {
        let uplink = uplink(settings, actual)?;
        let mut encap_ips = settings.encap_ips.clone();
        let mut conflicts: Vec<Conflict> = uplink.missing.iter().cloned().collect();
        if encap_ips.is_empty() {
            match uplink.primary {
                Some(ip) => encap_ips.push(ip),
                None => conflicts.extend(uplink.lacks_address(settings, actual)?),
            }
        }
        let (mtu, too_small) = mtu(settings, &uplink, overhead(&encap_ips));
        conflicts.extend(too_small);
        let encap_ips: Vec<String> = encap_ips.iter().map(ToString::to_string).collect();
        let mut plan = Self {
            conflicts,
            ..Self::default()
        };
        plan.keys(settings, actual, &encap_ips.join(","))?;
        let addresses: Vec<IpNet> = settings.node_subnets.iter().map(management).collect();
        // The router's port has one MAC address for both families, derived from the first subnet.
        let own_mac = mac(addresses[0].addr()).to_string();
        let router_mac = mac(gateway(&settings.node_subnets[0])).to_string();
        plan.items.push(Item::Port(Port {
            link: LINK.to_owned(),
            bridge: settings.bridge.clone(),
            iface_id: format!("k8s-{}", settings.node_name),
            mac: own_mac.clone(),
            mtu,
        }));
        plan.ipv6_on(settings, LINK);
        plan.learn_nothing(LINK, actual);
        let door = door::is_possible(settings, actual);
        let mut links = vec![LINK];
        links.extend(door.then_some(DOOR));
        links.push(&uplink.link);
        links.extend(uplink.nic.as_deref());
        if door {
            plan.door_link(settings, actual, own_mac, mtu);
        }
        plan.forward(settings, &uplink, &links, actual);
        plan.items.push(LinkUp(LINK.to_owned()).into());
        let addresses = addresses.into_iter().map(Address);
        plan.items.extend(addresses.map(Item::Address));
        for subnet in &settings.node_subnets {
            plan.items.push(Item::Neighbour(Neighbour {
                link: LINK.to_owned(),
                ip: gateway(subnet),
                mac: router_mac.clone(),
            }));
        }
        let beyond = settings
            .cluster_subnets
            .iter()
            .chain(&settings.service_cidrs);
        for destination in beyond.filter(|net| !settings.node_subnets.contains(net)) {
            let of_family = |net: &&IpNet| net.addr().is_ipv4() == destination.addr().is_ipv4();
            if let Some(subnet) = settings.node_subnets.iter().find(of_family) {
                plan.items.push(Item::Route(Route {
                    destination: *destination,
                    via: gateway(subnet),
                    link: LINK.to_owned(),
                    source: None,
                }));
            }
        }
        let guarded = guarded::with_ovn(settings, actual);
        let doors = door.then(|| plan.doors(settings, actual));
        let table = Table::routed(settings, &guarded, doors);
        plan.items.push(Item::Table(table));
        if actual.has_egress && !actual.switch.locked.is_empty() {
            plan.items.push(Item::Table(Table::router(&router_mac)));
        }
        plan.uplink = Some(uplink.link.clone());
        plan.verdict = vec![
            format!("profile routed: {} is not touched", uplink.link),
            match settings.encap_port {
                Some(port) => format!("tunnels end at {}, UDP port {port}", encap_ips.join(", ")),
                None => format!("tunnels end at {}", encap_ips.join(", ")),
            },
            format!(
                "pods and {LINK} have an MTU of {mtu} bytes ({})",
                uplink.why_mtu(settings)
            ),
        ];
        Ok(plan)
    }

    fn keys(
        &mut self,
        settings: &Settings,
        actual: &Actual,
        encap_ips: &str,
    ) -> Result<(), String> {
        let mut key = |key: &str, value: &str, claim| {
            self.items.push(Item::Key(Key {
                key: key.to_owned(),
                value: value.to_owned(),
                claim,
            }));
        };
        let node = settings.node_name.as_str();
        // Kubernetes ensures that no two nodes have the same name; a cloned image has the
        // original's system-id.
        let chassis = actual.switch.system_id.as_deref().unwrap_or(node);
        key("system-id", chassis, Claim::Yield);
        // ovs-ctl writes the host's name at each start; logical ports request the node's.
        key("hostname", node, Claim::Replace);
        match (&settings.ovn_remote, actual.key("ovn-remote")) {
            (Some(remote), _) => key("ovn-remote", remote, Claim::Refuse),
            // Another program's value stays; podwire's stays as long as no other is set.
            (None, Some(remote)) => key("ovn-remote", remote, Claim::Yield),
            (None, None) => {
                return Err(
                    "the southbound database is not known: name it by --ovn-remote, as in \
                            ssl:192.0.2.1:6642"
                        .to_owned(),
                );
            }
        }
        let remote = settings.ovn_remote.as_deref().or(actual.key("ovn-remote"));
        let needs_keys = remote.is_some_and(|remote| remote.contains("ssl:"));
        if needs_keys && settings.tls.is_none() && actual.switch.ssl.is_none() {
            return Err(format!(
                "ovn-remote {}: ssl: needs keys, and Open vSwitch has none: name them by \
                 --ovn-private-key, --ovn-certificate and --ovn-ca-cert",
                remote.unwrap_or_default()
            ));
        }
        let claim = match settings.encap_ips.is_empty() {
            false => Claim::Refuse,
            true => Claim::Yield,
        };
        key("ovn-encap-type", "geneve", Claim::Yield);
        // Of a link that is missing, it is not known yet.
        if !encap_ips.is_empty() {
            key(ENCAP_IP, encap_ips, claim);
        }
        let is_unregistered = !encap_ips.is_empty() && actual.switch.is_unregistered(encap_ips);
        let value = |key: &str, value| match key {
            PROBE if is_unregistered => SOON,
            _ => value,
        };
        for (tuned, tuning) in TUNED {
            if !settings.ovn_options.contains_key(tuned) {
                key(tuned, value(tuned, tuning), Claim::Yield);
            }
        }
        for (option, set) in &settings.ovn_options {
            key(option, value(option, set), Claim::Replace);
        }
        for (network, bridge) in &settings.bridge_mappings {
            key(&format!("{MAPPING}{network}"), bridge, Claim::Refuse);
        }
        self.asks_southbound = is_unregistered || settings.encap_port.is_some();
        if let Some(port) = settings.encap_port {
            let chassis = actual.key("system-id").unwrap_or(chassis).to_owned();
            self.items
                .push(Item::TunnelPort(TunnelPort { chassis, port }));
        }
        if let Some(keys) = &settings.tls {
            self.items.push(Item::Ssl(Ssl(keys.clone())));
        }
        Ok(())
    }

    /// IPv6 on one of podwire's links, which network managers disable.
    fn ipv6_on(&mut self, settings: &Settings, link: &str) {
        if settings.node_subnets.iter().any(|net| net.addr().is_ipv6()) {
            let path = format!("net/ipv6/conf/{link}/disable_ipv6");
            self.items.push(sysctl(path, "0"));
        }
    }

    /// Has the host learn no route from what arrives on a link to the pods. A link with
    /// `force_forwarding` is no router to the kernel, which would believe another one.
    fn learn_nothing(&mut self, link: &str, actual: &Actual) {
        let ipv6 = ["accept_ra", "accept_redirects"].map(|name| ("ipv6", name));
        let ipv6 = ipv6.into_iter().filter(|_| actual.has_ipv6);
        for (family, name) in ipv6.chain([("ipv4", "accept_redirects")]) {
            let path = format!("net/{family}/conf/{link}/{name}");
            self.items.push(sysctl(path, "0"));
        }
    }

    /// Enables forwarding between these links.
    fn forward(&mut self, settings: &Settings, uplink: &Uplink, links: &[&str], actual: &Actual) {
        let mut set = |path: String, value: &str| self.items.push(sysctl(path, value));
        let has = |v4| {
            settings
                .node_subnets
                .iter()
                .any(|net| net.addr().is_ipv4() == v4)
        };
        if has(true) {
            for link in links {
                set(format!("net/ipv4/conf/{link}/forwarding"), "1");
            }
        }
        if has(false) && actual.force_forwarding {
            for link in links {
                set(format!("net/ipv6/conf/{link}/force_forwarding"), "1");
            }
        } else if has(false) {
            // A router ignores router advertisements (ipv6.rst, accept_ra) unless this is 2.
            if matches!(actual.accept_ra.as_deref(), Some("1" | "2")) {
                set(format!("net/ipv6/conf/{}/accept_ra", uplink.link), "2");
            }
            set("net/ipv6/conf/all/forwarding".to_owned(), "1");
        }
    }
}

fn sysctl(path: String, value: &str) -> Item {
    let value = value.to_owned();
    Item::Sysctl(Sysctl { path, value })
}

/// ovn-controller's settings, unless set by somebody else.
const TUNED: [(&str, &str); 5] = [
    // In milliseconds and seconds; with ovn-controller's default of 5 s, a busy southbound database
    // can lose all of its clients at once.
    (PROBE, "100000"),
    ("ovn-openflow-probe-interval", "180"),
    // Conditional monitoring costs the southbound database more than it saves the nodes.
    ("ovn-monitor-all", "true"),
    ("ovn-ofctrl-wait-before-clear", "0"),
    ("ovn-enable-lflow-cache", "true"),
];

/// Geneve's own UDP port (RFC 8926).
pub(crate) const TUNNEL_PORT: u16 = 6081;

#[cfg(test)]
mod tests;
