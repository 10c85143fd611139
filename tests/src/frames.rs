//! Frames as they pass a link: hearing them, telling them apart, and saying what the kernel doesn't
//! by itself.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, bind, recv,
    sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::Place;
use crate::failure::{Failure, Step};

/// All nodes of a link (RFC 4291 §2.7.1).
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Every frame that passes a place's links, or packet that its stack accepts, from now on.
#[derive(Debug)]
pub struct Capture(OwnedFd);

impl Capture {
    /// How long the last frame may take, in seconds.
    const PATIENCE: i64 = 30;

    /// Of all links of a place.
    ///
    /// # Errors
    /// No packet socket could be opened there.
    pub fn of(place: &Place) -> Result<Capture, Failure> {
        Self::open(place, AddressFamily::Packet, SockProtocol::EthAll)
    }

    /// Of one link of a place.
    ///
    /// # Errors
    /// There is no such link, or no packet socket could be opened there.
    pub fn on(place: &Place, link: &str) -> Result<Capture, Failure> {
        let capture = Self::of(place)?;
        let address = place.run(|| link_address(link));
        let bound = address.and_then(|address| bind(capture.0.as_raw_fd(), &address));
        let bound = bound.map_err(std::io::Error::from);
        bound.step(|| format!("listen on {link}")).map(|()| capture)
    }

    /// Of the packets of one protocol and family that a place's own stack accepts, after its
    /// packet filter (`ip_local_deliver_finish`), whether or not anybody listens.
    ///
    /// # Errors
    /// No raw socket could be opened there.
    pub fn of_stack(
        place: &Place,
        family: AddressFamily,
        protocol: SockProtocol,
    ) -> Result<Capture, Failure> {
        Self::open(place, family, protocol)
    }

    fn open(
        place: &Place,
        family: AddressFamily,
        protocol: SockProtocol,
    ) -> Result<Capture, Failure> {
        let open = || {
            let socket = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
            let patience = TimeVal::seconds(Self::PATIENCE);
            setsockopt(&socket, sockopt::ReceiveTimeout, &patience)?;
            Ok::<_, nix::Error>(socket)
        };
        let socket = place.run(open).map_err(std::io::Error::from);
        Ok(Capture(socket.step(|| "open a raw socket")?))
    }

    /// What came before, and without, the frame that `last` takes.
    ///
    /// # Errors
    /// That frame did not come.
    pub fn until(&self, last: impl Fn(&[u8]) -> bool) -> Result<Vec<Vec<u8>>, Failure> {
        let mut frames = Vec::new();
        let mut frame = [0; 2048];
        loop {
            let length = recv(self.0.as_raw_fd(), &mut frame, MsgFlags::empty())
                .map_err(std::io::Error::from)
                .step(|| format!("await the last of {} frames", frames.len()))?;
            if last(&frame[..length]) {
                return Ok(frames);
            }
            frames.push(frame[..length].to_vec());
        }
    }
}

/// The address of a link for packet sockets, in the calling thread's namespace.
fn link_address(link: &str) -> nix::Result<LinkAddr> {
    let mut links = getifaddrs()?.filter(|it| it.interface_name == link);
    let address = links.find_map(|it| it.address?.as_link_addr().copied());
    address.ok_or(Errno::ENODEV)
}

/// A socket for the frames of one link of a place: send(2) sends as they are, recv(2) takes
/// all others that pass the link.
///
/// # Errors
/// There is no such link, or no packet socket could be opened there.
pub fn socket_on(place: &Place, link: &str) -> Result<OwnedFd, Failure> {
    Capture::on(place, link).map(|capture| capture.0)
}

/// Sends frames out of a link as they are, in order.
///
/// # Errors
/// There is no such link, or the kernel refused one.
pub fn send(place: &Place, link: &str, frames: &[Vec<u8>]) -> Result<(), Failure> {
    let send = || {
        let (family, flags) = (AddressFamily::Packet, SockFlag::SOCK_CLOEXEC);
        // Without a protocol it receives nothing.
        let socket = socket(family, SockType::Raw, flags, None)?;
        let to = link_address(link)?;
        for frame in frames {
            sendto(socket.as_raw_fd(), frame, &to, MsgFlags::empty())?;
        }
        Ok::<_, Errno>(())
    };
    let sent = place.run(send).map_err(std::io::Error::from);
    sent.step(|| format!("send frames out of {link}"))
}

/// Whether a frame is IPv4.
pub fn is_ipv4(frame: &[u8]) -> bool {
    frame[12..14] == [0x08, 0x00]
}

/// Whether a frame is ICMPv6 of this type.
pub fn is_icmpv6(frame: &[u8], kind: u8) -> bool {
    frame.len() > 54 && frame[12..14] == [0x86, 0xdd] && frame[20] == 58 && frame[54] == kind
}

/// Whether a frame is UDP over IPv4 to this port.
pub fn is_udp_to(frame: &[u8], port: u16) -> bool {
    is_ipv4(frame) && frame[23] == 17 && frame[36..38] == port.to_be_bytes()
}

/// An ARP request by which a MAC address says that an address is its own (RFC 5227, section 3).
pub fn arp_announcement(mac: [u8; 6], address: Ipv4Addr) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(mac);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(mac);
    frame.extend(address.octets());
    frame.extend([0; 6]);
    frame.extend(address.octets());
    frame
}

/// Sends an ICMPv6 message out of a link, with the hop limit that neighbours demand of each other
/// (RFC 4861 §6.1); the kernel adds the checksum.
///
/// # Errors
/// The kernel refused.
pub fn send_icmpv6(place: &Place, link: &str, message: &[u8], to: Ipv6Addr) -> Result<(), Failure> {
    let send = || {
        let (family, flags) = (AddressFamily::Inet6, SockFlag::SOCK_CLOEXEC);
        let socket = socket(family, SockType::Raw, flags, SockProtocol::IcmpV6)?;
        setsockopt(&socket, sockopt::Ipv6MulticastHops, &255)?;
        let to = SockaddrIn6::from(SocketAddrV6::new(to, 0, 0, if_nametoindex(link)?));
        sendto(socket.as_raw_fd(), message, &to, MsgFlags::empty()).map(drop)
    };
    let sent = place.run(send).map_err(std::io::Error::from);
    sent.step(|| format!("send ICMPv6 out of {link}"))
}
