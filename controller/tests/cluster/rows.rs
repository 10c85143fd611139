//! Rows and annotations: made, kept, repaired and removed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use podwire_tests::apiserver::{ApiServer, node};
use podwire_tests::ovn::Central;
use serde_json::{Value, json};

use crate::fixture::{
    PORTS, Running, annotation, await_network, await_row, column, names, pod_of, populate,
    populated,
};

/// The switches of two nodes.
const SWITCHES: [&str; 3] = ["node-a", "node-b", "podwire_doors"];

#[tokio::test(flavor = "multi_thread")]
async fn nodes_pods_and_services_get_what_they_need_and_leave_nothing() {
    let (central, server, mut controller) = populated().await;

    let known = server.object("Node", "", "node-a").unwrap();
    assert_eq!(
        annotation(&known, "k8s.ovn.org/node-subnets").unwrap(),
        json!({ "default": ["10.244.0.0/24"] })
    );
    assert_eq!(
        known["status"]["conditions"][0]["type"],
        "NetworkUnavailable"
    );
    assert_eq!(known["status"]["conditions"][0]["status"], "False");
    assert_eq!(
        await_network(&server, "default", "web"),
        json!({
            "ip_addresses": ["10.244.0.3/24"],
            "ip_address": "10.244.0.3/24",
            "mac_address": "0a:58:0a:f4:00:03",
            "gateway_ips": ["10.244.0.1"],
            "gateway_ip": "10.244.0.1",
        })
    );
    assert_eq!(names(&central, "Logical_Switch"), SWITCHES);
    assert_eq!(names(&central, "Logical_Switch_Port"), PORTS);
    assert_eq!(
        names(&central, "Logical_Router_Port"),
        ["rtos-node-a", "rtos-node-b"]
    );
    assert_eq!(
        names(&central, "Gateway_Chassis"),
        ["rtos-node-a-node-a", "rtos-node-b-node-b"]
    );
    assert_eq!(names(&central, "Logical_Router_Static_Route").len(), 2);
    assert_eq!(names(&central, "Logical_Router_Policy").len(), 2);
    assert_eq!(
        column(
            &central,
            "Load_Balancer",
            "Service_default/front_TCP_cluster",
            "vips"
        ),
        json!({ "10.96.0.10:80": "10.244.0.3:8080,10.244.1.3:8080" })
    );
    let port = "default_web";
    let options = column(&central, "Logical_Switch_Port", port, "options");
    let expected = json!({ "iface-id-ver": "uid-of-web", "requested-chassis": "node-a" });
    assert_eq!(options, expected);
    // ovn-northd understands all of it.
    central.nbctl("--wait=sb sync");
    let bindings = central.southbound().rows("Port_Binding").unwrap();
    assert!(bindings.iter().any(|row| row["logical_port"] == port));

    // A pod that is done has no use for its address.
    let mut done = pod_of("node-b", "db");
    done["status"]["phase"] = "Succeeded".into();
    server.apply(done);
    await_row(&central, "Logical_Switch_Port", "default_db", false);
    for (kind, namespace, name) in [
        ("Pod", "default", "web"),
        ("Service", "default", "front"),
        ("EndpointSlice", "default", "front-1"),
        ("Node", "", "node-a"),
        ("Node", "", "node-b"),
    ] {
        server.delete_object(kind, namespace, name);
    }
    for (table, name) in [
        ("Logical_Switch_Port", port),
        ("Logical_Switch", "node-a"),
        ("Logical_Switch", "node-b"),
        ("Load_Balancer", "Service_default/front_TCP_cluster"),
    ] {
        await_row(&central, table, name, false);
    }
    controller.idle().await;
    // The cluster's, like the router.
    assert_eq!(names(&central, "Logical_Switch"), ["podwire_doors"]);
    for table in [
        "Logical_Switch_Port",
        "Logical_Router_Port",
        "Logical_Router_Static_Route",
        "Logical_Router_Policy",
        "Gateway_Chassis",
        "Load_Balancer",
    ] {
        assert_eq!(names(&central, table), [""; 0], "{table}");
    }
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unchanged_cluster_costs_no_operation_neither_after_a_restart_nor_listed_again() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    let mut first = Running::start(&central, &server, &[]);
    let made = first.idle().await;
    assert!(made.operations > 0 && made.writes > 0, "{made:?}");

    server.compact();
    server.break_connections();
    let listed = first
        .until(|progress| progress.changes >= made.changes + 6 && progress.is_idle)
        .await;
    assert_eq!(
        (listed.operations, listed.writes),
        (made.operations, made.writes)
    );
    assert!(listed.keys > made.keys);
    first.stop().await.unwrap();

    let mut second = Running::start(&central, &server, &[]);
    let compared = second.idle().await;
    assert_eq!((compared.operations, compared.writes), (0, 0));
    assert!(compared.keys >= 6, "{compared:?}");
    second.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_remove_or_change_is_put_right_and_what_is_theirs_is_left_alone() {
    let (central, server) = (Central::start(), ApiServer::start());
    central.nbctl("ls-add theirs");
    central.nbctl("lsp-add theirs their-port");
    populate(&server);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;

    central.nbctl("lsp-del default_web");
    await_row(&central, "Logical_Switch_Port", "default_web", true);
    central.nbctl("lsp-set-addresses default_db unknown");
    let northbound = central.northbound();
    let is_right = json!([
        ["name", "==", "default_db"],
        ["addresses", "==", "0a:58:0a:f4:01:03 10.244.1.3"],
    ]);
    northbound
        .wait("Logical_Switch_Port", is_right, "!=", &["name"], json!([]))
        .unwrap();
    central.nbctl("ls-del node-a");
    await_row(&central, "Logical_Switch_Port", "stor-node-a", true);
    await_row(&central, "Logical_Switch_Port", "default_web", true);
    await_row(&central, "Logical_Switch_Port", "their-port", true);
    // The other's switch has the name of a node that joins.
    server.apply(node("theirs", "192.0.2.3"));
    let told = server.await_events("a conflict", |events| !events.is_empty());
    let message = told[0]["message"].as_str().unwrap();
    assert!(message.contains("--adopt"), "{message}");
    assert_eq!(told[0]["involvedObject"]["name"], "theirs");
    controller.stop().await.unwrap();
    assert_eq!(names(&central, "Logical_Switch"), SWITCHES);

    let mut adopting = Running::start(&central, &server, &["--adopt"]);
    adopting.idle().await;
    assert_eq!(
        names(&central, "Logical_Switch"),
        ["node-a", "node-b", "podwire_doors", "theirs"]
    );
    await_row(&central, "Logical_Switch_Port", "their-port", true);
    adopting.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_added_to_the_router_of_another() {
    let (central, server) = (Central::start(), ApiServer::start());
    central.nbctl("lr-add ovn_cluster_router");
    central.nbctl("create Load_Balancer_Group name=clusterLBGroup");
    populate(&server);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    for column_name in ["ports", "static_routes", "policies"] {
        let rows = column(
            &central,
            "Logical_Router",
            "ovn_cluster_router",
            column_name,
        );
        assert_eq!(rows, json!([]), "{column_name}");
    }
    assert_eq!(names(&central, "Logical_Switch"), [""; 0]);
    let of_node = |event: &Value| event["involvedObject"]["name"] == "node-a";
    let told = server.await_events("a conflict", |events| events.iter().any(of_node));
    let told = told.iter().find(|event| of_node(event)).unwrap();
    let message = told["message"].as_str().unwrap();
    assert!(message.contains("ovn_cluster_router"), "{message}");
    controller.stop().await.unwrap();

    let mut adopting = Running::start(&central, &server, &["--adopt"]);
    adopting.idle().await;
    assert_eq!(names(&central, "Logical_Switch"), SWITCHES);
    adopting.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_in_the_database_is_not_announced() {
    let (central, server) = (Central::start(), ApiServer::start());
    central.nbctl("ls-add node-a");
    populate(&server);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let refused = server.object("Node", "", "node-a").unwrap();
    assert_eq!(annotation(&refused, "k8s.ovn.org/node-subnets"), None);
    assert_eq!(refused["status"]["conditions"][0], Value::Null);
    let pod = server.object("Pod", "default", "web").unwrap();
    assert_eq!(annotation(&pod, "k8s.ovn.org/pod-networks"), None);
    await_network(&server, "default", "db");

    // The announcement is made once there are rows.
    central.nbctl("ls-del node-a");
    await_network(&server, "default", "web");
    let is_announced = |node: &Value| {
        annotation(node, "k8s.ovn.org/node-subnets").is_some()
            && node["status"]["conditions"][0]["status"] == "False"
    };
    server.await_object(("Node", "", "node-a"), is_announced);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_the_database_refuses_does_not_stop_the_others() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    // Their Gateway_Chassis would have one name.
    for (name, chassis) in [("a", "b-c"), ("a-b", "c")] {
        let mut node = node(name, "192.0.2.7");
        node["metadata"]["annotations"]["k8s.ovn.org/node-chassis-id"] = chassis.into();
        server.apply(node);
    }
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    await_row(&central, "Logical_Switch_Port", "default_db", true);
    controller.idle().await;
    let made = names(&central, "Logical_Switch");
    assert_eq!(made, ["a", "node-a", "node-b", "podwire_doors"]);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_router_forgets_a_neighbour_that_it_learnt_more_than_five_minutes_ago() {
    let (central, _server, controller) = populated().await;
    central.nbctl("--wait=sb sync");
    let southbound = central.southbound();
    let bindings = southbound.rows("Port_Binding").unwrap();
    let port = bindings
        .iter()
        .find(|row| row["logical_port"] == "rtos-node-a")
        .unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let learnt = |address: &str, seconds: u64| {
        let at = now - Duration::from_secs(seconds);
        json!({ "op": "insert", "table": "MAC_Binding", "row": {
            "logical_port": "rtos-node-a", "ip": address, "mac": "0a:58:0a:f4:00:63",
            "datapath": ["uuid", port["datapath"]],
            "timestamp": u64::try_from(at.as_millis()).unwrap(),
        } })
    };
    let learnt = [learnt("10.244.0.98", 310), learnt("10.244.0.99", 10)];
    southbound.transact(&learnt).unwrap();
    // It looks at all of them when it starts.
    central.end_northd();
    central.start_northd();
    let of = |address: &str| json!([["ip", "==", address]]);
    let none = json!([]);
    southbound
        .wait("MAC_Binding", of("10.244.0.98"), "==", &["ip"], none)
        .unwrap();
    let left = southbound.rows("MAC_Binding").unwrap();
    assert!(
        left.iter().any(|row| row["ip"] == "10.244.0.99"),
        "{left:?}"
    );
    controller.stop().await.unwrap();
}
