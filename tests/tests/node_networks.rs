//! What the node role says of the physical networks that its machine connects.

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::machine::Machine;
use serde_json::{Value, json};

const OBJECT: (&str, &str, &str) = ("Node", "", "node-a");

fn has(node: &Value, resources: &[&str]) -> bool {
    ["capacity", "allocatable"].iter().all(|part| {
        let all = node["status"][part].as_object();
        let own = all.into_iter().flatten();
        let own = own.filter(|(name, _)| name.starts_with("network.podwire.io/"));
        let own: Vec<(&str, &Value)> = own.map(|(name, is)| (&**name, is)).collect();
        own.len() == resources.len()
            && own.iter().all(|(name, is)| {
                let network = name.trim_start_matches("network.podwire.io/");
                resources.contains(&network) && **is == "1k"
            })
    })
}

#[test]
fn a_node_has_a_resource_for_each_physical_network_as_long_as_it_connects_it() {
    let machine = Machine::new();
    let node = machine.node();
    let server = ApiServer::start_in(node.place());
    let mut object = apiserver::node("node-a", "192.0.2.11");
    let others = json!({ "cpu": "4", "example.org/device": "1", "network.podwire.io/gone": "1k" });
    object["status"]["capacity"] = others.clone();
    object["status"]["allocatable"] = others;
    server.apply(object);
    let set = |mappings: &str| {
        node.vsctl(format!(
            "set open_vswitch . external_ids:ovn-bridge-mappings={mappings}"
        ))
    };
    node.add_bridge("br-data");
    set("physnet1:br-data,no/name:br-data,physnet2:br-none");
    let url = server.url();
    let run = machine.start_run(format!("--k8s-apiserver {url}"));
    let seen = server.await_object(OBJECT, |it| has(it, &["physnet1"]));
    assert_eq!(seen["status"]["capacity"]["cpu"], "4");
    assert_eq!(seen["status"]["allocatable"]["example.org/device"], "1");

    node.add_bridge("br-none");
    let mut seen = server.await_object(OBJECT, |it| has(it, &["physnet1", "physnet2"]));
    // As kubelet does for a node that was registered anew.
    seen["status"]["capacity"]["network.podwire.io/physnet1"] = "0".into();
    server.apply(seen);
    server.await_object(OBJECT, |it| has(it, &["physnet1", "physnet2"]));
    node.vsctl("del-br br-none");
    server.await_object(OBJECT, |it| has(it, &["physnet1"]));
    set("physnet3:br-data");
    server.await_object(OBJECT, |it| has(it, &["physnet3"]));
    // An API server that does not answer delays no restore.
    server.hold(true);
    set("physnet1:br-data");
    node.run("ip", "route del 10.96.0.0/16");
    run.await_log("restored route 10.96.0.0/16", 1);
    server.hold(false);
    server.await_object(OBJECT, |it| has(it, &["physnet1"]));
    run.stop();

    let flags = ["--node-name", "node-a", "--k8s-apiserver", &url];
    machine.podwire_node("cleanup", flags);
    let seen = server.object("Node", "", "node-a").unwrap();
    assert!(has(&seen, &[]), "{seen}");
    assert_eq!(seen["status"]["capacity"]["cpu"], "4");
    assert_eq!(seen["status"]["allocatable"]["example.org/device"], "1");
}
