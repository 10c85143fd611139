//! Objects that are not as Kubernetes' types have them.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::time::Duration;

use podwire_apiserver::event::{Poster, Source};
use podwire_apiserver::object::Object;
use podwire_apiserver::watch::{Selection, Watch};
use podwire_apiserver::{Access, Follow, Token, Unread};
use podwire_cluster::api::{EndpointSlice, NetworkPolicy, Node, Pod, Service};
use podwire_tests::apiserver::{ApiServer, service};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Every field below a value, as JSON pointers; of an array the first element.
fn paths(value: &Value, at: &str, found: &mut Vec<String>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(members) => members
            .iter()
            .map(|(name, child)| (name.replace('/', "~1"), child))
            .collect(),
        Value::Array(elements) => elements.iter().take(1).map(|it| ("0".into(), it)).collect(),
        _ => Vec::new(),
    };
    for (name, child) in children {
        let path = format!("{at}/{name}");
        paths(child, &path, found);
        found.push(path);
    }
}

fn with(object: &Value, path: &str, value: Option<Value>) -> Value {
    let mut object = object.clone();
    let (parent, name) = path.rsplit_once('/').unwrap();
    let parent = object.pointer_mut(parent).unwrap();
    match (parent, value) {
        (Value::Object(members), Some(value)) => {
            members.insert(name.replace("~1", "/"), value);
        }
        (Value::Object(members), None) => drop(members.remove(&name.replace("~1", "/"))),
        (Value::Array(elements), Some(value)) => elements[0] = value,
        (Value::Array(elements), None) => drop(elements.remove(0)),
        _ => unreachable!("{path}"),
    }
    object
}

/// Takes each field away, makes it null, and gives it another type; the latter alone may make an
/// object unreadable, and of the fields that are used alone.
fn check<K: Object>(mut object: Value, used: &[&str]) {
    object["metadata"] = json!({
        "name": "web", "namespace": "shop", "uid": "u1", "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 3,
        "labels": { "a": "b" }, "annotations": { "c/d": "e" }, "ownerReferences": [{ "uid": "x" }],
        "managedFields": [{ "time": "2026-01-01T00:00:00Z", "fieldsV1": { "f:spec": {} } }],
    });
    let of_metadata = [
        "/metadata",
        "/metadata/name",
        "/metadata/namespace",
        "/metadata/uid",
        "/metadata/resourceVersion",
        "/metadata/labels",
        "/metadata/labels/a",
        "/metadata/annotations",
        "/metadata/annotations/c~1d",
    ];
    let read = |object: Value| serde_json::from_value::<K>(object);
    read(object.clone()).unwrap();
    let mut all = Vec::new();
    paths(&object, "", &mut all);
    for path in used.iter().chain(&of_metadata) {
        assert!(all.iter().any(|it| it == path), "{path}");
    }
    for path in &all {
        let without = read(with(&object, path, None));
        assert!(without.is_ok(), "{} without {path}", K::KIND);
        let is_used = used.contains(&&**path) || of_metadata.contains(&&**path);
        // Elements of lists and maps have no default.
        let maps = ["labels/", "annotations/", "topology/"];
        let in_list = path.ends_with("/0") || maps.iter().any(|map| path.contains(map));
        if !in_list || !is_used {
            let null = read(with(&object, path, Some(Value::Null)));
            assert!(null.is_ok(), "{} with null {path}", K::KIND);
        }
        let odd = match object.pointer(path).unwrap() {
            Value::Object(_) | Value::Array(_) => json!("odd"),
            _ => json!({ "odd": [true] }),
        };
        let odd = read(with(&object, path, Some(odd)));
        assert_eq!(
            odd.is_err(),
            is_used,
            "{} with an odd {path}: {odd:?}",
            K::KIND
        );
    }
}

/// Of a policy each part counts for itself: what can be read of it must still isolate.
#[test]
fn a_policy_can_be_read_whatever_its_spec_contains() {
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "spec": {
            "podSelector": { "matchLabels": { "a": "b" }, "matchExpressions": [
                { "key": "a", "operator": "In", "values": ["b"] },
            ] },
            "policyTypes": ["Ingress"],
            "ingress": [{
                "from": [{ "ipBlock": { "cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"] } }],
                "ports": [{ "protocol": "TCP", "port": "web", "endPort": 81 }],
            }],
            "egress": [{ "to": [{ "podSelector": {}, "namespaceSelector": {} }] }],
        },
    });
    check::<NetworkPolicy>(policy, &[]);
}

#[test]
fn of_a_node_only_the_fields_that_are_used_matter() {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "spec": {
            "podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"], "taints": [{ "key": "a" }],
        },
        "status": {
            "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }],
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "x" }],
            "images": [{ "names": ["a"], "sizeBytes": 1 }], "nodeInfo": { "kernelVersion": "6" },
        },
    });
    check::<Node>(
        node,
        &[
            "/spec",
            "/spec/podCIDR",
            "/spec/podCIDRs",
            "/spec/podCIDRs/0",
            "/status",
            "/status/addresses",
            "/status/addresses/0",
            "/status/addresses/0/type",
            "/status/addresses/0/address",
            "/status/conditions",
            "/status/conditions/0",
            "/status/conditions/0/type",
            "/status/conditions/0/status",
        ],
    );
}

#[test]
fn of_a_pod_only_the_fields_that_are_used_matter() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "spec": { "nodeName": "a", "hostNetwork": false, "containers": [{
            "name": "x", "restartPolicy": "Always",
            "ports": [{ "name": "web", "containerPort": 80, "protocol": "TCP", "hostPort": 1 }],
        }] },
        "status": {
            "phase": "Running", "podIP": "10.0.0.3", "podIPs": [{ "ip": "10.0.0.3" }],
            "conditions": [{ "type": "Ready", "lastProbeTime": "x" }],
        },
    });
    check::<Pod>(
        pod,
        &[
            "/spec",
            "/spec/nodeName",
            "/spec/hostNetwork",
            "/spec/containers",
            "/spec/containers/0",
            "/spec/containers/0/restartPolicy",
            "/spec/containers/0/ports",
            "/spec/containers/0/ports/0",
            "/spec/containers/0/ports/0/name",
            "/spec/containers/0/ports/0/containerPort",
            "/spec/containers/0/ports/0/protocol",
            "/status",
            "/status/phase",
            "/status/podIP",
            "/status/podIPs",
            "/status/podIPs/0",
            "/status/podIPs/0/ip",
        ],
    );
}

#[test]
fn of_a_service_only_the_fields_that_are_used_matter() {
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
            "externalIPs": ["192.0.2.1"], "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 31000, "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4"], "loadBalancerSourceRanges": ["192.0.2.0/24"],
            "ports": [{ "name": "x", "nodePort": 30000, "port": 80, "protocol": "TCP",
                        "targetPort": 8080, "appProtocol": "http" }],
            "publishNotReadyAddresses": true, "selector": { "a": "b" },
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 10 } },
        },
        "status": {
            "conditions": [{ "type": "A", "status": "True", "lastTransitionTime": "x" }],
            "loadBalancer": { "ingress": [{ "ip": "203.0.113.1", "ipMode": "VIP", "hostname": "a",
                                            "ports": [{ "port": 80 }] }] },
        },
    });
    check::<Service>(
        service,
        &[
            "/spec",
            "/spec/clusterIP",
            "/spec/clusterIPs",
            "/spec/clusterIPs/0",
            "/spec/externalIPs",
            "/spec/externalIPs/0",
            "/spec/externalTrafficPolicy",
            "/spec/healthCheckNodePort",
            "/spec/internalTrafficPolicy",
            "/spec/loadBalancerSourceRanges",
            "/spec/loadBalancerSourceRanges/0",
            "/spec/ports",
            "/spec/ports/0",
            "/spec/ports/0/name",
            "/spec/ports/0/nodePort",
            "/spec/ports/0/port",
            "/spec/ports/0/protocol",
            "/spec/publishNotReadyAddresses",
            "/spec/sessionAffinity",
            "/spec/sessionAffinityConfig",
            "/spec/sessionAffinityConfig/clientIP",
            "/spec/sessionAffinityConfig/clientIP/timeoutSeconds",
            "/status",
            "/status/loadBalancer",
            "/status/loadBalancer/ingress",
            "/status/loadBalancer/ingress/0",
            "/status/loadBalancer/ingress/0/ip",
            "/status/loadBalancer/ingress/0/ipMode",
        ],
    );
}

#[test]
fn of_a_slice_only_the_fields_that_are_used_matter() {
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1beta1", "kind": "EndpointSlice", "addressType": "IPv4",
        "endpoints": [{
            "addresses": ["10.0.0.3"], "nodeName": "a", "zone": "z", "targetRef": { "kind": "Pod" },
            "conditions": { "ready": true, "serving": true, "terminating": false },
            "topology": { "kubernetes.io/hostname": "a" },
        }],
        "ports": [{ "name": "x", "port": 80, "protocol": "TCP", "appProtocol": "http" }],
    });
    check::<EndpointSlice>(
        slice,
        &[
            "/endpoints",
            "/endpoints/0",
            "/endpoints/0/addresses",
            "/endpoints/0/addresses/0",
            "/endpoints/0/nodeName",
            "/endpoints/0/conditions",
            "/endpoints/0/conditions/ready",
            "/endpoints/0/conditions/serving",
            "/endpoints/0/topology",
            "/endpoints/0/topology/kubernetes.io~1hostname",
            "/ports",
            "/ports/0",
            "/ports/0/name",
            "/ports/0/port",
            "/ports/0/protocol",
        ],
    );
}

/// A service whose ports have no form that one can read.
fn unreadable(name: &str) -> Value {
    let mut odd = service("default", name, "10.96.0.66", 80);
    odd["spec"]["ports"] = "all of them".into();
    odd
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_can_t_be_read_is_left_as_it_was_reported_once_and_holds_up_no_other() {
    let server = ApiServer::start();
    server.apply(unreadable("listed"));
    server.apply(service("default", "good", "10.96.0.10", 80));
    let access = Access::Server {
        url: server.url(),
        ca: None,
        token: Token::None,
    };
    let source = Source {
        component: "podwire-test",
        host: None,
    };
    let unread = Unread::posting(Poster::start(access.clone(), source));
    let (sender, mut changes) = mpsc::channel(16);
    let follow = Follow {
        name: |service| service.name.clone(),
        reduce: |service: &Service| Some(service.spec.cluster_ip.clone()),
        change: |name, ip: Option<String>| (name, ip.unwrap_or_else(|| "gone".to_owned())),
        unreadable: Some(|name, _| (name, "unreadable".to_owned())),
        listed: ("all".to_owned(), "listed".to_owned()),
        absent: None,
    };
    let events = Watch::new(access, Selection::default()).into_stream();
    tokio::spawn(follow.run(events, sender, unread.clone()));
    let mut next = async || {
        let change = tokio::time::timeout(Duration::from_secs(30), changes.recv()).await;
        let (name, what) = change.unwrap().unwrap();
        format!("{name} {what}")
    };
    assert_eq!(next().await, "good 10.96.0.10");
    assert_eq!(next().await, "listed unreadable");
    assert_eq!(next().await, "all listed");
    assert_eq!(unread.total(), 1);
    let posted = server.await_events("an Event", |events| !events.is_empty());
    assert_eq!(posted[0]["involvedObject"]["name"], "listed");
    assert_eq!(posted[0]["involvedObject"]["uid"], "uid-of-listed");
    let message = posted[0]["message"].as_str().unwrap();
    assert!(
        message.contains("Service default/listed can't be read"),
        "{message}"
    );

    // In the watch, before and after a good one, also after the server lists anew.
    server.apply(unreadable("good"));
    assert_eq!(next().await, "good unreadable");
    server.apply(unreadable("good"));
    server.apply(service("default", "other", "10.96.0.11", 80));
    assert_eq!(next().await, "other 10.96.0.11");
    server.delete_object("Service", "default", "listed");
    assert_eq!(next().await, "listed gone");
    server.compact();
    server.break_connections();
    assert_eq!(next().await, "other 10.96.0.11");
    server.apply(service("default", "good", "10.96.0.12", 80));
    assert_eq!(next().await, "good 10.96.0.12");
    assert_eq!(unread.total(), 0);
    assert_eq!(server.events().len(), 2);
}
