//! Routes of somebody else that podwire's have replaced, listed for their return.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{RouteMessage, RouteProtocol, RouteScope};
use rtnetlink::RouteMessageBuilder;
use serde::{Deserialize, Serialize};

use super::{Actual, Change, Item, Kind, NEW, State, Undo, View, request};

/// A route of somebody else's, in table main.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Former {
    pub(crate) destination: IpNet,
    pub(crate) via: Option<IpAddr>,
    pub(crate) link: String,
    pub(crate) source: Option<IpAddr>,
    /// Of its maker.
    pub(crate) protocol: u8,
    pub(crate) metric: u32,
}

impl Former {
    fn message(&self, actual: &Actual) -> Option<RouteMessage> {
        let destination = self.destination;
        let mut builder = RouteMessageBuilder::<IpAddr>::new()
            .output_interface(actual.index(&self.link)?)
            .protocol(RouteProtocol::from(self.protocol))
            .priority(self.metric)
            .destination_prefix(destination.addr(), destination.prefix_len())
            .ok()?;
        if let Some(via) = self.via {
            builder = builder.gateway(via).ok()?;
        }
        if let Some(source) = self.source {
            builder = builder.pref_source(source).ok()?;
        }
        let mut message = builder.build();
        if self.via.is_none() && destination.addr().is_ipv4() {
            message.header.scope = RouteScope::Link;
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
        !is_wanted && !is_there && view.actual.links.contains_key(&self.link)
    }
}

impl Kind for Former {
    fn identity(&self) -> String {
        format!("former route {}", self.destination)
    }

    fn removed(&self) -> String {
        format!("restored route {} dev {}", self.destination, self.link)
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
