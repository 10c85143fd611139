//! `podwire trace`: what it says of a packet is what becomes of one, in plain mode and through OVN.

use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::process::Finished;
use podwire_tests::{AgentOptions, TestNode, traffic};

const ARRIVES: Option<i32> = Some(0);
const DOES_NOT: Option<i32> = Some(1);

fn trace(node: &TestNode, line: &str) -> Finished {
    node.podwire(format!("trace {line}"))
}

#[test]
fn a_packet_between_two_pods_is_followed_to_the_port_of_the_second() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let [web, db] = ["web", "db"].map(|name| node.added_pod(name));
    let (from, to) = (web.host_link(), db.host_link());
    traffic::ping(web.place(), "10.186.0.3".parse().unwrap(), 1).unwrap();

    let delivered = format!("Open vSwitch delivers it to tests/db by port {to}");
    let head = format!("ICMP echo request 10.186.0.2 > 10.186.0.3, from tests/web by port {from}");
    trace(&node, "tests/web db").assert_says(ARRIVES, &[&head, &delivered]);
    let by_id = format!("{} db --proto udp --port 53", &web.container[..12]);
    let udp = ["UDP 10.186.0.2 > 10.186.0.3 port 53", &delivered];
    trace(&node, &by_id).assert_says(ARRIVES, &udp);
    let tcp6 = [
        "TCP SYN fd70:6f64:7769:7265::2 > fd70:6f64:7769:7265::3 port 443",
        &delivered,
    ];
    trace(&node, "web db -6 --port 443").assert_says(ARRIVES, &tcp6);
    let echo6 = ["ICMP echo request fd70:6f64:7769:7265::2 > ", &delivered];
    trace(&node, "web db -6").assert_says(ARRIVES, &echo6);
    let steps = [
        "br-int table 0",
        "br-int table 240",
        "nw_src=10.186.0.2",
        "goto_table:241",
    ];
    trace(&node, "web db --verbose").assert_says(ARRIVES, &steps);
    let raw = trace(&node, "web db --raw");
    raw.assert_says(
        ARRIVES,
        &[
            "# ovs-appctl ofproto/trace '--names' 'br-int'",
            "Datapath actions: ",
        ],
    );
    let (code, json) = node.podwire_json("trace web db -o json");
    assert_eq!(
        (code, &json["arrives"]),
        (ARRIVES, &true.into()),
        "{json:#}"
    );
    assert_eq!(json["openVswitch"]["way"]["ends"][0]["port"], to);
}

#[test]
fn what_port_security_drops_is_told_as_dropped_by_it() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let [_web, _db] = ["web", "db"].map(|name| node.added_pod(name));
    let forged = "drops it: port security: the source address is not one of the port's";
    trace(&node, "web db --src 10.186.3.9").assert_says(
        DOES_NOT,
        &["10.186.3.9 > 10.186.0.3", forged, "table 240 of br-int"],
    );
    let forged = "drops it: port security: the frame does not bear its port's MAC address";
    trace(&node, "web db --src-mac 0a:58:de:ad:be:ef").assert_says(DOES_NOT, &[forged]);
    let (_, json) = node.podwire_json("trace web db --src 10.186.3.9 -o json");
    assert_eq!(json["openVswitch"]["verdict"], "dropped");
}

#[test]
fn a_packet_to_the_world_goes_to_the_node_which_is_the_pods_gateway() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let _web = node.added_pod("web");
    trace(&node, "web 192.0.2.1 --port 443").assert_says(
        ARRIVES,
        &[
            "10.186.0.2 > 192.0.2.1 port 443",
            "to the node itself (br-int)",
        ],
    );
    trace(&node, "web nobody")
        .assert_says(Some(4), &["no pod nobody on this node", "podwire ports"]);
    trace(&node, "web 2001:db8::1 --src 192.0.2.7").assert_says(Some(2), &["different families"]);
}

#[test]
fn ovn_tells_whether_an_acl_drops_a_packet_and_which_logical_port_it_reaches() {
    let (central, node) = Central::with_node();
    let _agent = node.start_agent(&OvnNode::agent_options());
    let pods = [("web", 11), ("db", 12)].map(|(name, number)| {
        let (pod, port) = central.schedule(&node, name, number);
        pod.add().success();
        (pod, port)
    });
    let [(web, _), (db, db_port)] = &pods;
    let address = db_port.ipv4().parse().unwrap();
    traffic::ping_until_answered(web.place(), address).unwrap();
    let by_port = format!(
        "Open vSwitch delivers it to tests/db by port {}",
        db.host_link()
    );
    let delivered = ["OVN delivers it to logical port tests_db", &by_port];
    trace(&node, "web db --port 80").assert_says(ARRIVES, &delivered);

    let drop = "outport==\"tests_db\" && ip4 && tcp.dst==80";
    central.nbctl(format!(
        "--wait=hv acl-add {} to-lport 1000 '{drop}' drop",
        node.name
    ));
    let done = trace(&node, "web db --port 80");
    let words = [
        "OVN drops it: an ACL: ls_out_acl",
        "of node-a",
        "Open vSwitch drops it",
    ];
    done.assert_says(DOES_NOT, &words);
    // OVN 23.09 and later drop in a stage of its own, which does not say what the ACL matches.
    let says_match = done.stdout.contains("tcp.dst==80");
    assert!(
        says_match || done.stdout.contains("ls_out_acl_action"),
        "{done:?}"
    );
    trace(&node, "web db --port 81").assert_says(ARRIVES, &delivered);

    central.remove_port("tests_web");
    central.nbctl("--wait=hv sync");
    let done = trace(&node, "web db --port 81");
    let words = [
        "OVN was not asked: its southbound database has no logical port",
        "Open vSwitch drops it",
    ];
    done.assert_says(DOES_NOT, &words);
}

#[test]
fn a_packet_to_a_pod_of_another_node_is_followed_into_the_tunnel() {
    let (central, nodes) = Central::with_two_nodes();
    let (_agents, [(web, _), (_db, db_port)]) = central.pod_on_each(&nodes);
    let address = db_port.ipv4();
    traffic::ping_until_answered(web.place(), address.parse().unwrap()).unwrap();
    let done = trace(&nodes[0], &format!("web {address} --port 80"));
    let peer = nodes[1].tunnel_address();
    let tunnel = format!("Open vSwitch sends it through the tunnel to {peer}");
    done.assert_says(
        ARRIVES,
        &["OVN delivers it to logical port tests_db", &tunnel],
    );
}
