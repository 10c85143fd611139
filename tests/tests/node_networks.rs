//! The physical networks that the node role connects, and what it says of them.

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::machine::Machine;
use podwire_tests::{AgentOptions, traffic};
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

/// A machine with a spare NIC, which leads to a switch where a host is in VLAN 100.
fn with_spare_nic() -> Machine {
    let machine = Machine::new();
    let node = machine.node();
    node.shell(
        "ip netns add outside && ip link add eth1 type veth peer name wire && ip link add side \
         type veth peer name host netns outside && for link in eth1 wire side; do ip link set \
         $link addrgenmode none; done && echo 1 >/proc/sys/net/ipv6/conf/wire/disable_ipv6 && ip \
         link set wire up && ip link set side up && ip netns exec outside sh -c 'ip address add \
         198.51.100.1/24 dev host && ip link set host up && ethtool -K host tx off'",
    )
    .success("ip");
    // Of a link that was never up, the kernel shows another queue.
    node.run("ip", "link set eth1 up");
    node.run("ip", "link set eth1 down");
    node.add_bridge("br-wire");
    node.vsctl("add-port br-wire wire -- add-port br-wire side tag=100");
    machine
}

const FLAG: &str = "--data-bridge br-data:eth1:physnet1";

#[test]
fn a_nic_that_the_machine_needs_is_put_into_no_bridge() {
    let machine = with_spare_nic();
    let refused = |flag: &str, words: &str| {
        let before = machine.snapshot();
        for verb in ["plan", "init"] {
            let done = machine.podwire_node(verb, flag);
            let said = format!("{}{}", done.stdout, done.stderr);
            assert!(!done.status.success() && said.contains(words), "{said}");
        }
        before.assert_same(&machine.snapshot());
    };
    refused(
        "--data-bridge br-data:eth0",
        "eth0 leads to the default gateway",
    );
    machine
        .node()
        .run("ip", "address add 198.51.100.9/24 dev eth1");
    refused(
        FLAG,
        "eth1 has the address 198.51.100.9/24: name a spare one",
    );
    refused("--data-bridge br-int:eth1", "br-int is another link");
}

#[test]
fn a_bridge_on_a_spare_nic_is_made_kept_and_removed() {
    let machine = with_spare_nic();
    let node = machine.node();
    let mappings = "external_ids:ovn-bridge-mappings";
    node.vsctl(format!("set open_vswitch . {mappings}=other:br-other"));
    let before = machine.snapshot();
    let run = machine.start_run(FLAG);
    let mapped = || node.vsctl(format!("get open_vswitch . {mappings}"));
    assert_eq!(mapped().trim(), "\"other:br-other,physnet1:br-data\"");
    node.vsctl("del-port br-data eth1");
    run.await_log("restored NIC eth1 in br-data (was missing)", 1);
    node.run("ip", "link set eth1 down");
    run.await_log("restored link eth1 up (was missing)", 1);
    node.vsctl("del-br br-data");
    run.await_log("restored bridge br-data (was missing)", 1);
    run.await_log("restored NIC eth1 in br-data (was missing)", 2);
    node.vsctl(format!("set open_vswitch . {mappings}=other:br-other"));
    run.await_log("restored external_ids:ovn-bridge-mappings:physnet1", 1);
    let (code, shown) = node.podwire_json(machine.arguments("show", format!("{FLAG} -o json")));
    assert!(code == Some(0), "{shown}");
    run.stop();
    machine.cleanup("");
    assert_eq!(mapped().trim(), "\"other:br-other\"");
    before.assert_same(&machine.snapshot());
}

#[test]
fn pods_on_a_bridge_of_the_node_role_talk_by_its_nic_also_after_it_was_removed() {
    let machine = with_spare_nic();
    let node = machine.node();
    let run = machine.start_run(FLAG);
    node.vsctl("br-set-external-id br-data podwire.io/attach true");
    let agent = node.start_agent(&AgentOptions::default().with("--mode ovn --wait ofport"));
    let mut pod = node.pod("web");
    pod.interface = "net1".to_owned();
    let conf = json!({
        "cniVersion": "1.0.0", "name": "lan", "type": "podwire-cni", "bridge": "br-data",
        "vlan": 100,
        "ipam": {"type": "static", "addresses": [{"address": "198.51.100.11/24"}]},
    });
    pod.exec("ADD", &conf).success();
    let talks = || {
        let outside = "198.51.100.1".parse().unwrap();
        traffic::ping_until_answered(pod.place(), outside).unwrap();
    };
    talks();
    node.vsctl("del-port br-data eth1");
    run.await_log("restored NIC eth1 in br-data (was missing)", 1);
    talks();
    node.run("ip", "link set eth1 down");
    run.await_log("restored link eth1 up (was missing)", 1);
    talks();
    node.vsctl("del-br br-data");
    run.await_log("restored bridge br-data (was missing)", 1);
    talks();
    pod.exec("DEL", &conf).success();
    agent.stop();
    run.stop();
    machine.cleanup("");
    let bridges = node.vsctl("list-br");
    assert!(!bridges.contains("br-data"), "{bridges}");
}
