//! A pod that keeps its node busy: its neighbours go on.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use podwire_tests::Pod;
use podwire_tests::apiserver::{ApiServer, service};
use podwire_tests::ovn::Central;
use serde_json::{Value, json};

use crate::fixture::{Running, await_row, column, populate};
use crate::layer3::asking;
use crate::networks::definition;
use crate::packets::{Named, Network, ask};
use crate::policies::{TESTS, await_reach, policy};

/// Packets of each kind that a node's ovn-controller gets in a second.
const RATE: f64 = 25.0;

const FLOOD: u64 = 20_000;

/// A UDP service without endpoints: each packet to it is rejected by the node's ovn-controller.
fn nobody(network: &Network) -> SocketAddr {
    let mut service = service("default", "nobody", "10.96.0.66", 80);
    service["spec"]["ports"][0]["protocol"] = "UDP".into();
    network.server.apply(service);
    let row = "Service_default/nobody_UDP_cluster";
    await_row(&network.central, "Load_Balancer", row, true);
    network.central.sync();
    SocketAddr::from(([10, 96, 0, 66], 80))
}

/// How many "destination unreachable" a pod has got.
fn unreachables(pod: &Pod<'_>) -> f64 {
    let read = || std::fs::read_to_string("/proc/thread-self/net/snmp");
    let snmp = pod.place().run(read).unwrap();
    let mut lines = snmp.lines().filter(|line| line.starts_with("Icmp:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut both = names.split(' ').zip(values.split(' '));
    let (_, value) = both.find(|(name, _)| *name == "InDestUnreachs").unwrap();
    value.parse().unwrap()
}

/// Sends until told to end, and at least [`FLOOD`] packets; how many.
fn flood(pod: &Pod<'_>, to: SocketAddr, ends: &AtomicBool) -> u64 {
    let socket = pod.place().run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    let mut sent = 0;
    while sent < FLOOD || !ends.load(Ordering::Relaxed) {
        sent += u64::from(socket.send_to(b"flood", to).is_ok());
    }
    sent
}

#[tokio::test(flavor = "multi_thread")]
async fn neighbours_of_a_pod_that_floods_rejected_connections_go_on() {
    let (network, mut controller) = Network::start(&[]);
    let agents = network.start_agents();
    let (noisy, _) = network.labelled_pod(0, "noisy", "noisy");
    let (near, _) = network.labelled_pod(0, "near", "near");
    let (far, address) = network.labelled_pod(1, "far", "far");
    let named = Named::start(far.place(), address, "far");
    let to_far = SocketAddr::new(address, 8080);
    await_reach(near.place(), to_far, true);
    let nobody = nobody(&network);
    // It is rejected at all.
    let once = noisy.place().run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    while unreachables(&noisy) == 0.0 {
        once.send_to(b"once", nobody).unwrap();
    }

    let (before, began) = (unreachables(&noisy), Instant::now());
    let ends = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let sent = scope.spawn(|| flood(&noisy, nobody, &ends));
        // What there is goes on, and what is new is wired by the same ovn-controller.
        assert_eq!(ask(near.place(), to_far).as_deref(), Ok("far"));
        let (late, _) = network.labelled_pod(0, "late", "late");
        assert_eq!(ask(late.place(), to_far).as_deref(), Ok("far"));
        ends.store(true, Ordering::Relaxed);
        sent.join().unwrap()
    });
    let (answered, took) = (unreachables(&noisy) - before, began.elapsed().as_secs_f64());
    eprintln!("{sent} packets in {took:.1} s, {answered} rejected");
    // A meter lets through what it has saved of a second.
    let most = RATE * (took + 2.0);
    assert!(
        answered <= most,
        "{answered} of {sent} in {took} s, not {most}"
    );
    drop((named, agents));
    controller.idle().await;
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_that_others_remove_are_restored_and_another_rate_stays() {
    let (network, mut controller) = Network::start(&[]);
    let central = &network.central;
    await_row(central, "Logical_Switch", "node-b", true);
    controller.idle().await;
    let reject = || {
        let rows = central.northbound().rows("Copp").unwrap();
        assert_eq!(rows.len(), 1, "{rows:?}");
        rows[0]["meters"]["reject"].clone()
    };
    assert_eq!(reject(), "copp-reject");
    for (table, name) in [
        ("Logical_Switch", "node-a"),
        ("Logical_Switch", "node-b"),
        ("Logical_Router", "ovn_cluster_router"),
    ] {
        let is_limited = || !column(central, table, name, "copp").to_string().eq("[]");
        assert!(is_limited(), "{table} {name}");
    }
    let before = controller.idle().await.operations;
    central.nbctl("meter-del copp-reject");
    await_row(central, "Meter", "copp-reject", true);
    central.nbctl("meter-del copp-arp -- meter-add copp-arp drop 7 pktps");
    central.nbctl("clear logical_switch node-a copp");
    let waited = json!([["name", "==", "node-a"], ["copp", "!=", ["set", []]]]);
    let northbound = central.northbound();
    northbound
        .wait("Logical_Switch", waited, "!=", &["name"], json!([]))
        .unwrap();
    assert!(controller.idle().await.operations > before);
    let rates = central.northbound().rows("Meter_Band").unwrap();
    let sevens = rates.iter().filter(|band| band["rate"] == 7).count();
    assert_eq!(sevens, 1, "{rates:?}");
    controller.stop().await.unwrap();
}

/// What ovn-controller does of it: from 24.09 on.
fn limits_zones(network: &Network) -> bool {
    let said = network.central.machine().run("ovn-northd", "--version");
    let number = said.split_whitespace().nth(1).unwrap();
    let mut parts = number.split('.').map(|part| part.parse::<u32>().unwrap());
    (parts.next(), parts.next()) >= (Some(24), Some(9))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_can_not_fill_its_node_s_connection_tracking() {
    let (network, mut controller) = Network::start(&["--pod-connections", "500"]);
    let agents = network.start_agents();
    await_row(&network.central, "Logical_Switch", "node-a", true);
    let config = column(&network.central, "Logical_Switch", "node-a", "other_config");
    assert_eq!(config["ct-zone-limit"], "500");
    let (noisy, source) = network.labelled_pod(0, "noisy", "noisy");
    let (near, _) = network.labelled_pod(0, "near", "near");
    let (far, address) = network.labelled_pod(1, "far", "far");
    let (_sink, sink) = network.labelled_pod(1, "sink", "sink");
    let named = Named::start(far.place(), address, "far");
    let to_far = SocketAddr::new(address, 8080);
    await_reach(near.place(), to_far, true);
    // OVN tracks connections where policies are.
    let all = json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [{}] });
    network.server.apply(policy(TESTS, "all", all));
    controller.idle().await;
    network.central.sync();
    for _ in 0..3000 {
        let socket = noisy.place().run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
        let _ = socket.send_to(b"another", (sink, 9));
    }
    if limits_zones(&network) {
        let count = connections(&network, source);
        eprintln!("{count} connections");
        assert!((1..=1100).contains(&count), "{count} connections");
    }
    assert_eq!(ask(near.place(), to_far).as_deref(), Ok("far"));
    drop((named, agents));
    controller.idle().await;
    controller.stop().await.unwrap();
}

/// On its switch for pods' default network, at their ports of others.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_switch_knows_no_limit_gets_none() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    let says = |value: &str| {
        let mut node = server.object("Node", "", "node-a").unwrap();
        node["metadata"]["annotations"]["k8s.ovn.org/podwire-no-connection-limit"] = value.into();
        server.apply(node);
    };
    says("true");
    server.apply(definition(
        "blue",
        "blue",
        &json!({ "subnets": "10.1.0.0/24" }),
    ));
    let mut controller = Running::start(&central, &server, &[]);
    for (name, node) in [("one", "node-a"), ("two", "node-b")] {
        server.apply(asking(node, name, "blue"));
        let port = format!("default.blue_default_{name}");
        await_row(&central, "Logical_Switch_Port", &port, true);
    }
    let limits = || {
        let of = |table: &str, name: &str, column_: &str| {
            column(&central, table, name, column_)["ct-zone-limit"].clone()
        };
        let port = |pod: &str| {
            of(
                "Logical_Switch_Port",
                &format!("default.blue_default_{pod}"),
                "options",
            )
        };
        let switch = |node: &str| of("Logical_Switch", node, "other_config");
        [switch("node-a"), port("one"), switch("node-b"), port("two")]
    };
    let all = json!("131072");
    controller.idle().await;
    assert_eq!(
        limits(),
        [Value::Null, Value::Null, all.clone(), all.clone()]
    );
    says("");
    let waited = json!([
        ["name", "==", "node-a"],
        [
            "other_config",
            "includes",
            ["map", [["ct-zone-limit", "131072"]]]
        ]
    ]);
    let northbound = central.northbound();
    northbound
        .wait("Logical_Switch", waited, "!=", &["name"], json!([]))
        .unwrap();
    controller.idle().await;
    assert_eq!(limits(), [(); 4].map(|()| all.clone()));
    controller.stop().await.unwrap();
}

/// Those of a pod in the first node's connection tracking: each may be in two zones.
fn connections(network: &Network, source: IpAddr) -> usize {
    let said = network.nodes[0].run("ovs-appctl", "dpctl/dump-conntrack");
    let own = format!("orig=(src={source},");
    said.lines().filter(|line| line.contains(&own)).count()
}
