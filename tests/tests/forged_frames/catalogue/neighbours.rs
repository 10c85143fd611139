//! In the name of others.

use std::net::{IpAddr, Ipv4Addr};

use etherparse::ArpOperation;
use podwire_tests::frames::ALL_NODES;

use super::{ARP, Catalogue, MAC, ND, SOURCE, Scene, VLAN, link_layer, nonce};
use crate::build::{BROADCAST, arp, icmp, mac_of_group, tagged, udp};

pub(super) fn sources(scene: &Scene, all: &mut Catalogue) {
    let Scene {
        own,
        neighbour,
        gateway,
        host,
        other,
        ..
    } = scene;
    let outside: [IpAddr; 2] = [
        Ipv4Addr::new(198, 51, 100, 7).into(),
        "2001:db8::7".parse().unwrap(),
    ];
    for (to, name) in [(neighbour, "neighbour"), (host, "node")] {
        for address in to.addresses() {
            let from = (own.like(address), 1001);
            all.add(MAC, &format!("to the {name} at {address}"), |tag| {
                udp((other.mac, to.mac), from, (address, 1001), tag)
            });
            all.add(VLAN, &format!("to the {name} at {address}"), |tag| {
                tagged(udp((own.mac, to.mac), from, (address, 1001), tag))
            });
        }
    }
    let receivers = [
        (neighbour, neighbour.mac),
        (host, host.mac),
        (other, gateway.mac),
    ];
    for (to, mac) in receivers {
        for address in to.addresses() {
            let mut stolen = vec![gateway.like(address), host.like(address)];
            stolen.extend(
                outside
                    .iter()
                    .filter(|it| it.is_ipv4() == address.is_ipv4()),
            );
            if to.mac != neighbour.mac {
                stolen.push(neighbour.like(address));
            }
            if to.mac != other.mac {
                stolen.push(other.like(address));
            }
            stolen.retain(|from| *from != address);
            stolen.dedup();
            for from in stolen {
                all.add(SOURCE, &format!("{from} to {address}"), |tag| {
                    udp((own.mac, mac), (from, 1001), (address, 1001), tag)
                });
            }
        }
    }
    let stolen = gateway.link_local();
    all.add(SOURCE, &format!("{stolen} to the neighbour"), |tag| {
        let to = (neighbour.v6.into(), 1001);
        udp((own.mac, neighbour.mac), (stolen.into(), 1001), to, tag)
    });
}

pub(super) fn arp_and_nd(scene: &Scene, all: &mut Catalogue) {
    let Scene {
        own,
        neighbour,
        gateway,
        host,
        other,
        ..
    } = scene;
    let mut stolen = vec![("the gateway's", gateway), ("another pod's", other)];
    if host.mac != gateway.mac {
        stolen.push(("the node's", host));
    }
    for (whose, end) in stolen {
        for (to, name) in [(neighbour, "neighbour"), (host, "node")] {
            if to.mac == end.mac {
                continue;
            }
            let case = format!("{whose}, to the {name}");
            all.add(ARP, &format!("reply with {case}"), |tag| {
                let sender = (own.mac, end.v4);
                arp(
                    (own.mac, to.mac),
                    ArpOperation::REPLY,
                    sender,
                    (to.mac, to.v4),
                    tag,
                )
            });
            all.add(ARP, &format!("request with {case}"), |tag| {
                let sender = (own.mac, end.v4);
                arp(
                    (own.mac, to.mac),
                    ArpOperation::REQUEST,
                    sender,
                    ([0; 6], to.v4),
                    tag,
                )
            });
            all.add(ND, &format!("advertisement of {case}"), |tag| {
                let body = [&end.v6.octets()[..], &link_layer(2, own.mac), &nonce(tag)].concat();
                // Solicited, override.
                let head = (136, 0, [0x60, 0, 0, 0]);
                icmp(
                    (own.mac, to.mac),
                    (own.v6.into(), to.v6.into()),
                    head,
                    &body,
                )
            });
            all.add(ND, &format!("solicitation by {case}"), |tag| {
                let body = [&to.v6.octets()[..], &link_layer(1, own.mac), &nonce(tag)].concat();
                let ends = (end.v6.into(), to.v6.into());
                icmp((own.mac, to.mac), ends, (135, 0, [0; 4]), &body)
            });
        }
        all.add(
            ARP,
            &format!("gratuitous reply with {whose}, to all"),
            |tag| {
                let sender = (own.mac, end.v4);
                arp(
                    (own.mac, BROADCAST),
                    ArpOperation::REPLY,
                    sender,
                    (BROADCAST, end.v4),
                    tag,
                )
            },
        );
        all.add(
            ND,
            &format!("unsolicited advertisement of {whose}, to all"),
            |tag| {
                let body = [&end.v6.octets()[..], &link_layer(2, own.mac), &nonce(tag)].concat();
                let macs = (own.mac, mac_of_group(ALL_NODES.into()));
                icmp(
                    macs,
                    (own.v6.into(), ALL_NODES.into()),
                    (136, 0, [0x20, 0, 0, 0]),
                    &body,
                )
            },
        );
    }
    for (to, name) in [(neighbour, "neighbour"), (host, "node")] {
        let macs = (own.mac, to.mac);
        all.add(
            ARP,
            &format!("reply with another MAC, to the {name}"),
            |tag| {
                let sender = (other.mac, own.v4);
                arp(macs, ArpOperation::REPLY, sender, (to.mac, to.v4), tag)
            },
        );
        all.add(
            ND,
            &format!("advertisement with another MAC, to the {name}"),
            |tag| {
                let body = [&own.v6.octets()[..], &link_layer(2, other.mac), &nonce(tag)].concat();
                let ends = (own.v6.into(), to.v6.into());
                icmp(macs, ends, (136, 0, [0x60, 0, 0, 0]), &body)
            },
        );
        all.add(
            ND,
            &format!("solicitation with another MAC, to the {name}"),
            |tag| {
                let body = [&to.v6.octets()[..], &link_layer(1, other.mac), &nonce(tag)].concat();
                icmp(macs, (own.v6.into(), to.v6.into()), (135, 0, [0; 4]), &body)
            },
        );
    }
}
