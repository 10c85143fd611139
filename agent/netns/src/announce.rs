//! Gratuitous ARP and unsolicited neighbour advertisements, which tell the bridge and the
//! neighbours where an address has moved. They must leave from the pod's interface, once Open
//! vSwitch forwards for it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::Sender;

use macaddr::MacAddr6;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, SockaddrLike, sendto, socket,
};

use super::Error;

/// A packet socket in the pod's namespace, and the addresses to announce.
#[derive(Debug)]
pub(super) struct Announcer {
    socket: PacketSocket,
    ifindex: u32,
    mac: MacAddr6,
    addresses: Vec<IpAddr>,
}

/// A packet socket that another thread closes: closing one waits for an RCU grace period
/// (`packet_release`, `synchronize_net`; 14 ms here), too long for a thread that serves others.
#[derive(Debug)]
pub(super) struct PacketSocket {
    /// Present until it is dropped.
    socket: Option<OwnedFd>,
    closer: Sender<OwnedFd>,
}

impl PacketSocket {
    /// Opens one in the calling thread's namespace. It has no protocol, so it receives nothing
    /// before it is bound. `closer` leads to a thread that only drops what it receives.
    pub(super) fn open(kind: SockType, closer: &Sender<OwnedFd>) -> nix::Result<PacketSocket> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Packet, kind, flags, None)?;
        Ok(PacketSocket {
            socket: Some(socket),
            closer: closer.clone(),
        })
    }

    pub(super) fn send(&self, frame: &[u8], to: &LinkAddr) -> nix::Result<usize> {
        sendto(self.as_raw_fd(), frame, to, MsgFlags::MSG_DONTWAIT)
    }
}

impl AsRawFd for PacketSocket {
    fn as_raw_fd(&self) -> RawFd {
        // EBADF for whoever would use it after its end.
        self.socket.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }
}

impl Drop for PacketSocket {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            // If the thread is gone, the socket comes back in the error and is closed here.
            drop(self.closer.send(socket));
        }
    }
}

impl Announcer {
    pub(super) fn new(
        socket: PacketSocket,
        ifindex: u32,
        mac: MacAddr6,
        addresses: Vec<IpAddr>,
    ) -> Announcer {
        Announcer {
            socket,
            ifindex,
            mac,
            addresses,
        }
    }

    /// Sends one frame for each address; returns the errors.
    pub(super) fn announce(&self) -> Vec<Error> {
        let destination = device(self.ifindex, 0, MacAddr6::nil());
        let send = |address: &IpAddr| {
            let frame = match *address {
                IpAddr::V4(address) => gratuitous_arp(self.mac, address),
                IpAddr::V6(address) => unsolicited_advertisement(self.mac, address),
            };
            self.socket
                .send(&frame, &destination)
                .err()
                .map(|errno| Error::Announce {
                    address: *address,
                    refusal: errno.into(),
                })
        };
        self.addresses.iter().filter_map(send).collect()
    }
}

/// The address that means "out of this link", for a socket of type SOCK_DGRAM with ethertype and
/// destination; a frame itself contains both.
#[allow(
    unsafe_code,
    reason = "nix makes a LinkAddr from a raw sockaddr_ll only"
)]
pub(super) fn device(ifindex: u32, ethertype: u16, to: MacAddr6) -> LinkAddr {
    let mut sll_addr = [0; 8];
    sll_addr[..6].copy_from_slice(to.as_bytes());
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as libc::c_ushort,
        sll_protocol: ethertype.to_be(),
        sll_ifindex: ifindex as libc::c_int,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr,
    };
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: `address` is a whole sockaddr_ll of the given length and outlives the call, which
    // copies it.
    unsafe { LinkAddr::from_raw((&raw const address).cast(), Some(length)) }
        .expect("a sockaddr_ll of its own family and length is a LinkAddr")
}

const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];

/// An ARP request for the sender's own address, as the kernel sends it
/// (`inetdev_send_gratuitous_arp`; RFC 5227 §3).
fn gratuitous_arp(mac: MacAddr6, address: Ipv4Addr) -> Vec<u8> {
    let mut frame = ethernet([0xff; 6], mac, ETHERTYPE_ARP);
    frame.extend(arp_request(mac, address, address));
    frame
}

/// An ARP request (RFC 826) from `own` for who has `target`.
pub fn arp_request(mac: MacAddr6, own: Ipv4Addr, target: Ipv4Addr) -> [u8; 28] {
    let mut packet = [0; 28];
    // Ethernet, IPv4, their address lengths, request.
    packet[..8].copy_from_slice(&[0, 1, 0x08, 0, 6, 4, 0, 1]);
    packet[8..14].copy_from_slice(mac.as_bytes());
    packet[14..18].copy_from_slice(&own.octets());
    packet[24..].copy_from_slice(&target.octets());
    packet
}

/// A neighbour advertisement to all nodes, with the override flag (RFC 4861 §4.4 and §7.2.6).
fn unsolicited_advertisement(mac: MacAddr6, address: Ipv6Addr) -> Vec<u8> {
    let mut frame = ethernet([0x33, 0x33, 0, 0, 0, 1], mac, ETHERTYPE_IPV6);
    frame.extend(neighbour_advertisement(mac, address));
    frame
}

/// The same as an IPv6 packet to [`ALL_NODES`], without its Ethernet header.
pub fn neighbour_advertisement(mac: MacAddr6, address: Ipv6Addr) -> Vec<u8> {
    const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    const OVERRIDE: u8 = 0x20;
    const TARGET_LINK_LAYER_ADDRESS: [u8; 2] = [2, 1];
    let mut icmp = vec![NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, OVERRIDE, 0, 0, 0];
    icmp.extend(address.octets());
    icmp.extend(TARGET_LINK_LAYER_ADDRESS);
    icmp.extend(mac.as_bytes());
    icmpv6(address, ALL_NODES, icmp)
}

/// All nodes of a link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// An ICMPv6 packet (RFC 4443) on the link, from a message whose checksum is still 0.
pub fn icmpv6(source: Ipv6Addr, destination: Ipv6Addr, message: Vec<u8>) -> Vec<u8> {
    const ICMPV6: u8 = 58;
    ipv6(source, destination, (ICMPV6, 2), message)
}

/// A UDP packet over IPv6 on the link, from and to these ports. The payload has room in a link's
/// packet.
pub fn udp_over_ipv6(
    (source, from): (Ipv6Addr, u16),
    (destination, to): (Ipv6Addr, u16),
    payload: &[u8],
) -> Vec<u8> {
    const UDP: u8 = 17;
    const HEADER: usize = 8;
    let length = (HEADER + payload.len()) as u16;
    let mut datagram = Vec::with_capacity(length.into());
    datagram.extend(from.to_be_bytes());
    datagram.extend(to.to_be_bytes());
    datagram.extend(length.to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    ipv6(source, destination, (UDP, 6), datagram)
}

/// An IPv6 packet of a protocol, whose checksum goes to this place in its message.
fn ipv6(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    (protocol, checksum_at): (u8, usize),
    mut message: Vec<u8>,
) -> Vec<u8> {
    let [high, low] = (message.len() as u16).to_be_bytes();
    // RFC 8200 §8.1: the checksum covers source, destination, length and protocol.
    let mut covered = Vec::from(source.octets());
    covered.extend(destination.octets());
    covered.extend([0, 0, high, low, 0, 0, 0, protocol]);
    covered.extend(&message);
    if covered.len() % 2 == 1 {
        covered.push(0);
    }
    // One that is 0 means none (RFC 768).
    let checksum = match internet_checksum(&covered) {
        0 => u16::MAX,
        checksum => checksum,
    };
    message[checksum_at..checksum_at + 2].copy_from_slice(&checksum.to_be_bytes());
    // Version 6; hop limit 255, or a neighbour drops it (RFC 4861 §7.1.2).
    let mut packet = vec![0x60, 0, 0, 0, high, low, protocol, 255];
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend(message);
    packet
}

fn ethernet(destination: [u8; 6], source: MacAddr6, ethertype: [u8; 2]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(86);
    frame.extend(destination);
    frame.extend(source.as_bytes());
    frame.extend(ethertype);
    frame
}

/// RFC 1071, over an even number of bytes.
pub fn internet_checksum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}
