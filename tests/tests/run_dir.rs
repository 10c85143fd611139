//! The agent goes on when its run directory, or a part of it, is removed or full: cleaners of
//! temporary files do that.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;

use podwire_tests::{Agent, AgentOptions, Pod, TestNode, conf};

const RUN_DIR: &str = "/run/podwire";

fn status(pod: &Pod<'_>) -> Result<(), u64> {
    let ran = pod.exec("STATUS", &conf());
    match ran.succeeded() {
        true => Ok(()),
        false => Err(ran.error().code),
    }
}

fn wire_and_delete(pod: &Pod<'_>) {
    pod.add().success();
    pod.del().success();
}

/// That a second agent finds the run directory taken. (Whether it is noticed to answer depends on
/// the first one.)
fn assert_locked(node: &TestNode, first: &Agent<'_>) {
    if let Ok(second) = Agent::launch(node, &AgentOptions::default()) {
        assert!(!second.await_end().success());
    }
    // They share a log.
    first.await_log("another podwire agent uses /run/podwire");
}

#[test]
fn a_socket_that_was_removed_is_made_again() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let pod = node.pod("web");
    fs::remove_file(agent.socket()).unwrap();
    wire_and_delete(&pod);
    assert_eq!(status(&pod), Ok(()));
    agent.stop();
    assert!(!node.path("/run/podwire/agent.sock").exists());
}

#[test]
fn a_run_directory_that_was_removed_is_made_again_and_no_second_agent_takes_it() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let [older, newer] = ["older", "newer"].map(|name| node.pod(name));
    older.add().success();
    // The agent may create its socket again in there before the directory itself is removed.
    while let Err(error) = fs::remove_dir_all(node.path(RUN_DIR)) {
        assert_eq!(error.kind(), ErrorKind::DirectoryNotEmpty);
    }
    wire_and_delete(&newer);
    older.del().success();
    assert_locked(&node, &agent);
    agent.await_ready(true);
    node.leftovers().assert_none();
}

#[test]
fn with_the_lock_file_of_an_older_agent_removed_no_second_agent_takes_over() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let _ = fs::remove_file(node.path("/run/podwire/lock"));
    assert_locked(&node, &agent);
}

#[test]
fn an_intent_log_that_was_removed_is_made_again_by_the_next_add() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let pod = node.pod("web");
    fs::remove_dir_all(node.path("/run/podwire/attachments")).unwrap();
    assert_eq!(status(&pod), Ok(()));
    wire_and_delete(&pod);
    node.leftovers().assert_none();
}

#[test]
fn status_and_probes_say_that_the_run_directory_is_full() {
    let node = TestNode::with_ovs();
    fs::create_dir_all(node.path(RUN_DIR)).unwrap();
    node.run(
        "mount",
        format!("-t tmpfs -o size=64k,mode=0700 tmpfs {RUN_DIR}"),
    );
    let agent = node.start_agent(&AgentOptions::default());
    let pod = node.pod("web");
    let filler = node.path("/run/podwire/filler");
    // It ends when nothing fits any more.
    fs::write(&filler, vec![0; 1 << 20]).unwrap_err();
    pod.add().error();
    assert_eq!(status(&pod), Err(50));
    agent.await_health("the full directory", |health| {
        health["reasons"]
            .to_string()
            .contains("No space left on device")
    });
    fs::remove_file(&filler).unwrap();
    assert_eq!(status(&pod), Ok(()));
    wire_and_delete(&pod);
    node.leftovers().assert_none();
}

#[test]
fn no_symlink_below_the_run_directory_is_followed() {
    let node = TestNode::with_ovs();
    let victims = node.path("/run/victims");
    fs::create_dir_all(&victims).unwrap();
    fs::create_dir_all(node.path(RUN_DIR)).unwrap();
    for name in [
        "addresses.json",
        "addresses.json.tmp",
        "netns.json.tmp",
        "gateways.json.tmp",
    ] {
        fs::write(victims.join(name), "precious").unwrap();
        symlink(
            format!("/run/victims/{name}"),
            node.path("/run/podwire").join(name),
        )
        .unwrap();
    }
    symlink("/run/victims", node.path("/run/podwire/attachments")).unwrap();
    let refused = Agent::launch(&node, &AgentOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("attachments"), "{refused}");
    fs::remove_file(node.path("/run/podwire/attachments")).unwrap();
    // The first start finds links in its way, and removes them.
    let first = Agent::launch(&node, &AgentOptions::default());
    drop(first);
    let _agent = node.start_agent(&AgentOptions::default());
    wire_and_delete(&node.pod("web"));
    for file in fs::read_dir(&victims).unwrap().flatten() {
        assert_eq!(
            fs::read(file.path()).unwrap(),
            b"precious",
            "{:?}",
            file.path()
        );
    }
}
