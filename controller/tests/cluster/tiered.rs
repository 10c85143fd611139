//! Policies of the whole cluster: in force where OVN has tiers, from 23.06 on, and refused aloud
//! where it has none. `make test-versions` runs these with newer versions.

mod first_packet;
mod tools;

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use podwire_controller::cluster::Name;
use podwire_controller::cluster::policy::Direction;
use podwire_controller::cluster::tiered::CONDITION;
use podwire_controller::key::{Key, Of};
use podwire_controller::want::policy::{isolated_group, tiered_group};
use podwire_tests::apiserver::ApiServer;
use podwire_tests::ovn::Central;
use serde_json::{Value, json};

use crate::fixture::{PORTS, Running, await_row, names, ovsdb, populate, populated, soon};
use crate::flood::received;
use crate::members::ports_in;
use crate::packets::{Named, Network, ask};
use crate::policies::{TESTS, await_reach, connects, labelled, namespace, policy};

const KINDS: [(&str, &str, Of); 3] = [
    ("ClusterNetworkPolicy", "v1alpha2", Of::ClusterPolicy),
    ("AdminNetworkPolicy", "v1alpha1", Of::AdminPolicy),
    ("BaselineAdminNetworkPolicy", "v1alpha1", Of::BaselinePolicy),
];

/// Of one of [`KINDS`], for pods of all namespaces.
pub(crate) fn tiered(kind: &str, name: &str, spec: &Value) -> Value {
    let version = KINDS.iter().find(|it| it.0 == kind).unwrap().1;
    let mut whole = json!({ "subject": { "namespaces": {} }, "tier": "Admin", "priority": 10 });
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    json!({
        "apiVersion": format!("policy.networking.k8s.io/{version}"), "kind": kind,
        "metadata": { "name": name, "uid": format!("uid-of-{kind}-{name}") },
        "spec": whole,
        "status": { "conditions": [{ "type": "Other", "status": "True" }] },
    })
}

fn of_cluster(name: &str, spec: &Value) -> Value {
    tiered("ClusterNetworkPolicy", name, spec)
}

/// Nothing comes in from pods.
fn closed() -> Value {
    json!({ "ingress": [{ "action": "Deny", "from": [{ "namespaces": {} }] }] })
}

/// One of each kind.
pub(crate) fn apply_all(server: &ApiServer) {
    for (kind, ..) in KINDS {
        server.apply(tiered(kind, "default", &closed()));
    }
}

/// Whether the database has tiers: from OVN 23.06 on.
pub(crate) async fn has_tiers(central: &Central) -> bool {
    let ovsdb = ovsdb(central);
    ovsdb.synced(soon()).await.unwrap();
    ovsdb.read(|db| db.has_column("ACL", "tier"))
}

/// The controller's condition of an object, once it has this reason.
pub(crate) fn await_condition(
    server: &ApiServer,
    (kind, name): (&str, &str),
    reason: &str,
) -> Value {
    let own = |object: &Value| {
        let conditions = object["status"]["conditions"].as_array()?;
        let mut conditions = conditions.iter();
        conditions.find(|it| it["type"] == CONDITION).cloned()
    };
    let has = |it: &Value| own(it).is_some_and(|own| own["reason"] == reason);
    let object = server.await_object((kind, "", name), has);
    // Those of others stay.
    assert_eq!(object["status"]["conditions"][0]["type"], "Other");
    let condition = own(&object).unwrap();
    assert!(condition["lastTransitionTime"].is_string());
    condition
}

fn told(events: &[Value], kind: &str) -> usize {
    let own = events
        .iter()
        .filter(|it| it["involvedObject"]["kind"] == kind);
    own.count()
}

/// That of the ClusterNetworkPolicy.
fn default_group() -> Name {
    let key = Key::named(Of::ClusterPolicy, "default".into());
    tiered_group(&key, "uid-of-ClusterNetworkPolicy-default")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_of_the_cluster_is_applied_or_refused_by_event_and_condition() {
    let (central, server) = (Central::start(), ApiServer::start());
    let has_tiers = has_tiers(&central).await;
    populate(&server);
    server.apply(namespace("default", json!({})));
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    apply_all(&server);
    server.apply(policy("default", "deny", json!({ "podSelector": {} })));
    let (reason, status) = match has_tiers {
        true => ("Applied", "True"),
        false => ("OVNTooOld", "False"),
    };
    for (kind, _, of) in KINDS {
        let condition = await_condition(&server, (kind, "default"), reason);
        assert_eq!(condition["status"], status, "{condition}");
        let group = tiered_group(
            &Key::named(of, "default".into()),
            &format!("uid-of-{kind}-default"),
        );
        match has_tiers {
            true => {
                let wanted = BTreeSet::from(["default_db", "default_web"].map(str::to_owned));
                assert_eq!(ports_in(&central, &group), wanted, "{kind}");
                assert_eq!(told(&server.events(), kind), 0);
            }
            false => {
                let message = condition["message"].as_str().unwrap();
                assert!(message.contains("OVN 23.06"), "{message}");
                server.await_events("the refusal", |events| told(events, kind) == 1);
                assert!(!names(&central, "Port_Group").contains(&group.to_string()));
            }
        }
    }
    let group = isolated_group("default", Direction::Ingress);
    await_row(&central, "Port_Group", &group, true);
    controller.idle().await;
    controller.stop().await.unwrap();
    let mut controller = Running::start(&central, &server, &[]);
    let compared = controller.idle().await;
    // What is refused is said again.
    let writes = if has_tiers { 0 } else { KINDS.len() as u64 };
    assert_eq!((compared.operations, compared.writes), (0, writes));
    for (kind, ..) in KINDS {
        server.delete_object(kind, "", "default");
    }
    for (kind, _, of) in KINDS {
        let group = tiered_group(
            &Key::named(of, "default".into()),
            &format!("uid-of-{kind}-default"),
        );
        await_row(&central, "Port_Group", &group, false);
        assert!(told(&server.events(), kind) <= 1, "told twice");
    }
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_in_a_policy_of_the_cluster_is_told_by_its_field() {
    let (central, server, controller) = populated().await;
    if has_tiers(&central).await {
        server.apply(of_cluster("range", &json!({ "priority": 1001 })));
        let condition =
            await_condition(&server, ("ClusterNetworkPolicy", "range"), "PolicyMistake");
        assert_eq!(condition["status"], "False");
        let message = condition["message"].as_str().unwrap();
        assert!(message.contains("spec.priority: 1001 is not"), "{message}");

        let unknown = json!({ "egress": [{ "action": "Pass", "to": [{ "nodes": {} }] }] });
        server.apply(of_cluster("unknown", &unknown));
        let of = ("ClusterNetworkPolicy", "unknown");
        let condition = await_condition(&server, of, "PolicyMistake");
        assert_eq!(condition["status"], "True");
        let message = condition["message"].as_str().unwrap();
        assert!(
            message.contains("spec.egress[0].to[0]: none of namespaces, pods and networks is set")
                && message.contains("the rule denies everything"),
            "{message}"
        );
        let events = server.await_events("both", |events| events.len() == 2);
        assert!(events.iter().all(|it| it["reason"] == "PolicyMistake"));
        server.apply(of_cluster("unknown", &closed()));
        await_condition(&server, of, "Applied");
    }
    controller.stop().await.unwrap();
}

/// Only with these policies: what OVN needs to follow connections must come from them.
#[tokio::test(flavor = "multi_thread")]
async fn policies_of_the_cluster_decide_before_and_after_those_of_namespaces() {
    let (network, mut controller) = Network::start(&[]);
    if !has_tiers(&network.central).await {
        return controller.stop().await.unwrap();
    }
    let agents = network.start_agents();
    let server = &network.server;
    server.apply(namespace(TESTS, json!({})));
    let (web, web_address) = network.labelled_pod(0, "web", "web");
    let (near, _) = network.labelled_pod(0, "near", "near");
    let (far, far_address) = network.labelled_pod(1, "far", "far");
    let named = [
        Named::start(web.place(), web_address, "web"),
        Named::start(far.place(), far_address, "far"),
    ];
    let to_web = SocketAddr::new(web_address, 8080);
    let to_far = SocketAddr::new(far_address, 8080);
    await_reach(far.place(), to_web, true);
    let pods =
        |app: &str| json!({ "pods": { "namespaceSelector": {}, "podSelector": labelled(app) } });
    let web_alone = |rules: Value| {
        let mut spec = rules;
        spec["subject"] = pods("web");
        spec
    };
    let from = |action: &str, app: &str| json!({ "action": action, "from": [pods(app)] });

    // Denied, in both directions of nodes; replies to what it asks come back.
    server.apply(of_cluster("deny", &web_alone(closed())));
    for client in [&near, &far] {
        await_reach(client.place(), to_web, false);
    }
    assert_eq!(ask(web.place(), to_far).as_deref(), Ok("far"));
    let out = json!({ "priority": 11, "egress": [
        { "action": "Deny", "to": [{ "networks": ["10.244.0.0/16"] }] },
    ] });
    server.apply(of_cluster("out", &web_alone(out)));
    await_reach(web.place(), to_far, false);

    // Before the policy of the namespace, which denies.
    server.apply(policy(
        TESTS,
        "deny",
        json!({ "podSelector": labelled("web") }),
    ));
    let first = json!({ "priority": 9, "ingress": [from("Accept", "near"), from("Pass", "far")] });
    server.apply(of_cluster("first", &web_alone(first)));
    // Its replies pass, though what it sends by itself does not.
    await_reach(near.place(), to_web, true);
    assert_eq!(ask(near.place(), to_web).as_deref(), Ok("web"));
    assert!(!connects(far.place(), to_web));
    assert!(!connects(web.place(), to_far));

    // Passed on: what it allows passes, though the next policy of the cluster denies.
    let allow = json!({ "podSelector": labelled("web"), "ingress": [
        { "from": [{ "podSelector": labelled("far") }], "ports": [{ "port": "web" }] },
    ] });
    server.apply(policy(TESTS, "deny", allow));
    await_reach(far.place(), to_web, true);
    let explain = |from: &str| {
        let question = [
            "explain",
            "pod",
            from,
            "--to",
            "tests/web",
            "--port",
            "8080",
        ];
        crate::tools::ask(&network.central, server, &question)
    };
    network.central.sync();
    let (arrives, text) = explain("tests/near");
    assert!(
        arrives && text.contains("allowed by rule 0 of ClusterNetworkPolicy first (tier Admin)\n"),
        "{text}"
    );
    let (arrives, text) = explain("tests/far");
    assert!(
        arrives
            && text.contains(
                "allowed by rule 0 of policy deny; passed on by rule 1 of ClusterNetworkPolicy \
                 first (tier Admin)\n"
            ),
        "{text}"
    );

    // After it: what no policy of the namespace decides, and nothing else.
    for name in ["deny", "out", "first"] {
        server.delete_object("ClusterNetworkPolicy", "", name);
    }
    let mut last = web_alone(closed());
    last["tier"] = "Baseline".into();
    server.apply(of_cluster("last", &last));
    await_reach(near.place(), to_web, false);
    assert!(connects(far.place(), to_web));
    server.delete_object("NetworkPolicy", TESTS, "deny");
    await_reach(far.place(), to_web, false);
    network.central.sync();
    let (arrives, text) = explain("tests/far");
    assert!(
        !arrives
            && text.contains("denied by rule 0 of ClusterNetworkPolicy last (tier Baseline)\n"),
        "{text}"
    );

    // The pod's own node always reaches it, a rule that denies everything or not.
    let unknown = json!({ "ingress": [{ "action": "Deny", "from": [{ "unknown": {} }] }] });
    server.apply(of_cluster("unknown", &web_alone(unknown)));
    controller.idle().await;
    network.central.sync();
    let enters = |from: &str| network.enters("web", web_address, from);
    assert_eq!(["10.244.0.2", "192.0.2.1"].map(enters), [true, false]);
    drop((named, agents));
    controller.stop().await.unwrap();
}

/// Rows of a controller that knew no tiers, or of an OVN that had none, are in tier 0.
#[tokio::test(flavor = "multi_thread")]
async fn rows_without_a_tier_get_theirs_and_nothing_is_open_meanwhile() {
    let (network, mut controller) = Network::start(&[]);
    if !has_tiers(&network.central).await {
        return controller.stop().await.unwrap();
    }
    let agents = network.start_agents();
    let server = &network.server;
    let (web, address) = network.labelled_pod(0, "web", "web");
    let (near, _) = network.labelled_pod(0, "near", "near");
    let (far, _) = network.labelled_pod(1, "far", "far");
    let named = Named::start(web.place(), address, "web");
    let to_web = SocketAddr::new(address, 8080);
    await_reach(far.place(), to_web, true);
    let allow = json!({ "podSelector": labelled("web"), "ingress": [
        { "from": [{ "podSelector": labelled("near") }] },
    ] });
    server.apply(policy(TESTS, "allow", allow));
    await_reach(far.place(), to_web, false);
    assert_eq!(ask(near.place(), to_web).as_deref(), Ok("web"));
    controller.idle().await;
    controller.stop().await.unwrap();

    let northbound = network.central.northbound();
    let tiers = || -> BTreeSet<i64> {
        let acls = northbound.rows("ACL").unwrap();
        let policies = acls.iter().filter(|acl| {
            let owner = acl["external_ids"]["k8s.ovn.org/owner-type"].as_str();
            owner.is_some_and(|owner| owner != "Cluster")
        });
        policies.map(|acl| acl["tier"].as_i64().unwrap()).collect()
    };
    assert_eq!(tiers(), BTreeSet::from([2]));
    let none = json!({ "tier": 0 });
    let all = json!({ "op": "update", "table": "ACL", "where": [], "row": none });
    northbound.transact(&[all]).unwrap();
    network.central.sync();
    let before = received(&web);
    let flood = AtomicBool::new(true);
    let mut controller = std::thread::scope(|scope| {
        scope.spawn(|| {
            let socket = far.place().run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
            while flood.load(Ordering::Relaxed) {
                let _ = socket.send_to(b"flood", (address, 9));
            }
        });
        let mut controller = Running::start(&network.central, server, &[]);
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(controller.idle());
        });
        network.central.sync();
        flood.store(false, Ordering::Relaxed);
        controller
    });
    assert_eq!(received(&web), before, "something came through");
    assert_eq!(tiers(), BTreeSet::from([2]));
    assert_eq!(ask(near.place(), to_web).as_deref(), Ok("web"));
    assert!(!connects(far.place(), to_web));
    drop((named, agents));
    controller.idle().await;
    controller.stop().await.unwrap();
}

/// Each kind's list is answered in its turn: no port is there before all are.
#[tokio::test(flavor = "multi_thread")]
async fn no_port_is_made_before_policies_of_the_cluster_are_listed() {
    for kind in ["clusternetworkpolicies", "adminnetworkpolicies"] {
        let (central, server) = (Central::start(), ApiServer::start());
        server.withhold(Some(kind));
        populate(&server);
        server.apply(namespace("default", json!({})));
        apply_all(&server);
        let mut controller = Running::start(&central, &server, &[]);
        await_row(&central, "Logical_Switch_Port", "stor-node-a", true);
        let balancer = "Service_default/front_TCP_cluster";
        await_row(&central, "Load_Balancer", balancer, true);
        let ports = names(&central, "Logical_Switch_Port");
        assert!(
            !ports.contains(&"default_web".to_owned()),
            "{kind}: {ports:?}"
        );
        server.withhold(None);
        controller.idle().await;
        if has_tiers(&central).await {
            let group = default_group();
            assert_eq!(ports_in(&central, &group).len(), 2, "{kind}");
        }
        controller.stop().await.unwrap();
    }
}

/// Whether a policy is for a pod depends on its namespace, which another watch tells of.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_has_no_port_before_its_namespace_is_known_that_a_policy_may_select() {
    let (central, server, mut controller) = populated().await;
    if has_tiers(&central).await {
        await_row(&central, "Logical_Switch_Port", "default_web", true);
        apply_all(&server);
        await_row(&central, "Logical_Switch_Port", "default_web", false);
        let group = default_group();
        // The namespace comes by another watch, which may be the faster one.
        await_row(&central, "Port_Group", &group, true);
        server.apply(namespace("default", json!({})));
        await_row(&central, "Logical_Switch_Port", "default_web", true);
        assert!(ports_in(&central, &group).contains("default_web"));
        for (kind, ..) in KINDS {
            server.delete_object(kind, "", "default");
        }
        server.delete_object("Namespace", "", "default");
        controller.idle().await;
        await_row(&central, "Logical_Switch_Port", "default_web", true);
    }
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_without_policies_of_the_cluster_is_served() {
    let (central, server) = (Central::start(), ApiServer::start());
    server.lacks("policy.networking.k8s.io");
    populate(&server);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    for port in PORTS {
        await_row(&central, "Logical_Switch_Port", port, true);
    }
    controller.stop().await.unwrap();
}
