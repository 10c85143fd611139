//! The log of a real agent: one line for each operation, with all that a search needs.

use podwire_tests::annotation::entry;
use podwire_tests::apiserver::ApiServer;
use podwire_tests::{Agent, AgentOptions, TestNode, conf};
use serde_json::{Value, json};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// The lines that are about operations' ends.
fn ended(agent: &Agent<'_>) -> Vec<Value> {
    let log = agent.log();
    let lines = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line.get("outcome").is_some()).collect()
}

#[test]
fn each_operation_has_one_line_with_pod_container_duration_and_outcome() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.pod("web").on_default_network(&entry(11));
    let result = pod.add().success();
    pod.check(&result).success();
    pod.del().success();
    let bad = node.pod("bad");
    let bad = bad.on_default_network(&json!({ "mac_address": "no" }));
    let error = bad.add().error();
    let lines = ended(&agent);
    let verbs: Vec<_> = lines
        .iter()
        .map(|line| line["verb"].as_str().unwrap())
        .collect();
    assert_eq!(verbs, ["ADD", "CHECK", "DEL", "ADD"]);
    for line in &lines[..3] {
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["outcome"], "ok");
        assert_eq!(line["pod"], "tests/web");
        assert_eq!(line["container"], pod.container.as_str());
        assert_eq!(line["ifname"], "eth0");
        assert!(line["duration_ms"].as_f64().unwrap() > 0.0, "{line}");
        assert!(
            line.get("code").is_none() && line.get("trace_id").is_none(),
            "{line}"
        );
    }
    assert_eq!(lines[3]["level"], "WARN");
    assert_eq!(lines[3]["message"], "ADD failed");
    assert_eq!(lines[3]["outcome"], "failed");
    assert_eq!(lines[3]["code"], error.code);
    assert_eq!(lines[3]["error"], error.msg.as_str());
}

#[test]
fn the_first_line_names_mode_and_servers_with_what_sets_them() {
    let node = TestNode::with_ovs();
    let server = ApiServer::start_in(node.place());
    let url = server.url();
    let options = AgentOptions::default().with(format!("--k8s-apiserver {url} --node-name a"));
    let agent = node.start_agent(&options);
    let log = agent.log();
    let first: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(first["message"], "starting");
    let settings = first["settings"].as_str().unwrap();
    let server = format!("k8s-apiserver = \"{url}\" (--k8s-apiserver)");
    let others = [r#"mode = "plain" (default)"#, "/run/openvswitch/db.sock"];
    for part in others.into_iter().chain([server.as_str()]) {
        assert!(settings.contains(part), "no {part}: {settings}");
    }
}

#[test]
fn an_api_server_that_nobody_reaches_is_named_with_its_address() {
    let node = TestNode::with_ovs();
    let options = AgentOptions::default()
        .with("--k8s-apiserver http://192.0.2.7:6443 --node-name a --sources kube");
    let agent = Agent::launch(&node, &options).unwrap();
    let reason = "API server http://192.0.2.7:6443: client error (Connect): tcp connect error";
    agent.await_log(reason);
}

#[test]
fn at_level_debug_the_steps_have_a_line_of_their_own() {
    let node = TestNode::with_ovs();
    let options = AgentOptions::default().with("--log podwire=debug");
    let agent = node.start_agent(&options);
    let pod = node.added_pod("web");
    assert_eq!(ended(&agent).len(), 1);
    let log = agent.log();
    let steps = log
        .lines()
        .find(|line| line.contains("\"ADD steps\""))
        .unwrap();
    let steps: Value = serde_json::from_str(steps).unwrap();
    let phases = steps["phases"].as_str().unwrap();
    assert!(
        phases.starts_with("queue ") && phases.contains(", intent log "),
        "{phases}"
    );
    pod.del().success();
}

#[test]
fn a_good_traceparent_is_in_the_log_and_in_the_trace_and_a_bad_one_costs_nothing() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let pod = node.pod("web");
    let text = conf().to_string();
    let call = |verb, parent| {
        let changes = [("TRACEPARENT", Some(parent))];
        pod.exec_with(verb, text.as_bytes(), &changes)
    };
    call("ADD", PARENT).success();
    call("DEL", &PARENT.to_uppercase()).success();
    let lines = ended(&agent);
    assert_eq!(lines[0]["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(lines[0]["parent_id"], "b7ad6b7169203331");
    assert!(lines[1].get("trace_id").is_none(), "{}", lines[1]);
    let traces = agent.get_json("/v1/traces");
    assert_eq!(traces["operations"][0]["traceparent"], PARENT);
    assert!(traces["operations"][1].get("traceparent").is_none());
}

#[test]
fn a_status_that_says_what_the_last_one_said_is_not_said_again() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let pod = node.pod("web");
    for _ in 0..3 {
        pod.exec("STATUS", &conf()).success();
    }
    assert_eq!(ended(&agent).len(), 1);
}
