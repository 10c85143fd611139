//! podwire as the network of containerd and runc, over CRI, as kubelet has it.

use std::net::{IpAddr, SocketAddr};
use std::thread;

use podwire_tests::annotation::{self, POD_NETWORKS, entry};
use podwire_tests::cri::{PodSandboxConfig, PortMapping, Protocol};
use podwire_tests::runtime::{
    CONFIGURATIONS, Containerd, PLUGINS, documented, install_plugins, install_script,
};
use podwire_tests::{
    Agent, AgentOptions, Failure, Neighbour, Place, TestNode, links, plugin_binary, traffic,
};
use serde_json::{Value, json};

/// The network that the documentation has for containerd.
fn network() -> Value {
    documented("containerd").unwrap()
}

/// An agent for numbered pods, and a containerd that has this network for them.
fn serving<'node>(node: &'node TestNode, network: &Value) -> (Agent<'node>, Containerd<'node>) {
    let agent = node.start_agent(&AgentOptions::for_numbered_pods());
    (agent, Containerd::start(node, network).unwrap())
}

/// A pod whose annotation says what it gets.
fn numbered(containerd: &Containerd<'_>, name: &str, number: u8) -> PodSandboxConfig {
    let mut pod = containerd.pod(name);
    let networks = json!({"default": entry(number)}).to_string();
    pod.annotations.insert(POD_NETWORKS.into(), networks);
    pod
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A pod whose port 80 is port 8080 of the node.
fn with_host_port(mut pod: PodSandboxConfig) -> PodSandboxConfig {
    pod.port_mappings = vec![PortMapping {
        protocol: Protocol::Tcp.into(),
        container_port: 80,
        host_port: 8080,
    }];
    pod
}

#[track_caller]
fn assert_host_port_leads_to(pod: IpAddr, place: &Place, neighbour: &Neighbour<'_>) {
    let by = Some(SocketAddr::new(neighbour.node_address(), 8080));
    let listening = SocketAddr::new(pod, 80);
    traffic::tcp_echo_by(neighbour.place(), place, listening, by, 1 << 16).unwrap();
}

/// What containerd said when it refused a call.
fn refusal<T: std::fmt::Debug>(outcome: Result<T, Failure>) -> String {
    match outcome {
        Err(Failure::Cri {
            code: Some(_),
            message,
            ..
        }) => message,
        other => panic!("containerd should have refused: {other:?}"),
    }
}

#[test]
fn what_podwire_installs_is_the_network_of_a_containerd_that_had_none() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let containerd = Containerd::without_network(&node).unwrap();
    // loopback, which containerd calls for each sandbox, comes with the reference plugins.
    install_plugins(&node).unwrap();
    std::fs::remove_file(node.path(PLUGINS).join("podwire-cni")).unwrap();
    let plugin = plugin_binary();
    let from = format!("--plugin {}", plugin.display());
    node.podwire(format!(
        "install {from} --bin-dir {PLUGINS} --conf-dir {CONFIGURATIONS}"
    ))
    .success("podwire install");
    containerd.await_network().unwrap();

    let cri = containerd.cri();
    let neighbour = Neighbour::of(&node);
    let pod = with_host_port(containerd.pod("web"));
    let sandbox = cri.run_pod_sandbox(&pod).unwrap();
    let (status, _) = cri.pod_sandbox_status(&sandbox).unwrap();
    assert_eq!(status.addresses()[0], "10.186.0.2");
    let place = containerd.place(&sandbox).unwrap();
    assert_host_port_leads_to(address("10.186.0.2"), &place, &neighbour);
    drop((place, neighbour));
    cri.stop_pod_sandbox(&sandbox).unwrap();
    node.leftovers().assert_none();
}

#[test]
fn a_host_port_leads_into_a_sandbox_by_the_plugin_behind_podwire() {
    let node = TestNode::with_ovs();
    let chain = documented("Plugins after podwire").unwrap();
    let (_agent, containerd) = serving(&node, &chain);
    let neighbour = Neighbour::of(&node);
    let pod = with_host_port(numbered(&containerd, "web", 11));
    let sandbox = containerd.cri().run_pod_sandbox(&pod).unwrap();
    let place = containerd.place(&sandbox).unwrap();
    assert_host_port_leads_to(address(&annotation::ipv4(11)), &place, &neighbour);
    drop((place, neighbour));
    containerd.cri().stop_pod_sandbox(&sandbox).unwrap();
    node.leftovers().assert_none();
}

#[test]
fn a_sandbox_is_wired_as_its_annotations_say_and_its_end_leaves_nothing() {
    let node = TestNode::with_ovs();
    let (_agent, containerd) = serving(&node, &network());
    let cri = containerd.cri();

    let sandbox = cri
        .run_pod_sandbox(&numbered(&containerd, "web", 11))
        .unwrap();
    let (status, _) = cri.pod_sandbox_status(&sandbox).unwrap();
    assert_eq!(
        status.addresses(),
        [annotation::ipv4(11), annotation::ipv6(11)]
    );
    let row = node.interface_of(&sandbox).unwrap();
    assert_eq!(row["external_ids"]["iface-id"], "tests_web");
    assert_eq!(
        row["external_ids"]["attached_mac"],
        annotation::mac(11).as_str()
    );
    for address in [annotation::ipv4(11), annotation::ipv6(11)] {
        traffic::ping(node.place(), address.parse().unwrap(), 1).unwrap();
    }

    cri.stop_pod_sandbox(&sandbox).unwrap();
    node.leftovers().assert_none();
    cri.remove_pod_sandbox(&sandbox).unwrap();
}

#[test]
fn limits_in_annotations_are_the_ports() {
    let node = TestNode::with_ovs();
    let (_agent, containerd) = serving(&node, &network());
    let mut pod = numbered(&containerd, "web", 11);
    // containerd itself turns these into runtimeConfig's bandwidth.
    pod.annotations
        .insert("kubernetes.io/ingress-bandwidth".into(), "20M".into());
    pod.annotations
        .insert("kubernetes.io/egress-bandwidth".into(), "10M".into());
    let sandbox = containerd.cri().run_pod_sandbox(&pod).unwrap();
    let row = node.interface_of(&sandbox).unwrap();
    assert_eq!(row["ingress_policing_rate"], 10_000);
    assert_eq!(
        node.ovsdb_rows("QoS")[0]["other_config"]["max-rate"],
        "20000000"
    );
    containerd.cri().stop_pod_sandbox(&sandbox).unwrap();
    node.leftovers().assert_none();
}

#[test]
fn an_add_that_fails_is_told_to_kubelet_and_its_retry_succeeds() {
    let node = TestNode::with_ovs();
    let (_agent, containerd) = serving(&node, &network());
    let mut pod = numbered(&containerd, "web", 11);
    let valid = pod.annotations.insert(
        POD_NETWORKS.into(),
        r#"{"default": {"mac_address": "0a:58:0a:f4:01:0b", "ip_addresses": ["10.244.1.300/24"]}}"#
            .into(),
    );
    let message = refusal(containerd.cri().run_pod_sandbox(&pod));
    assert!(
        message.contains(POD_NETWORKS) && message.contains("10.244.1.300"),
        "{message}"
    );
    node.leftovers().assert_none();

    pod.annotations
        .extend(valid.map(|text| (POD_NETWORKS.to_owned(), text)));
    let sandbox = containerd.cri().run_pod_sandbox(&pod).unwrap();
    traffic::ping(node.place(), address(&annotation::ipv4(11)), 1).unwrap();
    containerd.cri().stop_pod_sandbox(&sandbox).unwrap();
    node.leftovers().assert_none();
}

#[test]
fn a_del_that_fails_once_is_repeated_by_the_next_stop() {
    let node = TestNode::with_ovs();
    let _agent =
        node.start_agent(&AgentOptions::default().with("--no-gateway --cni-bin-dir /run/cni/bin"));
    let mut network = network();
    network["plugins"][0]["ipam"] = json!({"type": "reluctant"});
    let containerd = Containerd::start(&node, &network).unwrap();
    install_script(&node, "reluctant", RELUCTANT).unwrap();
    let cri = containerd.cri();
    let sandbox = cri.run_pod_sandbox(&containerd.pod("web")).unwrap();

    let message = refusal(cri.stop_pod_sandbox(&sandbox));
    assert!(message.contains("not now"), "{message}");
    // All that can be done is done, whatever failed: the port must not wait for an address plugin.
    assert!(node.interface_of(&sandbox).is_none());
    cri.stop_pod_sandbox(&sandbox).unwrap();
    node.leftovers().assert_none();
    cri.remove_pod_sandbox(&sandbox).unwrap();
}

/// An address plugin whose first DEL fails.
const RELUCTANT: &str = r#"#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
ADD) echo '{"cniVersion":"1.0.0","ips":[{"address":"10.55.0.2/24"}]}' ;;
DEL) [ -e /run/told-not-now ] && exit
     : >/run/told-not-now
     echo '{"cniVersion":"1.0.0","code":11,"msg":"not now"}'; exit 1 ;;
esac
"#;

#[test]
fn a_second_stop_comes_without_a_namespace_and_succeeds() {
    let node = TestNode::with_ovs();
    let mut network = network();
    network["plugins"][0]["type"] = json!("recorded");
    let (_agent, containerd) = serving(&node, &network);
    install_script(&node, "recorded", RECORDED).unwrap();
    let cri = containerd.cri();
    let sandbox = cri
        .run_pod_sandbox(&numbered(&containerd, "web", 11))
        .unwrap();
    cri.stop_pod_sandbox(&sandbox).unwrap();
    cri.stop_pod_sandbox(&sandbox).unwrap();
    let calls = std::fs::read_to_string(node.path("/run/calls")).unwrap();
    assert_eq!(calls, "ADD with netns\nDEL with netns\nDEL without netns\n");
    node.leftovers().assert_none();
}

/// The plugin, and a note of how it was called.
const RECORDED: &str = r#"#!/bin/sh
[ -n "$CNI_NETNS" ] && netns=with || netns=without
[ "$CNI_COMMAND" = VERSION ] || echo "$CNI_COMMAND $netns netns" >>/run/calls
exec /run/cni/bin/podwire-cni
"#;

#[test]
fn ten_pods_at_once_are_wired_and_reach_each_other() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let containerd = Containerd::start(&node, &network()).unwrap();
    let cri = containerd.cri();
    let sandboxes: Vec<String> = thread::scope(|scope| {
        let runs: Vec<_> = (0..10)
            .map(|number| {
                let pod = containerd.pod(&format!("pod{number}"));
                scope.spawn(move || cri.run_pod_sandbox(&pod).unwrap())
            })
            .collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    let places: Vec<_> = sandboxes
        .iter()
        .map(|sandbox| containerd.place(sandbox).unwrap())
        .collect();
    for (number, place) in places.iter().enumerate() {
        let next = &places[(number + 1) % places.len()];
        let target = links::first_address(next, "eth0");
        traffic::ping(place, target, 1).unwrap();
        traffic::tcp_echo(place, next, target, 1 << 16).unwrap();
    }
    drop(places);
    thread::scope(|scope| {
        for sandbox in &sandboxes {
            scope.spawn(|| {
                cri.stop_pod_sandbox(sandbox).unwrap();
                cri.remove_pod_sandbox(sandbox).unwrap();
            });
        }
    });
    node.leftovers().assert_none();
}

#[test]
fn pods_outlive_a_containerd_that_is_killed_and_are_taken_down_by_the_next() {
    let node = TestNode::with_ovs();
    let (_agent, containerd) = serving(&node, &network());
    let cri = containerd.cri();
    let old = cri
        .run_pod_sandbox(&numbered(&containerd, "old", 11))
        .unwrap();
    containerd.kill_and_restart().unwrap();
    let new = cri
        .run_pod_sandbox(&numbered(&containerd, "new", 12))
        .unwrap();
    let place = containerd.place(&old).unwrap();
    traffic::ping(&place, address(&annotation::ipv4(12)), 1).unwrap();
    drop(place);
    for sandbox in [&old, &new] {
        cri.stop_pod_sandbox(sandbox).unwrap();
        cri.remove_pod_sandbox(sandbox).unwrap();
    }
    node.leftovers().assert_none();
}
