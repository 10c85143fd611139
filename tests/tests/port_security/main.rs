//! Plain mode: a pod speaks for itself alone, a question goes to the one port that has the answer,
//! and what pods need works.

mod impostor;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use podwire_tests::frames::{self, ALL_NODES, Capture, is_icmpv6, is_udp_to};
use podwire_tests::{AgentOptions, Place, Pod, TestNode, addresses, conf, links, traffic};
use serde_json::json;

/// A pod and what it was given.
struct Wired<'node> {
    pod: Pod<'node>,
    mac: String,
    v4: Ipv4Addr,
    v6: Ipv6Addr,
}

fn wired<'node>(node: &'node TestNode, name: &str) -> Wired<'node> {
    let pod = node.pod(name);
    let given = addresses(&pod.add().success()).unwrap();
    let mac = links::find(pod.place(), "eth0").unwrap().mac;
    let (mut v4, mut v6) = (None, None);
    for address in given {
        match address {
            IpAddr::V4(ip) => v4 = Some(ip),
            IpAddr::V6(ip) => v6 = Some(ip),
        }
    }
    Wired {
        pod,
        mac,
        v4: v4.unwrap(),
        v6: v6.unwrap(),
    }
}

impl Wired<'_> {
    fn place(&self) -> &Place {
        self.pod.place()
    }

    fn ip(&self, line: &str) {
        self.pod.run("ip", line);
    }

    fn udp(&self, from: IpAddr, port: u16, to: (IpAddr, u16)) {
        let sent = self.place().run(|| {
            let socket = UdpSocket::bind((from, port)).unwrap();
            socket.set_broadcast(true).ok();
            socket.send_to(b"said", to).map(drop)
        });
        sent.unwrap();
    }

    fn icmpv6(&self, message: &[u8], to: Ipv6Addr) {
        frames::send_icmpv6(self.place(), "eth0", message, to).unwrap();
    }

    /// So that nothing has to be asked before it can be sent.
    fn knows(&self, other: &Wired<'_>) {
        for ip in [IpAddr::V4(other.v4), IpAddr::V6(other.v6)] {
            let mac = &other.mac;
            self.ip(&format!(
                "neighbor replace {ip} lladdr {mac} dev eth0 nud permanent"
            ));
        }
    }
}

fn bytes_of(mac: &str) -> Vec<u8> {
    let byte = |text| u8::from_str_radix(text, 16).unwrap();
    mac.split(':').map(byte).collect()
}

/// How many ports admit this MAC address.
fn secured(node: &TestNode, mac: &str) -> usize {
    let flows = node.appctl("bridge/dump-flows br-int");
    let admits = |line: &&str| line.contains(&format!("dl_src={mac}")) && line.contains("goto");
    flows.lines().filter(admits).count()
}

#[test]
fn flows_come_with_their_port_go_with_it_and_leave_those_of_others() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let first = wired(&node, "first");
    assert_eq!(secured(&node, &first.mac), 1);
    let others = "table=0,priority=40000,cookie=0x77,dl_dst=02:00:00:00:00:77,actions=drop";
    node.run("ovs-ofctl", format!("add-flow br-int '{others}'"));
    let agent = agent.kill_and_restart();
    let second = wired(&node, "second");
    first.pod.del().success();
    // What one ADD needs is committed after what the DEL before it took away.
    let third = wired(&node, "third");
    let count = |wired: &Wired<'_>| secured(&node, &wired.mac);
    assert_eq!([&first, &second, &third].map(count), [0, 1, 1]);
    node.vsctl(format!("del-port {}", second.pod.host_link()));
    let fourth = wired(&node, "fourth");
    assert_eq!([&third, &fourth].map(count), [1, 1]);
    drop(agent);
    let flows = node.appctl("bridge/dump-flows br-int");
    assert!(
        flows.contains("dl_dst=02:00:00:00:00:77,actions=drop"),
        "{flows}"
    );
    assert!(flows.contains("priority=0,actions=NORMAL"), "{flows}");
}

#[test]
fn flows_follow_a_port_to_another_bridge_and_back_without_a_change_of_its_row() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let (web, _beside) = (wired(&node, "web"), wired(&node, "beside"));
    let port = node.vsctl(format!("get Port {} _uuid", web.pod.host_link()));
    let port = port.trim();
    node.vsctl("add-br other -- set Bridge other datapath_type=netdev");
    let moved = |from: &str, to: &str| {
        node.vsctl(format!(
            "remove Bridge {from} ports {port} -- add Bridge {to} ports {port}"
        ));
        // The fence: this ADD's flows come after what the move changes.
        wired(&node, &format!("after-{to}"));
    };
    moved("br-int", "other");
    assert_eq!(secured(&node, &web.mac), 0);
    moved("other", "br-int");
    assert_eq!(secured(&node, &web.mac), 1);
}

#[test]
fn a_question_goes_to_the_one_port_that_has_the_answer() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let (web, db, witness) = (
        wired(&node, "web"),
        wired(&node, "db"),
        wired(&node, "witness"),
    );
    let capture = Capture::of(witness.place()).unwrap();
    for to in [IpAddr::V4(db.v4), IpAddr::V6(db.v6)] {
        traffic::ping(web.place(), to, 2).unwrap();
        traffic::ping(node.place(), to, 2).unwrap();
    }
    for gateway in ["10.186.0.1", "fd70:6f64:7769:7265::1"] {
        traffic::ping(web.place(), gateway.parse().unwrap(), 2).unwrap();
    }
    // A group report and a router solicitation.
    web.icmpv6(
        &[&[131, 0, 0, 0, 0, 0, 0, 0][..], &[0xff; 16]].concat(),
        ALL_NODES,
    );
    web.icmpv6(&[133, 0, 0, 0, 0, 0, 0, 0], "ff02::2".parse().unwrap());
    // Groups and broadcasts are for everybody, as before.
    let group = Ipv4Addr::new(239, 1, 2, 3);
    web.ip(&format!("route add {group}/32 dev eth0"));
    web.udp(web.v4.into(), 0, (group.into(), 1005));
    web.knows(&witness);
    web.udp(web.v4.into(), 0, (witness.v4.into(), 1009));
    let frames = capture.until(|frame| is_udp_to(frame, 1009)).unwrap();
    assert!(frames.iter().any(|frame| is_udp_to(frame, 1005)));
    let own = bytes_of(&witness.mac);
    let questions: Vec<&Vec<u8>> = frames
        .iter()
        .filter(|frame| frame[6..12] != own)
        .filter(|frame| {
            let is_arp = frame[12..14] == [0x08, 0x06];
            is_arp
                || [131, 132, 133, 135, 143]
                    .iter()
                    .any(|kind| is_icmpv6(frame, *kind))
        })
        .collect();
    assert!(questions.is_empty(), "{questions:x?}");
}

#[test]
fn other_peoples_ports_switch_as_they_did() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let web = wired(&node, "web");
    // A machine on a port that podwire knows nothing of, with a MAC address of its own.
    let outside = node.pod("outside");
    let namespace = outside.netns.clone();
    node.run(
        "ip",
        format!("link add uplink type veth peer name eth0 netns {namespace}"),
    );
    for arguments in [
        &["link", "set", "eth0", "up"][..],
        &["address", "add", "10.186.3.200/22", "dev", "eth0"],
        &[
            "address",
            "add",
            "fd70:6f64:7769:7265::c8/64",
            "dev",
            "eth0",
            "nodad",
        ],
    ] {
        outside.run("ip", arguments);
    }
    node.run("ip", "link set uplink up");
    node.vsctl("add-port br-int uplink");
    // The fence: this ADD's flows come after what the new port changes.
    let db = wired(&node, "db");
    for to in ["10.186.3.200", "fd70:6f64:7769:7265::c8"] {
        traffic::ping(web.place(), to.parse().unwrap(), 2).unwrap();
    }
    for to in [IpAddr::V4(db.v4), IpAddr::V6(db.v6)] {
        traffic::ping(outside.place(), to, 2).unwrap();
        traffic::ping(web.place(), to, 2).unwrap();
    }
}

#[test]
fn a_network_may_go_without_and_another_with_it() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let add = |name: &str, asked: bool| {
        let pod = node.pod(name);
        let mut conf = conf();
        conf["portSecurity"] = json!(asked);
        pod.exec("ADD", &conf).success();
        let mac = links::find(pod.place(), "eth0").unwrap().mac;
        (pod, mac)
    };
    let (_open, open) = add("open", false);
    let (_closed, closed) = add("closed", true);
    assert_eq!([secured(&node, &open), secured(&node, &closed)], [0, 1]);
}

#[test]
fn a_node_whose_switch_takes_no_flows_is_not_ready_and_says_so_once() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    agent.await_ready(true);
    node.vsctl("set bridge br-int protocols=OpenFlow10");
    node.kill_vswitchd();
    node.start_vswitchd();
    agent.await_log("port security can't be maintained");
    agent.await_ready(false);
    let pod = node.pod("web");
    let error = pod.exec("STATUS", &conf()).error();
    error.assert_names(&["port security", "OpenFlow"]);
    pod.add().error();
    let log = agent.log();
    assert_eq!(
        log.matches("port security can't be maintained").count(),
        1,
        "{log}"
    );
    node.vsctl("clear bridge br-int protocols");
    agent.await_ready(true);
    pod.add().success();
}

/// The node goes without, one network does not: STATUS of that network, and of the node once a pod
/// of it is there.
#[test]
fn a_secured_network_on_a_node_without_port_security_needs_flows_as_well() {
    let node = TestNode::with_ovs();
    let options = AgentOptions::default().with("--no-port-security");
    let agent = node.start_agent(&options);
    let mut secured = conf();
    secured["portSecurity"] = json!(true);
    let [pod, other] = ["web", "db"].map(|name| node.pod(name));
    let protocols = |words: &[&str]| {
        node.vsctl(words);
        node.kill_vswitchd();
        node.start_vswitchd();
    };
    protocols(&["set", "bridge", "br-int", "protocols=OpenFlow10"]);
    agent.await_log("port security can't be maintained");
    pod.exec("STATUS", &conf()).success();
    other.add().success();
    let error = pod.exec("STATUS", &secured).error();
    error.assert_names(&["port security", "OpenFlow"]);
    pod.exec("ADD", &secured).error();

    protocols(&["clear", "bridge", "br-int", "protocols"]);
    pod.exec("ADD", &secured).success();
    protocols(&["set", "bridge", "br-int", "protocols=OpenFlow10"]);
    agent.await_ready(false);
}

#[test]
fn flows_that_somebody_deletes_are_sent_again() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let web = wired(&node, "web");
    node.run("ovs-ofctl", "del-flows br-int");
    agent.await_log("they are sent again");
    // The fence: this ADD's flows are committed with those of all ports, or after them.
    let db = wired(&node, "db");
    assert_eq!([&web, &db].map(|it| secured(&node, &it.mac)), [1, 1]);
    for to in [IpAddr::V4(db.v4), IpAddr::V6(db.v6)] {
        traffic::ping(web.place(), to, 2).unwrap();
    }
}

/// What `ovs-ctl restart` does about flows: it saves them, and replaces those of the new
/// ovs-vswitchd by them.
#[test]
fn a_bridge_that_ends_its_connections_gets_its_flows_over_the_next() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let web = wired(&node, "web");
    for id in 1..=5 {
        // ovs-vswitchd closes the connections of a bridge whose datapath id changes, and listens
        // on.
        let set = format!("set bridge br-int other-config:datapath-id={id:016x}");
        node.run("ovs-vsctl", set);
        let db = wired(&node, "db");
        agent.await_ready(true);
        traffic::ping(web.place(), db.v4.into(), 1).unwrap();
        db.pod.del().success();
    }
}

#[test]
fn flows_that_ovs_ctl_restores_are_replaced_by_those_of_now() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let (gone, stays) = (wired(&node, "gone"), wired(&node, "stays"));
    let saved = node.run("ovs-ofctl", "-OOpenFlow14 dump-flows --no-stats br-int");
    let saved: Vec<&str> = saved.lines().filter(|it| it.contains("actions=")).collect();
    std::fs::write(node.path("/run/saved"), saved.join("\n")).unwrap();
    node.vsctl("--no-wait set open_vswitch . other_config:flow-restore-wait=true");
    node.kill_vswitchd();
    gone.pod.del().success();
    node.start_vswitchd();
    let restore = ["-OOpenFlow14", "replace-flows", "br-int", "/run/saved"];
    node.run("ovs-ofctl", restore);
    let count = |wired: &Wired<'_>| secured(&node, &wired.mac);
    assert_eq!([&gone, &stays].map(count), [1, 1], "the saved ones");
    let key = ["open_vswitch", ".", "other_config", "flow-restore-wait"];
    node.vsctl(&[&["--no-wait", "remove"], &key[..]].concat());
    let later = wired(&node, "later");
    assert_eq!([&gone, &stays, &later].map(count), [0, 1, 1]);
    drop(agent);
}

/// As an agent wired them that knew nothing of port security: their pods may send with a VLAN tag
/// or another address.
#[test]
fn a_pod_whose_row_says_nothing_switches_as_before_an_upgrade() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let (old, new) = (wired(&node, "old"), wired(&node, "new"));
    let host = old.pod.host_link().to_owned();
    let forget = || {
        let key = [
            "interface",
            &host,
            "external_ids",
            "podwire.io/port-security",
        ];
        node.vsctl(&[&["remove"], &key[..]].concat());
    };
    let agent = agent.kill_and_restart_with(forget);
    // The fence: this ADD's flows come with those of all rows, or after them.
    let later = wired(&node, "later");
    let count = |wired: &Wired<'_>| secured(&node, &wired.mac);
    assert_eq!([&old, &new, &later].map(count), [0, 1, 1]);
    traffic::ping(new.place(), old.v4.into(), 2).unwrap();
    traffic::ping(old.place(), later.v6.into(), 2).unwrap();
    drop(agent);
}

#[test]
fn nobody_gets_what_is_anothers_or_not_for_pods_of_this_node() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let victim = wired(&node, "victim");
    let local = links::find(node.place(), "br-int").unwrap().mac;
    let entry = |ip: &str, mac: &str| json!({ "ip_addresses": [ip], "mac_address": mac });
    let (free, own) = ("10.186.0.99/22", "0a:58:0a:ba:00:63");
    let held = format!("{}/22", victim.v4);
    for (entry, words) in [
        (
            entry(free, &victim.mac),
            ["mac_address", &victim.mac, "tests/victim"],
        ),
        (entry(free, &local), ["mac_address", &local, "gateway"]),
        (
            entry("10.99.0.1/24", own),
            ["ip_addresses", "10.99.0.1", "10.186.0.0/22"],
        ),
        (entry("10.186.0.1/22", own), ["10.186.0.1", "gateway", ""]),
        (
            entry(&held, own),
            [held.trim_end_matches("/22"), "tests/victim", ""],
        ),
    ] {
        let thief = node.pod("thief").on_default_network(&entry);
        let error = thief.add().error();
        assert!(
            error.code >= 7 && error.code != 11,
            "a retry won't help: {error:?}"
        );
        error.assert_names(&words);
        assert!(links::find(thief.place(), "eth0").is_none());
    }
    let thief = node.pod("thief");
    let mut conf = conf();
    conf["runtimeConfig"] = json!({ "mac": victim.mac });
    let error = thief.exec("ADD", &conf).error();
    error.assert_names(&["mac", &victim.mac, "tests/victim"]);
    // A later sandbox of the same pod has what the one before it had.
    let again = victim.pod.another_sandbox();
    again.exec("ADD", &conf).success();
    victim.pod.del().success();
    again.del().success();
    node.leftovers().assert_none();
}
