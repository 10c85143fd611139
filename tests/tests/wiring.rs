//! ADD and DEL of pods with annotations: what is made, that it carries traffic, that it goes.

use std::net::IpAddr;

use podwire_tests::annotation::{GATEWAY_V4, GATEWAY_V6, entry, ipv4, ipv6, mac};
use podwire_tests::{AgentOptions, Datapath, TestNode, conf, datapath, links, traffic};
use serde_json::{Value, json};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_pod_gets_what_its_annotation_says() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let mut entry = entry(11);
    entry["routes"] = json!([
        {"dest": "10.96.0.0/12", "nextHop": GATEWAY_V4},
        {"dest": "fd00:96::/112", "nextHop": GATEWAY_V6},
        {"dest": "192.0.2.0/24"},
    ]);
    let pod = node.pod("web").on_default_network(&entry);
    let mut conf = conf();
    conf["mtu"] = json!(1400);
    pod.exec("ADD", &conf).success();

    let eth0 = links::find(pod.place(), "eth0").unwrap();
    assert_eq!((eth0.mac, eth0.mtu, eth0.up), (mac(11), 1400, true));
    assert!(links::find(pod.place(), "lo").unwrap().up);
    let addresses = links::addresses(pod.place(), "eth0");
    assert_eq!(
        addresses,
        [format!("{}/24", ipv4(11)), format!("{}/64", ipv6(11))]
    );
    let routes = |family| {
        let mut routes: Vec<_> = links::routes(pod.place(), family)
            .into_iter()
            .map(|route| {
                (
                    route["dst"].clone(),
                    route["gateway"].clone(),
                    route["dev"].clone(),
                )
            })
            .collect();
        routes.sort_by_key(|(destination, ..)| destination.to_string());
        routes
    };
    let route = |destination: &str, gateway: Value| (json!(destination), gateway, json!("eth0"));
    assert_eq!(
        routes("-4"),
        [
            route("10.96.0.0/12", json!(GATEWAY_V4)),
            route("192.0.2.0/24", Value::Null),
            route("default", json!(GATEWAY_V4)),
        ]
    );
    assert_eq!(
        routes("-6"),
        [
            route("default", json!(GATEWAY_V6)),
            route("fd00:96::/112", json!(GATEWAY_V6))
        ]
    );
}

#[test]
fn the_result_tells_both_ends_and_every_address_and_route() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let mut entry = entry(11);
    entry["routes"] = json!([{"dest": "10.96.0.0/12", "nextHop": GATEWAY_V4}]);
    let pod = node.pod("web").on_default_network(&entry);
    let result = pod.add().success();

    assert_eq!(result["cniVersion"], "1.1.0");
    let interfaces = result["interfaces"].as_array().unwrap();
    let inside = interfaces
        .iter()
        .position(|it| it["sandbox"] == pod.netns.as_str())
        .unwrap();
    assert_eq!(interfaces[inside]["name"], "eth0");
    assert_eq!(interfaces[inside]["mac"], mac(11).as_str());
    assert_eq!(interfaces[inside]["mtu"], 1500);
    let host = interfaces
        .iter()
        .find(|it| it.get("sandbox").is_none())
        .unwrap();
    let link = links::find(node.place(), host["name"].as_str().unwrap()).unwrap();
    assert_eq!(host["mac"], link.mac.as_str());
    for (address, gateway) in [
        (format!("{}/24", ipv4(11)), GATEWAY_V4),
        (format!("{}/64", ipv6(11)), GATEWAY_V6),
    ] {
        let ip = result["ips"]
            .as_array()
            .unwrap()
            .iter()
            .find(|ip| ip["address"] == address.as_str())
            .unwrap();
        assert_eq!(ip["gateway"], gateway);
        assert_eq!(ip["interface"], inside);
    }
    let routes = result["routes"].as_array().unwrap();
    let has = |destination: &str, gateway: &str| {
        routes
            .iter()
            .any(|it| it["dst"] == destination && it["gw"] == gateway)
    };
    assert!(
        has("0.0.0.0/0", GATEWAY_V4) && has("::/0", GATEWAY_V6) && has("10.96.0.0/12", GATEWAY_V4),
        "{routes:?}"
    );
}

#[test]
fn the_port_bears_the_external_ids_by_which_ovn_and_operators_find_it() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.pod("web").on_default_network(&entry(11));
    pod.add().success();

    let row = node.interface_of(&pod.container).unwrap();
    assert_eq!(row["name"], pod.host_link());
    assert!(row["ofport"].as_i64().unwrap() > 0);
    let ids = &row["external_ids"];
    assert_eq!(ids["iface-id"], "tests_web");
    assert_eq!(ids["iface-id-ver"], pod.uid.as_str());
    assert_eq!(ids["attached_mac"], mac(11).as_str());
    assert_eq!(
        ids["ip_addresses"],
        format!("{}/24,{}/64", ipv4(11), ipv6(11))
    );
    assert_eq!(ids["pod-if-name"], "eth0");
    assert_eq!(
        node.vsctl(format!("port-to-br {}", pod.host_link())).trim(),
        "br-int"
    );
}

#[test]
fn pods_reach_each_other_by_both_families_at_full_size() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let [web, db] = [("web", 11), ("db", 12)].map(|(name, number)| {
        let pod = node.pod(name).on_default_network(&entry(number));
        pod.add().success();
        pod
    });
    for address in [ip(&ipv4(12)), ip(&ipv6(12))] {
        traffic::ping(web.place(), address, 3).unwrap();
        traffic::tcp_echo(web.place(), db.place(), address, 4 << 20).unwrap();
        traffic::udp_echo(web.place(), db.place(), address, 1400).unwrap();
    }
}

#[test]
fn the_host_end_carries_no_ipv6_and_the_pod_end_no_offload_that_the_datapath_lacks() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.wired_pod(11);
    let host = pod.host_link();
    let disabled = node.run(
        "cat",
        format!("/proc/sys/net/ipv6/conf/{host}/disable_ipv6"),
    );
    assert_eq!(disabled.trim(), "1");
    let host_addresses = node.run("ip", format!("address show dev {host}"));
    assert!(!host_addresses.contains("inet"), "{host_addresses}");
    let features = pod.run("ethtool", "-k eth0");
    // The kernel's datapath can finish what a pod leaves to a device.
    let expected = match datapath() {
        Datapath::Netdev => "tx-checksumming: off",
        Datapath::System => "tx-checksumming: on",
    };
    assert!(features.contains(expected), "{features}");
}

#[test]
fn each_end_has_one_queue_each_way() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.wired_pod(11);
    let shown = node.run(
        "ip",
        format!("-details -json link show dev {}", pod.host_link()),
    );
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        (&shown[0]["num_tx_queues"], &shown[0]["num_rx_queues"]),
        (&json!(1), &json!(1))
    );
}

#[test]
fn a_container_id_that_is_not_hexadecimal_gets_a_derived_host_name() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let mut hosts = Vec::new();
    for (number, container) in [
        (11, "test-container-1"),
        (12, "test-container-2"),
        (13, "eth0"),
    ] {
        let mut pod = node.numbered_pod(number);
        pod.container = container.into();
        pod.add().success();
        let row = node.interface_of(container).unwrap();
        hosts.push(row["name"].as_str().unwrap().to_owned());
        assert!(links::find(node.place(), &hosts[hosts.len() - 1]).is_some());
    }
    hosts.sort();
    hosts.dedup();
    assert_eq!(hosts.len(), 3, "each has a name of its own: {hosts:?}");
    assert!(!hosts.contains(&"eth0".to_owned()) && !hosts.contains(&"test-container-".to_owned()));
}

#[test]
fn a_taken_host_name_is_left_to_its_owner() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.numbered_pod(11);
    let taken = pod.host_link().to_owned();
    node.run("ip", format!("link add {taken} type bridge"));
    pod.add().success();
    let row = node.interface_of(&pod.container).unwrap();
    assert_ne!(row["name"], taken.as_str());
    pod.del().success();
    node.leftovers().assert_none();
    assert_eq!(
        links::find(node.place(), &taken).unwrap().kind.as_deref(),
        Some("bridge")
    );
}

#[test]
fn a_pods_small_mtu_leaves_the_bridge_and_other_pods_alone() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let mtu_of_bridge = || links::find(node.place(), "br-int").unwrap().mtu;
    let before = mtu_of_bridge();
    let mut conf = conf();
    conf["mtu"] = json!(1280);
    let pod = node.numbered_pod(11);
    pod.exec("ADD", &conf).success();
    node.await_vswitchd();
    assert_eq!(links::find(pod.place(), "eth0").unwrap().mtu, 1280);
    assert_eq!(mtu_of_bridge(), before);
}

#[test]
fn neighbours_learn_at_once_that_an_address_has_moved_to_a_new_pod() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let peer = node.wired_pod(12);
    let first = node.wired_pod(11);
    for address in [ip(&ipv4(11)), ip(&ipv6(11))] {
        traffic::ping(peer.place(), address, 1).unwrap();
    }
    first.del().success();
    let mut moved = entry(11);
    moved["mac_address"] = json!("0a:58:0a:f4:01:77");
    let second = node.pod("web-again").on_default_network(&moved);
    second.add().success();
    for address in [ip(&ipv4(11)), ip(&ipv6(11))] {
        // The first packet already: the peer's cache held the old MAC address until the
        // gratuitous ARP and the unsolicited NA.
        traffic::ping(peer.place(), address, 1).unwrap();
    }
}

#[test]
fn a_pod_without_ipv6_gets_none_and_one_with_it_disabled_gets_it_back() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let four = json!({"ip_addresses": [format!("{}/24", ipv4(11))], "mac_address": mac(11),
        "gateway_ips": [GATEWAY_V4]});
    let four = node.pod("four").on_default_network(&four);
    four.add().success();
    assert_eq!(
        links::addresses(four.place(), "eth0"),
        [format!("{}/24", ipv4(11))]
    );

    let both = node.numbered_pod(12);
    both.run(
        "sysctl",
        "-qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1",
    );
    both.add().success();
    assert_eq!(links::addresses(both.place(), "eth0").len(), 2);
    traffic::ping(node.place(), ip(&ipv6(12)), 1).unwrap();
}

#[test]
fn a_namespace_of_another_user_namespace_is_wired_like_any() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let mut pod = node.numbered_pod(11);
    let path = format!("/run/netns/{}", podwire_tests::hex(8));
    node.run("touch", &path);
    let script = format!(
        "mkfifo /run/made /run/pinned
         unshare --user --map-root-user --net sh -c 'echo >/run/made; cat /run/pinned' &
         read line </run/made
         mount --bind /proc/$!/ns/net {path}
         echo >/run/pinned; wait"
    );
    node.run("sh", ["-ec", &script]);
    pod.netns = path.clone();
    pod.add().success();
    let shown = node.run("nsenter", format!("--net={path} ip address show dev eth0"));
    assert!(
        shown.contains(&ipv4(11)) && shown.contains(&ipv6(11)),
        "{shown}"
    );
    traffic::ping(node.place(), ip(&ipv4(11)), 1).unwrap();
    pod.del().success();
    node.leftovers().assert_none();
    node.run("umount", &path);
}

#[test]
fn del_leaves_neither_link_nor_row_and_repeats() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.numbered_pod(11);
    let other = node.numbered_pod(12);
    for pod in [&pod, &other] {
        pod.add().success();
    }
    for _ in 0..3 {
        let del = pod.del();
        assert_eq!(del.success(), Value::Null, "DEL prints nothing");
        assert!(node.interface_of(&pod.container).is_none());
        assert!(links::find(node.place(), pod.host_link()).is_none());
        assert!(links::find(pod.place(), "eth0").is_none());
    }
    traffic::ping(node.place(), ip(&ipv4(12)), 1).unwrap();
    other.del().success();
    node.leftovers().assert_none();
}

#[test]
fn a_pod_can_be_wired_again_after_its_del() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.numbered_pod(11);
    for _ in 0..3 {
        pod.add().success();
        traffic::ping(node.place(), ip(&ipv4(11)), 1).unwrap();
        pod.del().success();
    }
    node.leftovers().assert_none();
}
