//! What the tools print for programs is what docs/tools.schema.json says, field by field.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::process::finish;
use podwire_tests::schema::{assert_valid, schema, validator};
use podwire_tests::{AgentOptions, TestNode, controller_binary, links};
use serde_json::{Value, json};

/// Runs a tool, and compares its JSON with the schema.
#[track_caller]
fn run(node: &TestNode, name: &str, arguments: &str) -> Value {
    let (_, json) = node.podwire_json(format!("{arguments} -o json"));
    assert_valid(name, &json);
    json
}

#[test]
fn each_tool_prints_what_its_schema_says() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let [web, db, mut job] = ["web", "db", "job"].map(|name| node.added_pod(name));
    let ports = run(&node, "ports", "ports");
    assert!(ports["ports"][0]["addedUnixMicros"].as_u64() > Some(1_600_000_000_000_000));
    run(&node, "trace", "trace web db");
    run(&node, "trace", "trace web db --src 10.9.9.9");
    run(&node, "version", "version");

    let host_end = links::LinkRecorder::start(node.place());
    job.remove_netns();
    host_end.await_gone(job.host_link());
    node.run("ip", format!("link del {}", db.host_link()));
    node.run("ip", format!("link set {} down", web.host_link()));
    let mut conf = podwire_tests::conf();
    conf["args"] = json!({"cni": {"ips": ["10.186.0.2/22"]}});
    let failing = node.pod("failing");
    failing.exec("ADD", &conf).error();

    run(&node, "ports", "ports");
    run(&node, "timings", "timings --verbs add,del,status");
    run(&node, "check", "check");
    run(&node, "doctor", "doctor");
    let left = run(&node, "gc", "gc --dry-run");
    assert_eq!(left["leftovers"][0]["pod"], "tests/job");
    run(&node, "gc", "gc");
    let status = run(&node, "status", "status");
    assert_eq!(status["failures"][0]["pod"], "tests/failing");

    let live = node.podwire_live("ports --watch -o json");
    let line = live.await_line(&["changed"]);
    assert_valid("portsChange", &serde_json::from_str(&line).unwrap());
}

#[test]
fn each_tool_prints_what_its_schema_says_in_ovn_mode() {
    let (central, node) = Central::with_node();
    let agent = node.start_agent(&OvnNode::agent_options());
    for (name, number) in [("web", 11), ("db", 12)] {
        let (pod, _) = central.schedule(&node, name, number);
        pod.add().success();
    }
    let status = run(&node, "status", "status");
    assert_eq!(status["controller"]["ok"], true);
    run(&node, "doctor", "doctor");
    let traced = run(&node, "trace", "trace web db");
    assert!(
        traced["ovn"]["way"]["steps"][0]["stage"].is_string(),
        "{traced:#}"
    );
    node.end_controller(Signal::SIGKILL);
    run(&node, "status", "status");
    run(&node, "doctor", "doctor");
    agent.stop();
    run(&node, "version", "version");
    run(&node, "doctor", "doctor");
}

#[test]
fn bundle_and_sysdump_say_of_themselves_what_their_schemas_say() {
    let read = |path: PathBuf| -> Value {
        let text = std::fs::read_to_string(path).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let node = TestNode::with_ovs();
    node.podwire("bundle /run/b");
    let bundle = read(node.path("/run/b/bundle.json"));
    assert_valid("bundle", &bundle);
    for list in ["missing", "absent"] {
        assert!(!bundle[list].as_array().unwrap().is_empty(), "{bundle:#}");
    }

    let server = ApiServer::start();
    server.apply(apiserver::node("a", "192.0.2.1"));
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(controller_binary());
    let path = directory.path().join("dump");
    command.args(["cluster", "sysdump", "--k8s-apiserver", &server.url()]);
    command.arg(&path);
    finish(command, b"", Duration::from_secs(60)).unwrap();
    let sysdump = read(path.join("sysdump.json"));
    assert_valid("sysdump", &sysdump);
    assert_eq!(sysdump["missing"][0]["file"], "nodes/a/bundle.json");
}

#[test]
fn yaml_says_the_same_as_json() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let _pod = node.added_pod("web");
    for tool in ["ports", "timings", "check", "gc", "doctor", "version"] {
        let (_, json) = node.podwire_json(format!("{tool} -o json"));
        let yaml = node.podwire(format!("{tool} -o yaml")).stdout;
        let read: Value = serde_saphyr::from_str(&yaml).unwrap();
        assert_eq!(read, json, "{tool}:\n{yaml}");
    }
}

/// A field that is not in the schema must fail the tests above, and one without a description tells
/// nobody anything.
#[test]
fn the_schema_is_closed_and_describes_every_field() {
    fn look(place: &str, value: &Value) {
        if let Some(properties) = value.get("properties").and_then(Value::as_object) {
            assert_eq!(value["additionalProperties"], false, "{place} is open");
            for (name, property) in properties {
                let described = property["description"].is_string();
                assert!(described, "{place}.{name} has no description");
            }
        }
        match value {
            Value::Object(object) => object
                .iter()
                .for_each(|(name, inner)| look(&format!("{place}/{name}"), inner)),
            Value::Array(list) => list.iter().for_each(|inner| look(place, inner)),
            _ => {}
        }
    }
    look("", &schema());
    assert!(!validator("gc").is_valid(&json!({"leftovers": [], "qosRows": 0, "more": 1})));
}
