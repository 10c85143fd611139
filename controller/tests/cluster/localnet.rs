//! Localnet networks by packets: what hosts outside and pods hear of each other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use podwire_tests::frames::{self, ALL_NODES, Capture};
use podwire_tests::ovn::OvnNode;
use podwire_tests::physical::{HOST, HOST6, Outside};
use podwire_tests::{Pod, conf, links, run_in, traffic};
use serde_json::{Value, json};

use crate::networks::{assigned, definition};
use crate::packets::Network;

const LAN: &str = "lan";

/// A localnet network by VLAN 100 of the first node's br1.
fn lan<'a>(network: &'a Network, subnets: &str) -> Outside<'a> {
    let node: &OvnNode = &network.nodes[0];
    let outside = Outside::of(node);
    node.set_key("ovn-bridge-mappings", "physnet:br1");
    let lan = json!({
        "topology": "localnet", "physicalNetworkName": "physnet", "vlanID": 100,
        "subnets": subnets,
    });
    network.server.apply(definition(LAN, LAN, &lan));
    outside
}

/// As Multus has it from the definition.
fn multus() -> Value {
    let mut conf = conf();
    conf["name"] = json!(LAN);
    conf["netAttachDefName"] = json!(format!("default/{LAN}"));
    conf["topology"] = json!("localnet");
    conf["physicalNetworkName"] = json!("physnet");
    conf
}

/// A frame of UDP over IPv4 to everybody, with a word that tells it from others.
fn udp(mac: [u8; 6], (from, to): (&str, &str), ports: (u16, u16), word: &[u8; 4]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(mac);
    frame.extend([8, 0, 0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0]);
    for address in [from, to] {
        frame.extend(address.parse::<Ipv4Addr>().unwrap().octets());
    }
    let sum: u32 = frame[14..34]
        .chunks(2)
        .map(|it| u32::from(it[0]) << 8 | u32::from(it[1]))
        .sum();
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    for port in [ports.0, ports.1, 12, 0] {
        frame.extend(port.to_be_bytes());
    }
    frame.extend(word);
    frame
}

/// The same over IPv6, from its discard port to that of all nodes.
fn udp6(mac: [u8; 6], from: &str, word: &[u8; 4]) -> Vec<u8> {
    let message = [&[0, 9, 0, 9, 0, 12, 0, 0], &word[..]].concat();
    ipv6(mac, from, (17, 64), &message)
}

/// An advertisement to all nodes that an address is this MAC address'.
fn advertisement(mac: [u8; 6], from: &str, target: &str) -> Vec<u8> {
    let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend(target.parse::<Ipv6Addr>().unwrap().octets());
    message.extend([2, 1]);
    message.extend(mac);
    ipv6(mac, from, (58, 255), &message)
}

/// An IPv6 packet to all nodes; nobody looks at its message's checksum.
fn ipv6(mac: [u8; 6], from: &str, (protocol, hops): (u8, u8), message: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x33, 0x33, 0, 0, 0, 1];
    frame.extend(mac);
    frame.extend([
        0x86,
        0xdd,
        0x60,
        0,
        0,
        0,
        0,
        u8::try_from(message.len()).unwrap(),
    ]);
    frame.extend([protocol, hops]);
    for address in [from.parse().unwrap(), ALL_NODES] {
        frame.extend(address.octets());
    }
    frame.extend(message);
    frame
}

/// An ARP announcement by a MAC address, sent from another one.
fn claim(of: [u8; 6], from: [u8; 6], address: &str) -> Vec<u8> {
    let mut frame = frames::arp_announcement(of, address.parse().unwrap());
    frame[6..12].copy_from_slice(&from);
    frame
}

/// The question whether somebody has an address, from no address.
fn probe(of: [u8; 6], from: [u8; 6]) -> Vec<u8> {
    let mut frame = claim(of, from, "198.51.100.9");
    frame[28..32].copy_from_slice(&[0; 4]);
    frame
}

/// The pod's ADD is refused, as the host outside has its address.
#[track_caller]
fn assert_refused(pod: &Pod<'_>, outside: &Outside<'_>, address: &str) {
    let error = pod.exec("ADD", &multus()).error();
    assert_eq!(error.code, 102, "{error:?}");
    let holder = links::find(outside.place(), "eth0").unwrap().mac;
    error.assert_names(&[address, "net1", &holder, LAN, "physnet"]);
}

/// Sends frames from the pod, one that ends with `true` last, and gives what the host outside
/// hears until then.
#[track_caller]
fn heard(pod: &Pod<'_>, outside: &Outside<'_>, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let capture = Capture::on(outside.place(), "eth0").unwrap();
    frames::send(pod.place(), "net1", frames).unwrap();
    capture.until(|frame| frame.ends_with(b"true")).unwrap()
}

fn assert_none_heard(forged: &[Vec<u8>], heard: &[Vec<u8>]) {
    for (number, frame) in forged.iter().enumerate() {
        assert!(
            !heard.iter().any(|it| it.starts_with(frame)),
            "{number}: {heard:?}"
        );
    }
}

fn mac_of(pod: &Pod<'_>) -> [u8; 6] {
    links::mac(pod.place(), "net1")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_a_host_outside_has_is_refused_and_leads_no_other_pod_astray() {
    let (network, controller) = Network::start(&[]);
    let agents = network.start_agents();
    let outside = lan(&network, "198.51.100.0/24");
    let (first, addresses) = assigned(&network, 0, "first", LAN);
    assert_eq!(addresses, [HOST.parse::<IpAddr>().unwrap()]);
    assert_refused(&first, &outside, HOST);

    // That pod still has its logical port.
    let (second, addresses) = assigned(&network, 0, "second", LAN);
    second.exec("ADD", &multus()).success();
    traffic::ping_until_answered(second.place(), HOST.parse().unwrap()).unwrap();
    traffic::ping_until_answered(outside.place(), addresses[0]).unwrap();
    let (third, _) = assigned(&network, 0, "third", LAN);
    third.exec("ADD", &multus()).success();
    traffic::ping_until_answered(third.place(), addresses[0]).unwrap();
    drop(agents);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_but_arp_leaves_from_no_address_and_nothing_from_anothers() {
    let (network, controller) = Network::start(&[]);
    let agents = network.start_agents();
    let outside = lan(&network, "198.51.100.0/28");
    let (_taken, _) = assigned(&network, 0, "taken", LAN);
    let (pod, addresses) = assigned(&network, 0, "pod", LAN);
    pod.exec("ADD", &multus()).success();
    traffic::ping_until_answered(pod.place(), HOST.parse().unwrap()).unwrap();
    network.central.sync();

    let (mac, own) = (mac_of(&pod), addresses[0].to_string());
    let thief = [2, 0, 0, 0, 0, 9];
    let all = "255.255.255.255";
    let forged = [
        udp(mac, ("198.51.100.9", all), (9, 9), b"lies"),
        udp(mac, ("0.0.0.0", all), (9, 9), b"lies"),
        udp(mac, ("0.0.0.0", all), (68, 67), b"lies"),
        udp(mac, ("0.0.0.0", "198.51.100.1"), (68, 67), b"lies"),
        udp(thief, (&own, all), (9, 9), b"lies"),
        udp6(mac, "2001:db8:1::9", b"lies"),
        claim(mac, mac, "198.51.100.9"),
        claim(mac, mac, HOST),
        claim(thief, thief, &own),
        claim(thief, mac, &own),
        probe(thief, thief),
        probe(thief, mac),
    ];
    let asking = probe(mac, mac);
    let own = [asking.clone(), udp(mac, (&own, all), (9, 9), b"true")];
    let heard = heard(&pod, &outside, &[&forged[..], &own].concat());
    assert_none_heard(&forged, &heard);
    let is_asking = |it: &Vec<u8>| it.starts_with(&asking);
    assert!(heard.iter().any(is_asking), "{heard:?}");
    drop(agents);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_and_hosts_outside_reach_each_other_by_ipv6_from_their_own_addresses_alone() {
    let (network, controller) = Network::start(&[]);
    let agents = network.start_agents();
    let outside = lan(&network, "2001:db8:1::/64");
    let router = outside.advertise("prefix 2001:db8:1::/64 { };");
    let (first, addresses) = assigned(&network, 0, "first", LAN);
    let host: IpAddr = HOST6.parse().unwrap();
    assert_eq!(addresses, [host]);
    assert_refused(&first, &outside, HOST6);

    let (pod, addresses) = assigned(&network, 0, "pod", LAN);
    let own = addresses[0];
    pod.exec("ADD", &multus()).success();
    traffic::ping_until_answered(outside.place(), own).unwrap();
    traffic::ping_until_answered(pod.place(), host).unwrap();
    traffic::tcp_echo(pod.place(), outside.place(), host, 1 << 16).unwrap();
    network.central.sync();

    let (mac, thief) = (mac_of(&pod), [2, 0, 0, 0, 0, 9]);
    let forged = [
        udp6(mac, "2001:db8:1::9", b"lies"),
        udp6(mac, "::", b"lies"),
        udp6(thief, &own.to_string(), b"lies"),
        advertisement(mac, HOST6, HOST6),
        advertisement(mac, &own.to_string(), HOST6),
        advertisement(thief, &own.to_string(), &own.to_string()),
    ];
    let last = [udp6(mac, &own.to_string(), b"true")];
    let heard = heard(&pod, &outside, &[&forged[..], &last].concat());
    assert_none_heard(&forged, &heard);
    drop((agents, router));
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_addresses_makes_none_of_a_routers_prefix_and_takes_its_routes() {
    let (network, controller) = Network::start(&[]);
    let agents = network.start_agents();
    let outside = lan(&network, "2001:db8:1::/64");
    let behind = "address add 2001:db8:2::1/64 dev eth0 nodad";
    assigned(&network, 0, "host", LAN);
    let (pod, _) = assigned(&network, 0, "pod", LAN);
    run_in(outside.place(), "ip", behind).unwrap();
    let prefixes = "prefix 2001:db8:1::/64 { }; prefix 2001:db8:2::/64 { };";
    let router = outside.advertise(prefixes);
    pod.exec("ADD", &multus()).success();
    links::await_router(pod.place());
    // Its route there is the router's, its address the network's.
    let there = "2001:db8:2::1".parse().unwrap();
    traffic::ping_until_answered(pod.place(), there).unwrap();
    assert_eq!(links::addresses(pod.place(), "net1"), ["2001:db8:1::2/64"]);
    drop((agents, router));
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_without_addresses_takes_those_of_a_routers_prefix() {
    let (network, controller) = Network::start(&[]);
    let agents = network.start_agents();
    let outside = lan(&network, "");
    let router = outside.advertise("prefix 2001:db8:1::/64 { };");
    let (pod, addresses) = assigned(&network, 0, "pod", LAN);
    assert!(addresses.is_empty(), "{addresses:?}");
    pod.exec("ADD", &multus()).success();
    links::await_router(pod.place());
    let own = links::first_address(pod.place(), "net1");
    traffic::ping_until_answered(outside.place(), own).unwrap();
    traffic::ping_until_answered(pod.place(), HOST6.parse().unwrap()).unwrap();
    network.central.sync();

    let (mac, thief) = (mac_of(&pod), [2, 0, 0, 0, 0, 9]);
    let (own, all) = (own.to_string(), "255.255.255.255");
    let forged = [
        udp(thief, ("198.51.100.9", all), (9, 9), b"lies"),
        udp6(thief, &own, b"lies"),
        advertisement(thief, &own, &own),
        claim(thief, mac, "198.51.100.9"),
    ];
    // Of its own MAC address it may send what it likes, also what is not IP.
    let mut other = vec![0xff; 6];
    other.extend(mac);
    other.extend([0x88, 0xb5]);
    other.extend([7; 46]);
    let sent = [
        other,
        udp(mac, ("198.51.100.9", all), (9, 9), b"fine"),
        udp6(mac, "2001:db8:1::9", b"fine"),
        advertisement(mac, "2001:db8:1::9", "2001:db8:1::9"),
        claim(mac, mac, "198.51.100.9"),
    ];
    let last = [udp6(mac, &own, b"true")];
    let heard = heard(&pod, &outside, &[&forged[..], &sent, &last].concat());
    assert_none_heard(&forged, &heard);
    for (number, frame) in sent.iter().enumerate() {
        assert!(
            heard.iter().any(|it| it.starts_with(frame)),
            "{number}: {heard:?}"
        );
    }
    drop((agents, router));
    controller.stop().await.unwrap();
}
