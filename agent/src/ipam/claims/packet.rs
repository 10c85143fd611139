//! What ARP and neighbour discovery say of an address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use macaddr::MacAddr6;
use podwire_netns::icmpv6;

use super::Claim;

/// Where [`podwire_netns::ALL_NODES`] is on Ethernet (RFC 2464, section 7).
pub(super) const ALL_NODES_MAC: MacAddr6 = MacAddr6::new(0x33, 0x33, 0, 0, 0, 1);

const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// Who has which address, or asks whether somebody has it (RFC 5227, section 2.1.1), by an ARP
/// packet; None if it is another packet.
pub(super) fn arp_claim(packet: &[u8]) -> Option<Claim> {
    let is_request = match packet.get(..8)? {
        [0, 1, 0x08, 0, 6, 4, 0, operation @ (1 | 2)] => *operation == 1,
        _ => return None,
    };
    let sender: [u8; 6] = packet.get(8..14)?.try_into().ok()?;
    let (has, asks_for) = (ipv4_at(packet, 14)?, ipv4_at(packet, 24)?);
    let is_probe = is_request && has.is_unspecified();
    Some(Claim {
        address: if is_probe { asks_for } else { has }.into(),
        holder: sender.into(),
    })
}

/// The sender of an ARP reply; None if it is another packet.
pub(in crate::ipam) fn arp_reply(packet: &[u8]) -> Option<Ipv4Addr> {
    let is_reply = packet.get(..8)? == [0, 1, 0x08, 0, 6, 4, 0, 2];
    is_reply.then(|| ipv4_at(packet, 14)).flatten()
}

/// The same as [`arp_claim`] by a neighbour advertisement, or by a solicitation from the address or
/// from none (RFC 4862, section 5.4.3), in an IPv6 packet of this sender.
pub(super) fn neighbours_claim(packet: &[u8], from: MacAddr6) -> Option<Claim> {
    // What a router has forwarded is no neighbour's (RFC 4861, section 7.1).
    if packet.first()? >> 4 != 6 || packet.get(6..8)? != [ICMPV6, 255] {
        return None;
    }
    let (source, target) = (ipv6_at(packet, 8)?, ipv6_at(packet, 48)?);
    let address = match *packet.get(40)? {
        ADVERTISEMENT => target,
        SOLICITATION if source.is_unspecified() => target,
        SOLICITATION => source,
        _ => return None,
    };
    Some(Claim {
        address: IpAddr::V6(address),
        holder: from,
    })
}

/// A question whether somebody has an address, which goes to [`solicited_node`].
pub(super) fn probe(address: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    message.extend(address.octets());
    let [.., a, b, c] = address.octets();
    let [b, c] = [b, c].map(u16::from);
    let group = [0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), b << 8 | c];
    icmpv6(Ipv6Addr::UNSPECIFIED, group.into(), message)
}

/// Where an address' solicited-node group is on Ethernet (RFC 4291, section 2.7.1).
pub(super) fn solicited_node(address: Ipv6Addr) -> MacAddr6 {
    let [.., a, b, c] = address.octets();
    MacAddr6::new(0x33, 0x33, 0xff, a, b, c)
}

fn ipv4_at(packet: &[u8], at: usize) -> Option<Ipv4Addr> {
    let bytes: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
    Some(bytes.into())
}

fn ipv6_at(packet: &[u8], at: usize) -> Option<Ipv6Addr> {
    let bytes: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
    Some(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use podwire_netns::{arp_request, internet_checksum, neighbour_advertisement};

    const MAC: MacAddr6 = MacAddr6::new(2, 0, 0, 0, 0, 1);

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
        let host = Ipv4Addr::new(192, 0, 2, 7);
        let other = Ipv4Addr::new(192, 0, 2, 8);
        let none = Ipv4Addr::UNSPECIFIED;
        for (from, target, claimed) in [
            (host, other, host),
            (host, host, host),
            (none, host, host),
            (other, host, other),
        ] {
            let mut packet = arp_request(MAC, from, target);
            let claim = Claim {
                address: claimed.into(),
                holder: MAC,
            };
            assert_eq!(arp_claim(&packet), Some(claim), "{from} {target}");
            packet[7] = 2;
            let replied = arp_claim(&packet).map(|it| it.address);
            assert_eq!(replied, Some(from.into()), "{from} {target}");
            packet[7] = 3;
            assert_eq!(arp_claim(&packet), None);
            assert_eq!(arp_claim(&packet[..27]), None);
        }
    }

    #[test]
    fn a_neighbour_claims_what_it_advertises_and_where_it_asks_from_or_whether_somebody_has_it() {
        let [own, other]: [Ipv6Addr; 2] =
            ["2001:db8::7", "2001:db8::8"].map(|it| it.parse().unwrap());
        let claimed = |packet: &[u8]| neighbours_claim(packet, MAC).map(|it| it.address);
        let advertised = neighbour_advertisement(MAC, own);
        assert_eq!(claimed(&advertised), Some(own.into()));
        let mut asked = probe(own);
        assert_eq!(claimed(&asked), Some(own.into()));
        asked[8..24].copy_from_slice(&other.octets());
        assert_eq!(claimed(&asked), Some(other.into()));
        for (at, byte) in [(6, 17), (7, 254)] {
            let mut changed = asked.clone();
            changed[at] = byte;
            assert_eq!(claimed(&changed), None, "{at}");
        }
        for length in 0..64 {
            assert_eq!(claimed(&advertised[..length]), None, "{length}");
        }
    }

    #[test]
    fn a_probe_goes_to_the_address_own_group_and_has_a_valid_checksum() {
        let own: Ipv6Addr = "2001:db8::12:3456".parse().unwrap();
        let packet = probe(own);
        let group: Ipv6Addr = "ff02::1:ff12:3456".parse().unwrap();
        assert_eq!(ipv6_at(&packet, 24), Some(group));
        assert_eq!(
            solicited_node(own),
            MacAddr6::new(0x33, 0x33, 0xff, 0x12, 0x34, 0x56)
        );
        let mut covered = packet[8..40].to_vec();
        covered.extend([0, 0, 0, 24, 0, 0, 0, ICMPV6]);
        covered.extend(&packet[40..]);
        assert_eq!(internet_checksum(&covered), 0);
    }
}
