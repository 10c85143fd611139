use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::sys::socket::SockType;

use super::announce::{PacketSocket, device};
use super::*;

const OTHER: MacAddr6 = MacAddr6::new(2, 0, 0, 0, 0, 9);

/// A neighbour solicitation, whose target is last.
fn solicitation(source: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.octets());
    icmpv6(source, ALL_NODES, message)
}

/// Sends packets from the host's end to the pod, and returns those that its claim socket takes.
async fn taken(netlink: &Netlink, claimed: &str, packets: Packets, sent: &[Vec<u8>]) -> Vec<usize> {
    let pod = Pod::new();
    let (host, _) = netlink.attached(&pod, spec("c1")).await.unwrap();
    let claimed: IpAddr = claimed.parse().unwrap();
    let socket = netlink
        .claim_socket(pod.netns(), "eth0", packets, &[claimed])
        .await
        .unwrap();
    let (closer, _to_close) = std::sync::mpsc::channel();
    let wire = PacketSocket::open(SockType::Datagram, &closer).unwrap();
    let ethertype = match packets {
        Packets::Arp => 0x0806,
        _ => 0x86dd,
    };
    let to = device(host.link.ifindex, ethertype, MacAddr6::broadcast());
    // Its carrier has just come; reading it makes it pass packets.
    netlink.host_link(&host.link.name).await.unwrap();
    for packet in sent {
        wire.send(packet, &to).unwrap();
    }
    // The last one of each test is taken: behind it, nothing is on its way.
    let mut taken = Vec::new();
    let mut packet = [0; 256];
    while taken.last() != Some(&(sent.len() - 1)) {
        let (length, _) = socket.receive(&mut packet).await.unwrap();
        let is_it = |it: &Vec<u8>| **it == packet[..length];
        taken.push(sent.iter().position(is_it).unwrap());
    }
    taken
}

#[test]
fn of_arp_only_what_such_a_sender_says_is_received() {
    on_own_host(async |netlink| {
        let (own, other) = (Ipv4Addr::new(10, 1, 2, 3), Ipv4Addr::new(10, 1, 2, 9));
        let sent = [
            (other, own),
            (Ipv4Addr::UNSPECIFIED, own),
            (own, own),
            (other, other),
            (own, other),
        ]
        .map(|(from, target)| arp_request(OTHER, from, target).to_vec());
        assert_eq!(
            taken(&netlink, "10.1.2.3", Packets::Arp, &sent).await,
            [2, 4]
        );
    });
}

#[test]
fn of_ipv6_only_a_neighbours_claim_is_received() {
    on_own_host(async |netlink| {
        let [own, near, other]: [Ipv6Addr; 3] =
            ["fd00:1::3", "fd00:1::4", "fe80::9"].map(|it| it.parse().unwrap());
        let echo = icmpv6(own, ALL_NODES, vec![128, 0, 0, 0, 0, 0, 0, 0]);
        let mut udp = echo.clone();
        udp[6] = 17;
        let sent = [
            echo,
            udp,
            neighbour_advertisement(OTHER, near),
            solicitation(other, own),
            solicitation(Ipv6Addr::UNSPECIFIED, own),
            solicitation(own, near),
            neighbour_advertisement(OTHER, own),
        ];
        assert_eq!(
            taken(&netlink, "fd00:1::3", Packets::Ipv6, &sent).await,
            [5, 6]
        );
    });
}
