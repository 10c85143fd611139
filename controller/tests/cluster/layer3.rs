//! Layer 3 networks: a part of the network for each node with pods of it, and a router between.

use std::net::{IpAddr, SocketAddr};

use podwire_tests::apiserver::{ApiServer, endpoints, node, service};
use podwire_tests::ovn::Central;
use podwire_tests::traffic;
use serde_json::{Value, json};

use crate::fixture::{Running, annotation, await_row, column, names, pod_of, populate, populated};
use crate::multi_policies::policy;
use crate::networks::{ASKED, NETWORKS, attached, await_entry, await_event, definition};
use crate::packets::{Named, Network};
use crate::policies::{TESTS, await_reach, connects, labelled, namespace};
use crate::primary::none_talk;
use crate::primary_exits::{BOTH, OUTSIDE, addresses, host, source, wired, with_network};
use crate::user_networks::{OF_CLUSTER, OF_NAMESPACE, is_made, of_namespace, of_team};

const NODE_SUBNETS: &str = "k8s.ovn.org/node-subnets";

pub(crate) fn divided(name: &str, subnets: &str) -> Value {
    let shape = json!({ "topology": "layer3", "subnets": subnets });
    definition(name, &format!("tenant-{name}"), &shape)
}

pub(crate) fn asking(node: &str, name: &str, of: &str) -> Value {
    let mut pod = pod_of(node, name);
    pod["metadata"]["annotations"][ASKED] = of.into();
    pod
}

/// A node's entry of a network.
fn part(server: &ApiServer, node: &str, network: &str) -> Value {
    let object = server.object("Node", "", node).unwrap();
    annotation(&object, NODE_SUBNETS).unwrap()[network].clone()
}

fn await_part(server: &ApiServer, node: &str, network: &str, wanted: &Value) {
    let of = |node: &Value| annotation(node, NODE_SUBNETS).map(|it| it[network].clone());
    server.await_object(("Node", "", node), |node| of(node).as_ref() == Some(wanted));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_node_with_pods_of_a_network_has_a_part_of_it_and_keeps_it() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    // Another writer's entry.
    let mut theirs = server.object("Node", "", "node-a").unwrap();
    let text = r#"{"theirs":["10.9.0.0/24"]}"#;
    theirs["metadata"]["annotations"][NODE_SUBNETS] = text.into();
    server.apply(theirs);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    server.apply(divided("blue", "10.1.0.0/16/24"));
    let router = "tenant.blue_ovn_cluster_router";
    await_row(&central, "Logical_Router", router, true);
    // Nobody is there: no node has a part.
    controller.idle().await;
    assert_eq!(part(&server, "node-a", "tenant-blue"), Value::Null);
    for (name, node) in [("one", "node-b"), ("two", "node-a"), ("three", "node-a")] {
        server.apply(asking(node, name, "blue"));
        await_entry(&server, name, "default/blue");
    }
    let entry = await_entry(&server, "three", "default/blue");
    let expected = json!({
        "ip_addresses": ["10.1.1.4/24"], "ip_address": "10.1.1.4/24", "role": "secondary",
        "mac_address": "0a:58:0a:01:01:04",
        "routes": [{ "dest": "10.1.0.0/16", "nextHop": "10.1.1.1" }],
    });
    assert_eq!(entry, expected);
    await_part(&server, "node-b", "tenant-blue", &json!(["10.1.0.0/24"]));
    await_part(&server, "node-a", "tenant-blue", &json!(["10.1.1.0/24"]));
    assert_eq!(part(&server, "node-a", "theirs"), json!(["10.9.0.0/24"]));
    assert_eq!(part(&server, "node-a", "default"), json!(["10.244.0.0/24"]));
    let port = |name: &str, of: &str| column(&central, "Logical_Router_Port", name, of);
    assert_eq!(port("rtos-tenant.blue_node-a", "networks"), "10.1.1.1/24");
    let chassis = names(&central, "Gateway_Chassis");
    assert!(
        chassis.contains(&"rtos-tenant.blue_node-a-node-a".to_owned()),
        "{chassis:?}"
    );

    // A successor has nothing to do, and knows who has what by the rows.
    controller.idle().await;
    controller.stop().await.unwrap();
    let mut next = Running::start(&central, &server, &[]);
    let done = next.idle().await;
    assert_eq!((done.operations, done.writes), (0, 0));
    let mut adopting = {
        next.stop().await.unwrap();
        Running::start(&central, &server, &["--adopt"])
    };
    assert_eq!(adopting.idle().await.operations, 0);
    adopting.stop().await.unwrap();
    let mut next = Running::start(&central, &server, &[]);
    next.idle().await;

    // What is removed by hand comes back as it was; so it does from annotations alone.
    central.nbctl("ls-del tenant.blue_node-a");
    await_row(
        &central,
        "Logical_Switch_Port",
        "default.blue_default_three",
        true,
    );
    next.idle().await;
    assert_eq!(await_entry(&server, "three", "default/blue"), expected);
    next.stop().await.unwrap();
    for row in [
        "lr-del tenant.blue_ovn_cluster_router",
        "ls-del tenant.blue_node-a",
        "ls-del tenant.blue_node-b",
    ] {
        central.nbctl(row);
    }
    let mut next = Running::start(&central, &server, &[]);
    next.idle().await;
    await_row(
        &central,
        "Logical_Switch_Port",
        "default.blue_default_three",
        true,
    );
    assert_eq!(await_entry(&server, "three", "default/blue"), expected);
    assert_eq!(port("rtos-tenant.blue_node-a", "networks"), "10.1.1.1/24");

    // It can't become another under pods. A further family is a part more, for new pods.
    server.apply(divided("blue", "10.1.0.0/16/25"));
    let said = "subnets of its spec.config can't be changed while pods are on the network";
    await_event(&server, "NetworkAttachmentDefinition", "blue", said);
    server.apply(divided("blue", "10.1.0.0/16/24,fd01::/48"));
    let of = |node: &Value| annotation(node, NODE_SUBNETS).map(|it| it["tenant-blue"].clone());
    let is_both =
        |node: &Value| of(node).is_some_and(|it| it[0] == "10.1.1.0/24" && it[1] != Value::Null);
    let both = of(&server.await_object(("Node", "", "node-a"), is_both)).unwrap();
    let prefix = both[1].as_str().unwrap().strip_suffix("::/64").unwrap();
    server.apply(asking("node-a", "four", "blue"));
    let entry = await_entry(&server, "four", "default/blue");
    let expected = json!(["10.1.1.5/24", format!("{prefix}::3/64")]);
    assert_eq!(entry["ip_addresses"], expected);
    let route = json!({ "dest": "fd01::/48", "nextHop": format!("{prefix}::1") });
    assert_eq!(entry["routes"][1], route);

    // Without pods and definition, nothing is left.
    for name in ["one", "two", "three", "four"] {
        server.delete("default", name);
    }
    server.delete_object("NetworkAttachmentDefinition", "default", "blue");
    await_row(&central, "Logical_Router", router, false);
    await_row(&central, "Logical_Switch", "tenant.blue_node-a", false);
    await_part(&server, "node-a", "tenant-blue", &Value::Null);
    assert_eq!(part(&server, "node-a", "theirs"), json!(["10.9.0.0/24"]));
    next.idle().await;
    assert_eq!(names(&central, "Logical_Router"), ["ovn_cluster_router"]);
    next.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_gets_no_part_is_told_and_gets_one_that_is_given_back() {
    let (central, server, mut controller) = populated().await;
    server.apply(divided("small", "10.1.0.0/24/24"));
    server.apply(asking("node-a", "first", "small"));
    await_entry(&server, "first", "default/small");
    server.apply(asking("node-b", "second", "small"));
    let said = "no part of 10.1.0.0/24 of network tenant-small is left for node node-b";
    await_event(&server, "Pod", "second", said);
    // Its port on the default network does not wait for that.
    await_row(&central, "Logical_Switch_Port", "default_second", true);
    // A node that is gone with its pods gives its part back.
    server.delete("default", "first");
    server.delete("default", "web");
    server.delete_object("Node", "", "node-a");
    let entry = await_entry(&server, "second", "default/small");
    assert_eq!(entry["ip_address"], "10.1.0.3/24");
    await_row(&central, "Logical_Switch", "tenant.small_node-a", false);
    // It comes again, and gets what is left then: nothing.
    server.apply(node("node-a", "192.0.2.1"));
    server.apply(asking("node-a", "third", "small"));
    await_event(&server, "Pod", "third", "is left for node node-a");
    controller.idle().await;
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_reach_each_other_across_parts_and_those_of_another_network_do_not() {
    let (network, controller) = Network::start(&BOTH);
    let agents = network.start_agents();
    let server = &network.server;
    server.apply(namespace(TESTS, json!({})));
    for name in ["blue", "red"] {
        server.apply(divided(name, "10.1.0.0/16/24,fd01::/48/64"));
    }
    let on = |of: &'static str| {
        [("one", 0), ("near", 0), ("far", 1)].map(|(name, node)| {
            let (pod, first) = attached(&network, node, &format!("{of}-{name}"), of);
            network.label(&pod, name);
            let object = server.object("Pod", &pod.namespace, &pod.name).unwrap();
            let entry = annotation(&object, NETWORKS).unwrap()[format!("default/{of}")].clone();
            assert_eq!(addresses(&entry)[0], first);
            (pod, addresses(&entry))
        })
    };
    let (blue, red) = (on("blue"), on("red"));
    network.central.sync();
    for [(one, _), (near, of_near), (far, of_far)] in [&blue, &red] {
        for (to, addresses) in [(near, of_near), (far, of_far)] {
            for address in addresses {
                traffic::ping_until_answered(one.place(), *address).unwrap();
                traffic::tcp_echo(one.place(), to.place(), *address, 1 << 20).unwrap();
            }
        }
    }
    let ([(one, _), ..], [(stranger, _), _, (second, of_second)]) = (&blue, &red);
    assert_eq!(of_second, &blue[2].1);
    let mut pairs = Vec::new();
    for (address, port) in of_second.iter().zip(9000..) {
        pairs.push((one, second.place(), SocketAddr::new(*address, port), None));
        let at = SocketAddr::new(*address, port + 100);
        pairs.push((stranger, blue[2].0.place(), at, None));
    }
    none_talk(&pairs);

    // MultiNetworkPolicies are for it, too.
    let [_, (near, _), (far, of_far)] = &blue;
    let _named = Named::start(far.place(), of_far[0], "far");
    let to_far = SocketAddr::new(of_far[0], 8080);
    await_reach(near.place(), to_far, true);
    let from_one = json!({ "podSelector": labelled("far"), "ingress": [
        { "from": [{ "podSelector": labelled("one") }] },
    ] });
    server.apply(policy("some", "default/blue", &from_one));
    await_reach(near.place(), to_far, false);
    assert!(connects(one.place(), to_far));
    drop(agents);
    controller.stop().await.unwrap();
}

/// A primary network by each kind of object: what a definition says, a user's network says too.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_network_of_parts_has_services_policies_and_a_way_out() {
    let (network, mut controller) = Network::start(&BOTH);
    let agents = network.start_agents();
    let (server, central) = (&network.server, &network.central);
    server.apply(crate::primary::labelled("shop"));
    let shape = json!({ "topology": "Layer3", "layer3": { "role": "Primary", "subnets": [
        { "cidr": "10.1.0.0/16", "hostSubnet": 24 }, { "cidr": "fd01::/48" },
    ] } });
    server.apply(of_namespace("own", &shape));
    is_made(server, (OF_NAMESPACE, "shop", "own"));
    // Another one with the same addresses.
    with_network(
        &network,
        "bank",
        &json!({ "topology": "layer3", "subnets": "10.1.0.0/16,fd01::/48" }),
    );
    let one = wired(&network, 0, "shop", "one");
    let two = wired(&network, 1, "shop", "two");
    let theirs = wired(&network, 1, "bank", "theirs");
    assert_eq!(
        one.own,
        ["10.1.0.3", "fd01::3"].map(|it| it.parse::<IpAddr>().unwrap())
    );
    let hosts = [host(&network, 0), host(&network, 1)];
    for port in [
        "rtoe-shop_own_node-a",
        "rtoe-shop_own_node-b",
        "rtoe-bank_node-b",
    ] {
        await_row(central, "Logical_Router_Port", port, true);
    }
    central.sync();
    for address in &two.own {
        traffic::ping_until_answered(one.pod.place(), *address).unwrap();
        traffic::tcp_echo(one.pod.place(), two.pod.place(), *address, 1 << 20).unwrap();
    }
    for (outside, at) in OUTSIDE.into_iter().zip(0..) {
        let address = outside.parse().unwrap();
        for (pod, host, number) in [(&one, 0, 0), (&two, 1, 1), (&theirs, 1, 1)] {
            traffic::ping_until_answered(pod.pod.place(), address).unwrap();
            let from = source(pod.pod.place(), hosts[host].place(), outside);
            let net = match at {
                0 => format!("10.244.{number}.0/24"),
                _ => format!("fd00:10:244:{number}::/64").replace(":0::", "::"),
            };
            assert!(
                net.parse::<ipnet::IpNet>().unwrap().contains(&from),
                "{from}"
            );
        }
    }
    // Its service leads to the pods on it, on all nodes.
    server.apply(service("shop", "front", "10.96.0.40", 80));
    server.apply(endpoints(
        "shop",
        "front",
        &[&two.default[0].to_string()],
        8080,
    ));
    let vips = json!(["map", [["10.96.0.40:80", format!("{}:8080", two.own[0])]]]);
    let is_there = json!([["vips", "==", vips]]);
    let waited = central
        .northbound()
        .wait("Load_Balancer", is_there, "!=", &["name"], json!([]));
    waited.unwrap();
    central.sync();
    let by: SocketAddr = "10.96.0.40:80".parse().unwrap();
    let at = SocketAddr::new(two.own[0], 8080);
    traffic::tcp_echo_by(one.pod.place(), two.pod.place(), at, Some(by), 1 << 16).unwrap();
    // Not to others, nor to the default network's addresses of its own pods.
    let on = SocketAddr::new;
    none_talk(&[
        (&theirs.pod, two.pod.place(), at, Some(by)),
        (&theirs.pod, one.pod.place(), on(one.own[0], 9001), None),
        (&theirs.pod, one.pod.place(), on(one.own[1], 9002), None),
        (&one.pod, two.pod.place(), on(two.default[0], 9003), None),
        (
            &two.pod,
            hosts[0].place(),
            on("10.244.0.2".parse().unwrap(), 9004),
            None,
        ),
    ]);
    // From the first packet on, a policy is for it.
    let _named = Named::start(two.pod.place(), two.own[0], "two");
    let to_two = on(two.own[0], 8080);
    await_reach(one.pod.place(), to_two, true);
    server.apply(crate::policies::policy(
        "shop",
        "deny",
        json!({ "podSelector": {} }),
    ));
    await_reach(one.pod.place(), to_two, false);
    // A successor has nothing to do.
    controller.idle().await;
    controller.stop().await.unwrap();
    let mut next = Running::start(central, server, &BOTH);
    let done = next.idle().await;
    assert_eq!((done.operations, done.writes), (0, 0));
    for wired in [&one, &two, &theirs] {
        wired.pod.del().success();
        server.delete(&wired.pod.namespace, &wired.pod.name);
    }
    server.delete_object(OF_NAMESPACE, "shop", "own");
    server.delete_object("NetworkAttachmentDefinition", "bank", "own");
    for router in ["shop_own_ovn_cluster_router", "bank_ovn_cluster_router"] {
        await_row(central, "Logical_Router", router, false);
    }
    next.idle().await;
    assert_eq!(names(central, "Logical_Router"), ["ovn_cluster_router"]);
    drop(agents);
    next.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_network_of_parts_joins_the_namespaces_that_it_selects() {
    let (network, mut controller) = Network::start(&BOTH);
    let agents = network.start_agents();
    let (server, central) = (&network.server, &network.central);
    for name in ["shop", "bank", "park"] {
        let mut namespace = crate::primary::labelled(name);
        namespace["metadata"]["labels"]["team"] =
            if name == "park" { "blue" } else { "red" }.into();
        server.apply(namespace);
    }
    let shape = json!({ "topology": "Layer3", "layer3": { "role": "Primary", "subnets": [
        { "cidr": "10.1.0.0/16", "hostSubnet": 24 }, { "cidr": "fd01::/48" },
    ] } });
    server.apply(of_team("own", "red", &shape));
    is_made(server, (OF_CLUSTER, "", "own"));
    let one = wired(&network, 0, "shop", "one");
    let near = wired(&network, 0, "bank", "near");
    let far = wired(&network, 1, "bank", "far");
    central.sync();
    // Those on one node share its part.
    let parts = [&one, &near, &far].map(|it| it.own.clone());
    let expected = [
        ["10.1.0.3", "fd01::3"],
        ["10.1.0.4", "fd01::4"],
        ["10.1.1.3", "fd01:0:0:1::3"],
    ];
    assert_eq!(
        parts,
        expected.map(|it| it.map(|it| it.parse::<IpAddr>().unwrap()).to_vec())
    );
    for to in [&near, &far] {
        for address in &to.own {
            traffic::ping_until_answered(one.pod.place(), *address).unwrap();
            traffic::tcp_echo(one.pod.place(), to.pod.place(), *address, 1 << 18).unwrap();
            traffic::udp_echo(to.pod.place(), one.pod.place(), one.own[0], 500).unwrap();
        }
    }
    // The services of each are the other's, too.
    server.apply(service("bank", "front", "10.96.0.40", 80));
    let end = far.default[0].to_string();
    server.apply(endpoints("bank", "front", &[&end], 8080));
    let vips = json!(["map", [["10.96.0.40:80", format!("{}:8080", far.own[0])]]]);
    let is_there = json!([["vips", "==", vips]]);
    let northbound = central.northbound();
    northbound
        .wait("Load_Balancer", is_there, "!=", &["name"], json!([]))
        .unwrap();
    central.sync();
    let by = Some("10.96.0.40:80".parse().unwrap());
    let at = SocketAddr::new(far.own[0], 8080);
    traffic::tcp_echo_by(one.pod.place(), far.pod.place(), at, by, 1 << 16).unwrap();
    let of_default = SocketAddr::new(far.default[0], 9003);
    none_talk(&[(&one.pod, far.pod.place(), of_default, None)]);
    // A namespace that it does not select has no network, and its pods wait.
    let mut alone = pod_of("node-a", "alone");
    alone["metadata"]["namespace"] = "park".into();
    server.apply(alone);
    await_event(server, "Pod", "alone", "no primary network yet");
    server.delete("park", "alone");
    controller.idle().await;
    controller.stop().await.unwrap();
    let mut next = Running::start(central, server, &BOTH);
    let done = next.idle().await;
    assert_eq!((done.operations, done.writes), (0, 0));
    drop(agents);
    next.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_get_parts_of_the_subnets_that_a_network_has_and_not_of_its_former_ones() {
    for restarts in [false, true] {
        let (central, server, mut controller) = populated().await;
        server.apply(divided("blue", "10.1.0.0/16/24"));
        server.apply(asking("node-a", "first", "blue"));
        await_entry(&server, "first", "default/blue");
        server.delete("default", "first");
        let port = "default.blue_default_first";
        await_row(&central, "Logical_Switch_Port", port, false);
        controller.idle().await;
        if restarts {
            controller.stop().await.unwrap();
            server.apply(divided("blue", "10.2.0.0/16/24"));
            controller = Running::start(&central, &server, &[]);
        } else {
            server.apply(divided("blue", "10.2.0.0/16/24"));
        }
        // The node has no part of it before it has a pod again.
        await_row(&central, "Logical_Switch", "tenant.blue_node-a", false);
        server.apply(asking("node-a", "second", "blue"));
        let entry = await_entry(&server, "second", "default/blue");
        assert_eq!(entry["ip_address"], "10.2.0.3/24", "restarted: {restarts}");
        await_part(&server, "node-a", "tenant-blue", &json!(["10.2.0.0/24"]));
        controller.idle().await;
        controller.stop().await.unwrap();
    }
}
