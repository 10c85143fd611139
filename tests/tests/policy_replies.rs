//! Isolated pods on a network without any service: their answers pass.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::controller::Controller;
use podwire_tests::ovn::{Central, OvnNode};
use serde_json::json;

#[test]
fn a_pod_that_may_send_nothing_answers_those_who_may_ask() {
    let central = Central::start();
    let node = central.node("node-a", 1);
    let server = ApiServer::start_in(central.machine().place());
    server.apply(apiserver::node("node-a", &node.tunnel_address()));
    let controller = Controller::start(&central, &server, "one", "");
    controller.await_log("all rows are in sync");
    let agent = node.start_agent(&OvnNode::agent_options());
    let (web, addresses) = node.wired(&server, "web", "web");
    let (client, client_addresses) = node.wired(&server, "client", "client");
    server.apply(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": web.namespace, "name": "mute", "uid": "uid-of-mute" },
        "spec": {
            "podSelector": { "matchLabels": { "app": "web" } },
            "policyTypes": ["Egress"],
        },
    }));
    let northbound = central.northbound();
    let condition = json!([["name", "==", "NP:tests:Egress"]]);
    let waited = northbound.wait("ACL", condition, "!=", &["name"], json!([]));
    waited.unwrap();
    central.sync();

    let listening = [(&web, addresses[0]), (&client, client_addresses[0])].map(|(pod, address)| {
        let to = SocketAddr::new(address, 8080);
        (to, pod.place().run(|| TcpListener::bind(to)).unwrap())
    });
    let connects = |pod: &podwire_tests::Pod<'_>, (to, _): &(SocketAddr, TcpListener), limit| {
        let limit = Duration::from_secs(limit);
        pod.place()
            .run(|| TcpStream::connect_timeout(to, limit).is_ok())
    };
    assert!(
        connects(&client, &listening[0], 10),
        "its answers are dropped"
    );
    assert!(
        !connects(&web, &listening[1], 1),
        "it sends of its own accord"
    );
    drop(agent);
    assert!(controller.stop().success());
}
