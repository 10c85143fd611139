//! What is compared with what should be: pure.

use std::collections::BTreeSet;

use netlink_packet_route::route::RouteHeader;

use crate::firewall::Table;
use crate::journal::Undo;
use crate::observe::{Observed, PortSeen, RouteSeen};
use crate::plan::{Claim, Item, Plan, Port};
use crate::{LINK, MADE, PROTOCOL};

/// An item, and how it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) item: Item,
    pub(crate) state: State,
}

/// How an item is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// As it should be; `ours` when it bears our mark.
    Well { ours: bool },
    /// Not there.
    Missing,
    /// There in another form, which is told.
    Differs(String),
    /// Somebody else's is in its place, which is told.
    Foreign(String),
    /// It bears our mark and is not wanted any more.
    Surplus,
    /// It can't be made before something else is there, which is told.
    Waits(String),
}

/// One change of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Make(Item),
    Remove(Item),
}

/// Every item of the plan in its order, and after them what is of ours and not in it.
pub(crate) fn findings(
    plan: &Plan,
    observed: &Observed,
    journal: &[Undo],
    take_over: bool,
) -> Vec<Finding> {
    let look = Look {
        plan,
        observed,
        journal,
        take_over,
    };
    let wanted = plan.items.iter().map(|item| Finding {
        state: look.state(item),
        item: item.clone(),
    });
    wanted.chain(look.surplus()).collect()
}

/// The steps that can be taken now: what is to go first, last made first.
pub(crate) fn steps(findings: &[Finding]) -> Vec<Step> {
    let removals = findings.iter().rev();
    let removals = removals.filter(|finding| finding.state == State::Surplus);
    let made = findings.iter();
    let made = made.filter(|finding| matches!(finding.state, State::Missing | State::Differs(_)));
    removals
        .map(|finding| Step::Remove(finding.item.clone()))
        .chain(made.map(|finding| Step::Make(finding.item.clone())))
        .collect()
}

struct Look<'a> {
    plan: &'a Plan,
    observed: &'a Observed,
    journal: &'a [Undo],
    take_over: bool,
}

impl Look<'_> {
    fn state(&self, item: &Item) -> State {
        match item {
            Item::Key { key, value, claim } => self.of_switch(self.key(key, value, *claim)),
            Item::Port(port) => self.of_switch(self.port(port)),
            Item::Sysctl { path, value } => self.sysctl(path, value),
            Item::Table(table) => self.table(table),
            Item::Services => State::Well { ours: true },
            Item::LinkUp | Item::Address(_) | Item::Neighbour { .. } | Item::Route { .. } => {
                // What is in our place elsewhere is known before our link is there.
                match (self.on_link(item), self.without_link()) {
                    (foreign @ State::Foreign(_), _) => foreign,
                    (_, Some(awaited)) => State::Waits(awaited),
                    (state, None) => state,
                }
            }
        }
    }

    /// How an item of the switch's database is, which can't be changed while that doesn't answer.
    fn of_switch(&self, state: State) -> State {
        match state {
            State::Missing | State::Differs(_) if !self.observed.switch.answers => {
                State::Waits("Open vSwitch's database, which does not answer".to_owned())
            }
            state => state,
        }
    }

    fn key(&self, key: &str, value: &str, claim: Claim) -> State {
        if self.observed.switch.root.is_none() {
            let awaited = "the database has no row of Open_vSwitch: start Open vSwitch by its own \
                           script, or run ovs-vsctl init";
            return State::Waits(awaited.to_owned());
        }
        let ours = self.observed.switch.owned.contains_key(key);
        match self.observed.key(key) {
            None => State::Missing,
            Some(seen) if seen == value => State::Well { ours },
            Some(seen) if ours || self.take_over => State::Differs(seen.to_owned()),
            Some(seen) => match claim {
                Claim::Yield => State::Well { ours: false },
                Claim::Replace => State::Differs(seen.to_owned()),
                Claim::Refuse => State::Foreign(format!(
                    "somebody else set it to {seen}: --take-over replaces it until cleanup"
                )),
            },
        }
    }

    fn port(&self, wanted: &Port) -> State {
        let Some(seen) = &self.observed.switch.port else {
            return match self.observed.switch.bridges.contains_key(&wanted.bridge) {
                true => State::Missing,
                false => State::Waits(format!(
                    "bridge {}, which ovn-controller makes: is ovn-controller running?",
                    wanted.bridge
                )),
            };
        };
        let bridge = seen.bridge.as_ref().map(|(name, _)| name.as_str());
        if bridge != Some(&wanted.bridge) {
            let bridge = bridge.unwrap_or("no bridge");
            return State::Foreign(format!(
                "it is on {bridge}: remove it there (ovs-vsctl del-port {bridge} {LINK})"
            ));
        }
        if seen.mark.is_none() && !self.take_over {
            let whose = match seen.iface_id.as_deref() == Some(&wanted.iface_id) {
                true => "ovn-kubernetes made it: --take-over adopts it until cleanup".to_owned(),
                false => format!(
                    "it bears no mark of podwire: remove it (ovs-vsctl del-port {LINK}), or adopt \
                     it by --take-over"
                ),
            };
            return State::Foreign(whose);
        }
        match differences(seen, wanted) {
            differences if differences.is_empty() => State::Well { ours: true },
            differences => State::Differs(differences.join(", ")),
        }
    }

    /// What the management port's link lacks to take addresses.
    fn without_link(&self) -> Option<String> {
        let port = self.observed.switch.port.as_ref();
        let said = port.and_then(|port| port.error.as_ref());
        let said = said.map_or(String::new(), |error| format!(", which says: {error}"));
        let wanted = self.plan.items.iter().find_map(|item| match item {
            Item::Port(port) => Some(port.mac.as_str()),
            _ => None,
        });
        match self.observed.links.get(LINK) {
            _ if port.is_none() => Some(format!("port {LINK}")),
            None => Some(format!("link {LINK}, which ovs-vswitchd makes{said}")),
            Some(link) if wanted.is_some_and(|mac| mac != link.mac) => {
                Some(format!("the MAC of {LINK}, which ovs-vswitchd sets{said}"))
            }
            Some(_) => None,
        }
    }

    fn on_link(&self, item: &Item) -> State {
        let observed = self.observed;
        match item {
            Item::LinkUp => match observed.links.get(LINK).is_some_and(|link| link.up) {
                true => State::Well { ours: true },
                false => State::Missing,
            },
            Item::Address(net) => {
                let mut same = observed
                    .addresses
                    .iter()
                    .filter(|seen| seen.address.addr() == net.addr());
                match same.clone().find(|seen| seen.link != LINK) {
                    Some(other) => State::Foreign(format!(
                        "{} has this address: is --node-subnet another node's?",
                        other.link
                    )),
                    None => match same.find(|seen| seen.address == *net) {
                        Some(seen) => State::Well { ours: seen.ours },
                        None => State::Missing,
                    },
                }
            }
            Item::Neighbour { ip, mac } => {
                match observed.neighbours.iter().find(|seen| seen.ip == *ip) {
                    Some(seen) if seen.permanent && seen.mac.as_ref() == Some(mac) => {
                        State::Well { ours: seen.ours }
                    }
                    Some(seen) if seen.permanent => {
                        State::Differs(seen.mac.clone().unwrap_or_default())
                    }
                    _ => State::Missing,
                }
            }
            Item::Route { destination, via } => {
                let same: Vec<_> = observed
                    .routes
                    .iter()
                    .filter(|seen| seen.destination == *destination)
                    .collect();
                let right = |seen: &&&RouteSeen| {
                    seen.via == Some(*via) && seen.link.as_deref() == Some(LINK)
                };
                if let Some(seen) = same.iter().find(right) {
                    return State::Well { ours: seen.ours };
                }
                match same.first() {
                    None => State::Missing,
                    // Who put it in the place of one that we had made did so meanwhile.
                    Some(seen) if seen.ours || self.take_over || self.made(item) => {
                        State::Differs(of_route(seen))
                    }
                    Some(seen) => State::Foreign(format!(
                        "there is one {}: remove it, or replace it by --take-over",
                        of_route(seen)
                    )),
                }
            }
            _ => State::Missing,
        }
    }

    /// Whether we made it, since the machine has been up.
    fn made(&self, item: &Item) -> bool {
        self.journal.contains(&Undo::Made(item.clone()))
    }

    fn sysctl(&self, path: &str, value: &str) -> State {
        let ours = self
            .journal
            .iter()
            .any(|undo| matches!(undo, Undo::Sysctl { path: of, .. } if of == path));
        match self.observed.sysctls.get(path) {
            Some(seen) if seen == value => State::Well { ours },
            Some(seen) => State::Differs(seen.clone()),
            None if path.contains(LINK) => State::Waits(format!("link {LINK}")),
            None => State::Foreign("the kernel has no such setting".to_owned()),
        }
    }

    fn table(&self, wanted: &Table) -> State {
        let Some(seen) = &self.observed.table else {
            return State::Missing;
        };
        let chains: BTreeSet<&String> = wanted.chains.iter().map(|(name, _)| name).collect();
        // Chains are listed in nft's order, and the rules of a chain in theirs.
        let of = |rules: &[(String, String)]| -> Vec<(String, String)> {
            let mut rules = rules.to_vec();
            rules.sort_by(|a, b| a.0.cmp(&b.0));
            rules
        };
        if seen.chains.iter().collect::<BTreeSet<_>>() != chains
            || of(&seen.rules) != of(&wanted.marks())
        {
            return State::Differs("its rules are others".to_owned());
        }
        State::Well { ours: true }
    }

    /// What bears our mark, or stands in the journal, and is not in the plan; in the order in which
    /// it would have been made.
    fn surplus(&self) -> Vec<Finding> {
        let observed = self.observed;
        let wanted: BTreeSet<String> = self.plan.items.iter().map(Item::identity).collect();
        let mut items: Vec<Item> = Vec::new();
        let of_switch = observed.switch.answers;
        for key in observed.switch.owned.keys().filter(|_| of_switch) {
            items.push(Item::Key {
                key: key.clone(),
                value: observed.key(key).unwrap_or_default().to_owned(),
                claim: Claim::Yield,
            });
        }
        let port = observed.switch.port.as_ref();
        if let Some(port) = port.filter(|port| of_switch && port.mark.is_some()) {
            items.push(Item::Port(Port {
                bridge: port
                    .bridge
                    .as_ref()
                    .map(|(name, _)| name.clone())
                    .unwrap_or_default(),
                iface_id: port.iface_id.clone().unwrap_or_default(),
                mac: port.mac.clone().unwrap_or_default(),
                mtu: port.mtu_request.unwrap_or_default(),
            }));
        }
        for undo in self.journal {
            if let Undo::Sysctl { path, was, set } = undo
                && observed.sysctls.get(path) == Some(set)
                && was != set
            {
                items.push(Item::Sysctl {
                    path: path.clone(),
                    value: was.clone(),
                });
            }
        }
        // With a port that we made the link goes; one that we took over is as it was.
        let taken_over = |port: &PortSeen| port.mark.as_deref().is_some_and(|mark| mark != MADE);
        let is_up = observed.links.get(LINK).is_some_and(|link| link.up);
        if is_up
            && self.made(&Item::LinkUp)
            && observed.switch.port.as_ref().is_some_and(taken_over)
        {
            items.push(Item::LinkUp);
        }
        for seen in observed.addresses.iter().filter(|seen| seen.link == LINK) {
            let item = Item::Address(seen.address);
            if seen.ours || self.made(&item) {
                items.push(item);
            }
        }
        for seen in &observed.neighbours {
            let item = Item::Neighbour {
                ip: seen.ip,
                mac: seen.mac.clone().unwrap_or_default(),
            };
            if seen.ours || self.made(&item) {
                items.push(item);
            }
        }
        // Another's may bear the same protocol number: ours are on our link, in the main table.
        let own = |seen: &&RouteSeen| {
            let main = u32::from(RouteHeader::RT_TABLE_MAIN);
            seen.ours && seen.link.as_deref() == Some(LINK) && seen.table == main
        };
        for seen in observed.routes.iter().filter(own) {
            if let Some(via) = seen.via {
                items.push(Item::Route {
                    destination: seen.destination,
                    via,
                });
            }
        }
        // Who keeps a node keeps its services.
        if observed.services && self.plan.items.is_empty() {
            items.push(Item::Services);
        }
        if observed.table.is_some() {
            items.push(Item::Table(Table::default()));
        }
        items
            .into_iter()
            .filter(|item| !wanted.contains(&item.identity()))
            .map(|item| Finding {
                item,
                state: State::Surplus,
            })
            .collect()
    }
}

fn differences(seen: &PortSeen, wanted: &Port) -> Vec<String> {
    let mut differences = Vec::new();
    let mut compare = |what: &str, seen: Option<String>, wanted: String| {
        if seen.as_ref() != Some(&wanted) {
            differences.push(format!(
                "{what} {}",
                seen.unwrap_or_else(|| "none".to_owned())
            ));
        }
    };
    compare("type", Some(seen.kind.clone()), "internal".to_owned());
    compare("iface-id", seen.iface_id.clone(), wanted.iface_id.clone());
    compare("MAC", seen.mac.clone(), wanted.mac.clone());
    let mtu = seen.mtu_request.map(|mtu| mtu.to_string());
    compare("MTU", mtu, wanted.mtu.to_string());
    if seen.mark.is_none() {
        differences.push("without our mark".to_owned());
    }
    differences
}

fn of_route(seen: &RouteSeen) -> String {
    let via = seen
        .via
        .map(|via| format!("via {via} "))
        .unwrap_or_default();
    let link = seen.link.as_deref().unwrap_or("no link");
    let by = match seen.protocol {
        PROTOCOL => "podwire".to_owned(),
        // linux/rtnetlink.h, RTPROT_*.
        2 => "kernel".to_owned(),
        3 => "boot".to_owned(),
        4 => "static".to_owned(),
        16 => "dhcp".to_owned(),
        other => other.to_string(),
    };
    format!("{via}dev {link} proto {by}")
}
