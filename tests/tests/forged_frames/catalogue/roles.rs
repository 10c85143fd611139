//! What only routers, servers and queriers say.

use std::net::{IpAddr, Ipv4Addr};

use podwire_tests::frames::ALL_NODES;

use super::{Catalogue, DHCP, QUERY, REDIRECT, ROUTER, Scene, link_layer, nonce};
use crate::build::{BROADCAST, icmp, igmp_query, mac_of_group, udp, with_hop_by_hop};

/// What only routers, servers and queriers say.
pub(super) fn roles(scene: &Scene, all: &mut Catalogue) {
    let Scene {
        own,
        neighbour,
        gateway,
        host,
        ..
    } = scene;
    let own_link_local = IpAddr::from(own.link_local());
    let receivers = |group: IpAddr| {
        [
            ("all", mac_of_group(group), group),
            ("the neighbour", neighbour.mac, neighbour.like(group)),
            ("the node", host.mac, host.like(group)),
        ]
    };
    for (name, mac, to) in receivers(ALL_NODES.into()) {
        let macs = (own.mac, mac);
        let advertisement = |tag: &[u8]| {
            // Hop limit 64, a router for half an hour.
            let body = [&[0; 8][..], &link_layer(1, own.mac), &nonce(tag)].concat();
            icmp(macs, (own_link_local, to), (134, 0, [64, 0, 7, 8]), &body)
        };
        all.add(ROUTER, &format!("to {name}"), advertisement);
        all.add(
            ROUTER,
            &format!("with a hop-by-hop header, to {name}"),
            |tag| with_hop_by_hop(advertisement(tag)),
        );
        all.add(QUERY, &format!("MLD, to {name}"), |tag| {
            let body = [&[0; 16][..], tag].concat();
            icmp(macs, (own_link_local, to), (130, 0, [0, 1, 0, 0]), &body)
        });
        all.add(DHCP, &format!("DHCPv6, to {name}"), |tag| {
            udp(macs, (own_link_local, 547), (to, 546), tag)
        });
        all.add(REDIRECT, &format!("ICMPv6, to {name}"), |tag| {
            let (target, destination) = (own.link_local(), gateway.v6);
            let body = [target.octets(), destination.octets()].concat();
            let body = [&body[..], &link_layer(2, own.mac), &nonce(tag)].concat();
            icmp(macs, (own_link_local, to), (137, 0, [0; 4]), &body)
        });
    }
    let all_hosts = Ipv4Addr::new(224, 0, 0, 1);
    all.add(QUERY, "IGMP", |tag| {
        igmp_query(
            (own.mac, mac_of_group(all_hosts.into())),
            own.v4,
            all_hosts,
            tag,
        )
    });
    let everybody = Ipv4Addr::BROADCAST;
    all.add(DHCP, "DHCP, to all", |tag| {
        udp(
            (own.mac, BROADCAST),
            (own.v4.into(), 67),
            (everybody.into(), 68),
            tag,
        )
    });
    for (name, to) in [("neighbour", neighbour), ("node", host)] {
        let macs = (own.mac, to.mac);
        all.add(DHCP, &format!("DHCP, to the {name}"), |tag| {
            udp(macs, (own.v4.into(), 67), (to.v4.into(), 68), tag)
        });
        all.add(REDIRECT, &format!("ICMP, to the {name}"), |tag| {
            // To this very pod; with the packet of the receiver's that it is about.
            let about = udp(macs, (to.v4.into(), 1001), (gateway.v4.into(), 1001), tag);
            let head = (5, 1, own.v4.octets());
            icmp(macs, (own.v4.into(), to.v4.into()), head, &about[14..])
        });
    }
}
