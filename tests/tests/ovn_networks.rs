//! What annotations of every form make of an OVN network: older forms, several interfaces,
//! attachments to further networks.

use std::net::IpAddr;
use std::thread;

use podwire_tests::ovn::{Central, LogicalPort, OvnNode};
use podwire_tests::{Pod, conf, links, traffic};
use serde_json::{Value, json};

/// The members that the older annotations have of a port. They know one address for each interface.
fn older_entry(port: &LogicalPort, gateway: &str, address: &str) -> Value {
    json!({"ip_address": address, "mac_address": port.mac(), "gateway_ip": gateway})
}

fn ipv4_entry(port: &LogicalPort) -> Value {
    let gateway = format!("10.128.{}.1", port.subnet);
    older_entry(port, &gateway, &format!("{}/24", port.ipv4()))
}

/// One interface of an `ovnIfaceList`.
fn of_list(port: &LogicalPort, interface: &str) -> Value {
    let mut entry = ipv4_entry(port);
    entry["interface"] = json!(interface);
    entry["defaultGateway"] = json!(if interface == "*" { "true" } else { "false" });
    entry
}

/// A pod with two interfaces, and their logical ports, which are yet to be made.
fn two_interfaces(node: &OvnNode) -> (Pod<'_>, [LogicalPort; 2]) {
    let pod = node.pod("web");
    let first = LogicalPort::of(&pod, node, 11);
    let mut second = LogicalPort::of(&pod, node, 12);
    second.name = "tests_web_net1".to_owned();
    let list = json!([of_list(&first, "*"), of_list(&second, "net1")]);
    (pod.annotate("ovnIfaceList", &list), [first, second])
}

#[test]
fn pods_of_every_form_of_annotation_reach_each_other_across_nodes() {
    let (central, nodes) = Central::with_two_nodes();
    let _agents = nodes
        .each_ref()
        .map(|node| node.start_agent(&OvnNode::agent_options()));
    let (today, today_port) = central.schedule(&nodes[0], "today", 11);
    let flat = nodes[1].pod("flat");
    let flat_port = LogicalPort::of(&flat, &nodes[1], 12);
    let flat = flat.annotate("ovn", &ipv4_entry(&flat_port));
    let list = nodes[1].pod("list");
    let list_port = LogicalPort::of(&list, &nodes[1], 13);
    let list = list.annotate("ovnIfaceList", &json!([of_list(&list_port, "*")]));
    for port in [&flat_port, &list_port] {
        central.add_port(port);
    }
    for pod in [&today, &flat, &list] {
        pod.add().success();
    }
    for (from, to, port) in [
        (&today, &flat, &flat_port),
        (&today, &list, &list_port),
        (&flat, &today, &today_port),
        (&list, &flat, &flat_port),
    ] {
        let address: IpAddr = port.ipv4().parse().unwrap();
        traffic::ping_until_answered(from.place(), address).unwrap();
        traffic::tcp_echo(from.place(), to.place(), address, 1 << 20).unwrap();
    }
    for pod in [&today, &flat, &list] {
        pod.del().success();
    }
    for node in &nodes {
        node.leftovers().assert_none();
    }
}

#[test]
fn several_interfaces_of_one_pod_are_awaited_together_in_whatever_order_they_come() {
    let (central, [node, _]) = Central::with_two_nodes();
    let _agent = node.start_agent(&OvnNode::agent_options());
    let (web, [first, second]) = two_interfaces(&node);
    thread::scope(|scope| {
        let add = scope.spawn(|| web.add());
        node.await_ofport_of(&web.container);
        central.add_port(&second);
        central.await_up(&second.name, true);
        assert!(!add.is_finished());
        central.add_port(&first);
        add.join().unwrap().success();
    });
    for (interface, port) in [("eth0", &first), ("net1", &second)] {
        let addresses = links::addresses(web.place(), interface);
        assert_eq!(addresses, [format!("{}/24", port.ipv4())]);
        central.await_up(&port.name, true);
    }
    web.del().success();
    node.leftovers().assert_none();
}

#[test]
fn when_the_time_is_up_every_interface_that_lacks_something_is_named() {
    let (central, [node, _]) = Central::with_two_nodes();
    let _agent = node.start_agent(&OvnNode::agent_options().with("--add-timeout 4"));
    let (web, [first, second]) = two_interfaces(&node);
    let neither = web.add().error();
    for name in [&first.name, &second.name] {
        let lack = format!("{name}: no logical port");
        assert!(neither.msg.contains(&lack), "{}", neither.msg);
    }
    central.add_port(&first);
    let one = web.add().error();
    assert!(!one.msg.contains("tests_web: "), "{}", one.msg);
    assert!(
        one.msg.contains("tests_web_net1: no logical port"),
        "{}",
        one.msg
    );
    node.leftovers().assert_none();
}

#[test]
fn an_attachment_to_a_further_network_is_named_as_ovn_kubernetes_names_it() {
    let (central, [node, _]) = Central::with_two_nodes();
    let _agent = node.start_agent(&OvnNode::agent_options());
    let mut web = node.pod("web");
    let mut port = LogicalPort::of(&web, &node, 11);
    port.name = "blue.tenant.a_tests_web".to_owned();
    central.add_port(&port);
    web.interface = "net1".to_owned();
    let networks = json!({"blue/tenant-a": port.entry()});
    let web = web.annotate("k8s.ovn.org/pod-networks", &networks);
    let mut multus = conf();
    multus["name"] = json!("tenant-a-network");
    multus["netAttachDefName"] = json!("blue/tenant-a");
    web.exec("ADD", &multus).success();

    let ids = &node.interface_of(&web.container).unwrap()["external_ids"];
    assert_eq!(ids["iface-id"], port.name.as_str());
    assert_eq!(ids["k8s.ovn.org/network"], "tenant-a-network");
    assert_eq!(ids["k8s.ovn.org/nad"], "blue/tenant-a");
    assert_eq!(ids["pod-if-name"], "net1");
    web.exec("DEL", &multus).success();
    node.leftovers().assert_none();
}

#[test]
fn addresses_of_a_plugin_on_a_network_of_ovns_are_refused_before_anything_is_made() {
    let (central, [node, _]) = Central::with_two_nodes();
    let _agent = node.start_agent(&OvnNode::agent_options());
    let mut web = node.pod("web");
    let mut port = LogicalPort::of(&web, &node, 11);
    port.name = "blue.tenant.a_tests_web".to_owned();
    central.add_port(&port);
    web.interface = "net1".to_owned();
    let networks = json!({"blue/tenant-a": port.entry()});
    let web = web.annotate("k8s.ovn.org/pod-networks", &networks);
    let mut multus = conf();
    multus["name"] = json!("tenant-a-network");
    multus["netAttachDefName"] = json!("blue/tenant-a");
    multus["topology"] = json!("layer2");
    multus["ipam"] = json!({"type": "host-local", "subnet": "10.9.0.0/24"});
    let refused = web.exec("ADD", &multus).error();
    assert_eq!(refused.code, 7, "{refused:?}");
    refused.assert_names(&["ipam", "topology", "leave it out"]);
    node.leftovers().assert_none();
    multus.as_object_mut().unwrap().remove("ipam");
    web.exec("ADD", &multus).success();
    web.exec("DEL", &multus).success();
    node.leftovers().assert_none();
}

#[test]
fn a_pod_whose_primary_network_is_its_own_gets_that_beside_the_clusters_by_one_add() {
    let (central, [node, _]) = Central::with_two_nodes();
    let agent = node.start_agent(&OvnNode::agent_options());
    let web = node.pod("web");
    let locked = LogicalPort::of(&web, &node, 11);
    let mut primary = LogicalPort::of(&web, &node, 12);
    primary.name = "tests.blue.net_tests_web".to_owned();
    for port in [&locked, &primary] {
        central.add_port(port);
    }
    let mut of_cluster = locked.entry();
    of_cluster["role"] = json!("infrastructure-locked");
    let of_its_own = json!({
        "mac_address": primary.mac(), "ip_addresses": ["10.200.0.3/24"],
        "gateway_ips": ["10.200.0.1"], "role": "primary",
    });
    let networks = json!({"default": of_cluster, "tests/blue-net": of_its_own});
    let web = web.annotate("k8s.ovn.org/pod-networks", &networks);
    let result = web.add().success();
    web.check(&result).success();

    let of_name = |name: &str| {
        let rows = node.ovsdb_rows("Interface").into_iter();
        let mut ids = rows.map(|row| row["external_ids"].clone());
        ids.find(|ids| ids["pod-if-name"] == name).unwrap()
    };
    assert_eq!(of_name("eth0")["iface-id"], locked.name.as_str());
    let ids = of_name("ovn-udn1");
    assert_eq!(ids["iface-id"], primary.name.as_str());
    assert_eq!(ids["k8s.ovn.org/nad"], "tests/blue-net");
    for port in [&locked, &primary] {
        central.await_up(&port.name, true);
    }
    let mut ways_out = links::default_routes(web.place());
    ways_out.dedup();
    assert_eq!(ways_out, ["ovn-udn1"]);
    web.del().success();
    agent.stop();
    node.leftovers().assert_none();
}
