//! NetworkPolicies on primary networks, by packets: they are enforced on the network that pods have
//! in place of the default one, from the first packet on, and know the pods of that network alone.

use std::net::SocketAddr;

use podwire_tests::apiserver::{ApiServer, endpoints, pod, pod_on, service};
use podwire_tests::ovn::Central;
use podwire_tests::schema::assert_valid;
use podwire_tests::{Pod, traffic};
use serde_json::{Value, json};

use crate::fixture::{Running, annotation, await_network, await_row, column, names, populate};
use crate::flood::{FIRST, close, restart_everything, start_pods, starts};
use crate::members::{atoms, ports_in};
use crate::networks::{NETWORKS, await_event};
use crate::older_rows::{Replay, records, uuids};
use crate::packets::{Named, Network, ask};
use crate::policies::{TESTS, await_reach, connects, labelled, namespace, policy};
use crate::primary::{self, LABEL, of_shop, primary};
use crate::tools;
use crate::user_networks::{OF_NAMESPACE, is_made, of_namespace};

/// A network for a namespace, of which all of these have the same subnet.
fn with_network(network: &Network, name: &str, labels: &Value) {
    let server = &network.server;
    let mut own = json!({ LABEL: "" });
    own.as_object_mut()
        .unwrap()
        .extend(labels.as_object().unwrap().clone());
    server.apply(namespace(name, own));
    let mut blue = of_namespace("blue", &primary("10.1.0.0/24"));
    blue["metadata"]["namespace"] = name.into();
    blue["metadata"]["uid"] = format!("uid-of-{name}-blue").into();
    server.apply(blue);
    is_made(server, (OF_NAMESPACE, name, "blue"));
}

fn on_primary(flags: &[&str]) -> (Network, Running) {
    let (mut network, controller) = Network::start(flags);
    with_network(&network, TESTS, &json!({ "team": "red" }));
    network.primary = Some("blue");
    (network, controller)
}

/// Every probe of its node arrives by the pod's port on the default network, and DNS leaves by it.
fn with_dns<'n>(network: &'n Network) -> Pod<'n> {
    let node = &network.nodes[0];
    node.run(
        "ovs-vsctl",
        "add-port br-int mp0 -- set interface mp0 type=internal mac=\"0a:58:0a:f4:00:02\" \
         external_ids:iface-id=k8s-node-a",
    );
    node.run("ip", "address add 10.244.0.2/24 dev mp0");
    node.run("ip", "link set mp0 up");
    network.central.await_up("k8s-node-a", true);
    let server = &network.server;
    server.apply(namespace("kube-system", json!({})));
    let mut dns = network.nodes[1].pod("dns");
    "kube-system".clone_into(&mut dns.namespace);
    server.apply(pod_on(&network.nodes[1].name, &dns, json!({})));
    let is_there = |pod: &Value| annotation(pod, NETWORKS).is_some();
    let object = server.await_object(("Pod", "kube-system", "dns"), is_there);
    let all = annotation(&object, NETWORKS).unwrap();
    let address = all["default"]["ip_address"].as_str().unwrap();
    let address = address.split('/').next().unwrap();
    let udp = |mut object: Value, ports: &str| {
        object.pointer_mut(ports).unwrap()["protocol"] = "UDP".into();
        object
    };
    let of_dns = service("kube-system", "kube-dns", "10.96.0.53", 53);
    server.apply(udp(of_dns, "/spec/ports/0"));
    server.apply(udp(
        endpoints("kube-system", "kube-dns", &[address], 53),
        "/ports/0",
    ));
    let row = "Service_kube-system/kube-dns_UDP_cluster";
    await_row(&network.central, "Load_Balancer", row, true);
    let dns = dns.annotate(NETWORKS, &all);
    dns.add().success();
    dns
}

/// A pod's address on the default network.
fn of_default(network: &Network, pod: &Pod<'_>) -> std::net::IpAddr {
    let object = network
        .server
        .object("Pod", &pod.namespace, &pod.name)
        .unwrap();
    let all = annotation(&object, NETWORKS).unwrap();
    let address = all["default"]["ip_address"].as_str().unwrap();
    address.split('/').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_enforced_on_the_primary_network_of_its_pods_by_that_networks_addresses() {
    let (network, mut controller) = on_primary(&[]);
    let agents = network.start_agents();
    let dns = with_dns(&network);
    // Of another network, with the same addresses one by one.
    with_network(&network, "bank", &json!({}));
    let theirs = ["web", "near", "far"].map(|name| network.pod_of("bank", 0, name, name));
    let (web, web_address) = network.labelled_pod(0, "web", "web");
    let (near, near_address) = network.labelled_pod(0, "near", "front");
    let (far, far_address) = network.labelled_pod(1, "far", "front");
    let [(their_web, their_address), (their_near, _), (their_far, _)] = &theirs;
    assert_eq!((theirs[0].1, theirs[1].1), (web_address, near_address));
    let named = [
        Named::start(web.place(), web_address, "web"),
        Named::start(far.place(), far_address, "far"),
        Named::start(their_web.place(), *their_address, "their-web"),
    ];
    let (to_web, to_far) = (
        SocketAddr::new(web_address, 8080),
        SocketAddr::new(far_address, 8080),
    );
    let all = [&near, &far, their_near, their_far];
    for client in all {
        await_reach(client.place(), to_web, true);
    }

    // Nothing in. The pods of another network have nothing to do with it.
    let server = &network.server;
    let deny = json!({ "podSelector": labelled("web") });
    server.apply(policy(TESTS, "deny", deny.clone()));
    for client in [&near, &far] {
        await_reach(client.place(), to_web, false);
    }
    assert_eq!(ask(their_near.place(), to_web).as_deref(), Ok("their-web"));
    assert_eq!(ask(web.place(), to_far).as_deref(), Ok("far"));
    // Its node, and DNS, are by the other interface.
    let node = &network.nodes[0];
    let at = of_default(&network, &web);
    traffic::tcp_echo(node.place(), web.place(), at, 1 << 10).unwrap();

    // By labels of pods, which change; through a service, too.
    let from_front = json!({ "podSelector": labelled("web"), "ingress": [
        { "from": [{ "podSelector": labelled("front") }], "ports": [{ "port": "web" }] },
    ] });
    server.apply(policy(TESTS, "allow", from_front));
    server.apply(service(TESTS, "front", "10.96.0.40", 80));
    server.apply(endpoints(TESTS, "front", &[&at.to_string()], 8080));
    let row = "Service_tests/front_TCP_cluster";
    await_row(&network.central, "Load_Balancer", row, true);
    let vip: SocketAddr = "10.96.0.40:80".parse().unwrap();
    for client in [&near, &far] {
        await_reach(client.place(), to_web, true);
        await_reach(client.place(), vip, true);
        assert_eq!(ask(client.place(), vip).as_deref(), Ok("web"));
    }
    // Itself by its service, and who is next to it, are always there.
    await_reach(web.place(), vip, true);
    web.place().run(|| {
        let mut command = std::process::Command::new("ip");
        command.args(["neigh", "flush", "dev", "ovn-udn1"]);
        assert!(command.status().unwrap().success());
    });
    assert_eq!(ask(web.place(), to_far).as_deref(), Ok("far"));
    network.label(&far, "other");
    await_reach(far.place(), to_web, false);
    assert!(!connects(far.place(), vip) && connects(near.place(), to_web));

    // A peer of the other network's namespace is nobody here, and the other way round, although
    // their addresses are those of pods here.
    let from_red = json!({ "podSelector": labelled("web"), "ingress": [
        { "from": [{ "namespaceSelector": { "matchLabels": { "team": "red" } } }] },
    ] });
    server.apply(policy("bank", "of-red", from_red.clone()));
    for client in [their_near, their_far] {
        await_reach(client.place(), to_web, false);
    }
    server.delete_object("NetworkPolicy", TESTS, "allow");
    server.apply(policy(TESTS, "of-red", from_red));
    await_reach(far.place(), to_web, true);

    // Out: to one pod alone, behind its service too; and DNS is always there.
    let out = json!({ "podSelector": labelled("front"), "policyTypes": ["Egress"],
        "egress": [{ "to": [{ "podSelector": labelled("other") }] }] });
    server.apply(policy(TESTS, "out", out));
    await_reach(near.place(), to_web, false);
    assert!(!connects(near.place(), vip) && connects(near.place(), to_far));
    let by = Some("10.96.0.53:53".parse().unwrap());
    let of_dns = SocketAddr::new(of_default(&network, &dns), 53);
    traffic::udp_echo_by(near.place(), dns.place(), of_dns, by, 100).unwrap();

    // A successor has nothing to do; a policy that is gone closes nothing, and leaves nothing.
    controller.idle().await;
    controller.stop().await.unwrap();
    let mut controller = Running::start(&network.central, server, &[]);
    let progress = controller.idle().await;
    assert_eq!((progress.operations, progress.writes), (0, 0));
    for name in ["deny", "of-red", "out"] {
        server.delete_object("NetworkPolicy", TESTS, name);
    }
    server.delete_object("NetworkPolicy", "bank", "of-red");
    for client in [&near, &far, their_near] {
        await_reach(client.place(), to_web, true);
    }
    controller.idle().await;
    let is_policys = |name: &String| name.starts_with("NP:");
    assert!(!names(&network.central, "ACL").iter().any(is_policys));
    drop((named, agents));
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_on_a_primary_network_receives_nothing_forbidden_from_its_first_packet_on() {
    let (network, controller) = on_primary(&[]);
    start_pods(&network, close, starts());
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_restarts_and_no_order_of_objects_opens_a_primary_networks_pods() {
    let (network, controller) = on_primary(&FIRST);
    // As `podwire node` has it. With false an ovn-controller that starts again has the flows of a
    // switch before some of those that it has in common with others, and lets packets pass.
    for node in &network.nodes {
        node.vsctl("set open_vswitch . external_ids:ovn-monitor-all=true");
    }
    let kinds = [
        "networkpolicies",
        "namespaces",
        "pods",
        "services",
        "network-attachment-definitions",
    ];
    let last = restart_everything(&network, controller, close, &kinds).await;
    last.stop().await.unwrap();
}

/// By rows: what comes and goes with the network, and with those whose policies count there.
#[tokio::test(flavor = "multi_thread")]
async fn the_rows_of_policies_on_a_network_go_with_it_and_come_again() {
    let (network, mut controller) = on_primary(&[]);
    let (central, server) = (&network.central, &network.server);
    let from_front = json!({ "podSelector": labelled("web"), "ingress": [
        { "from": [{ "podSelector": labelled("front") }] },
    ] });
    server.apply(policy(TESTS, "allow", from_front));
    let _web = network.announced(0, "web", "web");
    let _front = network.announced(0, "front", "front");
    controller.idle().await;
    let of_blue = |table: &str| {
        let rows = central.northbound().rows(table).unwrap();
        let controller = "tests_blue-network-controller";
        // Those of its way out are not policies'.
        let own = rows.into_iter().filter(|row| {
            let ids = &row["external_ids"];
            ids["k8s.ovn.org/owner-controller"] == controller
                && ids["k8s.ovn.org/owner-type"] != "Gateways"
        });
        own.collect::<Vec<_>>()
    };
    let group = of_blue("Port_Group");
    assert_eq!(group.len(), 1, "{group:?}");
    let ports = ports_in(central, group[0]["name"].as_str().unwrap());
    assert_eq!(ports, ["tests.blue_tests_web".to_owned()].into());
    let sets = of_blue("Address_Set");
    let members: Vec<String> = sets
        .iter()
        .flat_map(|row| atoms(&row["addresses"]))
        .collect();
    assert_eq!(members, ["10.1.0.3"]);
    // One that drops, one for neighbours, and the rule.
    assert_eq!(of_blue("ACL").len(), 3);
    // The network goes, and with it what is only there for its pods.
    for name in ["web", "front"] {
        server.delete(TESTS, name);
    }
    server.delete_object(OF_NAMESPACE, TESTS, "blue");
    await_row(
        central,
        "Logical_Switch",
        "tests_blue_ovn_layer2_switch",
        false,
    );
    let is_gone = || {
        ["Port_Group", "Address_Set", "ACL"]
            .iter()
            .all(|it| of_blue(it).is_empty())
    };
    controller
        .until(|progress| progress.is_idle && is_gone())
        .await;
    with_network(&network, TESTS, &json!({}));
    let _web = network.announced(0, "web", "web");
    let _front = network.announced(0, "front", "front");
    controller.idle().await;
    assert_eq!(
        (of_blue("Port_Group").len(), of_blue("Address_Set").len()),
        (1, 2)
    );
    controller.stop().await.unwrap();
    let mut next = Running::start(central, server, &[]);
    assert_eq!(next.idle().await.operations, 0);
    next.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_says_what_locks_a_pod_and_follows_it_on_its_own_network() {
    let (network, mut controller) = on_primary(&[]);
    let (central, server) = (&network.central, &network.server);
    let deny = json!({ "podSelector": labelled("web"), "ingress": [
        { "from": [{ "podSelector": labelled("front") }] },
    ] });
    server.apply(policy(TESTS, "some", deny));
    for (name, app) in [("web", "web"), ("front", "front"), ("other", "other")] {
        network.announced(0, name, app);
    }
    server.apply(namespace("open", json!({})));
    server.apply(pod("node-a", "open", "plain", "uid-of-plain", json!({})));
    await_network(server, "open", "plain");
    controller.idle().await;
    central.sync();
    let explain = |pod: &str, more: &[&str]| {
        tools::ask(
            central,
            server,
            &[&["explain", "pod", pod][..], more].concat(),
        )
    };
    let (_, text) = explain("tests/web", &[]);
    for part in [
        "locked     by its primary network tests_blue: its node alone",
        "services kube-system/kube-dns and default/kubernetes alone\n",
        "network    tests/blue on tests_blue: Logical_Switch_Port tests.blue_tests_web",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let to = |from: &str, to: &str| explain(from, &["--to", to, "--port", "80"]);
    let (arrives, text) = to("tests/front", "tests/web");
    let ends = [
        "allowed by rule 0 of policy some",
        "at port tests.blue_tests_web",
    ];
    assert!(arrives && ends.iter().all(|it| text.contains(it)), "{text}");
    let (arrives, text) = to("tests/other", "10.1.0.2");
    assert!(
        !arrives && text.contains("no rule of some allows it"),
        "{text}"
    );
    for (from, target) in [("tests/other", "open/plain"), ("open/plain", "tests/web")] {
        let (arrives, text) = to(from, target);
        let why = "its port there is locked by its primary network tests_blue";
        assert!(!arrives && text.contains(why), "{text}");
    }
    let (_, text) = explain("tests/front", &["--to", "tests/web", "-o", "json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_valid("controllerExplain", &json);
    assert_eq!(json["primaryNetwork"], "tests_blue");
    controller.stop().await.unwrap();
}

/// The database's log says what each transaction made.
#[tokio::test(flavor = "multi_thread")]
async fn no_transaction_opens_a_pod_whose_network_becomes_a_primary_one() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    server.apply(primary::labelled("shop"));
    server.apply(policy("shop", "deny", json!({ "podSelector": {} })));
    server.apply(of_shop("red", "secondary", "10.1.0.0/24"));
    let mut controller = Running::start(&central, &server, &[]);
    await_row(&central, "Logical_Switch", "red_ovn_layer2_switch", true);
    server.apply(pod("node-a", "shop", "early", "uid-of-early", json!({})));
    await_event(&server, "Pod", "early", "has the label");
    controller.idle().await;
    server.apply(of_shop("red", "primary", "10.1.0.0/24"));
    let name = "shop.red_shop_early";
    await_row(&central, "Logical_Switch_Port", name, true);
    controller.idle().await;
    controller.stop().await.unwrap();
    let port = column(&central, "Logical_Switch_Port", name, "_uuid");
    let port = uuids(&port).pop_first().unwrap();
    let mut replay = Replay::default();
    let mut after = 0;
    for record in records(&central) {
        replay.apply(&record);
        after += usize::from(after > 0 || !record["Logical_Switch_Port"][&port].is_null());
        let mut acls = replay.acls_of(&port).into_iter();
        let is_closed = acls.any(|(action, text)| action == "drop" && text.starts_with("outport"));
        assert!(after == 0 || is_closed, "{after}: {record}");
    }
    assert!(after > 0);
}
