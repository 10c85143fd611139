//! Gateway routers of nodes that announce a gateway of OVN's own: made, kept, removed.

use podwire_tests::apiserver::{ApiServer, node};
use podwire_tests::ovn::Central;
use serde_json::{Value, json};

use crate::fixture::{Running, await_row, column, names};

const SHARED: [&str; 4] = [
    "--gateway-mode",
    "shared",
    "--cluster-subnets",
    "10.244.0.0/16/24,fd00:10:244::/48/64",
];

/// A node that announces a gateway of both families.
fn gateway(name: &str, number: u8) -> Value {
    let mut node = node(name, &format!("192.0.2.{number}"));
    let entry = json!({ "default": {
        "mode": "shared", "interface-id": format!("br-ex_{name}"),
        "mac-address": format!("52:54:00:00:00:{number:02x}"),
        "ip-addresses": [format!("192.0.2.{number}/24"), format!("2001:db8::{number}/64")],
        "next-hops": ["192.0.2.254", "fe80::1"], "node-port-enable": "true", "vlan-id": "0",
        "mtu": 1442,
    } });
    let annotations = &mut node["metadata"]["annotations"];
    annotations["k8s.ovn.org/l3-gateway-config"] = entry.to_string().into();
    let all = [format!("192.0.2.{number}"), "198.51.100.1".to_owned()];
    annotations["k8s.ovn.org/host-addresses"] = json!(all).to_string().into();
    node
}

/// The routes of a router: prefix, next hop, and port if it names one.
fn routes(central: &Central, router: &str) -> Vec<String> {
    let said = central.nbctl(format!("lr-route-list {router}"));
    let routes = said.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let prefix = words.next().filter(|it| it.contains('/'))?;
        let (hop, kind) = (words.next()?, words.next().unwrap_or_default());
        let port = words.next().map(|port| format!(" {port}"));
        assert!(["src-ip", "dst-ip"].contains(&kind), "{line}");
        Some(format!("{prefix} via {hop}{}", port.unwrap_or_default()))
    });
    let mut routes: Vec<String> = routes.collect();
    routes.sort();
    routes
}

/// What the rows of gateways are found by.
fn routers(central: &Central) -> Vec<String> {
    names(central, "Logical_Router")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_announces_a_gateway_has_a_gateway_router_and_others_leave_by_their_hosts() {
    let (central, server) = (Central::start(), ApiServer::start());
    // Both were ovn-kubernetes' before.
    let mut both = [gateway("node-a", 11), node("node-b", "192.0.2.12")];
    for (node, key) in both
        .iter_mut()
        .zip(["node-gateway-router-lrp-ifaddr", "node-id"])
    {
        node["metadata"]["annotations"][format!("k8s.ovn.org/{key}")] = "2".into();
    }
    both.into_iter().for_each(|node| server.apply(node));
    let mut controller = Running::start(&central, &server, &SHARED);
    controller.idle().await;
    assert_eq!(routers(&central), ["GR_node-a", "ovn_cluster_router"]);
    assert_eq!(
        column(&central, "Logical_Router", "GR_node-a", "options"),
        json!({
            "always_learn_from_arp_request": "false", "chassis": "node-a",
            "dynamic_neigh_routers": "true", "mac_binding_age_threshold": "300",
            "snat-ct-zone": "0",
        })
    );
    let port = |name: &str, of: &str| column(&central, "Logical_Router_Port", name, of);
    let networks = |name: &str| port(name, "networks").to_string();
    assert_eq!(
        networks("rtoj-ovn_cluster_router"),
        r#"["100.64.0.1/16","fd98::1/64"]"#
    );
    assert_eq!(
        networks("rtoj-GR_node-a"),
        r#"["100.64.0.2/16","fd98::2/64"]"#
    );
    assert_eq!(
        networks("rtoe-GR_node-a"),
        r#"["192.0.2.11/24","2001:db8::11/64"]"#
    );
    assert_eq!(port("rtoe-GR_node-a", "mac"), "52:54:00:00:00:0b");
    let mtu = json!({ "gateway_mtu": "1442" });
    assert_eq!(port("rtoe-GR_node-a", "options"), mtu);
    let bridge = |of: &str| column(&central, "Logical_Switch_Port", "br-ex_node-a", of);
    assert_eq!(bridge("type"), "localnet");
    assert_eq!(bridge("options"), json!({ "network_name": "physnet" }));
    assert_eq!(
        routes(&central, "GR_node-a"),
        [
            "0.0.0.0/0 via 192.0.2.254 rtoe-GR_node-a",
            "10.244.0.0/16 via discard",
            "10.244.0.0/24 via 100.64.0.1",
            "::/0 via fe80::1 rtoe-GR_node-a",
            "fd00:10:244::/48 via discard",
            "fd00:10:244::/64 via fd98::1",
        ]
    );
    let ways = [
        "10.244.0.0/24 via 100.64.0.2",
        "10.244.1.0/24 via 10.244.1.2",
        "fd00:10:244:1::/64 via fd00:10:244:1::2",
        "fd00:10:244::/64 via fd98::2",
    ];
    assert_eq!(routes(&central, "ovn_cluster_router"), ways);
    let nats = central.nbctl("lr-nat-list GR_node-a");
    for nat in [
        "192.0.2.11",
        "10.244.0.0/24",
        "2001:db8::11",
        "fd00:10:244::/64",
    ] {
        assert!(nats.contains(nat), "{nats}");
    }
    // What is for its host stays there, also what it has led to its pods.
    let policies = central.nbctl("lr-policy-list ovn_cluster_router");
    for address in ["192.0.2.11", "198.51.100.1", "169.254.169.6", "fd69::6"] {
        let matching = format!(
            r#"inport == "rtos-node-a" && ip{}.dst == {address}"#,
            if address.contains(':') { 6 } else { 4 }
        );
        assert!(policies.contains(&matching), "{policies}");
    }
    assert!(!policies.contains(r#"inport == "rtos-node-b" && ip4.dst == 169.254.169.6"#));
    // With an OVN that can mark what pods answer, that comes back to their hosts, which are told.
    let has_marks = Central::has_marks();
    let marks = "pkt.mark == 33554432 && ip4.dst == {10.244.0.0/16}";
    assert_eq!(policies.contains(marks), has_marks, "{policies}");
    let qos = central.nbctl("qos-list node-a");
    assert_eq!(qos.contains("ct.rpl && ip6.src"), has_marks, "{qos}");
    let told = |name: &str| {
        let node = server.object("Node", "", name).unwrap();
        node["metadata"]["annotations"]["k8s.ovn.org/podwire-answers"].clone()
    };
    let is_told = if has_marks {
        json!("host")
    } else {
        Value::Null
    };
    assert_eq!([told("node-a"), told("node-b")], [is_told, Value::Null]);
    for name in ["node-a", "node-b"] {
        let node = server.object("Node", "", name).unwrap().to_string();
        assert!(
            !node.contains("lrp-ifaddr") && !node.contains("node-id"),
            "{node}"
        );
    }
    // ovn-northd understands all of it.
    central.nbctl("--wait=sb sync");
    let bindings = central.southbound().rows("Port_Binding").unwrap();
    let kind = |name: &str| {
        let row = bindings.iter().find(|row| row["logical_port"] == name);
        row.unwrap()["type"].clone()
    };
    assert_eq!(kind("rtoe-GR_node-a"), "l3gateway");
    assert_eq!(kind("br-ex_node-a"), "localnet");
    controller.stop().await.unwrap();

    // The same again is nothing to do, and the next leader gives nobody another place.
    server.apply(gateway("a-first", 13));
    let mut controller = Running::start(&central, &server, &SHARED);
    controller.idle().await;
    assert_eq!(
        networks("rtoj-GR_node-a"),
        r#"["100.64.0.2/16","fd98::2/64"]"#
    );
    assert_eq!(
        networks("rtoj-GR_a-first"),
        r#"["100.64.0.3/16","fd98::3/64"]"#
    );
    server.delete_object("Node", "", "a-first");
    await_row(&central, "Logical_Router", "GR_a-first", false);
    controller.stop().await.unwrap();
    let mut controller = Running::start(&central, &server, &SHARED);
    assert_eq!(controller.idle().await.operations, 0);

    // The node has none any more, and gets one again.
    server.apply(node("node-a", "192.0.2.11"));
    await_row(&central, "Logical_Router", "GR_node-a", false);
    controller.idle().await;
    let by_hosts = [
        "10.244.0.0/24 via 10.244.0.2",
        "10.244.1.0/24 via 10.244.1.2",
        "fd00:10:244:1::/64 via fd00:10:244:1::2",
        "fd00:10:244::/64 via fd00:10:244::2",
    ];
    assert_eq!(routes(&central, "ovn_cluster_router"), by_hosts);
    server.apply(gateway("node-a", 11));
    await_row(&central, "Logical_Router", "GR_node-a", true);
    controller.idle().await;
    assert_eq!(routes(&central, "ovn_cluster_router"), ways);
    controller.stop().await.unwrap();

    // And nothing of it is left when the cluster's mode is routed again.
    let mut controller = Running::start(&central, &server, &SHARED[2..]);
    controller.idle().await;
    assert_eq!(routers(&central), ["ovn_cluster_router"]);
    assert_eq!(routes(&central, "ovn_cluster_router"), by_hosts);
    for (table, left) in [
        ("Logical_Switch", &["node-a", "node-b", "podwire_doors"][..]),
        ("Logical_Router_Port", &["rtos-node-a", "rtos-node-b"]),
        ("NAT", &[]),
    ] {
        assert_eq!(names(&central, table), left);
    }
    controller.stop().await.unwrap();
    let mut controller = Running::start(&central, &server, &SHARED[2..]);
    assert_eq!(controller.idle().await.operations, 0);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_s_rows_and_a_mistake_cost_one_node_its_gateway_and_nothing_else() {
    let (central, server) = (Central::start(), ApiServer::start());
    central.nbctl("lr-add GR_node-a -- lrp-add GR_node-a theirs 00:00:00:00:00:01 10.9.9.9/24");
    server.apply(gateway("node-a", 11));
    server.apply(gateway("node-b", 12));
    let mut wrong = gateway("node-c", 13);
    let entry = wrong["metadata"]["annotations"]["k8s.ovn.org/l3-gateway-config"]
        .as_str()
        .unwrap();
    let entry = entry.replace("192.0.2.254", "gateway.example");
    wrong["metadata"]["annotations"]["k8s.ovn.org/l3-gateway-config"] = entry.into();
    server.apply(wrong);
    let mut controller = Running::start(&central, &server, &SHARED);
    controller.idle().await;
    assert_eq!(routers(&central), ["GR_node-b", "ovn_cluster_router"]);
    let ways = routes(&central, "ovn_cluster_router");
    for way in [
        "10.244.0.0/24 via 10.244.0.2",
        "10.244.1.0/24 via 100.64.0.3",
        "10.244.2.0/24 via 10.244.2.2",
    ] {
        assert!(ways.iter().any(|it| it == way), "{ways:?}");
    }
    let events = server.events();
    let said = |name: &str| {
        let mut own = events
            .iter()
            .filter(|it| it["involvedObject"]["name"] == name);
        own.next()
            .map(|it| it["message"].as_str().unwrap().to_owned())
            .unwrap_or_default()
    };
    let foreign = "Logical_Router GR_node-a in the northbound database does not belong";
    assert!(said("node-a").contains(foreign), "{events:?}");
    assert!(
        said("node-c").contains("next-hops gateway.example"),
        "{events:?}"
    );
    assert_eq!(said("node-b"), "");
    let theirs = central.nbctl("lrp-get-enabled theirs");
    assert_eq!(theirs.trim(), "enabled");
    // Once they are gone, the node has its own.
    central.nbctl("lr-del GR_node-a");
    controller
        .until(|progress| progress.is_idle && routers(&central).len() == 3)
        .await;
    controller.idle().await;
    let ways = routes(&central, "ovn_cluster_router");
    assert!(
        ways.contains(&"10.244.0.0/24 via 100.64.0.2".to_owned()),
        "{ways:?}"
    );
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_routers_keep_their_places_in_a_cluster_without_ipv4() {
    let (central, server) = (Central::start(), ApiServer::start());
    let six = |name: &str, number: u8| {
        let mut node = gateway(name, number);
        let address = format!("2001:db8::{number}");
        node["status"]["addresses"][0]["address"] = address.clone().into();
        let annotations = &mut node["metadata"]["annotations"];
        let entry = annotations["k8s.ovn.org/l3-gateway-config"].as_str();
        let mut entry: Value = serde_json::from_str(entry.unwrap()).unwrap();
        entry["default"]["ip-addresses"] = json!([format!("{address}/64")]);
        entry["default"]["next-hops"] = json!(["fe80::1"]);
        annotations["k8s.ovn.org/l3-gateway-config"] = entry.to_string().into();
        annotations["k8s.ovn.org/host-addresses"] = json!([address]).to_string().into();
        node
    };
    let subnets = "--cluster-subnets=fd00:10:244::/48/64";
    let flags = ["--gateway-mode", "shared", subnets];
    server.apply(six("node-b", 12));
    let mut controller = Running::start(&central, &server, &flags);
    controller.idle().await;
    server.apply(six("node-a", 11));
    let way = "fd00:10:244:1::/64 via fd98::3".to_owned();
    let is_led = || routes(&central, "ovn_cluster_router").contains(&way);
    controller
        .until(|progress| progress.is_idle && is_led())
        .await;
    controller.stop().await.unwrap();
    let mut controller = Running::start(&central, &server, &flags);
    assert_eq!(controller.idle().await.operations, 0);
    let port = |name: &str| column(&central, "Logical_Router_Port", name, "networks");
    assert_eq!(port("rtoj-GR_node-b"), "fd98::2/64");
    assert_eq!(port("rtoj-GR_node-a"), "fd98::3/64");
    controller.stop().await.unwrap();
}
