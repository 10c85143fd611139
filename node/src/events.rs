//! When to look again: notices of the kernel, of nftables and of the switch's database.
//!
//! What is ours changes rarely; what is beside it (pods' links, others' routes, the elements of
//! kube-proxy's sets) changes all the time. So notices are read for whom they concern, and only those
//! that may be about an item of ours end a wait.

use std::io;

use futures_channel::mpsc::UnboundedReceiver;
use futures_util::StreamExt as _;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::LinkAttribute;
use netlink_packet_route::route::{RouteAttribute, RouteProtocol};
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use netlink_sys::{AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket};
use podwire_ovs::client::{Client, Version};
use rtnetlink::MulticastGroup;
use tokio::sync::watch;

use crate::{LINK, PROTOCOL};

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// Something in the kernel that may be ours.
    Kernel {
        /// The netlink port of who did it: mostly its process id; 0 for the kernel itself.
        by: u32,
    },
    /// Something in our nftables table.
    Firewall {
        /// Who did it, as nftables tells it.
        by: String,
    },
    /// The switch's database has changed.
    Switch,
}

/// The three sources of events.
pub(crate) struct Events {
    kernel: UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
    firewall: FirewallNotices,
    switch: watch::Receiver<Version>,
    /// The index of the management port's link, as last seen.
    link: Option<u32>,
}

/// linux/netfilter/nfnetlink.h: NFNLGRP_NFTABLES.
const NFTABLES_GROUP: u32 = 7;
/// linux/netfilter/nfnetlink.h: NFNL_SUBSYS_NFTABLES.
const NFTABLES: u8 = 10;
/// linux/netfilter/nf_tables.h: NFT_MSG_NEWGEN, NFTA_GEN_PROC_PID, NFTA_GEN_PROC_NAME, and the
/// attribute of every object that names its table.
const NEW_GENERATION: u8 = 15;
const GENERATION_PID: u16 = 2;
const GENERATION_NAME: u16 = 3;
const OBJECTS_TABLE: u16 = 1;
/// `struct nlmsghdr` and `struct nfgenmsg`.
const HEADER: usize = 16;
const NFGENMSG: usize = 4;

impl Events {
    /// Listens from now on. To be called on the tokio runtime, before the first look.
    pub(crate) fn listen(client: &Client) -> io::Result<Self> {
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Neigh,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
        ];
        debug_assert_eq!(NETLINK_ROUTE, 0);
        let (connection, _, kernel) = rtnetlink::new_multicast_connection(&groups)?;
        tokio::spawn(connection);
        Ok(Self {
            kernel,
            firewall: FirewallNotices::listen()?,
            switch: client.subscribe(),
            link: None,
        })
    }

    /// The management port's link has this index now.
    pub(crate) fn link_is(&mut self, index: Option<u32>) {
        self.link = index.or(self.link);
    }

    /// Waits for the next event. What comes at once with it is taken together.
    pub(crate) async fn next(&mut self) -> io::Result<Event> {
        loop {
            tokio::select! {
                notice = self.kernel.next() => {
                    let (message, _) = notice.ok_or_else(|| io::Error::other("the kernel's notices have ended"))?;
                    if let Some(event) = concerns(&message, self.link) {
                        return Ok(event);
                    }
                }
                by = self.firewall.next() => return Ok(Event::Firewall { by: by? }),
                changed = self.switch.changed() => {
                    changed.map_err(|_| io::Error::other("the client of Open vSwitch's database has ended"))?;
                    return Ok(Event::Switch);
                }
            }
        }
    }
}

fn concerns(message: &NetlinkMessage<RouteNetlinkMessage>, link: Option<u32>) -> Option<Event> {
    let event = Event::Kernel {
        by: message.header.port_number,
    };
    let NetlinkPayload::InnerMessage(inner) = &message.payload else {
        // Notices were lost (ENOBUFS): anything may have changed.
        return Some(event);
    };
    let ours = match inner {
        RouteNetlinkMessage::NewLink(it) | RouteNetlinkMessage::DelLink(it) => {
            let name = LinkAttribute::IfName(LINK.to_owned());
            it.attributes.contains(&name) || Some(it.header.index) == link
        }
        RouteNetlinkMessage::NewAddress(it) | RouteNetlinkMessage::DelAddress(it) => {
            Some(it.header.index) == link || link.is_none()
        }
        RouteNetlinkMessage::NewNeighbour(it) | RouteNetlinkMessage::DelNeighbour(it) => {
            Some(it.header.ifindex) == link
        }
        RouteNetlinkMessage::NewRoute(it) | RouteNetlinkMessage::DelRoute(it) => {
            it.header.protocol == RouteProtocol::Other(PROTOCOL)
                || it.header.destination_prefix_length == 0
                || link.is_some_and(|link| it.attributes.contains(&RouteAttribute::Oif(link)))
        }
        _ => false,
    };
    ours.then_some(event)
}

/// Notices of changes to our table.
struct FirewallNotices {
    socket: TokioSocket,
    /// Whether one about our table came since the last generation.
    ours: bool,
}

impl FirewallNotices {
    fn listen() -> io::Result<Self> {
        let mut socket = TokioSocket::new(NETLINK_NETFILTER)?;
        socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
        socket.socket_mut().add_membership(NFTABLES_GROUP)?;
        Ok(Self {
            socket,
            ours: false,
        })
    }

    /// Waits until a transaction that changed our table is through, and tells whose it was.
    async fn next(&mut self) -> io::Result<String> {
        loop {
            let (bytes, _) = match self.socket.recv_from_full().await {
                Ok(received) => received,
                // More came than the socket holds: it may have been about us.
                Err(error) if error.raw_os_error() == Some(nix::libc::ENOBUFS) => {
                    return Ok("somebody".to_owned());
                }
                Err(error) => return Err(error),
            };
            if let Some(by) = self.read(&bytes) {
                return Ok(by);
            }
        }
    }

    fn read(&mut self, bytes: &[u8]) -> Option<String> {
        let (_, table) = crate::firewall::NAME.split_once(' ')?;
        let mut by = None;
        for (kind, message) in messages(bytes) {
            let [message_type, subsystem] = kind.to_le_bytes();
            if subsystem != NFTABLES {
                continue;
            }
            let attributes = || attributes(message.get(NFGENMSG..).unwrap_or_default());
            let text = |wanted: u16| {
                let value = attributes().find(|(kind, _)| *kind == wanted)?.1;
                let value = value.strip_suffix(&[0]).unwrap_or(value);
                Some(String::from_utf8_lossy(value).into_owned())
            };
            if message_type != NEW_GENERATION {
                self.ours |= text(OBJECTS_TABLE).as_deref() == Some(table);
            } else if std::mem::take(&mut self.ours) {
                let pid = attributes().find(|(kind, _)| *kind == GENERATION_PID);
                let pid =
                    pid.and_then(|(_, value)| Some(u32::from_be_bytes(value.try_into().ok()?)));
                let name = text(GENERATION_NAME).unwrap_or_else(|| "somebody".to_owned());
                by = Some(match pid {
                    Some(pid) => format!("{name} (process {pid})"),
                    None => name,
                });
            }
        }
        by
    }
}

/// The messages of a datagram: type and what follows the header (netlink(7)).
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        let message = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, message))
    })
}

/// Attributes: type without its flags, and value.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}
