//! Packets that policies decide about, in ovn-controller's log.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use podwire_tests::ovn::OvnNode;
use serde_json::{Value, json};

use crate::fixture::await_row;
use crate::packets::{Named, Network};
use crate::policies::{TESTS, connects, labelled, namespace, policy};

/// The tests' namespace with the annotation.
fn logging(value: Option<&Value>) -> Value {
    let mut object = namespace(TESTS, json!({}));
    if let Some(value) = value {
        object["metadata"]["annotations"] = json!({ "k8s.ovn.org/acl-logging": value.to_string() });
    }
    object
}

/// Waits for a line of ovn-controller with all of this, while something is done again and again.
#[track_caller]
pub(crate) fn await_line(node: &OvnNode, parts: &[&str], again: impl Fn()) {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        again();
        let log = std::fs::read_to_string(node.path("/run/log/ovn-controller.log")).unwrap();
        let mut lines = log.lines().filter(|line| line.contains("acl_log"));
        if lines.any(|line| parts.iter().all(|part| line.contains(part))) {
            return;
        }
        assert!(Instant::now() < until, "no line with {parts:?} in {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_namespace_wants_logged_is_logged_with_the_name_of_the_policy() {
    let (network, mut controller) = Network::start(&[]);
    let agents = network.start_agents();
    let server = &network.server;
    let annotation = json!({ "deny": "alert", "allow": "notice" });
    server.apply(logging(Some(&annotation)));
    let (web, address) = network.labelled_pod(0, "web", "web");
    let (front, _) = network.labelled_pod(1, "front", "front");
    let (other, _) = network.labelled_pod(1, "other", "other");
    let named = Named::start(web.place(), address, "web");
    let to_web = SocketAddr::new(address, 8080);
    server.apply(policy(
        TESTS,
        "allow-front",
        json!({ "podSelector": labelled("web"), "ingress": [
            { "from": [{ "podSelector": labelled("front") }] },
        ] }),
    ));
    await_row(&network.central, "Meter", "acl-logging", true);
    let denied = [
        "name=\"NP:tests:Ingress\"",
        "verdict=drop",
        "severity=alert",
        "tp_dst=8080",
    ];
    await_line(&network.nodes[0], &denied, || {
        connects(other.place(), to_web);
    });
    let allowed = [
        "name=\"NP:tests:allow-front:Ingress:0\"",
        "verdict=allow",
        "severity=notice",
    ];
    await_line(&network.nodes[0], &allowed, || {
        connects(front.place(), to_web);
    });

    // Only what is asked for; the meter comes back, and another's stays.
    let logged = |name: &str| {
        let rows = network.central.northbound().rows("ACL").unwrap();
        let own = rows.iter().filter(|row| row["name"] == name);
        let own = own.filter(|row| row["log"] == true);
        let own = own.map(|row| [&row["severity"], &row["meter"]].map(Clone::clone));
        own.collect::<Vec<_>>()
    };
    controller.idle().await;
    assert_eq!(
        logged("NP:tests:Ingress"),
        [[json!("alert"), json!("acl-logging")]]
    );
    network.central.nbctl("meter-del acl-logging");
    await_row(&network.central, "Meter", "acl-logging", true);
    network
        .central
        .nbctl("meter-del acl-logging -- meter-add acl-logging drop 7 pktps");
    server.apply(logging(Some(&json!({ "deny": "loud", "allow": "info" }))));
    let events = server.await_events("the mistake", |events| !events.is_empty());
    let message = events[0]["message"].as_str().unwrap();
    assert!(
        message.contains("acl-logging].deny: \"loud\" is none of alert"),
        "{message}"
    );
    assert_eq!(events[0]["involvedObject"]["kind"], "Namespace");
    controller.idle().await;
    assert_eq!(logged("NP:tests:Ingress"), [] as [[Value; 2]; 0]);
    let info = [json!("info"), json!("acl-logging")];
    assert_eq!(logged("NP:tests:allow-front:Ingress:0"), [info]);
    let rows = network.central.northbound().rows("Meter_Band").unwrap();
    let sevens = rows.iter().filter(|band| band["rate"] == 7).count();
    assert_eq!(sevens, 1, "{rows:?}");

    server.apply(logging(None));
    network
        .central
        .northbound()
        .wait(
            "ACL",
            json!([["log", "==", true]]),
            "==",
            &["name"],
            json!([]),
        )
        .unwrap();
    drop((named, agents));
    controller.stop().await.unwrap();
}
