//! `status --nb-cfg`: how long OVN takes for a change, when a person asks.

use nix::sys::signal::Signal;
use podwire_tests::apiserver::{ApiServer, node};
use podwire_tests::ovn::Central;
use serde_json::Value;

use crate::fixture::Running;
use crate::tools::ask;

#[tokio::test(flavor = "multi_thread")]
async fn a_status_asks_ovn_only_when_told_and_names_the_chassis_that_are_late() {
    let (central, server) = (Central::start(), ApiServer::start());
    let nodes = [("node-a", 1), ("node-b", 2)].map(|(name, number)| central.node(name, number));
    server.apply(node("node-a", "192.0.2.1"));
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let asked = || {
        let rows = central.northbound().rows("NB_Global").unwrap();
        rows[0]["nb_cfg"].as_i64().unwrap()
    };
    let before = asked();
    let (_, status) = ask(&central, &server, &["status"]);
    assert!(!status.contains("nb_cfg"), "{status}");
    assert_eq!(asked(), before);

    let (is_well, status) = ask(&central, &server, &["status", "--nb-cfg"]);
    assert!(is_well, "{status}");
    assert!(status.contains("ms until every chassis had it"), "{status}");
    assert_eq!(asked(), before + 1);
    let (_, status) = ask(&central, &server, &["status", "--nb-cfg", "--output=json"]);
    let status: Value = serde_json::from_str(&status).unwrap();
    assert!(status["round"]["chassisMs"].is_u64(), "{status}");

    // One that does not answer is named, and ovn-northd is not blamed for it.
    nodes[1].signal_controller(Signal::SIGSTOP);
    let (is_well, status) = ask(&central, &server, &["status", "--nb-cfg=1"]);
    assert!(is_well, "{status}");
    let late = "and not within 1000 ms by chassis node-b\n";
    assert!(status.contains(late), "{status}");
    nodes[1].signal_controller(Signal::SIGCONT);

    central.end_northd();
    let (is_well, status) = ask(&central, &server, &["status", "--nb-cfg=1"]);
    let none = "ovn-northd has not answered within 1000 ms";
    assert!(!is_well && status.contains(none), "{status}");
    controller.stop().await.unwrap();
}
