//! The packets around DHCP's messages: IPv4 with UDP, and ARP.

use std::net::Ipv4Addr;

use macaddr::MacAddr6;
use podwire_netns::internet_checksum;

const UDP: u8 = 17;
const SERVER: u16 = 67;
const CLIENT: u16 = 68;
const IPV4_HEADER: usize = 20;
const UDP_HEADER: usize = 8;

/// A UDP packet to a server's port. It has no UDP checksum, which IPv4 allows (RFC 768).
pub(super) fn udp_to_server(from: Ipv4Addr, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let udp_length = UDP_HEADER + payload.len();
    let length = (IPV4_HEADER + udp_length) as u16;
    let mut packet = Vec::with_capacity(usize::from(length));
    // Version 4 with five words, no service class; no identification or fragments; 64 hops.
    packet.extend([0x45, 0]);
    packet.extend(length.to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, UDP, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    let sum = internet_checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(CLIENT.to_be_bytes());
    packet.extend(SERVER.to_be_bytes());
    packet.extend((udp_length as u16).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}

/// The payload of a UDP packet from a server's port to a client's; None if it is another packet or
/// a fragment.
pub(super) fn udp_to_client(packet: &[u8]) -> Option<&[u8]> {
    let first = *packet.first()?;
    let header = usize::from(first & 0xf) * 4;
    let is_whole = u16_at(packet, 6)? & 0x3fff == 0;
    if first >> 4 != 4 || header < IPV4_HEADER || *packet.get(9)? != UDP || !is_whole {
        return None;
    }
    let udp = packet.get(header..)?;
    if u16_at(udp, 0)? != SERVER || u16_at(udp, 2)? != CLIENT {
        return None;
    }
    udp.get(UDP_HEADER..usize::from(u16_at(udp, 4)?))
}

/// The MAC address of whoever has an address, or asks whether somebody has it (RFC 5227, section
/// 2.1.1), by an ARP packet; None if it is another packet.
pub(super) fn arp_claim(packet: &[u8], address: Ipv4Addr) -> Option<MacAddr6> {
    let is_request = match packet.get(..8)? {
        [0, 1, 0x08, 0, 6, 4, 0, operation @ (1 | 2)] => *operation == 1,
        _ => return None,
    };
    let address_at = |at: usize| -> Option<Ipv4Addr> {
        let bytes: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
        Some(bytes.into())
    };
    let sender: [u8; 6] = packet.get(8..14)?.try_into().ok()?;
    let (has, asks_for) = (address_at(14)?, address_at(24)?);
    let is_probe = is_request && has.is_unspecified() && asks_for == address;
    (has == address || is_probe).then_some(sender.into())
}

/// The sender of an ARP reply; None if it is another packet.
pub(super) fn arp_reply(packet: &[u8]) -> Option<Ipv4Addr> {
    let is_reply = packet.get(..8)? == [0, 1, 0x08, 0, 6, 4, 0, 2];
    let sender: [u8; 4] = packet.get(14..18)?.try_into().ok()?;
    is_reply.then_some(sender.into())
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes(two.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use podwire_netns::arp_request;

    #[test]
    fn a_packet_to_the_server_has_a_valid_header_and_its_payload() {
        let packet = udp_to_server(Ipv4Addr::new(192, 0, 2, 7), Ipv4Addr::BROADCAST, b"payload");
        assert_eq!(internet_checksum(&packet[..IPV4_HEADER]), 0);
        assert_eq!(u16_at(&packet, 2), Some(packet.len() as u16));
        assert_eq!(&packet[IPV4_HEADER + UDP_HEADER..], b"payload");
    }

    #[test]
    fn only_a_whole_packet_from_a_servers_port_is_read() {
        let mut packet = udp_to_server(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, b"payload");
        assert_eq!(udp_to_client(&packet), None);
        packet[20..24].copy_from_slice(&[0, 67, 0, 68]);
        assert_eq!(udp_to_client(&packet), Some(&b"payload"[..]));
        for length in 0..packet.len() {
            assert_eq!(udp_to_client(&packet[..length]), None, "{length}");
        }
        packet[6] = 0x20;
        assert_eq!(udp_to_client(&packet), None);
    }

    #[test]
    fn a_reply_tells_its_sender_and_a_request_none() {
        let own = Ipv4Addr::new(192, 0, 2, 7);
        let mut packet = arp_request(MacAddr6::nil(), own, own);
        assert_eq!(arp_reply(&packet), None);
        packet[7] = 2;
        assert_eq!(arp_reply(&packet), Some(own));
        assert_eq!(arp_reply(&packet[..17]), None);
    }

    #[test]
    fn whoever_has_an_address_or_asks_for_it_too_claims_it() {
        let (mac, host) = (MacAddr6::new(2, 0, 0, 0, 0, 1), Ipv4Addr::new(192, 0, 2, 7));
        let other = Ipv4Addr::new(192, 0, 2, 8);
        let none = Ipv4Addr::UNSPECIFIED;
        for (from, target, claims) in [
            (host, other, Some(mac)),
            (host, host, Some(mac)),
            (none, host, Some(mac)),
            (none, other, None),
            (other, host, None),
        ] {
            let mut packet = arp_request(mac, from, target);
            assert_eq!(arp_claim(&packet, host), claims, "{from} {target}");
            packet[7] = 2;
            let replies = claims.filter(|_| from == host);
            assert_eq!(arp_claim(&packet, host), replies, "{from} {target}");
            packet[7] = 3;
            assert_eq!(arp_claim(&packet, host), None);
            assert_eq!(arp_claim(&packet[..27], host), None);
        }
    }
}
