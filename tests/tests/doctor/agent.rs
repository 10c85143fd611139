//! The agent: that it runs, who may reach it, and what it says of itself.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use podwire_tests::{Agent, AgentOptions, TestNode, conf, hex};
use serde_json::json;

use crate::patient::Patient;
use crate::with_ovs;

#[test]
fn a_node_with_nothing_but_the_plugin() {
    let node = TestNode::new();
    let mut patient = Patient::new(&node, AgentOptions::default());
    patient.healthy_after(&["database-silent", "agent-silent", "no-conf"]);
    let conf = fs::read_to_string(node.path("/run/cni/net.d/10-podwire.conflist")).unwrap();
    assert!(conf.contains("podwire-cni"), "{conf}");
    patient.serves();
}

#[test]
fn an_agent_that_died_and_rows_whose_links_are_gone() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    let link = patient.wire("web");
    patient.agent.take().unwrap().kill();
    node.run("ip", format!("link del {link}"));
    patient.healthy_after(&["agent-silent", "ports-without-links"]);
    assert_eq!(patient.followed, ["podwire agent &"]);
    patient.serves();
}

/// A cgroup in which kubelet would have the agent's container. Dropping it removes it.
struct PodsCgroup(PathBuf);

impl PodsCgroup {
    fn of(agent: &Agent<'_>) -> PodsCgroup {
        let root = Path::new("/sys/fs/cgroup");
        let hierarchy = match root.join("cgroup.procs").exists() {
            true => root.to_owned(),
            false => root.join("pids"),
        };
        let cgroup = hierarchy.join(format!("kubepods-{}", hex(8)));
        fs::create_dir(&cgroup).unwrap();
        let cgroup = PodsCgroup(cgroup);
        fs::write(cgroup.0.join("cgroup.procs"), agent.pid().to_string()).unwrap();
        cgroup
    }
}

impl Drop for PodsCgroup {
    fn drop(&mut self) {
        // Its processes are the agent's, which has ended.
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn an_agent_that_hangs_whoever_starts_it() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    let hang = |patient: &Patient<'_>| {
        let agent = patient.agent.as_ref().unwrap();
        agent.signal(Signal::SIGSTOP);
    };
    hang(&patient);
    patient.healthy_after(&["agent-silent", "no answer within 5 s"]);
    assert!(patient.followed[0].ends_with("podwire agent &"));

    fs::create_dir_all(node.path("/run/systemd/system")).unwrap();
    fs::write(node.path("/run/systemd/system/podwire.service"), "").unwrap();
    hang(&patient);
    patient.healthy_after(&["agent-silent"]);
    assert_eq!(patient.followed[1], "systemctl restart podwire");
    patient.stop_agent();
    patient.healthy_after(&["agent-silent"]);
    assert_eq!(patient.followed[2], "systemctl start podwire");

    // kubelet starts the container again.
    patient.is_supervised = true;
    let cgroup = PodsCgroup::of(patient.agent.as_ref().unwrap());
    hang(&patient);
    let killed = format!("kill -KILL {}", patient.agent.as_ref().unwrap().pid());
    patient.healthy_after(&["agent-silent"]);
    assert_eq!(patient.followed[3..], [killed]);
    patient.serves();
    drop(cgroup);
}

#[test]
fn rights_of_the_socket_and_of_its_directory() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    let mode = |path: &str| fs::metadata(node.path(path)).unwrap().permissions().mode() & 0o777;
    node.shell(
        "chmod 666 /run/podwire/agent.sock; chmod 755 /run/podwire; chown 1 \
         /run/podwire/agent.sock",
    );
    patient.healthy_after(&[
        "socket-mode",
        "has mode 755",
        "socket-owner",
        "has mode 666",
    ]);
    assert_eq!(mode("/run/podwire/agent.sock"), 0o600);
    assert_eq!(mode("/run/podwire"), 0o700);
}

#[test]
fn an_api_server_that_is_not_there() {
    let node = with_ovs();
    let patient = Patient::new(&node, AgentOptions::default());
    let url = ["--k8s-apiserver", "http://127.0.0.1:1", "--node-name", "n1"];
    let agent = Agent::launch(&node, &AgentOptions::default().with(url)).unwrap();
    agent.await_log("can't watch this node's pods");
    let words = "the pods of http://127.0.0.1:1 for node n1 can't be read";
    patient.complains_of("source-unreadable", words);
}

#[test]
fn an_agent_that_would_serve_no_add() {
    let node = with_ovs();
    let patient = Patient::healthy(&node, AgentOptions::default());
    node.vsctl("set bridge br-int protocols=OpenFlow10");
    node.kill_vswitchd();
    node.start_vswitchd();
    patient.agent.as_ref().unwrap().await_ready(false);
    patient.complains_of("not-ready", "it would serve no ADD: port security");
}

#[test]
fn dels_that_can_not_be_carried_out_and_a_spool_that_is_none() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    let plugins = "/usr/lib/cni";
    node.run("mount", format!("-t tmpfs plugins {plugins}"));
    let plugin = node.path(&format!("{plugins}/failing"));
    let failing = r#"{"cniVersion":"1.1.0","code":100,"msg":"no"}"#;
    fs::write(&plugin, format!("#!/bin/sh\necho '{failing}'\nexit 1\n")).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    let pod = node.added_pod("web");
    patient.stop_agent();
    let mut delegated = conf();
    delegated["ipam"] = json!({"type": "failing"});
    pod.exec("DEL", &delegated).success();
    patient.start_agent();
    patient.complains_of("spool-waits", "could not be carried out: 1");
    node.run("chown", "1 /run/podwire/spool");
    patient.complains_of("spool-unreadable", "open /run/podwire/spool");
}

#[test]
fn a_subnet_without_an_address_left() {
    let node = with_ovs();
    let options = AgentOptions::default().subnet("10.9.0.0/30");
    let patient = Patient::healthy(&node, options);
    patient.wire("web");
    patient.complains_of("subnet-full", "subnet 10.9.0.0/30 has no address left");
}
