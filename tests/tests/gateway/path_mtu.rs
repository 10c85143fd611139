//! Whoever sends a packet that is too large for a part of its path is told so, in both directions,
//! and what it sends again arrives.

use std::process::Command;

use super::*;

/// UDP in a packet of the underlay's MTU, less the headers of both families.
const LARGE: [usize; 2] = [1500 - 20 - 8, 1500 - 40 - 8];
/// Linux, asm-generic/errno.h: EMSGSIZE.
const TOO_LARGE: i32 = 90;

/// Sends to the peer of a connected socket until the kernel knows that it is too much.
#[track_caller]
fn assert_refused(socket: &UdpSocket, bytes: usize) {
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.send(&vec![b'x'; bytes]).unwrap();
    let told = socket.recv(&mut [0; 8]).unwrap_err();
    assert_eq!(told.raw_os_error(), Some(TOO_LARGE), "{told}");
}

/// A client elsewhere and a server at this address that have exchanged a datagram.
#[track_caller]
fn exchanged(from: &Place, at: &Place, address: IpAddr) -> [UdpSocket; 2] {
    let any = match address {
        IpAddr::V4(_) => "0.0.0.0:0",
        IpAddr::V6(_) => "[::]:0",
    };
    let server = at.run(|| UdpSocket::bind((address, 0))).unwrap();
    let client = from.run(|| UdpSocket::bind(any)).unwrap();
    client.connect(server.local_addr().unwrap()).unwrap();
    server.set_read_timeout(Some(LIMIT)).unwrap();
    client.send(b"who").unwrap();
    let (_, peer) = server.recv_from(&mut [0; 8]).unwrap();
    server.connect(peer).unwrap();
    [client, server]
}

/// What is sent now is sent in pieces, each as small as the path takes.
#[track_caller]
fn assert_arrives(from: &UdpSocket, to: &UdpSocket, bytes: usize) {
    to.set_read_timeout(Some(LIMIT)).unwrap();
    from.send(&vec![b'y'; bytes]).unwrap();
    let received = to.recv(&mut vec![0; bytes + 1]).unwrap();
    assert_eq!(received, bytes);
}

/// A network beyond the outside, by a link with a smaller MTU than pods have.
#[track_caller]
fn beyond(cluster: &Cluster) -> (Place, [IpAddr; 2]) {
    let machine = cluster.central.machine();
    let forward = "echo 1 >/proc/sys/net/ipv4/ip_forward; \
                   echo 1 >/proc/sys/net/ipv6/conf/all/forwarding";
    machine.run("sh", ["-c", forward]);
    let beyond = machine.place().with_new_network();
    let target = beyond.network_path();
    let narrow = "mtu 1300 type veth peer name beyond mtu 1300";
    machine.run("ip", format!("link add narrow {narrow} netns {target}"));
    for line in [
        "address add 203.0.113.1/24 dev narrow",
        "address add 2001:db8:203::1/64 dev narrow nodad",
        "link set narrow up",
    ] {
        machine.run("ip", line);
    }
    for line in [
        "address add 203.0.113.2/24 dev beyond",
        "address add 2001:db8:203::2/64 dev beyond nodad",
        "link set beyond up",
        "route add default via 203.0.113.1",
        "-6 route add default via 2001:db8:203::1",
    ] {
        let done = beyond.run(|| Command::new("ip").args(line.split(' ')).status());
        assert!(done.unwrap().success(), "{line}");
    }
    let addresses = ["203.0.113.2", "2001:db8:203::2"];
    (beyond, addresses.map(|it| it.parse().unwrap()))
}

/// In both directions, by UDP and TCP, over both families.
#[track_caller]
pub(super) fn assert_told(cluster: &Cluster, pod: &Place) {
    for (outside, large) in OUTSIDE.iter().zip(LARGE) {
        let [inner, outer] = exchanged(pod, cluster.outside(), outside.parse().unwrap());
        assert_refused(&outer, large);
        assert_arrives(&outer, &inner, large);
        assert_arrives(&outer, &inner, 1000);
    }
    let (place, addresses) = beyond(cluster);
    for address in addresses {
        traffic::ping_until_answered(pod, address).unwrap();
        let [inner, outer] = exchanged(pod, &place, address);
        // A packet that a pod may send, and too much for the link beyond. Its pieces would get
        // lost: Open vSwitch's userspace datapath puts them together.
        assert_refused(&inner, 1320);
        assert_arrives(&inner, &outer, 1000);
        traffic::tcp_echo(pod, &place, address, 1 << 18).unwrap();
    }
}
