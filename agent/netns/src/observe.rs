//! Reads interfaces, routes and lists of links from the kernel.

use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::link::InfoKind;
use nix::errno::Errno;
use nix::libc;

use super::socket::Netlink;
use super::wire::Batch;
use super::{Error, LinkState, Observed, ObservedRoute, Refusal, Route, answer, ethtool, request};

/// An interface with its addresses and routes, in the socket's namespace.
pub(super) fn interface(socket: &mut Netlink, name: &str) -> Result<Option<Observed>, Error> {
    let Some(link) = link_named(socket, name)? else {
        return Ok(None);
    };
    let index = link.ifindex;
    let addresses = socket
        .dump(
            || Batch::of(request::list_addresses(index), request::DUMP),
            |message| answer::address_on(index, message),
        )
        .map_err(reading(|| format!("the addresses of {name}")))?;
    let mut routes = Vec::new();
    let mut defaults_elsewhere = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let all =
            list_routes(socket, family).map_err(reading(|| format!("the routes over {name}")))?;
        for (link, route) in all {
            if link == index {
                routes.push(route);
            } else if is_default(&route) {
                defaults_elsewhere.push(route.dst);
            }
        }
    }
    let tx_checksum = ethtool::tx_checksum(&*socket, name).ok();
    Ok(Some(Observed {
        link,
        addresses,
        routes,
        defaults_elsewhere,
        tx_checksum,
    }))
}

/// The link with that name, in the socket's namespace.
pub(super) fn link_named(socket: &mut Netlink, name: &str) -> Result<Option<LinkState>, Error> {
    one_link(socket, Batch::of(request::get_link_named(name), 0))
        .map_err(reading(|| format!("link {name}")))
}

/// The link with each of these names, in the socket's namespace, by one request.
pub(super) fn links_named(
    socket: &mut Netlink,
    names: &[String],
) -> Vec<Result<Option<LinkState>, Error>> {
    let mut batch = Batch::default();
    for name in names {
        batch.push(request::get_link_named(name), 0);
    }
    let found = socket.fetch(&mut batch, answer::link);
    let of_name = |(name, found): (&String, _)| {
        absent_is_none(found).map_err(reading(|| format!("link {name}")))
    };
    names.iter().zip(found).map(of_name).collect()
}

/// Every link of the socket's namespace.
pub(super) fn links(socket: &mut Netlink) -> Result<Vec<LinkState>, Error> {
    let request = || Batch::of(request::list_links(None), request::DUMP);
    socket
        .dump(request, answer::link)
        .map_err(reading(|| "the list of links".to_owned()))
}

/// Every veth of the socket's namespace.
pub(super) fn veths(socket: &mut Netlink) -> Result<Vec<LinkState>, Error> {
    socket
        .dump(
            || Batch::of(request::list_links(Some(InfoKind::Veth)), request::DUMP),
            // A kernel before 4.20 lists all.
            |message| answer::link(message).filter(|link| link.kind.as_deref() == Some("veth")),
        )
        .map_err(reading(|| "the list of veths".to_owned()))
}

/// Makes a link whose carrier has just come pass packets. Its transmit queue starts in a work item
/// of the kernel, and until then drops everything; reading the link does that work at once
/// (`rtnl_getlink`, `linkwatch_sync_dev`; kernels before 6.8 leave it to the work item).
pub(super) fn settle_carrier(socket: &mut Netlink, index: u32) -> Result<(), Error> {
    one_link(socket, Batch::of(request::get_link(index), 0))
        .map(drop)
        .map_err(reading(|| format!("link {index}")))
}

/// The existing route that prevents another, as text, and whether it equals the wanted one.
pub(super) fn route_in_place(
    socket: &mut Netlink,
    wanted: &Route,
    index: u32,
) -> Result<Option<(String, bool)>, Error> {
    let family = match wanted.dst {
        IpNet::V4(_) => AddressFamily::Inet,
        IpNet::V6(_) => AddressFamily::Inet6,
    };
    let all =
        list_routes(socket, family).map_err(reading(|| format!("the routes to {}", wanted.dst)))?;
    let in_place = all.into_iter().find(|(_, route)| {
        route.dst == wanted.dst.trunc()
            && route.table == wanted.table.unwrap_or(libc::RT_TABLE_MAIN.into())
            && route.priority == priority(wanted)
    });
    let Some((link, route)) = in_place else {
        return Ok(None);
    };
    let same = link == index && route.gateway == wanted.gateway && route.mtu == wanted.mtu;
    let over = one_link(socket, Batch::of(request::get_link(link), 0))
        .ok()
        .flatten()
        .map_or_else(|| format!("link {link}"), |link| link.name);
    Ok(Some((format!("{route} dev {over}"), same)))
}

fn priority(route: &Route) -> u32 {
    /// `IP6_RT_PRIO_USER`, which a request for 0 means too.
    const IPV6_DEFAULT: u32 = 1024;
    match (route.dst, route.priority) {
        (IpNet::V6(_), None | Some(0)) => IPV6_DEFAULT,
        (_, priority) => priority.unwrap_or(0),
    }
}

/// The link with that index, in the socket's namespace.
pub(super) fn link_of_index(socket: &mut Netlink, index: u32) -> Result<Option<LinkState>, Error> {
    one_link(socket, Batch::of(request::get_link(index), 0))
        .map_err(reading(|| format!("link {index}")))
}

fn one_link(socket: &mut Netlink, mut batch: Batch) -> Result<Option<LinkState>, Refusal> {
    let found = socket.fetch(&mut batch, answer::link).pop();
    absent_is_none(found.unwrap_or(Ok(None)))
}

fn absent_is_none(found: Result<Option<LinkState>, Refusal>) -> Result<Option<LinkState>, Refusal> {
    match found {
        Err(refusal) if refusal.errno == Errno::ENODEV => Ok(None),
        found => found,
    }
}

/// Whether there is a default route of IPv6 in the socket's namespace.
pub(super) fn has_ipv6_default(socket: &mut Netlink) -> Result<bool, Error> {
    let all = list_routes(socket, AddressFamily::Inet6);
    let all = all.map_err(reading(|| "the pod's routes".to_owned()))?;
    Ok(all.iter().any(|(_, route)| is_default(route)))
}

fn is_default(route: &ObservedRoute) -> bool {
    route.dst.prefix_len() == 0 && route.table == u32::from(libc::RT_TABLE_MAIN)
}

fn list_routes(
    socket: &mut Netlink,
    family: AddressFamily,
) -> Result<Vec<(u32, ObservedRoute)>, Refusal> {
    socket.dump(
        || Batch::of(request::list_routes(family), request::DUMP),
        answer::route,
    )
}

fn reading(what: impl FnOnce() -> String) -> impl FnOnce(Refusal) -> Error {
    move |refusal| Error::Read {
        what: what(),
        refusal,
    }
}
