//! The packets around DHCP's messages: IPv4 with UDP.

use std::net::Ipv4Addr;

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

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes(two.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
