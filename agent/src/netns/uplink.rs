//! The link by which packets leave the node, and notice of what may make it another one.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd as _;

use netlink_packet_route::AddressFamily;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::libc;
use tokio::net::unix::pipe;

use super::observe::{link_of_index, list_routes, reading};
use super::socket::Netlink;
use super::wire::{Batch, messages};
use super::{Error, LinkState, answer, request};

/// The link that bears this address.
pub(super) fn link_of_address(
    socket: &mut Netlink,
    address: IpAddr,
) -> Result<Option<LinkState>, Error> {
    let bearers = socket
        .dump(
            || Batch::of(request::list_addresses(0), request::DUMP),
            |message| answer::address(message).filter(|(_, found)| found.addr() == address),
        )
        .map_err(reading(|| format!("which link has {address}")))?;
    match bearers.first() {
        Some((index, _)) => link_of_index(socket, *index),
        None => Ok(None),
    }
}

/// The links of the default routes, of which each family has one: that of the lowest metric.
pub(super) fn default_route_links(socket: &mut Netlink) -> Result<Vec<LinkState>, Error> {
    let mut links: Vec<LinkState> = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let routes = list_routes(socket, family, None)
            .map_err(reading(|| "the default routes".to_owned()))?;
        let best = routes
            .into_iter()
            .filter(|(_, route)| {
                route.dst.prefix_len() == 0 && route.table == u32::from(libc::RT_TABLE_MAIN)
            })
            .min_by_key(|(_, route)| route.priority);
        if let Some((index, _)) = best
            && let Some(link) = link_of_index(socket, index)?
            && !links.contains(&link)
        {
            links.push(link);
        }
    }
    Ok(links)
}

/// Notice that an address or a default route came or went.
///
/// The descriptor is a netlink socket's: tokio has no safe type for it, and a pipe's is awaited and read in the same way. Who sent a
/// message can't be told so; that does not matter, for it only has the kernel asked.
#[derive(Debug)]
pub struct UplinkChanges(pipe::Receiver);

impl UplinkChanges {
    /// Subscribes, on the current tokio runtime and in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel gives no such socket.
    pub fn subscribe() -> io::Result<Self> {
        const GROUPS: [u32; 4] = [
            libc::RTNLGRP_IPV4_IFADDR,
            libc::RTNLGRP_IPV6_IFADDR,
            libc::RTNLGRP_IPV4_ROUTE,
            libc::RTNLGRP_IPV6_ROUTE,
        ];
        let mut socket = Socket::new(netlink_sys::protocols::NETLINK_ROUTE)?;
        socket.set_non_blocking(true)?;
        let groups = GROUPS.iter().map(|group| 1 << (group - 1)).sum();
        socket.bind(&SocketAddr::new(0, groups))?;
        let descriptor = socket.as_fd().try_clone_to_owned()?;
        pipe::Receiver::from_owned_fd_unchecked(descriptor).map(Self)
    }

    /// Waits until there is something to look at again.
    ///
    /// # Errors
    /// The socket can't be read any more.
    pub async fn next(&self) -> io::Result<()> {
        // A notification is one message of at most this (`NLMSG_GOODSIZE`, or a page).
        let mut datagram = [0; 32 * 1024];
        loop {
            self.0.readable().await?;
            match self.0.try_read(&mut datagram) {
                Ok(size) if concerns(&datagram[..size]) => return Ok(()),
                // Some were lost, and one of those may have been it.
                Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => {
                    return Ok(());
                }
                Err(error)
                    if !matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                    ) =>
                {
                    return Err(error);
                }
                Ok(_) | Err(_) => {}
            }
        }
    }
}

/// A router's thousand routes are no matter: only those to everywhere are.
fn concerns(datagram: &[u8]) -> bool {
    messages(datagram).any(|message| match message.kind {
        libc::RTM_NEWADDR | libc::RTM_DELADDR => true,
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE => message.body.get(1) == Some(&0),
        _ => false,
    })
}
