//! What is dead, gone or killed half-way: the right code at once, service as soon as it can be,
//! nothing left.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use podwire_tests::links::LinkRecorder;
use podwire_tests::{
    Agent, AgentOptions, CniError, Pod, TestNode, addresses, conf, links, plugin_binary, traffic,
};

fn try_again(error: &CniError, what: &str) {
    assert_eq!(error.code, 11, "{error:?}");
    error.assert_names(&[what]);
}

#[test]
fn without_open_vswitch_an_add_is_to_be_tried_again_and_served_as_soon_as_it_runs() {
    let node = TestNode::new().unwrap();
    let agent = Agent::launch(&node, &AgentOptions::default()).unwrap();
    let pod = node.pod("web").unwrap();
    try_again(&pod.add().unwrap().error().unwrap(), "openvswitch/db.sock");
    assert!(links::find(pod.place(), "eth0").unwrap().is_none());
    node.start_ovsdb_server().unwrap();
    node.start_vswitchd().unwrap();
    agent.await_ready(true).unwrap();
    let address = addresses(&pod.add().unwrap().success().unwrap()).unwrap()[0];
    traffic::ping(node.place(), address, 1).unwrap();
}

#[test]
fn with_vswitchd_dead_behind_a_living_database_an_add_is_to_be_tried_again_and_served_as_soon_as_it_lives()
 {
    let node = TestNode::with_ovs().unwrap();
    let agent = node.start_agent(&AgentOptions::default()).unwrap();
    node.kill_vswitchd().unwrap();
    let pod = node.pod("web").unwrap();
    try_again(&pod.add().unwrap().error().unwrap(), "ovs-vswitchd");
    node.leftovers().unwrap().assert_none();
    node.start_vswitchd().unwrap();
    agent.await_ready(true).unwrap();
    let address = addresses(&pod.add().unwrap().success().unwrap()).unwrap()[0];
    traffic::ping(node.place(), address, 1).unwrap();
    pod.del().unwrap().success().unwrap();
    node.leftovers().unwrap().assert_none();
}

#[test]
fn with_vswitchd_stopped_like_hung_an_add_is_to_be_tried_again() {
    let node = TestNode::with_ovs().unwrap();
    // Longer than it takes to suspect the switch and to ask it whether it lives.
    node.configure("add-timeout = 5").unwrap();
    let options = AgentOptions::default().configured();
    let agent = node.start_agent(&options).unwrap();
    node.signal_vswitchd(Signal::SIGSTOP).unwrap();
    let pod = node.pod("web").unwrap();
    try_again(&pod.add().unwrap().error().unwrap(), "ovs-vswitchd");
    node.leftovers().unwrap().assert_none();
    node.configure("add-timeout = 60").unwrap();
    agent.await_log("add-timeout from 5 to 60").unwrap();
    node.signal_vswitchd(Signal::SIGCONT).unwrap();
    pod.add().unwrap().success().unwrap();
}

#[test]
fn del_works_while_vswitchd_is_dead() {
    let node = TestNode::with_ovs().unwrap();
    let _agent = node.start_agent(&AgentOptions::default()).unwrap();
    let pod = node.pod("web").unwrap();
    pod.add().unwrap().success().unwrap();
    node.kill_vswitchd().unwrap();
    pod.del().unwrap().success().unwrap();
    node.leftovers().unwrap().assert_none();
}

#[test]
fn the_database_may_restart_under_the_agent() {
    let node = TestNode::with_ovs().unwrap();
    let agent = node.start_agent(&AgentOptions::default()).unwrap();
    let before = node.pod("before").unwrap();
    let result = before.add().unwrap().success().unwrap();
    node.kill_ovsdb_server().unwrap();
    node.start_ovsdb_server().unwrap();
    node.await_vswitchd().unwrap();
    agent.await_ready(true).unwrap();
    let after = node.pod("after").unwrap();
    after.add().unwrap().success().unwrap();
    traffic::ping(after.place(), addresses(&result).unwrap()[0], 1).unwrap();
    before.check(&result).unwrap().success().unwrap();
    for pod in [&before, &after] {
        pod.del().unwrap().success().unwrap();
    }
    node.leftovers().unwrap().assert_none();
}

#[test]
fn a_killed_agents_successor_checks_and_deletes_its_pods() {
    let node = TestNode::with_ovs().unwrap();
    let agent = node.start_agent(&AgentOptions::default()).unwrap();
    let pod = node.pod("web").unwrap();
    let result = pod.add().unwrap().success().unwrap();
    let agent = agent.kill_and_restart().unwrap();
    pod.check(&result).unwrap().success().unwrap();
    traffic::ping(node.place(), addresses(&result).unwrap()[0], 1).unwrap();
    pod.del().unwrap().success().unwrap();
    node.leftovers().unwrap().assert_none();
    assert!(agent.stop().unwrap().success());
}

#[test]
fn a_stopped_agent_leaves_its_pods_wired_and_no_process() {
    let node = TestNode::with_ovs().unwrap();
    let agent = node.start_agent(&AgentOptions::default()).unwrap();
    let [web, db] = ["web", "db"].map(|name| node.pod(name).unwrap());
    web.add().unwrap().success().unwrap();
    let address = addresses(&db.add().unwrap().success().unwrap()).unwrap()[0];
    assert!(agent.stop().unwrap().success());
    assert_eq!(node.processes().unwrap(), ["ovs-vswitchd", "ovsdb-server"]);
    traffic::ping(web.place(), address, 1).unwrap();
}

#[test]
fn without_an_agent_the_plugin_names_the_socket() {
    let node = TestNode::new().unwrap();
    let pod = node.pod("web").unwrap();
    for command in ["ADD", "CHECK", "GC"] {
        let mut conf = conf();
        conf["timeoutSeconds"] = 1.into();
        conf["prevResult"] =
            serde_json::json!({"cniVersion": "1.1.0", "interfaces": [], "ips": []});
        try_again(
            &pod.exec(command, &conf).unwrap().error().unwrap(),
            "/run/podwire/agent.sock",
        );
    }
}

#[test]
fn an_add_whose_plugin_is_killed_rolls_back_by_itself() {
    let node = TestNode::with_ovs().unwrap();
    let _agent = node.start_agent(&AgentOptions::default()).unwrap();
    let pod = node.pod("web").unwrap();
    // A stopped vswitchd holds the ADD at its wait for the ofport: both ends are there by then.
    node.signal_vswitchd(Signal::SIGSTOP).unwrap();
    let recorder = LinkRecorder::start(node.place()).unwrap();
    let mut plugin = Command::new(plugin_binary().unwrap());
    plugin.current_dir("/").envs(pod.environment("ADD"));
    plugin
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = node.place().run(|| plugin.spawn()).unwrap().unwrap();
    std::io::Write::write_all(
        &mut child.stdin.take().unwrap(),
        conf().to_string().as_bytes(),
    )
    .unwrap();
    recorder.await_born(&pod.container[..15]).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    recorder.await_gone(&pod.container[..15]).unwrap();
    // The pod's line is free again only when the roll-back has ended.
    pod.del().unwrap().success().unwrap();
    node.leftovers().unwrap().assert_none();
    node.signal_vswitchd(Signal::SIGCONT).unwrap();
    pod.add().unwrap().success().unwrap();
}

#[test]
fn a_pod_that_ends_without_a_del_is_cleared_by_its_late_del() {
    let node = TestNode::with_ovs().unwrap();
    let agent = node.start_agent(&AgentOptions::default()).unwrap();
    let mut pod: Pod<'_> = node.pod("web").unwrap();
    pod.add().unwrap().success().unwrap();
    pod.remove_netns().unwrap();
    let _agent = agent.kill_and_restart().unwrap();
    pod.exec_with(
        "DEL",
        conf().to_string().as_bytes(),
        &[("CNI_NETNS", Some(""))],
    )
    .unwrap()
    .success()
    .unwrap();
    node.leftovers().unwrap().assert_none();
}
