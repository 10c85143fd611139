//! That one of podwire's links is up, or a NIC in a bridge of podwire's; and what a link needs
//! before it can have anything.

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::LinkUnspec;
use serde::{Deserialize, Serialize};

use super::{Actual, CHANGE, Change, Item, Kind, State, Undo, View, request};
use crate::{DOOR, GATEWAY, LINK, LINKS, TUNNEL, mac};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct LinkUp(pub(crate) String);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedLink {
    pub(crate) index: u32,
    pub(crate) up: bool,
    pub(crate) mtu: u32,
    pub(crate) mac: String,
    /// The index of the bridge, bond or VRF that it is a part of.
    pub(crate) master: Option<u32>,
    /// Whether it has a carrier.
    pub(crate) carrier: bool,
    /// Its kind, such as vlan; empty of a physical one.
    pub(crate) kind: String,
    /// The index of the link below.
    pub(crate) below: Option<u32>,
}

impl ObservedLink {
    /// A link and its name.
    pub(crate) fn of(message: &LinkMessage) -> Option<(String, Self)> {
        let mut name = None;
        let mut seen = Self {
            index: message.header.index,
            up: message.header.flags.contains(LinkFlags::Up),
            mtu: 0,
            mac: String::new(),
            master: None,
            carrier: message.header.flags.contains(LinkFlags::LowerUp),
            kind: String::new(),
            below: None,
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(text) => name = Some(text.clone()),
                LinkAttribute::Mtu(mtu) => seen.mtu = *mtu,
                LinkAttribute::Controller(index) => seen.master = Some(*index).filter(|it| *it > 0),
                LinkAttribute::Link(index) => seen.below = Some(*index),
                LinkAttribute::LinkInfo(parts) => {
                    let mut kinds = parts.iter().filter_map(|part| match part {
                        LinkInfo::Kind(kind) => Some(kind.to_string()),
                        _ => None,
                    });
                    seen.kind = kinds.next().unwrap_or_default();
                }
                LinkAttribute::Address(bytes) => seen.mac = mac::text(bytes),
                _ => {}
            }
        }
        Some((name?, seen))
    }
}

impl LinkUp {
    fn set(&self, actual: &Actual, up: bool) -> Vec<Change> {
        let set = actual.index(&self.0).map(|index| {
            let link = LinkUnspec::new_with_index(index);
            let link = match up {
                // The kernel's datapath is the controller of its ports.
                true if actual.switch.nics.contains_key(&self.0) => link.up(),
                true => link.nocontroller().up(),
                false => link.down(),
            };
            RouteNetlinkMessage::SetLink(link.build())
        });
        request(set, CHANGE)
    }
}

impl Kind for LinkUp {
    fn identity(&self) -> String {
        format!("link {}", self.0)
    }

    fn details(&self) -> String {
        " up".to_owned()
    }

    fn state(&self, view: &View<'_>) -> State {
        let links = &view.actual.links;
        let seen = links.get(&self.0);
        let is_nic = view.actual.switch.nics.contains_key(&self.0);
        let master = seen.and_then(|link| link.master).filter(|_| !is_nic);
        match (lacks(view, &self.0), master) {
            (Some(awaited), _) => State::Waits(awaited),
            (None, Some(index)) => {
                let master = links.iter().find(|(_, link)| link.index == index);
                State::Differs(format!(
                    "a port of {}",
                    master.map_or("?", |(name, _)| name)
                ))
            }
            (None, None) if seen.is_some_and(|link| link.up) => State::Well {
                ours: !is_nic || view.made(self.clone()),
            },
            (None, None) => State::Missing,
        }
    }

    fn make(&self, actual: &Actual) -> Vec<Change> {
        self.set(actual, true)
    }

    fn remove(&self, actual: &Actual) -> Vec<Change> {
        self.set(actual, false)
    }

    /// A link is removed with a port that podwire created; that of one which was taken over is
    /// restored. A NIC was there before, and podwire set it up.
    fn marked(view: &View<'_>) -> Vec<Item> {
        let up = Self(LINK.to_owned());
        let is_up = view.actual.links.get(LINK).is_some_and(|link| link.up);
        let port = view.actual.switch.ports.get(LINK);
        let is_taken_over = port.is_some_and(|port| port.is_taken_over());
        let is_ours = is_up && is_taken_over && view.made(up.clone());
        let own = is_ours.then_some(up.into()).into_iter();
        let made = view.journal.iter().filter_map(|undo| match undo {
            Undo::Made(Item::LinkUp(it)) => Some(it),
            _ => None,
        });
        let nics = made.filter(|Self(name)| {
            let is_up = view.actual.links.get(name).is_some_and(|link| link.up);
            is_up && !LINKS.contains(&&**name) && name != GATEWAY
        });
        own.chain(nics.cloned().map(Item::from)).collect()
    }
}

/// What a link needs before it can have addresses, neighbours and routes.
pub(super) fn lacks(view: &View<'_>, name: &str) -> Option<String> {
    let switch = &view.actual.switch;
    let port = switch.ports.get(name);
    if [LINK, DOOR].contains(&name) && port.is_none() {
        return Some(format!("port {name}"));
    }
    if name == TUNNEL && !switch.bridges.contains_key(TUNNEL) {
        return Some(format!("bridge {TUNNEL}"));
    }
    let error = port.and_then(|port| port.error.as_ref());
    let said = error.map_or(String::new(), |error| format!(", which says: {error}"));
    let wanted = view.items.iter().find_map(|item| match item {
        Item::Port(port) if name == port.link => Some(port.mac.as_str()),
        Item::Bridge(bridge) if name == bridge.name => Some(bridge.mac.as_str()),
        _ => None,
    });
    match view.actual.links.get(name) {
        None if wanted.is_none() => Some(format!("link {name}")),
        None => Some(format!("link {name}, which ovs-vswitchd creates{said}")),
        Some(link) if wanted.is_some_and(|mac| mac != link.mac) => {
            Some(format!("the MAC of {name}, which ovs-vswitchd sets{said}"))
        }
        Some(_) => None,
    }
}
