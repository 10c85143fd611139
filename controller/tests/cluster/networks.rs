//! Networks beside the default one: rows, addresses, annotations, mistakes, packets.

use std::net::IpAddr;

use podwire_tests::apiserver::{ApiServer, pod_on};
use podwire_tests::ovn::Central;
use podwire_tests::{Pod, conf, traffic};
use serde_json::{Value, json};

use crate::fixture::{
    Running, annotation, await_network, await_row, column, names, pod_of, populate, populated,
};
use crate::packets::Network;

pub(crate) const NETWORKS: &str = "k8s.ovn.org/pod-networks";
pub(crate) const ASKED: &str = "k8s.v1.cni.cncf.io/networks";

/// A definition in the namespace `default`, of a network with this name.
pub(crate) fn definition(name: &str, network: &str, more: &Value) -> Value {
    let mut config = json!({
        "cniVersion": "1.0.0", "type": "ovn-k8s-cni-overlay", "name": network,
        "netAttachDefName": format!("default/{name}"), "topology": "layer2",
    });
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-of-{name}") },
        "spec": { "config": config.to_string() },
    })
}

fn asking(node: &str, name: &str, networks: impl ToString) -> Value {
    let mut pod = pod_of(node, name);
    pod["metadata"]["annotations"][ASKED] = networks.to_string().into();
    pod
}

/// Waits for a pod's entry, and gives it.
pub(crate) fn await_entry(server: &ApiServer, name: &str, entry: &str) -> Value {
    let of = |pod: &Value| annotation(pod, NETWORKS).map(|it| it[entry].clone());
    let is_there = |pod: &Value| of(pod).is_some_and(|it| !it.is_null());
    of(&server.await_object(("Pod", "default", name), is_there)).unwrap()
}

pub(crate) fn await_event(server: &ApiServer, kind: &str, name: &str, part: &str) {
    server.await_events(&format!("{kind} {name}: {part}"), |events| {
        let mut events = events.iter();
        events.any(|event| {
            let of = &event["involvedObject"];
            of["kind"] == kind
                && of["name"] == name
                && event["message"]
                    .as_str()
                    .is_some_and(|it| it.contains(part))
        })
    });
}

const SWITCH: &str = "tenant.blue_ovn_layer2_switch";

fn with_blue(server: &ApiServer) {
    let blue = json!({ "subnets": "10.1.0.0/24", "excludeSubnets": "10.1.0.0/30", "mtu": 1300 });
    server.apply(definition("blue", "tenant-blue", &blue));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_goes_although_a_pod_that_is_on_no_node_asks_for_it() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    with_blue(&server);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    await_row(&central, "Logical_Switch", SWITCH, true);
    server.apply(asking("node-z", "nowhere", "blue"));
    // What comes after it: then it was looked at.
    server.apply(pod_of("node-a", "later"));
    await_network(&server, "default", "later");
    server.delete_object("NetworkAttachmentDefinition", "default", "blue");
    await_row(&central, "Logical_Switch", SWITCH, false);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_get_ports_and_addresses_on_the_networks_that_they_ask_for() {
    let (central, server, mut controller) = populated().await;
    with_blue(&server);
    server.apply(definition(
        "red",
        "red",
        &json!({ "subnets": "10.1.0.0/24" }),
    ));
    server.apply(definition("bare", "bare", &json!({})));
    server.apply(definition("other", "x", &json!({ "type": "macvlan" })));
    server.apply(asking(
        "node-a",
        "short",
        "blue@net1,default/red,bare,other,absent",
    ));
    let wishes = json!([
        { "name": "blue", "ips": ["10.1.0.77/24"], "mac": "02:00:00:00:00:77" },
        { "name": "blue", "default-route": ["10.1.0.254"] },
    ]);
    let blue = await_entry(&server, "short", "default/blue");
    let expected = json!({
        "ip_addresses": ["10.1.0.4/24"], "ip_address": "10.1.0.4/24",
        "mac_address": "0a:58:0a:01:00:04", "role": "secondary", "mtu": 1300,
    });
    assert_eq!(blue, expected);
    let red = await_entry(&server, "short", "default/red");
    assert_eq!(red["ip_addresses"], json!(["10.1.0.1/24"]));
    let bare = await_entry(&server, "short", "default/bare");
    assert_eq!(bare["ip_addresses"], json!([]));
    server.apply(asking("node-b", "long", &wishes));
    let first = await_entry(&server, "long", "default/blue");
    assert_eq!(first["ip_address"], "10.1.0.77/24");
    let second = await_entry(&server, "long", "default/blue/1");
    assert_eq!(second["ip_address"], "10.1.0.78/24");
    assert_eq!(second["gateway_ips"], json!(["10.1.0.254"]));
    let pod = server.object("Pod", "default", "short").unwrap();
    let entries = annotation(&pod, NETWORKS).unwrap();
    let keys: Vec<_> = entries.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        ["default", "default/bare", "default/blue", "default/red"]
    );

    let port = |name: &str| {
        let rows = central.northbound().rows("Logical_Switch_Port").unwrap();
        rows.into_iter().find(|row| row["name"] == name).unwrap()
    };
    let row = port("default.blue_default_long");
    assert_eq!(row["addresses"], "02:00:00:00:00:77 10.1.0.77");
    assert_eq!(row["port_security"], row["addresses"]);
    assert_eq!(row["options"]["iface-id-ver"], "uid-of-long");
    assert_eq!(row["options"]["requested-chassis"], "node-b");
    assert_eq!(row["external_ids"]["k8s.ovn.org/nad"], "default/blue");
    assert_eq!(row["external_ids"]["k8s.ovn.org/network"], "tenant-blue");
    assert_eq!(
        port("default.blue.1_default_long")["external_ids"]["k8s.ovn.org/nad"],
        "default/blue/1"
    );
    let mac = bare["mac_address"].as_str().unwrap();
    let any = json!([mac, format!("{mac} 0.0.0.0/0 ::/0")]);
    assert_eq!(port("default.bare_default_short")["port_security"], any);
    let ids = column(&central, "Logical_Switch", SWITCH, "external_ids");
    assert_eq!(ids["k8s.ovn.org/topology"], "layer2");

    // A successor has nothing to do.
    controller.idle().await;
    controller.stop().await.unwrap();
    let mut next = Running::start(&central, &server, &[]);
    let done = next.idle().await;
    assert_eq!((done.operations, done.writes), (0, 0));
    // What is removed by hand comes back, with its addresses.
    central.nbctl(format!("ls-del {SWITCH}"));
    await_row(
        &central,
        "Logical_Switch_Port",
        "default.blue_default_long",
        true,
    );
    next.idle().await;
    assert_eq!(
        port("default.blue_default_long")["addresses"],
        row["addresses"]
    );
    // What the pod no longer asks for goes; the rest stays.
    let mut pod = server.object("Pod", "default", "short").unwrap();
    pod["metadata"]["annotations"][ASKED] = "red".into();
    server.apply(pod);
    await_row(
        &central,
        "Logical_Switch_Port",
        "default.blue_default_short",
        false,
    );
    let is_gone = |pod: &Value| {
        annotation(pod, NETWORKS)
            .unwrap()
            .get("default/blue")
            .is_none()
    };
    server.await_object(("Pod", "default", "short"), is_gone);
    assert_eq!(await_entry(&server, "short", "default/red"), red);
    server.delete("default", "short");
    await_row(
        &central,
        "Logical_Switch_Port",
        "default.red_default_short",
        false,
    );
    server.delete_object("NetworkAttachmentDefinition", "default", "red");
    await_row(&central, "Logical_Switch", "red_ovn_layer2_switch", false);
    next.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_localnet_network_is_a_switch_with_a_port_to_its_physical_network() {
    let (central, server, mut controller) = populated().await;
    let tagged = json!({
        "topology": "localnet", "physicalNetworkName": "physnet", "vlanID": 100,
        "subnets": "192.0.2.0/24",
    });
    server.apply(definition("lan", "lan", &tagged));
    server.apply(definition(
        "flat",
        "flat",
        &json!({ "topology": "localnet" }),
    ));
    server.apply(asking("node-a", "gone", "lan"));
    await_entry(&server, "gone", "default/lan");
    server.apply(asking("node-a", "p", "lan,flat"));
    let entry = await_entry(&server, "p", "default/lan");
    assert_eq!(entry["ip_address"], "192.0.2.2/24");
    let of = |name: &str, it: &str| column(&central, "Logical_Switch_Port", name, it);
    let lan = "lan_ovn_localnet_port";
    assert_eq!(of(lan, "type"), "localnet");
    assert_eq!(of(lan, "addresses"), "unknown");
    assert_eq!(of(lan, "tag_request"), 100);
    assert_eq!(of(lan, "options")["network_name"], "physnet");
    let flat = "flat_ovn_localnet_port";
    await_row(&central, "Logical_Switch_Port", flat, true);
    assert_eq!(of(flat, "options")["network_name"], "flat");
    // OVN takes the VLAN from there, which is not ours to undo.
    let tag = json!([["name", "==", lan], ["tag", "==", 100]]);
    let northbound = central.northbound();
    northbound
        .wait("Logical_Switch_Port", tag, "!=", &["name"], json!([]))
        .unwrap();
    // OVN answers for no IP address there, and lets pods ask for their own (decision 0234).
    let (port, mac) = ("default.lan_default_p", "0a:58:c0:00:02:02");
    assert_eq!(of(port, "addresses"), mac);
    let secured = format!("{mac} 192.0.2.2 0.0.0.0");
    assert_eq!(of(port, "port_security"), secured);
    // Without subnets its pod may use any.
    let flat = "default.flat_default_p";
    let mac = of(flat, "addresses");
    let mac = mac.as_str().unwrap();
    let any = json!([mac, format!("{mac} 0.0.0.0/0 ::/0")]);
    assert_eq!(of(flat, "port_security"), any);
    controller.idle().await;
    controller.stop().await.unwrap();
    let mut next = Running::start(&central, &server, &[]);
    assert_eq!(next.idle().await.operations, 0);
    next.stop().await.unwrap();
    // A pod's addresses are known by its port.
    server.delete("default", "gone");
    let mut pod = server.object("Pod", "default", "p").unwrap();
    let annotations = pod["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.remove(NETWORKS);
    server.apply(pod);
    let mut next = Running::start(&central, &server, &[]);
    assert_eq!(await_entry(&server, "p", "default/lan"), entry);
    next.idle().await;
    assert_eq!(of(port, "port_security"), secured);
    next.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_that_is_made_again_or_changed_under_pods_takes_nothing_from_them() {
    let (central, server, mut controller) = populated().await;
    with_blue(&server);
    server.apply(asking("node-a", "tenant", "blue"));
    let entry = await_entry(&server, "tenant", "default/blue");
    controller.idle().await;
    let made = names(&central, "Logical_Switch_Port");
    server.delete_object("NetworkAttachmentDefinition", "default", "blue");
    // Another leader knows the network by its rows alone.
    controller.stop().await.unwrap();
    let mut next = Running::start(&central, &server, &[]);
    assert_eq!(next.idle().await.operations, 0);
    assert_eq!(names(&central, "Logical_Switch_Port"), made);
    // Nobody new gets on it, and nobody's network is another by a definition with other subnets.
    server.apply(asking("node-a", "late", "blue"));
    server.apply(definition(
        "blue",
        "tenant-blue",
        &json!({ "subnets": "10.9.0.0/24" }),
    ));
    let part = "subnets of its spec.config can't be changed while pods are on the network";
    await_event(&server, "NetworkAttachmentDefinition", "blue", part);
    await_event(
        &server,
        "NetworkAttachmentDefinition",
        "blue",
        "delete default/tenant",
    );
    await_event(
        &server,
        "Pod",
        "late",
        "NetworkAttachmentDefinition default/blue",
    );
    assert_eq!(await_entry(&server, "tenant", "default/blue"), entry);
    assert_eq!(names(&central, "Logical_Switch_Port").len(), made.len() + 1);
    // Changed back, with another MTU and fewer excluded: that can be done in place.
    server.apply(definition(
        "blue",
        "tenant-blue",
        &json!({ "subnets": "10.1.0.0/24", "mtu": 1400 }),
    ));
    let late = await_entry(&server, "late", "default/blue");
    assert_eq!(late["mtu"], 1400);
    let has_mtu = |pod: &Value| annotation(pod, NETWORKS).unwrap()["default/blue"]["mtu"] == 1400;
    server.await_object(("Pod", "default", "tenant"), has_mtu);
    // When the last pod is gone, it is another network.
    server.apply(definition(
        "blue",
        "tenant-blue",
        &json!({ "subnets": "10.9.0.0/24" }),
    ));
    let part = "delete default/late, default/tenant";
    await_event(&server, "NetworkAttachmentDefinition", "blue", part);
    for name in ["tenant", "late"] {
        server.delete("default", name);
    }
    server.apply(asking("node-b", "new", "blue"));
    let new = await_entry(&server, "new", "default/blue");
    assert_eq!(new["ip_address"], "10.9.0.1/24");
    server.delete_object("NetworkAttachmentDefinition", "default", "blue");
    server.delete("default", "new");
    await_row(&central, "Logical_Switch", SWITCH, false);
    next.idle().await;
    next.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_named_on_their_object_and_stop_no_other() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    let mut controller = Running::start(&central, &server, &[]);
    server.apply(definition(
        "wrong",
        "wrong",
        &json!({ "subnets": "10.1.0.1/24" }),
    ));
    server.apply(definition(
        "a-b",
        "a-b",
        &json!({ "subnets": "10.1.0.0/24" }),
    ));
    await_row(&central, "Logical_Switch", "a.b_ovn_layer2_switch", true);
    server.apply(definition(
        "a.b",
        "a.b",
        &json!({ "subnets": "10.2.0.0/24" }),
    ));
    central.nbctl("ls-add theirs_ovn_layer2_switch");
    server.apply(definition("theirs", "theirs", &json!({})));
    for (name, network) in [("gr", "GR"), ("ext", "ext")] {
        server.apply(definition(name, network, &json!({})));
    }
    server.apply(definition(
        "twin",
        "a-b",
        &json!({ "subnets": "10.3.0.0/24" }),
    ));
    for (name, part) in [
        (
            "wrong",
            "subnets of its spec.config: 10.1.0.1/24 has bits beyond",
        ),
        ("a.b", "a.b and a-b would have rows of the same names"),
        ("theirs", "does not belong to this controller"),
        ("gr", "name of its spec.config: GR_NODE are names of nodes"),
        (
            "ext",
            "name of its spec.config: ext_NODE are names of nodes",
        ),
        (
            "twin",
            "defined by another NetworkAttachmentDefinition with other subnets",
        ),
    ] {
        await_event(&server, "NetworkAttachmentDefinition", name, part);
    }
    let taken = json!([
        { "name": "wrong" }, { "name": "a-b", "ips": ["10.1.0.9"] },
        { "name": "a-b", "ips": ["10.1.0.9"] }, { "name": "theirs" },
        { "name": "a-b", "ips": ["192.0.2.1"] }, { "name": "a-b", "mac": "x" },
    ]);
    server.apply(asking("node-a", "p", &taken));
    for part in [
        "default/wrong: subnets",
        "default/a-b/1: it requests 10.1.0.9, which pod default/p has",
        "default/a-b/2: it requests 192.0.2.1, which no pod of network a-b can have",
        "default/a-b/3: the annotation k8s.v1.cni.cncf.io/networks: \"x\"",
        "default/theirs: ",
    ] {
        await_event(&server, "Pod", "p", part);
    }
    let entry = await_entry(&server, "p", "default/a-b");
    assert_eq!(entry["ip_address"], "10.1.0.9/24");
    assert!(await_network(&server, "default", "p")["ip_address"].is_string());
    server.apply(asking("node-a", "garbage", "[{"));
    await_event(&server, "Pod", "garbage", "it is no JSON list");
    assert!(await_network(&server, "default", "garbage")["ip_address"].is_string());
    controller.idle().await;
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_becomes_of_a_topology_that_is_not_known_leaves_no_row_and_takes_none_from_pods() {
    let (central, server, mut controller) = populated().await;
    with_blue(&server);
    server.apply(definition(
        "red",
        "red",
        &json!({ "subnets": "10.2.0.0/24" }),
    ));
    let red = "red_ovn_layer2_switch";
    await_row(&central, "Logical_Switch", red, true);
    server.apply(asking("node-a", "on-blue", "blue"));
    let entry = await_entry(&server, "on-blue", "default/blue");
    let port = "default.blue_default_on-blue";
    for name in ["blue", "red"] {
        let network = if name == "blue" { "tenant-blue" } else { name };
        let odd = json!({ "topology": "evpn", "subnets": "10.1.0.0/24" });
        server.apply(definition(name, network, &odd));
    }
    let of = "NetworkAttachmentDefinition";
    await_event(
        &server,
        of,
        "red",
        "topology of its spec.config: \"evpn\" is none of",
    );
    await_event(
        &server,
        of,
        "blue",
        "stays what it was while pods are on it",
    );
    await_row(&central, "Logical_Switch", red, false);
    controller.idle().await;
    let has = |table: &str, name: &str| names(&central, table).contains(&name.to_owned());
    assert!(has("Logical_Switch", SWITCH) && has("Logical_Switch_Port", port));
    assert_eq!(await_entry(&server, "on-blue", "default/blue"), entry);
    // A successor reads it so, too; and with the last pod the rows go.
    controller.stop().await.unwrap();
    let mut next = Running::start(&central, &server, &[]);
    assert_eq!(next.idle().await.operations, 0);
    server.delete("default", "on-blue");
    await_row(&central, "Logical_Switch", SWITCH, false);
    next.stop().await.unwrap();
}

/// Made on a day of January.
pub(crate) fn made(day: u8, mut definition: Value) -> Value {
    let metadata = &mut definition["metadata"];
    metadata["creationTimestamp"] = format!("2026-01-{day:02}T00:00:00Z").into();
    definition
}

#[tokio::test(flavor = "multi_thread")]
async fn of_definitions_that_claim_the_same_the_oldest_counts_after_a_restart_too() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    let of = |name: &str, network: &str, subnet: &str| {
        definition(name, network, &json!({ "subnets": subnet }))
    };
    // The second by name is the first by age, for a shape and for the names of rows; and of equal
    // age the first by name counts.
    server.apply(made(2, of("a", "blue", "10.1.0.0/24")));
    server.apply(made(1, of("b", "blue", "10.2.0.0/24")));
    server.apply(made(2, of("c", "red-one", "10.3.0.0/24")));
    server.apply(made(1, of("d", "red.one", "10.4.0.0/24")));
    server.apply(made(3, of("f", "green/x", "10.6.0.0/24")));
    server.apply(made(3, of("e", "green.x", "10.5.0.0/24")));
    let subnets = |switch: &str| {
        let ids = column(&central, "Logical_Switch", switch, "external_ids");
        let shape: Value =
            serde_json::from_str(ids["podwire.io/network"].as_str().unwrap()).unwrap();
        shape["subnets"][0].clone()
    };
    let expected = [
        ("blue_ovn_layer2_switch", "10.2.0.0/24"),
        ("green.x_ovn_layer2_switch", "10.5.0.0/24"),
        ("red.one_ovn_layer2_switch", "10.4.0.0/24"),
    ];
    for _ in 0..2 {
        let mut controller = Running::start(&central, &server, &[]);
        controller.idle().await;
        for (switch, subnet) in expected {
            assert_eq!(subnets(switch), subnet, "{switch}");
        }
        for (name, part) in [
            (
                "a",
                "is defined by another NetworkAttachmentDefinition with other subnets",
            ),
            ("c", "red-one and red.one would have rows of the same names"),
            ("f", "green/x and green.x would have rows of the same names"),
        ] {
            await_event(&server, "NetworkAttachmentDefinition", name, part);
        }
        controller.stop().await.unwrap();
    }
    // One that is older still comes too late for what exists; and who was second is next.
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    server.apply(made(1, of("c", "red-one", "10.3.0.0/24")));
    controller.idle().await;
    assert_eq!(subnets("red.one_ovn_layer2_switch"), "10.4.0.0/24");
    server.delete_object("NetworkAttachmentDefinition", "default", "d");
    let is_next = json!([[
        "external_ids",
        "includes",
        ["map", [["k8s.ovn.org/network", "red-one"]]]
    ]]);
    let northbound = central.northbound();
    let waited = northbound.wait("Logical_Switch", is_next, "!=", &["name"], json!([]));
    waited.unwrap();
    controller.stop().await.unwrap();
}

/// A pod whose interface net1 is on a network, as Multus has it made.
pub(crate) fn attached<'a>(
    network: &'a Network,
    node: usize,
    name: &str,
    of: &str,
) -> (Pod<'a>, IpAddr) {
    let (pod, addresses) = assigned(network, node, name, of);
    let mut multus = conf();
    multus["name"] = json!(of);
    multus["netAttachDefName"] = json!(format!("default/{of}"));
    pod.exec("ADD", &multus).success();
    (pod, addresses[0])
}

/// A pod that has its part of a network, and no interface there yet.
pub(crate) fn assigned<'a>(
    network: &'a Network,
    node: usize,
    name: &str,
    of: &str,
) -> (Pod<'a>, Vec<IpAddr>) {
    let node = &network.nodes[node];
    let mut pod = node.pod(name);
    let networks = json!([{ "name": of, "namespace": "default" }]);
    let asked = json!({ ASKED: networks.to_string() });
    network.server.apply(pod_on(&node.name, &pod, asked));
    let entry = format!("default/{of}");
    let of_pod = |pod: &Value| annotation(pod, NETWORKS).map(|it| it[&entry].clone());
    let is_there = |pod: &Value| of_pod(pod).is_some_and(|it| !it.is_null());
    let id = ("Pod", &*pod.namespace.clone(), name);
    let object = network.server.await_object(id, is_there);
    let own = of_pod(&object).unwrap();
    let nets = own["ip_addresses"].as_array().unwrap().iter();
    let addresses = nets.map(|net| net.as_str().unwrap().split('/').next().unwrap().parse());
    let addresses = addresses.collect::<Result<_, _>>().unwrap();
    pod.interface = "net1".to_owned();
    let pod = pod.annotate(NETWORKS, &annotation(&object, NETWORKS).unwrap());
    (pod, addresses)
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_one_network_reach_each_other_across_nodes_and_those_of_another_do_not() {
    let (network, controller) = Network::start(&[]);
    let agents = network.start_agents();
    for name in ["blue", "red"] {
        let subnets = json!({ "subnets": "10.1.0.0/24" });
        network.server.apply(definition(name, name, &subnets));
    }
    let (one, _) = attached(&network, 0, "one", "blue");
    let (other, address) = attached(&network, 1, "other", "blue");
    let (stranger, of_stranger) = attached(&network, 0, "stranger", "red");
    let (second, of_second) = attached(&network, 1, "second", "red");
    assert_eq!(of_second, address);
    traffic::ping_until_answered(one.place(), address).unwrap();
    traffic::tcp_echo(one.place(), other.place(), address, 1 << 20).unwrap();
    // The same address in another network is another pod.
    traffic::ping_until_answered(stranger.place(), of_second).unwrap();
    traffic::tcp_echo(stranger.place(), second.place(), of_second, 1 << 20).unwrap();
    assert!(traffic::tcp_echo(stranger.place(), other.place(), address, 16).is_err());
    assert!(traffic::tcp_echo(second.place(), one.place(), of_stranger, 16).is_err());
    drop(agents);
    controller.stop().await.unwrap();
}

/// The document's own, with the blanks that it has, and OVN4NFV's.
const OTHERS: &str = r#"
apiVersion: v1
kind: onapNetwork
metadata:
  name: ovn-ls-24
spec:
  config: '{
    "cnitype" : "ovn",
    "name": " ovn-ls-24",
    "subnet": " 172.16.24.0/24",
    "gateway": " 172.16.24.1"
    }'
---
apiVersion: k8s.plugin.opnfv.org/v1alpha1
kind: Network
metadata:
  name: ovn-priv-net
spec:
  cniType: ovn4nfv
  ipv4Subnets:
  - subnet: 172.16.44.0/24
    name: subnet1
    gateway: 172.16.44.1/24
    excludeIps: 172.16.44.2 172.16.44.3..172.16.44.9
"#;

#[tokio::test(flavor = "multi_thread")]
async fn pods_reach_each_other_on_imported_networks_that_they_ask_for_as_for_any_other() {
    let (network, controller) = Network::start(&[]);
    let agents = network.start_agents();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), OTHERS).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_podwire-controller"))
        .args(["network", "import", "-f"])
        .arg(file.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let definitions: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    assert_eq!(definitions.len(), 2, "{text}");
    // Its gateway is nobody's, and what it excludes.
    for (definition, first) in definitions.into_iter().zip(["172.16.24.2", "172.16.44.10"]) {
        let name = definition["metadata"]["name"].as_str().unwrap().to_owned();
        network.server.apply(definition);
        let (one, of_one) = attached(&network, 0, &format!("one-{name}"), &name);
        let (other, address) = attached(&network, 1, &format!("other-{name}"), &name);
        assert_eq!(of_one.to_string(), first);
        traffic::ping_until_answered(one.place(), address).unwrap();
        traffic::tcp_echo(one.place(), other.place(), address, 1 << 20).unwrap();
    }
    // The document's own request is none for the controller.
    let pod = network.nodes[0].pod("wish");
    let wish = json!([{ "name": "ovn-ls-24", "interface": "net1" }]);
    let asked = json!({ "ovnNetwork": wish.to_string() });
    network
        .server
        .apply(pod_on(&network.nodes[0].name, &pod, asked));
    await_network(&network.server, &pod.namespace, "wish");
    let object = network
        .server
        .object("Pod", &pod.namespace, "wish")
        .unwrap();
    let annotations = object["metadata"]["annotations"].as_object().unwrap();
    let names: Vec<&str> = annotations.keys().map(String::as_str).collect();
    assert_eq!(names, [NETWORKS, "ovnNetwork"]);
    let entries = annotation(&object, NETWORKS).unwrap();
    assert_eq!(entries.as_object().unwrap().len(), 1, "{entries}");
    drop(agents);
    controller.stop().await.unwrap();
}
