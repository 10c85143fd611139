//! The roles of deploy/controller allow what the controller asks for, and nothing else.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use podwire_tests::apiserver::{ApiServer, Request, endpoints, node, pod, service};
use podwire_tests::ovn::Central;
use serde_json::{Value, json};

use crate::fixture::{Running, await_network};
use crate::user_networks::{
    OF_CLUSTER, OF_NAMESPACE, is_made, layer2, namespace, of_namespace, of_team,
};

/// A verb, and a resource with its group, and the only name that it is for.
type Right = (String, String, Option<String>);

pub(crate) fn manifest(name: &str) -> Vec<Value> {
    let root = env!("CARGO_MANIFEST_DIR");
    let text = std::fs::read_to_string(format!("{root}/../deploy/controller/{name}")).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

fn rights(rules: &[PolicyRule]) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for rule in rules {
        let group = rule.api_groups.as_ref().unwrap()[0].clone();
        let names = rule.resource_names.clone().unwrap_or_default();
        let names: Vec<_> = names.into_iter().map(Some).chain([None]).collect();
        let name = &names[0];
        for resource in rule.resources.iter().flatten() {
            for verb in &rule.verbs {
                rights.insert((verb.clone(), format!("{group}/{resource}"), name.clone()));
            }
        }
    }
    rights
}

/// What a request needs, and whether in a namespace of its own or in all of them.
fn needed(request: &Request) -> (bool, Right) {
    let (group, rest) = match request.path.strip_prefix("/api/v1/") {
        Some(rest) => ("", rest),
        None => {
            let rest = request.path.strip_prefix("/apis/").unwrap();
            let (group, rest) = rest.split_once('/').unwrap();
            (group, rest.split_once('/').unwrap().1)
        }
    };
    let words: Vec<_> = rest.split('/').collect();
    let (is_namespaced, words) = match words[..] {
        ["namespaces", _, ref words @ ..] => (true, words.to_vec()),
        _ => (false, words),
    };
    let selected = request.parameter("fieldSelector");
    let selected = selected.and_then(|text| text.strip_prefix("metadata.name="));
    let name = words.get(1).copied().or(selected);
    let verb = match (&*request.method, words.len()) {
        ("GET", 1) if request.is_watch() => "watch",
        ("GET", 1) => "list",
        ("GET", _) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", _) => "delete",
        other => panic!("{other:?}"),
    };
    let resource = match words[..] {
        [resource, _, sub] => format!("{group}/{resource}/{sub}"),
        _ => format!("{group}/{}", words[0]),
    };
    let is_by_name = matches!(resource.split_once('/').unwrap().1, "leases" | "configmaps");
    let name = name.filter(|_| is_by_name && verb != "create");
    let is_own = is_namespaced && resource == "coordination.k8s.io/leases";
    (is_own, (verb.to_owned(), resource, name.map(str::to_owned)))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_roles_allow_what_the_controller_asks_for_and_nothing_else() {
    let (central, server) = (Central::start(), ApiServer::start());
    server.apply(node("node-a", "192.0.2.1"));
    server.apply(pod("node-a", "default", "web", "uid-of-web", json!({})));
    server.apply(service("default", "front", "10.96.0.10", 80));
    server.apply(endpoints("default", "front", &["10.244.0.3"], 8080));
    let request = json!({ "podwire.io/ip-addresses": "192.0.2.9" });
    server.apply(pod(
        "node-a",
        "default",
        "wishful",
        "uid-of-wishful",
        request,
    ));
    crate::tiered::apply_all(&server);
    server.apply(namespace("default", "b"));
    server.apply(namespace("shop", "a"));
    let spec = layer2("10.1.0.0/24");
    server.apply(of_namespace("blue", &spec));
    server.apply(of_team("red", "a", &spec));
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    is_made(&server, (OF_NAMESPACE, "shop", "blue"));
    is_made(&server, (OF_CLUSTER, "", "red"));
    server.delete_object(OF_NAMESPACE, "shop", "blue");
    server.await_missing((OF_NAMESPACE, "shop", "blue"));
    await_network(&server, "default", "web");
    // Its term includes a renewal.
    let renewed = |requests: &[Request]| requests.iter().any(|it| it.method == "PUT");
    server.await_requests("a renewal", renewed);
    let mut second = Running::start(&central, &server, &["--identity", "second"]);
    let follows = |it: &Request| it.is_watch() && it.path.contains("/namespaces/");
    server.await_requests("a stand-by", |requests| requests.iter().any(follows));
    controller.stop().await.unwrap();
    second.idle().await;
    // It says again what the first has said, in the same Event.
    let patched = |it: &Request| it.method == "PATCH" && it.path.contains("/events/wishful.");
    server.await_requests("the Event's time", |requests| requests.iter().any(patched));
    assert_eq!(server.events().len(), 4);
    second.stop().await.unwrap();

    let (mut cluster, mut own) = (BTreeSet::new(), BTreeSet::new());
    for object in manifest("rbac.yaml") {
        match object["kind"].as_str().unwrap() {
            "ClusterRole" => {
                let role: ClusterRole = serde_json::from_value(object).unwrap();
                cluster.extend(rights(&role.rules.unwrap()));
            }
            "Role" => {
                let role: Role = serde_json::from_value(object).unwrap();
                own.extend(rights(&role.rules.unwrap()));
            }
            _ => {}
        }
    }
    let (mut cluster_needed, mut own_needed) = (BTreeSet::new(), BTreeSet::new());
    for request in server.requests() {
        match needed(&request) {
            (true, right) => own_needed.insert(right),
            (false, right) => cluster_needed.insert(right),
        };
    }
    assert_eq!(cluster, cluster_needed);
    assert_eq!(own, own_needed);
}

#[test]
fn the_deployment_is_one_that_kubernetes_knows_with_settings_that_the_controller_knows() {
    let object = manifest("deployment.yaml").remove(0);
    let deployment: Deployment = serde_json::from_value(object.clone()).unwrap();
    // A field that the type does not know would be lost.
    let known = serde_json::to_value(&deployment).unwrap();
    assert_eq!(known, object);
    // With its ports on the host, a new pod can't run beside the old one on the same node.
    let spec = deployment.spec.unwrap();
    assert_eq!(object["spec"]["template"]["spec"]["hostNetwork"], true);
    let update = spec.strategy.unwrap().rolling_update.unwrap();
    assert_eq!(update.max_surge, Some(IntOrString::Int(0)));
    assert!(object["spec"]["template"]["spec"]["containers"][0]["readinessProbe"].is_object());
    let budget: PodDisruptionBudget =
        serde_json::from_value(manifest("budget.yaml").remove(0)).unwrap();
    assert_eq!(budget.spec.unwrap().selector, Some(spec.selector));
    let config = manifest("config.yaml").remove(0);
    let command = <podwire_controller::arguments::Arguments as clap::CommandFactory>::command();
    let variables: BTreeSet<_> = command
        .get_arguments()
        .filter_map(|it| it.get_env()?.to_str())
        .collect();
    for variable in config["data"].as_object().unwrap().keys() {
        assert!(variables.contains(&**variable), "{variable}");
    }
}
