//! The CNI project's own client: the session of docs/by-hand.md, and podwire at the head of a chain
//! of Debian's plugins.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use podwire_tests::process::finish;
use podwire_tests::runtime::{
    CONFIGURATIONS, cnitool, configure, configure_as, documented, install_plugins,
};
use podwire_tests::{
    AgentOptions, Neighbour, Pod, TestNode, links, plugin_binary, traffic, walkthrough,
};
use serde_json::{Value, json};

/// A verb that must succeed, and what it printed.
fn call(pod: &Pod<'_>, verb: &str) -> String {
    let finished = cnitool(pod, verb, &Value::Null).unwrap();
    finished.success(&format!("cnitool {verb}"))
}

fn address(pod: &Pod<'_>) -> IpAddr {
    links::first_address(pod.place(), "eth0")
}

#[test]
fn cnitool_adds_checks_and_deletes_with_a_conf_of_three_members() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    install_plugins(&node).unwrap();
    let conf = r#"{"cniVersion":"1.1.0","name":"pods","type":"podwire-cni"}"#;
    std::fs::create_dir_all(node.path(CONFIGURATIONS)).unwrap();
    std::fs::write(node.path(CONFIGURATIONS).join("10-podwire.conf"), conf).unwrap();

    let (blue, red) = (node.pod("blue"), node.pod("red"));
    let added = call(&blue, "add");
    assert!(added.contains("10.186.0.2/22"), "{added}");
    call(&red, "add");
    call(&red, "check");
    traffic::ping(blue.place(), address(&red), 1).unwrap();
    traffic::ping(node.place(), address(&blue), 1).unwrap();
    call(&blue, "del");
    call(&red, "del");
    node.leftovers().assert_none();
}

/// What docs/by-hand.md has its reader type. What comes before, a test node has; the agent, which
/// the page stops by its job, is the test's.
fn session() -> String {
    let commands = walkthrough::commands(include_str!("../../docs/by-hand.md")).into_iter();
    let done = [
        "make install",
        "systemctl",
        "podwire",
        "kill",
        "rm -r /run/podwire",
    ];
    let typed = commands.filter(|command| !done.iter().any(|prefix| command.starts_with(prefix)));
    typed.map(|command| format!("{command}\n")).collect()
}

#[test]
fn the_page_for_trying_by_hand_runs_as_it_stands_and_leaves_nothing() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    // Where `make install` puts the plugin, and configurations go; the machine's own are left
    // alone.
    for directory in ["/opt", "/etc/cni"] {
        node.run("mount", format!("-t tmpfs podwire-node {directory}"));
    }
    std::fs::create_dir_all(node.path("/opt/cni/bin")).unwrap();
    let plugin = node.path("/opt/cni/bin/podwire-cni");
    std::os::unix::fs::symlink(plugin_binary(), plugin).unwrap();

    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", &session()]);
    shell.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let run = || finish(shell, b"", Duration::from_secs(60));
    let printed = node
        .place()
        .run(run)
        .unwrap()
        .success("the page's commands");
    for expected in [
        "10.186.0.2/22 fd70:6f64:7769:7265::2/64",
        "64 bytes from 10.186.0.3",
        "64 bytes from 10.186.0.2",
    ] {
        assert!(printed.contains(expected), "no {expected:?} in {printed}");
    }
    let configurations = std::fs::read_dir(node.path("/etc/cni/net.d")).unwrap();
    assert_eq!(
        configurations.count(),
        0,
        "it would come before the quick start's"
    );
    node.leftovers().assert_none();
}

#[test]
fn a_port_of_the_node_leads_into_a_pod_that_portmap_follows() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    install_plugins(&node).unwrap();
    configure_as(&node, &documented("Plugins after podwire").unwrap()).unwrap();
    let neighbour = Neighbour::of(&node);
    let web = node.pod("web");
    let mapping =
        json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]});
    let call = |verb| cnitool(&web, verb, &mapping).unwrap().success(verb);

    call("add");
    let listening = SocketAddr::new(address(&web), 80);
    let by = Some(SocketAddr::new(neighbour.node_address(), 8080));
    traffic::tcp_echo_by(neighbour.place(), web.place(), listening, by, 1 << 20).unwrap();

    call("del");
    let nat = node.run("iptables-save", "-t nat");
    assert!(!nat.contains("8080"), "{nat}");
    drop(neighbour);
    node.leftovers().assert_none();
}

#[test]
fn what_tuning_changes_after_podwire_is_no_fault_to_check() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    install_plugins(&node).unwrap();
    let tuning = json!({
        "type": "tuning", "mtu": 1300, "mac": "0a:58:0a:ba:00:77", "promisc": true,
        "sysctl": {"net.ipv4.conf.eth0.arp_notify": "1"},
    });
    // The switch would drop what the pod sends from a MAC that podwire did not give it.
    let podwire = json!({"type": "podwire-cni", "portSecurity": false});
    configure(&node, &[podwire, tuning]).unwrap();
    let web = node.pod("web");
    let result: Value = serde_json::from_str(&call(&web, "add")).unwrap();
    assert_eq!(
        result["interfaces"][1]["mac"], "0a:58:0a:ba:00:77",
        "{result}"
    );
    call(&web, "check");
    traffic::ping(node.place(), address(&web), 1).unwrap();
    // What nobody asked for is one.
    web.run("ip", "address flush dev eth0");
    let check = cnitool(&web, "check", &Value::Null).unwrap();
    assert!(!check.status.success());
    call(&web, "del");
    node.leftovers().assert_none();
}

#[test]
fn the_bandwidth_plugin_finds_the_host_end_in_podwires_result() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    install_plugins(&node).unwrap();
    let bandwidth = json!({"type": "bandwidth", "capabilities": {"bandwidth": true}});
    configure(&node, &[json!({"type": "podwire-cni"}), bandwidth]).unwrap();
    let (web, db) = (node.pod("web"), node.pod("db"));
    let limits = json!({"bandwidth": {
        "ingressRate": 20_000_000, "ingressBurst": 8_000_000, "egressRate": 10_000_000,
        "egressBurst": 8_000_000,
    }});
    let call = |pod, verb, limits| cnitool(pod, verb, limits).unwrap().success(verb);
    let result: Value = serde_json::from_str(&call(&web, "add", &limits)).unwrap();
    call(&db, "add", &Value::Null);

    let host = result["interfaces"][0]["name"].as_str().unwrap();
    let shaped = node.run("tc", format!("qdisc show dev {host}"));
    assert!(
        shaped.contains("tbf") && shaped.contains("rate 20Mbit"),
        "{shaped}"
    );
    traffic::tcp_echo(web.place(), db.place(), address(&db), 1 << 16).unwrap();
    call(&web, "check", &limits);

    call(&web, "del", &limits);
    call(&db, "del", &Value::Null);
    let links = node.run("ip", "link show type ifb");
    assert_eq!(links, "", "the plugin's own device is gone");
    node.leftovers().assert_none();
}
