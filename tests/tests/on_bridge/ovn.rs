//! Beside the networks of OVN and of the node.

use super::*;

#[test]
fn an_address_of_the_nodes_subnets_on_another_bridge_is_nobodys_on_the_nodes_own() {
    let node = with_bridges(&["br1"]);
    let options = AgentOptions::default()
        .subnet("10.77.0.0/29")
        .with("--no-gateway");
    let agent = node.start_agent(&options);
    let taken = with_address(on("br1", json!({})), "10.77.0.2/29");
    let (_elsewhere, _) = attached(&node, "elsewhere", &taken);
    let agent = agent.kill_and_restart();
    let given: Vec<IpAddr> = (1..=5)
        .map(|number| {
            let result = node.pod(&format!("pod{number}")).add().success();
            podwire_tests::addresses(&result).unwrap()[0]
        })
        .collect();
    assert!(
        given.contains(&address("10.77.0.2")),
        "{given:?}\n{}",
        agent.log()
    );
}

#[test]
fn beside_ovn_a_pod_has_its_default_network_and_a_bridge_of_its_own() {
    let (central, node) = Central::with_node();
    for bridge in ["br1", "br-phys"] {
        make_bridge(&node, bridge);
    }
    node.set_key("ovn-bridge-mappings", "physnet1:br-phys");
    let agent = node.start_agent(&OvnNode::agent_options());
    let (pod, port) = central.schedule(&node, "web", 11);
    pod.add().success();
    central.await_up(&port.name, true);
    let net1 = |verb, conf: &Value| {
        let changes = [("CNI_IFNAME", Some("net1"))];
        pod.exec_with(verb, conf.to_string().as_bytes(), &changes)
    };
    let conf = with_address(on("br1", json!({"vlan": 100})), "192.0.2.1/24");
    let result = net1("ADD", &conf).success();
    net1("CHECK", &with_prev(&conf, &result)).success();
    let (db, _) = attached(
        &node,
        "db",
        &with_address(on("br1", json!({"vlan": 100})), "192.0.2.2/24"),
    );
    traffic::ping(pod.place(), address("192.0.2.2"), 1).unwrap();
    let ports = agent.get_json("/v1/ports");
    let ports = ports["ports"].as_array().unwrap();
    assert!(
        ports.len() == 3 && ports.iter().all(|it| it["state"] == "up"),
        "{ports:?}"
    );

    // What belongs to OVN is OVN's.
    let mut other = node.pod("other");
    other.interface = "net1".into();
    let own = on("br-int", json!({}));
    error(&other.exec("ADD", &own), 7, &["br-int", "ovnPort"]);
    let mapped = on("br-phys", json!({"vlan": 5}));
    error(
        &other.exec("ADD", &mapped),
        7,
        &["br-phys", "physnet1", "podwire.io/attach"],
    );
    node.vsctl("br-set-external-id br-phys podwire.io/attach true");
    other.exec("ADD", &mapped).success();
    assert_eq!(bridge_of(&node, &other), "br-phys");
    other.exec("DEL", &mapped).success();
    net1("DEL", &conf).success();
    db.exec("DEL", &conf).success();
    pod.del().success();
    assert_no_ports(&node, &["br1"]);
    node.leftovers().assert_none();
}

#[test]
fn a_pod_on_a_physical_network_is_refused_without_its_mapping_and_then_talks_on_its_vlan() {
    let (central, node) = Central::with_node();
    let _agent = node.start_agent(&OvnNode::agent_options());
    let (web, lan) = central.on_physical_network(&node, "web", "physnet");

    let refused = web.exec("ADD", &lan).error();
    assert_eq!(refused.code, 11, "{refused:?}");
    refused.assert_names(&["physnet", "has no ovn-bridge-mappings"]);
    // What it says, done.
    let of_others = "'external_ids:ovn-bridge-mappings=\"other:br-other\"'";
    let set = |node: &OvnNode, line: &str| {
        node.run("sh", ["-c", line]);
    };
    set(&node, &format!("ovs-vsctl set Open_vSwitch . {of_others}"));
    let refused = web.exec("ADD", &lan).error();
    refused.assert_names(&["physnet", "has other:br-other only"]);
    let said = format!("{refused:?}").replace("\\", "");
    let fix = said.split_once("ovs-vsctl set").unwrap().1;
    let fix = &fix[..=fix.rfind('\'').unwrap()];
    set(
        &node,
        &format!("ovs-vsctl set{}", fix.replace("BRIDGE", "br-phys")),
    );
    let refused = web.exec("ADD", &lan).error();
    refused.assert_names(&[
        "physnet",
        "br-phys",
        "does not exist",
        "ovs-vsctl add-br br-phys",
    ]);
    make_bridge(&node, "br-phys");
    let result = web.exec("ADD", &lan).success();

    node.vsctl("br-set-external-id br-phys podwire.io/attach true");
    let outside = with_address(on("br-phys", json!({"vlan": 100})), "192.0.2.1/24");
    let (host, _) = attached(&node, "host", &outside);
    traffic::ping_until_answered(host.place(), address("192.0.2.11")).unwrap();
    traffic::tcp_echo(web.place(), host.place(), address("192.0.2.1"), 1 << 20).unwrap();
    // A host of the physical network takes the pod's address.
    let says = |mac| frames::arp_announcement(mac, "192.0.2.11".parse().unwrap());
    let heard = Capture::on(host.place(), "net1").unwrap();
    frames::send(host.place(), "net1", &[says([2, 0, 0, 0, 0, 9])]).unwrap();
    let own = links::mac(web.place(), "net1");
    heard.until(|frame| frame == says(own)).unwrap();
    web.exec("CHECK", &with_prev(&lan, &result)).success();
    web.exec("DEL", &lan).success();
    host.exec("DEL", &outside).success();
    // ovn-controller's patch ports stay, as long as there is a mapping.
    for pod in [&web, &host] {
        assert!(node.interface_of(&pod.container).is_none());
    }
}
