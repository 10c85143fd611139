//! Policies of the whole cluster by combination: what decides before, between and after
//! NetworkPolicies; and each tier, direction, protocol and action, with ports and in order.

use serde_json::{Value, json};

use super::{cluster, named, network_policy};

/// What decides in each combination: an action before NetworkPolicies, these, one after them.
pub(crate) fn combinations() -> Vec<(String, Value)> {
    let mut cases = Vec::new();
    let peers = json!([{ "namespaces": { "matchLabels": { "ns": "y" } } }]);
    for direction in ["Ingress", "Egress"] {
        let (rules, side) = match direction {
            "Ingress" => ("ingress", "from"),
            _ => ("egress", "to"),
        };
        let of = |name: &str, tier: &str, action: &str| {
            let rule = json!({ rules: [{ "action": action, side: peers }] });
            (action != "none").then(|| cluster(name, tier, 7, &rule))
        };
        for first in ["none", "Accept", "Deny", "Pass"] {
            for between in ["no policy", "allows", "denies"] {
                for last in ["none", "Accept", "Deny", "Pass"] {
                    let allowed = json!([{ side: [{ "namespaceSelector": named("y") }] }]);
                    let allowed = if between == "allows" {
                        allowed
                    } else {
                        json!([])
                    };
                    let between_them = (between != "no policy").then(|| {
                        network_policy(json!({
                            "podSelector": { "matchLabels": { "pod": "a" } },
                            "policyTypes": [direction], rules: allowed,
                        }))
                    });
                    let all = [of("first", "Admin", first), between_them];
                    let all = all.into_iter().chain([of("last", "Baseline", last)]);
                    let name = format!("{first}, {between}, {last}: {direction}");
                    cases.push((name, all.flatten().collect()));
                }
            }
        }
    }
    cases
}

const TIERS: [&str; 2] = ["Admin", "Baseline"];
const DIRECTIONS: [(&str, &str); 2] = [("ingress", "from"), ("egress", "to")];
const ACTIONS: [&str; 3] = ["Accept", "Deny", "Pass"];

/// For all pods of x.
fn of_x(tier: &str, rules: &Value) -> Value {
    let mut policy = cluster("p", tier, 40, rules);
    policy["spec"]["subject"] = json!({ "namespaces": named("x") });
    policy
}

/// A rule for pods of y, with some protocols.
fn rule(action: &str, side: &str, protocols: &Value) -> Value {
    let mut rule = json!({ "action": action, side: [{ "namespaces": named("y") }] });
    if !protocols.is_null() {
        rule["protocols"] = protocols.clone();
    }
    rule
}

fn number(protocol: &str, number: u16) -> Value {
    json!({ protocol: { "destinationPort": { "number": number } } })
}

/// All ports of a protocol.
fn whole(protocol: &str) -> Value {
    let range = json!({ "start": 1, "end": 65535 });
    json!({ protocol: { "destinationPort": { "range": range } } })
}

/// Denies all pods after it.
fn then_deny(rules: Vec<Value>, side: &str) -> Value {
    let last = json!({ "action": "Deny", side: [{ "namespaces": {} }] });
    rules.into_iter().chain([last]).collect()
}

/// What the first tier passes on meets, for one pod, a NetworkPolicy that allows one port; and what
/// that decides does not come to the last tier.
fn between(direction: &str, side: &str) -> Value {
    let kind = if direction == "ingress" {
        "Ingress"
    } else {
        "Egress"
    };
    network_policy(json!({
        "podSelector": { "matchLabels": { "pod": "c" } }, "policyTypes": [kind], direction: [{
            side: [{ "namespaceSelector": {} }],
            "ports": [{ "port": 81 }, { "port": 81, "protocol": "SCTP" }],
        }],
    }))
}

/// Each action in each tier and direction: for a protocol and for one port of it; the first rule
/// that matches decides; in both directions at once, by other protocols; by names of ports; by
/// peers that are not known.
pub(crate) fn all() -> Vec<(String, Value)> {
    let mut cases = Vec::new();
    for tier in TIERS {
        for action in ACTIONS {
            for (direction, side) in DIRECTIONS {
                let mut add = |what: &str, rules: Value| {
                    let own = of_x(tier, &json!({ direction: rules }));
                    let name = format!("{tier}, {direction}, {action}: {what}");
                    cases.push((name, json!([own, between(direction, side)])));
                };
                for protocol in ["tcp", "udp", "sctp"] {
                    let opposite = if action == "Accept" { "Deny" } else { "Accept" };
                    let every = json!([whole(protocol)]);
                    let one = json!([number(protocol, 80)]);
                    let [first, port] = [&every, &one].map(|it| rule(action, side, it));
                    let second = rule(opposite, side, &every);
                    add(protocol, then_deny(vec![first, second.clone()], side));
                    add(
                        &format!("a port of {protocol}"),
                        then_deny(vec![port, second], side),
                    );
                }
                let names = json!([{ "destinationNamedPort": "on-tcp" }]);
                let by_name = vec![rule(action, side, &names)];
                add("a name", then_deny(by_name, side));
                let unknown = json!({ "action": action, side: [{ "nodes": {} }] });
                let second = rule("Accept", side, &Value::Null);
                add("nodes", json!([unknown, second]));
            }
            for (what, protocols) in [
                ("protocols", ["tcp", "udp", "sctp"].map(whole)),
                (
                    "ports",
                    [number("tcp", 80), number("udp", 81), number("sctp", 8080)],
                ),
            ] {
                let rules = DIRECTIONS.map(|(direction, side)| {
                    let rules = protocols.iter().map(|it| rule(action, side, &json!([it])));
                    (direction.to_owned(), then_deny(rules.collect(), side))
                });
                let both = Value::Object(rules.into_iter().collect());
                let name = format!("{tier}, {action}: both directions, {what}");
                cases.push((name, json!([of_x(tier, &both)])));
            }
            let net = |net: &str| json!([{ "networks": [net] }]);
            let rules = json!({ "egress": [
                { "action": action, "to": net("10.0.2.1/32") },
                { "action": "Deny", "to": net("10.0.2.0/24") },
                { "action": "Accept", "to": net("fd00::2:0/112") },
                { "action": "Deny", "to": net("::/0") },
            ] });
            let name = format!("{tier}, {action}: networks");
            cases.push((name, json!([of_x(tier, &rules)])));
        }
    }
    cases
}
