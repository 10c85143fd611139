//! The gateway routers' addresses on the switch join: one place for each node, the same in both
//! families.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cluster::Name;

use super::nth;

/// The networks of the switch join, as ovn-kubernetes has them: IPv4's and IPv6's. They are seen by
/// no packet outside of OVN.
pub const JOIN: [&str; 2] = ["100.64.0.0/16", "fd98::/64"];

/// The places of nodes: 1 is the router's that joins all nodes.
#[derive(Clone, Debug, Default)]
pub struct Joins(BTreeMap<Name, u16>);

impl Joins {
    /// What exists: the node keeps its place, unless another one has it.
    pub fn hold(&mut self, node: &str, address: IpNet) {
        let (is_its, place) = match address.addr() {
            IpAddr::V4(ip) => {
                let [a, b, c, d] = ip.octets();
                ([a, b] == [100, 64], u16::from_be_bytes([c, d]))
            }
            // Of a cluster without IPv4, the only one.
            IpAddr::V6(ip) => {
                let [first @ .., last] = ip.segments();
                (first == [0xfd98, 0, 0, 0, 0, 0, 0], last)
            }
        };
        let is_free = place > 1 && place < u16::MAX && !self.0.values().any(|it| *it == place);
        if is_its && is_free && !self.0.contains_key(node) {
            self.0.insert(node.into(), place);
        }
    }

    /// A node's place.
    pub fn of(&self, node: &str) -> Option<u16> {
        self.0.get(node).copied()
    }

    /// A node's place, the lowest free one if it has none; none if there is none left.
    pub fn take(&mut self, node: &str) -> Option<u16> {
        if let Some(place) = self.of(node) {
            return Some(place);
        }
        let mut taken: Vec<u16> = self.0.values().copied().collect();
        taken.sort_unstable();
        let gap = (2..).zip(&taken).find(|(place, taken)| place != *taken);
        let next = 2 + taken.len();
        let place = gap.map_or_else(|| u16::try_from(next).ok(), |(place, _)| Some(place));
        let place = place.filter(|place| *place < u16::MAX)?;
        self.0.insert(node.into(), place);
        Some(place)
    }

    /// The node has no gateway router any more.
    pub fn release(&mut self, node: &str) {
        self.0.remove(node);
    }
}

/// The addresses at a place, of the families that there are pods of.
pub fn join_addresses(place: u16, families: &[IpNet]) -> Vec<IpNet> {
    let has = |net: &IpNet| {
        let mut families = families.iter();
        families.any(|it| it.addr().is_ipv4() == net.addr().is_ipv4())
    };
    let networks = JOIN.into_iter().filter_map(|net| net.parse().ok());
    let networks = networks.filter(has);
    networks.map(|net| nth(net, place.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_kept_and_a_free_one_is_taken_again() {
        let mut joins = Joins::default();
        let at = |text: &str| text.parse::<IpNet>().unwrap();
        joins.hold("b", at("100.64.0.3/16"));
        // Others' addresses, the router's own, and another node's.
        for text in [
            "10.0.0.4/16",
            "fd98:1::4/64",
            "100.64.0.1/16",
            "fd98::1/64",
            "100.64.0.3/16",
            "fd98::3/64",
        ] {
            joins.hold("x", at(text));
        }
        assert_eq!(joins.of("x"), None);
        // Of both families the first counts; without IPv4 there is one.
        joins.hold("b", at("fd98::8/64"));
        joins.hold("six", at("fd98::9/64"));
        assert_eq!(["b", "six"].map(|node| joins.of(node)), [Some(3), Some(9)]);
        assert_eq!(
            ["a", "b", "c", "a"].map(|node| joins.take(node)),
            [2, 3, 4, 2].map(Some)
        );
        joins.release("b");
        assert_eq!(joins.take("d"), Some(3));
        let both = ["10.244.0.0/24", "fd00:10:244::/64"].map(at);
        let addresses = join_addresses(258, &both);
        assert_eq!(addresses, ["100.64.1.2/16", "fd98::102/64"].map(at));
        assert_eq!(join_addresses(2, &both[..1]), [at("100.64.0.2/16")]);
    }
}
