//! What a fresh reader found broken, and what has held since it was fixed.

use podwire_tests::{AgentOptions, Pod, TestNode, conf, hex, links};
use serde_json::{Value, json};

fn with_address(address: &str) -> Value {
    let mut conf = conf();
    conf["args"] = json!({"cni": {"ips": [address]}});
    conf
}

#[test]
fn a_pod_that_takes_over_the_name_of_a_dead_ones_port_keeps_its_link() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let shared = hex(15);
    let mut dead = node.pod("dead");
    dead.container = format!("{shared}{}", hex(49));
    dead.add().success();
    let host_end = links::LinkRecorder::start(node.place());
    dead.remove_netns();
    host_end.await_gone(&shared);
    let mut new = node.pod("new");
    new.container = format!("{shared}{}", hex(49));
    new.add().success();
    assert!(
        links::find(new.place(), "eth0").is_some(),
        "ADD succeeded and removed the link that it had made"
    );
}

#[test]
fn an_add_that_fails_leaves_an_older_sandbox_the_address_that_it_still_has() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let conf = with_address("10.186.0.77/22");
    let living = node.pod("web");
    living.exec("ADD", &conf).success();
    let failing = living.another_sandbox();
    failing.run("ip", "link add eth0 type veth peer other");
    failing.exec("ADD", &conf).error();
    let other = node.pod("other");
    assert_eq!(other.exec("ADD", &conf).error().code, 102);
}

#[test]
fn del_ends_well_when_the_agent_died_while_it_wrote_the_intent_log() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let pod = node.pod("web");
    let entry = format!(
        "/run/podwire/attachments/{}:eth0:pods.adding",
        pod.container
    );
    std::fs::write(node.path(&entry), b"").unwrap();
    pod.del().success();
    node.leftovers().assert_none();
}

#[test]
fn a_container_that_comes_again_after_an_outage_keeps_its_port() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let pods: Vec<Pod<'_>> = (0..24)
        .map(|number| node.pod(&format!("web-{number}")))
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
    each(|pod| pod.add().success());
    node.stop_vswitchd();
    node.stop_ovsdb_server();
    each(|pod| pod.del().success());
    node.start_ovsdb_server();
    node.start_vswitchd();
    let results = each(|pod| pod.add().success());
    for (pod, result) in pods.iter().zip(&results) {
        pod.check(result).success();
    }
}

/// At most a handful of lines in the time of ten answers: a loop writes thousands.
#[test]
fn a_bridge_that_cannot_be_made_is_said_once_and_not_tried_without_end() {
    let node = TestNode::with_ovs();
    node.add_bridge("br0");
    node.vsctl("add-port br0 br-int -- set interface br-int type=internal");
    let agent = podwire_tests::Agent::launch(&node, &AgentOptions::default()).unwrap();
    for _ in 0..10 {
        node.pod("status").exec("STATUS", &conf()).error();
    }
    let told = agent.log().matches("the bridge can't be created").count();
    assert!(told <= 2, "told {told} times");
}
