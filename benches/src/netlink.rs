//! The floor's netlink: the messages that make a pod's link, written byte by byte and sent by one
//! thread in three ways, without any of podwire's code.
//!
//! The end state is that of podwire's ADD: a pair born in place with names, MACs, MTU and one queue
//! each, the host end up and promiscuous, IPv6 off on it before it has a carrier, and on the pod's
//! end when that has IPv4 alone, pod end and lo up, addresses, default routes, and no TX checksum
//! offload on the pod's end.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use netlink_sys::{Socket, SocketAddr, protocols};
use nix::libc;
use nix::sched::{CloneFlags, setns};
use serde::Serialize;

mod message;

use crate::error::{Error, Step};
use crate::seat::{GATEWAY_V4, GATEWAY_V6, MTU, Seat, Stack};
use message::{Datagram, Message};

const ENTER: &str = "enter the pod, write disable_ipv6 of its end if that has IPv4 alone, open a \
                     route and a generic netlink socket, return";

/// How the same messages are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Each message in a datagram of its own, its ack read before the next.
    OneByOne,
    /// The pair from the host's side; all of the pod's side in one datagram.
    Batched,
    /// All from within the pod: the pair, then its side in one datagram.
    FromThePod,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::OneByOne, Self::Batched, Self::FromThePod];

    /// What is sent, in order; published with the report.
    pub fn messages(self) -> &'static [&'static str] {
        match self {
            Self::OneByOne => &[
                "host: RTM_NEWLINK veth, both ends",
                "host: write disable_ipv6 and arp_ignore of the host end",
                ENTER,
                "pod: RTM_NEWLINK lo up",
                "pod: RTM_NEWLINK pod end up",
                "pod: RTM_NEWADDR, each",
                "pod: RTM_NEWROUTE default, each",
                "pod: ETHTOOL_MSG_FEATURES_SET tx-checksum-ip-generic off",
            ],
            Self::Batched => &[
                "host: RTM_NEWLINK veth, both ends",
                "host: write disable_ipv6 and arp_ignore of the host end",
                ENTER,
                "pod, one datagram: RTM_NEWLINK lo up and pod end up, RTM_NEWADDR and RTM_NEWROUTE \
                 default, each",
                "pod: ETHTOOL_MSG_FEATURES_SET tx-checksum-ip-generic off",
            ],
            Self::FromThePod => &[
                "enter the pod, open a route and a generic netlink socket, return",
                "pod: RTM_NEWLINK veth, both ends",
                "enter the pod, write disable_ipv6 of the pod's end if it has IPv4 alone, return",
                "host: write disable_ipv6 and arp_ignore of the host end",
                "pod, one datagram: RTM_NEWLINK lo up and pod end up, RTM_NEWADDR and RTM_NEWROUTE \
                 default, each",
                "pod: ETHTOOL_MSG_FEATURES_SET tx-checksum-ip-generic off",
            ],
        }
    }
}

const UP: u32 = libc::IFF_UP as u32;
/// What the host end is from its birth, as ovs-vswitchd would make it; its carrier comes with the
/// pod end's.
const BORN: u32 = UP | libc::IFF_PROMISC as u32;

/// One thread's sockets.
pub struct Wirer {
    home: File,
    host: Socket,
    ethtool: u16,
}

/// Indexes are chosen, so that no answer has to be read for them; below those that the agent uses.
static NEXT_INDEX: AtomicU32 = AtomicU32::new(1 << 29);

impl Wirer {
    /// Opens what is open before a pod comes; the calling thread must be on the node.
    ///
    /// # Errors
    /// No socket, or no ethtool netlink in this kernel (before 5.6).
    pub fn open() -> Result<Self, Error> {
        let home = File::open("/proc/thread-self/ns/net").step(|| "open the own namespace")?;
        let host = socket(protocols::NETLINK_ROUTE)?;
        let generic = socket(protocols::NETLINK_GENERIC)?;
        let ethtool = message::family(&generic, "ethtool")
            .map_err(|source| refused("CTRL_CMD_GETFAMILY ethtool", source))?;
        Ok(Self {
            home,
            host,
            ethtool,
        })
    }

    /// Makes the seat's link. Returns the host end's index.
    ///
    /// # Errors
    /// The kernel refused a message.
    pub fn attach(&mut self, seat: &Seat<'_>, way: Way) -> Result<u32, Error> {
        let host = NEXT_INDEX.fetch_add(2, Ordering::Relaxed);
        let pod = host + 1;
        let netns = pod_netns(seat)?;
        let quiet = (seat.stack == Stack::V4).then_some(seat.pod.interface.as_str());
        if way == Way::FromThePod {
            let (route, generic) = self.enter(&netns, sockets)??;
            let home = Some(self.home.as_raw_fd());
            let pair = pair(seat, host, pod, BORN, None, home);
            send(&route, "the pair", &[pair])?;
            if let Some(interface) = quiet {
                self.enter(&netns, || ipv6_off(interface))??;
            }
            silence(seat.host_name())?;
            send(&route, "the pod's side", &pod_side(seat, pod))?;
            self.checksum_off(&generic, pod)?;
            return Ok(host);
        }
        let inside = Some(netns.as_raw_fd());
        let pair = pair(seat, host, pod, BORN, inside, None);
        send(&self.host, "the pair", &[pair])?;
        silence(seat.host_name())?;
        let (route, generic) = self.enter(&netns, || {
            quiet.map_or(Ok(()), ipv6_off)?;
            sockets()
        })??;
        let messages = pod_side(seat, pod);
        match way {
            Way::Batched => send(&route, "the pod's side", &messages)?,
            _ => {
                for message in messages {
                    send(&route, "the pod's side", &[message])?;
                }
            }
        }
        self.checksum_off(&generic, pod)?;
        Ok(host)
    }

    /// Makes the seat's pair and nothing else: in its place, or both ends here, as before there is
    /// a sandbox. Returns the host end's index; the pod end's is one higher.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn pair(&mut self, seat: &Seat<'_>, in_place: bool) -> Result<u32, Error> {
        let host = NEXT_INDEX.fetch_add(2, Ordering::Relaxed);
        let netns = pod_netns(seat)?;
        let inside = in_place.then_some(netns.as_raw_fd());
        let pair = pair(seat, host, host + 1, 0, inside, None);
        send(&self.host, "the pair", &[pair])?;
        Ok(host)
    }

    /// Moves the pod end of a pair that was made here to its place.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn move_in(&mut self, seat: &Seat<'_>, host: u32) -> Result<(), Error> {
        let netns = pod_netns(seat)?;
        let mut moved = Message::link(libc::RTM_NEWLINK, 0, host + 1, 0);
        moved.number(libc::IFLA_NET_NS_FD, netns.as_raw_fd() as u32);
        send(&self.host, "the pod end's move", &[moved])
    }

    /// Deletes a link, and waits for the kernel's ack.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn delete(&mut self, index: u32) -> Result<(), Error> {
        let message = Message::link(libc::RTM_DELLINK, 0, index, 0);
        send(&self.host, "RTM_DELLINK", &[message])
    }

    /// Makes and deletes a pair of our own. The ack comes an `rcu_barrier` later
    /// (`netdev_run_todo`), behind all that earlier deletions have left to the kernel.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn settle(&mut self) -> Result<(), Error> {
        let index = NEXT_INDEX.fetch_add(2, Ordering::Relaxed);
        let mut pair = Message::link(libc::RTM_NEWLINK, message::CREATE, index, 0);
        pair.text(libc::IFLA_IFNAME, "settle0");
        pair.nest(libc::IFLA_LINKINFO, |info| {
            info.text(message::INFO_KIND, "veth");
            info.nest(message::INFO_DATA, |data| {
                data.nest(message::VETH_PEER, |peer| {
                    peer.link_header(index + 1, 0);
                    peer.text(libc::IFLA_IFNAME, "settle1");
                });
            });
        });
        send(&self.host, "a pair to settle", &[pair])?;
        self.delete(index)
    }

    fn enter<T>(&self, netns: &File, inside: impl FnOnce() -> T) -> Result<T, Error> {
        setns(netns, CloneFlags::CLONE_NEWNET).step(|| "enter the pod")?;
        let result = inside();
        setns(&self.home, CloneFlags::CLONE_NEWNET).step(|| "return from the pod")?;
        Ok(result)
    }

    fn checksum_off(&self, generic: &Socket, index: u32) -> Result<(), Error> {
        let message = message::tx_checksum_off(self.ethtool, index);
        send(generic, "ETHTOOL_MSG_FEATURES_SET", &[message])
    }
}

/// A route and a generic netlink socket in the calling thread's namespace.
fn sockets() -> Result<(Socket, Socket), Error> {
    Ok((
        socket(protocols::NETLINK_ROUTE)?,
        socket(protocols::NETLINK_GENERIC)?,
    ))
}

fn pod_netns(seat: &Seat<'_>) -> Result<File, Error> {
    File::open(&seat.pod.netns).step(|| format!("open {}", seat.pod.netns))
}

/// A host end speaks no IPv6, and the host answers no ARP on it.
fn silence(host_end: &str) -> Result<(), Error> {
    ipv6_off(host_end)?;
    sysctl(format!("ipv4/conf/{host_end}/arp_ignore"), "8")
}

fn ipv6_off(link: &str) -> Result<(), Error> {
    sysctl(format!("ipv6/conf/{link}/disable_ipv6"), "1")
}

fn sysctl(name: String, value: &str) -> Result<(), Error> {
    let path = format!("/proc/sys/net/{name}");
    std::fs::write(&path, value).step(|| format!("write {path}"))
}

fn pair(
    seat: &Seat<'_>,
    host: u32,
    pod: u32,
    flags: u32,
    pod_netns: Option<RawFd>,
    host_netns: Option<RawFd>,
) -> Message {
    let end = |message: &mut Message, name: &str, mac: [u8; 6], netns: Option<RawFd>| {
        message.text(libc::IFLA_IFNAME, name);
        message.bytes(libc::IFLA_ADDRESS, &mac);
        message.number(libc::IFLA_MTU, MTU);
        message.number(libc::IFLA_NUM_TX_QUEUES, 1);
        message.number(libc::IFLA_NUM_RX_QUEUES, 1);
        if let Some(fd) = netns {
            message.number(libc::IFLA_NET_NS_FD, fd as u32);
        }
    };
    let mut host_mac = seat.mac;
    host_mac[0] = 0x0e;
    let mut pair = Message::link(libc::RTM_NEWLINK, message::CREATE, host, flags);
    end(&mut pair, seat.host_name(), host_mac, host_netns);
    pair.nest(libc::IFLA_LINKINFO, |info| {
        info.text(message::INFO_KIND, "veth");
        info.nest(message::INFO_DATA, |data| {
            data.nest(message::VETH_PEER, |peer| {
                peer.link_header(pod, 0);
                end(peer, &seat.pod.interface, seat.mac, pod_netns);
            });
        });
    });
    pair
}

fn pod_side(seat: &Seat<'_>, index: u32) -> Vec<Message> {
    const LOOPBACK: u32 = 1;
    let up = |index| Message::link(libc::RTM_NEWLINK, 0, index, UP);
    let mut messages = vec![up(LOOPBACK), up(index)];
    let mut families: Vec<(IpAddr, u8, IpAddr)> = vec![(seat.v4.into(), 16, GATEWAY_V4.into())];
    if seat.stack == Stack::Dual {
        families.push((seat.v6.into(), 64, GATEWAY_V6.into()));
    }
    for (address, length, _) in &families {
        messages.push(Message::address(*address, *length, index));
    }
    for (.., gateway) in &families {
        messages.push(Message::default_route(*gateway, index));
    }
    messages
}

/// Sends messages in one datagram and reads the ack of each.
fn send(socket: &Socket, what: &str, messages: &[Message]) -> Result<(), Error> {
    Datagram::of(messages)
        .exchange(socket)
        .map_err(|source| refused(what, source))
}

fn refused(message: &str, source: io::Error) -> Error {
    Error::Netlink {
        message: message.to_owned(),
        source,
    }
}

fn socket(protocol: isize) -> Result<Socket, Error> {
    let open = || {
        let socket = Socket::new(protocol)?;
        socket.set_cap_ack(true)?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok::<_, io::Error>(socket)
    };
    open().step(|| "open a netlink socket")
}
