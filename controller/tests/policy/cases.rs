//! Policies for each feature of the API.

use serde_json::{Value, json};

pub(crate) fn policy(namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": namespace, "name": name, "uid": format!("{namespace}-{name}") },
        "spec": spec,
    })
}

/// One policy that isolates x/a.
fn of_a(spec: &Value) -> Value {
    let mut whole = json!({ "podSelector": { "matchLabels": { "pod": "a" } } });
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    json!([policy("x", "p", whole)])
}

fn from(peers: &Value) -> Value {
    of_a(&json!({ "policyTypes": ["Ingress"], "ingress": [{ "from": peers }] }))
}

/// x/a reaches a network alone.
fn of_block(name: &str, block: &Value) -> Value {
    let mut policy = of_a(&json!({
        "policyTypes": ["Egress"], "egress": [{ "to": [{ "ipBlock": block }] }],
    }))[0]
        .take();
    policy["metadata"]["name"] = name.into();
    policy
}

fn ports(ports: &Value) -> Value {
    of_a(&json!({ "policyTypes": ["Ingress"], "ingress": [{ "ports": ports }] }))
}

fn expression(key: &str, operator: &str, values: &Value) -> Value {
    json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] })
}

/// In each: the name, who sends, to whom, and whether it passes.
pub(crate) const BY_HAND: &[(&str, &str, &str, bool)] = &[
    ("no policy", "y/b", "x/a:80/TCP", true),
    ("deny all ingress", "y/b", "x/a:80/TCP", false),
    ("deny all ingress", "x/a", "y/b:80/UDP", true),
    ("deny all ingress", "outside", "x/a:80/TCP6", false),
    ("deny all egress", "x/a", "y/b:80/TCP", false),
    ("deny all egress", "y/b", "x/a:80/SCTP", true),
    ("pods of the namespace", "x/b", "x/a:80/TCP", true),
    ("pods of the namespace", "y/b", "x/a:80/TCP", false),
    ("namespaces", "z/c", "x/a:81/TCP6", true),
    ("namespaces", "y/c", "x/a:81/TCP6", false),
    ("pods of namespaces", "y/b", "x/a:80/TCP", true),
    ("pods of namespaces", "y/a", "x/a:80/TCP", false),
    ("pods or namespaces", "x/b", "x/a:80/TCP", true),
    ("pods or namespaces", "y/a", "x/a:80/TCP", false),
    ("pods or namespaces", "z/a", "x/a:80/TCP", true),
    ("a block with exceptions", "outside", "x/a:80/TCP", true),
    ("a block with exceptions", "x/b", "x/a:80/TCP", true),
    ("a block with exceptions", "y/b", "x/a:80/TCP", false),
    ("a block of IPv6 alone", "outside", "x/a:80/TCP", false),
    ("a block of IPv6 alone", "outside", "x/a:80/TCP6", true),
    (
        "a block leaves out what another has",
        "x/a",
        "y/a:80/TCP",
        true,
    ),
    (
        "a block leaves out what another has",
        "x/a",
        "y/b:80/TCP",
        true,
    ),
    (
        "a block leaves out what another has",
        "x/a",
        "z/a:80/TCP",
        false,
    ),
    ("any of several pods", "x/c", "x/a:80/UDP", true),
    ("pods of several namespaces", "z/c", "x/a:80/TCP", true),
    ("pods of several namespaces", "z/a", "x/a:80/TCP", false),
    ("pods of several namespaces", "x/b", "x/a:80/TCP", false),
    ("each direction by other pods", "x/b", "x/a:80/TCP", true),
    ("each direction by other pods", "x/a", "x/b:80/TCP", false),
    ("each direction by other pods", "x/a", "x/c:80/TCP", true),
    ("ports and a range", "y/b", "x/a:80/TCP", true),
    ("ports and a range", "y/b", "x/a:81/UDP", true),
    ("ports and a range", "y/b", "x/a:81/TCP", false),
    ("a port of no number", "y/b", "x/a:8080/UDP", true),
    ("a port of no number", "y/b", "x/a:8080/TCP", false),
    ("named ports of all pods", "y/c", "x/a:80/TCP", true),
    ("named ports of all pods", "y/c", "x/a:81/TCP", false),
    ("named ports of all pods", "y/c", "x/b:81/TCP", true),
    ("named ports of all pods", "y/c", "x/b:80/TCP", false),
    ("named ports of all pods", "y/b", "x/c:80/TCP", false),
    ("a name that nobody has", "y/b", "x/a:80/TCP", false),
    ("named ports out", "x/a", "y/a:80/TCP", true),
    ("named ports out", "x/a", "y/b:81/TCP", true),
    ("named ports out", "x/a", "y/b:80/TCP", false),
    ("named ports out", "x/a", "outside:80/TCP", false),
    ("an empty rule", "outside", "x/a:8080/SCTP", true),
    ("both directions", "x/a", "y/b:80/TCP", true),
    ("both directions", "x/a", "y/c:80/TCP", false),
    ("both directions", "y/b", "x/a:80/TCP", false),
    ("a mistake in a peer", "y/b", "x/a:80/TCP", false),
];

#[expect(clippy::too_many_lines, reason = "it is a list")]
pub(crate) fn all() -> Vec<(&'static str, Value)> {
    let all = json!({});
    let pod = |name: &str| json!({ "matchLabels": { "pod": name } });
    let team = |name: &str| json!({ "matchLabels": { "team": name } });
    let mut cases = vec![
        ("no policy", json!([])),
        (
            "deny all ingress",
            json!([policy("x", "p", json!({ "podSelector": all }))]),
        ),
        (
            "deny all egress",
            json!([policy(
                "x",
                "p",
                json!({ "podSelector": all, "policyTypes": ["Egress"] })
            )]),
        ),
        (
            "deny everything",
            json!([policy(
                "x",
                "p",
                json!({ "podSelector": null, "policyTypes": ["Egress", "Ingress"] })
            )]),
        ),
        (
            "pods of the namespace",
            from(&json!([{ "podSelector": pod("b") }])),
        ),
        (
            "all pods of the namespace",
            from(&json!([{ "podSelector": all }])),
        ),
        (
            "namespaces",
            from(&json!([{ "namespaceSelector": team("blue") }])),
        ),
        (
            "all namespaces",
            from(&json!([{ "namespaceSelector": all }])),
        ),
        (
            "pods of namespaces",
            from(&json!([{ "namespaceSelector": team("red"), "podSelector": pod("b") }])),
        ),
        (
            "pods or namespaces",
            from(&json!([{ "namespaceSelector": team("blue") }, { "podSelector": pod("b") }])),
        ),
        (
            "a block with exceptions",
            from(&json!([{ "ipBlock": {
                "cidr": "0.0.0.0/0", "except": ["10.0.2.0/24", "10.0.3.1/32", "10.0.3.1/32"],
            } }])),
        ),
        (
            "a block of IPv6 alone",
            from(&json!([{ "ipBlock": { "cidr": "::/0" } }])),
        ),
        (
            "blocks of both families and pods",
            from(&json!([
                { "ipBlock": { "cidr": "2001:db8::/32", "except": ["2001:db8::/120"] } },
                { "ipBlock": { "cidr": "192.0.2.10/32" } },
                { "ipBlock": { "cidr": "fd00::2:0/112", "except": ["fd00::2:2/128"] } },
                { "podSelector": pod("c") },
            ])),
        ),
        (
            "a block leaves out what another has",
            json!([
                of_block(
                    "p",
                    &json!({ "cidr": "10.0.2.0/24", "except": ["10.0.2.1/32"] })
                ),
                of_block("q", &json!({ "cidr": "10.0.2.1/32" })),
            ]),
        ),
        (
            "any of several pods",
            from(&json!([{ "podSelector": pod("b") }, { "podSelector": pod("c") }])),
        ),
        (
            "pods of several namespaces",
            from(&json!([{
                "namespaceSelector": expression("ns", "NotIn", &json!(["x"])),
                "podSelector": expression("pod", "In", &json!(["b", "c"])),
            }])),
        ),
        (
            "each direction by other pods",
            json!([
                policy(
                    "x",
                    "p",
                    json!({ "podSelector": pod("a"), "policyTypes": ["Ingress"],
                    "ingress": [{ "from": [{ "podSelector": pod("b") }] }] })
                ),
                policy(
                    "x",
                    "q",
                    json!({ "podSelector": pod("a"), "policyTypes": ["Egress"],
                    "egress": [{ "to": [{ "podSelector": pod("c") }] }] })
                ),
            ]),
        ),
        (
            "ports and a range",
            ports(&json!([
                { "port": 80 },
                { "protocol": "UDP", "port": 81, "endPort": 90 },
                { "protocol": "UDP", "port": 85, "endPort": 8080 },
            ])),
        ),
        (
            "a port of no number",
            ports(&json!([{ "protocol": "UDP" }])),
        ),
        (
            "a port of no number and others",
            ports(&json!([{ "protocol": "SCTP" }, { "protocol": "SCTP", "port": 80 }, {}])),
        ),
        ("sctp", ports(&json!([{ "protocol": "SCTP", "port": 81 }]))),
        (
            "named ports",
            ports(&json!([{ "port": "on-tcp" }, { "port": "on-udp", "protocol": "UDP" }])),
        ),
        (
            "a named port of another container",
            ports(&json!([{ "port": "on-sctp", "protocol": "SCTP" }])),
        ),
        (
            "a named port of another protocol",
            ports(&json!([{ "port": "on-udp" }])),
        ),
        (
            "named ports of all pods",
            json!([policy(
                "x",
                "p",
                json!({ "podSelector": all, "ingress": [{
                    "ports": [{ "port": "on-tcp" }], "from": [{ "namespaceSelector": all }],
                }] })
            )]),
        ),
        (
            "a name that nobody has",
            ports(&json!([{ "port": "none" }])),
        ),
        (
            "named ports out",
            of_a(&json!({ "policyTypes": ["Egress"], "egress": [
                { "ports": [{ "port": "on-tcp" }], "to": [{ "namespaceSelector": all }] },
            ] })),
        ),
        (
            "named ports out to anybody",
            of_a(&json!({ "policyTypes": ["Egress"], "egress": [
                { "ports": [{ "port": "on-udp", "protocol": "UDP" }, { "port": 81 }] },
            ] })),
        ),
        (
            "named ports out to a block",
            of_a(&json!({ "policyTypes": ["Egress"], "egress": [{
                "ports": [{ "port": "on-tcp" }],
                "to": [{ "ipBlock": { "cidr": "10.0.2.0/24", "except": ["10.0.2.1/32"] } }],
            }] })),
        ),
        ("an empty rule", of_a(&json!({ "ingress": [{}] }))),
        (
            "empty lists",
            of_a(&json!({
                "ingress": [{ "from": [], "ports": [] }], "egress": [], "policyTypes": [],
            })),
        ),
        ("egress without its type", of_a(&json!({ "egress": [{}] }))),
        (
            "a direction that is not isolated",
            of_a(&json!({ "policyTypes": ["Egress"], "ingress": [{ "ports": [{ "port": 80 }] }] })),
        ),
        (
            "both directions",
            of_a(&json!({
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{ "from": [{ "podSelector": all }] }],
                "egress": [{ "to": [{ "namespaceSelector": all, "podSelector": pod("b") }] }],
            })),
        ),
        (
            "equal peers in two rules",
            of_a(&json!({ "ingress": [
                { "from": [{ "podSelector": pod("b") }], "ports": [{ "port": 80 }] },
                { "from": [{ "podSelector": pod("b") }], "ports": [{ "port": 81 }] },
                { "from": [{ "podSelector": pod("c") }] },
            ] })),
        ),
        (
            "several policies",
            json!([
                policy("x", "p", json!({ "podSelector": all })),
                policy(
                    "x",
                    "q",
                    json!({ "podSelector": pod("a"), "ingress": [
                    { "from": [{ "podSelector": pod("b") }] },
                ] })
                ),
                policy(
                    "x",
                    "r",
                    json!({ "podSelector": pod("a"), "ingress": [
                    { "from": [{ "podSelector": pod("c") }], "ports": [{ "port": 80 }] },
                ] })
                ),
                policy(
                    "y",
                    "p",
                    json!({ "podSelector": all, "policyTypes": ["Egress"], "egress": [
                    { "to": [{ "ipBlock": { "cidr": "10.0.0.0/8" } }] },
                ] })
                ),
            ]),
        ),
        // What can't be read allows nothing: as if there were no such peer, but a list.
        (
            "a mistake in a peer",
            from(&json!([{ "ipBlock": { "cidr": "192.0.2.10/33" } }])),
        ),
    ];
    for (name, key, operator, values) in [
        ("in", "pod", "In", json!(["a", "c"])),
        ("not in", "pod", "NotIn", json!(["a", "c"])),
        ("exists", "pod", "Exists", json!([])),
        ("does not exist", "pod", "DoesNotExist", json!([])),
        ("another key is not in", "other", "NotIn", json!(["a"])),
        (
            "another key does not exist",
            "other",
            "DoesNotExist",
            json!([]),
        ),
    ] {
        let selector = expression(key, operator, &values);
        let spec = json!({ "podSelector": selector, "ingress": [
            { "from": [{ "namespaceSelector": expression("ns", operator, &json!(["x", "z"])) }] },
        ] });
        let is_valid = !matches!(operator, "Exists" | "DoesNotExist");
        let spec = match is_valid {
            true => spec,
            false => json!({ "podSelector": selector, "ingress": [
                { "from": [{ "namespaceSelector": expression("team", operator, &values) }] },
            ] }),
        };
        cases.push((name, json!([policy("x", "p", spec)])));
    }
    cases
}
