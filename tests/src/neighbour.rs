//! A machine beside a node: from where its ports are reached as from outside.

use std::net::{IpAddr, Ipv4Addr};

use crate::TestNode;
use crate::failure::{OrFail, Step};
use crate::node::run_in;
use crate::place::Place;

const LINK: &str = "outside";
const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const OWN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// A machine whose way to everything is a node that forwards. Dropping it takes the link away.
#[derive(Debug)]
pub struct Neighbour<'node> {
    node: &'node TestNode,
    place: Place,
}

impl<'node> Neighbour<'node> {
    /// Links it to the node, and has the node forward IPv4.
    #[track_caller]
    pub fn of(node: &'node TestNode) -> Neighbour<'node> {
        let forward = || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1");
        node.place()
            .run(forward)
            .step(|| "set ip_forward")
            .or_fail();
        let place = node.place().with_new_network();
        let namespace = place.network_path();
        let ip = |place: &Place, line: &str| run_in(place, "ip", line);
        let link = format!("link add {LINK} type veth peer name eth0 netns {namespace}");
        ip(node.place(), &link).or_fail();
        for (place, link, own) in [(node.place(), LINK, NODE), (&place, "eth0", OWN)] {
            ip(place, &format!("address add {own}/24 dev {link}")).or_fail();
            ip(place, &format!("link set {link} up")).or_fail();
        }
        ip(&place, &format!("route add default via {NODE}")).or_fail();
        Neighbour { node, place }
    }

    /// Where its programs run.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Its own address.
    pub fn address(&self) -> IpAddr {
        OWN.into()
    }

    /// The node's address on the link between them.
    pub fn node_address(&self) -> IpAddr {
        NODE.into()
    }
}

impl Drop for Neighbour<'_> {
    fn drop(&mut self) {
        // The link goes with the node at the latest.
        let _ = self.node.run("ip", format!("link delete {LINK}"));
    }
}
