//! Routes of somebody else that podwire's have replaced, listed for their return.

use ipnet::IpNet;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{RouteAttribute, RouteFlags, RouteMessage, RouteNextHopFlags};
use serde::{Deserialize, Serialize};

use super::{Actual, Change, Item, Kind, NEW, ObservedRoute, State, Undo, View, request};
use crate::wire;

/// A route of somebody else's, in table main.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Former {
    pub(crate) destination: IpNet,
    /// Empty without one, as of a blackhole.
    pub(crate) link: String,
    metric: u32,
    /// `struct rtmsg` and attributes as the kernel listed them, in hexadecimal digits.
    message: String,
}

impl Former {
    pub(super) fn of(seen: &ObservedRoute) -> Self {
        Self {
            destination: seen.destination,
            link: seen.link.clone().unwrap_or_default(),
            metric: seen.metric,
            message: wire::hex(&seen.message),
        }
    }

    fn message(&self, actual: &Actual) -> Option<RouteMessage> {
        let mut message: RouteMessage = wire::of_hex(&self.message)?;
        // What the kernel reports of links, and does not take back.
        message.header.flags &= RouteFlags::Onlink;
        let attributes = &mut message.attributes;
        let by_id = attributes
            .iter()
            .any(|it| matches!(it, RouteAttribute::NhId(_)));
        attributes.retain(|it| match it {
            RouteAttribute::CacheInfo(_) => false,
            // The next hop with that number has them.
            RouteAttribute::Oif(_)
            | RouteAttribute::Gateway(_)
            | RouteAttribute::Via(_)
            | RouteAttribute::MultiPath(_) => !by_id,
            _ => true,
        });
        for attribute in attributes {
            match attribute {
                // A link that was made anew has another one.
                RouteAttribute::Oif(index) => *index = actual.index(&self.link)?,
                RouteAttribute::MultiPath(hops) => {
                    for hop in hops {
                        hop.flags &= RouteNextHopFlags::Onlink;
                    }
                }
                _ => {}
            }
        }
        Some(message)
    }

    /// Whether it can return: podwire's is no longer planned, and nobody else's has its place.
    fn is_to_return(&self, view: &View<'_>) -> bool {
        let mut wanted = view.items.iter();
        let is_wanted = wanted
            .any(|item| matches!(item, Item::Route(it) if it.destination == self.destination));
        let mut there = view.actual.routes.iter();
        let is_there = there.any(|seen| {
            seen.destination == self.destination && seen.metric == self.metric && !seen.ours
        });
        let has_link = self.link.is_empty() || view.actual.links.contains_key(&self.link);
        !is_wanted && !is_there && has_link
    }
}

impl Kind for Former {
    fn identity(&self) -> String {
        format!("former route {}", self.destination)
    }

    fn removed(&self) -> String {
        match self.link.as_str() {
            "" => format!("restored route {}", self.destination),
            link => format!("restored route {} dev {link}", self.destination),
        }
    }

    /// It is never planned.
    fn state(&self, _: &View<'_>) -> State {
        State::Surplus
    }

    fn make(&self, _: &Actual) -> Vec<Change> {
        Vec::new()
    }

    fn remove(&self, actual: &Actual) -> Vec<Change> {
        let back = self.message(actual).map(RouteNetlinkMessage::NewRoute);
        request(back, NEW)
    }

    fn marked(view: &View<'_>) -> Vec<Item> {
        let formers = view.journal.iter().filter_map(|undo| match undo {
            Undo::Replaced(former) => Some(former),
            Undo::Made(_) | Undo::Sysctl { .. } => None,
        });
        formers
            .filter(|former| former.is_to_return(view))
            .cloned()
            .map(Item::Former)
            .collect()
    }
}
