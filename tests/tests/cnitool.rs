//! The CNI project's own client, and a configuration of three members.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use podwire_tests::process::{Finished, finish};
use podwire_tests::{AgentOptions, Pod, TestNode, links, plugin_binary, traffic};

/// Where `make cnitool` puts it.
fn cnitool() -> PathBuf {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/cnitool");
    assert!(
        tool.is_file(),
        "{} is missing: `make cnitool` builds it",
        tool.display()
    );
    tool
}

fn call(node: &TestNode, pod: &Pod<'_>, verb: &str) -> Finished {
    let mut command = Command::new(cnitool());
    command
        .args([verb, "pods", &pod.netns])
        .env("NETCONFPATH", "/run/net.d");
    command.env("CNI_PATH", plugin_binary().unwrap().parent().unwrap());
    node.place()
        .run(|| finish(command, b"", Duration::from_secs(60)))
        .unwrap()
        .unwrap()
}

fn configure(node: &TestNode, text: &str) {
    std::fs::create_dir_all(node.path("/run/net.d")).unwrap();
    std::fs::write(node.path("/run/net.d/10-pods.conf"), text).unwrap();
}

#[test]
fn cnitool_adds_checks_and_deletes_with_a_conf_of_three_members() {
    let node = TestNode::with_ovs().unwrap();
    let _agent = node.start_agent(&AgentOptions::default()).unwrap();
    configure(
        &node,
        r#"{"cniVersion":"1.1.0","name":"pods","type":"podwire-cni"}"#,
    );
    let pod = node.pod("web").unwrap();
    let added = call(&node, &pod, "add").success("cnitool add").unwrap();
    assert!(added.contains("10.186.0."), "{added}");
    let address = links::addresses(pod.place(), "eth0").unwrap()[0]
        .split('/')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    traffic::ping(node.place(), address, 1).unwrap();
    call(&node, &pod, "check").success("cnitool check").unwrap();
    call(&node, &pod, "del").success("cnitool del").unwrap();
    node.leftovers().unwrap().assert_none();
}
