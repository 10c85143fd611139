//! Policies of the whole cluster for each feature of their API, and what decides between them and
//! NetworkPolicies. Those with the label `refused` can't be applied.

pub(crate) mod generated;

use serde_json::{Value, json};

/// A ClusterNetworkPolicy for x/a.
fn cluster(name: &str, tier: &str, priority: u32, rules: &Value) -> Value {
    let mut spec = json!({
        "tier": tier, "priority": priority,
        "subject": { "pods": {
            "namespaceSelector": named("x"), "podSelector": { "matchLabels": { "pod": "a" } },
        } },
    });
    for (key, value) in rules.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": { "name": name, "uid": name }, "spec": spec,
    })
}

/// Of v1alpha1: with a priority, or none.
fn alpha1(name: &str, priority: Option<u32>, rules: &Value) -> Value {
    let mut policy = cluster(name, "", 0, rules);
    policy["apiVersion"] = "policy.networking.k8s.io/v1alpha1".into();
    policy["kind"] = match priority {
        Some(_) => "AdminNetworkPolicy".into(),
        None => "BaselineAdminNetworkPolicy".into(),
    };
    let spec = policy["spec"].as_object_mut().unwrap();
    spec.remove("tier");
    spec.remove("priority");
    spec.extend(priority.map(|it| ("priority".to_owned(), it.into())));
    policy
}

fn refused(mut policy: Value) -> Value {
    policy["metadata"]["labels"] = json!({ "refused": "" });
    policy
}

fn named(namespace: &str) -> Value {
    json!({ "matchLabels": { "ns": namespace } })
}

fn from(action: &str, namespace: &str) -> Value {
    json!({ "action": action, "from": [{ "namespaces": named(namespace) }] })
}

fn to(action: &str, peers: Value) -> Value {
    json!({ "action": action, "to": peers })
}

fn with(mut rule: Value, key: &str, value: Value) -> Value {
    rule[key] = value;
    rule
}

fn ingress(rules: Value) -> Value {
    json!({ "ingress": rules })
}

fn admin(rules: Value) -> Value {
    json!([cluster("p", "Admin", 10, &rules)])
}

fn deny_all() -> Value {
    json!({ "action": "Deny", "from": [{ "namespaces": {} }] })
}

fn network_policy(spec: Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": "x", "name": "np", "uid": "np" }, "spec": spec,
    })
}

/// In each: the name, who sends, to whom, and whether it passes.
pub(crate) const BY_HAND: &[(&str, &str, &str, bool)] = &[
    ("Deny, no policy, none: Ingress", "y/b", "x/a:80/TCP", false),
    ("Accept, denies, Deny: Ingress", "y/b", "x/a:80/TCP", true),
    ("Pass, allows, Deny: Ingress", "y/b", "x/a:80/TCP", true),
    ("Pass, denies, Accept: Ingress", "y/b", "x/a:80/TCP", false),
    ("Pass, no policy, Deny: Ingress", "y/b", "x/a:80/TCP", false),
    ("none, no policy, Pass: Ingress", "y/b", "x/a:80/TCP", true),
    ("Deny, allows, Accept: Egress", "x/a", "y/b:80/TCP", false),
    ("Deny, allows, Accept: Egress", "y/b", "x/a:80/TCP", true),
    ("Accept, denies, none: Egress", "x/a", "y/b:80/UDP6", true),
    ("the first rule decides", "y/b", "x/a:80/TCP", true),
    ("the first rule decides", "z/b", "x/a:80/TCP", true),
    ("the first rule decides", "x/b", "x/a:80/TCP", false),
    ("the lower priority decides", "y/b", "x/a:80/TCP", false),
    ("the lower priority decides", "z/b", "x/a:80/TCP", true),
    ("the ends of the range", "y/b", "x/a:80/TCP", false),
    ("the ends of the range", "z/b", "x/a:80/TCP", true),
    ("networks", "x/a", "outside:80/TCP", false),
    ("networks", "x/a", "y/b:80/TCP", true),
    ("networks", "x/a", "outside:80/TCP6", true),
    ("all networks of a family", "x/a", "outside:80/TCP6", false),
    ("all networks of a family", "x/a", "y/b:80/TCP6", false),
    ("all networks of a family", "x/a", "y/b:80/TCP", true),
    ("numbers and ranges", "y/b", "x/a:80/TCP", false),
    ("numbers and ranges", "y/b", "x/a:80/UDP", true),
    ("numbers and ranges", "y/b", "x/a:81/UDP", false),
    ("named ports in", "y/b", "x/a:80/TCP", false),
    ("named ports in", "y/b", "x/b:81/TCP", false),
    ("named ports in", "y/b", "x/b:80/TCP", true),
    ("named ports in", "y/b", "x/a:80/SCTP", true),
    ("named ports out", "x/a", "y/b:81/TCP", false),
    ("named ports out", "x/a", "y/b:80/TCP", true),
    ("a name that nobody has", "y/b", "x/a:80/TCP", true),
    ("an unknown peer: Accept", "outside", "x/a:80/TCP", true),
    ("an unknown peer: Accept", "y/b", "x/a:80/TCP", false),
    ("an unknown peer: Deny", "outside", "x/a:80/TCP", false),
    ("an unknown peer: Pass", "outside", "x/a:80/TCP", false),
    ("an unknown peer: Pass", "x/a", "outside:80/TCP", true),
    ("both APIs", "y/b", "x/a:80/TCP", true),
    ("both APIs", "z/b", "x/a:80/TCP", false),
    ("baselines of both APIs", "y/b", "x/a:80/TCP", true),
    ("baselines of both APIs", "z/b", "x/a:80/TCP", false),
    ("a priority that there is not", "y/b", "x/a:80/TCP", true),
    (
        "more runs than there is room for",
        "y/b",
        "x/a:80/TCP",
        true,
    ),
];

#[expect(clippy::too_many_lines, reason = "it is a list")]
pub(crate) fn all() -> Vec<(String, Value)> {
    let pods = |name: &str| {
        json!({ "pods": {
            "namespaceSelector": {}, "podSelector": { "matchLabels": { "pod": name } },
        } })
    };
    let number = |number: u16| json!({ "destinationPort": { "number": number } });
    let port = |number: u16| json!({ "portNumber": { "protocol": "TCP", "port": number } });
    let alternating = |count: usize| -> Value {
        let rules = (0..count).map(|it| from(["Accept", "Deny"][it % 2], "y"));
        ingress(rules.collect())
    };
    let mut wide = cluster("p", "Admin", 10, &ingress(json!([from("Deny", "y")])));
    wide["spec"]["subject"] = json!({ "namespaces": {} });
    let unknown = |action: &str| {
        json!([
            cluster(
                "p",
                "Admin",
                10,
                &ingress(json!([
                    { "action": action, "from": [pods("b"), { "nodes": {} }], "protocols": [
                        { "tcp": number(80) },
                    ] },
                ]))
            ),
            cluster("q", "Baseline", 10, &ingress(json!([deny_all()]))),
        ])
    };
    let mut of_x = cluster(
        "p",
        "Admin",
        10,
        &ingress(json!([with(
            deny_all(),
            "protocols",
            json!([
                { "destinationNamedPort": "on-tcp" }, { "destinationNamedPort": "on-udp" },
            ])
        )])),
    );
    of_x["spec"]["subject"] = json!({ "namespaces": named("x") });
    let cases = [
        (
            "the first rule decides",
            admin(ingress(json!([
                from("Accept", "y"),
                from("Deny", "y"),
                from("Pass", "z"),
                from("Accept", "z"),
                deny_all()
            ]))),
        ),
        ("all pods as subject", json!([wide])),
        (
            "several peers, and none of a namespace",
            admin(ingress(json!([{ "action": "Deny", "from": [
                pods("b"), { "namespaces": { "matchLabels": { "team": "blue" } } },
                { "namespaces": { "matchExpressions": [
                    { "key": "ns", "operator": "In", "values": ["none"] },
                ] } },
            ] }]))),
        ),
        (
            "the lower priority decides",
            json!([
                cluster("p", "Admin", 5, &ingress(json!([from("Deny", "y")]))),
                cluster(
                    "q",
                    "Admin",
                    6,
                    &ingress(json!([from("Accept", "y"), from("Accept", "z"),]))
                ),
                cluster("r", "Admin", 7, &ingress(json!([deny_all()]))),
            ]),
        ),
        (
            "the ends of the range",
            json!([
                cluster(
                    "p",
                    "Baseline",
                    1000,
                    &ingress(json!([from("Accept", "y"), from("Deny", "z"),]))
                ),
                cluster(
                    "q",
                    "Baseline",
                    999,
                    &ingress({
                        let last = from("Deny", "y");
                        let mut rules: Vec<Value> = (0..24)
                            .map(|it| from(["Pass", "Accept"][it % 2], "none"))
                            .collect();
                        rules.push(last);
                        rules.into()
                    })
                ),
                cluster("r", "Baseline", 0, &ingress(json!([from("Accept", "z")]))),
                alpha1(
                    "default",
                    None,
                    &ingress(json!([from("Allow", "y"), from("Deny", "z")]))
                ),
            ]),
        ),
        (
            "networks",
            admin(json!({ "egress": [
                to("Accept", json!([{ "networks": ["10.0.0.0/8"] }])),
                to("Deny", json!([
                    { "networks": ["10.0.2.0/24", "192.0.2.0/24"] }, { "networks": ["fd00::/16"] },
                ])),
            ] })),
        ),
        (
            "all networks of a family",
            admin(json!({ "egress": [to("Deny", json!([{ "networks": ["::/0"] }]))] })),
        ),
        (
            "pods before networks",
            admin(json!({ "egress": [
                to("Pass", json!([{ "namespaces": {} }])),
                to("Deny", json!([{ "networks": ["0.0.0.0/0", "::/0"] }])),
            ] })),
        ),
        (
            "numbers and ranges",
            admin(ingress(json!([
                with(
                    from("Pass", "y"),
                    "protocols",
                    json!([{ "udp": number(80) }])
                ),
                with(
                    deny_all(),
                    "protocols",
                    json!([
                        { "tcp": number(80) },
                        { "udp": { "destinationPort": { "range": { "start": 80, "end": 8080 } } } },
                        { "sctp": number(8080) },
                    ])
                ),
            ]))),
        ),
        ("named ports in", json!([of_x])),
        (
            "named ports out",
            admin(json!({ "egress": [with(
                to("Deny", json!([{ "namespaces": {} }])),
                "protocols", json!([{ "destinationNamedPort": "on-tcp" }, { "udp": number(81) }]),
            )] })),
        ),
        (
            "a name that nobody has",
            admin(ingress(json!([with(
                deny_all(),
                "protocols",
                json!([{ "destinationNamedPort": "none" }])
            ),]))),
        ),
        ("an unknown peer: Accept", unknown("Accept")),
        ("an unknown peer: Deny", unknown("Deny")),
        ("an unknown peer: Pass", unknown("Pass")),
        (
            "an unknown action",
            admin(ingress(json!([from("Log", "y")]))),
        ),
        (
            "no peers",
            admin(json!({ "egress": [to("Deny", json!([]))] })),
        ),
        (
            "an unknown protocol",
            admin(ingress(json!([
                with(from("Accept", "y"), "protocols", json!([{ "tcp": {} }])),
                from("Deny", "y"),
            ]))),
        ),
        (
            "a name beside networks",
            admin(json!({ "egress": [with(
                to("Deny", json!([{ "networks": ["192.0.2.0/24"] }])),
                "protocols", json!([{ "destinationNamedPort": "on-tcp" }]),
            )] })),
        ),
        (
            "both APIs",
            json!([
                alpha1(
                    "p",
                    Some(3),
                    &ingress(json!([
                        with(
                            from("Allow", "y"),
                            "ports",
                            json!([port(80), { "portRange": {
                        "protocol": "UDP", "start": 80, "end": 90,
                    } }])
                        ),
                        with(
                            from("Deny", "y"),
                            "ports",
                            json!([{ "namedPort": "on-sctp" }])
                        ),
                    ]))
                ),
                cluster("p", "Admin", 4, &ingress(json!([deny_all()]))),
            ]),
        ),
        (
            "baselines of both APIs",
            json!([
                cluster(
                    "p",
                    "Baseline",
                    1000,
                    &ingress(json!([from("Accept", "y")]))
                ),
                alpha1(
                    "default",
                    None,
                    &json!({
                        "ingress": [deny_all()],
                        "egress": [to("Deny", json!([{ "networks": ["10.0.3.0/24"] }]))],
                    })
                ),
            ]),
        ),
        (
            "a hundred rules of one action",
            json!([alpha1(
                "p",
                Some(1000),
                &ingress(
                    (0..100)
                        .map(|it| with(from("Deny", "y"), "ports", json!([port(it + 1)])))
                        .collect(),
                )
            )]),
        ),
        (
            "as many runs as there is room for",
            json!([cluster("p", "Admin", 0, &alternating(25))]),
        ),
        (
            "more runs than there is room for",
            json!([refused(cluster(
                "p",
                "Admin",
                0,
                &with(
                    alternating(26),
                    "egress",
                    json!([to("Deny", json!([{ "namespaces": {} }])),])
                )
            ))]),
        ),
        (
            "a priority that there is not",
            json!([refused(cluster(
                "p",
                "Admin",
                1001,
                &ingress(json!([deny_all()]))
            ))]),
        ),
        (
            "an unknown tier",
            json!([refused(cluster(
                "p",
                "Middle",
                1,
                &ingress(json!([deny_all()]))
            ))]),
        ),
        (
            "another baseline",
            json!([refused(alpha1(
                "other",
                None,
                &ingress(json!([deny_all()]))
            ))]),
        ),
    ];
    let cases = cases
        .into_iter()
        .map(|(name, policies)| (name.to_owned(), policies));
    cases.chain(generated::combinations()).collect()
}
