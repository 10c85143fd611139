//! The groups of policies in the southbound database. ovn-northd 26.03 loses a group that is
//! deleted and made again before it looks: then ovn-controller leaves out the ACLs that name it.
//! `make test-versions` runs these with it.

use std::collections::BTreeSet;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwire_controller::key::{Key, Of};
use podwire_controller::run::Progress;
use podwire_controller::want::policy::{policy_group, tiered_group};
use podwire_tests::Row;
use podwire_tests::apiserver::{ApiServer, pod};
use podwire_tests::ovn::Central;
use serde_json::{Value, json};

use crate::fixture::{Running, await_row, populate};
use crate::policies::{labelled, namespace, policy};
use crate::tiered::{has_tiers, tiered};

/// How often each is done.
const TIMES: usize = 4;

/// The pod of the policies, with a port that it names. Its labels decide whether they select it.
fn server_pod(app: &str) -> Value {
    let mut object = pod("node-a", "default", "named", "uid-of-named", json!({}));
    object["metadata"]["labels"] = json!({ "app": app });
    object["spec"]["containers"] = json!([{
        "name": "one", "ports": [{ "name": "http", "containerPort": 8080 }],
    }]);
    object
}

/// What the logical flows name: port groups with @, sets of addresses with $.
fn named(flows: &[Row], sign: char) -> BTreeSet<String> {
    let matches = flows.iter().filter_map(|flow| flow["match"].as_str());
    let all = matches.flat_map(|text| text.split(sign).skip(1));
    let is_name = |it: &char| it.is_ascii_alphanumeric() || *it == '_';
    all.map(|text| text.chars().take_while(is_name).collect())
        .collect()
}

/// Applies objects while ovn-northd is busy, or removes the policy (null), and then looks whether
/// all that the logical flows name is there, and whether they name this group.
async fn while_northd_is_busy(
    (central, server, controller): (&Central, &ApiServer, &mut Running),
    steps: &[Value],
    (group, what): (&str, &str),
) {
    controller.idle().await;
    central.sync();
    let northd = Pid::from_raw(central.pids()[1].try_into().unwrap());
    kill(northd, Signal::SIGSTOP).unwrap();
    for step in steps {
        let before = controller.idle().await;
        match step.is_null() {
            true => server.delete_object("NetworkPolicy", "default", "again"),
            false => server.apply(step.clone()),
        }
        let is_done = |it: &Progress| it.is_idle && it.operations > before.operations;
        controller.until(is_done).await;
    }
    kill(northd, Signal::SIGCONT).unwrap();
    central.sync();
    let southbound = central.southbound();
    let flows = southbound.rows("Logical_Flow").unwrap();
    let names = |table: &str| -> BTreeSet<String> {
        let rows = southbound.rows(table).unwrap();
        let names = rows.iter().filter_map(|row| row["name"].as_str());
        // A port group has the number of its switch before its name.
        let own = |it: &str| {
            it.trim_start_matches(|it: char| it.is_ascii_digit() || it == '_')
                .to_owned()
        };
        names.map(own).collect()
    };
    let groups = named(&flows, '@');
    assert!(groups.contains(group), "{what}: no flow names {group}");
    let missing: Vec<_> = groups.difference(&names("Port_Group")).cloned().collect();
    assert!(missing.is_empty(), "{what}: groups {missing:?}");
    let sets = named(&flows, '$');
    let missing: Vec<_> = sets.difference(&names("Address_Set")).cloned().collect();
    assert!(missing.is_empty(), "{what}: sets {missing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_s_group_is_in_the_southbound_database_whatever_went_and_came_at_once() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    server.apply(namespace("default", json!({})));
    server.apply(server_pod("web"));
    let mut controller = Running::start(&central, &server, &[]);
    let of = |uid: &str, ports: Option<&Value>| {
        let ingress =
            ports.map(|it| json!({ "from": [{ "podSelector": {} }], "ports": [{ "port": it }] }));
        let ingress: Vec<Value> = ingress.into_iter().collect();
        let spec = json!({ "podSelector": labelled("web"), "ingress": ingress });
        let mut policy = policy("default", "again", spec);
        policy["metadata"]["uid"] = uid.into();
        policy
    };
    let group = |uid: &str| policy_group("default", "again", uid);
    for time in 0..TIMES {
        let uids = [0, 1, 2].map(|it| format!("uid-{time}-{it}"));
        for (ports, uids) in [json!("http"), json!(9090)].iter().zip(uids.windows(2)) {
            let [own, next] = uids else { unreachable!() };
            server.apply(of(own, Some(ports)));
            await_row(&central, "Port_Group", &group(own), true);
            let mut run = async |uid: &str, what: &str, steps: &[Value]| {
                let all = (&central, &server, &mut controller);
                while_northd_is_busy(all, steps, (&group(uid), what)).await;
            };
            let steps = [of(own, None), of(own, Some(ports))];
            run(own, "its last rule", &steps).await;
            let steps = [server_pod("other"), server_pod("web")];
            run(own, "its last pod", &steps).await;
            // As `kubectl replace --force` does.
            run(next, "itself", &[Value::Null, of(next, Some(ports))]).await;
        }
    }
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_a_policy_of_the_cluster_is_there_whatever_went_and_came_at_once() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    server.apply(namespace("default", json!({})));
    server.apply(server_pod("web"));
    let mut controller = Running::start(&central, &server, &[]);
    let of = |protocols: Option<&Value>| {
        let from = json!([{ "namespaces": {} }]);
        let rule = |it| json!({ "action": "Deny", "from": from, "protocols": [it] });
        let ingress: Vec<Value> = protocols.map(rule).into_iter().collect();
        let spec = json!({ "ingress": ingress });
        tiered("ClusterNetworkPolicy", "again", &spec)
    };
    let uid = "uid-of-ClusterNetworkPolicy-again";
    let group = tiered_group(&Key::named(Of::ClusterPolicy, "again".into()), uid);
    let by_name = json!({ "destinationNamedPort": "http" });
    let by_number = json!({ "tcp": { "destinationPort": { "number": 9090 } } });
    let times = if has_tiers(&central).await { TIMES } else { 0 };
    for _ in 0..times {
        for protocols in [&by_name, &by_number] {
            server.apply(of(Some(protocols)));
            await_row(&central, "Port_Group", &group, true);
            let all = (&central, &server, &mut controller);
            let steps = [of(None), of(Some(protocols))];
            while_northd_is_busy(all, &steps, (&group, "its last rule")).await;
        }
    }
    controller.stop().await.unwrap();
}
