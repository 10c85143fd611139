//! Plugins behind podwire, each alone and all of them, with every combination of the capabilities
//! that a configuration may declare.

use std::net::SocketAddr;

use podwire_tests::runtime::{CONFIGURATIONS, cnitool, configure, install_plugins};
use podwire_tests::{AgentOptions, TestNode, links, traffic};
use serde_json::{Value, json};

/// What the runtime would pass to whoever declares it.
fn arguments() -> Value {
    json!({
        "io.kubernetes.cri.pod-annotations": {
            "kubernetes.io/ingress-bandwidth": "20M",
            "kubernetes.io/egress-bandwidth": "10M",
        },
        "bandwidth": {
            "ingressRate": 20_000_000, "ingressBurst": 8_000_000,
            "egressRate": 10_000_000, "egressBurst": 8_000_000,
        },
        "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
    })
}

/// A plugin that may follow, with its capability declared or not.
fn behind(name: &str, declares: bool) -> Value {
    let (capability, mut plugin) = match name {
        "portmap" => ("portMappings", json!({})),
        "bandwidth" => ("bandwidth", json!({})),
        _ => (
            "mac",
            json!({"sysctl": {"net.ipv4.conf.eth0.arp_notify": "1"}}),
        ),
    };
    plugin["type"] = json!(name);
    plugin["capabilities"] = json!({ capability: declares });
    plugin
}

#[test]
fn every_plugin_follows_with_and_without_each_capability_and_one_alone_limits_the_pod() {
    let node = TestNode::with_ovs();
    let options = AgentOptions::default().subnet("10.186.0.0/24");
    let _agent = node.start_agent(&options.with(format!("--cni-conf-dir {CONFIGURATIONS}")));
    install_plugins(&node).unwrap();
    let chains: [&[&str]; 4] = [
        &["portmap"],
        &["bandwidth"],
        &["tuning"],
        &["tuning", "bandwidth", "portmap"],
    ];
    let podwire = [
        json!({}),
        json!({"io.kubernetes.cri.pod-annotations": true}),
        json!({"io.kubernetes.cri.pod-annotations": true, "bandwidth": true}),
        json!({"io.kubernetes.cri.pod-annotations": true, "bandwidth": false}),
    ];
    for chain in chains {
        for (declared, capabilities) in [true, false]
            .into_iter()
            .flat_map(|declared| podwire.iter().map(move |it| (declared, it)))
        {
            let case = format!("{chain:?} declared: {declared}, podwire: {capabilities}");
            let mut plugins = vec![json!({"type": "podwire-cni", "capabilities": capabilities})];
            plugins.extend(chain.iter().map(|name| behind(name, declared)));
            configure(&node, &plugins).unwrap();
            let pod = node.pod("web");
            let call = |verb: &str| {
                let done = cnitool(&pod, verb, &arguments()).unwrap();
                done.success(&format!("{case}: {verb}"))
            };

            let result: Value = serde_json::from_str(&call("add")).unwrap();
            let host = result["interfaces"][0]["name"].as_str().unwrap();
            let qdiscs = node.run("tc", format!("qdisc show dev {host}"));
            let by_plugin = chain.contains(&"bandwidth") && declared;
            assert_eq!(qdiscs.contains("tbf"), by_plugin, "{case}: {qdiscs}");
            let row = node.ovsdb_rows("Interface");
            let row = row.iter().find(|row| row["name"] == host).unwrap();
            let by_podwire = !by_plugin
                && capabilities["bandwidth"] != false
                && !capabilities.as_object().unwrap().is_empty();
            let rate = if by_podwire { 10_000 } else { 0 };
            assert_eq!(row["ingress_policing_rate"], rate, "{case}");
            let queues = node.ovsdb_rows("QoS").len();
            assert_eq!(queues, usize::from(by_podwire), "{case}");
            // The others' own CHECK of 1.1.1: portmap's looks for rules of IPv6 where it made
            // none, and bandwidth's panics without limits.
            let own = if declared { "portmap" } else { "bandwidth" };
            if !chain.contains(&own) {
                call("check");
            }
            let checked = node.podwire("check");
            assert_eq!(checked.status.code(), Some(0), "{case}: {}", checked.stdout);
            let listening = SocketAddr::new(links::first_address(pod.place(), "eth0"), 80);
            traffic::tcp_echo_by(node.place(), pod.place(), listening, None, 1 << 12).unwrap();
            call("del");
            node.leftovers().assert_none();
        }
    }
    let nat = node.run("iptables-save", "-t nat");
    assert!(!nat.contains("8080"), "{nat}");
    let ifb = node.run("ip", "link show type ifb");
    assert_eq!(ifb, "", "the plugin's own devices are gone");
}
