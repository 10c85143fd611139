//! Under the name `ovs`, the examples of ovs-cni's documentation run unchanged (docs/cni-plugin.md,
//! docs/demo.md, docs/traffic-mirroring.md without its mirrors, and examples/, at 19262a0c; the
//! files in ovs_cni/ are these).

use std::path::Path;

use podwire_tests::ovn::{Central, LogicalPort, OvnNode};
use podwire_tests::{AgentOptions, Pod, TestNode, datapath, links, plugin_binary, traffic};
use serde_json::{Value, json};

/// The examples, each with the VLAN columns that ovs-cni writes for it: mode, tag, trunks.
const EXAMPLES: [(&str, &str, [&str; 3]); 7] = [
    (
        "access",
        include_str!("ovs_cni/access.json"),
        ["access", "100", "[]"],
    ),
    (
        "trunk",
        include_str!("ovs_cni/trunk.json"),
        [
            "trunk",
            "[]",
            "[42, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009, 1010]",
        ],
    ),
    (
        "system",
        include_str!("ovs_cni/system.json"),
        ["trunk", "[]", "[]"],
    ),
    (
        "demo-1",
        include_str!("ovs_cni/demo-1.json"),
        ["trunk", "[]", "[]"],
    ),
    (
        "demo-2",
        include_str!("ovs_cni/demo-2.json"),
        ["access", "100", "[]"],
    ),
    (
        "demo-ipam",
        include_str!("ovs_cni/demo-ipam.json"),
        ["access", "100", "[]"],
    ),
    (
        "manual",
        include_str!("ovs_cni/manual.json"),
        ["access", "100", "[]"],
    ),
];

/// The node's plugin under ovs-cni's name, as `podwire install` puts it there.
const PLUGIN: &str = "/run/bin/ovs";

fn node() -> TestNode {
    let node = TestNode::with_ovs();
    for bridge in ["mynet0", "mynet1", "br1"] {
        let datapath = datapath().name();
        node.vsctl(format!(
            "add-br {bridge} -- set bridge {bridge} datapath_type={datapath}"
        ));
    }
    install(&node);
    node
}

/// `podwire install --as ovs`, and nothing else.
fn install(node: &TestNode) {
    let plugin = plugin_binary();
    let flags = format!(
        "--plugin {} --bin-dir /run/bin --conf-dir /run/net.d",
        plugin.display()
    );
    let installed = node.podwire(format!("install --as ovs {flags}"));
    assert!(installed.status.success(), "{installed:?}");
    assert!(node.path(PLUGIN).exists());
    assert!(
        !node.path("/run/net.d").exists(),
        "ovs-cni has no network configuration"
    );
    let refused = node.podwire(format!("install --as ovs --conf-only {flags}"));
    assert!(refused.stderr.contains("--as ovs") && refused.stderr.contains("--conf"));
}

/// What a runtime makes of an example: Multus gives a configuration without a name its
/// definition's, and `prevResult` comes with the later verbs.
fn call(pod: &Pod<'_>, verb: &str, conf: &Value, prev: Option<&Value>) -> Value {
    let mut conf = conf.clone();
    if conf["name"].is_null() {
        conf["name"] = json!("ovs-net");
    }
    if let Some(prev) = prev {
        conf["prevResult"] = prev.clone();
    }
    let text = conf.to_string();
    pod.exec_binary(Path::new(PLUGIN), verb, text.as_bytes(), &[])
        .success()
}

fn vlan_of(node: &TestNode, port: &str) -> [String; 3] {
    ["vlan_mode", "tag", "trunks"].map(|column| {
        node.vsctl(format!("get port {port} {column}"))
            .trim()
            .to_owned()
    })
}

#[test]
fn every_example_is_added_checked_and_removed() {
    let node = node();
    let _agent = node.start_agent(&AgentOptions::default());
    for (name, text, vlan) in EXAMPLES {
        let mut conf: Value = serde_json::from_str(text).unwrap();
        let mut pod = node.pod(name);
        pod.interface = "net1".into();
        if conf["ipam"]["type"] == "static" {
            conf["args"] = json!({"cni": {"ips": ["10.10.10.1/24"]}});
        }
        let result = call(&pod, "ADD", &conf, None);
        let port = result["interfaces"][0]["name"].as_str().unwrap();
        assert_eq!(result["interfaces"][1]["name"], "net1");
        assert_eq!(vlan_of(&node, port), vlan, "{name}");
        let bridge = node.vsctl(format!("port-to-br {port}"));
        assert_eq!(bridge.trim(), conf["bridge"], "{name}");
        let link = links::find(pod.place(), "net1").unwrap();
        let mtu = conf["mtu"].as_u64().unwrap_or(1500);
        assert_eq!(link.mtu, mtu, "{name}");
        // A runtime checks from 0.4.0 on.
        if conf["cniVersion"].is_string() {
            call(&pod, "CHECK", &conf, Some(&result));
            call(&pod, "DEL", &conf, Some(&result));
        } else {
            assert_eq!(result["cniVersion"], "0.3.1", "{name}");
            call(&pod, "DEL", &conf, None);
        }
        for bridge in ["mynet0", "mynet1", "br1"] {
            assert_eq!(node.vsctl(format!("list-ports {bridge}")), "", "{name}");
        }
    }
    let removed = node.podwire("uninstall --bin-dir /run/bin --conf-dir /run/net.d");
    assert!(removed.status.success(), "{removed:?}");
    assert!(!node.path(PLUGIN).exists());
}

#[test]
fn the_demos_pods_ping_each_other_by_their_requested_addresses() {
    let node = node();
    let _agent = node.start_agent(&AgentOptions::default());
    let pods = ["10.10.10.1/24", "10.10.10.2/24"].map(|address| {
        let text = include_str!("ovs_cni/demo-ipam.json");
        let mut conf: Value = serde_json::from_str(text).unwrap();
        conf["args"] = json!({"cni": {"ips": [address]}});
        let mut pod = node.pod(&address.replace(['.', '/'], "-"));
        pod.interface = "net1".into();
        call(&pod, "ADD", &conf, None);
        pod
    });
    traffic::ping(pods[0].place(), "10.10.10.2".parse().unwrap(), 2).unwrap();
}

/// Wires a pod's net1 as ovs-cni does; returns the port.
fn wired_by_ovs_cni(node: &TestNode, pod: &Pod<'_>, bridge: &str, iface_id: &str) -> String {
    let port = format!("veth-{}", pod.name);
    node.run(
        "ip",
        format!(
            "link add {port} type veth peer name net1 netns {}",
            pod.netns
        ),
    );
    node.vsctl(format!(
        "add-port {bridge} {port} -- set port {port} external_ids:contNetns={} \
         external_ids:contIface=net1 external_ids:owner=ovs-cni.network.kubevirt.io \
         -- set interface {port} external_ids:iface-id={iface_id}",
        pod.netns
    ));
    port
}

#[test]
fn ports_that_ovs_cni_left_are_removed_by_del_and_gc() {
    let node = node();
    let agent = node.start_agent(&AgentOptions::default());
    let conf = json!({"cniVersion": "1.1.0", "name": "n", "type": "ovs", "bridge": "mynet0"});
    let [named, mut gone, mut forgotten, living] =
        ["named", "gone", "forgotten", "living"].map(|name| {
            let mut pod = node.pod(name);
            pod.interface = "net1".into();
            pod
        });
    for pod in [&named, &gone, &forgotten, &living] {
        wired_by_ovs_cni(&node, pod, "mynet0", &pod.name);
    }
    let ports = || {
        let mut ports: Vec<String> = node
            .vsctl("list-ports mynet0")
            .lines()
            .map(str::to_owned)
            .collect();
        ports.sort();
        ports
    };
    call(&named, "DEL", &conf, None);
    assert!(links::find(named.place(), "net1").is_none());
    assert_eq!(ports(), ["veth-forgotten", "veth-gone", "veth-living"]);
    // A DEL without the namespace, as after a reboot; it is no other interface's.
    gone.remove_netns();
    let text = conf.to_string();
    for (interface, left) in [("net2", 3), ("net1", 2)] {
        let changes = [("CNI_NETNS", None), ("CNI_IFNAME", Some(interface))];
        gone.exec_binary(Path::new(PLUGIN), "DEL", text.as_bytes(), &changes)
            .success();
        assert_eq!(ports().len(), left, "{}", agent.log());
    }
    forgotten.remove_netns();
    let mut gc = conf.clone();
    gc["cni.dev/valid-attachments"] = json!([]);
    call(&living, "GC", &gc, None);
    assert_eq!(ports(), ["veth-living"]);
    assert!(links::find(living.place(), "net1").is_some());
}

#[test]
fn a_pods_mac_and_logical_port_are_those_of_its_cni_args() {
    let (central, node) = Central::with_node();
    install(&node);
    let _agent = node.start_agent(&OvnNode::agent_options());
    let (web, web_port) = central.schedule(&node, "web", 11);
    web.add().success();
    // A logical port that no pod's name leads to, as another control plane makes it.
    let mut pod = node.pod("samplepod");
    pod.interface = "net1".into();
    let port = LogicalPort {
        name: "my-logical-port".to_owned(),
        uid: None,
        chassis: None,
        ..LogicalPort::of(&pod, &node, 12)
    };
    central.add_port(&port);
    let mut conf: Value = serde_json::from_str(include_str!("ovs_cni/cni-args.json")).unwrap();
    conf["args"]["cni"]["ovnPort"] = json!(port.name);
    conf["args"]["cni"]["mac"] = json!(port.mac());
    let address = format!("{}/24", port.ipv4());
    conf["ipam"] = json!({"type": "static", "addresses": [{"address": address}]});
    // The port of a pod that ovs-cni wired; its logical port is free once its namespace is gone.
    let mut former = node.pod("former");
    former.interface = "net1".into();
    let left = wired_by_ovs_cni(&node, &former, "br-int", &port.name);
    let text = conf.to_string();
    let refused = pod
        .exec_binary(Path::new(PLUGIN), "ADD", text.as_bytes(), &[])
        .error();
    assert_eq!(refused.code, 105, "{refused:?}");
    refused.assert_names(&["ovnPort", &port.name, &left]);
    former.remove_netns();
    let result = call(&pod, "ADD", &conf, None);
    assert!(!node.vsctl("list-ports br-int").contains(&left));
    central.await_up(&port.name, true);
    assert_eq!(links::find(pod.place(), "net1").unwrap().mac, port.mac());
    let iface_id = node.external_id(&pod.container, "net1", "iface-id");
    assert_eq!(iface_id.as_ref(), Some(&port.name));
    traffic::ping_until_answered(pod.place(), web_port.ipv4().parse().unwrap()).unwrap();
    call(&pod, "CHECK", &conf, Some(&result));

    // Another pod's logical port is not for the taking, and a port of somebody else neither.
    let mut thief = node.pod("thief");
    thief.interface = "net1".into();
    node.vsctl(
        "add-port br-int mp0 -- set interface mp0 type=internal external_ids:iface-id=of-mp0",
    );
    for (wanted, code, holder) in [
        (web_port.name.as_str(), 105, "tests/web"),
        ("of-mp0", 105, "mp0"),
        // Nor are those of nodes, which other nodes have.
        ("k8s-other", 7, "nodes"),
        ("podwire-door-other", 7, "nodes"),
    ] {
        conf["args"]["cni"]["ovnPort"] = json!(wanted);
        let text = conf.to_string();
        let refused = thief
            .exec_binary(Path::new(PLUGIN), "ADD", text.as_bytes(), &[])
            .error();
        assert_eq!(refused.code, code, "{refused:?}");
        refused.assert_names(&["ovnPort", wanted, holder]);
    }
    assert!(node.interface_of(&web.container).is_some());
    call(&pod, "DEL", &conf, None);
    central.await_up(&port.name, false);
}

#[test]
fn the_logical_port_of_another_nodes_pod_is_not_for_the_taking() {
    let (central, [one, two]) = Central::with_two_nodes();
    install(&two);
    let impatient = OvnNode::agent_options().with("--add-timeout 1");
    let agents = [
        one.start_agent(&OvnNode::agent_options()),
        two.start_agent(&impatient),
    ];
    let (web, web_port) = central.schedule(&one, "web", 11);
    let (db, _) = central.schedule(&two, "db", 12);
    for pod in [&web, &db] {
        pod.add().success();
    }
    let address = web_port.ipv4().parse().unwrap();
    traffic::ping_until_answered(db.place(), address).unwrap();
    // By its names, its uid and its addresses: its node does not tell this one of it.
    let mut thief = two.pod("thief");
    thief.interface = "net1".into();
    thief.uid.clone_from(&web.uid);
    let mut conf: Value = serde_json::from_str(include_str!("ovs_cni/cni-args.json")).unwrap();
    conf["args"]["cni"]["ovnPort"] = json!(web_port.name);
    conf["args"]["cni"]["mac"] = json!(web_port.mac());
    let own = format!("{}/24", web_port.ipv4());
    conf["ipam"] = json!({"type": "static", "addresses": [{"address": own}]});
    let text = conf.to_string();
    let run = |verb: &str| thief.exec_binary(Path::new(PLUGIN), verb, text.as_bytes(), &[]);
    let refused = run("ADD").error();
    assert_eq!(refused.code, 11, "{refused:?}");
    refused.assert_names(&[&web_port.name, "node-a"]);
    run("DEL").success();
    central.sync();
    central.await_up(&web_port.name, true);
    traffic::tcp_echo(db.place(), web.place(), address, 1 << 16).unwrap();
    drop(agents);
}
