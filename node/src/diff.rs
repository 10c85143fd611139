//! Compares the actual state with the plan: pure.

mod surplus;
mod switch;

use std::collections::BTreeSet;

use crate::actual::{Actual, RouteSeen};
use crate::firewall::Table;
use crate::firewalld::Rule;
use crate::journal::Undo;
use crate::plan::{Item, Plan};
use crate::{FILE_MARK, LINK, PROTOCOL, TUNNEL};

/// An item and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) item: Item,
    pub(crate) state: State,
}

/// The state of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// As planned; `ours` if it has podwire's mark.
    Well { ours: bool },
    /// Not there.
    Missing,
    /// It exists, but differs in the described way.
    Differs(String),
    /// Somebody else's item, as described, has its place.
    Foreign(String),
    /// It has podwire's mark but is no longer planned.
    Surplus,
    /// It can't be created before something else exists, as described.
    Waits(String),
    /// It is not made, because of a conflict of this setting.
    Refused(String),
}

/// One change of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Make(Item),
    Remove(Item),
}

impl Step {
    pub(crate) fn item(&self) -> &Item {
        let (Self::Make(item) | Self::Remove(item)) = self;
        item
    }
}

/// Every item of the plan in order, then those of podwire's that are not in it.
pub(crate) fn findings(
    plan: &Plan,
    actual: &Actual,
    journal: &[Undo],
    take_over: bool,
) -> Vec<Finding> {
    let look = Look {
        plan,
        actual,
        journal,
        take_over,
    };
    let wanted = plan.items.iter().map(|item| Finding {
        state: look.state(item),
        item: item.clone(),
    });
    wanted.chain(look.surplus()).collect()
}

/// The steps that can be executed now: removals first, in reverse order of creation.
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
    actual: &'a Actual,
    journal: &'a [Undo],
    take_over: bool,
}

impl Look<'_> {
    /// What exists stays in a conflict, and what is missing is not made.
    fn state(&self, item: &Item) -> State {
        let state = self.seen(item);
        let mut conflicts = self.plan.conflicts.iter();
        match conflicts.find(|conflict| conflict.blocks(item)) {
            Some(conflict) if !matches!(state, State::Well { .. }) => {
                State::Refused(conflict.setting.clone())
            }
            _ => state,
        }
    }

    fn seen(&self, item: &Item) -> State {
        match item {
            Item::Key { key, value, claim } => self.of_switch(self.key(key, value, *claim)),
            Item::Port(port) => self.of_switch(self.port(port)),
            Item::Ssl(wanted) => self.of_switch(self.ssl(wanted)),
            Item::TunnelPort { chassis, port } => self.tunnel_port(chassis, *port),
            Item::Bridge(bridge) => self.of_switch(self.bridge(bridge)),
            Item::Tunnel(tunnel) => self.of_switch(self.tunnel(tunnel)),
            Item::File { path, text } => match self.actual.files.get(path) {
                None => State::Missing,
                Some(seen) if seen == text => State::Well { ours: true },
                Some(seen) if outlives(path) && !seen.starts_with(FILE_MARK) => State::Foreign(
                    "somebody else wrote it: remove it, or omit the settings for it".to_owned(),
                ),
                Some(seen) => State::Differs(format!("{} other bytes", seen.len())),
            },
            Item::Sysctl { path, value } => self.sysctl(path, value),
            Item::Table(table) => self.table(table),
            Item::Services | Item::Former(_) => State::Well { ours: true },
            Item::Firewalld(rule) => self.firewalld(item, rule),
            Item::LinkUp(_) | Item::Address(_) | Item::Neighbour { .. } | Item::Route(_) => {
                // An item elsewhere that has podwire's place is known before podwire's link exists.
                match (self.on_link(item), self.lacks(item)) {
                    (foreign @ State::Foreign(_), _) => foreign,
                    (_, Some(awaited)) => State::Waits(awaited),
                    (state, None) => state,
                }
            }
        }
    }

    /// The state of an item in the switch's database, which can't be changed while that does not
    /// answer.
    fn of_switch(&self, state: State) -> State {
        match state {
            State::Missing | State::Differs(_) if !self.actual.switch.answers => {
                State::Waits("Open vSwitch's database, which does not answer".to_owned())
            }
            state => state,
        }
    }

    /// What an item on a link waits for.
    fn lacks(&self, item: &Item) -> Option<String> {
        match item {
            Item::LinkUp(link) | Item::Neighbour { link, .. } => self.without_link(link),
            Item::Route(route) => self.without_link(&route.link).or_else(|| {
                let source = route.source?;
                let mut own = self.actual.addresses.iter();
                let has = own.any(|seen| seen.address.addr() == source);
                (!has).then(|| format!("address {source}, which the agent gives the pods' bridge"))
            }),
            _ => self.without_link(LINK),
        }
    }

    /// What a link needs before it can have addresses, neighbours and routes.
    fn without_link(&self, name: &str) -> Option<String> {
        let switch = &self.actual.switch;
        let is_made = match name {
            LINK => switch.port.is_some(),
            TUNNEL => switch.bridges.contains_key(TUNNEL),
            _ => true,
        };
        if !is_made {
            let what = if name == LINK { "port" } else { "bridge" };
            return Some(format!("{what} {name}"));
        }
        let error = switch.port.as_ref().and_then(|port| port.error.as_ref());
        let error = error.filter(|_| name == LINK);
        let said = error.map_or(String::new(), |error| format!(", which says: {error}"));
        let wanted = self.plan.items.iter().find_map(|item| match item {
            Item::Port(port) if name == LINK => Some(port.mac.as_str()),
            Item::Bridge(bridge) if name == bridge.name => Some(bridge.mac.as_str()),
            _ => None,
        });
        match self.actual.links.get(name) {
            None if wanted.is_none() => Some(format!("link {name}")),
            None => Some(format!("link {name}, which ovs-vswitchd creates{said}")),
            Some(link) if wanted.is_some_and(|mac| mac != link.mac) => {
                Some(format!("the MAC of {name}, which ovs-vswitchd sets{said}"))
            }
            Some(_) => None,
        }
    }

    fn on_link(&self, item: &Item) -> State {
        let actual = self.actual;
        match item {
            Item::LinkUp(link) => match actual.links.get(link).is_some_and(|link| link.up) {
                true => State::Well { ours: true },
                false => State::Missing,
            },
            Item::Address(net) => {
                let mut same = actual.addresses.iter();
                match same.find(|seen| seen.link == LINK && seen.address == *net) {
                    Some(seen) => State::Well { ours: seen.ours },
                    None => State::Missing,
                }
            }
            Item::Neighbour { link, ip, mac } => {
                let mut of_link = actual.neighbours.iter();
                match of_link.find(|seen| seen.ip == *ip && seen.link == *link) {
                    Some(seen) if seen.permanent && seen.mac.as_ref() == Some(mac) => {
                        State::Well { ours: seen.ours }
                    }
                    Some(seen) if seen.permanent => {
                        State::Differs(seen.mac.clone().unwrap_or_default())
                    }
                    _ => State::Missing,
                }
            }
            Item::Route(route) => {
                let same: Vec<_> = actual
                    .routes
                    .iter()
                    .filter(|seen| seen.destination == route.destination)
                    .collect();
                let right = |seen: &&&RouteSeen| {
                    seen.via == Some(route.via)
                        && seen.link.as_ref() == Some(&route.link)
                        && (route.source.is_none() || seen.source == route.source)
                };
                if let Some(seen) = same.iter().find(right) {
                    return State::Well { ours: seen.ours };
                }
                match same.first() {
                    None => State::Missing,
                    // If podwire had created its own here, somebody has replaced that since.
                    Some(seen) if seen.ours || self.take_over || self.made(item) => {
                        State::Differs(of_route(seen))
                    }
                    Some(seen) => State::Foreign(format!(
                        "another one exists {}: remove it, or replace it with --take-over",
                        of_route(seen)
                    )),
                }
            }
            _ => State::Missing,
        }
    }

    /// Whether podwire created it, since the machine was booted.
    fn made(&self, item: &Item) -> bool {
        self.journal.contains(&Undo::Made(item.clone()))
    }

    fn sysctl(&self, path: &str, value: &str) -> State {
        let ours = self
            .journal
            .iter()
            .any(|undo| matches!(undo, Undo::Sysctl { path: of, .. } if of == path));
        match self.actual.sysctls.get(path) {
            Some(seen) if seen == value => State::Well { ours },
            Some(seen) => State::Differs(seen.clone()),
            None if self.lacks_link_of(path).is_some() => {
                State::Waits(self.lacks_link_of(path).unwrap_or_default())
            }
            None => State::Foreign("the kernel has no such setting".to_owned()),
        }
    }

    /// The missing link of a setting, if any.
    fn lacks_link_of(&self, path: &str) -> Option<String> {
        let link = path.split('/').nth(3)?;
        (link != "all" && !self.actual.links.contains_key(link)).then(|| format!("link {link}"))
    }

    fn firewalld(&self, item: &Item, rule: &Rule) -> State {
        let Some(seen) = self.actual.firewalld.as_ref() else {
            return State::Waits("firewalld".to_owned());
        };
        match seen.rules.get(rule) {
            _ if seen.uplink_zone.is_none() => {
                State::Waits("firewalld, which does not answer".to_owned())
            }
            None => State::Missing,
            Some(zone) if *zone == rule.zone => {
                let ours = self.made(item) || self.actual.switch.owned.contains_key(&rule.mark());
                State::Well { ours }
            }
            // Somebody has decided what may pass there.
            Some(_) => State::Well { ours: false },
        }
    }

    fn table(&self, wanted: &Table) -> State {
        let Some(seen) = &self.actual.table else {
            return State::Missing;
        };
        let chains: BTreeSet<&String> = wanted.chains.iter().map(|(name, _)| name).collect();
        // nft lists chains in its own order, but a chain's rules in theirs.
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
}

/// Whether a file survives a reboot, which the journal does not.
fn outlives(path: &str) -> bool {
    path.starts_with("/etc/")
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
