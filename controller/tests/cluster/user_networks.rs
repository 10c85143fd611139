//! UserDefinedNetwork and ClusterUserDefinedNetwork: the definitions that are made for them, their
//! conditions and finalizers.

use podwire_tests::apiserver::{ApiServer, pod};
use podwire_tests::ovn::Central;
use serde_json::{Value, json};

use crate::fixture::{Running, annotation, await_row, populate, populated};
use crate::networks::{ASKED, NETWORKS, await_event};

pub(crate) const FINALIZER: &str = "k8s.ovn.org/user-defined-network-protection";
pub(crate) const DEFINITION: &str = "NetworkAttachmentDefinition";
pub(crate) const OF_NAMESPACE: &str = "UserDefinedNetwork";
pub(crate) const OF_CLUSTER: &str = "ClusterUserDefinedNetwork";

/// The spec of a network of the topology Layer2.
pub(crate) fn layer2(subnet: &str) -> Value {
    json!({ "topology": "Layer2", "layer2": { "role": "Secondary", "subnets": [subnet] } })
}

/// A user's network in the namespace `shop`.
pub(crate) fn of_namespace(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "k8s.ovn.org/v1", "kind": OF_NAMESPACE,
        "metadata": { "name": name, "namespace": "shop", "uid": format!("uid-of-{name}") },
        "spec": spec,
    })
}

/// One for the namespaces of a team.
pub(crate) fn of_team(name: &str, team: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "k8s.ovn.org/v1", "kind": OF_CLUSTER,
        "metadata": { "name": name, "uid": format!("uid-of-{name}") },
        "spec": {
            "namespaceSelector": { "matchLabels": { "team": team } }, "network": spec,
        },
    })
}

pub(crate) fn namespace(name: &str, team: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": name, "uid": format!("uid-of-{name}"), "labels": { "team": team } },
    })
}

fn asking(namespace: &str, name: &str, networks: &str) -> Value {
    let asked = json!({ ASKED: networks });
    pod("node-a", namespace, name, &format!("uid-of-{name}"), asked)
}

/// A condition's status, reason and message.
pub(crate) fn condition<'a>(object: &'a Value, name: &str) -> Option<[&'a str; 3]> {
    let all = object["status"]["conditions"].as_array()?;
    let it = all.iter().find(|it| it["type"] == name)?;
    assert!(it["lastTransitionTime"].is_string(), "{it}");
    Some(["status", "reason", "message"].map(|field| it[field].as_str().unwrap()))
}

/// Waits until a condition has this status and reason, and its message has this part.
pub(crate) fn await_condition(
    server: &ApiServer,
    id: (&str, &str, &str),
    name: &str,
    (status, reason, part): (&str, &str, &str),
) -> Value {
    server.await_object(id, |object| {
        condition(object, name)
            .is_some_and(|it| it[..2] == [status, reason] && it[2].contains(part))
    })
}

pub(crate) fn is_made(server: &ApiServer, id: (&str, &str, &str)) -> Value {
    let reason = "NetworkAttachmentDefinitionCreated";
    await_condition(server, id, "NetworkCreated", ("True", reason, "created"));
    let name = "NetworkAllocationSucceeded";
    await_condition(server, id, name, ("True", name, "northbound"))
}

fn await_entry(server: &ApiServer, (namespace, name): (&str, &str), entry: &str) -> Value {
    let of = |pod: &Value| annotation(pod, NETWORKS).map(|it| it[entry].clone());
    let is_there = |pod: &Value| of(pod).is_some_and(|it| !it.is_null());
    of(&server.await_object(("Pod", namespace, name), is_there)).unwrap()
}

/// Without what a watch and a renewal of the lease ask.
fn writes(server: &ApiServer) -> Vec<String> {
    let all = server.requests();
    let all = all
        .iter()
        .filter(|it| it.method != "GET" && !it.path.contains("/leases"));
    all.map(|it| format!("{} {}", it.method, it.path)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_s_network_is_made_used_put_back_and_kept_while_pods_are_on_it() {
    let (central, server, mut controller) = populated().await;
    server.apply(namespace("shop", "a"));
    server.apply(of_namespace("blue", &layer2("10.1.0.0/24")));
    let blue = (OF_NAMESPACE, "shop", "blue");
    let object = is_made(&server, blue);
    assert_eq!(object["metadata"]["finalizers"], json!([FINALIZER]));
    let id = (DEFINITION, "shop", "blue");
    let made = server.await_object(id, |_| true);
    let owner = json!([{
        "apiVersion": "k8s.ovn.org/v1", "kind": OF_NAMESPACE, "name": "blue",
        "uid": "uid-of-blue", "controller": true,
    }]);
    assert_eq!(made["metadata"]["ownerReferences"], owner);
    assert_eq!(made["metadata"]["finalizers"], json!([FINALIZER]));
    assert_eq!(
        made["metadata"]["labels"],
        json!({ "k8s.ovn.org/user-defined-network": "" })
    );
    let switch = "shop_blue_ovn_layer2_switch";
    await_row(&central, "Logical_Switch", switch, true);
    server.apply(asking("shop", "web", "blue"));
    let entry = await_entry(&server, ("shop", "web"), "shop/blue");
    assert_eq!(entry["ip_address"], "10.1.0.1/24");

    // What is edited or removed by hand is put back, under the pod.
    let mut edited = made.clone();
    edited["spec"]["config"] = json!({ "type": "macvlan" }).to_string().into();
    edited["metadata"]["finalizers"] = json!([]);
    server.apply(edited);
    server.await_object(id, |it| {
        it["spec"] == made["spec"] && it["metadata"]["finalizers"] == json!([FINALIZER])
    });
    server.delete_object(DEFINITION, "shop", "blue");
    let again = server.await_object(id, |it| {
        it["metadata"]["uid"] != made["metadata"]["uid"] && it["spec"] == made["spec"]
    });
    assert_eq!(again["metadata"]["ownerReferences"], owner);
    assert_eq!(await_entry(&server, ("shop", "web"), "shop/blue"), entry);

    // A successor has nothing to do.
    controller.idle().await;
    is_made(&server, blue);
    controller.idle().await;
    controller.stop().await.unwrap();
    let before = writes(&server);
    let mut next = Running::start(&central, &server, &[]);
    let done = next.idle().await;
    assert_eq!((done.operations, done.writes), (0, 0));
    assert_eq!(writes(&server), before);

    // It stays while the pod is on it, and says so.
    server.delete_object(OF_NAMESPACE, "shop", "blue");
    let why = "pods use it: shop/web";
    await_condition(&server, blue, "NetworkCreated", ("False", "SyncError", why));
    await_event(&server, OF_NAMESPACE, "blue", why);
    assert_eq!(server.object(DEFINITION, "shop", "blue").unwrap(), again);
    server.delete("shop", "web");
    server.await_missing(id);
    server.await_missing(blue);
    await_row(&central, "Logical_Switch", switch, false);
    next.idle().await;
    next.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_of_the_cluster_has_a_definition_wherever_its_selector_says() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    server.apply(namespace("one", "a"));
    server.apply(namespace("two", "b"));
    let mut controller = Running::start(&central, &server, &[]);
    server.apply(of_team("blue", "a", &layer2("10.1.0.0/24")));
    let blue = (OF_CLUSTER, "", "blue");
    let created = ("True", "NetworkAttachmentDefinitionCreated");
    let in_following = |list: &str| {
        let part = format!("namespaces: [{list}]");
        await_condition(
            &server,
            blue,
            "NetworkCreated",
            (created.0, created.1, &part),
        );
    };
    in_following("one");
    server.apply(namespace("three", "a"));
    in_following("one, three");
    server.apply(namespace("two", "a"));
    in_following("one, three, two");
    is_made(&server, blue);
    // One network for all of them.
    server.apply(asking("one", "p", "blue"));
    server.apply(asking("two", "q", "blue"));
    let mut addresses = [("one", "p"), ("two", "q")].map(|(namespace, name)| {
        let entry = await_entry(&server, (namespace, name), &format!("{namespace}/blue"));
        entry["ip_address"].as_str().unwrap().to_owned()
    });
    addresses.sort();
    assert_eq!(addresses, ["10.1.0.1/24", "10.1.0.2/24"]);
    let switch = "cluster_udn_blue_ovn_layer2_switch";
    await_row(&central, "Logical_Switch", switch, true);
    controller.idle().await;
    controller.stop().await.unwrap();
    let mut next = Running::start(&central, &server, &[]);
    let done = next.idle().await;
    assert_eq!((done.operations, done.writes), (0, 0));
    // In one that is being deleted nothing can be made, and the others have theirs.
    let mut leaving = namespace("leaving", "a");
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    server.apply(leaving);
    server.apply(namespace("young", "a"));
    in_following("one, three, two, young");
    assert_eq!(server.object(DEFINITION, "leaving", "blue"), None);
    server.apply(namespace("young", "b"));
    server.await_missing((DEFINITION, "young", "blue"));
    // A namespace that leaves loses it, unless pods use it there.
    server.apply(namespace("three", "b"));
    server.await_missing((DEFINITION, "three", "blue"));
    in_following("one, two");
    server.apply(namespace("two", "b"));
    let why = "two/blue stays, although spec.namespaceSelector no longer selects the namespace: \
               pods use it: two/q";
    await_condition(&server, blue, "NetworkCreated", ("False", "SyncError", why));
    server.delete("two", "q");
    server.await_missing((DEFINITION, "two", "blue"));
    in_following("one");
    server.delete_object(OF_CLUSTER, "", "blue");
    server.delete("one", "p");
    server.await_missing(blue);
    server.await_missing((DEFINITION, "one", "blue"));
    await_row(&central, "Logical_Switch", switch, false);
    next.idle().await;
    next.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_podwire_can_t_make_and_what_others_made_is_said_and_left_alone() {
    let (_central, server, mut controller) = populated().await;
    server.apply(namespace("shop", "a"));
    let theirs = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": DEFINITION,
        "metadata": { "name": "taken", "namespace": "shop", "uid": "theirs" },
        "spec": { "config": r#"{"type":"macvlan"}"# },
    });
    server.apply(theirs.clone());
    server.apply(of_namespace("taken", &layer2("10.1.0.0/24")));
    let primary = json!({
        "topology": "Layer2",
        "layer2": {
            "role": "Primary", "subnets": ["10.2.0.0/24"], "joinSubnets": ["100.65.0.0/16"],
        },
    });
    server.apply(of_namespace("first", &primary));
    server.apply(of_team("routed", "a", &json!({ "topology": "Layer3" })));
    server.apply(of_namespace("odd", &json!({ "topology": 7 })));
    for (id, part) in [
        (
            (OF_NAMESPACE, "shop", "taken"),
            "shop/taken is somebody else's",
        ),
        (
            (OF_NAMESPACE, "shop", "first"),
            "spec.layer2.joinSubnets: they are not implemented",
        ),
        (
            (OF_CLUSTER, "", "routed"),
            "spec.network.layer3: the topology Layer3 needs it",
        ),
        ((OF_NAMESPACE, "shop", "odd"), "spec: invalid type"),
    ] {
        let object = await_condition(&server, id, "NetworkCreated", ("False", "SyncError", part));
        await_event(&server, id.0, id.2, part);
        let kept = json!([FINALIZER]);
        if id.2 == "taken" {
            server.await_object(id, |it| it["metadata"]["finalizers"] == kept);
        } else {
            assert_eq!(object["metadata"]["finalizers"], Value::Null);
            assert_eq!(server.object(DEFINITION, "shop", id.2), None);
        }
    }
    let is = server.object(DEFINITION, "shop", "taken").unwrap();
    assert_eq!(
        (&is["spec"], &is["metadata"]["uid"]),
        (&theirs["spec"], &json!("theirs"))
    );
    // It is the user's as soon as it is nobody else's.
    server.delete_object(DEFINITION, "shop", "taken");
    is_made(&server, (OF_NAMESPACE, "shop", "taken"));
    // Two networks of one name and shape exclude each other, and the later one says so.
    server.apply(of_team("taken", "a", &layer2("10.1.0.0/24")));
    let why = "NetworkAttachmentDefinition shop/taken is somebody else's";
    let id = (OF_CLUSTER, "", "taken");
    await_condition(&server, id, "NetworkCreated", ("False", "SyncError", why));
    controller.idle().await;
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_kinds_there_is_nothing_and_without_definitions_that_is_said() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    server.apply(namespace("shop", "a"));
    server.apply(of_namespace("blue", &layer2("10.1.0.0/24")));
    server.lacks("k8s.cni.cncf.io");
    let mut controller = Running::start(&central, &server, &[]);
    let why = "the API server has no NetworkAttachmentDefinition (k8s.cni.cncf.io/v1): install it";
    let blue = (OF_NAMESPACE, "shop", "blue");
    await_condition(&server, blue, "NetworkCreated", ("False", "SyncError", why));
    controller.idle().await;
    controller.stop().await.unwrap();
    server.lacks("k8s.ovn.org");
    let mut next = Running::start(&central, &server, &[]);
    let done = next.idle().await;
    assert_eq!((done.operations, done.writes), (0, 0));
    next.stop().await.unwrap();
}

/// A finalizer that somebody takes away lets the network go at once; its definition follows, when
/// no pod uses it.
#[tokio::test(flavor = "multi_thread")]
async fn the_definition_of_a_network_that_is_gone_goes_when_nobody_uses_it() {
    let (central, server, mut controller) = populated().await;
    server.apply(namespace("shop", "a"));
    server.apply(of_namespace("blue", &layer2("10.1.0.0/24")));
    server.apply(asking("shop", "web", "blue"));
    await_entry(&server, ("shop", "web"), "shop/blue");
    let mut object = is_made(&server, (OF_NAMESPACE, "shop", "blue"));
    controller.idle().await;
    controller.stop().await.unwrap();
    object["metadata"]["finalizers"] = json!([]);
    server.apply(object);
    server.delete_object(OF_NAMESPACE, "shop", "blue");
    let mut next = Running::start(&central, &server, &[]);
    let done = next.idle().await;
    assert_eq!((done.operations, done.writes), (0, 0));
    let id = (DEFINITION, "shop", "blue");
    assert!(server.object(id.0, id.1, id.2).is_some());
    server.delete("shop", "web");
    server.await_missing(id);
    await_row(
        &central,
        "Logical_Switch",
        "shop_blue_ovn_layer2_switch",
        false,
    );
    next.idle().await;
    next.stop().await.unwrap();
}
