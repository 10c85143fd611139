//! Addresses from the physical network, by the agent's own DHCP client. The servers are dnsmasq(8)
//! and, where leases have to be short, Kea.

use podwire_tests::physical::{HOST, Outside};
use podwire_tests::{Agent, AgentOptions, CniError, Pod, TestNode, links, traffic};
use serde_json::{Value, json};

/// T1 after three seconds, the least that dnsmasq accepts, and T2 after so many.
fn hurried(t2: u8) -> [String; 2] {
    [
        "--dhcp-option=58,3".into(),
        format!("--dhcp-option=59,{t2}"),
    ]
}

fn conf() -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "vlan100", "type": "podwire-cni", "bridge": "br1",
        "vlan": 100, "ipam": {"type": "dhcp"},
    })
}

fn with_prev(result: &Value) -> Value {
    let mut conf = conf();
    conf["prevResult"] = result.clone();
    conf
}

fn agent_of(node: &TestNode) -> Agent<'_> {
    node.start_agent(&AgentOptions::default())
}

/// The address of an ADD's result, with its prefix length and without.
fn address(result: &Value) -> (String, String) {
    let net = result["ips"][0]["address"].as_str();
    let net = net.unwrap_or_else(|| panic!("{result}"));
    let address = net.strip_suffix("/24");
    let address = address.unwrap_or_else(|| panic!("{result}"));
    (net.to_owned(), address.to_owned())
}

fn has_address(pod: &Pod<'_>, net: &str) -> bool {
    links::addresses(pod.place(), "net1").contains(&net.to_owned())
}

fn assert_check_misses(pod: &Pod<'_>, result: &Value, address: &str) {
    let error: CniError = pod.exec("CHECK", &with_prev(result)).error();
    error.assert_names(&[address]);
}

#[test]
fn a_pod_gets_its_address_from_the_physical_network_and_its_del_gives_it_back() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let server = outside.serve(50, 99, &[]);
    let _agent = agent_of(&node);
    let pod = outside.pod("web");
    let result = pod.exec("ADD", &conf()).success();
    let (net, address) = address(&result);
    assert_eq!(result["ips"][0]["gateway"], HOST);
    assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0", "gw": HOST}]));
    assert_eq!(result["dns"]["nameservers"], json!(["198.51.100.53"]));
    assert_eq!(result["dns"]["domain"], "example.org");
    assert!(has_address(&pod, &net));
    let clients = server.clients();
    assert!(clients[0].contains(&format!(" {address} ")), "{clients:?}");
    traffic::ping(pod.place(), HOST.parse().unwrap(), 1).unwrap();
    pod.exec("CHECK", &with_prev(&result)).success();
    pod.exec("DEL", &with_prev(&result)).success();
    server.await_count("DHCPRELEASE", 1);
    assert_eq!(server.clients(), [""; 0]);
    pod.exec("DEL", &with_prev(&result)).success();
    outside.assert_no_leftovers();
}

#[test]
fn a_lease_is_renewed_at_its_time_and_by_a_restarted_agent_too() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let [t1, t2] = hurried(60);
    let server = outside.serve(50, 99, &[&t1, &t2]);
    let agent = agent_of(&node);
    let pod = outside.pod("web");
    let result = pod.exec("ADD", &conf()).success();
    server.await_count("DHCPACK", 3);
    assert!(agent.stop().success());
    let given = server.count("DHCPACK");
    let agent = agent_of(&node);
    server.await_count("DHCPACK", given + 2);
    let agent = agent.kill_and_restart();
    let given = server.count("DHCPACK");
    server.await_count("DHCPACK", given + 1);
    assert_eq!(server.count("DHCPDISCOVER"), 1, "{}", server.log());
    pod.exec("CHECK", &with_prev(&result)).success();
    pod.exec("DEL", &with_prev(&result)).success();
    server.await_count("DHCPRELEASE", 1);
    assert_eq!(server.clients(), [""; 0]);
    drop(agent);
    outside.assert_no_leftovers();
}

#[test]
fn a_server_that_does_not_answer_is_asked_by_broadcast_from_t2_on() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let [t1, t2] = hurried(8);
    let server = outside.serve(50, 99, &[&t1, &t2]);
    let agent = agent_of(&node);
    let pod = outside.pod("web");
    outside.hear_only_broadcasts(true);
    let result = pod.exec("ADD", &conf()).success();
    server.await_count("DHCPACK", 2);
    assert!(
        agent.log().contains("the lease is not renewed yet"),
        "{}",
        agent.log()
    );
    assert_eq!(server.count("DHCPDISCOVER"), 1, "{}", server.log());
    outside.hear_only_broadcasts(false);
    pod.exec("CHECK", &with_prev(&result)).success();
    pod.exec("DEL", &with_prev(&result)).success();
    server.await_count("DHCPRELEASE", 1);
}

#[test]
fn an_address_that_the_server_refuses_is_taken_from_the_pod_until_it_is_given_again() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let [t1, t2] = hurried(60);
    let server = outside.serve(50, 99, &[&t1, &t2]);
    let agent = agent_of(&node);
    let pod = outside.pod("web");
    let result = pod.exec("ADD", &conf()).success();
    let (net, address) = address(&result);
    server.stop_and_forget();
    let other = outside.serve(150, 199, &[&t1, &t2]);
    other.await_count("DHCPNAK", 1);
    agent.await_log("the pod is still without its address");
    assert!(!has_address(&pod, &net));
    assert_check_misses(&pod, &result, &address);
    // What it was given instead, it has given back.
    other.await_count("DHCPRELEASE", 1);
    let agent = agent.kill_and_restart();
    other.stop_and_forget();
    let server = outside.serve(50, 99, &[&t1, &t2]);
    links::await_addresses(pod.place(), "net1", &[&net]);
    agent.await_log("the pod has its address again");
    pod.exec("CHECK", &with_prev(&result)).success();
    traffic::ping(pod.place(), HOST.parse().unwrap(), 1).unwrap();
    pod.exec("DEL", &with_prev(&result)).success();
    server.await_count(&format!("DHCPRELEASE(eth0) {address} "), 1);
    assert_eq!(server.clients(), [""; 0]);
}

#[test]
fn a_lease_that_ends_takes_its_address_and_routes_along() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let server = outside.serve_for(8);
    let agent = agent_of(&node);
    let pod = outside.pod("web");
    let result = pod.exec("ADD", &conf()).success();
    let (net, address) = address(&result);
    server.await_count("DHCP4_LEASE_ALLOC", 2);
    server.stop();
    agent.await_log("the lease has ended");
    assert!(!has_address(&pod, &net));
    assert_eq!(links::routes(pod.place(), "-4"), Vec::<Value>::new());
    assert_check_misses(&pod, &result, &address);
    let server = outside.serve_for(8);
    links::await_addresses(pod.place(), "net1", &[&net]);
    agent.await_log("the pod has its address again");
    pod.exec("CHECK", &with_prev(&result)).success();
    pod.exec("DEL", &with_prev(&result)).success();
    server.await_count("DHCP4_RELEASE ", 1);
    outside.assert_no_leftovers();
}

#[test]
fn an_address_that_another_host_has_is_declined_and_the_next_one_is_the_pods() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let server = outside.serve(50, 99, &[]);
    let agent = agent_of(&node);
    // A server chooses by the client's MAC address.
    let mut conf = conf();
    conf["args"] = json!({"cni": {"mac": "02:00:00:00:00:07"}});
    let pod = outside.pod("web");
    let (_, first) = address(&pod.exec("ADD", &conf).success());
    pod.exec("DEL", &conf).success();
    server.await_count("DHCPRELEASE", 1);
    server.stop_and_forget();
    let _neighbour = outside.neighbour(&first);
    let server = outside.serve(50, 99, &[]);
    let pod = outside.pod("db");
    let (net, second) = address(&pod.exec("ADD", &conf).success());
    assert_ne!(first, second);
    assert!(has_address(&pod, &net));
    assert!(
        server.log().contains(&format!("DHCPDECLINE(eth0) {first}")),
        "{}",
        server.log()
    );
    let said = format!("server {HOST} gave {first}, which the host ");
    assert!(agent.log().contains(&said), "{}", agent.log());
    pod.exec("DEL", &conf).success();
    assert_eq!(server.clients(), [""; 0]);
    outside.assert_no_leftovers();
}

#[test]
fn an_add_that_gets_only_what_others_have_says_who() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let neighbour = outside.neighbour("198.51.100.50");
    let server = outside.serve(50, 50, &[]);
    let _agent = agent_of(&node);
    let pod = outside.pod("web");
    let error = pod.exec("ADD", &conf()).error();
    assert_eq!(error.code, 11, "{error:?}");
    let holder = links::find(&neighbour, "eth0").unwrap().mac;
    error.assert_names(&["net1", "198.51.100.50", &holder, "declined"]);
    assert_eq!(server.clients(), [""; 0]);
    outside.assert_no_leftovers();
}

#[test]
fn without_a_server_the_add_says_so_with_its_budget_and_leaves_nothing() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let _agent = agent_of(&node);
    let pod = outside.pod("web");
    let error = pod.exec("ADD", &conf()).error();
    assert_eq!(error.code, 11, "{error:?}");
    error.assert_names(&["net1", "vlan100", "br1", "100", "DHCPDISCOVER", "within 10"]);
    outside.assert_no_leftovers();
    pod.exec("DEL", &conf()).success();
}

#[test]
fn an_agent_killed_with_a_lease_that_no_add_has_answered_gives_it_back() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let server = outside.serve(50, 99, &[]);
    outside.kill_with_a_lease(&server, &conf());
}

#[test]
fn an_add_that_fails_after_its_lease_gives_it_back() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let server = outside.serve(50, 99, &[]);
    let _agent = node.start_agent(&AgentOptions::default().failing_at("add-leased"));
    let pod = outside.pod("web");
    pod.exec("ADD", &conf()).error();
    server.await_count("DHCPRELEASE", 1);
    assert_eq!(server.clients(), [""; 0]);
    outside.assert_no_leftovers();
}

#[test]
fn the_first_interface_keeps_its_default_route_and_the_servers_own_routes_are_set() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let routes = format!("--dhcp-option=121,192.0.2.0/24,{HOST},0.0.0.0/0,{HOST}");
    let server = outside.serve(50, 99, &[&routes]);
    let _agent = node.start_agent(&AgentOptions::default().subnet("10.55.0.0/24"));
    let mut pod = node.pod("web");
    let first = pod.add().success();
    assert_eq!(first["routes"][0]["dst"], "0.0.0.0/0", "{first}");
    pod.interface = "net1".into();
    let result = pod.exec("ADD", &conf()).success();
    assert_eq!(
        result["routes"],
        json!([{"dst": "192.0.2.0/24", "gw": HOST}])
    );
    let defaults = links::default_routes(pod.place());
    assert!(
        defaults.iter().all(|it| it.contains("eth0")),
        "{defaults:?}"
    );
    pod.exec("DEL", &conf()).success();
    server.await_count("DHCPRELEASE", 1);
}

#[test]
fn options_of_the_configuration_go_to_the_server_in_every_message() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let [t1, t2] = hurried(60);
    let server = outside.serve(50, 99, &[&t1, &t2]);
    let agent = agent_of(&node);
    let pod = outside.pod("web");
    let mut conf = conf();
    conf["ipam"]["provide"] = json!([
        {"option": "host-name", "fromArg": "K8S_POD_NAME"},
        {"option": "dhcp-client-identifier", "value": "lan-web"},
    ]);
    let result = pod.exec("ADD", &conf).success();
    let (_, address) = address(&result);
    // dnsmasq ends an ACK's line with the client's name.
    let acknowledged = format!("DHCPACK(eth0) {address} ");
    server.await_count(&acknowledged, 2);
    let agent = agent.kill_and_restart();
    server.await_count(&acknowledged, 4);
    let log = server.log();
    let acks: Vec<_> = log
        .lines()
        .filter(|it| it.contains(&acknowledged))
        .collect();
    assert!(acks.iter().all(|it| it.ends_with(" web")), "{acks:?}");
    let hex: String = "lan-web".bytes().map(|it| format!(":{it:02x}")).collect();
    let clients = server.clients();
    assert!(clients[0].ends_with(&hex[1..]), "{clients:?}");
    pod.exec("DEL", &conf).success();
    server.await_count("DHCPRELEASE", 1);
    assert_eq!(server.clients(), [""; 0]);
    drop(agent);
    outside.assert_no_leftovers();
}

#[test]
fn what_the_client_cannot_do_is_refused_before_anything_is_made() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let _agent = agent_of(&node);
    let pod = outside.pod("web");
    let mut asking = conf();
    asking["ipam"]["provide"] = json!([{"option": "routers", "value": "192.0.2.1"}]);
    let mut at_home = conf();
    at_home["bridge"] = json!("br-int");
    for (conf, words) in [
        (asking, ["ipam.provide[0]", "routers"]),
        (at_home, ["ipam.type dhcp", "the node's own bridge"]),
    ] {
        let error = pod.exec("ADD", &conf).error();
        assert_eq!(error.code, 7, "{error:?}");
        error.assert_names(&words);
        pod.exec("DEL", &conf).success();
        outside.assert_no_leftovers();
    }
}
