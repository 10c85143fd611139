//! Network configurations that name their bridge, with ovs-cni's members: one agent serves any
//! number of bridges, in plain mode and beside OVN.

mod lasting;
mod ovn;

use std::net::IpAddr;

use podwire_tests::frames::{self, Capture};
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{Agent, AgentOptions, PluginRun, Pod, TestNode, datapath, links, traffic};
use serde_json::{Value, json};

/// The minimal configuration of a network on a bridge, with more members.
fn on(bridge: &str, more: Value) -> Value {
    let mut conf = json!({
        "cniVersion": "1.0.0", "name": format!("on-{bridge}"), "type": "podwire-cni",
        "bridge": bridge,
    });
    for (name, value) in more.as_object().unwrap() {
        conf[name] = value.clone();
    }
    conf
}

fn with_address(mut conf: Value, address: &str) -> Value {
    conf["ipam"] = json!({"type": "static", "addresses": [{"address": address}]});
    conf
}

fn with_prev(conf: &Value, result: &Value) -> Value {
    let mut conf = conf.clone();
    conf["prevResult"] = result.clone();
    conf
}

fn make_bridge(node: &TestNode, bridge: &str) {
    let datapath = datapath().name();
    node.vsctl(format!(
        "add-br {bridge} -- set bridge {bridge} datapath_type={datapath} fail_mode=standalone"
    ));
}

fn with_bridges(bridges: &[&str]) -> TestNode {
    let node = TestNode::with_ovs();
    bridges.iter().for_each(|bridge| make_bridge(&node, bridge));
    node
}

/// A pod whose net1 is on a network.
fn attached<'node>(node: &'node TestNode, name: &str, conf: &Value) -> (Pod<'node>, Value) {
    let mut pod = node.pod(name);
    pod.interface = "net1".into();
    let result = pod.exec("ADD", conf).success();
    (pod, result)
}

/// The name of its port.
fn port_of(node: &TestNode, pod: &Pod<'_>) -> String {
    let row = node.interface_of(&pod.container).unwrap();
    row["name"].as_str().unwrap().to_owned()
}

fn bridge_of(node: &TestNode, pod: &Pod<'_>) -> String {
    let port = port_of(node, pod);
    node.vsctl(format!("port-to-br {port}")).trim().to_owned()
}

/// The VLAN columns of a pod's Port row: mode, tag, trunks.
fn vlan_of(node: &TestNode, pod: &Pod<'_>) -> [String; 3] {
    let port = port_of(node, pod);
    ["vlan_mode", "tag", "trunks"].map(|column| {
        let value = node.vsctl(format!("get port {port} {column}"));
        value.trim().to_owned()
    })
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn error(run: &PluginRun, code: u64, words: &[&str]) {
    let error = run.error();
    assert_eq!(error.code, code, "{error:?}");
    error.assert_names(words);
}

#[test]
fn one_agent_serves_its_own_network_and_those_of_two_bridges_in_one_pod() {
    let node = with_bridges(&["br1", "br2"]);
    let agent = node.start_agent(&AgentOptions::default());
    let networks = [
        ("net1", on("br1", json!({}))),
        ("net2", on("br2", json!({}))),
    ];
    let subnets = ["192.0.2", "198.51.100"];
    let call = |pod: &Pod<'_>, verb, ifname: &str, conf: &Value| {
        let changes = [("CNI_IFNAME", Some(ifname))];
        pod.exec_with(verb, conf.to_string().as_bytes(), &changes)
            .success()
    };
    let pods = ["web", "db"].map(|name| node.pod(name));
    for (number, pod) in pods.iter().enumerate() {
        pod.add().success();
        for ((ifname, conf), subnet) in networks.iter().zip(subnets) {
            let conf = with_address(conf.clone(), &format!("{subnet}.{}/24", number + 1));
            call(pod, "ADD", ifname, &conf);
        }
    }
    let bridges: Vec<String> = node
        .ovsdb_rows("Interface")
        .iter()
        .filter(|row| row["external_ids"]["sandbox"] == pods[0].container.as_str())
        .map(|row| node.vsctl(format!("port-to-br {}", row["name"].as_str().unwrap())))
        .map(|bridge| bridge.trim().to_owned())
        .collect();
    for bridge in ["br-int", "br1", "br2"] {
        assert!(bridges.iter().any(|it| it == bridge), "{bridges:?}");
    }
    for subnet in subnets {
        traffic::ping(pods[0].place(), address(&format!("{subnet}.2")), 1).unwrap();
    }
    // A port says where it is, and the agent's own network is as it was.
    let ports = agent.get_json("/v1/ports");
    let shown: Vec<&Value> = ports["ports"].as_array().unwrap().iter().collect();
    assert_eq!(shown.iter().filter(|it| it["bridge"] == "br1").count(), 2);
    assert!(shown.iter().all(|it| it["state"] == "up"), "{ports}");
    for pod in &pods {
        for (ifname, conf) in networks.iter().rev() {
            call(pod, "DEL", ifname, conf);
        }
        pod.del().success();
    }
    assert_no_ports(&node, &["br1", "br2"]);
}

/// Bridges other than br-int have their local port left, and nothing else of podwire.
fn assert_no_ports(node: &TestNode, bridges: &[&str]) {
    for bridge in bridges {
        assert_eq!(node.vsctl(format!("list-ports {bridge}")), "", "{bridge}");
    }
    let rows = node.ovsdb_rows("Interface");
    let ours = rows
        .iter()
        .filter(|row| row["external_ids"]["sandbox"].is_string());
    assert_eq!(ours.count(), 0);
    assert_eq!(node.leftovers().records, [""; 0]);
}

#[test]
fn access_pods_reach_those_of_their_vlan_and_no_others() {
    let node = with_bridges(&["br1"]);
    let _agent = node.start_agent(&AgentOptions::default());
    let in_vlan = |name, vlan: u16, number: u8| {
        let conf = on("br1", json!({ "vlan": vlan }));
        attached(
            &node,
            name,
            &with_address(conf, &format!("192.0.2.{number}/24")),
        )
        .0
    };
    let (web, db) = (in_vlan("web", 100, 1), in_vlan("db", 100, 2));
    let (other, peer) = (in_vlan("other", 200, 3), in_vlan("peer", 200, 4));
    assert_eq!(vlan_of(&node, &web), ["access", "100", "[]"]);
    traffic::ping(web.place(), address("192.0.2.2"), 2).unwrap();
    traffic::tcp_echo(web.place(), db.place(), address("192.0.2.2"), 1 << 20).unwrap();

    // A question to all is heard by the pod of its VLAN, and not by that of the other, which hears
    // its own peer after it.
    let heard = [&db, &other].map(|pod| Capture::on(pod.place(), "net1").unwrap());
    let question = arp_request(&web, None);
    frames::send(web.place(), "net1", std::slice::from_ref(&question)).unwrap();
    heard[0].until(|frame| frame == question).unwrap();
    let sentinel = arp_request(&peer, None);
    frames::send(peer.place(), "net1", std::slice::from_ref(&sentinel)).unwrap();
    let before = heard[1].until(|frame| frame == sentinel).unwrap();
    assert!(!before.contains(&question), "VLAN 200 heard VLAN 100");
}

fn mac_of(pod: &Pod<'_>) -> Vec<u8> {
    let mac = links::find(pod.place(), "net1").unwrap().mac;
    mac.split(':')
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect()
}

/// Who has 192.0.2.2? Tell 192.0.2.9; with a VLAN tag or none.
fn arp_request(from: &Pod<'_>, vlan: Option<u16>) -> Vec<u8> {
    arp_request_of(from, 9, vlan)
}

/// The same, told to another address of 192.0.2.0/24.
fn arp_request_of(from: &Pod<'_>, sender: u8, vlan: Option<u16>) -> Vec<u8> {
    let mac = mac_of(from);
    let mut frame = [&[0xff; 6], mac.as_slice()].concat();
    if let Some(vlan) = vlan {
        frame.extend([0x81, 0x00]);
        frame.extend(vlan.to_be_bytes());
    }
    frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(&mac);
    frame.extend([192, 0, 2, sender]);
    frame.extend([0; 6]);
    frame.extend([192, 0, 2, 2]);
    // The smallest frame of Ethernet, so that nothing on the way fills it up.
    frame.resize(64, 0);
    frame
}

#[test]
fn a_trunk_pod_reaches_access_pods_in_the_vlans_of_its_list_only() {
    let node = with_bridges(&["br1"]);
    let _agent = node.start_agent(&AgentOptions::default());
    let list = json!([{"id": 42}, {"minID": 100, "maxID": 102}]);
    let (trunk, _) = attached(&node, "trunk", &on("br1", json!({ "trunk": list })));
    assert_eq!(
        vlan_of(&node, &trunk),
        ["trunk", "[]", "[42, 100, 101, 102]"]
    );
    let access = |name, vlan: u16| {
        let conf = on("br1", json!({ "vlan": vlan }));
        attached(&node, name, &with_address(conf, "192.0.2.2/24")).0
    };
    let (inside, outside) = (access("inside", 101), access("outside", 103));
    let peer = access("peer", 103);

    let answers = Capture::on(trunk.place(), "net1").unwrap();
    let heard = Capture::on(outside.place(), "net1").unwrap();
    let tagged = [103, 101].map(|vlan| arp_request(&trunk, Some(vlan)));
    frames::send(trunk.place(), "net1", &tagged).unwrap();
    // The access pod takes the question without the tag, and its answer comes back.
    let (from, to) = (mac_of(&inside), mac_of(&trunk));
    answers
        .until(|frame| frame[..6] == to && frame[6..12] == from)
        .unwrap();
    let sentinel = arp_request(&peer, None);
    frames::send(peer.place(), "net1", std::slice::from_ref(&sentinel)).unwrap();
    let before = heard.until(|frame| frame == sentinel).unwrap();
    assert!(
        before.iter().all(|frame| frame[6..12] != to),
        "VLAN 103 is not in the list"
    );
}

#[test]
fn vlan_and_trunk_together_are_a_native_vlan_beside_the_tagged_ones() {
    let node = with_bridges(&["br1"]);
    let _agent = node.start_agent(&AgentOptions::default());
    let both = on("br1", json!({"vlan": 7, "trunk": [{"id": 42}]}));
    let (both, _) = attached(&node, "both", &with_address(both, "192.0.2.1/24"));
    assert_eq!(vlan_of(&node, &both), ["native-untagged", "7", "[42]"]);
    let native = with_address(on("br1", json!({"vlan": 7})), "192.0.2.2/24");
    let (_native, _) = attached(&node, "native", &native);
    traffic::ping(both.place(), address("192.0.2.2"), 1).unwrap();
    let (all, _) = attached(&node, "all", &on("br1", json!({})));
    assert_eq!(vlan_of(&node, &all), ["trunk", "[]", "[]"]);
}

#[test]
fn mac_mtu_and_ofport_are_those_that_were_asked_for() {
    let node = with_bridges(&["br1"]);
    let _agent = node.start_agent(&AgentOptions::default().with("--mtu 1400"));
    let asked = json!({
        "mtu": 9000, "ofport_request": 77, "interface_type": "system",
        "args": {"cni": {"mac": "02:00:00:00:00:07", "ips": ["192.0.2.9/24"], "else": 1}},
    });
    let (pod, result) = attached(&node, "web", &on("br1", asked));
    let net1 = links::find(pod.place(), "net1").unwrap();
    assert_eq!((net1.mac.as_str(), net1.mtu), ("02:00:00:00:00:07", 9000));
    assert_eq!(node.interface_of(&pod.container).unwrap()["ofport"], 77);
    assert_eq!(
        result["ips"],
        Value::Null,
        "without ipam, a port has no address"
    );
    let inside = &result["interfaces"][1];
    assert_eq!(
        (&inside["name"], &inside["mac"]),
        (&json!("net1"), &json!("02:00:00:00:00:07"))
    );

    // CNI_ARGS come before args.cni, as with ovs-cni.
    let mut named = node.pod("named");
    named.interface = "net1".into();
    let conf = on(
        "br1",
        json!({"args": {"cni": {"mac": "02:00:00:00:00:01"}}}),
    )
    .to_string();
    let with = |mac: &str| {
        let arguments = format!("IgnoreUnknown=1;mac={mac};OvnPort=lp");
        named.exec_with("ADD", conf.as_bytes(), &[("CNI_ARGS", Some(&arguments))])
    };
    error(
        &with("03:00:00:00:00:08"),
        4,
        &["CNI_ARGS", "03:00:00:00:00:08"],
    );
    with("02:00:00:00:00:08").success();
    assert_eq!(
        links::find(named.place(), "net1").unwrap().mac,
        "02:00:00:00:00:08"
    );
    let iface_id = node.external_id(&named.container, "net1", "iface-id");
    assert_eq!(iface_id.as_deref(), Some("lp"));

    // Without an MTU it is Ethernet's, and not that of the node's own network.
    let (plain, _) = attached(&node, "db", &on("br1", json!({})));
    assert_eq!(links::find(plain.place(), "net1").unwrap().mtu, 1500);
    let mut third = node.pod("third");
    third.interface = "net1".into();
    let again = third.exec("ADD", &on("br1", json!({"ofport_request": 77})));
    error(&again, 102, &["ofport_request 77", &port_of(&node, &pod)]);
    assert!(node.interface_of(&third.container).is_none());
    let freed = on("br1", json!({}));
    pod.exec("DEL", &freed).success();
    third
        .exec("ADD", &on("br1", json!({"ofport_request": 77})))
        .success();
}

#[test]
fn the_agents_own_bridge_may_be_named_too_in_plain_mode() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let conf = |number: u8| {
        let conf = on(
            "br-int",
            json!({"vlan": 100, "ofport_request": 300 + u16::from(number)}),
        );
        with_address(conf, &format!("192.0.2.{number}/24"))
    };
    let (web, result) = attached(&node, "web", &conf(1));
    let (db, _) = attached(&node, "db", &conf(2));
    let untagged = with_address(on("br-int", json!({})), "192.0.2.3/24");
    let (_all, _) = attached(&node, "all", &untagged);
    traffic::ping(web.place(), address("192.0.2.2"), 1).unwrap();
    let seen = || {
        let row = node.await_ofport_of(&web.container);
        (
            bridge_of(&node, &web),
            vlan_of(&node, &web),
            row["ofport"].clone(),
        )
    };
    let before = seen();
    assert_eq!((before.0.as_str(), &before.2), ("br-int", &json!(301)));
    // Port security is the node's: a sender's address is its own.
    let heard = Capture::on(db.place(), "net1").unwrap();
    let frames = [9, 1].map(|sender| arp_request_of(&web, sender, None));
    frames::send(web.place(), "net1", &frames).unwrap();
    let before_own = heard.until(|frame| frame == frames[1]).unwrap();
    assert!(
        !before_own.contains(&frames[0]),
        "a forged sender was heard"
    );

    node.lose_database();
    node.stop_vswitchd();
    node.start_ovsdb_server();
    node.start_vswitchd();
    assert_eq!(seen(), before);
    web.exec("CHECK", &with_prev(&conf(1), &result)).success();
    drop(agent);
}

#[test]
fn what_can_not_be_served_is_refused_by_its_name_and_leaves_nothing() {
    let node = with_bridges(&["br1", "closed"]);
    node.vsctl("br-set-external-id closed podwire.io/attach false");
    let _agent = node.start_agent(&AgentOptions::default());
    let mut pod = node.pod("web");
    pod.interface = "net1".into();
    for (conf, code, words) in [
        (
            on("br9", json!({})),
            11,
            vec!["br9", "ovs-vsctl add-br br9"],
        ),
        (
            on("closed", json!({})),
            7,
            vec!["closed", "podwire.io/attach=false"],
        ),
        (on("br1", json!({"vlan": 4095})), 7, vec!["vlan", "4095"]),
        (
            on("br1", json!({"trunk": [{"minID": 9, "maxID": 3}]})),
            7,
            vec!["trunk[0].maxID"],
        ),
        (on("br1", json!({"mtu": 67})), 7, vec!["mtu", "67"]),
        (
            on("br1", json!({"ofport_request": 70000})),
            7,
            vec!["ofport_request", "70000"],
        ),
        (
            on("br1", json!({"interface_type": "dpdk"})),
            7,
            vec!["interface_type", "dpdk"],
        ),
        (
            on("br1", json!({"deviceID": "0000:18:00.2"})),
            7,
            vec!["deviceID"],
        ),
        (
            on("br1", json!({"socket_file": "tcp:192.0.2.1:6640"})),
            7,
            vec!["socket_file", "tcp:"],
        ),
        (
            on("br1", json!({"portSecurity": true})),
            7,
            vec!["portSecurity", "br1"],
        ),
        (
            on("br1", json!({"args": {"cni": {"mac": "x"}}})),
            7,
            vec!["args.cni.mac", "x"],
        ),
        (
            json!({"cniVersion": "1.0.0", "name": "n", "type": "ovs",
                "args": {"cni": {"ovnPort": "lp"}}}),
            7,
            vec!["bridge", "ovnPort"],
        ),
        // It would keep the pod of that name from starting.
        (
            on(
                "br-int",
                json!({"args": {"cni": {"ovnPort": "tests_other"}}}),
            ),
            7,
            vec!["ovnPort", "tests_other", "br-int", "plain mode"],
        ),
    ] {
        error(&pod.exec("ADD", &conf), code, &words);
        pod.exec("DEL", &conf).success();
    }
    assert_no_ports(&node, &["br1", "closed"]);
    node.leftovers().assert_none();
}
