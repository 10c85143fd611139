//! CHECK tells the first difference in words; DEL ends well whatever is left of the pod; GC and
//! STATUS speak of what is so.

use podwire_tests::annotation::{GATEWAY_V4, entry, ipv4, ipv6, mac};
use podwire_tests::{Agent, AgentOptions, CniError, Pod, TestNode, conf, links, traffic};
use serde_json::{Value, json};

/// Wires a pod, spoils something, and returns CHECK's complaint.
fn complaint(spoil: impl FnOnce(&TestNode, &Pod<'_>, &mut Value)) -> CniError {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let mut entry = entry(11);
    entry["routes"] = json!([{"dest": "10.96.0.0/12", "nextHop": GATEWAY_V4}]);
    let pod = node.pod("web").on_default_network(&entry);
    let mut result = pod.add().success();
    assert_eq!(
        pod.check(&result).success(),
        Value::Null,
        "CHECK prints nothing"
    );
    spoil(&node, &pod, &mut result);
    pod.check(&result).error()
}

#[test]
fn check_misses_a_lost_address() {
    let error = complaint(|_, pod, _| {
        pod.run("ip", format!("address del {}/64 dev eth0", ipv6(11)));
    });
    error.assert_names(&["eth0", &ipv6(11)]);
}

#[test]
fn check_misses_a_lost_route() {
    let error = complaint(|_, pod, _| {
        pod.run("ip", "route del 10.96.0.0/12");
    });
    error.assert_names(&["10.96.0.0/12"]);
}

#[test]
fn check_sees_another_mtu() {
    let error = complaint(|_, pod, _| {
        pod.run("ip", "link set eth0 mtu 1300");
    });
    error.assert_names(&["eth0", "1300", "1500"]);
}

#[test]
fn check_sees_another_mac() {
    let error = complaint(|_, pod, _| {
        pod.run("ip", "link set eth0 address 0a:58:00:00:00:01");
    });
    error.assert_names(&["eth0", "0a:58:00:00:00:01", &mac(11)]);
}

#[test]
fn check_sees_an_interface_that_is_down() {
    let error = complaint(|_, pod, _| {
        pod.run("ip", "link set eth0 down");
    });
    error.assert_names(&["eth0", "down"]);
}

#[test]
fn check_misses_a_link() {
    let error = complaint(|_, pod, _| {
        pod.run("ip", "link del eth0");
    });
    error.assert_names(&["the pod has no interface eth0"]);
}

#[test]
fn check_misses_the_port() {
    let node = TestNode::with_ovs();
    // In OVN mode nobody but ovn-controller brings a bridge back, and with it the ports.
    node.add_bridge("br-int");
    let options = AgentOptions::default().with("--mode ovn --wait ofport");
    let _agent = Agent::launch(&node, &options).unwrap();
    let pod = node.numbered_pod(11);
    let result = pod.add().success();
    node.vsctl("del-br br-int");
    let error = pod.check(&result).error();
    error.assert_names(&["port"]);
}

#[test]
fn check_sees_a_port_on_another_bridge() {
    let error = complaint(|node, pod, _| {
        let host = pod.host_link();
        node.add_bridge("br-other");
        let ids = node.vsctl(format!("get interface {host} external_ids"));
        let ids = format!("external_ids={}", ids.trim());
        node.vsctl(format!(
            "del-port {host} -- add-port br-other {host} -- set interface {host} '{ids}'"
        ));
    });
    error.assert_names(&["br-other", "br-int"]);
}

#[test]
fn check_sees_an_iface_id_that_somebody_changed() {
    let error = complaint(|node, pod, _| {
        node.vsctl(format!(
            "set interface {} external_ids:iface-id=other_pod",
            pod.host_link()
        ));
    });
    error.assert_names(&["iface-id"]);
}

#[test]
fn check_follows_what_a_later_plugin_wrote_into_prev_result() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.numbered_pod(11);
    // Port security would drop what is sent from another address.
    let mut conf = conf();
    conf["portSecurity"] = json!(false);
    let mut result = pod.exec("ADD", &conf).success();
    // As the `tuning` plugin does.
    pod.run("ip", "link set eth0 address 0a:58:00:00:00:01 mtu 1300");
    for interface in result["interfaces"].as_array_mut().unwrap() {
        if interface.get("sandbox").is_some() {
            interface["mac"] = json!("0a:58:00:00:00:01");
            interface["mtu"] = json!(1300);
        }
    }
    conf["prevResult"] = result;
    pod.exec("CHECK", &conf).success();
}

#[test]
fn check_without_prev_result_is_refused() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.wired_pod(11);
    let error = pod.exec("CHECK", &conf()).error();
    assert_eq!(error.code, 7);
    error.assert_names(&["prevResult"]);
}

#[test]
fn del_needs_no_netns_variable() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    for (number, netns) in [(11, Some("")), (12, None)] {
        let pod = node.wired_pod(number);
        let conf = conf().to_string();
        pod.exec_with("DEL", conf.as_bytes(), &[("CNI_NETNS", netns)])
            .success();
        assert!(links::find(pod.place(), "eth0").is_none());
    }
    node.leftovers().assert_none();
}

#[test]
fn del_of_a_pod_whose_namespace_is_gone_still_removes_its_port() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let mut pod = node.wired_pod(11);
    pod.remove_netns();
    pod.del().success();
    node.leftovers().assert_none();
}

#[test]
fn del_of_a_pod_that_never_was_succeeds() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.pod("never");
    pod.del().success();
    node.leftovers().assert_none();
}

#[test]
fn a_late_del_of_an_old_sandbox_leaves_the_new_one_alone() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let old = node.pod("web").on_default_network(&entry(11));
    old.add().success();
    let new = old.another_sandbox();
    new.add().success();
    assert!(
        node.interface_of(&old.container).is_none(),
        "one port per pod and network"
    );
    for _ in 0..2 {
        old.del().success();
        traffic::ping(node.place(), ipv4(11).parse().unwrap(), 1).unwrap();
    }
    let row = node.interface_of(&new.container).unwrap();
    assert_eq!(row["external_ids"]["iface-id"], "tests_web");
    new.del().success();
    node.leftovers().assert_none();
}

#[test]
fn a_pod_inherits_no_connection_of_the_one_that_had_its_address() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.wired_pod(11);
    let track = |source: &str, destination: &str| {
        let ends = format!("--src={source} --dst={destination}");
        let udp = "--protonum=17 --sport=4000 --dport=53 --timeout=600";
        node.run("conntrack", format!("-I {ends} {udp}"));
    };
    track(&ipv4(11), "192.0.2.1");
    track("192.0.2.2", &ipv4(11));
    track(&ipv6(11), "2001:db8::1");
    track("192.0.2.3", "192.0.2.4");
    pod.del().success();
    let heir = node.pod("heir").on_default_network(&entry(11));
    heir.add().success();
    let left = format!(
        "{}{}",
        node.run("conntrack", "-L"),
        node.run("conntrack", "-L -f ipv6")
    );
    assert!(
        !left.contains(&ipv4(11)) && !left.contains(&ipv6(11)),
        "{left}"
    );
    assert!(
        left.contains("192.0.2.3"),
        "the connections of others stay: {left}"
    );
}

#[test]
fn a_pod_inherits_no_ipv4_connection_that_the_userspace_datapath_tracks_and_the_switch_lives() {
    let node = TestNode::with_ovs();
    // The flows that track connections are in place of those of port security.
    let options = AgentOptions::for_numbered_pods().with("--no-port-security");
    let _agent = node.start_agent(&options);
    let [web, db, other] = ["web", "db", "other"].map(|name| node.pod(name));
    let web = web.on_default_network(&entry(11));
    let db = db.on_default_network(&entry(12));
    let other = other.on_default_network(&entry(13));
    for pod in [&web, &db, &other] {
        pod.add().success();
    }
    node.track_connections();
    web.run("ping", format!("-c 1 {}", ipv4(12)));
    web.run("ping", format!("-c 1 {}", ipv6(12)));
    other.run("ping", format!("-c 1 {}", ipv4(11)));
    other.run("ping", format!("-c 1 {}", ipv4(12)));
    let tracked = || node.appctl("dpctl/dump-conntrack");
    let before = tracked();
    assert!(before.contains(&format!("src={}", ipv4(11))), "{before}");

    web.del().success();
    let _heir = node.wired_pod(11);
    let left = tracked();
    assert!(!left.contains(&ipv4(11)), "{left}");
    assert!(
        left.contains(&format!("src={}", ipv4(13))),
        "the connections of others stay: {left}"
    );
}

#[test]
fn gc_removes_what_the_runtime_does_not_list_and_only_that() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    node.vsctl("add-port br-int foreign -- set interface foreign type=internal");
    let [living, dead, elsewhere] = [11, 12, 13].map(|number| {
        let pod = node.numbered_pod(number);
        let mut conf = conf();
        if number == 13 {
            conf["name"] = json!("another-network");
        }
        pod.exec("ADD", &conf).success();
        pod
    });
    let mut gc = conf();
    let valid = json!([{"containerID": living.container, "ifname": "eth0"}]);
    gc["cni.dev/valid-attachments"] = valid.clone();
    gc["cni.dev/attachments"] = valid;
    living
        .exec_with("GC", gc.to_string().as_bytes(), &[])
        .success();
    assert!(node.interface_of(&dead.container).is_none());
    assert!(links::find(dead.place(), "eth0").is_none());
    for pod in [&living, &elsewhere] {
        assert!(node.interface_of(&pod.container).is_some());
    }
    assert!(
        node.ovsdb_rows("Port")
            .iter()
            .any(|row| row["name"] == "foreign")
    );
}

#[test]
fn gc_without_a_list_removes_nothing() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.wired_pod(11);
    let error = pod.exec("GC", &conf()).error();
    error.assert_names(&["cni.dev/valid-attachments"]);
    assert!(node.interface_of(&pod.container).is_some());
}

#[test]
fn status_says_whether_an_add_would_be_served() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.pod("web");
    let status = || pod.exec("STATUS", &conf());
    status().success();
    node.kill_vswitchd();
    let error = status().error();
    assert_eq!(
        error.code, 51,
        "existing pods have lost their switch: {error:?}"
    );
    node.start_vswitchd();
    agent.await_ready(true);
    status().success();
    agent.stop();
    let error = status().error();
    assert_eq!(error.code, 50);
    error.assert_names(&["/run/podwire/agent.sock"]);
}
