//! What a pod might send that it must not.

mod neighbours;
mod nodes;
mod roles;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::build::{Mac, link_local};

/// What is forged, as the first column of the table in docs/security.md has it.
pub(crate) const MAC: &str = "with another MAC address";
pub(crate) const SOURCE: &str = "with another IPv4 or IPv6 address as source";
pub(crate) const ARP: &str = "ARP for another's address, or with another MAC address";
pub(crate) const ND: &str = "neighbour messages for another's address, or with another MAC address";
pub(crate) const VLAN: &str = "with a VLAN tag";
pub(crate) const ROUTER: &str = "router advertisements";
pub(crate) const DHCP: &str = "what DHCP and DHCPv6 servers answer";
pub(crate) const REDIRECT: &str = "ICMP and ICMPv6 redirects";
pub(crate) const QUERY: &str = "IGMP and MLD queries for all groups";
pub(crate) const TUNNEL: &str = "to the tunnels' port of a node";
pub(crate) const CONTROL: &str = "to a database's port of a node";
pub(crate) const PAST: &str = "to the host's end of its own link";

/// A pod, or another end of the pod network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) mac: Mac,
    pub(crate) v4: Ipv4Addr,
    pub(crate) v6: Ipv6Addr,
}

/// Who is where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    /// The forger.
    pub(crate) own: End,
    /// Another pod on its node.
    pub(crate) neighbour: End,
    /// The pods' router.
    pub(crate) gateway: End,
    /// The node's end of the pod network.
    pub(crate) host: End,
    /// A pod of another node.
    pub(crate) other: End,
    /// The other node's end of the pod network.
    pub(crate) other_host: End,
    /// The nodes' own addresses: this one's, the other one's.
    pub(crate) nodes: [[IpAddr; 2]; 2],
    /// The machine with the databases.
    pub(crate) database: [IpAddr; 2],
    /// The databases' ports.
    pub(crate) ports: &'static [u16],
    /// The MAC address of the node's end of the forger's own link.
    pub(crate) host_end: Mac,
}

/// A forged frame, in several parts if it is fragmented.
#[derive(Debug)]
pub(crate) struct Forgery {
    pub(crate) what: &'static str,
    pub(crate) case: String,
    pub(crate) frames: Vec<Vec<u8>>,
    /// What distinguishes it from others wherever it is heard.
    pub(crate) tag: Vec<u8>,
    /// Who hears it on its way to somebody else, without harm.
    pub(crate) passes: &'static [&'static str],
}

/// Who can hear a pod.
pub(crate) const NEIGHBOUR: &str = "a pod beside it";
pub(crate) const OTHER: &str = "a pod of another node";
/// The node's end of the pod network.
pub(crate) const HOST: &str = "the node";
/// What the node's stack accepts.
pub(crate) const STACK: &str = "the node's stack";
/// The other node's NIC.
pub(crate) const OTHER_NODE: &str = "another node";
pub(crate) const OTHER_STACK: &str = "another node's stack";
pub(crate) const DATABASE: &str = "the databases' machine";

const TAG: usize = 16;

fn tag(number: usize) -> Vec<u8> {
    format!("forgery {number:08}").into_bytes()
}

struct Catalogue(Vec<Forgery>);

impl Catalogue {
    fn add(
        &mut self,
        what: &'static str,
        case: &str,
        frame: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> &mut Forgery {
        let tag = tag(self.0.len());
        self.0.push(Forgery {
            what,
            case: case.to_owned(),
            frames: vec![frame(&tag)],
            tag,
            passes: &[],
        });
        self.0.last_mut().expect("it was just pushed")
    }
}

impl Scene {
    /// Who answers the forger.
    pub(crate) fn reachable(&self) -> Vec<IpAddr> {
        let ends = [self.neighbour, self.host, self.other, self.other_host];
        let ends = ends.into_iter().flat_map(|end| end.addresses());
        let machines = self.nodes.into_iter().chain([self.database]).flatten();
        ends.chain(machines).collect()
    }
}

impl End {
    pub(crate) fn addresses(&self) -> [IpAddr; 2] {
        [self.v4.into(), self.v6.into()]
    }

    fn link_local(&self) -> Ipv6Addr {
        link_local(self.mac)
    }

    /// Its address of the same family as another.
    fn like(&self, other: IpAddr) -> IpAddr {
        match other {
            IpAddr::V4(_) => self.v4.into(),
            IpAddr::V6(_) => self.v6.into(),
        }
    }
}

/// Everything, in frames of this scene. `tunnelled` gives the contents of a tunnel packet with a
/// tag, and its UDP port.
pub(crate) fn forgeries(scene: &Scene, tunnelled: impl Fn(&[u8]) -> Vec<u8>) -> Vec<Forgery> {
    let mut all = Catalogue(Vec::new());
    neighbours::sources(scene, &mut all);
    neighbours::arp_and_nd(scene, &mut all);
    roles::roles(scene, &mut all);
    nodes::to_nodes(scene, &tunnelled, &mut all);
    let lengths = all.0.iter().map(|forgery| forgery.tag.len());
    assert!(lengths.min() == Some(TAG));
    all.0
}

/// A neighbour message's option with a tag: a nonce (RFC 3971 §5.3.2).
fn nonce(tag: &[u8]) -> Vec<u8> {
    let mut option = vec![14, 3];
    option.extend(tag);
    option.resize(24, 0);
    option
}

/// The option with a MAC address: a sender's (1) or a target's (2).
fn link_layer(kind: u8, mac: Mac) -> Vec<u8> {
    [&[kind, 1][..], &mac].concat()
}
