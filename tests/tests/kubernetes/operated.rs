//! What a cluster's operator relies on in every set: priorities, requests, probes with deadlines,
//! and monitors that select what is there.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde::Deserialize;
use serde_json::Value;

use super::render::{exact, manifests, of_kind, render};
use super::sets::sets;

/// The pods of a set: the name of each workload, and its template.
fn templates(objects: &[Value]) -> Vec<(&str, &Value)> {
    let template = |it| Value::pointer(it, "/spec/template").filter(|it| !it.is_null());
    let named = |it: &'_ Value| it["metadata"]["name"].as_str().is_some();
    let objects = objects.iter().filter(|it| named(it));
    objects
        .filter_map(|it| Some((it["metadata"]["name"].as_str()?, template(it)?)))
        .collect()
}

#[test]
fn every_pod_has_a_priority_requests_and_probes_with_deadlines() {
    let mut seen = 0;
    for (set, objects) in sets() {
        for (name, template) in templates(&objects) {
            let pod = &template["spec"];
            let class = pod["priorityClassName"].as_str().unwrap_or_default();
            assert!(class.starts_with("system-"), "{set}: {name}: {class:?}");
            for container in pod["containers"].as_array().unwrap() {
                let place = format!("{set}: {name}: {}", container["name"]);
                let requests = &container["resources"]["requests"];
                for resource in ["cpu", "memory"] {
                    assert!(requests[resource].is_string(), "{place}: {requests}");
                }
                let probes = ["livenessProbe", "readinessProbe"].map(|it| &container[it]);
                for probe in probes.iter().filter(|it| !it.is_null()) {
                    assert!(probe["timeoutSeconds"].is_i64(), "{place}: {probe}");
                }
                // What takes podwire off has nothing to serve. In plain mode the former node role
                // keeps the port of the page while the next one stands by.
                let has_page = name != "podwire" || container["name"] != "node";
                let serves = !["kubernetes/uninstall", "node/cleanup"].contains(&&*set);
                if serves && has_page {
                    assert!(!probes[0].is_null(), "{place}: no liveness probe");
                }
                seen += 1;
            }
        }
    }
    assert!(seen > 20, "{seen}");
}

/// Requests are not above limits, or the pod is refused.
#[test]
fn no_request_is_above_its_limit() {
    let bytes = |quantity: &str| {
        let at = quantity.find(|it: char| !it.is_ascii_digit());
        let (number, unit) = quantity.split_at(at.unwrap_or(quantity.len()));
        let power = match unit {
            "Mi" => 20,
            "Gi" => 30,
            other => panic!("{other:?} of {quantity}"),
        };
        number.parse::<u64>().unwrap() << power
    };
    for (set, objects) in sets() {
        for (name, template) in templates(&objects) {
            for container in template["spec"]["containers"].as_array().unwrap() {
                let [request, limit] = ["requests", "limits"]
                    .map(|it| container["resources"][it]["memory"].as_str().map(bytes));
                let fits = limit.is_none_or(|limit| request.unwrap_or(0) <= limit);
                assert!(fits, "{set}: {name}: {}", container["resources"]);
            }
        }
    }
}

#[test]
fn what_gets_an_address_in_podwires_namespace_talks_to_nobody() {
    let objects = render(&manifests().join("namespace"));
    let policies = of_kind::<NetworkPolicy>(&objects, "NetworkPolicy");
    let [policy] = &policies[..] else {
        panic!("{policies:?}")
    };
    let spec = policy.spec.as_ref().unwrap();
    assert_eq!(spec.pod_selector, Some(Default::default()));
    let types = spec.policy_types.as_deref().unwrap_or_default();
    assert_eq!(types, ["Ingress", "Egress"]);
    assert!(spec.ingress.is_none() && spec.egress.is_none());
    // podwire's own pods are not on the pod network, so that it is no policy for them.
    for (set, objects) in sets() {
        for (name, template) in templates(&objects) {
            assert_eq!(template["spec"]["hostNetwork"], true, "{set}: {name}");
        }
    }
}

/// Of a PodMonitor what is used (Prometheus Operator, monitoring.coreos.com/v1).
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Monitor {
    selector: Selector,
    pod_metrics_endpoints: Vec<Endpoint>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Selector {
    match_labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[expect(dead_code, reason = "named so that they are known")]
struct Endpoint {
    port: String,
    scheme: Option<String>,
    tls_config: Option<TlsConfig>,
    relabelings: Vec<Relabeling>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[expect(dead_code, reason = "named so that they are known")]
struct TlsConfig {
    server_name: String,
    ca: FromSecret,
    cert: FromSecret,
    key_secret: Key,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "named so that they are known")]
struct FromSecret {
    secret: Key,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "named so that they are known")]
struct Key {
    name: String,
    key: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[expect(dead_code, reason = "named so that they are known")]
struct Relabeling {
    source_labels: Vec<String>,
    target_label: String,
}

#[test]
fn the_monitors_select_podwires_pods_by_ports_that_they_or_their_proxies_have() {
    let network = render(&manifests().join("../cluster/overlays/ovn"));
    let monitors = render(&manifests().join("../prometheus/operator"));
    let mut parts = Vec::new();
    for monitor in &monitors {
        assert_eq!(monitor["apiVersion"], "monitoring.coreos.com/v1");
        let spec: Monitor = serde_json::from_value(monitor["spec"].clone()).unwrap();
        let selects = |template: &Value| {
            let mut labels = spec.selector.match_labels.iter();
            labels.all(|(key, value)| template["metadata"]["labels"][key] == **value)
        };
        let all = templates(&network);
        let selected: Vec<_> = all.iter().filter(|(_, it)| selects(it)).collect();
        let [(name, template)] = &selected[..] else {
            panic!("{monitor}: {}", selected.len())
        };
        parts.push(*name);
        for endpoint in &spec.pod_metrics_endpoints {
            let own = template["spec"]["containers"][0]["ports"].as_array();
            let has = own.is_some_and(|it| it.iter().any(|it| it["name"] == *endpoint.port));
            assert_eq!(has, endpoint.port != "metrics-proxy", "{name}");
        }
    }
    parts.sort_unstable();
    assert_eq!(parts, ["podwire", "podwire-controller", "podwire-node"]);
}

#[test]
fn a_field_that_a_policy_does_not_have_is_found() {
    let objects = render(&manifests().join("namespace"));
    let policy = objects.iter().find(|it| it["kind"] == "NetworkPolicy");
    let mut wrong = policy.unwrap().clone();
    exact::<NetworkPolicy>(&wrong);
    wrong["spec"]["policyType"] = "Ingress".into();
    assert!(std::panic::catch_unwind(|| exact::<NetworkPolicy>(&wrong)).is_err());
}
