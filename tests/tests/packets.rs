//! `podwire capture` and `podwire flows`: packets at a pod's port, and those that are dropped.

use std::fs;
use std::net::IpAddr;

use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::traffic::Requests;
use podwire_tests::{AgentOptions, TestNode, traffic};
use serde_json::Value;

/// The packets of a pcap file with nanoseconds.
fn packets(file: &[u8]) -> Vec<&[u8]> {
    let word = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!((word(0), word(20)), (0xa1b2_3c4d, 1), "magic and link type");
    let (mut at, mut packets) = (24, Vec::new());
    while at < file.len() {
        assert!(word(at) > 1_700_000_000, "no time");
        let length = word(at + 8);
        assert_eq!(length, word(at + 12));
        packets.push(&file[at + 16..at + 16 + length]);
        at += 16 + length;
    }
    packets
}

/// Whether a frame is an ICMP packet of this type and between these.
fn is_echo(frame: &[u8], kind: u8, from: [u8; 4], to: [u8; 4]) -> bool {
    frame.len() > 34
        && frame[12..14] == [8, 0]
        && (frame[23], frame[34]) == (1, kind)
        && frame[26..30] == from
        && frame[30..34] == to
}

#[test]
fn a_capture_has_the_packets_of_both_directions_and_of_no_other_pod() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let [web, db, other] = ["web", "db", "other"].map(|name| node.added_pod(name));
    let (file, few) = (node.path("/run/web.pcap"), node.path("/run/few.pcap"));
    let live = node.podwire_live("capture tests/web --write /run/web.pcap");
    let (from, to) = ([10, 186, 0, 2], [10, 186, 0, 3]);
    let has = |file: &[u8], kind, from, to| {
        let mut all = packets(file).into_iter();
        all.any(|it| is_echo(it, kind, from, to))
    };
    let _noise = Requests::send(other.place(), "10.186.0.3");
    loop {
        traffic::ping(web.place(), IpAddr::from(to), 1).unwrap();
        let seen = fs::read(&file).unwrap_or_default();
        if seen.len() > 24 && has(&seen, 8, from, to) && has(&seen, 0, to, from) {
            break;
        }
    }
    live.terminate();
    assert!(live.await_end().success());
    let seen = fs::read(&file).unwrap();
    assert!(!has(&seen, 8, [10, 186, 0, 4], to), "another pod's");

    let _echoes = Requests::send(db.place(), "10.186.0.2");
    let done = node.podwire("capture web --packets 3 --write /run/few.pcap");
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(done.stderr.contains("3 packets at port "), "{done:?}");
    assert_eq!(packets(&fs::read(&few).unwrap()).len(), 3);
    let done = node.podwire("capture nobody --write /run/none.pcap");
    done.assert_says(Some(4), &["no pod nobody on this node"]);
}

#[test]
fn what_port_security_drops_is_shown_with_its_reason_and_what_passes_is_not() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let [web, _db, _other] = ["web", "db", "other"].map(|name| node.added_pod(name));
    traffic::ping(web.place(), "10.186.0.3".parse().unwrap(), 1).unwrap();
    web.run("ip", "addr add 10.186.0.77/24 dev eth0");
    let _forged = Requests::send(web.place(), "-I 10.186.0.77 10.186.0.3");
    let live = node.podwire_live("flows tests/web --seconds 60 -o json");
    let line = live.await_line(&["port security"]);
    let dropped: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(dropped["direction"], "from", "{line}");
    assert!(dropped["packets"].as_u64() > Some(0), "{line}");
    live.terminate();
    live.await_end();
    let done = node.podwire("flows tests/web --seconds 2");
    done.assert_says(
        Some(1),
        &["from the pod  ", "port security", " dropped in 2 s"],
    );
    let done = node.podwire("flows tests/db --seconds 2");
    done.assert_says(
        Some(1),
        &["to the pod  icmp 10.186.0.77 > 10.186.0.3: port security"],
    );
    let done = node.podwire("flows tests/other --seconds 1");
    assert!(!done.stdout.contains("port security"), "{done:?}");
}

#[test]
fn what_an_acl_drops_is_shown_at_the_pod_for_which_it_was() {
    let (central, node) = Central::with_node();
    let _agent = node.start_agent(&OvnNode::agent_options());
    let [(web, _), (_db, db_port), (_other, _)] =
        [("web", 11), ("db", 12), ("other", 13)].map(|(name, number)| {
            let (pod, port) = central.schedule(&node, name, number);
            pod.add().success();
            (pod, port)
        });
    let address = db_port.ipv4().parse().unwrap();
    traffic::ping_until_answered(web.place(), address).unwrap();
    let drop = "outport==\"tests_db\" && icmp4.type==8";
    let acl = format!(
        "--wait=hv acl-add {} to-lport 1000 '{drop}' drop",
        node.name
    );
    central.nbctl(acl);
    let _requests = Requests::send(web.place(), &address.to_string());
    for (pod, direction) in [("db", "to"), ("web", "from")] {
        let live = node.podwire_live(&*format!("flows {pod} --seconds 60 -o json"));
        let line = live.await_line(&["an ACL: ls_out_acl"]);
        let dropped: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(dropped["direction"], direction, "{line}");
        live.terminate();
        live.await_end();
    }
    let done = node.podwire("flows other --seconds 2");
    assert!(!done.stdout.contains("an ACL"), "{done:?}");
}
