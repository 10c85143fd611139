//! What a fresh reader found broken, and what has held since it was mended.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use podwire_tests::{AgentOptions, Pod, TestNode, conf, hex, links};
use serde_json::{Value, json};

fn with_address(address: &str) -> Value {
    let mut conf = conf();
    conf["args"] = json!({"cni": {"ips": [address]}});
    conf
}

#[test]
fn a_pod_that_takes_over_the_name_of_a_dead_ones_port_keeps_its_link() {
    let node = TestNode::with_ovs().unwrap();
    let _agent = node.start_agent(&AgentOptions::default()).unwrap();
    let shared = hex(15);
    let mut dead = node.pod("dead").unwrap();
    dead.container = format!("{shared}{}", hex(49));
    dead.add().unwrap().success().unwrap();
    let host_end = links::LinkRecorder::start(node.place()).unwrap();
    dead.remove_netns().unwrap();
    host_end.await_gone(&shared).unwrap();
    let mut new = node.pod("new").unwrap();
    new.container = format!("{shared}{}", hex(49));
    new.add().unwrap().success().unwrap();
    assert!(
        links::find(new.place(), "eth0").unwrap().is_some(),
        "ADD succeeded and removed the link that it had made"
    );
}

#[test]
fn an_add_that_fails_leaves_an_older_sandbox_the_address_that_it_still_has() {
    let node = TestNode::with_ovs().unwrap();
    let _agent = node.start_agent(&AgentOptions::default()).unwrap();
    let conf = with_address("10.186.0.77/22");
    let living = node.pod("web").unwrap();
    living.exec("ADD", &conf).unwrap().success().unwrap();
    let failing = living.another_sandbox().unwrap();
    failing
        .run(
            "ip",
            &["link", "add", "eth0", "type", "veth", "peer", "other"],
        )
        .unwrap();
    failing.exec("ADD", &conf).unwrap().error().unwrap();
    let other = node.pod("other").unwrap();
    assert_eq!(other.exec("ADD", &conf).unwrap().error().unwrap().code, 102);
}

#[test]
fn del_ends_well_when_the_agent_died_while_it_wrote_the_intent_log() {
    let node = TestNode::with_ovs().unwrap();
    let _agent = node.start_agent(&AgentOptions::default()).unwrap();
    let pod = node.pod("web").unwrap();
    let entry = format!(
        "/run/podwire/attachments/{}:eth0:pods.adding",
        pod.container
    );
    std::fs::write(node.path(&entry), b"").unwrap();
    pod.del().unwrap().success().unwrap();
    node.leftovers().unwrap().assert_none();
}

#[test]
fn a_container_that_comes_again_after_an_outage_keeps_its_port() {
    let node = TestNode::with_ovs().unwrap();
    let _agent = node.start_agent(&AgentOptions::default()).unwrap();
    let pods: Vec<Pod<'_>> = (0..24)
        .map(|number| node.pod(&format!("web-{number}")).unwrap())
        .collect();
    let each = |verb: fn(&Pod<'_>) -> Value| -> Vec<Value> {
        std::thread::scope(|scope| {
            let running: Vec<_> = pods
                .iter()
                .map(|pod| scope.spawn(move || verb(pod)))
                .collect();
            running.into_iter().map(|it| it.join().unwrap()).collect()
        })
    };
    each(|pod| pod.add().unwrap().success().unwrap());
    node.stop_vswitchd().unwrap();
    node.stop_ovsdb_server().unwrap();
    each(|pod| pod.del().unwrap().success().unwrap());
    node.start_ovsdb_server().unwrap();
    node.start_vswitchd().unwrap();
    let results = each(|pod| pod.add().unwrap().success().unwrap());
    for (pod, result) in pods.iter().zip(&results) {
        pod.check(result).unwrap().success().unwrap();
    }
}

/// At most a handful of lines in the time of ten answers: a loop writes thousands.
#[test]
fn a_bridge_that_cannot_be_made_is_said_once_and_not_tried_without_end() {
    let node = TestNode::with_ovs().unwrap();
    node.add_bridge("br0").unwrap();
    node.vsctl(&[
        "add-port",
        "br0",
        "br-int",
        "--",
        "set",
        "interface",
        "br-int",
        "type=internal",
    ])
    .unwrap();
    let agent = podwire_tests::Agent::launch(&node, &AgentOptions::default()).unwrap();
    for _ in 0..10 {
        node.pod("status")
            .unwrap()
            .exec("STATUS", &conf())
            .unwrap()
            .error()
            .unwrap();
    }
    let told = agent
        .log()
        .unwrap()
        .matches("the bridge can't be made")
        .count();
    assert!(told <= 2, "told {told} times");
}
