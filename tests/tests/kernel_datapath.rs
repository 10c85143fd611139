//! What only the kernel's datapath does: `make test-kernel` boots a kernel that has one, and runs
//! these there beside tests that hold on either.

use std::net::{IpAddr, UdpSocket};

use nix::sys::signal::Signal;
use podwire_tests::annotation::{entry, ipv4, ipv6};
use podwire_tests::ovn::Central;
use podwire_tests::{AgentOptions, Pod, TestNode, conf, traffic};
use serde_json::json;

fn numbered<'node>(node: &'node TestNode, name: &str, number: u8) -> Pod<'node> {
    node.pod(name).on_default_network(&entry(number))
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// What `tc` shows of a link.
fn tc(node: &TestNode, what: &str, link: &str, rest: &str) -> String {
    node.run("tc", format!("-s {what} show dev {link} {rest}"))
}

#[test]
#[ignore = "wants the kernel's datapath: make test-kernel"]
fn pods_reach_each_other_through_the_kernel_with_all_offloads_on() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let (web, db) = (numbered(&node, "web", 11), numbered(&node, "db", 12));
    for pod in [&web, &db] {
        pod.add().success();
    }
    let datapaths = node.appctl("dpctl/dump-dps");
    assert_eq!(datapaths.trim(), "system@ovs-system");
    for target in [ipv4(12), ipv6(12)] {
        traffic::ping(web.place(), address(&target), 2).unwrap();
        traffic::tcp_echo(web.place(), db.place(), address(&target), 1 << 20).unwrap();
        traffic::udp_echo(web.place(), db.place(), address(&target), 8000).unwrap();
    }
    let flows = node.appctl("dpctl/dump-flows");
    assert!(flows.contains("packets:"), "the kernel has flows: {flows}");
    let features = web.run("ethtool", "-k eth0");
    assert!(features.contains("tx-checksumming: on"), "{features}");
    for pod in [&web, &db] {
        pod.del().success();
    }
    node.leftovers().assert_none();
}

/// Links of type vlan are not in every kernel; the machine of make test-kernel has them.
#[test]
#[ignore = "wants links of type vlan: make test-kernel"]
fn a_trunk_pod_reaches_access_pods_by_its_vlan_links() {
    let node = TestNode::with_ovs();
    node.vsctl("add-br br1 -- set bridge br1 datapath_type=system");
    let _agent = node.start_agent(&AgentOptions::default());
    let attached = |name: &str, more: serde_json::Value| {
        let mut conf = json!({
            "cniVersion": "1.0.0", "name": "storage", "type": "podwire-cni", "bridge": "br1",
        });
        for (member, value) in more.as_object().unwrap() {
            conf[member] = value.clone();
        }
        let pod = node.pod(name);
        pod.exec("ADD", &conf).success();
        pod
    };
    let trunk = attached("trunk", json!({"trunk": [{"minID": 101, "maxID": 102}]}));
    for (vlan, subnet) in [(101, "192.0.2"), (102, "198.51.100"), (103, "203.0.113")] {
        let access = attached(&format!("access{vlan}"), json!({ "vlan": vlan }));
        access.run("ip", format!("addr add {subnet}.2/24 dev eth0"));
        let link = format!("eth0.{vlan}");
        trunk.run(
            "ip",
            format!("link add link eth0 name {link} type vlan id {vlan}"),
        );
        trunk.run("ip", format!("addr add {subnet}.1/24 dev {link}"));
        trunk.run("ip", format!("link set {link} up"));
        let target = address(&format!("{subnet}.2"));
        let pinged = traffic::ping(trunk.place(), target, 2);
        assert_eq!(pinged.is_ok(), vlan != 103, "VLAN {vlan}: {pinged:?}");
        if pinged.is_ok() {
            traffic::tcp_echo(trunk.place(), access.place(), target, 1 << 20).unwrap();
        }
    }
}

#[test]
#[ignore = "wants the kernel's datapath: make test-kernel"]
fn a_pods_limits_are_applied_by_the_kernel_and_go_with_it() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let (web, db) = (numbered(&node, "web", 11), numbered(&node, "db", 12));
    let mut limited = conf();
    limited["capabilities"]["bandwidth"] = json!(true);
    limited["runtimeConfig"] = json!({"bandwidth": {
        "ingressRate": 20_000_000, "ingressBurst": 800_000, "egressRate": 1_000_000,
        "egressBurst": 800_000,
    }});
    web.exec("ADD", &limited).success();
    db.add().success();
    node.await_vswitchd();

    let host = web.host_link();
    let to_the_pod = tc(&node, "class", host, "");
    assert!(
        to_the_pod.contains("htb") && to_the_pod.contains("ceil 20Mbit"),
        "{to_the_pod}"
    );
    let from_the_pod = tc(&node, "filter", host, "ingress");
    assert!(
        from_the_pod.contains("police") && from_the_pod.contains("rate 1Mbit"),
        "{from_the_pod}"
    );
    // As much at once as 1 Mbit/s need a quarter of a minute for: most is dropped on the slowest
    // machine too.
    let sent = 2_000_000;
    let received = burst(&web, &db, sent);
    assert!(
        received > 0 && received < sent,
        "{received} of {sent} bytes came through"
    );
    let dropped = tc(&node, "filter", host, "ingress");
    assert!(!dropped.contains("(dropped 0,"), "{dropped}");

    web.del().success();
    db.del().success();
    node.leftovers().assert_none();
}

/// As while the kernel's module is loaded again. The row keeps its ofport, and so nothing but the
/// link itself tells.
#[test]
#[ignore = "wants the kernel's datapath: make test-kernel"]
fn a_port_that_the_datapath_has_lost_is_seen_until_ovs_vswitchd_has_given_it_back() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let (web, db) = (numbered(&node, "web", 11), numbered(&node, "db", 12));
    let result = web.add().success();
    let other = db.add().success();
    let host = web.host_link();
    for (pod, result) in [(&web, &result), (&db, &other)] {
        pod.check(result).success();
    }
    // Awake, it would give the port back at once.
    node.signal_vswitchd(Signal::SIGSTOP);
    node.run("ovs-dpctl", format!("del-if ovs-system {host}"));
    let row = node.interface_of(&web.container).unwrap();
    assert!(row["ofport"].as_i64().unwrap() > 0, "{row:?}");
    let error = web.check(&result).error();
    error.assert_names(&[host, "carries no packets"]);
    db.check(&other).success();

    node.signal_vswitchd(Signal::SIGCONT);
    node.await_vswitchd();
    traffic::ping_until_answered(web.place(), address(&ipv4(12))).unwrap();
    web.check(&result).success();
}

/// Sends so many bytes in datagrams from a pod to pod 12 as fast as it can; how many of them
/// arrive.
fn burst(from: &Pod<'_>, to: &Pod<'_>, bytes: usize) -> usize {
    const DATAGRAM: usize = 1000;
    let receiver = to.place().run(|| UdpSocket::bind((ipv4(12), 0))).unwrap();
    let sender = from.place().run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    receiver.set_nonblocking(true).unwrap();
    let (datagram, mut buffer) = ([7; DATAGRAM], [0; DATAGRAM]);
    let mut received = 0;
    for _ in 0..bytes / DATAGRAM {
        sender.send(&datagram).unwrap();
        // Taken at once: what the receiver's own queue has no room for is not the limit's doing.
        while let Ok(length) = receiver.recv(&mut buffer) {
            received += length;
        }
    }
    received
}

#[test]
#[ignore = "wants the kernel's datapath: make test-kernel"]
fn a_pod_inherits_no_connection_of_either_family_that_the_kernel_tracks() {
    let node = TestNode::with_ovs();
    // The flows that track connections are in place of those of port security.
    let options = AgentOptions::for_numbered_pods().with("--no-port-security");
    let _agent = node.start_agent(&options);
    let pods = [("web", 11), ("db", 12), ("other", 13)]
        .map(|(name, number)| numbered(&node, name, number));
    for pod in &pods {
        pod.add().success();
    }
    let [web, _db, other] = &pods;
    node.track_connections();
    for (pod, target) in [
        (web, ipv4(12)),
        (web, ipv6(12)),
        (other, ipv4(12)),
        (other, ipv6(12)),
    ] {
        traffic::ping(pod.place(), address(&target), 1).unwrap();
    }
    // Of the kernel's own table.
    let tracked = || {
        let of = |family: &str| node.run("conntrack", format!("-L -f {family}"));
        format!("{}{}", of("ipv4"), of("ipv6"))
    };
    let is_listed = |list: &str, pod: &str| list.contains(&format!("src={pod} "));
    let before = tracked();
    assert!(before.contains("zone=5"), "{before}");
    for pod in [ipv4(11), ipv6(11), ipv4(13), ipv6(13)] {
        assert!(is_listed(&before, &pod), "{pod}: {before}");
    }
    web.del().success();
    let heir = numbered(&node, "heir", 11);
    heir.add().success();
    let after = tracked();
    for (pod, stays) in [
        (ipv4(11), false),
        (ipv6(11), false),
        (ipv4(13), true),
        (ipv6(13), true),
    ] {
        assert_eq!(is_listed(&after, &pod), stays, "{pod}: {after}");
    }
}

#[test]
#[ignore = "wants the kernel's geneve: make test-kernel"]
fn pods_on_two_ovn_nodes_reach_each_other_through_the_kernels_geneve() {
    let (central, nodes) = Central::with_two_nodes();
    let (_agents, [(web, _), (db, db_port)]) = central.pod_on_each(&nodes);
    for node in &nodes {
        node.run("ip", "link show genev_sys_6081");
    }
    for target in [db_port.ipv4(), db_port.ipv6()] {
        traffic::ping_until_answered(web.place(), address(&target)).unwrap();
        traffic::tcp_echo(web.place(), db.place(), address(&target), 1 << 20).unwrap();
    }
    for pod in [&web, &db] {
        pod.del().success();
    }
    for node in &nodes {
        node.leftovers().assert_none();
    }
}
