//! NetworkPolicies: rows of their own, and pods that are members of groups from their first row on.

use std::collections::BTreeSet;
use std::fs;

use podwire_controller::cluster::policy::Direction;
use podwire_controller::run::Progress;
use podwire_controller::want::policy::{isolated_group, policy_group};
use podwire_tests::apiserver::{ApiServer, node, pod};
use podwire_tests::ovn::Central;
use serde_json::{Value, json};

use crate::fixture::{Running, await_network, await_row, names, pod_of, populated};
use crate::policies::{self, namespace};

/// No traffic to the pods of the namespace `default`, except from those with a label.
fn policy(name: &str, from: &str) -> Value {
    let peer = json!({ "podSelector": { "matchLabels": { "app": from } } });
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-of-{name}") },
        "spec": {
            "podSelector": {},
            "policyTypes": ["Ingress"],
            "ingress": [{ "from": [peer] }],
        },
    })
}

fn labelled(name: &str, app: &str) -> Value {
    let mut pod = pod_of("node-a", name);
    pod["metadata"]["labels"] = json!({ "app": app });
    pod
}

pub(crate) fn atoms(value: &Value) -> BTreeSet<String> {
    let list = value.as_array().into_iter().flatten();
    let all = list.chain(value.is_string().then_some(value));
    all.filter_map(|it| it.as_str().map(str::to_owned))
        .collect()
}

/// The names of the ports in a port group.
pub(crate) fn ports_in(central: &Central, group: &str) -> BTreeSet<String> {
    let northbound = central.northbound();
    let groups = northbound.rows("Port_Group").unwrap();
    let group = groups.iter().find(|row| row["name"] == group);
    let members = group
        .map(|row| row["ports"].to_string())
        .unwrap_or_default();
    let ports = northbound.rows("Logical_Switch_Port").unwrap();
    let own = ports
        .iter()
        .filter(|row| members.contains(row["_uuid"].to_string().trim_matches(['[', ']'])));
    own.map(|row| row["name"].as_str().unwrap().to_owned())
        .collect()
}

/// The addresses in all sets of pods.
fn addresses(central: &Central) -> BTreeSet<String> {
    let sets = central.northbound().rows("Address_Set").unwrap();
    let is_peers = |ids: &Value| ids["k8s.ovn.org/owner-type"] == "PodSelector";
    let own = sets.iter().filter(|row| is_peers(&row["external_ids"]));
    own.flat_map(|row| atoms(&row["addresses"])).collect()
}

fn isolated() -> String {
    isolated_group("default", Direction::Ingress).to_string()
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

/// Three pods, of which `client` alone may reach the others.
async fn isolating() -> (Central, ApiServer, Running) {
    let (central, server, mut controller) = populated().await;
    server.apply(policy("closed", "client"));
    await_row(&central, "Port_Group", &isolated(), true);
    server.apply(labelled("client", "client"));
    await_network(&server, "default", "client");
    controller.idle().await;
    (central, server, controller)
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_members_as_long_as_they_and_the_policy_exist() {
    let (central, server, mut controller) = isolating().await;
    assert_eq!(
        ports_in(&central, &isolated()),
        set(["default_client", "default_db", "default_web"])
    );
    assert_eq!(addresses(&central), set(["10.244.0.4"]));

    // Another label; a pod that ends; a policy that ends.
    let network = server.object("Pod", "default", "client").unwrap();
    let mut relabelled = network.clone();
    relabelled["metadata"]["labels"] = json!({ "app": "other" });
    server.apply(relabelled);
    server.apply(labelled("late", "client"));
    await_network(&server, "default", "late");
    controller.idle().await;
    assert_eq!(addresses(&central), set(["10.244.0.5"]));
    server.delete("default", "late");
    await_row(&central, "Logical_Switch_Port", "default_late", false);
    assert_eq!(addresses(&central), set([]));
    server.delete_object("NetworkPolicy", "default", "closed");
    await_row(&central, "Port_Group", &isolated(), false);
    controller.idle().await;
    assert_eq!(names(&central, "ACL"), <[String; 0]>::default());
    controller.stop().await.unwrap();

    let mut controller = Running::start(&central, &server, &[]);
    assert_eq!(controller.idle().await.operations, 0);
    controller.stop().await.unwrap();
}

/// Read from the database's own log, which has one record for each transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_s_port_and_its_places_in_groups_are_one_transaction() {
    let (central, server, controller) = isolating().await;
    for number in 0..20 {
        server.apply(labelled(&format!("pod-{number}"), "client"));
    }
    await_network(&server, "default", "pod-19");
    controller.stop().await.unwrap();
    let log = fs::read_to_string(central.machine().path("/run/ovn/ovnnb_db.db")).unwrap();
    let records = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut made = 0;
    for record in records {
        let inserted = record["Logical_Switch_Port"].as_object();
        let pods = inserted.into_iter().flatten().filter(|(_, row)| {
            let name = row["name"].as_str();
            name.is_some_and(|name| name.starts_with("default_pod-"))
        });
        for (uuid, row) in pods {
            let address = row["addresses"]
                .as_str()
                .unwrap()
                .split(' ')
                .nth(1)
                .unwrap();
            let groups = record["Port_Group"].to_string();
            assert!(groups.contains(uuid), "{record}");
            let sets = record["Address_Set"].to_string();
            assert!(sets.contains(&format!("\"{address}\"")), "{record}");
            made += 1;
        }
    }
    assert_eq!(made, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_others_add_or_remove_are_put_right_also_at_a_start() {
    let (central, server, mut controller) = isolating().await;
    let groups = (ports_in(&central, &isolated()), addresses(&central));
    let northbound = central.northbound();
    let change = |mutator: &str, address: &str| {
        let of_pods = json!([[
            "external_ids",
            "includes",
            ["map", [["k8s.ovn.org/owner-type", "PodSelector"]]]
        ]]);
        let v4 = json!(["addresses", mutator, address]);
        json!({ "op": "mutate", "table": "Address_Set", "where": of_pods, "mutations": [v4] })
    };
    let emptied = json!({
        "op": "update", "table": "Port_Group", "where": [["name", "==", isolated()]],
        "row": { "ports": ["set", []] },
    });
    let is_right = || (ports_in(&central, &isolated()), addresses(&central)) == groups;
    let before = controller.idle().await.operations;
    northbound
        .transact(&[
            change("delete", "10.244.0.4"),
            change("insert", "10.9.9.9"),
            emptied.clone(),
        ])
        .unwrap();
    controller
        .until(|progress| progress.operations > before && progress.is_idle && is_right())
        .await;
    controller.stop().await.unwrap();

    // Nobody leads. The pods are gone with their rows, but not their places.
    northbound
        .transact(&[change("insert", "10.9.9.9"), emptied])
        .unwrap();
    server.delete("default", "client");
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    assert_eq!(
        ports_in(&central, &isolated()),
        set(["default_db", "default_web"])
    );
    assert_eq!(addresses(&central), set([]));
    controller.stop().await.unwrap();
    let mut controller = Running::start(&central, &server, &[]);
    assert_eq!(controller.idle().await.operations, 0);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_or_a_policy_that_can_not_be_read_stays_closed() {
    let (central, server, controller) = isolating().await;
    let groups = (ports_in(&central, &isolated()), addresses(&central));
    controller.stop().await.unwrap();
    for (kind, name) in [("Pod", "client"), ("NetworkPolicy", "closed")] {
        let mut object = server.object(kind, "default", name).unwrap();
        object["metadata"]["labels"] = 5.into();
        server.apply(object);
        let mut controller = Running::start(&central, &server, &[]);
        controller.idle().await;
        let joins = format!("joins-after-{}", kind.to_lowercase());
        server.apply(node(&joins, "192.0.2.3"));
        await_row(&central, "Logical_Switch", &joins, true);
        controller.idle().await;
        assert_eq!(
            (ports_in(&central, &isolated()), addresses(&central)),
            groups
        );
        controller.stop().await.unwrap();
    }
}

/// As after a transaction that failed: the database lacks the policy's own group for a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_pod_keeps_its_port_and_its_places_while_a_group_of_its_can_t_be_made() {
    let (central, server, controller) = isolating().await;
    let ports = || {
        let rows = central.northbound().rows("Logical_Switch_Port").unwrap();
        let own = rows.iter().filter(|row| {
            row["name"]
                .as_str()
                .is_some_and(|name| name.starts_with("default_"))
        });
        own.map(|row| row["_uuid"].to_string())
            .collect::<BTreeSet<_>>()
    };
    let (before, groups) = (
        ports(),
        (ports_in(&central, &isolated()), addresses(&central)),
    );
    // Somebody else's row has the group's name.
    let group = policy_group("default", "late", "uid-of-late");
    central.nbctl(format!("pg-add {group}"));
    let told = |events: &[Value]| {
        let names = events
            .iter()
            .map(|it| it["involvedObject"]["name"].as_str());
        let names: Vec<_> = names.collect();
        ["late", "web"].iter().all(|it| names.contains(&Some(it)))
    };
    server.apply(policy("late", "client"));
    server.await_events("conflicts", told);
    assert_eq!(ports(), before);
    controller.stop().await.unwrap();
    // A leader that begins knows of no member.
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    server.apply(node("node-c", "192.0.2.3"));
    await_row(&central, "Logical_Switch", "node-c", true);
    controller.idle().await;
    assert_eq!(ports(), before);
    assert_eq!(
        (ports_in(&central, &isolated()), addresses(&central)),
        groups
    );

    central.nbctl(format!("pg-del {group}"));
    let all = set(["default_client", "default_db", "default_web"]);
    controller
        .until(|_| ports_in(&central, &group) == all)
        .await;
    assert_eq!(ports(), before);
    controller.stop().await.unwrap();
}

/// Sets are made with their members: neither is each pod a transaction, nor each place in a set an
/// operation.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_with_many_sets_is_made_by_operations_for_each_set_not_for_each_pod() {
    const PODS: usize = 40;
    const SETS: usize = 200;
    const POLICIES: usize = 3;
    let (central, server, mut controller) = populated().await;
    server.apply(namespace("default", json!({})));
    for number in 0..PODS {
        server.apply(pod_of("node-a", &format!("pod-{number}")));
    }
    await_network(&server, "default", &format!("pod-{}", PODS - 1));
    let before = controller.idle().await.operations;
    // One rule more than a policy may have sets.
    for number in 0..POLICIES {
        let to = |set: usize| {
            let label = json!({ "key": format!("k{number}-{set}"), "operator": "DoesNotExist" });
            let selector = json!({ "matchExpressions": [label] });
            json!({ "to": [{ "namespaceSelector": selector }] })
        };
        let rules: Vec<Value> = (0..=SETS).map(to).collect();
        let spec = json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": rules });
        server.apply(policies::policy("empty", &format!("many-{number}"), spec));
    }
    let events = server.await_events("mistakes", |events| events.len() == POLICIES);
    let told = "spec.egress: with it the rules name 201 different sets of pods, 200 at most";
    for event in events {
        let message = event["message"].as_str().unwrap();
        assert!(message.contains(told), "{message}");
    }
    let is_idle = |it: &Progress| it.is_idle && it.operations > before;
    let made = controller.until(is_idle).await.operations - before;
    let sets = central.northbound().rows("Address_Set").unwrap();
    let full = sets
        .iter()
        .filter(|set| atoms(&set["addresses"]).len() == PODS + 2);
    assert_eq!(full.count(), SETS * POLICIES);
    // Two rows of each set, the members of one, an ACL.
    let most = (5 * SETS * POLICIES) as u64;
    assert!(made < most, "{made} operations");

    server.apply(pod_of("node-b", "late"));
    await_network(&server, "default", "late");
    controller.idle().await;
    let sets = central.northbound().rows("Address_Set").unwrap();
    let full = sets
        .iter()
        .filter(|set| atoms(&set["addresses"]).len() == PODS + 3);
    assert_eq!(full.count(), SETS * POLICIES);
    controller.stop().await.unwrap();
}

/// Two names with one hash, FNV-1a of 64 bits, found in two minutes.
const FORGED: [&str; 2] = ["yegz6rpavyp2n", "jeqkxcie5ecqa"];

#[tokio::test(flavor = "multi_thread")]
async fn no_pod_is_in_the_groups_of_a_namespace_whose_name_was_chosen_for_its_hash() {
    let [forged, victim] = FORGED;
    let [group, same] = FORGED.map(|name| isolated_group(name, Direction::Ingress));
    assert_eq!(group, same);
    let (central, server, mut controller) = populated().await;
    server.apply(namespace(forged, json!({})));
    await_row(&central, "Port_Group", &group, true);
    server.apply(namespace(victim, json!({})));
    let in_victim = |name: &str| pod("node-a", victim, name, &format!("uid-of-{name}"), json!({}));
    server.apply(in_victim("early"));
    server.apply(policies::policy(
        victim,
        "closed",
        json!({ "podSelector": {} }),
    ));
    server.apply(in_victim("late"));
    let events = server.await_events("conflicts", |events| {
        let told = events
            .iter()
            .map(|it| it["involvedObject"]["kind"].as_str().unwrap());
        let told: Vec<_> = told.collect();
        ["Namespace", "Pod"].iter().all(|kind| told.contains(kind))
            && told.iter().filter(|kind| **kind == "Pod").count() == 2
    });
    let of_another = format!("that of namespace/{forged}, whose name has the same hash");
    for event in &events {
        let message = event["message"].as_str().unwrap();
        assert!(message.contains(&of_another), "{message}");
    }
    controller.idle().await;
    let ports = names(&central, "Logical_Switch_Port");
    assert!(!ports.iter().any(|it| it.starts_with(victim)), "{ports:?}");
    assert_eq!(ports_in(&central, &group), set([]));

    server.delete_object("Namespace", "", forged);
    let own = [format!("{victim}_early"), format!("{victim}_late")];
    let own = BTreeSet::from(own);
    controller
        .until(|_| ports_in(&central, &group) == own)
        .await;
    let drops = names(&central, "ACL");
    assert!(drops.contains(&format!("NP:{victim}:Ingress")), "{drops:?}");
    controller.stop().await.unwrap();
}
