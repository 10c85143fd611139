//! What a pod's wishes may say, end to end: several interfaces in one ADD, Multus' delegates, the
//! MTU.

use podwire_tests::annotation::{POD_NETWORKS, entry, mac};
use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::{AgentOptions, Pod, TestNode, conf, links};
use serde_json::{Value, json};

fn nad_conf(nad: &str) -> Value {
    let mut conf = conf();
    conf["name"] = json!("blue");
    conf["netAttachDefName"] = json!(nad);
    conf
}

/// Of a node on which pods may have addresses that are in none of its subnets.
fn elsewhere() -> AgentOptions {
    AgentOptions::default().with("--no-port-security")
}

#[test]
fn one_add_makes_every_interface_of_a_list_and_one_del_removes_them() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&elsewhere().with("--mtu 1450"));
    let interface = |number: u8, name: &str, default: &str| {
        json!({
            "interface": name, "ip_address": format!("172.16.{number}.2/24"),
            "mac_address": format!("0a:00:00:00:00:{number:02x}"),
            "gateway_ip": format!("172.16.{number}.1"), "defaultGateway": default,
        })
    };
    let list = json!([
        interface(1, "net0", "true"),
        interface(2, "*", "false"),
        interface(3, "net1", "false")
    ]);
    let wish = json!([{ "name": "a", "interface": "net1", "mtu": "1400" }]);
    let routes = json!([{ "dst": "172.16.29.1/24", "gw": "172.16.3.1" }]);
    let pod = node
        .pod("multi")
        .annotate("ovnIfaceList", &list)
        .annotate("ovnNetwork", &wish)
        .annotate("ovnNetworkRoutes", &routes);
    let result = pod.add().success();
    let inside: Vec<&str> = result["interfaces"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|interface| interface["sandbox"].is_string())
        .map(|interface| interface["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        inside,
        ["eth0", "net0", "net1"],
        "the one on CNI_IFNAME comes first"
    );
    let addresses: Vec<_> = result["ips"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ip| {
            (
                ip["interface"].as_u64().unwrap(),
                ip["address"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        addresses,
        [
            (1, "172.16.2.2/24"),
            (3, "172.16.1.2/24"),
            (5, "172.16.3.2/24")
        ]
    );
    assert_eq!(links::default_routes(pod.place()), ["net0"]);
    let far = links::routes(pod.place(), "-4");
    let far = far
        .iter()
        .find(|route| route["dst"] == "172.16.29.0/24")
        .unwrap();
    assert_eq!(
        (far["dev"].as_str(), far["gateway"].as_str()),
        (Some("net1"), Some("172.16.3.1"))
    );
    for (name, mtu, iface_id) in [
        ("eth0", 1450, "tests_multi"),
        ("net0", 1450, "tests_multi_net0"),
        ("net1", 1400, "tests_multi_net1"),
    ] {
        assert_eq!(links::find(pod.place(), name).unwrap().mtu, mtu, "{name}");
        let id = node.external_id(&pod.container, name, "iface-id");
        assert_eq!(id.as_deref(), Some(iface_id));
    }
    assert_eq!(pod.check(&result).success(), Value::Null);
    pod.del().success();
    assert!(links::find(pod.place(), "net1").is_none());
    agent.stop();
    node.leftovers().assert_none();
}

#[test]
fn a_list_of_which_one_interface_cannot_be_made_leaves_nothing() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&elsewhere());
    let interface = |number: u8, name: &str| {
        json!({
            "interface": name, "ip_address": format!("172.16.{number}.2/24"),
            "mac_address": format!("0a:00:00:00:00:{number:02x}"),
        })
    };
    let list = json!([
        interface(1, "*"),
        interface(2, "net0"),
        interface(3, "net1")
    ]);
    let pod = node.pod("multi").annotate("ovnIfaceList", &list);
    pod.run("ip", "link add net0 type veth peer name other");
    let error = pod.add().error();
    assert!(error.msg.contains("net0"), "{error:?}");
    for name in ["eth0", "net1"] {
        assert!(links::find(pod.place(), name).is_none(), "{name} stayed");
    }
    node.leftovers().assert_none();
}

#[test]
fn a_delegate_gets_the_entry_of_its_definition_and_no_default_route() {
    let (node, server) = ApiServer::beside_a_node();
    let agent = node.start_agent(&server.watched_by("n1", "60"));
    let mut pod = node.pod("web");
    let secondary = |number: u8| {
        json!({ "mac_address": mac(number),
        "ip_addresses": [format!("10.9.0.{number}/24")] })
    };
    let networks = json!({
        "default": entry(11), "ns/blue": secondary(21), "ns/blue/1": secondary(22),
        "ns/red": secondary(31),
    });
    server.apply(apiserver::pod_on(
        "n1",
        &pod,
        json!({ POD_NETWORKS: networks.to_string() }),
    ));
    pod.add().success();
    let attach = |pod: &mut Pod<'_>, ifname: &str| {
        pod.interface = ifname.into();
        pod.exec("ADD", &nad_conf("ns/blue"))
    };
    attach(&mut pod, "net1").success();
    attach(&mut pod, "net2").success();
    let nad = |ifname: &str| node.external_id(&pod.container, ifname, "k8s.ovn.org/nad");
    assert_eq!(
        (nad("net1").as_deref(), nad("net2").as_deref()),
        (Some("ns/blue"), Some("ns/blue/1"))
    );
    assert_eq!(links::find(pod.place(), "net2").unwrap().mac, mac(22));
    assert_eq!(links::default_routes(pod.place()), ["eth0"]);

    pod.interface = "net1".into();
    pod.exec("DEL", &nad_conf("ns/blue")).success();
    attach(&mut pod, "net3").success();
    let nad = node.external_id(&pod.container, "net3", "k8s.ovn.org/nad");
    assert_eq!(
        nad.as_deref(),
        Some("ns/blue"),
        "the entry that the DEL has freed"
    );
    for ifname in ["net2", "net3"] {
        pod.interface = ifname.into();
        pod.exec("DEL", &nad_conf("ns/blue")).success();
    }
    pod.interface = "eth0".into();
    pod.del().success();
    agent.stop();
    node.leftovers().assert_none();
}

#[test]
fn a_delegate_for_which_there_is_no_entry_left_waits_and_says_so() {
    let (node, server) = ApiServer::beside_a_node();
    let _agent = node.start_agent(&server.watched_by("n1", "1"));
    let mut pod = node.pod("web");
    let networks = json!({ "ns/blue": { "mac_address": mac(21) } });
    server.apply(apiserver::pod_on(
        "n1",
        &pod,
        json!({ POD_NETWORKS: networks.to_string() }),
    ));
    pod.interface = "net1".into();
    pod.exec("ADD", &nad_conf("ns/blue")).success();
    pod.interface = "net2".into();
    let error = pod.exec("ADD", &nad_conf("ns/blue")).error();
    assert_eq!(error.code, 11);
    let wanted = "with an entry for network ns/blue that is not attached yet";
    assert!(error.msg.contains(wanted), "{error:?}");
    pod.interface = "net3".into();
    let error = pod.exec("ADD", &nad_conf("Blue!")).error();
    assert_eq!(error.code, 7);
    assert!(
        error.msg.contains("netAttachDefName \"Blue!\""),
        "{error:?}"
    );
}

#[test]
fn a_later_interface_of_the_default_network_takes_no_default_route() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let mut pod = node.numbered_pod(11);
    pod.interface = "net1".into();
    pod.add().success();
    assert_eq!(links::default_routes(pod.place()), [""; 0]);
}

#[test]
fn the_nearest_mtu_counts_and_none_is_above_what_the_node_carries() {
    let node = TestNode::with_ovs();
    let options = AgentOptions::for_numbered_pods().with("--mtu 1400 --max-mtu 1442");
    let _agent = node.start_agent(&options);
    let mtu = |name: &str, entry_mtu: Option<u32>, pod_mtu: Option<&str>, conf_mtu: Option<u32>| {
        let mut entry = json!({ "mac_address": "0a:00:00:00:00:01", "ip_addresses": [] });
        if let Some(mtu) = entry_mtu {
            entry["mtu"] = mtu.into();
        }
        let mut pod = node.pod(name).on_default_network(&entry);
        if let Some(mtu) = pod_mtu {
            pod.annotations.insert("podwire.io/mtu".into(), mtu.into());
        }
        let mut conf = conf();
        if let Some(mtu) = conf_mtu {
            conf["mtu"] = mtu.into();
        }
        pod.exec("ADD", &conf).success();
        let mtu = links::find(pod.place(), "eth0").unwrap().mtu;
        pod.exec("DEL", &conf).success();
        mtu
    };
    assert_eq!(mtu("a", Some(1310), Some("1320"), Some(1330)), 1310);
    assert_eq!(mtu("b", None, Some("1320"), Some(1330)), 1320);
    assert_eq!(mtu("c", None, None, Some(1330)), 1330);
    assert_eq!(mtu("d", None, None, None), 1400);
    assert_eq!(mtu("e", Some(9000), None, None), 1442);
    assert_eq!(mtu("f", None, Some("9000"), None), 1442);
}
