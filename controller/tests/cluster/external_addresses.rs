//! External IPs and load balancers' addresses, which whoever creates services names.

use podwire_tests::apiserver::{ApiServer, endpoints, service};
use podwire_tests::ovn::Central;
use serde_json::{Value, json};

use crate::fixture::{Running, populate};

/// A service made on a day of 2026, with these addresses and ports.
fn naming(name: &str, day: u8, external: &[&str], ports: &[u16]) -> Value {
    let mut service = service("default", name, &format!("10.96.0.{}", 100 + day), 80);
    service["metadata"]["creationTimestamp"] = format!("2026-01-{day:02}T00:00:00Z").into();
    service["spec"]["externalIPs"] = json!(external);
    let port = |port: &u16| json!({ "name": port.to_string(), "protocol": "TCP", "port": port });
    service["spec"]["ports"] = ports.iter().map(port).collect();
    service
}

/// The addresses of a service's load balancer, once these are all.
fn await_addresses(central: &Central, name: &str, day: u8, ports: &[u16], external: &[&str]) {
    let own = ports
        .iter()
        .map(|port| format!("10.96.0.{}:{port}", 100 + day));
    let all = own.chain(external.iter().map(|it| (*it).to_owned()));
    let vips: Vec<_> = all.map(|vip| [vip, String::new()]).collect();
    let row = format!("Service_default/{name}_TCP_cluster");
    let condition = json!([["name", "==", row], ["vips", "==", ["map", vips]]]);
    let northbound = central.northbound();
    let found = northbound.wait("Load_Balancer", condition, "!=", &["name"], json!([]));
    found.unwrap_or_else(|error| panic!("{name}: {external:?}: {error}"));
}

fn await_told(server: &ApiServer, name: &str, parts: &[&str]) {
    let of = |event: &Value| event["involvedObject"]["name"] == name;
    let tells = |event: &&Value| {
        let message = event["message"].as_str().unwrap();
        parts.iter().all(|part| message.contains(part))
    };
    server.await_events(&format!("{parts:?} of {name}"), |events| {
        events.iter().filter(|it| of(it)).any(|it| tells(&it))
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn no_service_gets_an_address_that_something_else_has_and_keeps_its_others() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    let mut own = endpoints("default", "kubernetes", &["203.0.113.9"], 6443);
    own["metadata"]["name"] = "kubernetes".into();
    server.apply(own);
    // It is the oldest, but what it names is a cluster IP, and addresses of the API server, a node
    // and the pods' network.
    let bad = [
        "10.96.0.10",
        "203.0.113.9",
        "192.0.2.1",
        "10.244.9.9",
        "198.51.100.1",
    ];
    let mut thief = naming("thief", 1, &bad, &[80]);
    thief["status"]["loadBalancer"]["ingress"] = json!([{ "ip": "192.0.2.2" }]);
    server.apply(thief);
    server.apply(naming("a-younger", 2, &["198.51.100.1"], &[80, 443]));
    let mut controller = Running::start(&central, &server, &[]);
    let progress = controller.idle().await;
    assert_eq!(progress.problems, 2);
    await_addresses(&central, "thief", 1, &[80], &["198.51.100.1:80"]);
    await_addresses(&central, "a-younger", 2, &[80, 443], &["198.51.100.1:443"]);
    let told = [
        "10.96.0.10 is a cluster IP of service default/front",
        "203.0.113.9 is the API server's",
        "192.0.2.1 is an address of node node-a",
        "192.0.2.2 is an address of node node-b",
        "10.244.9.9 is a part of the pods' network 10.244.0.0/16",
    ];
    await_told(&server, "thief", &told);
    let told = ["the older service default/thief has tcp 198.51.100.1:80"];
    await_told(&server, "a-younger", &told);

    // What nobody has any more, and what somebody gets later.
    server.apply(naming("thief", 1, &["10.96.0.105", "192.0.2.3"], &[80]));
    let both = ["198.51.100.1:80", "198.51.100.1:443"];
    await_addresses(&central, "a-younger", 2, &[80, 443], &both);
    let both = ["10.96.0.105:80", "192.0.2.3:80"];
    await_addresses(&central, "thief", 1, &[80], &both);
    server.apply(naming("late", 5, &["198.51.100.9"], &[80]));
    await_addresses(&central, "thief", 1, &[80], &["192.0.2.3:80"]);
    server.apply(podwire_tests::apiserver::node("node-c", "192.0.2.3"));
    await_addresses(&central, "thief", 1, &[80], &[]);
    server.delete_object("Node", "", "node-c");
    await_addresses(&central, "thief", 1, &[80], &["192.0.2.3:80"]);
    controller.idle().await;
    controller.stop().await.unwrap();
    let mut controller = Running::start(&central, &server, &[]);
    assert_eq!(controller.idle().await.operations, 0);
    controller.stop().await.unwrap();
}
