//! The kernel's links, addresses, neighbours and routes, by rtnetlink(7).

use std::net::IpAddr;
use std::path::Path;

use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use netlink_packet_route::address::{
    AddressAttribute, AddressMessage, AddressProtocol, AddressScope,
};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteType,
};
use rtnetlink::Handle;

use super::dump::{Dump, Names, destination, ip};
use super::in_use::in_use;
use super::{Actual, AddressSeen, LinkSeen, NeighbourSeen, ReadError, RouteSeen};
use crate::{LINK, PROTOCOL, TUNNEL, mac};

impl Actual {
    pub(super) async fn see_kernel(&mut self, handle: &Handle) -> Result<(), ReadError> {
        let failed = |what| move |source| ReadError::Netlink { what, source };
        let dump = Dump::read(handle).await?;
        let names = dump.names();
        self.in_use = in_use(&dump, &names);
        self.links = dump.links.iter().filter_map(link).collect();
        let addresses = dump.addresses.iter();
        self.addresses = addresses
            .filter_map(|message| address(message, &names))
            .collect();
        let routes = dump.routes.iter();
        let routes: Vec<RouteSeen> = routes
            .filter_map(|message| route(message, &names))
            .collect();
        let defaults = routes
            .iter()
            .filter(|route| route.destination.prefix_len() == 0 && route.link.is_some());
        // IPv4 first, as in kubelet's choice of the node's address.
        let default =
            defaults.min_by_key(|route| (route.destination.addr().is_ipv6(), route.metric));
        self.default_link = default.and_then(|route| route.link.clone());
        self.routes = routes;
        self.neighbours = Vec::new();
        let own: Vec<(u32, &str)> = [LINK, TUNNEL]
            .iter()
            .filter_map(|name| Some((self.links.get(*name)?.index, *name)))
            .collect();
        if !own.is_empty() {
            let neighbours: Vec<NeighbourMessage> = handle
                .neighbours()
                .get()
                .execute()
                .try_collect()
                .await
                .map_err(failed("neighbours"))?;
            let of_links = neighbours.iter().filter_map(|message| {
                let (_, link) = own.iter().find(|(at, _)| *at == message.header.ifindex)?;
                neighbour(message, link)
            });
            self.neighbours = of_links.collect();
        }
        self.has_ipv6 = Path::new("/proc/sys/net/ipv6").exists();
        self.force_forwarding = Path::new("/proc/sys/net/ipv6/conf/all/force_forwarding").exists();
        Ok(())
    }
}

fn link(message: &LinkMessage) -> Option<(String, LinkSeen)> {
    let mut name = None;
    let mut seen = LinkSeen {
        index: message.header.index,
        up: message.header.flags.contains(LinkFlags::Up),
        mtu: 0,
        mac: String::new(),
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(text) => name = Some(text.clone()),
            LinkAttribute::Mtu(mtu) => seen.mtu = *mtu,
            LinkAttribute::Address(bytes) => seen.mac = mac::text(bytes),
            _ => {}
        }
    }
    Some((name?, seen))
}

fn address(message: &AddressMessage, names: &Names) -> Option<AddressSeen> {
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
    let ours = AddressAttribute::Protocol(AddressProtocol::Other(PROTOCOL));
    // linux/if_addr.h: IFA_F_SECONDARY, which is IFA_F_TEMPORARY for IPv6.
    let secondary = message.header.flags.bits() & 1 != 0;
    Some(AddressSeen {
        link: names.get(&message.header.index)?.clone(),
        address: IpNet::new(ip, message.header.prefix_len).ok()?,
        ours: message.attributes.contains(&ours),
        universe: message.header.scope == AddressScope::Universe,
        global: message.header.scope == AddressScope::Universe && !secondary,
    })
}

fn route(message: &RouteMessage, names: &Names) -> Option<RouteSeen> {
    let header = &message.header;
    let mut seen = RouteSeen {
        destination: destination(message)?,
        via: None,
        link: None,
        source: None,
        ours: header.protocol == RouteProtocol::Other(PROTOCOL),
        protocol: header.protocol.into(),
        table: header.table.into(),
        metric: 0,
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Gateway(address) => seen.via = ip(address),
            RouteAttribute::PrefSource(address) => seen.source = ip(address),
            RouteAttribute::Oif(index) => seen.link = names.get(index).cloned(),
            RouteAttribute::Table(table) => seen.table = *table,
            RouteAttribute::Priority(metric) => seen.metric = *metric,
            _ => {}
        }
    }
    let in_main = seen.table == u32::from(RouteHeader::RT_TABLE_MAIN);
    (header.kind == RouteType::Unicast && (in_main || seen.ours)).then_some(seen)
}

fn neighbour(message: &NeighbourMessage, link: &str) -> Option<NeighbourSeen> {
    let mut seen = NeighbourSeen {
        link: link.to_owned(),
        ip: IpAddr::from([0, 0, 0, 0]),
        mac: None,
        permanent: message.header.state == NeighbourState::Permanent,
        ours: false,
    };
    let mut found = false;
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => {
                (seen.ip, found) = ((*ip).into(), true);
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => {
                (seen.ip, found) = ((*ip).into(), true);
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => seen.mac = Some(mac::text(bytes)),
            NeighbourAttribute::Protocol(protocol) => {
                seen.ours = *protocol == RouteProtocol::Other(PROTOCOL);
            }
            _ => {}
        }
    }
    found.then_some(seen)
}
