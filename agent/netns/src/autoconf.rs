//! IPv6 that a pod's kernel gets from its routers: advertisements, and addresses that it makes of
//! them (RFC 4862).

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;

use ipnet::Ipv6Net;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, socket,
};
use tokio::net::unix::pipe;

use super::attach::enter;
use super::packets::gone;
use super::wire::{Batch, messages};
use super::{Error, Netlink, Netns, answer, observe, request, socket as netlink, sysctl};

/// An IPv6 address of an interface, and how far its duplicate address detection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Address {
    /// The address with its prefix length.
    pub net: Ipv6Net,
    /// Whether it can't be used yet (IFA_F_TENTATIVE).
    pub tentative: bool,
    /// Whether another host has it (IFA_F_DADFAILED).
    pub duplicate: bool,
    /// Whether it has a random end, and another one follows it (IFA_F_TEMPORARY).
    pub temporary: bool,
}

/// Notifications of changes of an interface's IPv6 addresses in a pod's namespace. They keep the
/// namespace.
#[derive(Debug)]
pub struct AddressChanges {
    notifications: pipe::Receiver,
    ifindex: u32,
}

impl AddressChanges {
    /// Waits for a change, or for several, and returns addresses that have come, changed or gone.
    /// An address that the kernel has made is gone when another host has it.
    ///
    /// # Errors
    /// The socket can't be read.
    pub async fn next(&self) -> io::Result<Vec<Ipv6Address>> {
        let mut buffer = [0; 8192];
        loop {
            self.notifications.readable().await?;
            match self.notifications.try_read(&mut buffer) {
                Ok(length) => {
                    let changed = messages(&buffer[..length]);
                    let of_link = |it| answer::ipv6_address_on(self.ifindex, &it);
                    return Ok(changed.filter_map(of_link).collect());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // More than it has room for.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(Vec::new()),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Netlink {
    /// Has the kernel believe routers on an interface in a pod's namespace, whether or not the pod
    /// forwards, and take default routes of them if wanted.
    ///
    /// # Errors
    /// The kernel refused.
    pub async fn believe_routers(
        &self,
        netns: Arc<Netns>,
        ifname: &str,
        with_default_routes: bool,
    ) -> Result<(), Error> {
        let ifname = ifname.to_owned();
        self.read(move |reader| {
            enter(&reader.home, &netns, || {
                Ok(sysctl::believe_routers(&ifname, with_default_routes))
            })?
        })
        .await
    }

    /// The IPv6 addresses of an interface in a pod's namespace.
    ///
    /// # Errors
    /// There is no such interface, or the kernel refused.
    pub async fn ipv6_addresses(
        &self,
        netns: Arc<Netns>,
        ifname: &str,
    ) -> Result<Vec<Ipv6Address>, Error> {
        let ifname = ifname.to_owned();
        self.read(move |reader| {
            let mut pod = enter(&reader.home, &netns, netlink::Netlink::route)?;
            let link = observe::link_named(&mut pod, &ifname)?.ok_or_else(|| gone(&ifname))?;
            let index = link.ifindex;
            let listed = pod.dump(
                || Batch::of(request::list_addresses(index), request::DUMP),
                |message| answer::ipv6_address_on(index, message),
            );
            listed.map_err(|refusal| Error::Read {
                what: format!("the addresses of {ifname}"),
                refusal,
            })
        })
        .await
    }

    /// Notifications of later changes of an interface's IPv6 addresses in a pod's namespace.
    ///
    /// # Errors
    /// There is no such interface, or the kernel refused a socket.
    pub async fn ipv6_address_changes(
        &self,
        netns: Arc<Netns>,
        ifname: &str,
    ) -> Result<AddressChanges, Error> {
        let ifname = ifname.to_owned();
        let opening = self.read(move |reader| {
            let opened = enter(&reader.home, &netns, || {
                Ok((netlink::Netlink::route()?, notifications()?))
            })?;
            let (mut pod, notifications) = opened;
            let link = observe::link_named(&mut pod, &ifname)?.ok_or_else(|| gone(&ifname))?;
            Ok((notifications, link.ifindex))
        });
        let (notifications, ifindex) = opening.await?;
        let opened = pipe::Receiver::from_owned_fd_unchecked(notifications);
        let notifications = opened.map_err(|error| Error::OpenSocket {
            what: "address notification",
            refusal: error.into(),
        })?;
        Ok(AddressChanges {
            notifications,
            ifindex,
        })
    }
}

/// A socket for them, in the calling thread's namespace.
fn notifications() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let protocol = SockProtocol::NetlinkRoute;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
    let group = 1 << (libc::RTNLGRP_IPV6_IFADDR - 1);
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, group))?;
    Ok(socket)
}
