//! The host's addresses and default routes, over rtnetlink. Not for pods, whose links have their
//! own thread (docs/decisions/0026).

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt as _};
use ipnet::IpNet;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{
    AddressAttribute, AddressHeader, AddressMessage, AddressScope,
};
use netlink_packet_route::route::{RouteAttribute, RouteHeader, RouteMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;
use nix::libc;
use rtnetlink::sys::AsyncSocket as _;
use rtnetlink::{Handle, LinkUnspec, MulticastGroup};
use tokio::sync::watch;

use super::sysctl::set_disable_ipv6;
use super::wire::{HEADER, error_text};
use super::{Error, LinkState, Netlink, Refusal, request};

/// Time limit for everything done over one connection. An answer that rtnetlink can't parse never
/// arrives.
const ANSWERS: Duration = Duration::from_secs(10);

/// How often a list that changed while it was read (NLM_F_DUMP_INTR) is read again.
const ATTEMPTS: usize = 5;

impl Netlink {
    /// The addresses of a host link; none if it does not exist.
    pub async fn host_addresses(&self, link: &str) -> Result<Vec<IpNet>, Error> {
        let Some(LinkState { ifindex, .. }) = self.host_link(link).await? else {
            return Ok(Vec::new());
        };
        let all = connected(async |handle| addresses(handle, ifindex).await).await?;
        Ok(all.into_iter().map(|(_, address)| address).collect())
    }

    /// The host link with this address.
    pub async fn link_of_address(&self, address: IpAddr) -> Result<Option<LinkState>, Error> {
        let all = connected(async |handle| addresses(handle, 0).await).await?;
        let bearer = all.into_iter().find(|(_, net)| net.addr() == address);
        Ok(bearer.and_then(|(index, _)| self.threads.links.of_index(index)))
    }

    /// The links of the default routes; of each family, the one with the lowest metric.
    pub async fn default_route_links(&self) -> Result<Vec<LinkState>, Error> {
        let mut links: Vec<LinkState> = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let routes = connected(async |handle| {
                list(
                    handle,
                    request::list_routes(family),
                    |message| match message {
                        RouteNetlinkMessage::NewRoute(route) => default_route(&route),
                        _ => None,
                    },
                )
                .await
                .map_err(reading("the default routes"))
            });
            let best = routes.await?.into_iter().min();
            let link = best.and_then(|(_, index)| self.threads.links.of_index(index));
            links.extend(link.filter(|link| !links.contains(link)));
        }
        Ok(links)
    }

    /// Adds addresses to a host link (and sets it up), after waiting until `deadline` for a link
    /// with that name. Returns the link that has them.
    ///
    /// Existing addresses stay. If the link is re-created meanwhile, the new one gets them too.
    pub async fn ensure_addresses(
        &self,
        link: &str,
        addresses: Vec<IpNet>,
        up: bool,
        deadline: Instant,
    ) -> Result<LinkState, Error> {
        let began = Instant::now();
        let late = || Error::LinkAwaited {
            link: link.to_owned(),
            waited: began.elapsed(),
        };
        let mut states = self.watch_link(link);
        loop {
            let state = until(&mut states, deadline, Option::is_some)
                .await?
                .ok_or_else(late)?;
            match connected(async |handle| set(handle, &state, &addresses, up).await).await {
                Ok(()) => return Ok(state),
                // Its end has been reported, or is about to be; then wait for another one.
                Err(error) if error.link_is_gone() => {
                    let another = |now: &Option<LinkState>| {
                        now.as_ref().is_none_or(|now| now.ifindex != state.ifindex)
                    };
                    until(&mut states, deadline, another).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Removes addresses of a host link; ignores missing ones, and a missing link.
    pub async fn remove_addresses(&self, link: &str, addresses: Vec<IpNet>) -> Result<(), Error> {
        let Some(LinkState { ifindex, .. }) = self.host_link(link).await? else {
            return Ok(());
        };
        connected(async |handle| {
            for address in &addresses {
                let message = request::address(*address, ifindex);
                let outcome = handle.address().del(message).execute().await;
                match outcome.map_err(Refusal::from) {
                    // With the link, its addresses are gone too.
                    Err(refusal)
                        if matches!(refusal.errno, Errno::EADDRNOTAVAIL | Errno::ENODEV) => {}
                    outcome => outcome.map_err(|refusal| Error::RemoveAddress {
                        address: *address,
                        link: link.to_owned(),
                        refusal,
                    })?,
                }
            }
            Ok(())
        })
        .await
    }
}

/// Reports each address, but for IPv6's link-local ones, and each default route that appears or
/// disappears, on the current tokio runtime and in the network namespace of the calling thread.
/// Ends when there can be no more.
///
/// # Errors
/// The kernel refused the socket.
pub fn uplink_changes() -> io::Result<impl Stream<Item = ()> + Send + Unpin> {
    const GROUPS: [MulticastGroup; 4] = [
        MulticastGroup::Ipv4Ifaddr,
        MulticastGroup::Ipv6Ifaddr,
        MulticastGroup::Ipv4Route,
        MulticastGroup::Ipv6Route,
    ];
    let (connection, _, messages) = rtnetlink::new_multicast_connection(&GROUPS)?;
    tokio::spawn(connection);
    Ok(messages.filter_map(|(message, _)| std::future::ready(concerns(&message).then_some(()))))
}

/// A router's thousand routes don't matter, only default routes do.
fn concerns(message: &NetlinkMessage<RouteNetlinkMessage>) -> bool {
    use RouteNetlinkMessage::{DelAddress, DelRoute, NewAddress, NewRoute};
    match &message.payload {
        // Some were lost, and one of those may have mattered.
        NetlinkPayload::Overrun(_) => true,
        // Each link gets one of IPv6's own, twice, and no tunnel ends at one.
        NetlinkPayload::InnerMessage(NewAddress(address) | DelAddress(address)) => {
            let AddressHeader { family, scope, .. } = address.header;
            (family, scope) != (AddressFamily::Inet6, AddressScope::Link)
        }
        NetlinkPayload::InnerMessage(NewRoute(route) | DelRoute(route)) => {
            route.header.destination_prefix_length == 0
        }
        _ => false,
    }
}

/// Runs `work` over a connection that lives as long as it takes.
async fn connected<T>(work: impl AsyncFnOnce(&mut Handle) -> Result<T, Error>) -> Result<T, Error> {
    let open = |error: io::Error| Error::OpenSocket {
        what: "route",
        refusal: error.into(),
    };
    let (mut connection, mut handle, _) =
        rtnetlink::new_connection_with_strict_check().map_err(open)?;
    let socket = connection.socket_mut().socket_mut();
    socket.set_ext_ack(true).map_err(open)?;
    socket.set_cap_ack(true).map_err(open)?;
    tokio::select! {
        result = work(&mut handle) => result,
        () = connection => Err(Error::Stopped),
        () = tokio::time::sleep(ANSWERS) => {
            Err(reading("the kernel's answer")(Errno::ETIMEDOUT.into()))
        }
    }
}

/// Adds the addresses that are missing. Enables IPv6 if it is disabled on the link.
async fn set(
    handle: &mut Handle,
    link: &LinkState,
    addresses: &[IpNet],
    up: bool,
) -> Result<(), Error> {
    for address in addresses {
        let mut outcome = add(handle, *address, link.ifindex).await;
        // `addrconf_add_dev`: "IPv6 is disabled on this device".
        if matches!(&outcome, Err(refusal) if refusal.errno == Errno::EACCES)
            && address.addr().is_ipv6()
        {
            set_disable_ipv6(&link.name, false)?;
            outcome = add(handle, *address, link.ifindex).await;
        }
        match outcome {
            Err(refusal) if refusal.errno == Errno::EEXIST => {}
            outcome => outcome.map_err(|refusal| Error::SetAddress {
                address: *address,
                link: link.name.clone(),
                refusal,
            })?,
        }
    }
    if up {
        let message = LinkUnspec::new_with_index(link.ifindex).up().build();
        let outcome = handle.link().set(message).execute().await;
        outcome.map_err(|error| Error::SetUp {
            link: link.name.clone(),
            refusal: error.into(),
        })?;
    }
    Ok(())
}

async fn add(handle: &Handle, address: IpNet, index: u32) -> Result<(), Refusal> {
    let mut adding = handle
        .address()
        .add(index, address.addr(), address.prefix_len());
    *adding.message_mut() = request::address(address, index);
    Ok(adding.execute().await?)
}

/// The addresses of a link, or of all (0), each with the index of its link.
async fn addresses(handle: &mut Handle, index: u32) -> Result<Vec<(u32, IpNet)>, Error> {
    let is_wanted = |found: &(u32, IpNet)| index == 0 || found.0 == index;
    list(
        handle,
        request::list_addresses(index),
        |message| match message {
            RouteNetlinkMessage::NewAddress(message) => address(&message).filter(is_wanted),
            _ => None,
        },
    )
    .await
    .map_err(reading("the host's addresses"))
}

fn address(message: &AddressMessage) -> Option<(u32, IpNet)> {
    // On a point-to-point link IFA_ADDRESS is the peer's; IFA_LOCAL is only sent where the two may
    // differ.
    let local = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            AddressAttribute::Local(address) => Some(*address),
            _ => None,
        });
    let shared = || {
        message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                AddressAttribute::Address(address) => Some(*address),
                _ => None,
            })
    };
    let net = IpNet::new(local.or_else(shared)?, message.header.prefix_len).ok()?;
    Some((message.header.index, net))
}

/// Metric and link of a default route in the main table.
fn default_route(route: &RouteMessage) -> Option<(u32, u32)> {
    let is_default = route.header.destination_prefix_length == 0
        && route.header.table == RouteHeader::RT_TABLE_MAIN;
    let (mut metric, mut link) = (0, None);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::Oif(index) => link = Some(*index),
            _ => {}
        }
    }
    link.filter(|_| is_default).map(|link| (metric, link))
}

/// The result of `read` for each element of a list. rtnetlink's own `get` does not report that a
/// list changed while it was read.
async fn list<T>(
    handle: &mut Handle,
    request: RouteNetlinkMessage,
    read: impl Fn(RouteNetlinkMessage) -> Option<T>,
) -> Result<Vec<T>, Refusal> {
    for _ in 0..ATTEMPTS {
        let mut message = NetlinkMessage::from(request.clone());
        message.header.flags = libc::NLM_F_REQUEST as u16 | request::DUMP;
        let mut answers = handle.request(message)?;
        let (mut list, mut is_upset) = (Vec::new(), false);
        while let Some(answer) = answers.next().await {
            is_upset |= answer.header.flags & libc::NLM_F_DUMP_INTR as u16 != 0;
            match answer.payload {
                NetlinkPayload::InnerMessage(message) => list.extend(read(message)),
                NetlinkPayload::Error(error) => {
                    return Err(rtnetlink::Error::NetlinkError(error).into());
                }
                _ => {}
            }
        }
        if !is_upset {
            return Ok(list);
        }
    }
    Err(Refusal::upset(ATTEMPTS))
}

fn reading(what: &'static str) -> impl FnOnce(Refusal) -> Error {
    move |refusal| Error::Read {
        what: what.to_owned(),
        refusal,
    }
}

/// Waits until the link is as wanted, and returns its state; `None` at the deadline.
async fn until(
    states: &mut watch::Receiver<Option<LinkState>>,
    deadline: Instant,
    wanted: impl FnMut(&Option<LinkState>) -> bool,
) -> Result<Option<LinkState>, Error> {
    match tokio::time::timeout_at(deadline.into(), states.wait_for(wanted)).await {
        Ok(Ok(state)) => Ok(state.clone()),
        Ok(Err(_)) => Err(Error::Stopped),
        Err(_) => Ok(None),
    }
}

impl From<rtnetlink::Error> for Refusal {
    fn from(error: rtnetlink::Error) -> Self {
        match error {
            // With NETLINK_CAP_ACK only the request's header is quoted, before the kernel's
            // message.
            rtnetlink::Error::NetlinkError(message) => Self {
                errno: Errno::from_raw(-message.raw_code()),
                text: message.header.get(HEADER..).and_then(error_text),
            },
            error => Self {
                errno: Errno::EIO,
                text: Some(error.to_string()),
            },
        }
    }
}
