//! What both modes have in common: who listens where, and how layers are taken away.

use std::net::IpAddr;

use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{Place, Pod};

use crate::catalogue::{DATABASE, HOST, NEIGHBOUR, OTHER, OTHER_NODE, OTHER_STACK, STACK, Scene};
use crate::ears::Ears;

/// Where everybody is.
pub(crate) struct Places<'a> {
    pub(crate) central: &'a Central,
    pub(crate) nodes: &'a [OvnNode; 2],
    /// The link with the node's end of the pod network.
    pub(crate) host_link: &'a str,
    pub(crate) forger: &'a Place,
    pub(crate) beside: &'a Place,
    pub(crate) far: &'a Place,
}

/// Everybody who could hear the forger.
pub(crate) fn ears<'a>(places: &Places<'a>, scene: &Scene) -> Ears<'a> {
    let Scene {
        own,
        neighbour,
        gateway,
        host,
        other,
        ..
    } = scene;
    let [here, there] = places.nodes;
    let outwards = (own.mac, gateway.mac);
    let from_own = |to: IpAddr| (IpAddr::V4(own.v4), to);
    let mut ears = Ears::of(places.forger)
        .link(
            NEIGHBOUR,
            (places.beside, "eth0"),
            (own.mac, neighbour.mac),
            from_own(neighbour.v4.into()),
        )
        .link(
            HOST,
            (here.place(), places.host_link),
            (own.mac, host.mac),
            from_own(host.v4.into()),
        )
        .link(
            OTHER,
            (places.far, "eth0"),
            outwards,
            from_own(other.v4.into()),
        )
        .link(
            OTHER_NODE,
            (there.place(), "eth0"),
            outwards,
            from_own(scene.nodes[1][0]),
        )
        .link(
            DATABASE,
            (places.central.machine().place(), "underlay"),
            outwards,
            from_own(scene.database[0]),
        );
    for (family, from) in own.addresses().into_iter().enumerate() {
        let (this, that) = (scene.nodes[0][family], scene.other_host.addresses()[family]);
        ears = ears
            .stack(STACK, here.place(), outwards, (from, this))
            .stack(OTHER_STACK, there.place(), outwards, (from, that));
    }
    ears
}

/// A node's own addresses.
pub(crate) fn underlay(node: &OvnNode) -> [IpAddr; 2] {
    [node.tunnel_address(), node.underlay_ipv6()].map(|it| it.parse().unwrap())
}

/// Deletes the agent's flows of the pods' bridge.
pub(crate) fn delete_flows(node: &OvnNode) {
    let ours = "cookie=0x706f647700000000/0xffffffff00000000";
    node.run("ovs-ofctl", ["del-flows", "br-int", ours]);
}

/// Removes the node role's rules that drop, which are in these chains.
pub(crate) fn flush_filters(nodes: &[OvnNode; 2], chains: &[&str]) {
    for node in nodes {
        for chain in chains {
            node.run("nft", format!("flush chain inet podwire-node {chain}"));
        }
    }
}

/// Switches the reverse path filter of the host's end of a pod's link off.
pub(crate) fn forget_filter(node: &OvnNode, pod: &Pod<'_>) {
    let path = format!("/proc/sys/net/ipv4/conf/{}/rp_filter", pod.host_link());
    node.run("sh", ["-c", &format!("echo 0 >{path}")]);
}
