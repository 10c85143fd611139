//! Frames, byte by byte.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::igmp::{GroupAddress, MembershipQueryType};
use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacket, EtherType, IgmpType, IpHeaders, PacketBuilder,
    PacketBuilderStep,
};

pub(crate) type Mac = [u8; 6];

/// The MAC addresses of sender and receiver.
pub(crate) type Macs = (Mac, Mac);

pub(crate) const BROADCAST: Mac = [0xff; 6];

/// The MAC address of a group (RFC 1112 §6.4, RFC 2464 §7).
pub(crate) fn mac_of_group(group: IpAddr) -> Mac {
    match group {
        IpAddr::V4(group) => {
            let [_, b, c, d] = group.octets();
            [0x01, 0, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(group) => {
            let [.., a, b, c, d] = group.octets();
            [0x33, 0x33, a, b, c, d]
        }
    }
}

fn ip((from_mac, to_mac): Macs, from: IpAddr, to: IpAddr, ttl: u8) -> PacketBuilderStep<IpHeaders> {
    let ethernet = PacketBuilder::ethernet2(from_mac, to_mac);
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.octets(), to.octets(), ttl),
        (IpAddr::V6(from), IpAddr::V6(to)) => ethernet.ipv6(from.octets(), to.octets(), ttl),
        _ => panic!("{from} and {to} are of two families"),
    }
}

pub(crate) fn udp(macs: Macs, from: (IpAddr, u16), to: (IpAddr, u16), payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let packet = ip(macs, from.0, to.0, 64).udp(from.1, to.1);
    packet.write_to_vec(&mut frame, payload).unwrap();
    frame
}

/// The packet that opens a connection, with data.
pub(crate) fn syn(macs: Macs, from: (IpAddr, u16), to: (IpAddr, u16), data: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let packet = ip(macs, from.0, to.0, 64).tcp(from.1, to.1, 1, 1024);
    packet.syn().write_to_vec(&mut frame, data).unwrap();
    frame
}

/// A message of type and code; `rest` are bytes 5 to 8 of its header.
pub(crate) fn icmp(
    macs: Macs,
    (from, to): (IpAddr, IpAddr),
    (kind, code, rest): (u8, u8, [u8; 4]),
    body: &[u8],
) -> Vec<u8> {
    let mut frame = Vec::new();
    // Neighbours demand this hop limit of each other (RFC 4861 §7.1).
    let packet = ip(macs, from, to, 255);
    match from {
        IpAddr::V4(_) => packet
            .icmpv4_raw(kind, code, rest)
            .write_to_vec(&mut frame, body),
        IpAddr::V6(_) => packet
            .icmpv6_raw(kind, code, rest)
            .write_to_vec(&mut frame, body),
    }
    .unwrap();
    frame
}

/// A query for all groups (RFC 2236 §2).
pub(crate) fn igmp_query(macs: Macs, from: Ipv4Addr, to: Ipv4Addr, rest: &[u8]) -> Vec<u8> {
    let query = IgmpType::MembershipQuery(MembershipQueryType {
        max_response_time: 1,
        group_address: GroupAddress::new([0; 4]),
    });
    let mut frame = Vec::new();
    let packet = ip(macs, from.into(), to.into(), 1).igmp(query);
    packet.write_to_vec(&mut frame, rest).unwrap();
    frame
}

/// An ARP packet of whoever `sender` says, with a trailer.
pub(crate) fn arp(
    (from_mac, to_mac): Macs,
    operation: ArpOperation,
    sender: (Mac, Ipv4Addr),
    target: (Mac, Ipv4Addr),
    trailer: &[u8],
) -> Vec<u8> {
    let packet = ArpPacket::new(
        ArpHardwareId::ETHERNET,
        EtherType::IPV4,
        operation,
        &sender.0,
        &sender.1.octets(),
        &target.0,
        &target.1.octets(),
    );
    let mut frame = Vec::new();
    let ethernet = PacketBuilder::ethernet2(from_mac, to_mac);
    ethernet
        .arp(packet.unwrap())
        .write_to_vec(&mut frame)
        .unwrap();
    frame.extend(trailer);
    frame
}

/// The MAC address of this text.
pub(crate) fn mac(text: &str) -> Mac {
    let bytes = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).unwrap());
    bytes.collect::<Vec<_>>().try_into().unwrap()
}

/// The same frame with a VLAN tag.
pub(crate) fn tagged(mut frame: Vec<u8>) -> Vec<u8> {
    frame.splice(12..12, [0x81, 0, 0, 5]);
    frame
}

/// The same packet of IPv6 with a hop-by-hop header that says nothing.
pub(crate) fn with_hop_by_hop(mut frame: Vec<u8>) -> Vec<u8> {
    let length = u16::from_be_bytes([frame[18], frame[19]]) + 8;
    frame[18..20].copy_from_slice(&length.to_be_bytes());
    let protocol = std::mem::replace(&mut frame[20], 0);
    frame.splice(54..54, [protocol, 0, 1, 4, 0, 0, 0, 0]);
    frame
}

/// The same packet of IPv4 in two fragments.
pub(crate) fn in_fragments(frame: &[u8]) -> [Vec<u8>; 2] {
    let (headers, payload) = frame.split_at(34);
    let (first, second) = payload.split_at(24);
    [(first, 0x2000u16), (second, 3)].map(|(part, fragment)| {
        let mut header = etherparse::Ipv4Header::from_slice(&headers[14..])
            .unwrap()
            .0;
        header.set_payload_len(part.len()).unwrap();
        header.dont_fragment = false;
        header.more_fragments = fragment & 0x2000 != 0;
        header.fragment_offset = (fragment & 0x1fff).try_into().unwrap();
        header.header_checksum = header.calc_header_checksum();
        [&headers[..14], &header.to_bytes(), part].concat()
    })
}

/// The address that the kernel derives from a MAC address.
pub(crate) fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    let mut octets = [
        0xfe,
        0x80,
        0,
        0,
        0,
        0,
        0,
        0,
        a ^ 2,
        b,
        c,
        0xff,
        0xfe,
        d,
        e,
        f,
    ];
    octets[2..8].fill(0);
    octets.into()
}
