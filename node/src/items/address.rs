//! Addresses of the management port's link.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressProtocol, AddressScope,
};
use netlink_packet_route::route::{RouteMessage, RouteProtocol, RouteScope};
use rtnetlink::{AddressMessageBuilder, RouteMessageBuilder};
use serde::{Deserialize, Serialize};

use super::{Actual, CHANGE, Change, ENCAP_IP, Item, Kind, NEW, State, View, link, request};
use crate::{DOOR, LINK, PROTOCOL};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Address(pub(crate) IpNet);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedAddress {
    pub(crate) link: String,
    pub(crate) address: IpNet,
    pub(crate) ours: bool,
    /// Of global scope.
    pub(crate) universe: bool,
    /// The same, and neither secondary nor temporary.
    pub(crate) global: bool,
}

impl ObservedAddress {
    /// An address of the link with this name.
    pub(crate) fn of(message: &AddressMessage, link: &str) -> Option<Self> {
        let attributes = message.attributes.iter();
        // On a point-to-point link, IFA_ADDRESS is the peer's.
        let ip = attributes.clone().find_map(|attribute| match attribute {
            AddressAttribute::Local(ip) => Some(*ip),
            _ => None,
        });
        let ip = ip.or_else(|| {
            attributes.clone().find_map(|attribute| match attribute {
                AddressAttribute::Address(ip) => Some(*ip),
                _ => None,
            })
        })?;
        // linux/if_addr.h: IFA_F_SECONDARY, which is IFA_F_TEMPORARY for IPv6.
        let secondary = message.header.flags.bits() & 1 != 0;
        let universe = message.header.scope == AddressScope::Universe;
        Some(Self {
            link: link.to_owned(),
            address: IpNet::new(ip, message.header.prefix_len).ok()?,
            ours: message.attributes.contains(&protocol()),
            universe,
            global: universe && !secondary,
        })
    }
}

impl Actual {
    /// The tunnels' address that podwire has set.
    pub(crate) fn tunnels_address(&self) -> Option<IpAddr> {
        let ours = self.switch.owned.contains_key(ENCAP_IP);
        self.key(ENCAP_IP).filter(|_| ours)?.parse().ok()
    }

    /// The link with that address, if packets still leave by it.
    pub(crate) fn tunnels_link(&self) -> Option<String> {
        let address = self.tunnels_address()?;
        let mut addresses = self.addresses.iter();
        let seen = addresses.find(|seen| seen.address.addr() == address)?;
        let leads = self.default_links.is_empty() || self.default_links.contains(&seen.link);
        leads.then(|| seen.link.clone())
    }

    /// The addresses of the machine for node ports: not those of the pod network.
    pub(crate) fn node_addresses(&self) -> BTreeSet<IpAddr> {
        let own = self
            .addresses
            .iter()
            .filter(|seen| seen.universe && ![LINK, DOOR, "lo"].contains(&&*seen.link));
        own.map(|seen| seen.address.addr()).collect()
    }
}

impl Address {
    fn is_there(&self, actual: &Actual) -> bool {
        let mut addresses = actual.addresses.iter();
        addresses.any(|seen| seen.link == LINK && seen.address == self.0)
    }

    /// Whether somebody has removed the route that the kernel makes for its network; a link that is
    /// down has none.
    fn is_unconnected(&self, actual: &Actual) -> bool {
        let mut routes = actual.routes.iter();
        actual.links.get(LINK).is_some_and(|link| link.up)
            && !routes.any(|seen| {
                seen.destination == self.0.trunc() && seen.link.as_deref() == Some(LINK)
            })
    }

    /// The route that the kernel makes for its network.
    fn connected(&self, actual: &Actual) -> Option<RouteMessage> {
        let net = self.0.trunc();
        let builder = RouteMessageBuilder::<IpAddr>::new()
            .output_interface(actual.index(LINK)?)
            .protocol(RouteProtocol::Kernel)
            .destination_prefix(net.addr(), net.prefix_len())
            .ok()?;
        if net.addr().is_ipv6() {
            // net/ipv6/addrconf.c: IP6_RT_PRIO_ADDRCONF.
            return Some(builder.priority(256).build());
        }
        let mut message = builder.pref_source(self.0.addr()).ok()?.build();
        message.header.scope = RouteScope::Link;
        Some(message)
    }

    fn message(&self, actual: &Actual) -> Option<AddressMessage> {
        let (index, length) = (actual.index(LINK)?, self.0.prefix_len());
        Some(match self.0.addr() {
            IpAddr::V4(ip) => AddressMessageBuilder::<Ipv4Addr>::new()
                .index(index)
                .address(ip, length)
                .build(),
            IpAddr::V6(ip) => AddressMessageBuilder::<Ipv6Addr>::new()
                .index(index)
                .address(ip, length)
                .build(),
        })
    }
}

impl Kind for Address {
    fn identity(&self) -> String {
        format!("address {} of {LINK}", self.0)
    }

    fn state(&self, view: &View<'_>) -> State {
        if let Some(awaited) = link::lacks(view, LINK) {
            return State::Waits(awaited);
        }
        let mut addresses = view.actual.addresses.iter();
        match addresses.find(|seen| seen.link == LINK && seen.address == self.0) {
            Some(_) if self.is_unconnected(view.actual) => {
                State::Differs("without its connected route".to_owned())
            }
            Some(seen) => State::Well { ours: seen.ours },
            None => State::Missing,
        }
    }

    fn make(&self, actual: &Actual) -> Vec<Change> {
        if self.is_there(actual) {
            let route = self.connected(actual).map(RouteNetlinkMessage::NewRoute);
            return request(route, NEW);
        }
        let new = self.message(actual).map(|mut message| {
            message.attributes.push(protocol());
            if self.0.addr().is_ipv6() {
                // Nobody else on OVN's switch has it, and a route through it can't wait for
                // duplicate address detection.
                let flags = AddressAttribute::Flags(AddressFlags::Nodad);
                message.attributes.push(flags);
            }
            RouteNetlinkMessage::NewAddress(message)
        });
        request(new, NEW)
    }

    fn remove(&self, actual: &Actual) -> Vec<Change> {
        let gone = self.message(actual).map(RouteNetlinkMessage::DelAddress);
        request(gone, CHANGE)
    }

    fn marked(view: &View<'_>) -> Vec<Item> {
        let of_link = view
            .actual
            .addresses
            .iter()
            .filter(|seen| seen.link == LINK);
        of_link
            .map(|seen| (seen.ours, Self(seen.address)))
            .filter(|(ours, address)| *ours || view.made(address.clone()))
            .map(|(_, address)| address.into())
            .collect()
    }
}

fn protocol() -> AddressAttribute {
    AddressAttribute::Protocol(AddressProtocol::Other(PROTOCOL))
}
