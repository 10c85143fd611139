//! DELs that find no agent: they succeed, wait in the spool, and are carried out before anything
//! else.

use std::os::unix::fs::PermissionsExt as _;

use podwire_tests::annotation::ipv4;
use podwire_tests::{AgentOptions, TestNode, conf_of_version, traffic};

const SPOOL: &str = "/run/podwire/spool";

fn options() -> AgentOptions {
    AgentOptions::for_numbered_pods()
}

fn spooled(node: &TestNode) -> Vec<std::path::PathBuf> {
    let files = std::fs::read_dir(node.path(SPOOL)).unwrap();
    files.map(|file| file.unwrap().path()).collect()
}

#[test]
fn a_del_without_an_agent_succeeds_and_is_carried_out_before_the_next_one_is_ready() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&options());
    let [one, two, living] = [11, 12, 13].map(|number| node.wired_pod(number));
    agent.kill();
    for pod in [&one, &two, &two] {
        assert!(pod.del().success().is_null());
    }
    let files = spooled(&node);
    assert_eq!(files.len(), 3, "one file each");
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&node.path(SPOOL)), 0o700);
    for file in &files {
        assert_eq!(mode(file), 0o600);
        assert!(
            std::fs::read_to_string(file)
                .unwrap()
                .contains("K8S_POD_NAME=pod1")
        );
    }
    assert!(node.interface_of(&one.container).is_some());

    let _agent = node.start_agent(&options());
    assert!(spooled(&node).is_empty());
    for pod in [&one, &two] {
        assert!(node.interface_of(&pod.container).is_none());
    }
    traffic::ping(node.place(), ipv4(13).parse().unwrap(), 1).unwrap();
    living.del().success();
    node.leftovers().assert_none();
}

#[test]
fn a_del_before_any_agent_has_run_makes_the_spool_for_root_alone() {
    let node = TestNode::with_ovs();
    let pod = node.pod("web");
    assert!(!node.path("/run/podwire").exists());
    pod.del().success();
    let mode = |path: &str| node.path(path).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("/run/podwire"), mode(SPOOL)), (0o700, 0o700));
    assert_eq!(spooled(&node).len(), 1);
    let _agent = node.start_agent(&AgentOptions::default());
    assert!(spooled(&node).is_empty());
}

#[test]
fn a_spooled_del_that_is_older_than_the_attachment_it_names_is_dropped() {
    let node = TestNode::with_ovs();
    let pod = node.numbered_pod(11);
    pod.del().success();
    let [old] = <[_; 1]>::try_from(spooled(&node)).unwrap();
    let text = std::fs::read(&old).unwrap();
    let agent = node.start_agent(&options());
    // The container id comes again; then the old file does, as if the agent had been late to see
    // it.
    pod.add().success();
    let agent = agent.kill_and_restart_with(|| std::fs::write(&old, &text).unwrap());
    assert!(spooled(&node).is_empty());
    traffic::ping(node.place(), ipv4(11).parse().unwrap(), 1).unwrap();
    pod.del().success();
    node.leftovers().assert_none();
    drop(agent);
}

#[test]
fn a_del_that_is_spooled_under_a_living_agent_is_carried_out_as_it_comes() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&options());
    let pod = node.wired_pod(11);
    let recorder = podwire_tests::links::LinkRecorder::start(node.place());
    // With its socket out of the way the agent lives and nobody can reach it.
    let (socket, aside) = (agent.socket(), agent.socket().with_extension("aside"));
    std::fs::rename(&socket, &aside).unwrap();
    pod.del().success();
    recorder.await_gone(pod.host_link());
    std::fs::rename(&aside, &socket).unwrap();
    // In line behind the spooled one, so that this one is done when that is.
    pod.del().success();
    node.leftovers().assert_none();
}

#[test]
fn a_full_spool_is_to_be_tried_again_and_so_is_one_that_others_may_write_to() {
    let node = TestNode::new();
    let pod = node.pod("web");
    pod.del().success();
    for number in 1..podwire_tests::SPOOL_ENTRIES {
        std::fs::write(node.path(&format!("{SPOOL}/{number}.del")), b"{}").unwrap();
    }
    let error = pod.del().error();
    assert_eq!(error.code, 11);
    for words in ["/run/podwire/agent.sock", "/run/podwire/spool is full"] {
        assert!(error.msg.contains(words), "{error:?}");
    }
    assert_eq!(spooled(&node).len(), podwire_tests::SPOOL_ENTRIES);

    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(node.path(SPOOL), open).unwrap();
    let error = pod.del().error();
    assert_eq!(error.code, 11);
    assert!(error.msg.contains("777"), "{error:?}");
}

#[test]
fn what_is_no_del_in_the_spool_is_removed_and_hinders_nothing() {
    let node = TestNode::with_ovs();
    let pod = node.pod("web");
    pod.del().success();
    let good = std::fs::read_to_string(&spooled(&node)[0]).unwrap();
    std::fs::write(node.path(&format!("{SPOOL}/1.del")), b"{").unwrap();
    std::fs::write(
        node.path(&format!("{SPOOL}/2.del")),
        good.replace("\"DEL\"", "\"ADD\""),
    )
    .unwrap();
    let _agent = node.start_agent(&AgentOptions::default());
    assert!(spooled(&node).is_empty());
    node.leftovers().assert_none();
}

#[test]
fn a_spooled_del_tells_the_delegated_ipam_plugin_too() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let pod = node.pod("web");
    let data = "/run/ipam";
    // Debian's host-local knows no later one.
    let mut conf = conf_of_version("1.0.0");
    conf["ipam"] =
        serde_json::json!({"type": "host-local", "dataDir": data, "subnet": "10.77.0.0/24"});
    pod.exec("ADD", &conf).success();
    let held = || {
        std::fs::read_dir(node.path("/run/ipam/pods"))
            .unwrap()
            .flatten()
            .filter(|file| file.file_name().to_string_lossy().starts_with("10.77."))
            .count()
    };
    assert_eq!(held(), 1);
    agent.kill();
    pod.exec("DEL", &conf).success();
    let [file] = &spooled(&node)[..] else {
        panic!("one file");
    };
    let name = file.file_name().unwrap().to_string_lossy();
    let agent = node.start_agent(&AgentOptions::default());
    agent.await_no_file(&format!("{SPOOL}/{name}"));
    assert_eq!(held(), 0);
    node.leftovers().assert_none();
}
