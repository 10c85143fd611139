//! Links, addresses and routes as the kernel describes them in its answers and notifications.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use nix::libc;

use super::wire::{Message, attribute, attributes, ip, mac, string, u16_at, u32_at};
use super::{Ipv6Address, LinkState, ObservedRoute};

/// The sizes of `struct ifinfomsg`, `ifaddrmsg` and `rtmsg`, which precede the attributes.
const IFINFOMSG: usize = 16;
const IFADDRMSG: usize = 8;
const RTMSG: usize = 12;

/// linux/rtnetlink.h, RTAX_MTU.
const RTAX_MTU: u16 = 2;

/// A link, from RTM_NEWLINK or RTM_DELLINK.
pub(super) fn link(message: &Message<'_>) -> Option<LinkState> {
    if !matches!(message.kind, libc::RTM_NEWLINK | libc::RTM_DELLINK) {
        return None;
    }
    let header = message.body;
    let described = header.get(IFINFOMSG..)?;
    let mut link = LinkState {
        ifindex: u32_at(header, 4)?,
        name: String::new(),
        up: u32_at(header, 8)? & libc::IFF_UP as u32 != 0,
        mac: None,
        mtu: 0,
        kind: None,
        peer_ifindex: None,
        group: 0,
        master: None,
    };
    for (kind, payload) in attributes(described) {
        match kind {
            libc::IFLA_IFNAME => link.name = string(payload)?,
            libc::IFLA_ADDRESS => link.mac = mac(payload),
            libc::IFLA_MTU => link.mtu = u32_at(payload, 0)?,
            libc::IFLA_LINK => link.peer_ifindex = u32_at(payload, 0).filter(|i| *i != 0),
            libc::IFLA_GROUP => link.group = u32_at(payload, 0)?,
            libc::IFLA_MASTER => link.master = u32_at(payload, 0).filter(|i| *i != 0),
            libc::IFLA_LINKINFO => {
                link.kind = attribute(payload, libc::IFLA_INFO_KIND).and_then(string)
            }
            _ => {}
        }
    }
    Some(link)
}

/// An address of the link with that index, from RTM_NEWADDR.
pub(super) fn address_on(index: u32, message: &Message<'_>) -> Option<IpNet> {
    if message.kind != libc::RTM_NEWADDR {
        return None;
    }
    changed_address_on(index, message)
}

/// The same, also from RTM_DELADDR.
fn changed_address_on(index: u32, message: &Message<'_>) -> Option<IpNet> {
    let is_one = matches!(message.kind, libc::RTM_NEWADDR | libc::RTM_DELADDR);
    if !is_one || u32_at(message.body, 4)? != index {
        return None;
    }
    let described = message.body.get(IFADDRMSG..)?;
    // On a point-to-point link IFA_ADDRESS is the peer's; IFA_LOCAL is only sent where the two may
    // differ.
    let address = attribute(described, libc::IFA_LOCAL)
        .or_else(|| attribute(described, libc::IFA_ADDRESS))
        .and_then(ip)?;
    IpNet::new(address, *message.body.get(1)?).ok()
}

/// The same if it is one of IPv6, with its state.
pub(super) fn ipv6_address_on(index: u32, message: &Message<'_>) -> Option<Ipv6Address> {
    let IpNet::V6(net) = changed_address_on(index, message)? else {
        return None;
    };
    let described = message.body.get(IFADDRMSG..)?;
    let flags = attribute(described, libc::IFA_FLAGS).and_then(|flags| u32_at(flags, 0))?;
    Some(Ipv6Address {
        net,
        tentative: flags & libc::IFA_F_TENTATIVE != 0,
        duplicate: flags & libc::IFA_F_DADFAILED != 0,
        temporary: flags & libc::IFA_F_TEMPORARY != 0,
    })
}

/// A unicast route and the index of its link, from RTM_NEWROUTE; skips the kernel's local table.
pub(super) fn route(message: &Message<'_>) -> Option<(u32, ObservedRoute)> {
    let header = message.body;
    let described = header.get(RTMSG..)?;
    let unicast = message.kind == libc::RTM_NEWROUTE && *header.get(7)? == libc::RTN_UNICAST;
    let unspecified: IpAddr = match i32::from(*header.first()?) {
        libc::AF_INET => Ipv4Addr::UNSPECIFIED.into(),
        libc::AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let mut route = ObservedRoute {
        dst: IpNet::new(unspecified, *header.get(1)?).ok()?,
        gateway: None,
        mtu: None,
        priority: 0,
        table: u32::from(*header.get(4)?),
        scope: *header.get(6)?,
        protocol: *header.get(5)?,
    };
    let mut link = 0;
    for (kind, payload) in attributes(described) {
        match kind {
            libc::RTA_DST => route.dst = IpNet::new(ip(payload)?, route.dst.prefix_len()).ok()?,
            libc::RTA_GATEWAY => route.gateway = ip(payload),
            // A gateway of the other family: the family in two bytes, then the address.
            libc::RTA_VIA => route.gateway = u16_at(payload, 0).and_then(|_| ip(&payload[2..])),
            libc::RTA_OIF => link = u32_at(payload, 0)?,
            libc::RTA_PRIORITY => route.priority = u32_at(payload, 0)?,
            libc::RTA_TABLE => route.table = u32_at(payload, 0)?,
            libc::RTA_METRICS => {
                route.mtu = attribute(payload, RTAX_MTU).and_then(|mtu| u32_at(mtu, 0))
            }
            _ => {}
        }
    }
    let local = route.table == u32::from(libc::RT_TABLE_LOCAL);
    (unicast && !local).then_some((link, route))
}
