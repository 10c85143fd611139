//! The tunnel that carries OVN's packets, and the size of its headers.

use std::net::IpAddr;

use super::Ports;
use super::ovn::node_key;

/// The node's tunnel settings for ovn-controller, in `Open_vSwitch` external_ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encapsulation {
    /// `ovn-encap-type`: geneve, vxlan, stt.
    pub kinds: Vec<String>,
    /// `ovn-encap-ip`: the node's tunnel addresses.
    pub ends: Vec<IpAddr>,
}

impl Ports {
    /// The tunnel settings that the database has now.
    pub fn tunnel(&self) -> Encapsulation {
        let key = |name| self.client.read(|db| node_key(db, name));
        Encapsulation::of(
            &key("ovn-encap-type").unwrap_or_default(),
            &key("ovn-encap-ip").unwrap_or_default(),
        )
    }
}

impl Encapsulation {
    /// Parses the two keys' values, each of which may be a list.
    pub fn of(kinds: &str, ends: &str) -> Self {
        Self {
            kinds: list(kinds).map(str::to_owned).collect(),
            ends: list(ends).filter_map(|end| end.parse().ok()).collect(),
        }
    }

    /// Size in bytes of the headers between the uplink's packet and the pod's. Of several kinds the
    /// largest, because OVN chooses one for each pair of nodes.
    pub fn overhead(&self) -> u32 {
        const IPV4: u32 = 20;
        const IPV6: u32 = 40;
        const INNER_ETHERNET: u32 = 14;
        let outer = match self.ends.iter().any(IpAddr::is_ipv6) {
            true => IPV6,
            false => IPV4,
        };
        let header = |kind: &String| match kind.as_str() {
            // UDP 8, VXLAN 8 (RFC 7348).
            "vxlan" => 16,
            // A header shaped like TCP's, 20, and STT's own, 18 (draft-davie-stt-08).
            "stt" => 38,
            // GRE 4 and its key 4 (RFC 2890). OVN does not use it, but another bridge of this
            // switch may.
            "gre" => 8,
            // UDP 8, Geneve 8 (RFC 8926), and OVN's one option, 8 (ovn-architecture(7), Tunnel
            // Encapsulations).
            _ => 24,
        };
        let most = self.kinds.iter().map(header).max().unwrap_or(24);
        outer + most + INNER_ETHERNET
    }
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split(',').map(str::trim);
    parts.filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overhead(kinds: &str, ends: &str) -> u32 {
        Encapsulation::of(kinds, ends).overhead()
    }

    #[test]
    fn geneve_takes_58_bytes_over_ipv4_and_78_over_ipv6() {
        assert_eq!(overhead("geneve", "192.0.2.1"), 58);
        assert_eq!(overhead("geneve", "2001:db8::1"), 78);
    }

    #[test]
    fn of_several_kinds_or_ends_the_most_counts() {
        assert_eq!(overhead("vxlan", "192.0.2.1"), 50);
        assert_eq!(overhead("vxlan,geneve", "192.0.2.1"), 58);
        assert_eq!(overhead("geneve, stt", "192.0.2.1"), 72);
        assert_eq!(overhead("geneve", "192.0.2.1,2001:db8::1"), 78);
    }

    #[test]
    fn a_node_that_does_not_say_is_taken_for_the_usual_one() {
        assert_eq!(overhead("", ""), 58);
    }
}
