//! What is for the nodes themselves.

use std::net::IpAddr;

use super::{CONTROL, Catalogue, HOST, NEIGHBOUR, OTHER_NODE, PAST, Scene, TUNNEL};
use crate::build::{in_fragments, syn, udp};

/// What is for the nodes themselves.
pub(super) fn to_nodes(scene: &Scene, tunnelled: &impl Fn(&[u8]) -> Vec<u8>, all: &mut Catalogue) {
    let Scene {
        own,
        neighbour,
        gateway,
        host,
        other_host,
        nodes,
        database,
        host_end,
        ..
    } = scene;
    let macs = (own.mac, gateway.mac);
    let [this, other] = nodes;
    let ends = [this, other].into_iter().flatten().copied();
    let hosts = host.addresses().into_iter().chain(other_host.addresses());
    let every: Vec<IpAddr> = ends.chain(hosts).collect();
    // Where a node's packet filter decides, its end of the pod network has heard it; so has
    // everybody on a bridge that does not know yet where that is.
    let passes = |to: &IpAddr| -> &'static [&'static str] {
        match other_host.addresses().contains(to) {
            true => &[HOST, NEIGHBOUR, OTHER_NODE],
            false => &[HOST, NEIGHBOUR],
        }
    };
    for &to in &every {
        let mac = if host.addresses().contains(&to) {
            host.mac
        } else {
            gateway.mac
        };
        let forgery = all.add(TUNNEL, &format!("at {to}"), |tag| {
            udp(
                (own.mac, mac),
                (own.like(to), 1001),
                (to, 6081),
                &tunnelled(tag),
            )
        });
        forgery.passes = passes(&to);
    }
    let forgery = all.add(TUNNEL, "in fragments", |tag| {
        let to = (other[0], 6081);
        udp(macs, (own.v4.into(), 1001), to, &tunnelled(tag))
    });
    forgery.frames = in_fragments(&forgery.frames[0]).into();
    forgery.passes = &[HOST, NEIGHBOUR];
    for (to, place) in [(this[0], "this node"), (other[0], "another")] {
        let macs = (own.mac, *host_end);
        for (from, port, name) in [
            (own.v4, 6081, "to the tunnels"),
            (neighbour.v4, 1001, "with another address, to port 1001"),
        ] {
            let forgery = all.add(PAST, &format!("{name} of {place}"), |tag| {
                udp(macs, (from.into(), 1001), (to, port), &tunnelled(tag))
            });
            // Nobody on the bridge is known to have that MAC address.
            forgery.passes = &[HOST, NEIGHBOUR];
        }
    }
    for &to in every.iter().chain(database) {
        let mac = if host.addresses().contains(&to) {
            host.mac
        } else {
            gateway.mac
        };
        for &port in scene.ports {
            let forgery = all.add(CONTROL, &format!("{port} at {to}"), |tag| {
                syn((own.mac, mac), (own.like(to), 1001 + port), (to, port), tag)
            });
            forgery.passes = passes(&to);
        }
    }
}
