//! What this machine needs for itself, and whether a network of pods or services would take it.
//!
//! A route to pods that covers the default gateway or a neighbour cuts the machine off, and nobody
//! can log in to undo it. So these are compared before anything is changed; any overlap counts,
//! whichever of the two is larger, as pods with such addresses can't be reached from this machine.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use podwire_cluster::address::overlap;

/// A network or an address that this machine needs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct InUse {
    /// The network; of an address, the one with the address alone.
    pub net: IpNet,
    /// What it is.
    pub by: By,
}

/// What a network or an address is for the machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// A next hop of its routes.
    Gateway,
    /// A network that is connected by this link, or an address of the link.
    Link(String),
    /// A server, such as the API server.
    Server(String),
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.by {
            By::Link(link) => write!(f, "{} of link {link}", self.net),
            By::Gateway => write!(f, "gateway {}", self.net.addr()),
            By::Server(server) => write!(f, "{server} {}", self.net.addr()),
        }
    }
}

/// What a network would take from this machine, as text; None if it takes nothing.
pub fn taken<'a>(net: &IpNet, in_use: impl Iterator<Item = &'a InUse>) -> Option<String> {
    /// The number of those that are named.
    const NAMED: usize = 4;
    let mut taken: Vec<&InUse> = in_use.filter(|it| overlap(net, &it.net)).collect();
    taken.sort_by_key(|it| (&it.by, it.net));
    taken.dedup();
    let mut named: Vec<String> = taken.iter().take(NAMED).map(ToString::to_string).collect();
    if taken.len() > NAMED {
        named.push(format!("{} more", taken.len() - NAMED));
    }
    (!named.is_empty()).then(|| format!("this machine itself needs {}", named.join(", ")))
}

/// Why no pods, services or tunnels can have addresses of this network; None if they can.
pub fn not_for_pods(net: &IpNet) -> Option<String> {
    /// The prefix length of the largest networks that are free for private use: 10.0.0.0/8 and
    /// fd00::/8.
    const SHORTEST_PREFIX: u8 = 8;
    if let Some((special, what)) = SPECIAL.iter().find(|(special, _)| overlap(special, net)) {
        return Some(match special.contains(net) {
            true => format!("addresses of {special} are {what}"),
            false => format!("it contains {special}, whose addresses are {what}"),
        });
    }
    (net.prefix_len() < SHORTEST_PREFIX)
        .then(|| format!("it is larger than any private network: /{SHORTEST_PREFIX} at most"))
}

/// Addresses that are no ordinary ones of hosts (RFC 6890).
const SPECIAL: [(IpNet, &str); 9] = [
    (v4([0, 0], 8), "unspecified"),
    (v4([127, 0], 8), "this host's own (loopback)"),
    (v4([169, 254], 16), "link-local"),
    (v4([224, 0], 4), "for multicast"),
    (v4([240, 0], 4), "reserved"),
    (
        v6(0, 0, 96),
        "unspecified, loopback, or IPv4 addresses in IPv6's form",
    ),
    (v6(0, 0xffff, 96), "IPv4 addresses in IPv6's form"),
    (v6(0xfe80, 0, 10), "link-local"),
    (v6(0xff00, 0, 8), "for multicast"),
];

const fn v4(start: [u8; 2], prefix_len: u8) -> IpNet {
    let ip = Ipv4Addr::new(start[0], start[1], 0, 0);
    IpNet::new_assert(IpAddr::V4(ip), prefix_len)
}

const fn v6(start: u16, sixth: u16, prefix_len: u8) -> IpNet {
    let ip = Ipv6Addr::new(start, 0, 0, 0, 0, sixth, 0, 0);
    IpNet::new_assert(IpAddr::V6(ip), prefix_len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn networks_that_no_pod_can_be_in_are_known() {
        for bad in [
            "0.0.0.0/0",
            "0.0.0.0/1",
            "128.0.0.0/1",
            "64.0.0.0/2",
            "64.0.0.0/3",
            "0.1.0.0/16",
            "127.0.0.0/8",
            "127.5.0.0/24",
            "169.254.7.0/24",
            "168.0.0.0/7",
            "224.1.0.0/16",
            "239.0.0.0/8",
            "240.0.0.0/8",
            "255.255.255.0/24",
            "::/0",
            "::/1",
            "8000::/1",
            "2000::/3",
            "::/64",
            "::ffff:10.0.0.0/104",
            "fe80::/64",
            "febf::/64",
            "ff02::/64",
        ] {
            assert!(not_for_pods(&net(bad)).is_some(), "{bad}");
        }
        for good in [
            "10.0.0.0/8",
            "192.168.0.0/16",
            "100.64.0.0/10",
            "203.0.113.0/24",
            "fd00::/8",
            "2001:db8::/32",
        ] {
            assert_eq!(not_for_pods(&net(good)), None, "{good}");
        }
    }

    #[test]
    fn what_is_taken_is_named_once_gateways_first() {
        let uses = |net: IpNet, by: By| InUse { net, by };
        let link = || By::Link("eth0".to_owned());
        let server = By::Server("API server".to_owned());
        let in_use = [
            uses(net("192.0.2.0/24"), link()),
            uses(net("192.0.2.0/24"), link()),
            uses(net("203.0.113.5/32"), server),
            uses(net("192.0.2.1/32"), By::Gateway),
            uses(net("2001:db8::/64"), link()),
        ];
        let taken = |text: &str| taken(&net(text), in_use.iter());
        for (wanted, said) in [
            (
                "192.0.0.0/16",
                Some("this machine itself needs gateway 192.0.2.1, 192.0.2.0/24 of link eth0"),
            ),
            (
                "192.0.2.128/25",
                Some("this machine itself needs 192.0.2.0/24 of link eth0"),
            ),
            (
                "203.0.113.0/24",
                Some("this machine itself needs API server 203.0.113.5"),
            ),
            (
                "2001:db8::/48",
                Some("this machine itself needs 2001:db8::/64 of link eth0"),
            ),
            ("10.244.0.0/16", None),
            ("fd00::/48", None),
        ] {
            assert_eq!(taken(wanted).as_deref(), said, "{wanted}");
        }
        let many: Vec<InUse> = (0..9)
            .map(|at| uses(net(&format!("10.0.{at}.0/24")), link()))
            .collect();
        let said = super::taken(&net("10.0.0.0/8"), many.iter()).unwrap();
        assert!(said.ends_with("10.0.3.0/24 of link eth0, 5 more"), "{said}");
    }
}
