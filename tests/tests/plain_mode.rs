//! Plain-OVS mode stands alone: no controller, no configuration, nothing to do by hand.

use std::net::IpAddr;

use podwire_tests::{AgentOptions, Pod, TestNode, addresses, datapath, links, traffic};

/// The subnets of an agent without configuration, and their gateways.
const DEFAULTS: [(&str, &str); 2] = [
    ("10.186.", "10.186.0.1/22"),
    ("fd70:6f64:7769:7265:", "fd70:6f64:7769:7265::1/64"),
];

fn gateways() -> [IpAddr; 2] {
    DEFAULTS.map(|(_, gateway)| gateway.split('/').next().unwrap().parse().unwrap())
}

fn wired<'node>(node: &'node TestNode, name: &str) -> (Pod<'node>, Vec<IpAddr>) {
    let pod = node.pod(name);
    let result = pod.add().success();
    (pod, addresses(&result).unwrap())
}

#[test]
fn an_agent_without_any_configuration_wires_pods_that_talk() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let (web, web_addresses) = wired(&node, "web");
    let (db, db_addresses) = wired(&node, "db");
    for addresses in [&web_addresses, &db_addresses] {
        for (address, (prefix, _)) in addresses.iter().zip(DEFAULTS) {
            assert!(address.to_string().starts_with(prefix), "{address}");
        }
    }
    for address in db_addresses {
        traffic::ping(web.place(), address, 2).unwrap();
        traffic::tcp_echo(web.place(), db.place(), address, 1 << 20).unwrap();
    }
}

#[test]
fn a_missing_bridge_is_made_and_its_local_port_carries_the_gateways() {
    let node = TestNode::with_ovs();
    assert!(node.ovsdb_rows("Bridge").is_empty());
    let agent = node.start_agent(&AgentOptions::default());
    let (pod, _) = wired(&node, "web");
    let bridge = node.ovsdb_rows("Bridge").remove(0);
    assert_eq!(bridge["name"], "br-int");
    let datapath = datapath().name();
    assert_eq!(bridge["datapath_type"], datapath);
    assert!(
        agent.log().contains(datapath),
        "the log says which datapath was chosen, and why"
    );
    let carried = links::addresses(node.place(), "br-int");
    for (_, gateway) in DEFAULTS {
        assert!(carried.contains(&gateway.to_owned()), "{carried:?}");
    }
    for gateway in gateways() {
        traffic::ping(pod.place(), gateway, 2).unwrap();
    }
}

#[test]
fn the_node_reaches_its_pods_by_tcp_as_kubelets_probes_do() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let (pod, addresses) = wired(&node, "web");
    for address in addresses {
        traffic::tcp_echo(node.place(), pod.place(), address, 1 << 20).unwrap();
    }
}

#[test]
fn pods_reach_servers_of_the_node_by_tcp() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let (pod, _) = wired(&node, "web");
    for gateway in gateways() {
        traffic::tcp_echo(pod.place(), node.place(), gateway, 1 << 20).unwrap();
    }
}

#[test]
fn a_bridge_that_is_there_is_used_as_it_is() {
    let node = TestNode::with_ovs();
    let datapath = format!("datapath_type={}", datapath().name());
    node.vsctl(format!(
        "add-br br-int -- set bridge br-int {datapath} fail_mode=standalone \
         external_ids:owner=operator"
    ));
    node.vsctl("add-port br-int uplink -- set interface uplink type=internal");
    let _agent = node.start_agent(&AgentOptions::default());
    let (pod, _) = wired(&node, "web");
    pod.del().success();
    let bridge = node.ovsdb_rows("Bridge").remove(0);
    assert_eq!(bridge["fail_mode"], "standalone");
    assert_eq!(bridge["external_ids"]["owner"], "operator");
    assert!(
        node.ovsdb_rows("Port")
            .iter()
            .any(|row| row["name"] == "uplink")
    );
}

#[test]
fn without_a_gateway_the_bridges_local_port_is_left_alone() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default().with("--no-gateway"));
    let (web, _) = wired(&node, "web");
    let (_db, addresses) = wired(&node, "db");
    assert!(links::addresses(node.place(), "br-int").is_empty());
    for address in addresses {
        traffic::ping(web.place(), address, 1).unwrap();
    }
}

/// With the userspace datapath the node's own stack hears what a pod sends on its host end. If it
/// answered there, the pod's packets to the gateway would bypass the switch. The node knows the pod
/// beforehand: else its own question would tell the pod the right address right after.
#[test]
fn a_pod_learns_the_gateways_mac_address_from_the_bridge_alone() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let gateway = gateways()[0];
    let (pod, addresses) = wired(&node, "web");
    let own = links::find(pod.place(), "eth0").unwrap().mac;
    let address = addresses[0].to_string();
    node.run(
        "ip",
        format!("neigh replace {address} dev br-int lladdr {own} nud permanent"),
    );
    traffic::ping(pod.place(), gateway, 1).unwrap();
    let bridge = links::find(node.place(), "br-int").unwrap().mac;
    assert_eq!(links::neighbour(pod.place(), gateway), Some(bridge));
}

#[test]
fn the_gateways_come_back_when_ovs_vswitchd_does() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let (pod, addresses) = wired(&node, "web");
    node.kill_vswitchd();
    node.start_vswitchd();
    agent.await_ready(true);
    // What an ADD needs is there again when it is served.
    let (other, _) = wired(&node, "db");
    for address in addresses {
        traffic::ping(other.place(), address, 2).unwrap();
        traffic::ping(node.place(), address, 2).unwrap();
    }
    for gateway in gateways() {
        traffic::ping(pod.place(), gateway, 2).unwrap();
    }
}

#[test]
fn another_bridge_and_mtu_can_be_asked_for() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default().with("--bridge br-pods --mtu 1442"));
    let (pod, _) = wired(&node, "web");
    assert_eq!(links::find(pod.place(), "eth0").unwrap().mtu, 1442);
    assert_eq!(
        node.vsctl(format!("port-to-br {}", pod.host_link())).trim(),
        "br-pods"
    );
}

#[test]
fn a_bridge_that_somebody_deletes_is_made_again() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    node.vsctl("del-br br-int");
    let (pod, addresses) = wired(&node, "web");
    assert_eq!(node.ovsdb_rows("Bridge").len(), 1);
    for address in addresses {
        traffic::ping(node.place(), address, 1).unwrap();
    }
    pod.del().success();
    node.leftovers().assert_none();
}
