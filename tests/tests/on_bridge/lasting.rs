//! What is found, kept and removed later: CHECK, GC, restarts and a lost database.

use super::*;

#[test]
fn check_names_an_altered_vlan_and_a_port_on_another_bridge() {
    let node = with_bridges(&["br1", "br2"]);
    let _agent = node.start_agent(&AgentOptions::default());
    let list = on("br1", json!({"trunk": [{"minID": 5, "maxID": 7}]}));
    for (conf, spoil, names) in [
        (
            on("br1", json!({"vlan": 100})),
            "tag=200",
            ["tag 200", "tag 100"],
        ),
        (list, "trunks=5,6,8", ["trunks 5-6,8", "trunks 5-7"]),
        (
            on("br1", json!({})),
            "tag=9 vlan_mode=access",
            ["tag 9", "vlan_mode trunk"],
        ),
    ] {
        let (pod, result) = attached(&node, "web", &conf);
        let checked = with_prev(&conf, &result);
        pod.exec("CHECK", &checked).success();
        let port = port_of(&node, &pod);
        node.vsctl(format!("set port {port} {spoil}"));
        error(
            &pod.exec("CHECK", &checked),
            103,
            &[&port, names[0], names[1]],
        );
        // `podwire check` has the command that repairs it.
        let told = node.podwire("check -o json").stdout;
        let told: Value = serde_json::from_str(&told).unwrap();
        let fix = find_fix(&told).unwrap_or_else(|| panic!("no fix in {told}"));
        node.run("sh", ["-c", &fix]);
        pod.exec("CHECK", &checked).success();
        let row = node.vsctl(format!("get port {port} _uuid"));
        let row = row.trim();
        node.vsctl(format!(
            "remove bridge br1 ports {row} -- add bridge br2 ports {row}"
        ));
        error(
            &pod.exec("CHECK", &checked),
            103,
            &[&port, "on br2, not on br1"],
        );
        pod.exec("DEL", &conf).success();
    }
}

#[test]
fn a_lost_database_and_a_bridge_that_comes_back_have_every_port_again_where_it_was() {
    let node = with_bridges(&["br1", "br2"]);
    let agent = node.start_agent(&AgentOptions::default());
    let confs = [
        on("br1", json!({"vlan": 100, "ofport_request": 55})),
        on(
            "br2",
            json!({"vlan": 7, "trunk": [{"minID": 40, "maxID": 42}]}),
        ),
    ];
    let pods =
        [("web", &confs[0]), ("db", &confs[1])].map(|(name, conf)| attached(&node, name, conf));
    let seen = || {
        pods.each_ref().map(|(pod, _)| {
            let row = node.await_ofport_of(&pod.container);
            (
                bridge_of(&node, pod),
                vlan_of(&node, pod),
                row["ofport"].clone(),
            )
        })
    };
    let before = seen();
    assert_eq!(before[0].0, "br1");
    node.stop_vswitchd();
    node.lose_database();
    node.start_ovsdb_server();
    node.start_vswitchd();
    // The agent makes its own bridge only.
    for bridge in ["br2", "br1"] {
        make_bridge(&node, bridge);
    }
    let after = seen();
    assert_eq!(after[0], before[0]);
    assert_eq!(after[1].0, "br2");
    assert_eq!(after[1].1, before[1].1);

    // The same after the operator's bridge alone was removed, and with another agent.
    node.vsctl("del-br br1");
    node.await_port(&pods[0].0.container, false);
    let agent = agent.kill_and_restart();
    make_bridge(&node, "br1");
    assert_eq!(seen()[0], before[0]);
    // And a single port that somebody removes.
    let port = port_of(&node, &pods[1].0);
    node.vsctl(format!("del-port {port}"));
    assert_eq!(seen()[1].1, before[1].1);
    for ((pod, result), conf) in pods.iter().zip(&confs) {
        pod.exec("CHECK", &with_prev(conf, result)).success();
        pod.exec("DEL", conf).success();
    }
    drop(agent);
    assert_no_ports(&node, &["br1", "br2"]);
}

#[test]
fn gc_removes_what_is_not_listed_on_the_bridge_of_its_network_only() {
    let node = with_bridges(&["br1", "br2"]);
    let _agent = node.start_agent(&AgentOptions::default());
    let conf = |bridge| {
        let mut conf = on(bridge, json!({"vlan": 5}));
        conf["cniVersion"] = json!("1.1.0");
        conf
    };
    let (kept, _) = attached(&node, "kept", &conf("br1"));
    let (gone, _) = attached(&node, "gone", &conf("br1"));
    let (other, _) = attached(&node, "other", &conf("br2"));
    let mut gc = conf("br1");
    gc["cni.dev/valid-attachments"] = json!([{"containerID": kept.container, "ifname": "net1"}]);
    kept.exec("GC", &gc).success();
    assert!(node.interface_of(&gone.container).is_none());
    assert_eq!(
        (bridge_of(&node, &kept), bridge_of(&node, &other)),
        ("br1".into(), "br2".into())
    );
    kept.exec("STATUS", &conf("br1")).success();
    error(
        &kept.exec("STATUS", &conf("br9")),
        50,
        &["br9", "ovs-vsctl add-br br9"],
    );
}

fn find_fix(value: &Value) -> Option<String> {
    match value {
        Value::Object(members) => match members.get("fix").and_then(Value::as_str) {
            Some(fix) => Some(fix.to_owned()),
            None => members.values().find_map(find_fix),
        },
        Value::Array(elements) => elements.iter().find_map(find_fix),
        _ => None,
    }
}

#[test]
fn a_port_that_was_removed_by_hand_comes_back_though_the_nodes_own_bridge_is_missing() {
    let node = with_bridges(&["br-int", "br1"]);
    let options = AgentOptions::default().with("--mode ovn --wait ofport");
    let _agent = Agent::launch(&node, &options).unwrap();
    let (pod, _) = attached(&node, "web", &on("br1", json!({})));
    let port = port_of(&node, &pod);
    // In OVN mode it is ovn-controller that would make it again.
    node.vsctl("del-br br-int");
    node.vsctl(format!("--no-wait del-port br1 {port}"));
    node.await_port(&pod.container, true);
    node.await_ofport(&port).unwrap();
    assert_eq!(bridge_of(&node, &pod), "br1");
}

#[test]
fn check_names_a_port_number_that_is_not_the_requested_one() {
    let node = with_bridges(&["br1"]);
    let _agent = node.start_agent(&AgentOptions::default());
    let conf = on("br1", json!({"ofport_request": 55}));
    let (pod, result) = attached(&node, "web", &conf);
    let checked = with_prev(&conf, &result);
    pod.exec("CHECK", &checked).success();
    let port = port_of(&node, &pod);
    node.vsctl(format!("set interface {port} ofport_request=66"));
    error(&pod.exec("CHECK", &checked), 103, &[&port, "66", "55"]);
    let told = node.podwire("check -o json").stdout;
    let told: Value = serde_json::from_str(&told).unwrap();
    let fix = find_fix(&told).unwrap_or_else(|| panic!("no fix in {told}"));
    node.run("sh", ["-c", &fix]);
    pod.exec("CHECK", &checked).success();
}
