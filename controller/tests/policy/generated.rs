//! Policies by combination: each kind of ports with each kind of peers, in both directions; pairs
//! of peers, every way to write ports, each kind of pods that a policy is for; and policies that
//! contradict each other.

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
            "all pods of all namespaces",
            json!([{ "namespaceSelector": {}, "podSelector": {} }]),
        ),
        (
            "all pods of namespaces",
            json!([{ "namespaceSelector": team, "podSelector": {} }]),
        ),
        (
            "a namespace by its name",
            json!([{ "namespaceSelector": { "matchLabels": {
                "kubernetes.io/metadata.name": "z",
            } } }]),
        ),
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

/// What is not null of these.
fn rule_of(fields: [(&str, &Value); 2]) -> Value {
    let mut rule = json!({});
    for (key, value) in fields {
        if !value.is_null() {
            rule[key] = value.clone();
        }
    }
    rule
}

/// Every way to write a rule's ports, alone and in pairs.
fn written_ports() -> Vec<(String, Value)> {
    let mut found: Vec<Value> = Vec::new();
    for protocol in [Value::Null, "TCP".into(), "UDP".into(), "SCTP".into()] {
        for port in [Value::Null, 80.into(), 81.into()] {
            found.push(rule_of([("protocol", &protocol), ("port", &port)]));
        }
    }
    for protocol in ["TCP", "UDP", "SCTP"] {
        // A name of each protocol: the container's port with it may be of another.
        for name in ["on-tcp", "on-udp", "on-sctp"] {
            found.push(json!({ "protocol": protocol, "port": name }));
        }
        // Ranges that end at a port, and behind it.
        for last in [80, 84] {
            found.push(json!({ "protocol": protocol, "port": 53, "endPort": last }));
        }
        found.push(json!({ "protocol": protocol, "port": 7981 }));
        found.push(json!({ "protocol": protocol, "port": "none" }));
    }
    let alone = found.iter().map(|it| json!([it]));
    let (number, name) = (json!({ "port": 80 }), json!({ "port": "on-tcp" }));
    let of_udp = json!({ "protocol": "UDP", "port": "on-udp" });
    let pairs = [
        [json!({}), number.clone()],
        [json!({}), name.clone()],
        [json!({}), json!({ "protocol": "UDP" })],
        [number.clone(), json!({ "port": 81 })],
        [number.clone(), name],
        [number, of_udp.clone()],
        [json!({ "protocol": "UDP", "port": 80 }), of_udp],
    ];
    let pairs = pairs.into_iter().map(Value::from_iter);
    let empty = [json!([])].into_iter();
    alone
        .chain(pairs)
        .chain(empty)
        .map(|it| (it.to_string(), it))
        .collect()
}

/// Each kind of pods that a policy is for, in each namespace.
fn targets() -> Vec<(String, Value)> {
    let selectors = [
        json!({}),
        json!({ "matchLabels": { "pod": "a" } }),
        json!({ "matchExpressions": [{ "key": "pod", "operator": "In", "values": ["a", "b"] }] }),
    ];
    let mut found = Vec::new();
    for namespace in ["x", "y", "z"] {
        for selector in &selectors {
            let from = json!([{ "from": [{ "podSelector": {} }] }]);
            let to = json!([{ "to": [{ "podSelector": {} }] }]);
            let spec = json!({
                "podSelector": selector, "policyTypes": ["Ingress", "Egress"],
                "ingress": from, "egress": to,
            });
            let name = format!("of {namespace}: {selector}");
            found.push((name, json!([policy(namespace, "p", spec)])));
        }
    }
    found
}

/// Two kinds of peers in one rule.
fn pairs_of_peers() -> Vec<(String, Value)> {
    let all: Vec<_> = peers()
        .into_iter()
        .filter(|(_, it)| !it.is_null())
        .collect();
    let mut found = Vec::new();
    for (at, (first, one)) in all.iter().enumerate() {
        for (second, other) in &all[at + 1..] {
            let both = [one, other].into_iter().filter_map(Value::as_array);
            let both: Value = both.flatten().cloned().collect();
            found.push((format!("{first} or {second}"), both));
        }
    }
    found
}

/// Of two policies, one lets pass what the other doesn't.
fn contradictions() -> Vec<(String, Value)> {
    let all = json!({ "namespaceSelector": {} });
    let b = json!({ "podSelector": { "matchLabels": { "pod": "b" } } });
    let none = json!({ "namespaceSelector": { "matchLabels": { "ns": "none" } } });
    let net = |cidr: &str| json!({ "ipBlock": { "cidr": cidr } });
    let peers = |peers: Value| json!([{ "from": peers, "to": peers }]);
    let rules = [
        ("nothing", json!([])),
        ("everything", json!([{}])),
        ("pods", peers(json!([b]))),
        ("all pods", peers(json!([all]))),
        ("no pod", peers(json!([none]))),
        (
            "all addresses",
            peers(json!([net("0.0.0.0/0"), net("::/0")])),
        ),
        ("no address", peers(json!([net("0.0.0.0/31")]))),
        (
            "a port",
            json!([{ "from": [all], "to": [all], "ports": [{ "port": 80 }] }]),
        ),
    ];
    let last = rules.len() - 1;
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
            policy("y", "p", spec("ingress", &rules[last].1)),
        ]);
        found.push((format!("out: {first}, in: a port"), policies));
    }
    found
}

pub(crate) fn all() -> Vec<(String, Value)> {
    let mut found = contradictions();
    found.extend(targets());
    for (kind, list, of) in [("Ingress", "ingress", "from"), ("Egress", "egress", "to")] {
        let mut add = |what: String, peers: &Value, ports: &Value| {
            let spec = json!({
                "podSelector": { "matchLabels": { "pod": "a" } },
                "policyTypes": [kind], list: [rule_of([(of, peers), ("ports", ports)])],
            });
            found.push((format!("{list}: {what}"), json!([policy("x", "p", spec)])));
        };
        for (of_ports, ports) in ports() {
            for (of_peers, peers) in peers() {
                add(format!("{of_peers}, {of_ports}"), &peers, &ports);
            }
        }
        for (what, ports) in written_ports() {
            add(what, &Value::Null, &ports);
        }
        for (what, peers) in pairs_of_peers() {
            add(what, &peers, &Value::Null);
        }
    }
    found
}
