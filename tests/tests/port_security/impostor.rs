//! A pod that speaks in another's name.

use std::net::{IpAddr, Ipv4Addr};

use podwire_tests::frames::{ALL_NODES, Capture, is_icmpv6, is_udp_to};
use podwire_tests::{AgentOptions, TestNode, traffic};

use crate::{bytes_of, secured, wired};

const STOLEN_MAC: &str = "0a:58:de:ad:be:ef";

/// Whether a frame is the one that is looked for.
type Heard<'a> = &'a dyn Fn(&[u8]) -> bool;

/// Has one pod say in another's name whatever it can, and tells which of it a third one hears.
fn heard_of_an_impostor(node: &TestNode) -> Vec<&'static str> {
    let (bad, victim, witness) = (
        wired(node, "bad"),
        wired(node, "victim"),
        wired(node, "witness"),
    );
    let capture = Capture::of(witness.place()).unwrap();
    let (own, own4) = (bad.mac.as_str(), bad.v4);

    bad.ip(&format!("link set eth0 address {STOLEN_MAC}"));
    bad.knows(&witness);
    bad.udp(bad.v4.into(), 0, (witness.v4.into(), 1001));
    // On its way back it tells everybody that it has the victim's address
    // (`inetdev_send_gratuitous_arp`).
    let notify = || std::fs::write("/proc/sys/net/ipv4/conf/eth0/arp_notify", "1");
    bad.place().run(notify).unwrap();
    bad.ip(&format!("address add {}/32 dev eth0", victim.v4));
    bad.ip(&format!("link set eth0 address {own}"));
    bad.knows(&witness);
    bad.udp(victim.v4.into(), 0, (witness.v4.into(), 1002));
    bad.ip(&format!("address del {}/32 dev eth0", victim.v4));

    bad.ip(&format!("address add {}/128 dev eth0 nodad", victim.v6));
    bad.udp(victim.v6.into(), 0, (witness.v6.into(), 1003));
    bad.ip(&format!("address del {}/128 dev eth0", victim.v6));

    let mut advertisement = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    advertisement.extend(victim.v6.octets());
    advertisement.extend([2, 1]);
    advertisement.extend(bytes_of(own));
    bad.icmpv6(&advertisement, ALL_NODES);
    let router = [134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    bad.icmpv6(&router, ALL_NODES);
    let redirect = [&[137, 0, 0, 0, 0, 0, 0, 0][..], &[0; 32]].concat();
    bad.icmpv6(&redirect, ALL_NODES);
    bad.icmpv6(
        &[
            130, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ],
        ALL_NODES,
    );
    bad.udp(own4.into(), 67, (Ipv4Addr::BROADCAST.into(), 68));

    // What it says for itself is heard, and comes last.
    bad.udp(own4.into(), 0, (witness.v4.into(), 1009));
    let frames = capture.until(|frame| is_udp_to(frame, 1009)).unwrap();
    let (stolen, own) = (bytes_of(STOLEN_MAC), bytes_of(own));
    let said: [(&str, Heard); 9] = [
        ("with a stolen MAC", &|it| it[6..12] == stolen),
        ("with a stolen IPv4 address", &|it| is_udp_to(it, 1002)),
        ("with a stolen IPv6 address", &|it| {
            it[12..14] == [0x86, 0xdd] && it[22..38] == victim.v6.octets() && it[6..12] == own
        }),
        ("ARP for a stolen address", &|it| {
            it[12..14] == [0x08, 0x06] && it[28..32] == victim.v4.octets() && it[22..28] == own
        }),
        ("ND for a stolen address", &|it| {
            is_icmpv6(it, 136) && it[62..78] == victim.v6.octets() && it[6..12] == own
        }),
        ("as a router", &|it| is_icmpv6(it, 134)),
        ("as a router that redirects", &|it| is_icmpv6(it, 137)),
        ("as a querier", &|it| is_icmpv6(it, 130) && it[6..12] == own),
        ("as a DHCP server", &|it| is_udp_to(it, 68)),
    ];
    let is_heard = |what: &&(&str, Heard)| frames.iter().any(|it| what.1(it));
    said.iter().filter(is_heard).map(|what| what.0).collect()
}

#[test]
fn nobody_hears_what_a_pod_says_in_anothers_name() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    assert_eq!(heard_of_an_impostor(&node), Vec::<&str>::new());
}

/// Also what proves the test above: all of it passes the bridge when nothing stops it.
#[test]
fn without_port_security_everybody_hears_it() {
    let node = TestNode::with_ovs();
    let options = AgentOptions::default().with("--no-port-security");
    let _agent = node.start_agent(&options);
    assert_eq!(heard_of_an_impostor(&node).len(), 9);
    let flows = node.appctl("bridge/dump-flows br-int");
    assert!(!flows.contains("goto_table:240"), "{flows}");
}

#[test]
fn nobody_hears_it_after_ovs_vswitchd_and_the_bridge_were_begun_anew() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let before = wired(&node, "before");
    node.kill_vswitchd();
    node.start_vswitchd();
    agent.await_ready(true);
    assert_eq!(heard_of_an_impostor(&node), Vec::<&str>::new());
    node.vsctl("del-br br-int");
    let after = wired(&node, "after");
    // The agent makes the port of one that was there as well.
    node.await_ofport(before.pod.host_link()).unwrap();
    for to in [IpAddr::V4(before.v4), IpAddr::V6(before.v6)] {
        traffic::ping_until_answered(after.place(), to).unwrap();
        traffic::tcp_echo(after.place(), before.place(), to, 1 << 16).unwrap();
    }
    assert_eq!(secured(&node, &before.mac), 1);
}
