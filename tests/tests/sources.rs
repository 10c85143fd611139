//! Where a pod's wishes come from, end to end: the API server, a directory, several interfaces in one ADD, Multus' delegates.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use podwire_tests::annotation::{entry, ipv4, mac};
use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::{Agent, AgentOptions, Pod, TestNode, conf, links};
use serde_json::{Value, json};

const POD_NETWORKS: &str = "k8s.ovn.org/pod-networks";

fn watching(server: &ApiServer, seconds: &str) -> AgentOptions {
    AgentOptions::for_numbered_pods().with([
        "--k8s-apiserver",
        &server.url(),
        "--node-name",
        "n1",
        "--add-timeout",
        seconds,
    ])
}

/// For waits that end in vain.
fn impatient(server: &ApiServer) -> AgentOptions {
    watching(server, "1")
}

/// For waits that end by an event.
fn patient(server: &ApiServer) -> AgentOptions {
    watching(server, "60")
}

/// A node whose agent watches a stand-in API server beside it.
fn cluster() -> (TestNode, ApiServer) {
    let node = TestNode::with_ovs().unwrap();
    let server = ApiServer::start_in(node.place()).unwrap();
    (node, server)
}

fn in_api(pod: &Pod<'_>, annotations: Value) -> Value {
    apiserver::pod("n1", &pod.namespace, &pod.name, &pod.uid, annotations)
}

fn default_network(number: u8) -> Value {
    json!({ POD_NETWORKS: json!({ "default": entry(number) }).to_string() })
}

fn nad_conf(nad: &str) -> Value {
    let mut conf = conf();
    conf["name"] = json!("blue");
    conf["netAttachDefName"] = json!(nad);
    conf
}

fn external_id(node: &TestNode, container: &str, pod_ifname: &str, key: &str) -> Option<String> {
    let rows = node.ovsdb_rows("Interface").unwrap();
    let mut ids = rows.iter().map(|row| &row["external_ids"]);
    let ids = ids.find(|ids| ids["sandbox"] == container && ids["pod-if-name"] == pod_ifname)?;
    ids[key].as_str().map(str::to_owned)
}

fn default_routes(pod: &Pod<'_>) -> Vec<String> {
    let routes = links::routes(pod.place(), "-4").unwrap();
    let of_default = routes.iter().filter(|route| route["dst"] == "default");
    of_default
        .map(|route| route["dev"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn an_add_waits_for_the_pod_and_for_its_annotation_and_then_wires_it() {
    let (node, server) = cluster();
    let agent = node.start_agent(&patient(&server)).unwrap();
    let pod = node.pod("web").unwrap();
    std::thread::scope(|scope| {
        let add = scope.spawn(|| pod.add().unwrap().success().unwrap());
        server.await_watches(1).unwrap();
        server.apply(in_api(&pod, json!({})));
        server.apply(in_api(&pod, default_network(11)));
        let result = add.join().unwrap();
        assert_eq!(result["ips"][0]["address"], format!("{}/24", ipv4(11)));
    });
    let eth0 = links::find(pod.place(), "eth0").unwrap().unwrap();
    assert_eq!(eth0.mac, mac(11));
    pod.del().unwrap().success().unwrap();
    agent.stop().unwrap();
    node.leftovers().unwrap().assert_none();
}

#[test]
fn the_error_says_which_was_missing_and_to_try_again() {
    let (node, server) = cluster();
    let _agent = node.start_agent(&impatient(&server)).unwrap();
    let pod = node.pod("web").unwrap();
    let unknown = pod.add().unwrap().error().unwrap();
    assert_eq!(unknown.code, 11);
    assert!(
        unknown.msg.contains("pod tests/web is not known to"),
        "{unknown:?}"
    );
    server.apply(in_api(&pod, json!({ "podwire.io/mtu": "1400" })));
    let bare = pod.add().unwrap().error().unwrap();
    assert_eq!(bare.code, 11);
    assert!(
        bare.msg.contains("pod tests/web is not annotated after"),
        "{bare:?}"
    );
    assert!(
        bare.msg.ends_with("its annotations: podwire.io/mtu"),
        "{bare:?}"
    );
    node.leftovers().unwrap().assert_none();
}

#[test]
fn a_del_ends_the_wait_of_its_add() {
    let (node, server) = cluster();
    let agent = node.start_agent(&patient(&server)).unwrap();
    let pod = node.pod("web").unwrap();
    std::thread::scope(|scope| {
        let add = scope.spawn(|| pod.add().unwrap().error().unwrap());
        // The agent says so when it waits: until then the DEL would come first.
        agent.await_log("awaits its pod's annotation").unwrap();
        pod.del().unwrap().success().unwrap();
        let error = add.join().unwrap();
        assert!(
            error.msg.contains("a DEL of this attachment came"),
            "{error:?}"
        );
    });
}

#[test]
fn a_pod_that_is_deleted_while_its_port_is_awaited_ends_its_add_and_leaves_nothing() {
    let (node, server) = cluster();
    let agent = Agent::launch(&node, &patient(&server).with(["--wait", "ovn-installed"])).unwrap();
    let pod = node.pod("web").unwrap();
    server.apply(in_api(&pod, default_network(11)));
    std::thread::scope(|scope| {
        let add = scope.spawn(|| pod.add().unwrap().error().unwrap());
        let name = json!([["name", "==", pod.container[..15]]]);
        let row = json!([{ "name": pod.container[..15] }]);
        node.ovsdb()
            .wait("Interface", name, "==", &["name"], row)
            .unwrap();
        server.delete(&pod.namespace, &pod.name);
        let error = add.join().unwrap();
        assert_eq!(error.code, 11);
        assert!(error.msg.contains("was deleted from"), "{error:?}");
    });
    agent.stop().unwrap();
    node.leftovers().unwrap().assert_none();
}

#[test]
fn a_wrong_annotation_is_refused_at_once_by_name() {
    let (node, server) = cluster();
    let _agent = node.start_agent(&patient(&server)).unwrap();
    let pod = node.pod("web").unwrap();
    server.apply(in_api(
        &pod,
        json!({ POD_NETWORKS: r#"{"default":{"mac_address":"x"}}"# }),
    ));
    let error = pod.add().unwrap().error().unwrap();
    assert_eq!(error.code, 104);
    let text = format!("annotation {POD_NETWORKS}, network default, mac_address: \"x\": ");
    assert!(error.msg.starts_with(&text), "{error:?}");
}

#[test]
fn a_static_pods_port_bears_the_uid_that_the_api_has() {
    let (node, server) = cluster();
    let _agent = node.start_agent(&patient(&server)).unwrap();
    let pod = node.pod("web").unwrap();
    let mut annotations = default_network(11);
    annotations["kubernetes.io/config.mirror"] = json!(pod.uid);
    server.apply(apiserver::pod(
        "n1",
        &pod.namespace,
        &pod.name,
        "mirror",
        annotations,
    ));
    pod.add().unwrap().success().unwrap();
    let version = external_id(&node, &pod.container, "eth0", "iface-id-ver");
    assert_eq!(version.as_deref(), Some("mirror"));
}

#[test]
fn status_says_what_keeps_pods_from_being_known() {
    let (node, server) = cluster();
    server.accept_tokens(Some(&["secret"]));
    let agent = Agent::launch(&node, &impatient(&server)).unwrap();
    let refused = |health: &Value| health["reasons"].to_string().contains("Unauthorized");
    agent
        .await_health("Unauthorized among the reasons", refused)
        .unwrap();
    let status = node
        .pod("any")
        .unwrap()
        .exec("STATUS", &conf())
        .unwrap()
        .error()
        .unwrap();
    assert_eq!(status.code, 50);
    assert!(
        status.msg.contains(&server.url()) && status.msg.contains("Unauthorized"),
        "{status:?}"
    );
    server.accept_tokens(None);
    agent.await_ready(true).unwrap();
}

#[test]
fn one_add_makes_every_interface_of_a_list_and_one_del_removes_them() {
    let node = TestNode::with_ovs().unwrap();
    let agent = node
        .start_agent(&AgentOptions::default().with(["--mtu", "1450"]))
        .unwrap();
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
        .unwrap()
        .annotate("ovnIfaceList", &list)
        .annotate("ovnNetwork", &wish)
        .annotate("ovnNetworkRoutes", &routes);
    let result = pod.add().unwrap().success().unwrap();
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
    assert_eq!(default_routes(&pod), ["net0"]);
    let far = links::routes(pod.place(), "-4").unwrap();
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
        assert_eq!(
            links::find(pod.place(), name).unwrap().unwrap().mtu,
            mtu,
            "{name}"
        );
        let id = external_id(&node, &pod.container, name, "iface-id");
        assert_eq!(id.as_deref(), Some(iface_id));
    }
    assert_eq!(pod.check(&result).unwrap().success().unwrap(), Value::Null);
    pod.del().unwrap().success().unwrap();
    assert!(links::find(pod.place(), "net1").unwrap().is_none());
    agent.stop().unwrap();
    node.leftovers().unwrap().assert_none();
}

#[test]
fn a_list_of_which_one_interface_cannot_be_made_leaves_nothing() {
    let node = TestNode::with_ovs().unwrap();
    let _agent = node.start_agent(&AgentOptions::default()).unwrap();
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
    let pod = node.pod("multi").unwrap().annotate("ovnIfaceList", &list);
    pod.run(
        "ip",
        &[
            "link", "add", "net0", "type", "veth", "peer", "name", "other",
        ],
    )
    .unwrap();
    let error = pod.add().unwrap().error().unwrap();
    assert!(error.msg.contains("net0"), "{error:?}");
    for name in ["eth0", "net1"] {
        assert!(
            links::find(pod.place(), name).unwrap().is_none(),
            "{name} stayed"
        );
    }
    node.leftovers().unwrap().assert_none();
}

#[test]
fn a_delegate_gets_the_entry_of_its_definition_and_no_default_route() {
    let (node, server) = cluster();
    let agent = node.start_agent(&patient(&server)).unwrap();
    let mut pod = node.pod("web").unwrap();
    let secondary = |number: u8| json!({ "mac_address": mac(number), "ip_addresses": [format!("10.9.0.{number}/24")] });
    let networks = json!({
        "default": entry(11), "ns/blue": secondary(21), "ns/blue/1": secondary(22), "ns/red": secondary(31),
    });
    server.apply(in_api(&pod, json!({ POD_NETWORKS: networks.to_string() })));
    pod.add().unwrap().success().unwrap();
    let attach = |pod: &mut Pod<'_>, ifname: &str| {
        pod.interface = ifname.into();
        pod.exec("ADD", &nad_conf("ns/blue")).unwrap()
    };
    attach(&mut pod, "net1").success().unwrap();
    attach(&mut pod, "net2").success().unwrap();
    let nad = |ifname: &str| external_id(&node, &pod.container, ifname, "k8s.ovn.org/nad");
    assert_eq!(
        (nad("net1").as_deref(), nad("net2").as_deref()),
        (Some("ns/blue"), Some("ns/blue/1"))
    );
    assert_eq!(
        links::find(pod.place(), "net2").unwrap().unwrap().mac,
        mac(22)
    );
    assert_eq!(default_routes(&pod), ["eth0"]);

    pod.interface = "net1".into();
    pod.exec("DEL", &nad_conf("ns/blue"))
        .unwrap()
        .success()
        .unwrap();
    attach(&mut pod, "net3").success().unwrap();
    let nad = external_id(&node, &pod.container, "net3", "k8s.ovn.org/nad");
    assert_eq!(
        nad.as_deref(),
        Some("ns/blue"),
        "the entry that the DEL has freed"
    );
    for ifname in ["net2", "net3"] {
        pod.interface = ifname.into();
        pod.exec("DEL", &nad_conf("ns/blue"))
            .unwrap()
            .success()
            .unwrap();
    }
    pod.interface = "eth0".into();
    pod.del().unwrap().success().unwrap();
    agent.stop().unwrap();
    node.leftovers().unwrap().assert_none();
}

#[test]
fn a_delegate_for_which_there_is_no_entry_left_waits_and_says_so() {
    let (node, server) = cluster();
    let _agent = node.start_agent(&impatient(&server)).unwrap();
    let mut pod = node.pod("web").unwrap();
    let networks = json!({ "ns/blue": { "mac_address": mac(21) } });
    server.apply(in_api(&pod, json!({ POD_NETWORKS: networks.to_string() })));
    pod.interface = "net1".into();
    pod.exec("ADD", &nad_conf("ns/blue"))
        .unwrap()
        .success()
        .unwrap();
    pod.interface = "net2".into();
    let error = pod
        .exec("ADD", &nad_conf("ns/blue"))
        .unwrap()
        .error()
        .unwrap();
    assert_eq!(error.code, 11);
    let wanted = "with an entry for network ns/blue that is not attached yet";
    assert!(error.msg.contains(wanted), "{error:?}");
    pod.interface = "net3".into();
    let error = pod
        .exec("ADD", &nad_conf("Blue!"))
        .unwrap()
        .error()
        .unwrap();
    assert_eq!(error.code, 7);
    assert!(
        error.msg.contains("netAttachDefName \"Blue!\""),
        "{error:?}"
    );
}

#[test]
fn a_later_interface_of_the_default_network_takes_no_default_route() {
    let node = TestNode::with_ovs().unwrap();
    let _agent = node
        .start_agent(&AgentOptions::for_numbered_pods())
        .unwrap();
    let mut pod = node.pod("web").unwrap().on_default_network(&entry(11));
    pod.interface = "net1".into();
    pod.add().unwrap().success().unwrap();
    assert_eq!(default_routes(&pod), [""; 0]);
}

#[test]
fn the_nearest_mtu_counts_and_none_is_above_what_the_node_carries() {
    let node = TestNode::with_ovs().unwrap();
    let options = AgentOptions::for_numbered_pods().with(["--mtu", "1400", "--max-mtu", "1442"]);
    let _agent = node.start_agent(&options).unwrap();
    let mtu = |name: &str, entry_mtu: Option<u32>, pod_mtu: Option<&str>, conf_mtu: Option<u32>| {
        let mut entry = json!({ "mac_address": "0a:00:00:00:00:01", "ip_addresses": [] });
        if let Some(mtu) = entry_mtu {
            entry["mtu"] = mtu.into();
        }
        let mut pod = node.pod(name).unwrap().on_default_network(&entry);
        if let Some(mtu) = pod_mtu {
            pod.annotations.insert("podwire.io/mtu".into(), mtu.into());
        }
        let mut conf = conf();
        if let Some(mtu) = conf_mtu {
            conf["mtu"] = mtu.into();
        }
        pod.exec("ADD", &conf).unwrap().success().unwrap();
        let mtu = links::find(pod.place(), "eth0").unwrap().unwrap().mtu;
        pod.exec("DEL", &conf).unwrap().success().unwrap();
        mtu
    };
    assert_eq!(mtu("a", Some(1310), Some("1320"), Some(1330)), 1310);
    assert_eq!(mtu("b", None, Some("1320"), Some(1330)), 1320);
    assert_eq!(mtu("c", None, None, Some(1330)), 1330);
    assert_eq!(mtu("d", None, None, None), 1400);
    assert_eq!(mtu("e", Some(9000), None, None), 1442);
    assert_eq!(mtu("f", None, Some("9000"), None), 1442);
}

#[test]
fn a_manifest_in_a_directory_is_enough() {
    let node = TestNode::with_ovs().unwrap();
    std::fs::create_dir(node.path("/run/pods")).unwrap();
    let options = AgentOptions::for_numbered_pods().with(["--pod-dir", "/run/pods"]);
    let agent = node.start_agent(&options).unwrap();
    let pod = node.pod("web").unwrap();
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  namespace: {}\n  annotations:\n    {POD_NETWORKS}: '{}'\n",
        pod.namespace,
        json!({ "default": entry(11) })
    );
    std::fs::write(node.path("/run/pods/web.yaml"), manifest).unwrap();
    pod.add().unwrap().success().unwrap();
    assert_eq!(
        links::find(pod.place(), "eth0").unwrap().unwrap().mac,
        mac(11)
    );
    pod.del().unwrap().success().unwrap();
    agent.stop().unwrap();
    node.leftovers().unwrap().assert_none();
}

#[test]
fn without_a_controller_a_wish_gets_what_it_leaves_open_from_the_node() {
    let node = TestNode::with_ovs().unwrap();
    let agent = node
        .start_agent(&AgentOptions::default().subnet("10.186.0.0/24"))
        .unwrap();
    let wish = json!([
        { "name": "a", "interface": "*", "defaultGateway": "true" },
        { "name": "a", "interface": "net0", "ipAddress": "10.186.0.77", "macAddress": "0A:00:00:00:00:4E" },
        { "name": "b", "interface": "net1", "ip_address": "172.16.24.2/24", "mtu": "1300" },
    ]);
    let pod = node.pod("wish").unwrap().annotate("ovnNetwork", &wish);
    pod.add().unwrap().success().unwrap();
    let address = |name| links::addresses(pod.place(), name).unwrap();
    assert_eq!(address("eth0"), ["10.186.0.2/24"]);
    assert_eq!(address("net0"), ["10.186.0.77/24"]);
    assert_eq!(address("net1"), ["172.16.24.2/24"]);
    assert_eq!(links::find(pod.place(), "net1").unwrap().unwrap().mtu, 1300);
    assert_eq!(default_routes(&pod), ["eth0"]);
    pod.del().unwrap().success().unwrap();
    let again = node
        .pod("again")
        .unwrap()
        .annotate("ovnNetwork", &json!([wish[1]]));
    again.add().unwrap().success().unwrap();
    again.del().unwrap().success().unwrap();
    agent.stop().unwrap();
    node.leftovers().unwrap().assert_none();
}

#[test]
fn five_hundred_pods_in_the_watch_cost_little_memory() {
    let (node, server) = cluster();
    let resident = |agent: &Agent<'_>| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS"))
            .unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let watched = node.start_agent(&patient(&server)).unwrap();
    server.await_watches(1).unwrap();
    let before = resident(&watched);
    for number in 0..500 {
        let annotations = default_network(u8::try_from(number % 250).unwrap());
        server.apply(apiserver::pod(
            "n1",
            "ns",
            &format!("p{number}"),
            &format!("u{number}"),
            annotations,
        ));
    }
    let last = node.pod("last").unwrap();
    server.apply(in_api(&last, default_network(251)));
    last.add().unwrap().success().unwrap();
    let after = resident(&watched);
    println!("VmRSS: {before} KB with no pod in the watch, {after} KB with 501");
    assert!(after < before + 8 * 1024, "{before} KB grew to {after} KB");
}
