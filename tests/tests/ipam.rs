//! Addresses that the agent itself gives out, from the node's subnets.

use std::collections::BTreeSet;

use podwire_tests::annotation::SUBNET_V6;
use podwire_tests::{AgentOptions, CniError, Pod, TestNode, conf};
use serde_json::{Value, json};

fn addresses(result: &Value) -> Vec<String> {
    result["ips"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ip| ip["address"].as_str().unwrap().to_owned())
        .collect()
}

fn added(pod: &Pod<'_>) -> String {
    addresses(&pod.add().success()).remove(0)
}

fn text(error: &CniError) -> String {
    format!("{} {}", error.msg, error.details)
}

#[test]
fn every_pod_has_an_address_of_its_own_and_never_the_gateways() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default().subnet("10.9.0.0/28"));
    let pods: Vec<_> = (0..13)
        .map(|number| node.pod(&format!("pod{number}")))
        .collect();
    let given: BTreeSet<_> = pods.iter().map(added).collect();
    // 16 less the network's, the broadcast and the gateway's.
    let all: BTreeSet<_> = (2..15).map(|host| format!("10.9.0.{host}/28")).collect();
    assert_eq!(given, all);
}

#[test]
fn a_released_address_rests_while_another_is_free() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default().subnet("10.9.0.0/28"));
    let mut seen = Vec::new();
    for number in 0..13 {
        let pod = node.pod(&format!("pod{number}"));
        seen.push(added(&pod));
        pod.del().success();
    }
    let distinct: BTreeSet<_> = seen.iter().collect();
    assert_eq!(distinct.len(), 13, "{seen:?}");
    // Only now there is none that was never used: the one that has rested longest.
    assert_eq!(added(&node.pod("next")), seen[0]);
}

#[test]
fn an_address_released_right_before_a_restart_rests_after_it() {
    let node = TestNode::with_ovs();
    let options = AgentOptions::default().subnet("10.9.0.0/28");
    let agent = node.start_agent(&options);
    let pod = node.pod("first");
    let released = added(&pod);
    pod.del().success();
    agent.stop();
    let _agent = node.start_agent(&options);
    assert_ne!(added(&node.pod("second")), released);
}

#[test]
fn ranges_exclusions_and_the_gateway_are_as_configured() {
    let node = TestNode::with_ovs();
    let subnet = "10.9.0.0/24,gateway=10.9.0.254,range=10.9.0.10-10.9.0.12,exclude=10.9.0.11";
    let _agent = node.start_agent(&AgentOptions::default().subnet(subnet));
    let [one, two] = ["one", "two"].map(|name| node.pod(name));
    let result = one.add().success();
    assert_eq!(addresses(&result), ["10.9.0.10/24"]);
    assert_eq!(result["ips"][0]["gateway"], "10.9.0.254");
    assert_eq!(added(&two), "10.9.0.12/24");
}

#[test]
fn what_is_held_outlives_the_agent() {
    let node = TestNode::with_ovs();
    let options = AgentOptions::default().subnet("10.9.0.0/29");
    let agent = node.start_agent(&options);
    let pods: Vec<_> = (0..4)
        .map(|number| node.pod(&format!("pod{number}")))
        .collect();
    let mut given: Vec<_> = pods.iter().map(added).collect();
    let _agent = agent.kill_and_restart();
    given.push(added(&node.pod("after")));
    let distinct: BTreeSet<_> = given.iter().collect();
    assert_eq!(distinct.len(), 5, "{given:?}");
    // All five are held.
    node.pod("none").add().error();
}

#[test]
fn an_address_can_be_asked_for_by_capability_and_by_args() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default().subnet("10.9.0.0/24"));
    let mut by_capability = conf();
    by_capability["capabilities"]["ips"] = json!(true);
    by_capability["capabilities"]["mac"] = json!(true);
    by_capability["runtimeConfig"] = json!({"ips": ["10.9.0.40/24"], "mac": "0a:58:0a:09:00:28"});
    let one = node.pod("one");
    let result = one.exec("ADD", &by_capability).success();
    assert_eq!(addresses(&result), ["10.9.0.40/24"]);
    let inside = result["interfaces"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it.get("sandbox").is_some())
        .unwrap();
    assert_eq!(inside["mac"], "0a:58:0a:09:00:28");

    let mut by_args = conf();
    by_args["args"] = json!({"cni": {"ips": ["10.9.0.41"]}});
    let two = node.pod("two");
    let result = two.exec("ADD", &by_args).success();
    assert_eq!(addresses(&result), ["10.9.0.41/24"]);
}

#[test]
fn a_taken_address_is_refused_and_its_owner_named() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default().subnet("10.9.0.0/24"));
    let mut conf = conf();
    conf["args"] = json!({"cni": {"ips": ["10.9.0.40"]}});
    let owner = node.pod("owner");
    owner.exec("ADD", &conf).success();
    let late = node.pod("late");
    let error = late.exec("ADD", &conf).error();
    assert!(
        text(&error).contains("10.9.0.40") && text(&error).contains("tests/owner"),
        "{error:?}"
    );
    assert!(error.code >= 100, "no retry will help: {error:?}");
    owner.del().success();
    late.exec("ADD", &conf).success();
}

#[test]
fn an_address_of_an_annotation_is_not_given_to_another_pod() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(
        &AgentOptions::default()
            .subnet("10.244.1.0/24,range=10.244.1.2-10.244.1.3")
            .subnet(SUBNET_V6),
    );
    let _annotated = node.wired_pod(2);
    assert_eq!(added(&node.pod("plain")), "10.244.1.3/24");
}

#[test]
fn a_pool_that_is_used_up_says_so_and_serves_again_after_a_del() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default().subnet("10.9.0.0/30"));
    let holder = node.pod("holder");
    let address = added(&holder);
    let late = node.pod("late");
    let error = late.add().error();
    assert!(text(&error).contains("10.9.0.0/30"), "{error:?}");
    holder.del().success();
    node.leftovers().assert_none();
    assert_eq!(added(&late), address);
}

#[test]
fn a_failed_add_gives_its_address_back() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default().subnet("10.9.0.0/30"));
    let pod = node.pod("web");
    pod.run("ip", "link add eth0 type veth peer name other");
    pod.add().error();
    pod.run("ip", "link del eth0");
    assert_eq!(added(&pod), "10.9.0.2/30");
}
