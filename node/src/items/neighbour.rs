//! Permanent neighbours: OVN's router answers no ARP for the node's own address, and tunnels carry
//! none.

use std::net::IpAddr;

use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteProtocol, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use serde::{Deserialize, Serialize};

use super::{Actual, CHANGE, Change, Item, Kind, REPLACE, State, View, link, request};
use crate::{PROTOCOL, mac};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Neighbour {
    pub(crate) link: String,
    pub(crate) ip: IpAddr,
    pub(crate) mac: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedNeighbour {
    link: String,
    ip: IpAddr,
    mac: Option<String>,
    permanent: bool,
    ours: bool,
}

impl ObservedNeighbour {
    /// A neighbour of the link with this name.
    pub(crate) fn of(message: &NeighbourMessage, link: &str) -> Option<Self> {
        let attributes = message.attributes.iter();
        let ip = attributes.clone().find_map(|attribute| match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some((*ip).into()),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some((*ip).into()),
            _ => None,
        });
        let mac = attributes.clone().find_map(|attribute| match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => Some(mac::text(bytes)),
            _ => None,
        });
        Some(Self {
            link: link.to_owned(),
            ip: ip?,
            mac,
            permanent: message.header.state == NeighbourState::Permanent,
            ours: message.attributes.contains(&protocol()),
        })
    }
}

impl Neighbour {
    fn message(&self, actual: &Actual) -> Option<NeighbourMessage> {
        let mut message = NeighbourMessage::default();
        let (family, ip) = match self.ip {
            IpAddr::V4(ip) => (AddressFamily::Inet, NeighbourAddress::Inet(ip)),
            IpAddr::V6(ip) => (AddressFamily::Inet6, NeighbourAddress::Inet6(ip)),
        };
        message.header.family = family;
        message.header.ifindex = actual.index(&self.link)?;
        message.header.state = NeighbourState::Permanent;
        message.header.kind = RouteType::Unspec;
        message.attributes.push(NeighbourAttribute::Destination(ip));
        Some(message)
    }
}

impl Kind for Neighbour {
    fn identity(&self) -> String {
        format!("neighbour {} of {}", self.ip, self.link)
    }

    fn details(&self) -> String {
        format!(" at {}, permanent", self.mac)
    }

    fn state(&self, view: &View<'_>) -> State {
        if let Some(awaited) = link::lacks(view, &self.link) {
            return State::Waits(awaited);
        }
        let mut neighbours = view.actual.neighbours.iter();
        match neighbours.find(|seen| seen.ip == self.ip && seen.link == self.link) {
            Some(seen) if !seen.permanent => State::Missing,
            Some(seen) if seen.mac.as_ref() == Some(&self.mac) => State::Well { ours: seen.ours },
            Some(seen) => State::Differs(seen.mac.clone().unwrap_or_default()),
            None => State::Missing,
        }
    }

    fn make(&self, actual: &Actual) -> Vec<Change> {
        let made = self.message(actual).map(|mut message| {
            let lladdr = mac::bytes(&self.mac).unwrap_or_default();
            let lladdr = NeighbourAttribute::LinkLayerAddress(lladdr);
            message.attributes.extend([lladdr, protocol()]);
            RouteNetlinkMessage::NewNeighbour(message)
        });
        request(made, REPLACE)
    }

    fn remove(&self, actual: &Actual) -> Vec<Change> {
        let gone = self.message(actual);
        let gone = gone.map(RouteNetlinkMessage::DelNeighbour);
        request(gone, CHANGE)
    }

    fn marked(view: &View<'_>) -> Vec<Item> {
        let neighbours = view.actual.neighbours.iter().map(|seen| {
            let item = Self {
                link: seen.link.clone(),
                ip: seen.ip,
                mac: seen.mac.clone().unwrap_or_default(),
            };
            (seen.ours, item)
        });
        neighbours
            .filter(|(ours, item)| *ours || view.made(item.clone()))
            .map(|(_, item)| item.into())
            .collect()
    }
}

fn protocol() -> NeighbourAttribute {
    NeighbourAttribute::Protocol(RouteProtocol::Other(PROTOCOL))
}
