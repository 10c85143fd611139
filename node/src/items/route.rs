//! Routes in table main.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::RouteMessageBuilder;
use serde::{Deserialize, Serialize};

use super::{
    Actual, CHANGE, Change, Former, Item, Kind, REPLACE, State, Undo, View, link, request,
};
use crate::{LINK, PROTOCOL, TUNNEL};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Route {
    pub(crate) destination: IpNet,
    pub(crate) via: IpAddr,
    pub(crate) link: String,
    /// The source address of the host's own packets; it belongs to another link.
    pub(crate) source: Option<IpAddr>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedRoute {
    pub(crate) destination: IpNet,
    pub(crate) via: Option<IpAddr>,
    pub(crate) link: Option<String>,
    pub(crate) source: Option<IpAddr>,
    pub(crate) ours: bool,
    /// The number of its origin, as `ip route` shows it after `proto`.
    pub(crate) protocol: u8,
    pub(crate) table: u32,
    pub(crate) metric: u32,
    /// As the kernel lists it.
    pub(crate) message: RouteMessage,
}

impl ObservedRoute {
    /// A route in table main, or of podwire's, with its link by name.
    pub(crate) fn of(message: RouteMessage, name: impl Fn(u32) -> Option<String>) -> Option<Self> {
        let header = &message.header;
        let mut seen = Self {
            destination: destination(&message)?,
            via: None,
            link: None,
            source: None,
            ours: header.protocol == RouteProtocol::Other(PROTOCOL),
            protocol: header.protocol.into(),
            table: header.table.into(),
            metric: 0,
            message: RouteMessage::default(),
        };
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Gateway(address) => seen.via = ip(address),
                RouteAttribute::PrefSource(address) => seen.source = ip(address),
                RouteAttribute::Oif(index) => seen.link = name(*index),
                RouteAttribute::Table(table) => seen.table = *table,
                RouteAttribute::Priority(metric) => seen.metric = *metric,
                _ => {}
            }
        }
        seen.message = message;
        (seen.is_in_main() || seen.ours).then_some(seen)
    }

    /// Whether it leads somewhere, unlike a blackhole.
    pub(crate) fn is_unicast(&self) -> bool {
        self.message.header.kind == RouteType::Unicast
    }

    /// What podwire's routes don't have: the kind, and attributes that change where packets go.
    fn peculiarities(&self) -> Vec<String> {
        let kind = match self.message.header.kind {
            RouteType::Unicast => None,
            RouteType::BlackHole => Some("blackhole".to_owned()),
            RouteType::Unreachable => Some("unreachable".to_owned()),
            RouteType::Prohibit => Some("prohibit".to_owned()),
            RouteType::Throw => Some("throw".to_owned()),
            other => Some(format!("type {}", u8::from(other))),
        };
        let attributes = self.message.attributes.iter();
        let attributes = attributes.filter_map(|attribute| match attribute {
            RouteAttribute::Metrics(metrics) => Some(format!("with {metrics:?}")),
            RouteAttribute::MultiPath(hops) => Some(format!("over {} next hops", hops.len())),
            RouteAttribute::Realm(realm) => Some(format!("with {realm:?}")),
            RouteAttribute::NhId(id) => Some(format!("with next hop {id}")),
            RouteAttribute::EncapType(_) => Some("with an encapsulation".to_owned()),
            _ => None,
        });
        kind.into_iter().chain(attributes).collect()
    }

    fn is_in_main(&self) -> bool {
        self.table == u32::from(RouteHeader::RT_TABLE_MAIN)
    }

    /// In `ip`'s words.
    fn text(&self) -> String {
        let mut words = self.peculiarities();
        words.extend(self.via.map(|via| format!("via {via}")));
        words.extend(self.link.as_ref().map(|link| format!("dev {link}")));
        let by = match self.protocol {
            PROTOCOL => "podwire".to_owned(),
            // linux/rtnetlink.h, RTPROT_*.
            2 => "kernel".to_owned(),
            3 => "boot".to_owned(),
            4 => "static".to_owned(),
            16 => "dhcp".to_owned(),
            other => other.to_string(),
        };
        words.push(format!("proto {by}"));
        words.join(" ")
    }
}

/// The network that a route leads to.
pub(crate) fn destination(message: &RouteMessage) -> Option<IpNet> {
    let header = &message.header;
    let mut attributes = message.attributes.iter();
    let named = attributes.find_map(|attribute| match attribute {
        RouteAttribute::Destination(address) => ip(address),
        _ => None,
    });
    let ip = named.or(match header.address_family {
        AddressFamily::Inet => Some(Ipv4Addr::UNSPECIFIED.into()),
        AddressFamily::Inet6 => Some(Ipv6Addr::UNSPECIFIED.into()),
        _ => None,
    });
    IpNet::new(ip?, header.destination_prefix_length).ok()
}

pub(crate) fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some((*ip).into()),
        RouteAddress::Inet6(ip) => Some((*ip).into()),
        _ => None,
    }
}

impl Route {
    fn message(&self, actual: &Actual) -> Option<RouteMessage> {
        let destination = self.destination;
        let builder = RouteMessageBuilder::<IpAddr>::new()
            .output_interface(actual.index(&self.link)?)
            .protocol(RouteProtocol::Other(PROTOCOL))
            .destination_prefix(destination.addr(), destination.prefix_len())
            .and_then(|builder| builder.gateway(self.via))
            .and_then(|builder| match self.source {
                Some(source) => builder.pref_source(source),
                None => Ok(builder),
            });
        // All are of one family: the plan pairs them.
        let mut message = builder.ok()?.build();
        if self.link == TUNNEL {
            // No address of the link shows that the next hop is there.
            message.header.flags |= RouteFlags::Onlink;
        }
        Some(message)
    }

    /// What it waits for.
    fn lacks(&self, view: &View<'_>) -> Option<String> {
        link::lacks(view, &self.link).or_else(|| {
            let source = self.source?;
            let mut own = view.actual.addresses.iter();
            let has = own.any(|seen| seen.address.addr() == source);
            (!has).then(|| format!("address {source}, which the agent gives the pods' bridge"))
        })
    }

    /// The route that it replaces for the first time; later ones come from whoever competes for its
    /// place.
    fn replaced(&self, actual: &Actual, journal: &[Undo]) -> Option<Former> {
        let was_made = |undo: &Undo| match undo {
            Undo::Made(Item::Route(made)) => made.destination == self.destination,
            _ => false,
        };
        // The kernel replaces the route with the same metric; these are the defaults.
        let metric = if self.destination.addr().is_ipv4() {
            0
        } else {
            1024
        };
        let mut routes = actual.routes.iter();
        let seen = routes.find(|seen| {
            seen.destination == self.destination && seen.metric == metric && !seen.ours
        });
        let seen = seen.filter(|_| !journal.iter().any(was_made))?;
        Some(Former::of(seen))
    }
}

impl Kind for Route {
    fn identity(&self) -> String {
        format!("route {}", self.destination)
    }

    fn details(&self) -> String {
        format!(" via {} dev {}", self.via, self.link)
    }

    fn state(&self, view: &View<'_>) -> State {
        let routes = view.actual.routes.iter();
        let same: Vec<_> = routes
            .filter(|seen| seen.destination == self.destination)
            .collect();
        let right = same.iter().find(|seen| {
            seen.is_unicast()
                && seen.via == Some(self.via)
                && seen.link.as_ref() == Some(&self.link)
                && (self.source.is_none() || seen.source == self.source)
        });
        let made = view.made(self.clone());
        let state = match (right, same.first()) {
            (Some(seen), _) if (seen.ours || made) && !seen.peculiarities().is_empty() => {
                State::Differs(seen.text())
            }
            (Some(seen), _) => State::Well { ours: seen.ours },
            (None, None) => State::Missing,
            // If podwire had created its own here, somebody has replaced that since.
            (None, Some(seen)) if seen.ours || view.take_over || made => {
                State::Differs(seen.text())
            }
            // One in podwire's place is known before podwire's link exists.
            (None, Some(seen)) => {
                return State::Foreign(format!(
                    "another one exists {}: remove it, or replace it with --take-over",
                    seen.text()
                ));
            }
        };
        self.lacks(view).map_or(state, State::Waits)
    }

    fn undos(&self, actual: &Actual, journal: &[Undo]) -> Vec<Undo> {
        let replaced = self.replaced(actual, journal).map(Undo::Replaced);
        replaced.into_iter().collect()
    }

    fn make(&self, actual: &Actual) -> Vec<Change> {
        // The kernel refuses a next hop on a link while another route puts it on another link
        // (`ip6_route_check_nh_onlink`).
        let others = actual.routes.iter().filter(|seen| {
            self.link == TUNNEL
                && seen.destination == self.destination
                && seen.link.as_deref().is_some_and(|link| link != TUNNEL)
        });
        let mut changes: Vec<Change> = others
            .filter_map(|seen| {
                let other = Self {
                    destination: seen.destination,
                    via: seen.via?,
                    link: seen.link.clone()?,
                    source: None,
                };
                Some(other.remove(actual))
            })
            .flatten()
            .collect();
        let new = self.message(actual).map(RouteNetlinkMessage::NewRoute);
        changes.extend(request(new, REPLACE));
        changes
    }

    fn remove(&self, actual: &Actual) -> Vec<Change> {
        let gone = self.message(actual).map(RouteNetlinkMessage::DelRoute);
        request(gone, CHANGE)
    }

    /// Another program's routes may have the same protocol number: podwire's are in the main table,
    /// on a link of podwire's, or in the journal.
    fn marked(view: &View<'_>) -> Vec<Item> {
        let routes = view.actual.routes.iter();
        let routes = routes.filter(|seen| seen.ours && seen.is_in_main());
        let routes = routes.filter_map(|seen| {
            Some(Self {
                destination: seen.destination,
                via: seen.via?,
                link: seen.link.clone()?,
                source: seen.source,
            })
        });
        routes
            .filter(|it| [LINK, TUNNEL].contains(&&*it.link) || view.made(it.clone()))
            .map(Item::Route)
            .collect()
    }
}
