//! The waits of OVN mode: what ends them early, what they say when the time is up, and what STATUS says before.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::thread;

use nix::sys::signal::Signal;
use podwire_tests::links::LinkRecorder;
use podwire_tests::ovn::{Central, LogicalPort, OvnNode};
use podwire_tests::{Agent, AgentOptions, CniError, Pod, conf};

/// Does not wait longer than for what can't come.
fn impatient() -> AgentOptions {
    OvnNode::agent_options().with(["--add-timeout", "1"])
}

/// Fails an ADD, which must leave nothing.
#[track_caller]
fn refused(node: &OvnNode, pod: &Pod<'_>, words: &[&str]) -> CniError {
    let refusal = pod.add().unwrap().error().unwrap();
    assert_eq!(refusal.code, 11, "{}", refusal.msg);
    for word in words {
        assert!(
            refusal.msg.contains(word),
            "no {word:?} in: {}",
            refusal.msg
        );
    }
    node.leftovers().unwrap().assert_none();
    refusal
}

#[test]
fn after_the_deadline_a_missing_logical_port_is_named() {
    let (central, node) = Central::with_node().unwrap();
    let _agent = node.start_agent(&impatient()).unwrap();
    let (web, _) = central.announce(&node, "web", 11).unwrap();
    refused(&node, &web, &["tests_web: no logical port"]);
}

#[test]
fn after_the_deadline_a_dead_ovn_controller_is_named() {
    let (central, node) = Central::with_node().unwrap();
    let _agent = node.start_agent(&impatient()).unwrap();
    let (web, _) = central.schedule(&node, "web", 11).unwrap();
    node.end_controller(Signal::SIGKILL).unwrap();
    refused(
        &node,
        &web,
        &[
            "ovn-controller does not answer",
            "/run/ovn",
            "is it running?",
        ],
    );
}

#[test]
fn after_the_deadline_an_ovn_controller_without_its_database_is_named() {
    let (central, node) = Central::with_node().unwrap();
    let agent = node.start_agent(&impatient()).unwrap();
    let (web, _) = central.schedule(&node, "web", 11).unwrap();
    node.set_key("ovn-remote", "tcp:172.31.0.1:6649").unwrap();
    agent.await_ready(false).unwrap();
    refused(
        &node,
        &web,
        &[
            "ovn-controller is not connected",
            "tcp:172.31.0.1:6649",
            "can't be read",
        ],
    );
}

#[test]
fn after_the_deadline_another_chassis_that_has_the_port_is_named() {
    let (central, node) = Central::with_node().unwrap();
    let other = central.node("node-b", 2).unwrap();
    let there_agent = other.start_agent(&OvnNode::agent_options()).unwrap();
    let here_agent = node.start_agent(&impatient()).unwrap();
    let (there, mut port) = central.announce(&other, "web", 11).unwrap();
    port.node = "node-a".to_owned();
    central.add_port(&port).unwrap();
    there.add().unwrap().success().unwrap();
    central.await_up(&port.name, true).unwrap();

    let mut here = node.pod("web").unwrap();
    here.uid.clone_from(&there.uid);
    let here = here.on_default_network(&port.entry());
    refused(
        &node,
        &here,
        &["claimed by another chassis: node-b", "this is node-a"],
    );
    drop((here_agent, there_agent));
}

#[test]
fn after_the_deadline_a_bridge_that_is_not_ovn_controllers_is_named() {
    let (central, node) = Central::with_node().unwrap();
    node.add_bridge("br-x").unwrap();
    let _agent = node
        .start_agent(&impatient().with(["--bridge", "br-x"]))
        .unwrap();
    let (web, _) = central.schedule(&node, "web", 11).unwrap();
    refused(
        &node,
        &web,
        &["on bridge br-x, and ovn-controller's is br-int"],
    );
}

#[test]
fn after_the_deadline_flows_that_are_not_installed_are_named() {
    let central = Central::start().unwrap();
    let node = central.node_without_controller("node-a", 1).unwrap();
    // The underlay stops with the switch, so the southbound database must be reachable without it.
    node.make_bridge().unwrap();
    node.set_remote(&central.local_remote()).unwrap();
    node.start_controller().unwrap();
    central.await_chassis("node-a").unwrap();
    central.add_switch(&node).unwrap();
    central.sync().unwrap();
    // The database's socket is reached through /proc/PID/root, which a locked-down agent can't enter without that flag.
    let patience = OvnNode::agent_options().with(["--add-timeout", "4", "--proc-netns"]);
    let _agent = node.start_agent(&patience).unwrap();
    let (web, port) = central.announce(&node, "web", 11).unwrap();
    thread::scope(|scope| {
        let add = scope.spawn(|| web.add().unwrap());
        node.await_ofport_of(&web.container).unwrap();
        // The port has its ofport, so ovn-controller claims it; a stopped switch takes no flow.
        node.signal_vswitchd(Signal::SIGSTOP).unwrap();
        central.add_port(&port).unwrap();
        let refusal = add.join().unwrap().error().unwrap();
        node.signal_vswitchd(Signal::SIGCONT).unwrap();
        assert_eq!(refusal.code, 11);
        assert!(
            refusal.msg.contains("tests_web: flows not yet installed"),
            "{}",
            refusal.msg
        );
    });
    node.leftovers().unwrap().assert_none();
}

#[test]
fn after_the_deadline_a_node_that_is_in_no_ovn_network_is_told_so() {
    let (central, node) = Central::with_node().unwrap();
    let _agent = node.start_agent(&impatient()).unwrap();
    let (web, _) = central.schedule(&node, "web", 11).unwrap();
    node.end_controller(Signal::SIGKILL).unwrap();
    node.vsctl(&[
        "--no-wait",
        "remove",
        "open_vswitch",
        ".",
        "external_ids",
        "ovn-remote",
    ])
    .unwrap();
    refused(&node, &web, &["external_ids:ovn-remote is not set"]);
}

#[test]
fn the_southbound_database_is_asked_by_tls_with_the_switchs_keys_or_the_agents_own() {
    let (central, keys) = Central::with_tls().unwrap();
    let node = central.node_without_controller("node-a", 1).unwrap();
    let [key, certificate, ca] = keys.of("node");
    node.vsctl(&["--no-wait", "set-ssl", &key, &certificate, &ca])
        .unwrap();
    node.set_remote("ssl:172.31.0.1:6643").unwrap();
    node.start_controller().unwrap();
    central.await_chassis("node-a").unwrap();
    central.add_switch(&node).unwrap();
    let (web, _) = central.announce(&node, "web", 11).unwrap();
    let agent = node.start_agent(&impatient()).unwrap();
    refused(&node, &web, &["tests_web: no logical port"]);
    drop(agent);

    let own = [
        ("--ovn-private-key", key),
        ("--ovn-certificate", certificate),
        ("--ovn-ca-cert", ca),
    ];
    let own = own
        .into_iter()
        .flat_map(|(flag, file)| [flag.to_owned(), file]);
    node.vsctl(&["--no-wait", "del-ssl"]).unwrap();
    let agent = node.start_agent(&impatient().with(own)).unwrap();
    refused(&node, &web, &["tests_web: no logical port"]);
    drop(agent);

    let _agent = node.start_agent(&impatient()).unwrap();
    refused(&node, &web, &["ssl: needs a private key"]);
}

/// Begins an ADD that OVN will not finish, does something to its port, and returns how the ADD ends.
fn meddled_with(meddle: impl FnOnce(&OvnNode, &str)) -> CniError {
    let (central, node) = Central::with_node().unwrap();
    let _agent = node.start_agent(&OvnNode::agent_options()).unwrap();
    let (web, _) = central.announce(&node, "web", 11).unwrap();
    thread::scope(|scope| {
        let add = scope.spawn(|| web.add().unwrap());
        let row = node.await_ofport_of(&web.container).unwrap();
        meddle(&node, row["name"].as_str().unwrap());
        add.join().unwrap().error().unwrap()
    })
}

#[test]
fn a_wait_ends_when_the_row_is_deleted() {
    let error = meddled_with(|node, port| drop(node.vsctl(&["del-port", "br-int", port]).unwrap()));
    assert!(
        error.msg.contains("was removed by somebody else"),
        "{}",
        error.msg
    );
}

#[test]
fn a_wait_ends_when_the_row_is_given_to_another_logical_port() {
    let error = meddled_with(|node, port| {
        node.vsctl(&[
            "set",
            "interface",
            port,
            "external_ids:iface-id=tests_other",
        ])
        .unwrap();
    });
    assert!(
        error.msg.contains("from tests_web to tests_other"),
        "{}",
        error.msg
    );
}

#[test]
fn a_wait_ends_when_another_row_takes_the_iface_id() {
    let error = meddled_with(|node, _| {
        let internal = [
            "set",
            "interface",
            "thief",
            "type=internal",
            "external_ids:iface-id=tests_web",
        ];
        let command: Vec<&str> = ["add-port", "br-int", "thief", "--"]
            .into_iter()
            .chain(internal)
            .collect();
        node.vsctl(&command).unwrap();
    });
    assert!(
        error.msg.contains("was taken by another port") && error.msg.contains("thief"),
        "{}",
        error.msg
    );
}

#[test]
fn a_wait_ends_when_a_newer_sandbox_comes() {
    let (central, node) = Central::with_node().unwrap();
    let _agent = node.start_agent(&OvnNode::agent_options()).unwrap();
    let (old, port) = central.announce(&node, "web", 11).unwrap();
    let new = old.another_sandbox().unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| old.add().unwrap());
        node.await_ofport_of(&old.container).unwrap();
        let second = scope.spawn(|| new.add().unwrap());
        let superseded = first.join().unwrap().error().unwrap();
        assert_eq!(superseded.code, 100);
        assert!(
            superseded.msg.contains(&new.container),
            "{}",
            superseded.msg
        );
        central.add_port(&port).unwrap();
        second.join().unwrap().success().unwrap();
    });
}

#[test]
fn a_wait_ends_when_the_runtime_kills_the_plugin() {
    let (central, node) = Central::with_node().unwrap();
    let _agent = node.start_agent(&OvnNode::agent_options()).unwrap();
    let (web, port) = central.announce(&node, "web", 11).unwrap();
    let recorder = LinkRecorder::start(node.place()).unwrap();
    let mut plugin = web.spawn("ADD", &conf()).unwrap();
    node.await_ofport_of(&web.container).unwrap();
    plugin.kill().unwrap();
    plugin.wait().unwrap();
    recorder.await_gone(&web.container[..15]).unwrap();
    central.add_port(&port).unwrap();
    web.add().unwrap().success().unwrap();
}

#[test]
fn a_missing_bridge_is_ovn_controllers_to_make() {
    let central = Central::start().unwrap();
    let node = central.node_without_controller("node-a", 1).unwrap();
    let agent = Agent::launch(&node, &impatient()).unwrap();
    let port = LogicalPort::of(&node.pod("web").unwrap(), &node, 11);
    let web = node.pod("web").unwrap().on_default_network(&port.entry());
    refused(
        &node,
        &web,
        &["bridge br-int does not exist", "is ovn-controller running"],
    );
    let status = web.exec("STATUS", &conf()).unwrap().error().unwrap();
    assert_eq!(status.code, 51);
    assert!(
        status.msg.contains("ovn-controller makes it"),
        "{}",
        status.msg
    );
    assert!(
        node.ovsdb_rows("Bridge")
            .unwrap()
            .iter()
            .all(|row| row["name"] != "br-int")
    );

    node.set_remote("tcp:172.31.0.1:6642").unwrap();
    node.start_controller().unwrap();
    agent.await_ready(true).unwrap();
    web.exec("STATUS", &conf()).unwrap().success().unwrap();
}

#[test]
fn status_tells_of_an_ovn_controller_that_is_stopped_or_not_connected() {
    let (central, node) = Central::with_node().unwrap();
    let agent = node.start_agent(&impatient()).unwrap();
    let (web, _) = central.announce(&node, "web", 11).unwrap();
    let status = || web.exec("STATUS", &conf()).unwrap();
    status().success().unwrap();

    node.signal_controller(Signal::SIGSTOP).unwrap();
    let stopped = status().error().unwrap();
    assert_eq!(stopped.code, 50);
    assert!(
        stopped.msg.contains("ovn-controller does not answer"),
        "{}",
        stopped.msg
    );
    node.signal_controller(Signal::SIGCONT).unwrap();
    agent.await_ready(true).unwrap();
    status().success().unwrap();

    node.set_key("ovn-remote", "tcp:172.31.0.1:6649").unwrap();
    agent.await_ready(false).unwrap();
    let alone = status().error().unwrap();
    assert_eq!(alone.code, 50);
    assert!(
        alone.msg.contains("not connected") && alone.msg.contains("tcp:172.31.0.1:6649"),
        "{}",
        alone.msg
    );
}

#[test]
fn without_an_annotation_a_pod_gets_no_address_of_ours() {
    let (_central, node) = Central::with_node().unwrap();
    let _agent = node.start_agent(&impatient()).unwrap();
    let pod = node.pod("web").unwrap();
    let refusal = pod.add().unwrap().error().unwrap();
    assert!(
        refusal.msg.contains("k8s.ovn.org/pod-networks"),
        "{}",
        refusal.msg
    );
    node.leftovers().unwrap().assert_none();
}
