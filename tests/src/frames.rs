//! Frames as they pass a link: hearing them, telling them apart, and saying what the kernel doesn't
//! by itself.

use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, recv, sendto,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::Place;
use crate::failure::{Failure, Step};

/// All nodes of a link (RFC 4291 §2.7.1).
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Every frame that passes a place's links from now on.
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
        let open = || {
            let (family, flags) = (AddressFamily::Packet, SockFlag::SOCK_CLOEXEC);
            let socket = socket(family, SockType::Raw, flags, SockProtocol::EthAll)?;
            let patience = TimeVal::seconds(Self::PATIENCE);
            setsockopt(&socket, sockopt::ReceiveTimeout, &patience)?;
            Ok::<_, nix::Error>(socket)
        };
        let socket = place.run(open).map_err(std::io::Error::from);
        Ok(Capture(socket.step(|| "open a packet socket")?))
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
