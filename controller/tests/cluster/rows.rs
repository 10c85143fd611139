//! Rows and annotations: made, kept, repaired and removed.

use podwire_tests::apiserver::{ApiServer, endpoints, node, pod, service};
use podwire_tests::ovn::Central;
use serde_json::{Value, json};

use crate::fixture::{Running, annotation, await_network, await_row, names};

fn pod_of(node: &str, name: &str) -> Value {
    pod(node, "default", name, &format!("uid-of-{name}"), json!({}))
}

fn column(central: &Central, table: &str, name: &str, column: &str) -> Value {
    let rows = central.northbound().rows(table).unwrap();
    let row = rows.into_iter().find(|row| row["name"] == name);
    row.unwrap()[column].clone()
}

/// Two nodes, two pods and a service of theirs.
fn populate(server: &ApiServer) {
    server.apply(node("node-a", "192.0.2.1"));
    server.apply(node("node-b", "192.0.2.2"));
    server.apply(pod_of("node-a", "web"));
    server.apply(pod_of("node-b", "db"));
    server.apply(service("default", "front", "10.96.0.10", 80));
    server.apply(endpoints(
        "default",
        "front",
        &["10.244.0.3", "10.244.1.3"],
        8080,
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_pods_and_services_get_what_they_need_and_leave_nothing() {
    let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
    populate(&server);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;

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
    assert_eq!(names(&central, "Logical_Switch"), ["node-a", "node-b"]);
    assert_eq!(
        names(&central, "Logical_Switch_Port"),
        [
            "default_db",
            "default_web",
            "k8s-node-a",
            "k8s-node-b",
            "stor-node-a",
            "stor-node-b"
        ]
    );
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
    central.nbctl(&["--wait=sb", "sync"]).unwrap();
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
    for table in [
        "Logical_Switch",
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
    let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
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
    let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
    central.nbctl(&["ls-add", "theirs"]).unwrap();
    central.nbctl(&["lsp-add", "theirs", "their-port"]).unwrap();
    populate(&server);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;

    central.nbctl(&["lsp-del", "default_web"]).unwrap();
    await_row(&central, "Logical_Switch_Port", "default_web", true);
    central
        .nbctl(&["lsp-set-addresses", "default_db", "unknown"])
        .unwrap();
    let northbound = central.northbound();
    let is_right = json!([
        ["name", "==", "default_db"],
        ["addresses", "==", "0a:58:0a:f4:01:03 10.244.1.3"],
    ]);
    northbound
        .wait("Logical_Switch_Port", is_right, "!=", &["name"], json!([]))
        .unwrap();
    central.nbctl(&["ls-del", "node-a"]).unwrap();
    await_row(&central, "Logical_Switch_Port", "stor-node-a", true);
    await_row(&central, "Logical_Switch_Port", "default_web", true);
    await_row(&central, "Logical_Switch_Port", "their-port", true);
    // The other's switch has the name of a node that joins.
    server.apply(node("theirs", "192.0.2.3"));
    let told = server
        .await_events("a conflict", |events| !events.is_empty())
        .unwrap();
    let message = told[0]["message"].as_str().unwrap();
    assert!(message.contains("--adopt"), "{message}");
    assert_eq!(told[0]["involvedObject"]["name"], "theirs");
    controller.stop().await.unwrap();
    assert_eq!(names(&central, "Logical_Switch"), ["node-a", "node-b"]);

    let mut adopting = Running::start(&central, &server, &["--adopt"]);
    adopting.idle().await;
    assert_eq!(
        names(&central, "Logical_Switch"),
        ["node-a", "node-b", "theirs"]
    );
    await_row(&central, "Logical_Switch_Port", "their-port", true);
    adopting.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_added_to_the_router_of_another() {
    let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
    central.nbctl(&["lr-add", "ovn_cluster_router"]).unwrap();
    let group = ["create", "Load_Balancer_Group", "name=clusterLBGroup"];
    central.nbctl(&group).unwrap();
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
    let told = server
        .await_events("a conflict", |events| events.iter().any(of_node))
        .unwrap();
    let told = told.iter().find(|event| of_node(event)).unwrap();
    let message = told["message"].as_str().unwrap();
    assert!(message.contains("ovn_cluster_router"), "{message}");
    controller.stop().await.unwrap();

    let mut adopting = Running::start(&central, &server, &["--adopt"]);
    adopting.idle().await;
    assert_eq!(names(&central, "Logical_Switch"), ["node-a", "node-b"]);
    adopting.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_in_the_database_is_not_announced() {
    let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
    central.nbctl(&["ls-add", "node-a"]).unwrap();
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
    central.nbctl(&["ls-del", "node-a"]).unwrap();
    await_network(&server, "default", "web");
    let is_announced = |node: &Value| {
        annotation(node, "k8s.ovn.org/node-subnets").is_some()
            && node["status"]["conditions"][0]["status"] == "False"
    };
    server
        .await_object(("Node", "", "node-a"), is_announced)
        .unwrap();
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_the_database_refuses_does_not_stop_the_others() {
    let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
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
    assert_eq!(made, ["a", "node-a", "node-b"]);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_are_of_both_families_where_the_cluster_has_both() {
    let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
    populate(&server);
    let subnets = "10.128.0.0/14/23,fd00:10::/48/64";
    let mut controller = Running::start(&central, &server, &["--cluster-subnets", subnets]);
    controller.idle().await;
    let entry = await_network(&server, "default", "db");
    assert_eq!(
        entry["ip_addresses"],
        json!(["10.128.2.3/23", "fd00:10:0:1::3/64"])
    );
    assert_eq!(
        entry["gateway_ips"],
        json!(["10.128.2.1", "fd00:10:0:1::1"])
    );
    assert_eq!(
        column(&central, "Logical_Switch", "node-b", "other_config"),
        json!({ "subnet": "10.128.2.0/23", "ipv6_prefix": "fd00:10:0:1::" })
    );
    central.nbctl(&["--wait=sb", "sync"]).unwrap();
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_nodes_with_one_subnet_the_older_keeps_it_and_the_other_is_told() {
    let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
    for (name, created) in [
        ("a-younger", "2026-02-01T00:00:00Z"),
        ("older", "2026-01-01T00:00:00Z"),
    ] {
        let mut node = node(name, "192.0.2.1");
        node["metadata"]["creationTimestamp"] = created.into();
        let subnets = json!({ "default": "10.244.7.0/24" }).to_string();
        node["metadata"]["annotations"]["k8s.ovn.org/node-subnets"] = subnets.into();
        server.apply(node);
    }
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let subnets = |name| {
        let node = server.object("Node", "", name).unwrap();
        annotation(&node, "k8s.ovn.org/node-subnets").unwrap()["default"].clone()
    };
    assert_eq!(subnets("older"), json!("10.244.7.0/24"));
    assert_eq!(subnets("a-younger"), json!(["10.244.0.0/24"]));
    let events = server.events();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["reason"], "SubnetConflict");
    assert_eq!(events[0]["involvedObject"]["name"], "a-younger");
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_balancer_that_somebody_takes_out_of_the_group_is_put_back() {
    let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
    populate(&server);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let northbound = central.northbound();
    let before = column(
        &central,
        "Load_Balancer_Group",
        "clusterLBGroup",
        "load_balancer",
    );
    central
        .nbctl(&[
            "clear",
            "Load_Balancer_Group",
            "clusterLBGroup",
            "load_balancer",
        ])
        .unwrap();
    let condition = json!([["load_balancer", "==", ["set", []]]]);
    northbound
        .wait("Load_Balancer_Group", condition, "==", &["name"], json!([]))
        .unwrap();
    let after = column(
        &central,
        "Load_Balancer_Group",
        "clusterLBGroup",
        "load_balancer",
    );
    assert_eq!(before, after);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chassis_of_a_node_that_is_gone_goes_too_though_nobody_watched() {
    let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
    populate(&server);
    for (chassis, address) in [
        ("node-a", "192.0.2.1"),
        ("node-b", "192.0.2.2"),
        ("other", "192.0.2.3"),
    ] {
        let command = ["chassis-add", chassis, "geneve", address];
        central.sbctl(&command).unwrap();
    }
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    server.delete_object("Node", "", "node-a");
    await_row(&central, "Logical_Switch", "node-a", false);
    controller.stop().await.unwrap();
    let chassis = || {
        let rows = central.southbound().rows("Chassis").unwrap();
        let mut names: Vec<_> = rows.iter().map(|row| row["name"].clone()).collect();
        names.sort_by_key(ToString::to_string);
        names
    };
    assert_eq!(chassis(), ["node-b", "other"]);

    server.delete_object("Node", "", "node-b");
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    controller.stop().await.unwrap();
    assert_eq!(chassis(), ["other"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_southbound_database_only_the_node_that_is_gone_waits() {
    let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
    populate(&server);
    let flags = ["--sb-db", "unix:/nonexistent"];
    let mut controller = Running::start(&central, &server, &flags);
    controller.idle().await;
    server.delete_object("Node", "", "node-a");
    server.apply(pod_of("node-b", "later"));
    await_network(&server, "default", "later");
    await_row(&central, "Logical_Switch", "node-a", true);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_gets_what_it_asks_for_or_is_told_why_not() {
    let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
    populate(&server);
    let asking = |name: &str, address: &str| {
        let mut pod = pod_of("node-a", name);
        pod["metadata"]["annotations"] = json!({
            "podwire.io/ip-addresses": address,
            "podwire.io/mac-address": format!("02:00:00:00:00:{:02}", name.len()),
        });
        pod
    };
    server.apply(asking("fixed", "10.244.0.200"));
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let entry = await_network(&server, "default", "fixed");
    assert_eq!(entry["ip_address"], "10.244.0.200/24");
    assert_eq!(entry["mac_address"], "02:00:00:00:00:05");
    assert_eq!(
        column(
            &central,
            "Logical_Switch_Port",
            "default_fixed",
            "port_security"
        ),
        "02:00:00:00:00:05 10.244.0.200"
    );
    server.apply(asking("second", "10.244.0.200"));
    let told = server
        .await_events("a refusal", |events| !events.is_empty())
        .unwrap();
    let message = told[0]["message"].as_str().unwrap();
    assert!(message.contains("which pod default/fixed has"), "{message}");
    assert_eq!(told[0]["involvedObject"]["name"], "second");
    // It gets it when it is free.
    server.delete("default", "fixed");
    let entry = await_network(&server, "default", "second");
    assert_eq!(entry["ip_address"], "10.244.0.200/24");
    controller.stop().await.unwrap();

    // Both the address and the MAC address outlive a restart.
    let mut again = Running::start(&central, &server, &[]);
    let compared = again.idle().await;
    assert_eq!((compared.operations, compared.writes), (0, 0));
    again.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_may_have_their_pod_cidrs() {
    let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
    populate(&server);
    for (name, cidrs) in [
        ("node-a", json!(["10.8.1.0/24", "fd08:1::/64"])),
        ("node-b", json!(null)),
    ] {
        let mut node = server.object("Node", "", name).unwrap();
        node["spec"]["podCIDRs"] = cidrs;
        server.apply(node);
    }
    let mut controller = Running::start(&central, &server, &["--use-pod-cidrs"]);
    controller.idle().await;
    let entry = await_network(&server, "default", "web");
    assert_eq!(
        entry["ip_addresses"],
        json!(["10.8.1.3/24", "fd08:1::3/64"])
    );
    let told = server
        .await_events("a node without", |events| !events.is_empty())
        .unwrap();
    assert_eq!(told[0]["involvedObject"]["name"], "node-b");
    let message = told[0]["message"].as_str().unwrap();
    assert!(message.contains("--allocate-node-cidrs"), "{message}");
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_so_many_requests_are_under_way_and_none_is_forgotten() {
    let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
    populate(&server);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let patches = || {
        server
            .requests()
            .iter()
            .filter(|it| it.method == "PATCH")
            .count()
    };
    let before = patches();
    server.hold(true);
    for number in 0..100 {
        server.apply(pod_of("node-a", &format!("many-{number}")));
    }
    await_row(&central, "Logical_Switch_Port", "default_many-99", true);
    server
        .await_requests("32 of them", |requests| {
            requests.iter().filter(|it| it.method == "PATCH").count() == before + 32
        })
        .unwrap();
    server.hold(false);
    for number in 0..100 {
        await_network(&server, "default", &format!("many-{number}"));
    }
    let done = controller.idle().await;
    assert_eq!(patches() as u64, done.writes);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_headless_service_and_an_alias_have_no_load_balancer() {
    let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
    populate(&server);
    server.apply(service("default", "headless", "None", 80));
    server.apply(endpoints("default", "headless", &["10.244.0.3"], 8080));
    let mut alias = service("default", "alias", "", 80);
    alias["spec"] = json!({ "type": "ExternalName", "externalName": "example.org" });
    server.apply(alias);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    assert_eq!(
        names(&central, "Load_Balancer"),
        ["Service_default/front_TCP_cluster"]
    );
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_of_local_endpoints_follows_nodes_and_switches() {
    let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
    populate(&server);
    let mut local = service("default", "front", "10.96.0.10", 80);
    local["spec"]["internalTrafficPolicy"] = "Local".into();
    server.apply(local);
    let mut slice = endpoints("default", "front", &["10.244.0.3"], 8080);
    slice["endpoints"][0]["nodeName"] = "node-a".into();
    server.apply(slice);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let balancers = |switch| {
        let row = column(&central, "Logical_Switch", switch, "load_balancer");
        let rows = central.northbound().rows("Load_Balancer").unwrap();
        let own = rows.iter().find(|it| it["_uuid"] == row);
        own.map(|it| {
            it["name"]
                .as_str()
                .unwrap()
                .replace("Service_default/front_TCP_", "")
        })
    };
    let without = Some("node_switch_without_endpoints".to_owned());
    assert_eq!(balancers("node-a").as_deref(), Some("node_switch_node-a"));
    assert_eq!(balancers("node-b"), without);
    server.apply(node("node-c", "192.0.2.3"));
    await_row(&central, "Logical_Switch", "node-c", true);
    let is_out = json!([
        ["name", "==", "node-c"],
        ["load_balancer", "==", ["set", []]]
    ]);
    let northbound = central.northbound();
    let awaited = |condition| {
        northbound
            .wait("Logical_Switch", condition, "==", &["name"], json!([]))
            .unwrap();
    };
    awaited(is_out.clone());
    assert_eq!(balancers("node-c"), without);
    // Somebody takes one out, or removes the switch.
    central
        .nbctl(&["clear", "Logical_Switch", "node-c", "load_balancer"])
        .unwrap();
    awaited(is_out.clone());
    central.nbctl(&["ls-del", "node-c"]).unwrap();
    await_row(&central, "Logical_Switch", "node-c", true);
    awaited(is_out);
    server.delete_object("Node", "", "node-a");
    await_row(
        &central,
        "Load_Balancer",
        "Service_default/front_TCP_node_switch_node-a",
        false,
    );
    controller.stop().await.unwrap();
}
