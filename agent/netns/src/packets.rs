//! Packet sockets and addresses in a pod's namespace after its attachment, for leases and for the
//! detection of duplicate addresses. The packets have no Ethernet header: the kernel makes it
//! (packet(7), SOCK_DGRAM).

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use ipnet::IpNet;
use macaddr::MacAddr6;
use nix::errno::Errno;
use nix::libc::sock_filter;
use nix::sys::socket::{LinkAddr, SockType, bind, recvfrom};
use tokio::io::unix::AsyncFd;

use super::announce::{PacketSocket, device};
use super::attach::enter;
use super::configure::{set_addresses, set_routes};
use super::sysctl::enable_ipv6;
use super::{
    Error, LinkState, Netlink, Netns, Refusal, Route, filter, observe, request, socket as netlink,
};

/// What a packet socket carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packets {
    /// ARP.
    Arp,
    /// IPv4, with its header.
    Ipv4,
    /// IPv6, with its header.
    Ipv6,
}

impl Packets {
    fn ethertype(self) -> u16 {
        match self {
            Self::Arp => 0x0806,
            Self::Ipv4 => 0x0800,
            Self::Ipv6 => 0x86dd,
        }
    }
}

/// A packet socket on one interface in a pod's namespace.
#[derive(Debug)]
pub struct LinkSocket {
    socket: AsyncFd<PacketSocket>,
    packets: Packets,
    ifindex: u32,
    /// The interface's MAC address.
    pub mac: MacAddr6,
}

impl LinkSocket {
    #[allow(
        unsafe_code,
        reason = "AsyncFd can't know that a type keeps its descriptor"
    )]
    fn new(opened: Opened) -> io::Result<Self> {
        // SAFETY: a PacketSocket's descriptor stays open and the same until it is dropped, which
        // the AsyncFd does after it has let go of it.
        let socket = unsafe { AsyncFd::register(opened.socket) }?;
        Ok(Self {
            socket,
            packets: opened.packets,
            ifindex: opened.ifindex,
            mac: opened.mac,
        })
    }

    /// Sends one packet, without its Ethernet header.
    ///
    /// # Errors
    /// The kernel's; EAGAIN if the link's queue is full.
    pub fn send(&self, packet: &[u8], to: MacAddr6) -> io::Result<()> {
        let to = device(self.ifindex, self.packets.ethertype(), to);
        self.socket.get_ref().send(packet, &to)?;
        Ok(())
    }

    /// Waits for one packet, without its Ethernet header; returns its length and its sender.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn receive(&self, packet: &mut [u8]) -> io::Result<(usize, MacAddr6)> {
        loop {
            let mut ready = self.socket.readable().await?;
            let received = ready.try_io(|socket| {
                let (length, from) = recvfrom::<LinkAddr>(socket.as_raw_fd(), packet)?;
                let from = from.and_then(|from| from.addr()).unwrap_or_default();
                Ok((length, from.into()))
            });
            if let Ok(received) = received {
                return received;
            }
        }
    }
}

/// A socket that the reading thread has opened.
struct Opened {
    socket: PacketSocket,
    packets: Packets,
    ifindex: u32,
    mac: MacAddr6,
}

impl Netlink {
    /// Opens a packet socket on an interface in a pod's namespace.
    ///
    /// # Errors
    /// There is no such interface, or the kernel refused the socket.
    pub async fn link_socket(
        &self,
        netns: Arc<Netns>,
        ifname: &str,
        packets: Packets,
    ) -> Result<LinkSocket, Error> {
        self.open_link_socket(netns, ifname, packets, Vec::new())
            .await
    }

    /// Like [`Self::link_socket`], for ARP or IPv6: it receives only what says that one of these
    /// addresses is a neighbour's. The kernel drops everything else.
    ///
    /// # Errors
    /// As those of [`Self::link_socket`].
    pub async fn claim_socket(
        &self,
        netns: Arc<Netns>,
        ifname: &str,
        packets: Packets,
        addresses: &[IpAddr],
    ) -> Result<LinkSocket, Error> {
        let filter = filter::claims(addresses);
        self.open_link_socket(netns, ifname, packets, filter).await
    }

    async fn open_link_socket(
        &self,
        netns: Arc<Netns>,
        ifname: &str,
        packets: Packets,
        filter: Vec<sock_filter>,
    ) -> Result<LinkSocket, Error> {
        let ifname = ifname.to_owned();
        let reading = self.read(move |reader| {
            let opened = enter(&reader.home, &netns, || {
                let socket = PacketSocket::open(SockType::Datagram, &reader.closer)?;
                Ok((netlink::Netlink::route()?, socket))
            })?;
            let (mut pod, socket) = opened;
            let link = observe::link_named(&mut pod, &ifname)?;
            let Some(LinkState {
                ifindex,
                mac: Some(mac),
                ..
            }) = link
            else {
                return Err(gone(&ifname));
            };
            // Before it is bound, it receives nothing.
            if !filter.is_empty() {
                filter::attach(&socket, &filter).map_err(|errno| Error::OpenSocket {
                    what: "packet",
                    refusal: errno.into(),
                })?;
            }
            let to = device(ifindex, packets.ethertype(), mac);
            bind(socket.as_raw_fd(), &to).map_err(|errno| Error::OpenSocket {
                what: "packet",
                refusal: errno.into(),
            })?;
            Ok(Opened {
                socket,
                packets,
                ifindex,
                mac,
            })
        });
        LinkSocket::new(reading.await?).map_err(|error| Error::OpenSocket {
            what: "packet",
            refusal: error.into(),
        })
    }

    /// Gives an interface in a pod's namespace further addresses and routes; those that are there
    /// stay.
    ///
    /// # Errors
    /// There is no such interface, or the kernel refused one of them.
    pub async fn assign(
        &self,
        netns: Arc<Netns>,
        ifname: &str,
        addresses: Vec<IpNet>,
        routes: Vec<Route>,
    ) -> Result<(), Error> {
        let ifname = ifname.to_owned();
        self.read(move |reader| {
            let mut pod = enter(&reader.home, &netns, netlink::Netlink::route)?;
            let link = observe::link_named(&mut pod, &ifname)?.ok_or_else(|| gone(&ifname))?;
            set_addresses(&mut pod, &ifname, link.ifindex, &addresses, || {
                enter(&reader.home, &netns, || Ok(enable_ipv6(&ifname)))?
            })?;
            set_routes(&mut pod, &ifname, &routes, link.ifindex)
        })
        .await
    }

    /// Takes an address from an interface in a pod's namespace, if it is there.
    ///
    /// # Errors
    /// The kernel refused.
    pub async fn withdraw(
        &self,
        netns: Arc<Netns>,
        ifname: &str,
        address: IpNet,
    ) -> Result<(), Error> {
        let ifname = ifname.to_owned();
        self.read(move |reader| {
            let mut pod = enter(&reader.home, &netns, netlink::Netlink::route)?;
            let Some(link) = observe::link_named(&mut pod, &ifname)? else {
                return Ok(());
            };
            match pod.request(request::delete_address(address, link.ifindex), 0) {
                Err(refusal) if !matches!(refusal.errno, Errno::EADDRNOTAVAIL | Errno::ENODEV) => {
                    Err(Error::RemoveAddress {
                        address,
                        link: ifname,
                        refusal,
                    })
                }
                _ => Ok(()),
            }
        })
        .await
    }
}

pub(super) fn gone(link: &str) -> Error {
    let refusal = Refusal::from(Errno::ENODEV);
    Error::SetUp {
        link: link.to_owned(),
        refusal,
    }
}
