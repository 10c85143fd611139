//! Who may write.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwire_controller::lease::begin_term;
use podwire_controller::run::RunError;
use podwire_tests::apiserver::{ApiServer, Request, node, pod};
use podwire_tests::controller::Controller;
use podwire_tests::http::get_from;
use podwire_tests::ovn::Central;
use serde_json::json;

use crate::fixture::{Running, await_network, await_row, names, ovsdb, soon};

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_replaced_writes_nothing_and_ends() {
    let (central, server) = (Central::start(), ApiServer::start());
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
        ["k8s-node-a", "podwire-door-node-a", "stor-node-a"]
    );
    // Nor does it write to the API server, whether there are rows to write or not.
    let writes = |name| {
        let requests = server.requests().into_iter();
        let path = format!("/api/v1/namespaces/default/pods/{name}/status");
        requests
            .filter(|it| it.method == "PATCH" && it.path == path)
            .count()
    };
    assert_eq!(writes("web"), 0);
    let mut next = Running::start(&central, &server, &["--identity", "next"]);
    next.idle().await;
    begin_term(&successor, "new", soon()).await.unwrap();
    server.apply(pod("node-a", "default", "web", "uid-of-web", json!({})));
    let ended = next.end().await;
    assert!(matches!(ended, Err(RunError::Deposed(_))), "{ended:?}");
    assert_eq!(writes("web"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_waits_survives_an_api_server_that_fails() {
    let (central, server) = (Central::start(), ApiServer::start());
    server.apply(node("node-a", "192.0.2.1"));
    server.apply(json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "namespace": "podwire-system", "name": "podwire-controller" },
        "spec": { "holderIdentity": "dead", "leaseDurationSeconds": 1 },
    }));
    let mut controller = Running::start(&central, &server, &[]);
    let lease = "/apis/coordination.k8s.io/v1/namespaces/podwire-system/leases/podwire-controller";
    let await_lease = |method| {
        server.await_requests(method, |requests| {
            let mut own = requests.iter().filter(|it| it.path == lease);
            own.any(|it| it.method == method)
        })
    };
    await_lease("GET");
    server.accept_tokens(Some(&[]));
    // What it was refused it asks for again.
    await_lease("PUT");
    server.accept_tokens(None);
    controller.idle().await;
    controller.stop().await.unwrap();
}

fn lock(renewed: Timestamp) -> serde_json::Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "namespace": "ovn-kubernetes", "name": "ovn-kubernetes-master" },
        "spec": {
            "holderIdentity": "master-0", "leaseDurationSeconds": 60,
            "renewTime": format!("{renewed:.6}"),
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn beside_a_live_control_plane_of_ovn_kubernetes_it_does_nothing() {
    let (central, server) = (Central::start(), ApiServer::start());
    server.apply(node("node-a", "192.0.2.1"));
    server.apply(lock(Timestamp::now()));
    let refused = Running::start(&central, &server, &[]).end().await;
    let Err(RunError::Rival(who)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(
        who,
        "master-0 holds Lease ovn-kubernetes/ovn-kubernetes-master"
    );
    assert_eq!(
        server.object("Lease", "podwire-system", "podwire-controller"),
        None
    );

    // One that has gone is none; one that comes ends the controller.
    server.apply(lock(Timestamp::now() - SignedDuration::from_secs(61)));
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let record = json!({
        "holderIdentity": "master-1", "leaseDurationSeconds": 60,
        "renewTime": Timestamp::now().to_string(),
    });
    server.apply(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "namespace": "ovn-kubernetes", "name": "ovn-kubernetes-master",
            "annotations": { "control-plane.alpha.kubernetes.io/leader": record.to_string() },
        },
    }));
    let ended = controller.end().await;
    assert!(matches!(ended, Err(RunError::Rival(_))), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_controller_waits_and_takes_over_when_the_first_lets_go() {
    let (central, server) = (Central::start(), ApiServer::start());
    server.apply(node("node-a", "192.0.2.1"));
    let mut first = Running::start(&central, &server, &["--identity", "first"]);
    first.idle().await;
    let mut second = Running::start(&central, &server, &["--identity", "second"]);
    // It has read the lease, and follows it.
    server.await_requests("a watch of the lease", |requests| {
        let is_lease = |path: &str| path.ends_with("/leases");
        let watches = requests.iter().filter(|it| it.is_watch());
        watches.filter(|it| is_lease(&it.path)).count() > 0
    });
    first.stop().await.unwrap();
    let progress = second.idle().await;
    assert_eq!((progress.operations, progress.writes), (0, 0));
    server.apply(pod("node-a", "default", "web", "uid-of-web", json!({})));
    await_network(&server, "default", "web");
    await_row(&central, "Logical_Switch_Port", "default_web", true);
    let lease = server.object("Lease", "podwire-system", "podwire-controller");
    let spec = lease.unwrap()["spec"].clone();
    assert_eq!(spec["holderIdentity"], "second");
    assert_eq!(spec["leaseTransitions"], 1);
    second.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_a_controller_that_died_runs_out() {
    let (central, server) = (Central::start(), ApiServer::start());
    server.apply(node("node-a", "192.0.2.1"));
    server.apply(json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "namespace": "podwire-system", "name": "podwire-controller" },
        "spec": {
            "holderIdentity": "dead", "leaseDurationSeconds": 1, "leaseTransitions": i32::MAX,
        },
    }));
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let lease = server.object("Lease", "podwire-system", "podwire-controller");
    assert_eq!(
        lease.unwrap()["spec"]["leaseTransitions"],
        i32::MAX,
        "no more than it takes"
    );
    controller.stop().await.unwrap();
}

#[test]
fn a_leader_without_its_database_lets_one_lead_that_has_it_and_leads_not_again_before() {
    const LISTENER: &str = "ptcp:6649:127.0.0.1";
    let central = Central::start();
    let place = central.machine().place();
    let server = ApiServer::start_in(place);
    server.apply(node("node-a", "192.0.2.1"));
    central.open_northbound(LISTENER);
    let start = |identity, port| {
        let flags = format!("--nb-db tcp:127.0.0.1:6649 --metrics-address 127.0.0.1:{port}");
        Controller::start(&central, &server, identity, &flags)
    };
    let first = start("first", 9413);
    first.await_log("all rows are in sync");
    let second = Controller::start(&central, &server, "second", "");
    second.await_log("standing by");
    let answer = |path| get_from(place, "127.0.0.1:9413", path).unwrap();
    assert_eq!(answer("/readyz"), (200, "ok\n".to_owned()));

    central.close_northbound(LISTENER);
    second.await_log("all rows are in sync");
    first.await_log("this controller does not lead any longer: the northbound database is away");
    assert!(!first.stop().success());

    // With neither lease nor database it waits for both.
    let third = start("third", 9413);
    second.stop();
    third.await_log("the northbound database can't be read");
    let (status, why) = answer("/readyz");
    assert!(
        status == 503 && why.starts_with("the northbound database tcp:127.0.0.1:6649: "),
        "{why}"
    );
    let (status, alive) = answer("/healthz");
    assert!(
        status == 200 && alive.starts_with("ok, but not ready: "),
        "{alive}"
    );
    let lease = || server.object("Lease", "podwire-system", "podwire-controller");
    let spec = || lease().unwrap()["spec"].clone();
    assert_eq!(spec()["holderIdentity"], serde_json::Value::Null);
    central.open_northbound(LISTENER);
    third.await_log("all rows are in sync");
    assert_eq!(spec()["leaseTransitions"], 2);
    assert_eq!(answer("/readyz").0, 200);
    third.stop();
}

/// The leader by TCP, and a second controller that stands by, with the socket.
fn two_controllers(central: &Central, server: &ApiServer) -> [Controller; 2] {
    server.apply(node("node-a", "192.0.2.1"));
    central.open_northbound("ptcp:6649:127.0.0.1");
    let first = Controller::start(central, server, "first", "--nb-db tcp:127.0.0.1:6649");
    first.await_log("all rows are in sync");
    let second = Controller::start(central, server, "second", "");
    second.await_log("standing by");
    [first, second]
}

#[test]
fn a_leader_goes_on_while_its_database_is_busy() {
    let central = Central::start();
    let server = ApiServer::start_in(central.machine().place());
    let [first, second] = two_controllers(&central, &server);
    let databases = Pid::from_raw(i32::try_from(central.pids()[0]).unwrap());
    let renewals = |requests: &[Request]| {
        let renewals = requests.iter().filter(|it| it.method == "PUT");
        renewals.filter(|it| it.path.contains("/leases/")).count()
    };

    kill(databases, Signal::SIGSTOP).unwrap();
    server.apply(pod("node-a", "default", "web", "uid-of-web", json!({})));
    let before = renewals(&server.requests());
    // One each 2 s: longer than OVSDB's usual probes, and the lease after them.
    server.await_requests("12 renewals of the lease", |requests| {
        renewals(requests) >= before + 12
    });
    kill(databases, Signal::SIGCONT).unwrap();

    await_network(&server, "default", "web");
    await_row(&central, "Logical_Switch_Port", "default_web", true);
    let lease = server.object("Lease", "podwire-system", "podwire-controller");
    let spec = lease.unwrap()["spec"].clone();
    assert_eq!(spec["holderIdentity"], "first");
    assert_eq!(spec["leaseTransitions"], 0);
    second.stop();
    assert!(first.stop().success());
}

#[test]
fn a_leader_whose_packets_no_longer_reach_its_database_lets_one_lead_that_has_it() {
    let central = Central::start();
    let machine = central.machine();
    let server = ApiServer::start_in(machine.place());
    let [first, second] = two_controllers(&central, &server);
    machine.run("nft", "add table ip lost");
    machine.run(
        "nft",
        "add chain ip lost in { type filter hook input priority 0 ; }",
    );
    machine.run("nft", "add rule ip lost in tcp dport 6649 drop");
    machine.run("nft", "add rule ip lost in tcp sport 6649 drop");
    second.await_log("all rows are in sync");
    first.await_log("this controller does not lead any longer: the northbound database is away");
    assert!(!first.stop().success());
    second.stop();
}

#[test]
fn the_first_line_of_the_log_names_each_server_with_its_setting_and_where_that_comes_from() {
    let central = Central::start();
    let server = ApiServer::start_in(central.machine().place());
    let controller = Controller::start(&central, &server, "one", "--nb-db tcp:127.0.0.1:1");
    let line = controller.await_log("starting");
    let url = server.url();
    let expected = format!(
        "--nb-db tcp:127.0.0.1:1, --sb-db unix:/run/ovn/ovnsb_db.sock (default), --k8s-apiserver \
         {url}"
    );
    assert!(line.contains(&expected), "{line}");
    assert!(!line.contains('\x1b'), "colours in a file: {line:?}");
    controller.await_log("the northbound database can't be read");
    controller.stop();
}

#[test]
fn an_api_server_that_nobody_reaches_is_named_with_its_address() {
    let central = Central::start();
    // Nobody listens on port 1.
    let nowhere = "--k8s-apiserver http://127.0.0.1:1";
    let controller = Controller::start_by(&central, "one", nowhere, "");
    let line = controller.await_log("the lock of ovn-kubernetes can't be read");
    let address = "API server http://127.0.0.1:1: client error (Connect): tcp connect error";
    assert!(line.contains(address), "{line}");
    controller.stop();
}
