//! Addresses, neighbours and routes of the management port's link, by rtnetlink(7).

use std::net::IpAddr;

use netlink_packet_core::ErrorMessage;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressProtocol,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteFlags, RouteMessage, RouteProtocol, RouteScope};
use nix::errno::Errno;
use rtnetlink::{LinkUnspec, RouteMessageBuilder};

use super::{ApplyError, Machine, fault};
use crate::actual::Actual;
use crate::plan::{Item, Route};
use crate::{LINK, PROTOCOL, TUNNEL, mac};

impl Machine {
    pub(super) async fn make_in_kernel(
        &mut self,
        item: &Item,
        actual: &Actual,
    ) -> Result<(), ApplyError> {
        let Some(index) = index(item, actual) else {
            return Ok(());
        };
        if let Item::Route(wanted) = item {
            self.make_way(wanted, actual).await?;
        }
        self.counts.netlink += 1;
        let handle = &self.handle;
        let result = match item {
            Item::LinkUp(_) => {
                let up = LinkUnspec::new_with_index(index).up().build();
                handle.link().set(up).execute().await
            }
            Item::Address(net) => {
                let mut request = handle.address().add(index, net.addr(), net.prefix_len());
                let message = request.message_mut();
                message.attributes.push(protocol());
                if net.addr().is_ipv6() {
                    // Nobody else on OVN's switch has it, and a route through it can't wait for
                    // duplicate address detection.
                    let flags = AddressAttribute::Flags(AddressFlags::Nodad);
                    message.attributes.push(flags);
                }
                request.execute().await
            }
            Item::Neighbour { ip, mac, .. } => {
                let lladdr = mac::bytes(mac).unwrap_or_default();
                let mut request = handle
                    .neighbours()
                    .add(index, *ip)
                    .link_layer_address(&lladdr)
                    .replace();
                let ours = NeighbourAttribute::Protocol(RouteProtocol::Other(PROTOCOL));
                request.message_mut().attributes.push(ours);
                request.execute().await
            }
            Item::Route(wanted) => {
                let route = route(index, wanted);
                handle.route().add(route).replace().execute().await
            }
            _ => Ok(()),
        };
        fault();
        Ok(result?)
    }

    /// Removes the route that one through a tunnel replaces: the kernel refuses a next hop on a
    /// link while another route puts it on another link (`ip6_route_check_nh_onlink`).
    async fn make_way(&mut self, wanted: &Route, actual: &Actual) -> Result<(), ApplyError> {
        let others = actual.routes.iter().filter(|seen| {
            wanted.link == TUNNEL
                && seen.destination == wanted.destination
                && seen.link.as_deref().is_some_and(|link| link != TUNNEL)
        });
        for seen in others {
            let (Some(via), Some(link)) = (seen.via, seen.link.clone()) else {
                continue;
            };
            let other = Item::Route(Route {
                destination: seen.destination,
                via,
                link,
                source: None,
            });
            self.remove_from_kernel(&other, actual).await?;
        }
        Ok(())
    }

    pub(super) async fn remove_from_kernel(
        &mut self,
        item: &Item,
        actual: &Actual,
    ) -> Result<(), ApplyError> {
        let Some(index) = index(item, actual) else {
            return Ok(());
        };
        self.counts.netlink += 1;
        let handle = &self.handle;
        let result = match item {
            Item::LinkUp(_) => {
                let down = LinkUnspec::new_with_index(index).down().build();
                handle.link().set(down).execute().await
            }
            Item::Address(net) => {
                let mut message = AddressMessage::default();
                message.header.family = family(net.addr());
                message.header.index = index;
                message.header.prefix_len = net.prefix_len();
                message.attributes.push(AddressAttribute::Local(net.addr()));
                handle.address().del(message).execute().await
            }
            Item::Neighbour { ip, .. } => {
                let mut message = NeighbourMessage::default();
                message.header.family = family(*ip);
                message.header.ifindex = index;
                message.header.state = NeighbourState::Permanent;
                let of = NeighbourAttribute::Destination(match *ip {
                    IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
                    IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
                });
                message.attributes.push(of);
                handle.neighbours().del(message).execute().await
            }
            Item::Route(wanted) => {
                let route = route(index, wanted);
                handle.route().del(route).execute().await
            }
            Item::Former(former) => {
                let mut message = RouteMessageBuilder::<IpAddr>::new()
                    .output_interface(index)
                    .protocol(RouteProtocol::from(former.protocol))
                    .priority(former.metric);
                let destination = former.destination;
                message = message
                    .destination_prefix(destination.addr(), destination.prefix_len())
                    .unwrap_or_default();
                if let Some(via) = former.via {
                    message = message.gateway(via).unwrap_or_default();
                }
                if let Some(source) = former.source {
                    message = message.pref_source(source).unwrap_or_default();
                }
                let mut message = message.build();
                if former.via.is_none() && destination.addr().is_ipv4() {
                    message.header.scope = RouteScope::Link;
                }
                handle.route().add(message).execute().await
            }
            _ => Ok(()),
        };
        fault();
        match result {
            // It has been removed already.
            Err(rtnetlink::Error::NetlinkError(error)) if is_gone(&error) => Ok(()),
            result => Ok(result?),
        }
    }
}

fn protocol() -> AddressAttribute {
    AddressAttribute::Protocol(AddressProtocol::Other(PROTOCOL))
}

/// The link that an item is on.
fn index(item: &Item, actual: &Actual) -> Option<u32> {
    let link = match item {
        Item::LinkUp(link) | Item::Neighbour { link, .. } => link,
        Item::Route(route) => &route.link,
        Item::Former(former) => &former.link,
        _ => LINK,
    };
    actual.links.get(link).map(|link| link.index)
}

fn route(index: u32, wanted: &Route) -> RouteMessage {
    let destination = wanted.destination;
    let builder = RouteMessageBuilder::<IpAddr>::new()
        .output_interface(index)
        .protocol(RouteProtocol::Other(PROTOCOL));
    // All are of one family: the plan pairs them.
    let builder = builder
        .destination_prefix(destination.addr(), destination.prefix_len())
        .and_then(|builder| builder.gateway(wanted.via))
        .and_then(|builder| match wanted.source {
            Some(source) => builder.pref_source(source),
            None => Ok(builder),
        });
    let mut message = builder.map(RouteMessageBuilder::build).unwrap_or_default();
    if wanted.link == TUNNEL {
        // No address of the link shows that the next hop is there.
        message.header.flags |= RouteFlags::Onlink;
    }
    message
}

fn family(ip: IpAddr) -> AddressFamily {
    match ip {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

fn is_gone(error: &ErrorMessage) -> bool {
    let errno = Errno::from_raw(-error.raw_code());
    matches!(
        errno,
        Errno::ESRCH | Errno::ENOENT | Errno::EADDRNOTAVAIL | Errno::ENODEV
    )
}
