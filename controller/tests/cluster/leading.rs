//! Who may write.

use podwire_controller::lease::begin_term;
use podwire_controller::run::RunError;
use podwire_tests::apiserver::{ApiServer, node, pod};
use podwire_tests::ovn::Central;
use serde_json::json;

use crate::fixture::{Running, await_network, await_row, names, ovsdb, soon};

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_replaced_writes_nothing_and_ends() {
    let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
    server.apply(node("node-a", "192.0.2.1"));
    let mut old = Running::start(&central, &server, &["--identity", "old"]);
    old.idle().await;
    // As a successor does whose lease the old leader has not heard of yet.
    let successor = ovsdb(&central);
    begin_term(&successor, "new", soon()).await.unwrap();
    server.apply(pod("node-a", "default", "web", "uid-of-web", json!({})));
    let ended = old.end().await;
    assert!(matches!(ended, Err(RunError::Deposed(_))), "{ended:?}");
    assert_eq!(
        names(&central, "Logical_Switch_Port"),
        ["k8s-node-a", "stor-node-a"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_controller_waits_and_takes_over_when_the_first_lets_go() {
    let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
    server.apply(node("node-a", "192.0.2.1"));
    let mut first = Running::start(&central, &server, &["--identity", "first"]);
    first.idle().await;
    let mut second = Running::start(&central, &server, &["--identity", "second"]);
    // It has read the lease, and follows it.
    server
        .await_requests("a watch of the lease", |requests| {
            let is_lease = |path: &str| path.ends_with("/leases");
            let watches = requests.iter().filter(|it| it.is_watch());
            watches.filter(|it| is_lease(&it.path)).count() > 0
        })
        .unwrap();
    first.stop().await.unwrap();
    let progress = second.idle().await;
    assert_eq!((progress.operations, progress.writes), (0, 0));
    server.apply(pod("node-a", "default", "web", "uid-of-web", json!({})));
    await_network(&server, "default", "web");
    await_row(&central, "Logical_Switch_Port", "default_web", true);
    let lease = server.object("Lease", "kube-system", "podwire-controller");
    let spec = lease.unwrap()["spec"].clone();
    assert_eq!(spec["holderIdentity"], "second");
    assert_eq!(spec["leaseTransitions"], 1);
    second.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_a_controller_that_died_runs_out() {
    let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
    server.apply(node("node-a", "192.0.2.1"));
    server.apply(json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "namespace": "kube-system", "name": "podwire-controller" },
        "spec": { "holderIdentity": "dead", "leaseDurationSeconds": 1, "leaseTransitions": 4 },
    }));
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let lease = server.object("Lease", "kube-system", "podwire-controller");
    assert_eq!(lease.unwrap()["spec"]["leaseTransitions"], 5);
    controller.stop().await.unwrap();
}
