//! What is dead, gone or killed half-way: the right code at once, service as soon as it can be,
//! nothing left.

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
    let node = TestNode::new();
    let agent = Agent::launch(&node, &AgentOptions::default()).unwrap();
    let pod = node.pod("web");
    try_again(&pod.add().error(), "openvswitch/db.sock");
    assert!(links::find(pod.place(), "eth0").is_none());
    node.start_ovsdb_server();
    node.start_vswitchd();
    agent.await_ready(true);
    let address = addresses(&pod.add().success()).unwrap()[0];
    traffic::ping(node.place(), address, 1).unwrap();
}

#[test]
fn with_vswitchd_dead_and_its_database_alive_an_add_is_to_be_tried_again_until_it_lives() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    node.kill_vswitchd();
    let pod = node.pod("web");
    try_again(&pod.add().error(), "ovs-vswitchd");
    node.leftovers().assert_none();
    node.start_vswitchd();
    agent.await_ready(true);
    let address = addresses(&pod.add().success()).unwrap()[0];
    traffic::ping(node.place(), address, 1).unwrap();
    pod.del().success();
    node.leftovers().assert_none();
}

#[test]
fn with_vswitchd_stopped_like_hung_an_add_is_to_be_tried_again() {
    let node = TestNode::with_ovs();
    // Longer than it takes to suspect the switch and to ask it whether it lives.
    node.configure("add-timeout = 5");
    let options = AgentOptions::default().configured();
    let agent = node.start_agent(&options);
    node.signal_vswitchd(Signal::SIGSTOP);
    let pod = node.pod("web");
    try_again(&pod.add().error(), "ovs-vswitchd");
    node.leftovers().assert_none();
    node.configure("add-timeout = 60");
    agent.await_log("add-timeout from 5 to 60");
    node.signal_vswitchd(Signal::SIGCONT);
    pod.add().success();
}

#[test]
fn del_works_while_vswitchd_is_dead() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let pod = node.added_pod("web");
    node.kill_vswitchd();
    pod.del().success();
    node.leftovers().assert_none();
}

#[test]
fn the_database_may_restart_under_the_agent() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let before = node.pod("before");
    let result = before.add().success();
    node.kill_ovsdb_server();
    node.start_ovsdb_server();
    node.await_vswitchd();
    agent.await_ready(true);
    let after = node.added_pod("after");
    traffic::ping(after.place(), addresses(&result).unwrap()[0], 1).unwrap();
    before.check(&result).success();
    for pod in [&before, &after] {
        pod.del().success();
    }
    node.leftovers().assert_none();
}

#[test]
fn a_killed_agents_successor_checks_and_deletes_its_pods() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let pod = node.pod("web");
    let result = pod.add().success();
    let agent = agent.kill_and_restart();
    pod.check(&result).success();
    traffic::ping(node.place(), addresses(&result).unwrap()[0], 1).unwrap();
    pod.del().success();
    node.leftovers().assert_none();
    assert!(agent.stop().success());
}

#[test]
fn a_stopped_agent_leaves_its_pods_wired_and_no_process() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let [web, db] = ["web", "db"].map(|name| node.pod(name));
    web.add().success();
    let address = addresses(&db.add().success()).unwrap()[0];
    assert!(agent.stop().success());
    assert_eq!(node.processes(), ["ovs-vswitchd", "ovsdb-server"]);
    traffic::ping(web.place(), address, 1).unwrap();
}

#[test]
fn without_an_agent_the_plugin_names_the_socket() {
    let node = TestNode::new();
    let pod = node.pod("web");
    for command in ["ADD", "CHECK", "GC"] {
        let mut conf = conf();
        conf["timeoutSeconds"] = 1.into();
        conf["prevResult"] =
            serde_json::json!({"cniVersion": "1.1.0", "interfaces": [], "ips": []});
        try_again(&pod.exec(command, &conf).error(), "/run/podwire/agent.sock");
    }
}

#[test]
fn an_add_whose_plugin_is_killed_rolls_back_by_itself() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let pod = node.pod("web");
    // A stopped vswitchd holds the ADD at its wait for the ofport: both ends are there by then.
    node.signal_vswitchd(Signal::SIGSTOP);
    let recorder = LinkRecorder::start(node.place());
    let mut plugin = Command::new(plugin_binary());
    plugin.current_dir("/").envs(pod.environment("ADD"));
    plugin
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = node.place().run(|| plugin.spawn()).unwrap();
    std::io::Write::write_all(
        &mut child.stdin.take().unwrap(),
        conf().to_string().as_bytes(),
    )
    .unwrap();
    recorder.await_born(pod.host_link());
    child.kill().unwrap();
    child.wait().unwrap();
    recorder.await_gone(pod.host_link());
    // The pod's line is free again only when the roll-back has ended.
    pod.del().success();
    node.leftovers().assert_none();
    node.signal_vswitchd(Signal::SIGCONT);
    pod.add().success();
}

#[test]
fn a_pod_that_ends_without_a_del_is_cleared_by_its_late_del() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let mut pod: Pod<'_> = node.pod("web");
    pod.add().success();
    pod.remove_netns();
    let _agent = agent.kill_and_restart();
    pod.exec_with(
        "DEL",
        conf().to_string().as_bytes(),
        &[("CNI_NETNS", Some(""))],
    )
    .success();
    node.leftovers().assert_none();
}
