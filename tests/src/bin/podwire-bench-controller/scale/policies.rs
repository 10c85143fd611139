//! NetworkPolicies over all namespaces: as objects, and as rows of ovn-kubernetes' shape.
//!
//! Policy N is of namespace N and selects a fifth of its pods. It has a rule for a fifth of the
//! pods of some twenty namespaces and a network without a part of it (or several), by five ports of
//! two protocols and a range, and a rule for what the pods may ask.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::node::bound;
use super::peer::{insert, map, under};
use crate::cluster::{Cluster, NAMESPACES, name_of_pod, namespace};

/// Different labels of pods.
const APPS: u32 = 5;
/// Different labels of namespaces.
const TEAMS: u32 = 10;
/// The label that changes: the peers of the policies of the first pods.
pub(crate) const CHANGED: u32 = 1;

/// Of a pod.
pub(crate) fn app(number: u32) -> u32 {
    (number / NAMESPACES) % APPS
}

/// Of a namespace: not that of all whose pods are on one node.
fn team(namespace: u32) -> u32 {
    namespace % NAMESPACES / 3 % TEAMS
}

/// What a policy selects, and what its rule allows.
fn selects(policy: u32) -> u32 {
    (policy / NAMESPACES) % APPS
}

fn peers(policy: u32) -> u32 {
    (selects(policy) + 1) % APPS
}

/// Namespaces, labels of pods, and policies.
pub(crate) fn apply(cluster: &Cluster, policies: u32) {
    for number in 0..NAMESPACES {
        let labels = json!({ "team": format!("team-{}", team(number)) });
        let name = namespace(number);
        cluster.server.apply(json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": name, "uid": format!("uid-of-{name}"), "labels": labels },
        }));
    }
    for number in 0..cluster.pods {
        cluster.label(number, app(number));
    }
    for number in 0..policies {
        apply_one(cluster, number);
    }
}

fn labelled(key: &str, number: u32) -> Value {
    json!({ "matchLabels": { key: format!("{key}-{number}") } })
}

/// The networks of a policy, and what each excepts.
fn blocks(cluster: &Cluster, policy: u32) -> impl Iterator<Item = [String; 2]> {
    let first = 10..10 + cluster.blocks;
    first.map(move |first| {
        [
            format!("{first}.0.0.0/8"),
            format!("{first}.{}.0.0/16", policy % 250),
        ]
    })
}

pub(crate) fn apply_one(cluster: &Cluster, number: u32) {
    let name = name_of(number);
    let mut from = vec![json!({
        "namespaceSelector": labelled("team", team(number)),
        "podSelector": labelled("app", peers(number)),
    })];
    from.extend(
        blocks(cluster, number)
            .map(|[cidr, except]| json!({ "ipBlock": { "cidr": cidr, "except": [except] } })),
    );
    cluster.server.apply(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": namespace(number), "name": name,
            "uid": format!("uid-of-{name}") },
        "spec": {
            "podSelector": labelled("app", selects(number)),
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{
                "from": from,
                "ports": [{ "port": 80 }, { "port": 443 }, { "port": 8080 }, { "port": 8443 },
                    { "port": 9000, "endPort": 9100 }, { "port": 443, "protocol": "UDP" }],
            }],
            "egress": [{ "to": [{ "podSelector": labelled("app", peers(number)) }],
                "ports": [{ "port": 53, "protocol": "UDP" }, { "port": 5432 }] }],
        },
    }));
}

fn name_of(policy: u32) -> String {
    format!("policy-{policy}")
}

/// The pods of other nodes whose label can become that of peers of the node's pods, and is not that
/// of such peers already.
pub(crate) fn changeable(cluster: &Cluster) -> impl Iterator<Item = u32> {
    let seen: HashSet<u32> = bound(cluster).map(|pod| (app(pod) + 1) % APPS).collect();
    let others = (0..cluster.pods).filter(|number| number % cluster.nodes != 0);
    others.filter(move |number| team(*number) == 0 && !seen.contains(&app(*number)))
}

/// The pods that a policy selects, by the labels that they had at first.
pub(crate) fn selected(cluster: &Cluster, policy: u32) -> impl Iterator<Item = u32> {
    let own = (policy % NAMESPACES..cluster.pods).step_by(NAMESPACES as usize);
    own.filter(move |number| app(*number) == selects(policy))
}

/// Changes a pod's label.
pub(crate) fn change(cluster: &Cluster, number: u32, app: u32) {
    cluster.label(number, app);
}

// What follows is ovn-kubernetes' shape: sets shared by the text of selectors, a list of ports for
// each protocol, an ACL for each network with `!=` for what it excepts.

fn set_of_team(team: u32, app: u32) -> String {
    format!("aselectteam{team}app{app}")
}

fn set_of_namespace(namespace: u32, app: u32) -> String {
    format!("aselectns{}app{app}", namespace % NAMESPACES)
}

pub(crate) fn group(policy: u32) -> String {
    format!("apolicy{policy}")
}

fn isolated(namespace: u32, direction: &str) -> String {
    format!("aisolated{}{direction}", namespace % NAMESPACES)
}

/// The sets and groups that policies share.
pub(crate) fn shared_rows() -> Vec<Value> {
    let mut rows = Vec::new();
    for app in 0..APPS {
        let teams = (0..TEAMS).map(|team| set_of_team(team, app));
        let all = teams.chain((0..NAMESPACES).map(|number| set_of_namespace(number, app)));
        rows.extend(all.map(|name| insert("Address_Set", &name, json!({ "name": name }))));
    }
    for number in 0..NAMESPACES {
        for (direction, port, lport) in [
            ("in", "outport", "to-lport"),
            ("out", "inport", "from-lport"),
        ] {
            let name = isolated(number, direction);
            rows.push(insert("Port_Group", &name, json!({ "name": name })));
            let [deny, arp] = [("drop", 1000, ""), ("allow", 1001, " && (arp || nd)")].map(
                |(action, priority, more)| {
                    let uuid = format!("{name}{action}");
                    rows.push(insert(
                        "ACL",
                        &uuid,
                        json!({
                            "direction": lport, "priority": priority, "action": action,
                            "match": format!("{port} == @{name}{more}"),
                            "options": after_balancer(lport),
                        }),
                    ));
                    uuid
                },
            );
            rows.push(under("Port_Group", &name, "acls", &[&deny, &arp]));
        }
    }
    rows
}

fn after_balancer(lport: &str) -> Value {
    match lport {
        "from-lport" => map([("apply-after-lb", "true")]),
        _ => map([]),
    }
}

pub(crate) fn policy_rows(cluster: &Cluster, number: u32) -> Vec<Value> {
    let group = group(number);
    let mut rows = vec![insert("Port_Group", &group, json!({ "name": group }))];
    let tcp = "tcp && (tcp.dst == {80,443,8080,8443} || 9000 <= tcp.dst <= 9100)";
    let udp = "udp && udp.dst == 443";
    let team = format!(
        "ip4.src == {{${}}}",
        set_of_team(team(number), peers(number))
    );
    let own = set_of_namespace(number, peers(number));
    let mut all = vec![
        (
            "from-lport",
            format!("inport == @{group} && ip4.dst == {{${own}}} && udp && udp.dst == 53"),
        ),
        (
            "from-lport",
            format!("inport == @{group} && ip4.dst == {{${own}}} && tcp && tcp.dst == 5432"),
        ),
    ];
    let blocks = blocks(cluster, number)
        .map(|[cidr, except]| format!("(ip4.src == {cidr} && ip4.src != {{{except}}})"));
    for from in [team].into_iter().chain(blocks) {
        for ports in [tcp, udp] {
            let allowed = format!("outport == @{group} && {from} && {ports}");
            all.push(("to-lport", allowed));
        }
    }
    for (place, (lport, matching)) in all.iter().enumerate() {
        let uuid = format!("acl{place}");
        rows.push(insert(
            "ACL",
            &uuid,
            json!({
                "direction": lport, "priority": 1001, "action": "allow-related", "match": matching,
                "name": format!("NP:{}:{}", namespace(number), name_of(number)),
                "options": after_balancer(lport),
            }),
        ));
        rows.push(under("Port_Group", &group, "acls", &[&uuid]));
    }
    rows
}

/// Places of a pod's address and of its port, for pods that have this label.
pub(crate) fn places(policies: u32, number: u32, app: u32) -> ([String; 2], Vec<String>) {
    let sets = [
        set_of_team(team(number), app),
        set_of_namespace(number, app),
    ];
    let own = (0..policies)
        .skip((number % NAMESPACES) as usize)
        .step_by(NAMESPACES as usize)
        .filter(|policy| selects(*policy) == app);
    let mut groups: Vec<String> = own.map(group).collect();
    if !groups.is_empty() {
        groups.extend(["in", "out"].map(|direction| isolated(number, direction)));
    }
    (sets, groups)
}

impl Cluster {
    /// A pod with a label, as it is otherwise.
    fn label(&self, number: u32, app: u32) {
        let (namespace, name) = (namespace(number), name_of_pod(number));
        if let Some(mut pod) = self.server.object("Pod", &namespace, &name) {
            pod["metadata"]["labels"] = json!({ "app": format!("app-{app}") });
            self.server.apply(pod);
        }
    }

    /// The address that a pod's annotation has.
    pub(crate) fn annotated(&self, number: u32) -> String {
        let pod = self
            .server
            .object("Pod", &namespace(number), &name_of_pod(number));
        let annotations = pod.map(|pod| pod["metadata"]["annotations"].clone());
        let text =
            annotations.and_then(|it| it[crate::cluster::NETWORKS].as_str().map(str::to_owned));
        let entry: Value = serde_json::from_str(&text.unwrap_or_default()).unwrap_or_default();
        let address = entry["default"]["ip_address"].as_str().unwrap_or_default();
        address.split('/').next().unwrap_or_default().to_owned()
    }
}
