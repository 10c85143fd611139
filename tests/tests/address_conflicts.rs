//! Addresses of a physical network that other hosts have: asked for before a pod uses one, and
//! defended afterwards.

use std::net::Ipv6Addr;

use podwire_tests::apiserver::ApiServer;
use podwire_tests::frames::{self, ALL_NODES, Capture};
use podwire_tests::physical::{HOST, Outside};
use podwire_tests::scrape::Scrape;
use podwire_tests::{Agent, AgentOptions, Pod, TestNode, links, traffic};
use serde_json::{Value, json};

const IPV4: &str = "198.51.100.7";
const IPV6: &str = "2001:db8::7";
/// A MAC address of no link.
const THIEF: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// A network on br1 whose pods have these addresses.
fn conf(addresses: &[&str]) -> Value {
    let addresses: Vec<Value> = addresses
        .iter()
        .map(|address| json!({ "address": address }))
        .collect();
    json!({
        "cniVersion": "1.0.0", "name": "vlan100", "type": "podwire-cni", "bridge": "br1",
        "vlan": 100, "ipam": {"type": "static", "addresses": addresses},
    })
}

fn both() -> Value {
    conf(&["198.51.100.7/24", "2001:db8::7/64"])
}

fn claims(agent: &Agent<'_>) -> f64 {
    let (_, page) = agent.get("/metrics");
    let page = Scrape::parse(&page).unwrap();
    page.value("podwire_address_claims_total", &[]).unwrap()
}

/// Has the host outside say that the pod's address is another MAC address'.
fn claim(outside: &Outside<'_>) {
    let frame = frames::arp_announcement(THIEF, IPV4.parse().unwrap());
    frames::send(outside.place(), "eth0", &[frame]).unwrap();
}

/// The ARP packets among frames of a MAC address: sender's and target's address.
fn arp_of(frames: &[Vec<u8>], mac: &[u8]) -> Vec<[Vec<u8>; 2]> {
    let arp = frames
        .iter()
        .filter(|it| it[12..14] == [8, 6] && it[6..12] == *mac);
    arp.map(|it| [it[28..32].to_vec(), it[38..42].to_vec()])
        .collect()
}

fn mac_of(pod: &Pod<'_>) -> [u8; 6] {
    links::mac(pod.place(), "net1")
}

fn is_announced_by(frame: &[u8], mac: &[u8]) -> bool {
    frame[12..14] == [8, 6] && frame[6..12] == *mac && frame[28..32] == frame[38..42]
}

#[test]
fn an_address_that_a_host_has_is_refused_with_that_host_and_nothing_is_left() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let _agent = node.start_agent(&AgentOptions::default());
    for (address, length) in [(IPV4, 24), (IPV6, 64)] {
        let neighbour = outside.neighbour(address);
        let pod = outside.pod("web");
        let conf = conf(&[&format!("{address}/{length}")]);
        let error = pod.exec("ADD", &conf).error();
        assert_eq!(error.code, 102, "{error:?}");
        let holder = links::find(&neighbour, "eth0").unwrap().mac;
        error.assert_names(&[address, "net1", &holder, "vlan100", "br1", "100"]);
        pod.exec("DEL", &conf).success();
        node.run("ip", "link delete wire-2");
        node.vsctl("del-port br1 wire-2");
        outside.assert_no_leftovers();
    }
}

#[test]
fn an_address_is_asked_for_three_times_before_anybody_hears_whose_it_is() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let _agent = node.start_agent(&AgentOptions::default());
    let pod = outside.pod("web");
    let capture = Capture::on(outside.place(), "eth0").unwrap();
    let result = pod.exec("ADD", &both()).success();
    let mac = mac_of(&pod);
    let before = capture.until(|frame| is_announced_by(frame, &mac)).unwrap();
    let probe = [vec![0; 4], vec![198, 51, 100, 7]];
    assert_eq!(arp_of(&before, &mac), [&probe; 3].map(Clone::clone));
    let own: Ipv6Addr = IPV6.parse().unwrap();
    let asks = |it: &&Vec<u8>| frames::is_icmpv6(it, 135) && it[62..78] == own.octets();
    let asked: Vec<_> = before.iter().filter(asks).collect();
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|it| it[22..38] == [0; 16]), "{asked:?}");
    let has = links::addresses(pod.place(), "net1");
    for net in ["198.51.100.7/24", "2001:db8::7/64"] {
        assert!(has.contains(&net.to_owned()), "{has:?}");
    }
    traffic::ping(pod.place(), HOST.parse().unwrap(), 1).unwrap();
    let mut with_prev = both();
    with_prev["prevResult"] = result;
    pod.exec("CHECK", &with_prev).success();
    pod.exec("DEL", &both()).success();
    outside.assert_no_leftovers();
}

#[test]
fn a_claim_to_a_pods_address_is_answered_once_and_told_by_a_restarted_agent_too() {
    let (node, server) = ApiServer::beside_a_node();
    let outside = Outside::of(&node);
    let agent = node.start_agent(
        &server
            .watched_by("n1", "30")
            .with("--log info,podwire::attach=debug"),
    );
    let pod = outside.pod("web");
    pod.exec("ADD", &both()).success();
    let mac = mac_of(&pod);
    let said = "another host says that the pod's address is its own";

    let capture = Capture::on(outside.place(), "eth0").unwrap();
    (0..5).for_each(|_| claim(&outside));
    let answered = |frame: &[u8]| is_announced_by(frame, &mac);
    capture.until(answered).unwrap();
    agent.await_log(said);
    let log = agent.log();
    assert!(
        log.contains(IPV4) && log.contains("02:00:00:00:00:09"),
        "{log}"
    );
    assert_eq!(claims(&agent), 1.0);
    let events = server.await_events("an Event", |events| !events.is_empty());
    assert_eq!(events[0]["reason"], "AddressConflict");
    assert_eq!(events[0]["involvedObject"]["name"], "web");
    assert_eq!(events[0]["involvedObject"]["uid"], pod.uid.as_str());
    let message = events[0]["message"].as_str().unwrap();
    assert!(
        message.contains(IPV4) && message.contains("net1"),
        "{message}"
    );

    // What it would still have answered is behind it.
    let agent = agent.kill_and_restart();
    agent.await_ready(true);
    agent.await_log("addresses are defended");
    claim(&outside);
    let between = capture.until(answered).unwrap();
    let answers = between.iter().filter(|it| answered(it)).count();
    assert_eq!(answers, 0);
    pod.exec("DEL", &both()).success();
    outside.assert_no_leftovers();
}

#[test]
fn a_neighbours_advertisement_of_a_pods_address_is_answered() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let agent = node.start_agent(&AgentOptions::default().with("--log info,podwire::attach=debug"));
    let pod = outside.pod("web");
    pod.exec("ADD", &both()).success();
    agent.await_log("addresses are defended");
    let own: Ipv6Addr = IPV6.parse().unwrap();
    let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend(own.octets());
    message.extend([2, 1]);
    message.extend(THIEF);
    let capture = Capture::on(outside.place(), "eth0").unwrap();
    links::await_link_local(outside.place(), "eth0");
    frames::send_icmpv6(outside.place(), "eth0", &message, ALL_NODES).unwrap();
    let mac = mac_of(&pod);
    let answer =
        |it: &[u8]| frames::is_icmpv6(it, 136) && it[62..78] == own.octets() && it[80..86] == mac;
    capture.until(answer).unwrap();
    assert_eq!(claims(&agent), 1.0);
    pod.exec("DEL", &both()).success();
    outside.assert_no_leftovers();
}

#[test]
fn a_namespace_that_is_gone_is_not_kept_by_its_defence() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let options = AgentOptions::default().with("--gc-grace 1 --log info,podwire::attach=debug");
    let agent = node.start_agent(&options);
    let mut pod = outside.pod("web");
    pod.exec("ADD", &both()).success();
    agent.await_log("addresses are defended");
    pod.remove_netns();
    agent.await_log("removed, because no DEL came for it");
    outside.assert_no_leftovers();
}
