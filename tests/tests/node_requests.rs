//! What a node asks the API server: each kind once, page by page, and then its watch.

use std::collections::BTreeMap;

use podwire_tests::NodeRun;
use podwire_tests::apiserver::{self, ApiServer, endpoints, pod, service};
use podwire_tests::ovn::{Central, OvnNode};
use serde_json::json;

/// More than a page of a list.
const SERVICES: u16 = 150;
/// More nodes than the one of the test.
const NODES: u16 = 20;
const CHANGES: u16 = 100;

fn name_of(number: u16) -> String {
    format!("service-{number}")
}

fn address_of(number: u16) -> String {
    let [high, low] = number.to_be_bytes();
    format!("10.96.{}.{low}", high + 1)
}

/// A service by a port of the node, whose slice has these endpoints of hosts.
fn outer(number: u16, ends: &[&str]) -> [serde_json::Value; 2] {
    let name = name_of(number);
    let mut service = service("default", &name, &address_of(number), 80);
    service["spec"]["type"] = "NodePort".into();
    service["spec"]["ports"][0]["nodePort"] = (30000 + number).into();
    [service, endpoints("default", &name, ends, 80)]
}

#[test]
fn a_node_lists_each_kind_once_and_learns_the_rest_by_its_watches() {
    let central = Central::start();
    let node = central.bare_node("node-a", 1);
    let server = ApiServer::start_in(node.place());
    server.apply(node.api_object());
    for number in 0..NODES {
        let address = format!("172.31.1.{number}");
        server.apply(apiserver::node(&format!("other-{number}"), &address));
    }
    for number in 0..SERVICES {
        for object in outer(number, &["10.128.2.11"]) {
            server.apply(object);
        }
    }
    let run = NodeRun::start(&node, node.host_arguments("run", Some(&server)));
    run.await_log("services follow the cluster", 1);
    node.start_controller();
    let options = OvnNode::agent_options().watching(&server, "node-a");
    let agent = node.start_agent(&options);
    server.await_watches(4);

    for number in 0..CHANGES {
        let pod = pod("node-a", "default", &format!("p{number}"), "uid", json!({}));
        server.apply(pod);
        let [_, slice] = outer(number, &["10.128.2.11", "10.128.3.11"]);
        server.apply(slice);
        // A heartbeat.
        let mut beats = apiserver::node("other-1", "172.31.1.1");
        beats["status"]["conditions"] = json!([{ "type": "Ready", "lastHeartbeatTime": number }]);
        server.apply(beats);
    }
    let [service, slice] = outer(SERVICES, &["10.128.2.11"]);
    server.apply(slice);
    server.apply(service);
    let last = (30000 + SERVICES).to_string();
    run.await_services(|| node.run("nft", "list ruleset").contains(&last));

    let mut asked = BTreeMap::new();
    for request in server.requests() {
        let what = match request.is_watch() {
            true => "watch",
            // What the node role asks before it begins, for the server's clock.
            false if request.parameter("limit") == Some("1") => "first of all",
            false if request.method == "GET" => "read",
            false => continue,
        };
        let page = request.parameter("continue").unwrap_or_default().to_owned();
        *asked.entry((request.path, what, page)).or_insert(0) += 1;
    }
    let mut kinds = BTreeMap::new();
    for ((path, what, _), count) in &asked {
        assert_eq!(*count, 1, "{asked:#?}");
        *kinds.entry((path.as_str(), *what)).or_insert(0) += 1;
    }
    let expected = [
        (("/api/v1/nodes", "first of all"), 1),
        (("/api/v1/nodes", "read"), 1),
        (("/api/v1/nodes", "watch"), 1),
        (("/api/v1/pods", "read"), 1),
        (("/api/v1/pods", "watch"), 1),
        (("/api/v1/services", "read"), 2),
        (("/api/v1/services", "watch"), 1),
        (("/apis/discovery.k8s.io/v1/endpointslices", "read"), 2),
        (("/apis/discovery.k8s.io/v1/endpointslices", "watch"), 1),
    ];
    assert_eq!(kinds, BTreeMap::from(expected));
    agent.stop();
    assert!(run.stop().success());
}
