//! Addresses of pods, and the writes that announce them.

use std::time::Duration;

use podwire_tests::apiserver::{ApiServer, Request, node, pod, service};
use podwire_tests::ovn::Central;
use serde_json::{Value, json};

use crate::fixture::{
    PORTS, Running, annotation, await_network, await_row, column, names, pod_of, populate,
    populated,
};

const NETWORKS: &str = "k8s.ovn.org/pod-networks";
const WISHED: &str = "podwire.io/ip-addresses";

fn addresses(central: &Central, pod: &str) -> Value {
    let port = format!("default_{pod}");
    column(central, "Logical_Switch_Port", &port, "addresses")
}

/// Waits until a pod's annotation has this address, with all that belongs to it.
fn await_address(server: &ApiServer, name: &str, address: &str) {
    let is_right = |pod: &Value| {
        let gateway = address.rsplit_once('.').map(|(net, _)| format!("{net}.1"));
        annotation(pod, NETWORKS).is_some_and(|entry| {
            entry["default"]["ip_address"] == format!("{address}/24")
                && entry["default"]["gateway_ips"] == json!([gateway])
        })
    };
    server.await_object(("Pod", "default", name), is_right);
}

/// As a user does who may patch pods.
fn write_networks(server: &ApiServer, name: &str, networks: &Value) {
    let mut pod = server.object("Pod", "default", name).unwrap();
    pod["metadata"]["annotations"][NETWORKS] = networks.to_string().into();
    server.apply(pod);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_gets_what_it_asks_for_or_is_told_why_not() {
    let (central, server) = (Central::start(), ApiServer::start());
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
    let told = server.await_events("a refusal", |events| !events.is_empty());
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
async fn only_so_many_requests_are_under_way_and_none_is_forgotten() {
    let (central, server, mut controller) = populated().await;
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
    server.await_requests("32 of them", |requests| {
        requests.iter().filter(|it| it.method == "PATCH").count() == before + 32
    });
    server.hold(false);
    for number in 0..100 {
        await_network(&server, "default", &format!("many-{number}"));
    }
    let done = controller.idle().await;
    assert_eq!(patches() as u64, done.writes);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_on_its_node_s_network_is_left_alone() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    let mut host = pod_of("node-a", "a-host");
    host["spec"]["hostNetwork"] = true.into();
    server.apply(host.clone());
    let mut controller = Running::start(&central, &server, &[]);
    let done = controller.idle().await;
    assert_eq!(done.pods, 2);
    assert_eq!(names(&central, "Logical_Switch_Port"), PORTS);
    let known = server.object("Pod", "default", "a-host").unwrap();
    assert_eq!(
        known["metadata"]["annotations"],
        host["metadata"]["annotations"]
    );
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_for_which_no_address_is_left_is_told_so_however_long_its_name_is() {
    let (central, server) = (Central::start(), ApiServer::start());
    server.apply(node("node-a", "192.0.2.1"));
    // Of eight addresses four are not for pods.
    for number in 0..4 {
        server.apply(pod_of("node-a", &format!("early-{number}")));
    }
    let flags = ["--cluster-subnets", "10.244.0.0/28/29"];
    let mut controller = Running::start(&central, &server, &flags);
    controller.idle().await;
    let longest = format!("{}-{}", "a".repeat(231), "b".repeat(21));
    server.apply(pod_of("node-a", &longest));
    let told = server.await_events("a refusal", |events| !events.is_empty());
    assert_eq!(told[0]["involvedObject"]["name"], longest);
    let message = told[0]["message"].as_str().unwrap();
    assert!(message.contains("give nodes larger subnets"), "{message}");
    // Nothing else stops for it.
    server.apply(service("default", "front", "10.96.0.10", 80));
    let row = "Service_default/front_TCP_cluster";
    await_row(&central, "Load_Balancer", row, true);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_for_a_pod_that_was_replaced_meanwhile_is_no_failure() {
    let (_central, server, mut controller) = populated().await;
    server.hold(true);
    server.apply(pod_of("node-a", "new"));
    server.await_requests("the annotation of its address", |requests| {
        let of_pod = |it: &Request| it.method == "PATCH" && it.path.contains("/pods/new/");
        requests.iter().any(of_pod)
    });
    server.apply(pod("node-a", "default", "new", "another-uid", json!({})));
    server.hold(false);
    await_network(&server, "default", "new");
    let progress = controller.idle().await;
    assert_eq!(progress.write_failures, 0);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_gets_no_address_leaves_no_port_of_the_one_it_replaces() {
    let (central, server, mut controller) = populated().await;
    for (round, request) in ["ten", "10.244.0.2", "10.244.1.3"].iter().enumerate() {
        // Replaced while a controller leads, and while none does.
        for is_led in [true, false] {
            server.apply(pod(
                "node-a",
                "default",
                "web",
                &format!("{round}"),
                json!({}),
            ));
            await_row(&central, "Logical_Switch_Port", "default_web", true);
            controller.idle().await;
            let annotations = json!({ WISHED: request });
            let uid = format!("{round}-{is_led}");
            let other = pod("node-a", "default", "web", &uid, annotations);
            if is_led {
                server.apply(other);
            } else {
                controller.stop().await.unwrap();
                server.apply(other);
                controller = Running::start(&central, &server, &[]);
            }
            let told = |events: &[Value]| {
                let mut own = events.iter().map(|event| &event["involvedObject"]["uid"]);
                own.any(|it| *it == uid)
            };
            server.await_events("a refusal", told);
            await_row(&central, "Logical_Switch_Port", "default_web", false);
        }
    }
    // The address is another's later, and that one's alone.
    controller.idle().await;
    server.apply(pod("node-a", "default", "web", "last", json!({})));
    await_network(&server, "default", "web");
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_switch_is_another_s_leaves_no_port_of_the_one_it_replaces() {
    let (central, server, mut controller) = populated().await;
    central.nbctl("ls-add theirs");
    // The controller knows of the switch once it has made this port again.
    central.nbctl("lsp-del default_db");
    await_row(&central, "Logical_Switch_Port", "default_db", true);
    server.apply(node("theirs", "192.0.2.3"));
    server.apply(pod("theirs", "default", "web", "replaced", json!({})));
    await_row(&central, "Logical_Switch_Port", "default_web", false);
    controller.idle().await;
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_rests_before_another_pod_gets_it_also_if_it_asks_and_the_leader_changes() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    let long = Duration::from_secs(3600);
    let mut controller = Running::resting(long, &central, &server, &[]);
    controller.idle().await;
    let asking = |name: &str| {
        let annotations = json!({ WISHED: "10.244.0.200" });
        pod(
            "node-a",
            "default",
            name,
            &format!("uid-of-{name}"),
            annotations,
        )
    };
    server.apply(asking("fixed"));
    await_address(&server, "fixed", "10.244.0.200");
    server.delete("default", "fixed");
    server.apply(asking("second"));
    let said = |count: usize| {
        server.await_events("that it rests", |events| {
            let messages = events.iter().filter_map(|event| event["message"].as_str());
            messages
                .filter(|it| it.contains("only a moment ago"))
                .count()
                == count
        })
    };
    said(1);
    // One of the name of its former holder does not wait for its own.
    server.apply(asking("fixed"));
    await_address(&server, "fixed", "10.244.0.200");
    server.delete("default", "fixed");
    await_row(&central, "Logical_Switch_Port", "default_fixed", false);
    controller.stop().await.unwrap();

    // What an earlier leader freed, the next does not know. Others do not wait for that, but they
    // get an address beyond those that were assigned last.
    let mut controller = Running::resting(long, &central, &server, &[]);
    server.apply(asking("third"));
    said(2);
    server.apply(pod_of("node-a", "late"));
    await_address(&server, "late", "10.244.0.68");
    assert_eq!(
        names(&central, "Logical_Switch_Port").len(),
        PORTS.len() + 1
    );
    controller.idle().await;
    controller.stop().await.unwrap();
    let mut controller = Running::start(&central, &server, &[]);
    await_address(&server, "second", "10.244.0.200");
    controller.idle().await;
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_writes_a_pod_s_annotation_gets_no_address_by_it_and_takes_none() {
    let (central, server, mut controller) = populated().await;
    server.apply(pod_of("node-a", "a-thief"));
    await_network(&server, "default", "a-thief");
    controller.idle().await;
    let (web, thief) = (addresses(&central, "web"), addresses(&central, "a-thief"));
    let of_web = server.object("Pod", "default", "web").unwrap();
    let of_web = annotation(&of_web, NETWORKS).unwrap();
    let mut elsewhere = of_web.clone();
    elsewhere["default"]["gateway_ips"] = json!(["10.244.0.4"]);
    let told = [
        of_web.clone(),
        json!({}),
        json!({ "default": {} }),
        json!("no object"),
        elsewhere,
    ];
    for networks in &told {
        write_networks(&server, "a-thief", networks);
        await_address(&server, "a-thief", "10.244.0.4");
        write_networks(&server, "web", networks);
        await_address(&server, "web", "10.244.0.3");
    }
    // While nobody leads, and at once with another leader.
    for networks in &told {
        controller.stop().await.unwrap();
        write_networks(&server, "a-thief", networks);
        write_networks(&server, "web", &json!({}));
        controller = Running::start(&central, &server, &[]);
        controller.idle().await;
        await_address(&server, "a-thief", "10.244.0.4");
        await_address(&server, "web", "10.244.0.3");
    }
    assert_eq!(addresses(&central, "web"), web);
    assert_eq!(addresses(&central, "a-thief"), thief);

    // Without rows, what the kubelets report of living pods counts more than annotations.
    controller.stop().await.unwrap();
    for (name, address) in [("web", "10.244.0.3"), ("a-thief", "10.244.0.4")] {
        let mut pod = server.object("Pod", "default", name).unwrap();
        pod["status"] = json!({ "phase": "Running", "podIPs": [{ "ip": address }] });
        pod["metadata"]["annotations"][NETWORKS] = of_web.to_string().into();
        server.apply(pod);
    }
    write_networks(&server, "web", &json!({}));
    central.nbctl("ls-del node-a");
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    assert_eq!(addresses(&central, "web"), web);
    assert_eq!(addresses(&central, "a-thief"), thief);
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_write_of_their_own_networks_into_an_annotation_stays() {
    const SUBNETS: &str = "k8s.ovn.org/node-subnets";
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    let annotate = |kind: &str, object: Value, name: &str, value: &str| {
        let mut object = object;
        object["kind"] = kind.into();
        object["metadata"]["annotations"][name] = value.into();
        server.apply(object);
    };
    let blue = r#"{"a/blue":{"ip_addresses":["10.9.0.3/24"],"role":"secondary"}}"#;
    annotate("Pod", pod_of("node-a", "web"), NETWORKS, blue);
    let subnets = r#"{"a/blue":"10.9.0.0/24"}"#;
    annotate("Node", node("node-a", "192.0.2.1"), SUBNETS, subnets);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let entries = |kind: &str, namespace: &str, name: &str, key: &str| -> Value {
        annotation(&server.object(kind, namespace, name).unwrap(), key).unwrap()
    };
    let expected = json!({ "a/blue": "10.9.0.0/24", "default": ["10.244.0.0/24"] });
    assert_eq!(entries("Node", "", "node-a", SUBNETS), expected);
    let entry = entries("Pod", "default", "web", NETWORKS);
    assert_eq!(entry["a/blue"]["role"], "secondary");
    assert_eq!(entry["default"]["ip_address"], "10.244.0.3/24");

    // Another's write that takes ours away, or changes it.
    for ours in ["", r#","default":{"mac_address":"0a:58:0a:f4:00:09"}"#] {
        let red = format!(r#"{{"a/red":{{"role":"primary"}}{ours}}}"#);
        let pod = server.object("Pod", "default", "web").unwrap();
        annotate("Pod", pod, NETWORKS, &red);
        await_address(&server, "web", "10.244.0.3");
        let entry = entries("Pod", "default", "web", NETWORKS);
        assert_eq!(entry["a/red"]["role"], "primary");
    }
    controller.idle().await;

    // Another's write between what the controller knows and its own write.
    server.hold(true);
    let before = server.requests().len();
    server.apply(pod_of("node-a", "late"));
    server.await_requests("the controller's", |requests| {
        requests[before..].iter().any(|it| it.method == "PATCH")
    });
    annotate("Pod", pod_of("node-a", "late"), NETWORKS, blue);
    server.hold(false);
    await_address(&server, "late", "10.244.0.4");
    let entry = entries("Pod", "default", "late", NETWORKS);
    assert_eq!(entry["a/blue"]["role"], "secondary");

    let pod = server.object("Pod", "default", "web").unwrap();
    annotate("Pod", pod, NETWORKS, "{");
    await_address(&server, "web", "10.244.0.3");
    let told = server.await_events("the replacement", |events| !events.is_empty());
    assert_eq!(told[0]["reason"], "AnnotationReplaced");
    controller.idle().await;
    controller.stop().await.unwrap();
}
