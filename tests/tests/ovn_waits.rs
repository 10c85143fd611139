//! The waits of OVN mode: what ends them early, what they say when the time is up, and what STATUS
//! says before.

use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;
use podwire_tests::links::LinkRecorder;
use podwire_tests::ovn::{Central, LogicalPort, OvnNode};
use podwire_tests::{Agent, AgentOptions, CniError, Pod, conf, traffic};

/// Does not wait longer than for what can't come.
fn impatient() -> AgentOptions {
    OvnNode::agent_options().with("--add-timeout 1")
}

/// Fails an ADD, which must leave nothing.
#[track_caller]
fn refused(node: &OvnNode, pod: &Pod<'_>, words: &[&str]) -> CniError {
    let refusal = pod.add().error();
    assert_eq!(refusal.code, 11, "{}", refusal.msg);
    for word in words {
        assert!(
            refusal.msg.contains(word),
            "no {word:?} in: {}",
            refusal.msg
        );
    }
    node.leftovers().assert_none();
    refusal
}

#[test]
fn after_the_deadline_a_missing_logical_port_is_named() {
    let (central, node) = Central::with_node();
    let _agent = node.start_agent(&impatient());
    let (web, _) = central.announce(&node, "web", 11);
    refused(&node, &web, &["tests_web: no logical port"]);
}

#[test]
fn after_the_deadline_a_dead_ovn_controller_is_named() {
    let (central, node) = Central::with_node();
    let _agent = node.start_agent(&impatient());
    let (web, _) = central.schedule(&node, "web", 11);
    node.end_controller(Signal::SIGKILL);
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
    let (central, node) = Central::with_node();
    let agent = node.start_agent(&impatient());
    let (web, _) = central.schedule(&node, "web", 11);
    node.set_key("ovn-remote", "tcp:172.31.0.1:6649");
    agent.await_ready(false);
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
    let (central, node) = Central::with_node();
    let other = central.node("node-b", 2);
    let there_agent = other.start_agent(&OvnNode::agent_options());
    let here_agent = node.start_agent(&impatient());
    let (there, mut port) = central.announce(&other, "web", 11);
    port.node = "node-a".to_owned();
    central.add_port(&port);
    there.add().success();
    central.await_up(&port.name, true);

    let mut here = node.pod("web");
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
    let (central, node) = Central::with_node();
    node.add_bridge("br-x");
    let _agent = node.start_agent(&impatient().with("--bridge br-x"));
    let (web, _) = central.schedule(&node, "web", 11);
    refused(
        &node,
        &web,
        &["on bridge br-x, and ovn-controller's is br-int"],
    );
}

#[test]
fn after_the_deadline_flows_that_are_not_installed_are_named() {
    let central = Central::start();
    let node = central.node_without_controller("node-a", 1);
    // The underlay stops with the switch, so the southbound database must be reachable without it.
    node.make_bridge();
    node.set_remote(&central.local_remote());
    node.start_controller();
    central.await_chassis("node-a");
    central.add_switch(&node);
    central.sync();
    // The database's socket is reached through /proc/PID/root, which a locked-down agent can't
    // enter without that flag.
    let patience = OvnNode::agent_options().with("--add-timeout 4 --proc-netns");
    let _agent = node.start_agent(&patience);
    let (web, port) = central.announce(&node, "web", 11);
    thread::scope(|scope| {
        let add = scope.spawn(|| web.add());
        node.await_ofport_of(&web.container);
        // The port has its ofport, so ovn-controller claims it; a stopped switch takes no flow.
        node.signal_vswitchd(Signal::SIGSTOP);
        central.add_port(&port);
        let refusal = add.join().unwrap().error();
        node.signal_vswitchd(Signal::SIGCONT);
        assert_eq!(refusal.code, 11);
        assert!(
            refusal.msg.contains("tests_web: flows not yet installed"),
            "{}",
            refusal.msg
        );
    });
    node.leftovers().assert_none();
}

#[test]
fn after_the_deadline_a_node_that_is_in_no_ovn_network_is_told_so() {
    let (central, node) = Central::with_node();
    let _agent = node.start_agent(&impatient());
    let (web, _) = central.schedule(&node, "web", 11);
    node.end_controller(Signal::SIGKILL);
    node.vsctl("--no-wait remove open_vswitch . external_ids ovn-remote");
    refused(&node, &web, &["external_ids:ovn-remote is not set"]);
}

#[test]
fn the_southbound_database_is_asked_by_tls_with_the_switchs_keys_or_the_agents_own() {
    let (central, keys) = Central::with_tls();
    let node = central.node_without_controller("node-a", 1);
    let [key, certificate, ca] = keys.of("node");
    node.vsctl(format!("--no-wait set-ssl {key} {certificate} {ca}"));
    node.set_remote("ssl:172.31.0.1:6643");
    node.start_controller();
    central.await_chassis("node-a");
    central.add_switch(&node);
    let (web, _) = central.announce(&node, "web", 11);
    let agent = node.start_agent(&impatient());
    refused(&node, &web, &["tests_web: no logical port"]);
    drop(agent);

    let own = format!("--ovn-private-key {key} --ovn-certificate {certificate} --ovn-ca-cert {ca}");
    node.vsctl("--no-wait del-ssl");
    let agent = node.start_agent(&impatient().with(own));
    refused(&node, &web, &["tests_web: no logical port"]);
    drop(agent);

    let _agent = node.start_agent(&impatient());
    refused(&node, &web, &["ssl: needs a private key"]);
}

#[test]
fn a_slow_add_says_how_long_it_waited_for_ovn_northd() {
    let (central, node) = Central::with_node();
    let agent = node.start_agent(&OvnNode::agent_options());
    let (quick, _) = central.schedule(&node, "quick", 10);
    quick.add().success();
    let (web, port) = central.announce(&node, "web", 11);
    let told = "ovn-controller has not got the logical port: waiting for ovn-northd";
    let added = thread::scope(|scope| {
        let add = scope.spawn(|| web.add().success());
        agent.await_log(told);
        let added = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        central.add_port(&port);
        add.join().unwrap();
        added.as_secs_f64() * 1e6
    });
    let traces = agent.get_json("/v1/traces");
    let end = |pod: &Pod<'_>, step: &str| {
        let operations = traces["operations"].as_array().unwrap();
        let add = operations
            .iter()
            .find(|it| it["container"] == *pod.container);
        let phases = add?["phases"].as_array().unwrap();
        let phase = phases.iter().find(|it| it["name"] == step)?;
        let times = [
            &add?["startedUnixMicros"],
            &phase["startMicros"],
            &phase["durationMicros"],
        ];
        Some(times.map(|it| it.as_f64().unwrap()).iter().sum::<f64>())
    };
    let northd = "ovn-northd: logical port";
    assert!(end(&web, northd).unwrap() >= added, "{added}: {traces:#}");
    assert_eq!(end(&web, "ovn-controller: installed"), None);
    assert_eq!(end(&quick, northd), None);
    assert!(end(&quick, "ovn-controller: installed").is_some());
}

/// Begins an ADD that OVN will not finish, does something to its port, and returns how the ADD
/// ends.
fn meddled_with(meddle: impl FnOnce(&OvnNode, &str)) -> CniError {
    let (central, node) = Central::with_node();
    let _agent = node.start_agent(&OvnNode::agent_options());
    let (web, _) = central.announce(&node, "web", 11);
    thread::scope(|scope| {
        let add = scope.spawn(|| web.add());
        let row = node.await_ofport_of(&web.container);
        meddle(&node, row["name"].as_str().unwrap());
        add.join().unwrap().error()
    })
}

#[test]
fn a_wait_ends_when_the_row_is_deleted() {
    let error = meddled_with(|node, port| drop(node.vsctl(format!("del-port br-int {port}"))));
    assert!(
        error
            .msg
            .contains("somebody else removed the Interface row"),
        "{}",
        error.msg
    );
}

#[test]
fn a_wait_ends_when_the_row_is_given_to_another_logical_port() {
    let error = meddled_with(|node, port| {
        node.vsctl(format!(
            "set interface {port} external_ids:iface-id=tests_other"
        ));
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
        node.vsctl(
            "add-port br-int thief \
             -- set interface thief type=internal external_ids:iface-id=tests_web",
        );
    });
    assert!(
        error.msg.contains("another port took iface-id") && error.msg.contains("thief"),
        "{}",
        error.msg
    );
}

#[test]
fn a_wait_ends_when_a_newer_sandbox_comes() {
    let (central, node) = Central::with_node();
    let _agent = node.start_agent(&OvnNode::agent_options());
    let (old, port) = central.announce(&node, "web", 11);
    let new = old.another_sandbox();
    thread::scope(|scope| {
        let first = scope.spawn(|| old.add());
        node.await_ofport_of(&old.container);
        let second = scope.spawn(|| new.add());
        let superseded = first.join().unwrap().error();
        assert_eq!(superseded.code, 100);
        assert!(
            superseded.msg.contains(&new.container),
            "{}",
            superseded.msg
        );
        central.add_port(&port);
        second.join().unwrap().success();
    });
}

#[test]
fn a_wait_ends_when_the_runtime_kills_the_plugin() {
    let (central, node) = Central::with_node();
    let _agent = node.start_agent(&OvnNode::agent_options());
    let (web, port) = central.announce(&node, "web", 11);
    let recorder = LinkRecorder::start(node.place());
    let mut plugin = web.spawn("ADD", &conf());
    node.await_ofport_of(&web.container);
    plugin.kill().unwrap();
    plugin.wait().unwrap();
    recorder.await_gone(web.host_link());
    central.add_port(&port);
    web.add().success();
}

#[test]
fn a_missing_bridge_is_ovn_controllers_to_make() {
    let central = Central::start();
    let node = central.node_without_controller("node-a", 1);
    let agent = Agent::launch(&node, &impatient()).unwrap();
    let port = LogicalPort::of(&node.pod("web"), &node, 11);
    let web = node.pod("web").on_default_network(&port.entry());
    refused(
        &node,
        &web,
        &["bridge br-int does not exist", "is ovn-controller running"],
    );
    let status = web.exec("STATUS", &conf()).error();
    assert_eq!(status.code, 51);
    assert!(
        status.msg.contains("ovn-controller creates it"),
        "{}",
        status.msg
    );
    assert!(
        node.ovsdb_rows("Bridge")
            .iter()
            .all(|row| row["name"] != "br-int")
    );

    node.set_remote("tcp:172.31.0.1:6642");
    node.start_controller();
    agent.await_ready(true);
    web.exec("STATUS", &conf()).success();
}

#[test]
fn status_tells_of_an_ovn_controller_that_is_stopped_or_not_connected() {
    let (central, node) = Central::with_node();
    let agent = node.start_agent(&impatient());
    let (web, _) = central.announce(&node, "web", 11);
    let status = || web.exec("STATUS", &conf());
    status().success();

    node.signal_controller(Signal::SIGSTOP);
    let stopped = status().error();
    assert_eq!(stopped.code, 50);
    assert!(
        stopped.msg.contains("ovn-controller does not answer"),
        "{}",
        stopped.msg
    );
    node.signal_controller(Signal::SIGCONT);
    agent.await_ready(true);
    status().success();

    node.set_key("ovn-remote", "tcp:172.31.0.1:6649");
    agent.await_ready(false);
    let alone = status().error();
    assert_eq!(alone.code, 50);
    assert!(
        alone.msg.contains("not connected") && alone.msg.contains("tcp:172.31.0.1:6649"),
        "{}",
        alone.msg
    );
}

#[test]
fn a_node_with_running_pods_stays_ready_without_the_southbound_database() {
    let (central, node) = Central::with_node();
    let agent = node.start_agent(&impatient());
    let (web, _) = central.schedule(&node, "web", 11);
    web.add().success();
    let (db, port) = central.schedule(&node, "db", 12);
    db.add().success();

    node.set_key("ovn-remote", "tcp:172.31.0.1:6649");
    agent.await_ready(false);
    for _ in 0..2 {
        web.exec("STATUS", &conf()).success();
    }
    let told = "no new pod can be wired; the node stays ready";
    assert_eq!(agent.log().matches(told).count(), 1, "{}", agent.log());
    let address = port.ipv4().parse().unwrap();
    traffic::ping_until_answered(web.place(), address).unwrap();
    let (new, _) = central.schedule(&node, "new", 13);
    let refusal = new.add().error();
    let reason = "ovn-controller is not connected to its southbound database";
    assert!(refusal.msg.contains(reason), "{}", refusal.msg);

    // Nobody would lose anything by an error now, and no more pods come here.
    for pod in [&web, &db] {
        pod.del().success();
    }
    let alone = web.exec("STATUS", &conf()).error();
    assert!(alone.msg.contains(reason), "{}", alone.msg);
    node.leftovers().assert_none();
}

#[test]
fn without_an_annotation_a_pod_gets_no_address_of_ours() {
    let (_central, node) = Central::with_node();
    let _agent = node.start_agent(&impatient());
    let pod = node.pod("web");
    let refusal = pod.add().error();
    assert!(
        refusal.msg.contains("k8s.ovn.org/pod-networks"),
        "{}",
        refusal.msg
    );
    node.leftovers().assert_none();
}
