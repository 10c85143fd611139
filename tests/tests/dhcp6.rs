//! IPv6 from the physical network: addresses that the pod's kernel makes of routers' prefixes, and
//! leases by the agent's own DHCPv6 client. The routers are radvd(8) and dnsmasq(8), the servers
//! dnsmasq and, where leases have to be short, Kea.

use std::net::Ipv6Addr;

use podwire_tests::dhcp::Dhcp;
use podwire_tests::frames::{self, ALL_NODES};
use podwire_tests::physical::{HOST, HOST6, Outside};
use podwire_tests::{Agent, AgentOptions, CniError, Pod, TestNode, links, traffic};
use serde_json::{Value, json};

/// A prefix of which hosts make addresses, and one of which they don't but ask a server.
const AUTONOMOUS: &str = "prefix 2001:db8:1::/64 { };";
const MANAGED: &str = "AdvManagedFlag on; prefix 2001:db8:1::/64 { AdvAutonomous off; };";
/// dnsmasq's way of the latter, with a server.
const LEASES: [&str; 2] = [
    "--dhcp-range=2001:db8:1::50,2001:db8:1::99,64,120",
    "--dhcp-option=option6:dns-server,[2001:db8:1::53]",
];

fn conf(families: &[&str]) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "vlan100", "type": "podwire-cni", "bridge": "br1",
        "vlan": 100, "ipam": {"type": "dhcp", "ipFamilies": families},
    })
}

fn ipv6() -> Value {
    conf(&["IPv6"])
}

fn with_prev(result: &Value) -> Value {
    let mut conf = ipv6();
    conf["prevResult"] = result.clone();
    conf
}

fn agent_of(node: &TestNode) -> Agent<'_> {
    node.start_agent(&AgentOptions::default())
}

/// The addresses of an ADD's result.
fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap().iter();
    ips.map(|it| it["address"].as_str().unwrap().to_owned())
        .collect()
}

fn has_address(pod: &Pod<'_>, net: &str) -> bool {
    links::addresses(pod.place(), "net1").contains(&net.to_owned())
}

/// The default routes by IPv6.
fn defaults(pod: &Pod<'_>) -> Vec<Value> {
    let mut routes = links::routes(pod.place(), "-6");
    routes.retain(|it| it["dst"] == "default");
    routes
}

fn pings(pod: &Pod<'_>, to: &str) {
    traffic::ping(pod.place(), to.parse().unwrap(), 1).unwrap();
}

/// Has a host outside say that it has an address (RFC 4861, section 4.4).
fn claim(outside: &Outside<'_>, net: &str) {
    let own: Ipv6Addr = net.split('/').next().unwrap().parse().unwrap();
    let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend(own.octets());
    frames::send_icmpv6(outside.place(), "eth0", &message, ALL_NODES).unwrap();
}

#[test]
fn a_pod_has_an_address_of_its_routers_prefix_beside_that_of_its_dhcp_server() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let server = outside.serve(50, 99, &[]);
    let router = outside.advertise(&format!("{AUTONOMOUS} RDNSS 2001:db8:1::53 {{ }};"));
    let _agent = agent_of(&node);
    let pod = outside.pod("web");
    let both = conf(&["IPv4", "IPv6"]);
    let result = pod.exec("ADD", &both).success();
    let has = addresses(&result);
    assert_eq!(has.len(), 2, "{result}");
    assert!(has[0].starts_with("198.51.100."), "{has:?}");
    assert!(
        has[1].starts_with("2001:db8:1:0:") && has[1].ends_with("/64"),
        "{has:?}"
    );
    assert!(has.iter().all(|it| has_address(&pod, it)), "{has:?}");
    let gateway = links::await_link_local(outside.place(), "eth0").to_string();
    assert_eq!(result["ips"][1]["gateway"], gateway.as_str());
    assert_eq!(
        result["routes"],
        json!([{"dst": "0.0.0.0/0", "gw": HOST}, {"dst": "::/0", "gw": gateway}])
    );
    assert_eq!(
        result["dns"]["nameservers"],
        json!(["198.51.100.53", "2001:db8:1::53"])
    );
    pings(&pod, HOST);
    pings(&pod, HOST6);
    let mut again = both.clone();
    again["prevResult"] = result;
    pod.exec("CHECK", &again).success();
    pod.exec("DEL", &again).success();
    server.await_count("DHCPRELEASE", 1);
    drop(router);
    outside.assert_no_leftovers();
}

#[test]
fn a_pod_leases_an_address_where_the_router_says_so_and_its_del_gives_it_back() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let server = outside.serve_ipv6(&LEASES);
    let _agent = agent_of(&node);
    let pod = outside.pod("web");
    let result = pod.exec("ADD", &ipv6()).success();
    let has = addresses(&result);
    assert_eq!(has.len(), 1, "{result}");
    let address = has[0].strip_suffix("/128").unwrap();
    assert!(address.starts_with("2001:db8:1::"), "{has:?}");
    assert_eq!(result["dns"]["nameservers"], json!(["2001:db8:1::53"]));
    assert!(has_address(&pod, &has[0]));
    let clients = server.clients();
    assert!(clients.iter().any(|it| it.contains(address)), "{clients:?}");
    pings(&pod, HOST6);
    pod.exec("CHECK", &with_prev(&result)).success();
    pod.exec("DEL", &with_prev(&result)).success();
    server.await_count("DHCPRELEASE", 1);
    assert_eq!(server.clients(), [""; 0]);
    pod.exec("DEL", &with_prev(&result)).success();
    outside.assert_no_leftovers();
}

#[test]
fn name_servers_come_from_a_server_where_the_router_says_so_and_are_not_waited_for_for_long() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let other = format!("AdvOtherConfigFlag on; {AUTONOMOUS} RDNSS 2001:db8:1::54 {{ }};");
    let _router = outside.advertise(&other);
    let agent = agent_of(&node);
    let pod = outside.pod("web");
    // Nobody answers: there are those of the advertisement.
    let result = pod.exec("ADD", &ipv6()).success();
    assert_eq!(addresses(&result).len(), 1, "{result}");
    assert_eq!(result["dns"]["nameservers"], json!(["2001:db8:1::54"]));
    agent.await_log("Information-request");
    pod.exec("DEL", &with_prev(&result)).success();

    let arguments = [
        "--log-dhcp",
        "--dhcp-range=2001:db8:1::,static,64",
        LEASES[1],
    ];
    let server = Dhcp::dnsmasq(&node, outside.place(), &arguments);
    let result = pod.exec("ADD", &ipv6()).success();
    assert_eq!(
        result["dns"]["nameservers"],
        json!(["2001:db8:1::54", "2001:db8:1::53"])
    );
    server.await_count("DHCPINFORMATION-REQUEST", 1);
    pod.exec("CHECK", &with_prev(&result)).success();
    pod.exec("DEL", &with_prev(&result)).success();
    outside.assert_no_leftovers();
}

#[test]
fn a_lease_is_renewed_at_its_time_and_by_a_restarted_agent_too() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let _router = outside.advertise(MANAGED);
    let server = outside.serve_ipv6_for(8, 1);
    let agent = agent_of(&node);
    let pod = outside.pod("web");
    let result = pod.exec("ADD", &ipv6()).success();
    let renewed = "DHCP6_LEASE_RENEW";
    server.await_count(renewed, 2);
    let agent = agent.kill_and_restart();
    server.await_count(renewed, server.count(renewed) + 2);
    assert_eq!(server.count("DHCP6_LEASE_ALLOC"), 1, "{}", server.log());
    pod.exec("CHECK", &with_prev(&result)).success();
    pod.exec("DEL", &with_prev(&result)).success();
    server.await_count("DHCP6_RELEASE_NA ", 1);
    drop(agent);
    outside.assert_no_leftovers();
}

#[test]
fn another_server_is_asked_from_t2_on() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let _router = outside.advertise(MANAGED);
    let server = outside.serve_ipv6_for(16, 1);
    let agent = agent_of(&node);
    let pod = outside.pod("web");
    let result = pod.exec("ADD", &ipv6()).success();
    server.stop();
    let other = outside.serve_ipv6_for(16, 2);
    other.await_count("DHCP6_LEASE_RENEW", 1);
    let log = agent.log();
    assert!(log.contains("the lease is not renewed yet"), "{log}");
    assert!(!log.contains("the lease has ended"), "{log}");
    pod.exec("CHECK", &with_prev(&result)).success();
    pod.exec("DEL", &with_prev(&result)).success();
    other.await_count("DHCP6_RELEASE_NA ", 1);
    outside.assert_no_leftovers();
}

#[test]
fn a_lease_that_ends_takes_its_address_along_until_it_is_given_again() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let _router = outside.advertise(MANAGED);
    let server = outside.serve_ipv6_for(8, 1);
    let agent = agent_of(&node);
    let pod = outside.pod("web");
    let result = pod.exec("ADD", &ipv6()).success();
    let net = addresses(&result).remove(0);
    server.stop();
    agent.await_log("the lease has ended");
    assert!(!has_address(&pod, &net));
    let error: CniError = pod.exec("CHECK", &with_prev(&result)).error();
    error.assert_names(&[&net]);
    let agent = agent.kill_and_restart();
    let server = outside.serve_ipv6_for(8, 1);
    links::await_addresses(pod.place(), "net1", &[&net]);
    agent.await_log("the pod has its address again");
    pod.exec("CHECK", &with_prev(&result)).success();
    claim(&outside, &net);
    agent.await_log("another host says that the pod's address is its own");
    pod.exec("DEL", &with_prev(&result)).success();
    server.await_count("DHCP6_RELEASE_NA ", 1);
    outside.assert_no_leftovers();
}

#[test]
fn an_address_that_another_host_has_is_declined_and_the_next_one_is_the_pods() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let _router = outside.advertise(MANAGED);
    let _neighbour = outside.neighbour("2001:db8:1::50");
    let server = outside.serve_ipv6_for(120, 1);
    let agent = agent_of(&node);
    let pod = outside.pod("web");
    let result = pod.exec("ADD", &ipv6()).success();
    assert_eq!(addresses(&result), ["2001:db8:1::51/128"]);
    server.await_count("DHCP6_DECLINE_LEASE ", 1);
    let log = agent.log();
    assert!(
        log.contains("gave 2001:db8:1::50, which the host "),
        "{log}"
    );
    pod.exec("DEL", &ipv6()).success();
    outside.assert_no_leftovers();
}

#[test]
fn an_address_of_a_prefix_that_another_host_has_is_refused() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    // What a kernel makes of this MAC address (RFC 4291, appendix A).
    let _neighbour = outside.neighbour("2001:db8:1::ff:fe00:7");
    let _router = outside.advertise(AUTONOMOUS);
    let _agent = agent_of(&node);
    let pod = outside.pod("web");
    let mut conf = ipv6();
    conf["args"] = json!({"cni": {"mac": "02:00:00:00:00:07"}});
    let error = pod.exec("ADD", &conf).error();
    assert_eq!(error.code, 11, "{error:?}");
    error.assert_names(&[
        "vlan100",
        "br1",
        "net1",
        "2001:db8:1::ff:fe00:7",
        "another host",
    ]);
    pod.exec("DEL", &conf).success();
    outside.assert_no_leftovers();
}

#[test]
fn without_a_router_or_with_one_that_offers_nothing_the_add_says_so_and_leaves_nothing() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let _agent = agent_of(&node);
    let pod = outside.pod("web");
    let error = pod.exec("ADD", &ipv6()).error();
    assert_eq!(error.code, 11, "{error:?}");
    error.assert_names(&["net1", "vlan100", "br1", "no router", "within 10"]);
    outside.assert_no_leftovers();
    let bare = outside.advertise("prefix 2001:db8:1::/64 { AdvAutonomous off; };");
    let error = pod.exec("ADD", &ipv6()).error();
    assert_eq!(error.code, 11, "{error:?}");
    error.assert_names(&["net1", "vlan100", "neither a prefix", "DHCPv6"]);
    drop(bare);
    outside.assert_no_leftovers();
    let _managed = outside.advertise(MANAGED);
    let error = pod.exec("ADD", &ipv6()).error();
    error.assert_names(&["net1", "vlan100", "Solicit", "within 10"]);
    outside.assert_no_leftovers();
}

#[test]
fn a_pod_with_a_default_route_of_the_family_takes_no_other_from_a_router() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let _router = outside.advertise(AUTONOMOUS);
    // What the kernel makes of this MAC address (RFC 4291, appendix A).
    let address = "2001:db8:1::ff:fe00:7/64";
    // By the agent, and by the pod's kernel alone.
    let mut by_agent = ipv6();
    by_agent["args"] = json!({"cni": {"mac": "02:00:00:00:00:07"}});
    let mut by_kernel = by_agent.clone();
    by_kernel.as_object_mut().unwrap().remove("ipam");
    for first in [&["10.7.0.0/16"][..], &["10.7.0.0/16", "fd00:55::/64"]] {
        let subnets = first.iter();
        let options = subnets.fold(AgentOptions::default(), |all, it| all.subnet(it));
        let agent = node.start_agent(&options);
        for conf in [&by_agent, &by_kernel] {
            let mut pod = node.pod("web");
            pod.add().success();
            pod.interface = "net1".into();
            let result = pod.exec("ADD", conf).success();
            let has_told = conf == &by_agent && first.len() == 1;
            assert_eq!(result["routes"].is_null(), !has_told, "{result}");
            links::await_addresses(pod.place(), "net1", &[address]);
            let defaults = defaults(&pod);
            let [default] = &defaults[..] else {
                panic!("{first:?}, {conf}: {defaults:?}");
            };
            let expected = if first.len() == 1 { "net1" } else { "eth0" };
            assert_eq!(default["dev"], expected, "{first:?}, {conf}");
            pings(&pod, HOST6);
            pod.exec("DEL", conf).success();
            pod.interface = "eth0".into();
            pod.del().success();
        }
        agent.stop();
    }
}

#[test]
fn an_agent_killed_with_a_lease_that_no_add_has_answered_gives_it_back() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let server = outside.serve_ipv6(&LEASES);
    outside.kill_with_a_lease(&server, &ipv6());
}

#[test]
fn an_address_of_the_routers_prefix_is_defended() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let _router = outside.advertise(AUTONOMOUS);
    let agent = node.start_agent(&AgentOptions::default().with("--log info,podwire::attach=debug"));
    let pod = outside.pod("web");
    let result = pod.exec("ADD", &ipv6()).success();
    agent.await_log("addresses are defended");
    claim(&outside, &addresses(&result)[0]);
    agent.await_log("another host says that the pod's address is its own");
    pod.exec("DEL", &ipv6()).success();
    outside.assert_no_leftovers();
}

#[test]
fn what_the_agent_cannot_do_is_refused_before_anything_is_made() {
    let node = TestNode::with_ovs();
    let outside = Outside::of(&node);
    let _agent = agent_of(&node);
    let pod = outside.pod("web");
    let mut small = ipv6();
    small["mtu"] = json!(1000);
    for (conf, words) in [
        (conf(&["IPv4", "ipv6"]), ["ipam.ipFamilies[1]", "ipv6"]),
        (conf(&[]), ["ipam.ipFamilies", "list"]),
        (small, ["mtu: 1000", "1280"]),
    ] {
        let error = pod.exec("ADD", &conf).error();
        assert_eq!(error.code, 7, "{error:?}");
        error.assert_names(&words);
        pod.exec("DEL", &conf).success();
        outside.assert_no_leftovers();
    }
}
