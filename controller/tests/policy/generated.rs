//! Policies by combination: each kind of ports with each kind of peers, in both directions, and
//! policies that contradict each other.

use serde_json::{Value, json};

use crate::cases::policy;

/// Each kind of a rule's ports.
fn ports() -> Vec<(&'static str, Value)> {
    vec![
        ("all ports", json!(null)),
        ("a port", json!([{ "port": 80 }])),
        ("a port of UDP", json!([{ "protocol": "UDP", "port": 81 }])),
        (
            "a port of SCTP",
            json!([{ "protocol": "SCTP", "port": 80 }]),
        ),
        ("a protocol", json!([{ "protocol": "UDP" }])),
        (
            "two ports",
            json!([{ "port": 80 }, { "protocol": "UDP", "port": 80 }]),
        ),
        ("a range", json!([{ "port": 80, "endPort": 81 }])),
        ("a name", json!([{ "port": "on-tcp" }])),
        (
            "a name and a port",
            json!([{ "port": "on-udp", "protocol": "UDP" }, { "port": 8080 }]),
        ),
    ]
}

/// Each kind of a rule's peers.
fn peers() -> Vec<(&'static str, Value)> {
    let pod = |name: &str| json!({ "matchLabels": { "pod": name } });
    let team = json!({ "matchLabels": { "team": "red" } });
    let not_x = json!({ "matchExpressions": [
        { "key": "ns", "operator": "NotIn", "values": ["x"] },
    ] });
    vec![
        ("anybody", json!(null)),
        ("pods", json!([{ "podSelector": pod("b") }])),
        ("all pods", json!([{ "podSelector": {} }])),
        ("namespaces", json!([{ "namespaceSelector": team }])),
        ("all namespaces", json!([{ "namespaceSelector": {} }])),
        (
            "pods of namespaces",
            json!([{ "namespaceSelector": not_x, "podSelector": pod("c") }]),
        ),
        (
            "pods of all namespaces",
            json!([{ "namespaceSelector": {}, "podSelector": pod("a") }]),
        ),
        ("a block", json!([{ "ipBlock": { "cidr": "10.0.2.0/24" } }])),
        (
            "a block without some",
            json!([{ "ipBlock": { "cidr": "fd00::/16", "except": ["fd00::2:0/112"] } }]),
        ),
        (
            "an address",
            json!([{ "ipBlock": { "cidr": "192.0.2.10/32" } }]),
        ),
        (
            "pods and a block",
            json!([
                { "podSelector": pod("c") },
                { "ipBlock": { "cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"] } },
            ]),
        ),
    ]
}

fn rule(list: &str, peers: &Value, ports: &Value) -> Value {
    let mut rule = json!({});
    for (key, value) in [(list, peers), ("ports", ports)] {
        if !value.is_null() {
            rule[key] = value.clone();
        }
    }
    rule
}

/// Of two policies, one lets pass what the other doesn't.
fn contradictions() -> Vec<(String, Value)> {
    let all = json!({ "namespaceSelector": {} });
    let b = json!({ "podSelector": { "matchLabels": { "pod": "b" } } });
    let rules = [
        ("nothing", json!([])),
        ("everything", json!([{}])),
        ("pods", json!([{ "from": [b], "to": [b] }])),
        (
            "a port",
            json!([{ "from": [all], "to": [all], "ports": [{ "port": 80 }] }]),
        ),
    ];
    let spec = |list: &str, rules: &Value| {
        let other = if list == "ingress" { "to" } else { "from" };
        let mut rules = rules.clone();
        for rule in rules.as_array_mut().into_iter().flatten() {
            rule.as_object_mut().unwrap().remove(other);
        }
        let kind = if list == "ingress" {
            "Ingress"
        } else {
            "Egress"
        };
        json!({ "podSelector": {}, "policyTypes": [kind], list: rules })
    };
    let mut found = Vec::new();
    for (at, (first, one)) in rules.iter().enumerate() {
        for (second, other) in &rules[at + 1..] {
            for list in ["ingress", "egress"] {
                let policies = json!([
                    policy("x", "p", spec(list, one)),
                    policy("x", "q", spec(list, other)),
                ]);
                found.push((format!("{list}: {first} and {second}"), policies));
            }
        }
        // What leaves one namespace is to enter another.
        let policies = json!([
            policy("x", "p", spec("egress", one)),
            policy("y", "p", spec("ingress", &rules[3].1)),
        ]);
        found.push((format!("out: {first}, in: a port"), policies));
    }
    found
}

pub(crate) fn all() -> Vec<(String, Value)> {
    let mut found = contradictions();
    for (kind, list, of) in [("Ingress", "ingress", "from"), ("Egress", "egress", "to")] {
        for (of_ports, ports) in ports() {
            for (of_peers, peers) in peers() {
                let spec = json!({
                    "podSelector": { "matchLabels": { "pod": "a" } },
                    "policyTypes": [kind], list: [rule(of, &peers, &ports)],
                });
                let name = format!("{list}: {of_peers}, {of_ports}");
                found.push((name, json!([policy("x", "p", spec)])));
            }
        }
    }
    found
}
