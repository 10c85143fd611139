//! What a dry run says of policies of the whole cluster, whatever OVN there is.

use std::slice;

use podwire_cluster::api;
use serde_json::{Value, json};

use super::file::{self, Read};
use super::report::Report;
use crate::cluster::{Cluster, Pod};
use crate::want::policy::Policies;

/// Two pods of `shop`, and one of `ops`, whose namespaces are known.
fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    for (number, (namespace, app)) in [("shop", "web"), ("shop", "front"), ("ops", "probe")]
        .into_iter()
        .enumerate()
    {
        let object = json!({
            "metadata": {
                "namespace": namespace, "name": app, "uid": app, "labels": { "app": app },
            },
            "spec": { "nodeName": "n", "containers": [] },
            "status": { "podIPs": [{ "ip": format!("10.244.0.{}", 3 + number) }] },
        });
        let object: api::Pod = serde_json::from_value(object).unwrap();
        let pod = Pod::of(&object).unwrap();
        cluster.pods.insert((namespace.into(), app.into()), pod);
        let labels = [("team".to_owned(), namespace.to_owned())].into();
        cluster.namespaces.insert(namespace.into(), labels);
    }
    cluster
}

/// For pods of web.
fn of_cluster(name: &str, tier: &str, rules: &Value) -> Value {
    let web = json!({ "matchLabels": { "app": "web" } });
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": { "name": name }, "spec": {
            "tier": tier, "priority": 5, "ingress": rules,
            "subject": { "pods": { "namespaceSelector": {}, "podSelector": web } },
        },
    })
}

/// Lets pods of `ops` reach web, and nobody else.
fn of_namespace() -> Value {
    let ops = json!({ "namespaceSelector": { "matchLabels": { "team": "ops" } } });
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": "shop", "name": "np" }, "spec": {
            "podSelector": { "matchLabels": { "app": "web" } }, "ingress": [{ "from": [ops] }],
        },
    })
}

fn rule(action: &str) -> Value {
    json!({ "action": action, "from": [{ "namespaces": {} }] })
}

fn report(known: &[Value], file: &[Value]) -> String {
    let mut policies = Policies::default();
    policies.set_has_tiers(true);
    for object in known {
        match file::policy(object).unwrap() {
            (key, Read::Policy(policy)) => policies.set(key.id(), Some(policy)),
            (key, Read::Tiered(content)) => policies.set_tiered(key, Some(content)),
        }
    }
    let new = file.iter().map(|object| file::policy(object).unwrap());
    Report::of(&cluster(), &policies, new.collect()).to_string()
}

#[test]
fn a_policy_of_the_first_tier_decides_before_that_of_the_namespace() {
    let text = report(
        &[of_namespace()],
        &[of_cluster("p", "Admin", &json!([rule("Deny")]))],
    );
    assert_eq!(
        text,
        "\
policy     ClusterNetworkPolicy/p: new, selects 1 living pod
cut        all protocols and ports
           from 1 pod of ops (app=probe)
           to   1 pod of shop (app=web)
           by   ingress of namespace shop: denied by rule 0 of ClusterNetworkPolicy p (tier Admin)
result     1 cut, 0 opened
"
    );
    let text = report(
        &[of_namespace()],
        &[of_cluster("p", "Admin", &json!([rule("Accept")]))],
    );
    let opened = "\
opened     all protocols and ports
           from 1 pod of shop (app=front)
           to   1 pod of shop (app=web)
           by   ingress of namespace shop: allowed by rule 0 of ClusterNetworkPolicy p (tier Admin)
result     0 cut, 1 opened
";
    assert!(text.contains(opened), "{text}");
}

#[test]
fn what_is_passed_on_changes_nothing_and_the_last_tier_only_what_no_policy_selects() {
    let nothing = "result     no connection of a living pod changes\n";
    let pass = of_cluster("p", "Admin", &json!([rule("Pass")]));
    let last = of_cluster("q", "Baseline", &json!([rule("Deny")]));
    for file in [&pass, &last] {
        let text = report(&[of_namespace()], slice::from_ref(file));
        assert!(text.ends_with(nothing), "{text}");
    }
    let text = report(&[], &[pass, last]);
    let cut = "\
cut        all protocols and ports
           from 1 pod of ops (app=probe); 1 pod of shop (app=front)
           to   1 pod of shop (app=web)
           by   ingress of namespace shop: denied by rule 0 of ClusterNetworkPolicy q (tier \
Baseline); passed on by rule 0 of ClusterNetworkPolicy p (tier Admin)
result     1 cut, 0 opened
";
    assert!(text.contains(cut), "{text}");
}

#[test]
fn what_takes_the_place_of_another_is_compared_with_it() {
    let deny = of_cluster("p", "Admin", &json!([rule("Deny")]));
    let accept = of_cluster("p", "Admin", &json!([rule("Accept")]));
    let text = report(slice::from_ref(&deny), &[accept]);
    assert!(
        text.contains("opened     all protocols and ports\n"),
        "{text}"
    );
    assert!(report(slice::from_ref(&deny), slice::from_ref(&deny)).contains("no connection"));
}
