//! Subnets of nodes: what exists is kept, whatever annotations and settings claim.

use podwire_controller::run::RunError;
use podwire_tests::apiserver::{ApiServer, node};
use podwire_tests::ovn::Central;
use serde_json::{Value, json};

use crate::fixture::{
    Running, annotation, await_network, await_row, column, pod_of, populate, populated,
};

const SUBNETS: &str = "k8s.ovn.org/node-subnets";

/// A node that claims a subnet, and was made at some time of 2026.
fn claiming(name: &str, made: &str, subnet: &str) -> Value {
    let mut node = node(name, "192.0.2.9");
    node["metadata"]["creationTimestamp"] = format!("2026-{made}T00:00:00Z").into();
    let subnets = json!({ "default": [subnet] }).to_string();
    node["metadata"]["annotations"][SUBNETS] = subnets.into();
    node
}

fn subnet(server: &ApiServer, name: &str) -> Option<Value> {
    let node = server.object("Node", "", name)?;
    Some(annotation(&node, SUBNETS)?["default"][0].clone())
}

/// The addresses of all logical ports.
fn addresses(central: &Central) -> Vec<(String, String)> {
    let rows = central.northbound().rows("Logical_Switch_Port").unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = rows
        .iter()
        .map(|row| (text(&row["name"]), text(&row["addresses"])));
    let mut all: Vec<_> = all.collect();
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn no_pod_is_renumbered_because_of_what_nodes_claim_while_nobody_leads() {
    let (central, server, controller) = populated().await;
    controller.stop().await.unwrap();
    let before = addresses(&central);
    let edit = |name: &str, subnets: Option<Value>| {
        let mut node = server.object("Node", "", name).unwrap();
        let annotations = node["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove(SUBNETS);
        annotations.extend(subnets.map(|it| (SUBNETS.to_owned(), it.to_string().into())));
        server.apply(node);
    };
    // An older one claims another's, and that one has forgotten its own.
    server.apply(claiming("a-older", "01-01", "10.244.1.0/24"));
    server.apply(claiming("a-other", "01-02", "10.244.0.0/24"));
    edit("node-b", Some(json!({ "default": "10.244.0.0/24" })));
    edit("node-a", None);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let after = addresses(&central);
    assert!(before.iter().all(|port| after.contains(port)), "{after:?}");
    let subnets = ["node-a", "node-b", "a-older", "a-other"].map(|name| subnet(&server, name));
    let expected = [
        "10.244.0.0/24",
        "10.244.1.0/24",
        "10.244.2.0/24",
        "10.244.3.0/24",
    ];
    assert_eq!(subnets, expected.map(|it| Some(json!(it))));
    let told: Vec<_> = server.events();
    let told = told
        .iter()
        .map(|event| event["involvedObject"]["name"].clone());
    let mut told: Vec<_> = told.collect();
    told.sort_by_key(ToString::to_string);
    assert_eq!(told, ["a-older", "a-other", "node-b"]);

    // The annotations and a row of each, removed.
    controller.stop().await.unwrap();
    edit("node-a", None);
    edit("node-b", None);
    central.nbctl("lrp-del rtos-node-a");
    central.nbctl("lr-route-del ovn_cluster_router");
    central.nbctl("--policy=src-ip lr-route-add ovn_cluster_router 10.244.0.0/24 10.244.0.2");
    let route = r#"external_ids:podwire.io/key="node/node-a""#;
    let routes = central
        .northbound()
        .rows("Logical_Router_Static_Route")
        .unwrap();
    let uuid = routes[0]["_uuid"].as_str().unwrap().to_owned();
    central.nbctl(["set", "Logical_Router_Static_Route", &uuid, route]);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    assert_eq!(addresses(&central), after);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_back_has_its_subnet_while_its_pods_exist() {
    let (central, server, mut controller) = populated().await;
    let before = addresses(&central);
    let of_a = server.object("Pod", "default", "web").unwrap();
    for is_led in [true, false] {
        server.delete_object("Node", "", "node-a");
        await_row(&central, "Logical_Switch", "node-a", false);
        if !is_led {
            // Nothing tells the next one but the pods.
            controller.idle().await;
            controller.stop().await.unwrap();
            controller = Running::start(&central, &server, &[]);
        }
        // It would be the first that is free.
        server.apply(node("between", "192.0.2.3"));
        await_row(&central, "Logical_Switch", "between", true);
        server.apply(node("node-a", "192.0.2.1"));
        await_row(&central, "Logical_Switch_Port", "default_web", true);
        controller.idle().await;
        let after = addresses(&central);
        assert!(before.iter().all(|port| after.contains(port)), "{after:?}");
        assert_eq!(server.object("Pod", "default", "web").unwrap(), of_a);
        let of_between = column(&central, "Logical_Switch", "between", "other_config");
        assert_eq!(of_between["subnet"], "10.244.2.0/24");
        server.delete_object("Node", "", "between");
        await_row(&central, "Logical_Switch", "between", false);
    }
    // When its pods are gone too, and their addresses have rested, it is free.
    server.delete_object("Node", "", "node-a");
    await_row(&central, "Logical_Switch", "node-a", false);
    server.delete("default", "web");
    controller
        .until(|progress| progress.pods == 1 && progress.is_idle && progress.retries == 0)
        .await;
    server.apply(node("between", "192.0.2.3"));
    let has_first = |node: &Value| {
        annotation(node, SUBNETS).is_some_and(|it| it["default"] == json!(["10.244.0.0/24"]))
    };
    server.await_object(("Node", "", "between"), has_first);
    controller.stop().await.unwrap();
}

/// What it ends with.
async fn refusal(central: &Central, server: &ApiServer, setting: &str) -> String {
    let flags = ["--cluster-subnets", setting];
    let ended = Running::start(central, server, &flags).end().await;
    let Err(error @ RunError::Contradiction(_)) = ended else {
        panic!("{ended:?}");
    };
    error.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_do_not_contain_what_nodes_have_are_refused_before_anything_is_written() {
    let (central, server, controller) = populated().await;
    controller.stop().await.unwrap();
    let state = || {
        let global = central.northbound().rows("NB_Global").unwrap();
        let lease = server.object("Lease", "podwire-system", "podwire-controller");
        let nodes = ["node-a", "node-b"].map(|name| server.object("Node", "", name));
        let epoch = global[0]["external_ids"]["podwire.io/epoch"].clone();
        (epoch, lease, nodes, addresses(&central))
    };
    let before = state();
    for setting in [
        "10.128.0.0/14/23",
        "10.244.1.0/24/26",
        "fd00::/48/64",
        "10.244.1.0/24/24,10.245.0.0/16/24,fd00::/48/64",
    ] {
        let told = refusal(&central, &server, setting).await;
        for part in [setting, "10.244.0.0/24", "node-a", "row rtos-node-a"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert_eq!(state(), before, "{setting}");
    }
    let told = refusal(&central, &server, "10.128.0.0/14/23").await;
    assert!(told.contains("nor those of 1 other node"), "{told}");

    // More networks and larger ones contain what is there.
    for setting in [
        "10.245.0.0/16/24,10.244.0.0/16/24",
        "10.240.0.0/12/24",
        "10.244.0.0/23/26",
    ] {
        let flags = ["--cluster-subnets", setting];
        let mut controller = Running::start(&central, &server, &flags);
        let compared = controller.idle().await;
        assert_eq!((compared.operations, compared.writes), (0, 0), "{setting}");
        controller.stop().await.unwrap();
    }
    // A family more is for the pods to come.
    let flags = ["--cluster-subnets", "10.244.0.0/16/24,fd00::/48/64"];
    let mut controller = Running::start(&central, &server, &flags);
    server.apply(pod_of("node-a", "a-late"));
    let entry = await_network(&server, "default", "a-late");
    assert_eq!(
        entry["ip_addresses"],
        json!(["10.244.0.68/24", "fd00::3/64"])
    );
    controller.idle().await;
    let entry = await_network(&server, "default", "web");
    assert_eq!(entry["ip_addresses"], json!(["10.244.0.3/24"]));
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_stood_by_with_settings_that_no_longer_fit_does_not_lead() {
    let (central, server) = (Central::start(), ApiServer::start());
    server.apply(node("node-a", "192.0.2.1"));
    let mut first = Running::start(&central, &server, &["--identity", "first"]);
    first.idle().await;
    let flags = [
        "--identity",
        "second",
        "--cluster-subnets",
        "10.244.0.0/24/24",
    ];
    let second = Running::start(&central, &server, &flags);
    server.await_requests("a watch of the lease", |requests| {
        let watches = requests.iter().filter(|it| it.is_watch());
        watches.filter(|it| it.path.ends_with("/leases")).count() > 0
    });
    server.apply(node("node-b", "192.0.2.2"));
    await_row(&central, "Logical_Switch", "node-b", true);
    first.idle().await;
    let before = addresses(&central);
    first.stop().await.unwrap();
    let ended = second.end().await;
    let Err(RunError::Contradiction(told)) = ended else {
        panic!("{ended:?}");
    };
    assert!(
        told.to_string()
            .contains("10.244.1.0/24, the subnet of node node-b"),
        "{told}"
    );
    assert_eq!(addresses(&central), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_claims_what_the_settings_do_not_contain_is_told_and_stops_no_other() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    server.apply(claiming("strange", "01-01", "10.9.0.0/24"));
    server.apply(pod_of("strange", "lost"));
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    await_network(&server, "default", "db");
    assert_eq!(subnet(&server, "strange"), Some(json!("10.9.0.0/24")));
    let told = server.await_events("a refusal", |events| !events.is_empty());
    assert_eq!(told[0]["involvedObject"]["name"], "strange");
    let message = told[0]["message"].as_str().unwrap();
    let named = "has 10.9.0.0/24, which is no part of --cluster-subnets 10.244.0.0/16/24";
    assert!(message.contains(named), "{message}");
    // Once somebody has removed it, it gets one as any other.
    server.apply(node("strange", "192.0.2.9"));
    await_network(&server, "default", "lost");
    controller.idle().await;
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn other_pod_cidrs_wait_until_no_pod_has_an_address_of_the_former() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    let assign = |name: &str, cidrs: Value| {
        let mut node = server.object("Node", "", name).unwrap();
        node["spec"]["podCIDRs"] = cidrs;
        server.apply(node);
    };
    assign("node-a", json!(["10.8.1.0/24"]));
    assign("node-b", json!(["10.8.2.0/24"]));
    let mut controller = Running::start(&central, &server, &["--use-pod-cidrs"]);
    controller.idle().await;
    // As after the node was deleted and has come back.
    assign("node-a", json!(["10.8.3.0/24"]));
    let told = server.await_events("a conflict", |events| !events.is_empty());
    assert_eq!(told[0]["involvedObject"]["name"], "node-a");
    let message = told[0]["message"].as_str().unwrap();
    assert!(
        message.contains("its pods have addresses of 10.8.1.0/24"),
        "{message}"
    );
    controller.stop().await.unwrap();
    assign("node-b", json!([]));
    let mut controller = Running::start(&central, &server, &["--use-pod-cidrs"]);
    let compared = controller.idle().await;
    assert_eq!(compared.operations, 0);
    let entry = await_network(&server, "default", "web");
    assert_eq!(entry["ip_address"], "10.8.1.3/24");
    server.delete("default", "web");
    let has_changed = |node: &Value| {
        annotation(node, SUBNETS).is_some_and(|it| it["default"] == json!(["10.8.3.0/24"]))
    };
    server.await_object(("Node", "", "node-a"), has_changed);
    assert_eq!(subnet(&server, "node-b"), Some(json!("10.8.2.0/24")));
    controller.stop().await.unwrap();
}
