//! Primary networks: all pods of a namespace on a network of their own.

use std::net::{IpAddr, SocketAddr};
use std::thread;

use podwire_tests::apiserver::{ApiServer, endpoints, node, pod, pod_on, service};
use podwire_tests::ovn::Central;
use podwire_tests::{Place, Pod, links, traffic};
use serde_json::{Value, json};

use crate::fixture::{
    Running, annotation, await_network, await_row, column, names, populate, populated,
};
use crate::networks::{ASKED, NETWORKS, await_event, definition, made};
use crate::packets::Network;
use crate::user_networks::{OF_NAMESPACE, is_made, of_namespace};

pub(crate) const LABEL: &str = "k8s.ovn.org/primary-user-defined-network";

pub(crate) fn namespace(name: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": name, "uid": format!("uid-of-{name}"), "labels": labels },
    })
}

pub(crate) fn labelled(name: &str) -> Value {
    namespace(name, &json!({ LABEL: "" }))
}

pub(crate) fn primary(subnet: &str) -> Value {
    json!({ "topology": "Layer2", "layer2": { "role": "Primary", "subnets": [subnet] } })
}

/// A definition in the namespace `shop`, of the network of its name.
pub(crate) fn of_shop(name: &str, role: &str, subnet: &str) -> Value {
    let of = format!("shop/{name}");
    let more = json!({ "role": role, "subnets": subnet, "netAttachDefName": of });
    let mut definition = definition(name, name, &more);
    definition["metadata"]["namespace"] = "shop".into();
    definition
}

fn address(entry: &Value) -> IpAddr {
    let text = entry["ip_address"].as_str().unwrap();
    text.split('/').next().unwrap().parse().unwrap()
}

/// A pod of a namespace, wired: its address on the default network, and the other it may have.
fn wired<'a>(
    network: &'a Network,
    node: usize,
    (namespace, name): (&str, &str),
    other: Option<&str>,
) -> (Pod<'a>, IpAddr, Option<IpAddr>) {
    let node = &network.nodes[node];
    let mut pod = node.pod(name);
    namespace.clone_into(&mut pod.namespace);
    network.server.apply(pod_on(&node.name, &pod, json!({})));
    let of = |pod: &Value, entry: &str| annotation(pod, NETWORKS).map(|it| it[entry].clone());
    let has = |pod: &Value, entry: &str| of(pod, entry).is_some_and(|it| !it.is_null());
    let is_there = |pod: &Value| has(pod, "default") && other.is_none_or(|it| has(pod, it));
    let object = network
        .server
        .await_object(("Pod", namespace, name), is_there);
    let own = address(&of(&object, "default").unwrap());
    let of_other = other.map(|it| address(&of(&object, it).unwrap()));
    let pod = pod.annotate(NETWORKS, &annotation(&object, NETWORKS).unwrap());
    let result = pod.add().success();
    pod.check(&result).success();
    (pod, own, of_other)
}

/// From, to, and where that listens, perhaps by another address.
type Pair<'a> = (&'a Pod<'a>, &'a Place, SocketAddr, Option<SocketAddr>);

/// Each takes the whole time that a connection may take.
#[track_caller]
pub(crate) fn none_talk(pairs: &[Pair<'_>]) {
    thread::scope(|scope| {
        for &(from, to, at, by) in pairs {
            scope.spawn(move || {
                let echoed = traffic::tcp_echo_by(from.place(), to, at, by, 16);
                assert!(echoed.is_err(), "{} to {at}", from.name);
            });
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_primary_network_reach_each_other_their_services_and_dns_and_nobody_else() {
    let (network, mut controller) = Network::start(&[]);
    let agents = network.start_agents();
    let server = &network.server;
    for name in ["kube-system", "tests"] {
        server.apply(namespace(name, &json!({})));
    }
    let (dns, of_dns, _) = wired(&network, 1, ("kube-system", "dns"), None);
    let mut kube_dns = service("kube-system", "kube-dns", "10.96.0.53", 53);
    kube_dns["spec"]["ports"][0]["protocol"] = "UDP".into();
    server.apply(kube_dns);
    let mut slice = endpoints("kube-system", "kube-dns", &[&of_dns.to_string()], 53);
    slice["ports"][0]["protocol"] = "UDP".into();
    server.apply(slice);
    await_row(
        &network.central,
        "Load_Balancer",
        "Service_kube-system/kube-dns_UDP_cluster",
        true,
    );
    // Two networks with the same subnet, one by each kind of object.
    server.apply(labelled("shop"));
    server.apply(of_namespace("blue", &primary("10.1.0.0/24")));
    server.apply(labelled("bank"));
    let mut red = definition(
        "red",
        "red",
        &json!({ "role": "primary", "subnets": "10.1.0.0/24", "netAttachDefName": "bank/red" }),
    );
    red["metadata"]["namespace"] = "bank".into();
    server.apply(red);
    let (one, default_of_one, _) = wired(&network, 0, ("shop", "one"), Some("shop/blue"));
    let (two, default_of_two, of_two) = wired(&network, 1, ("shop", "two"), Some("shop/blue"));
    let (three, _, of_three) = wired(&network, 0, ("bank", "three"), Some("bank/red"));
    let (four, _, of_four) = wired(&network, 1, ("bank", "four"), Some("bank/red"));
    let (plain, of_plain, _) = wired(&network, 0, ("tests", "plain"), None);
    assert_eq!(of_three, Some("10.1.0.2".parse().unwrap()));
    assert_eq!(of_four, of_two);
    let of_two = of_two.unwrap();
    network.central.sync();

    // Among themselves, by the interface that has their way out.
    let mut ways_out = links::default_routes(one.place());
    ways_out.dedup();
    assert_eq!(ways_out, ["ovn-udn1"]);
    traffic::ping_until_answered(one.place(), of_two).unwrap();
    traffic::tcp_echo(one.place(), two.place(), of_two, 1 << 20).unwrap();
    traffic::ping_until_answered(three.place(), of_two).unwrap();
    traffic::tcp_echo(three.place(), four.place(), of_two, 1 << 16).unwrap();
    // Not to others, nor from them.
    // Each on a port of its own, for they listen at the same time.
    let on = |address, port| SocketAddr::new(address, port);
    none_talk(&[
        (&three, two.place(), on(of_two, 9001), None),
        (&one, plain.place(), on(of_plain, 9002), None),
        (&plain, one.place(), on(default_of_one, 9003), None),
        (&plain, two.place(), on(default_of_two, 9004), None),
        (&three, one.place(), on(default_of_one, 9005), None),
        (&one, dns.place(), on(of_dns, 9006), None),
    ]);
    // The node, which probes its pods, reaches them; and they reach the cluster's DNS.
    let node = &network.nodes[0];
    node.run(
        "ovs-vsctl",
        "add-port br-int mp0 -- set interface mp0 type=internal mac=\"0a:58:0a:f4:00:02\" \
         external_ids:iface-id=k8s-node-a",
    );
    node.run("ip", "address add 10.244.0.2/24 dev mp0");
    node.run("ip", "link set mp0 up");
    network.central.await_up("k8s-node-a", true);
    network.central.sync();
    traffic::ping_until_answered(node.place(), default_of_one).unwrap();
    traffic::tcp_echo(node.place(), one.place(), default_of_one, 1 << 16).unwrap();
    let by = Some("10.96.0.53:53".parse().unwrap());
    let at = SocketAddr::new(of_dns, 53);
    for pod in [&one, &three, &plain] {
        traffic::udp_echo_by(pod.place(), dns.place(), at, by, 500).unwrap();
    }
    // A service of their own is theirs alone.
    server.apply(service("shop", "front", "10.96.0.40", 80));
    server.apply(endpoints(
        "shop",
        "front",
        &[&default_of_two.to_string()],
        8080,
    ));
    let vips = json!(["map", [["10.96.0.40:80", format!("{of_two}:8080")]]]);
    let condition = json!([
        ["name", "==", "Service_shop/front_TCP_cluster"],
        ["vips", "==", vips]
    ]);
    let northbound = network.central.northbound();
    northbound
        .wait("Load_Balancer", condition, "!=", &["name"], json!([]))
        .unwrap();
    network.central.sync();
    let by = Some("10.96.0.40:80".parse().unwrap());
    let at = SocketAddr::new(of_two, 8080);
    traffic::tcp_echo_by(one.place(), two.place(), at, by, 1 << 16).unwrap();
    for pod in [&three, &plain] {
        none_talk(&[(pod, two.place(), at, by)]);
    }
    // A successor has nothing to do.
    controller.idle().await;
    controller.stop().await.unwrap();
    let mut next = Running::start(&network.central, server, &[]);
    let done = next.idle().await;
    assert_eq!((done.operations, done.writes), (0, 0));
    for pod in [&one, &two, &three, &four, &plain, &dns] {
        pod.del().success();
        server.delete(&pod.namespace, &pod.name);
    }
    server.delete_object(OF_NAMESPACE, "shop", "blue");
    for switch in ["shop_blue_ovn_layer2_switch", "red_ovn_layer2_switch"] {
        let is_there = switch.starts_with("red");
        await_row(&network.central, "Logical_Switch", switch, is_there);
    }
    drop(agents);
    next.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_has_one_primary_network_by_its_label_and_a_pod_waits_for_that() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    // Then each pod's namespace is waited for.
    server.apply(namespace("default", &json!({})));
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let annotated = |server: &ApiServer, namespace: &str, name: &str| {
        let object = server.object("Pod", namespace, name).unwrap();
        annotation(&object, NETWORKS)
    };
    let of_shop = |name: &str| pod("node-a", "shop", name, &format!("uid-of-{name}"), json!({}));
    server.apply(labelled("shop"));
    server.apply(of_shop("early"));
    await_event(&server, "Pod", "early", "has the label");
    assert_eq!(annotated(&server, "shop", "early"), None);
    server.apply(of_namespace("blue", &primary("10.1.0.0/24")));
    is_made(&server, (OF_NAMESPACE, "shop", "blue"));
    let is_there = |pod: &Value| {
        annotation(pod, NETWORKS).is_some_and(|it| it["shop/blue"]["role"] == "primary")
    };
    let object = server.await_object(("Pod", "shop", "early"), is_there);
    let entries = annotation(&object, NETWORKS).unwrap();
    assert_eq!(entries["default"]["role"], "infrastructure-locked");
    let expected = json!({
        "ip_addresses": ["10.1.0.2/24"], "ip_address": "10.1.0.2/24", "role": "primary",
        "mac_address": "0a:58:0a:01:00:02", "gateway_ips": ["10.1.0.1"],
    });
    assert_eq!(entries["shop/blue"], expected);
    let router = "rtos-shop_blue_ovn_layer2_switch";
    assert_eq!(
        column(&central, "Logical_Router_Port", router, "networks"),
        "10.1.0.1/24"
    );

    // A second one is refused, and one of a namespace without the label.
    server.apply(of_namespace("late", &primary("10.2.0.0/24")));
    await_event(
        &server,
        "NetworkAttachmentDefinition",
        "late",
        "the primary network of blue",
    );
    server.apply(namespace("open", &json!({})));
    let mut open = of_namespace("green", &primary("10.3.0.0/24"));
    open["metadata"]["namespace"] = "open".into();
    server.apply(open);
    await_event(
        &server,
        "NetworkAttachmentDefinition",
        "green",
        "lacks the label",
    );
    server.apply(pod("node-a", "open", "usual", "uid-of-usual", json!({})));
    let usual = await_network(&server, "open", "usual");
    assert!(usual["role"].is_null(), "{usual}");
    // A label that comes later changes nothing for a pod that is there.
    server.apply(labelled("open"));
    // Pods and labels are reported by two watches.
    is_made(&server, (OF_NAMESPACE, "open", "green"));
    server.apply(pod("node-a", "open", "new", "uid-of-new", json!({})));
    let is_there = |pod: &Value| {
        annotation(pod, NETWORKS).is_some_and(|it| it["open/green"]["role"] == "primary")
    };
    server.await_object(("Pod", "open", "new"), is_there);
    assert_eq!(await_network(&server, "open", "usual"), usual);
    // Who asks for another's primary network does not get it.
    let asked = json!({ ASKED: "shop/blue" });
    server.apply(pod("node-a", "open", "thief", "uid-of-thief", asked));
    await_event(
        &server,
        "Pod",
        "thief",
        "shop/blue: a primary network has the pods",
    );
    // It stays while pods are on it.
    server.delete_object(OF_NAMESPACE, "shop", "blue");
    await_event(&server, OF_NAMESPACE, "blue", "shop/early");
    // What a pod has is known by the rows; the label may be gone.
    server.apply(namespace("shop", &json!({})));
    controller.idle().await;
    controller.stop().await.unwrap();
    let mut next = Running::start(&central, &server, &[]);
    let done = next.idle().await;
    // It says again what is refused.
    assert_eq!(done.operations, 0);
    next.stop().await.unwrap();
    // Nor does one that adopts rows take the network's router port for a node's.
    let mut adopting = Running::start(&central, &server, &["--adopt"]);
    assert_eq!(adopting.idle().await.operations, 0);
    adopting.stop().await.unwrap();
}

/// The ACLs of locked ports: their uuids and matches.
fn locks(central: &Central) -> Vec<(Value, Value)> {
    let rows = central.northbound().rows("ACL").unwrap();
    let is_lock = |name: &Value| name.as_str().is_some_and(|it| it.starts_with("UDN:"));
    let own = rows.into_iter().filter(|row| is_lock(&row["name"]));
    own.map(|row| (row["_uuid"].clone(), row["match"].clone()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_of_the_clusters_dns_is_a_setting_and_its_pods_are_members_of_a_set() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    server.apply(labelled("shop"));
    let udp = |mut object: Value, ports: &str| {
        let ports = object.pointer_mut(ports).unwrap();
        ports["protocol"] = "UDP".into();
        object
    };
    let of_dns = service("openshift-dns", "dns-default", "10.96.0.53", 53);
    server.apply(udp(of_dns, "/spec/ports/0"));
    let leads_to = |addresses: &[&str]| {
        let slice = endpoints("openshift-dns", "dns-default", addresses, 5353);
        server.apply(udp(slice, "/ports/0"));
    };
    leads_to(&["10.244.0.9"]);
    server.apply(of_namespace("blue", &primary("10.1.0.0/24")));
    let flags = ["--dns-service=openshift-dns/dns-default"];
    let mut controller = Running::start(&central, &server, &flags);
    is_made(&server, (OF_NAMESPACE, "shop", "blue"));
    server.apply(pod("node-a", "shop", "web", "uid-of-web", json!({})));
    let has_route = |pod: &Value| {
        annotation(pod, NETWORKS).is_some_and(|it| it["default"].to_string().contains("10.96.0.53"))
    };
    server.await_object(("Pod", "shop", "web"), has_route);
    controller.idle().await;
    let first = locks(&central);
    assert!(
        first
            .iter()
            .any(|(_, it)| it.to_string().contains("udp.dst == 5353")),
        "{first:?}"
    );
    let in_sets = |address: &str, until: &str| {
        let condition = json!([["addresses", "==", address]]);
        let northbound = central.northbound();
        let waited = northbound.wait("Address_Set", condition, until, &["name"], json!([]));
        waited.unwrap();
    };
    in_sets("10.244.0.9", "!=");
    // One that is replaced, with a moment without any.
    leads_to(&[]);
    in_sets("10.244.0.9", "==");
    leads_to(&["10.244.1.9"]);
    in_sets("10.244.1.9", "!=");
    controller.idle().await;
    assert_eq!(locks(&central), first);
    controller.stop().await.unwrap();
    let mut next = Running::start(&central, &server, &flags);
    let done = next.idle().await;
    assert_eq!((done.operations, done.writes), (0, 0));
    // The sets go with the last primary network.
    server.delete("shop", "web");
    server.delete_object(OF_NAMESPACE, "shop", "blue");
    in_sets("10.244.1.9", "==");
    next.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_user_writes_leads_out_of_no_primary_network_nor_to_its_routers_address() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    server.apply(labelled("shop"));
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let written = |name: &str, entries: &Value| {
        let annotations = json!({ NETWORKS: entries.to_string() });
        pod(
            "node-a",
            "shop",
            name,
            &format!("uid-of-{name}"),
            annotations,
        )
    };
    let default = json!({ "default": {
        "mac_address": "0a:58:0a:f4:00:63", "ip_addresses": ["10.244.0.99/24"],
    } });
    server.apply(written("leaver", &default));
    await_event(&server, "Pod", "leaver", "has the label");
    // The cluster's own networks are no primary network's.
    for (name, subnet) in [("pods", "10.244.7.0/24"), ("v6", "fd00:1::/64")] {
        server.apply(of_namespace(name, &primary(subnet)));
        await_event(&server, "NetworkAttachmentDefinition", name, "subnets");
        server.delete_object(OF_NAMESPACE, "shop", name);
        server.await_missing(("NetworkAttachmentDefinition", "shop", name));
    }
    server.apply(of_namespace("blue", &primary("10.1.0.0/24")));
    let router = json!({ "shop/blue": {
        "mac_address": "0a:58:0a:01:00:01", "ip_addresses": ["10.1.0.1/24"],
    } });
    server.apply(written("router", &router));
    for name in ["leaver", "router"] {
        let is_primary = |pod: &Value| {
            let of = annotation(pod, NETWORKS).unwrap_or_default();
            of["shop/blue"]["role"] == "primary"
                && of["default"]["role"] == "infrastructure-locked"
                && of["shop/blue"]["ip_address"] != "10.1.0.1/24"
        };
        server.await_object(("Pod", "shop", name), is_primary);
    }
    // A service takes no address of others there.
    let mut front = service("shop", "front", "10.96.0.40", 80);
    front["spec"]["externalIPs"] = json!(["10.1.0.2", "10.96.0.1"]);
    server.apply(front);
    let balancer = "Service_shop/front_TCP_cluster";
    await_row(&central, "Load_Balancer", balancer, true);
    controller.idle().await;
    let vips = column(&central, "Load_Balancer", balancer, "vips").to_string();
    assert!(vips.contains("10.96.0.40:80"), "{vips}");
    assert!(
        !vips.contains("10.1.0.2") && !vips.contains("10.96.0.1:"),
        "{vips}"
    );
    controller.stop().await.unwrap();
}

/// A new leader has the lists one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_waits_for_the_list_of_definitions_and_is_on_the_oldest_ones_network() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    server.apply(labelled("shop"));
    server.apply(made(2, of_shop("a", "primary", "10.1.0.0/24")));
    server.apply(made(1, of_shop("b", "primary", "10.2.0.0/24")));
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    controller.stop().await.unwrap();
    let of_shop =
        |name: &str, asked: Value| pod("node-a", "shop", name, &format!("uid-of-{name}"), asked);
    server.apply(of_shop("early", json!({})));
    let begun = server.requests().len();
    server.withhold(Some("network-attachment-definitions"));
    let mut controller = Running::start(&central, &server, &[]);
    server.await_requests("watches of namespaces and services", |all| {
        let watches = all.iter().skip(begun).filter(|it| it.is_watch());
        let has = |kind: &str| watches.clone().any(|it| it.path.ends_with(kind));
        has("/namespaces") && has("/services")
    });
    // What comes after it: then it was looked at.
    server.apply(node("later", "192.0.2.9"));
    await_row(&central, "Logical_Switch", "later", true);
    let ports = names(&central, "Logical_Switch_Port");
    assert!(!ports.iter().any(|it| it.contains("early")), "{ports:?}");
    server.withhold(None);
    let is_there =
        |pod: &Value| annotation(pod, NETWORKS).is_some_and(|it| it["shop/b"]["role"] == "primary");
    server.await_object(("Pod", "shop", "early"), is_there);
    // Events come in their order.
    server.apply(of_shop("thief", json!({ ASKED: "shop/b" })));
    await_event(
        &server,
        "Pod",
        "thief",
        "shop/b: a primary network has the pods",
    );
    let events = server.events();
    let mut own = events
        .iter()
        .filter(|it| it["involvedObject"]["name"] == "early");
    assert_eq!(own.next(), None);
    controller.idle().await;
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_network_comes_when_what_was_in_its_way_is_gone() {
    let (central, server, mut controller) = populated().await;
    server.apply(labelled("shop"));
    server.apply(service("default", "wide", "10.3.0.9", 80));
    let switch = "foreign_ovn_layer2_switch";
    let router = "own_ovn_cluster_router";
    central.nbctl(format!("ls-add {switch}"));
    central.nbctl(format!("lr-add {router}"));
    await_row(
        &central,
        "Load_Balancer",
        "Service_default/wide_TCP_cluster",
        true,
    );
    for (name, role, subnet, part) in [
        (
            "served",
            "secondary",
            "10.3.0.0/24",
            "10.3.0.9/32 (the cluster IPs of services)",
        ),
        ("foreign", "secondary", "10.4.0.0/24", switch),
        ("own", "primary", "10.5.0.0/24", router),
    ] {
        server.apply(of_shop(name, role, subnet));
        server.await_events(name, |events| {
            let mut own = events
                .iter()
                .filter(|it| it["involvedObject"]["name"] == name);
            own.any(|it| {
                it["reason"] == "NetworkConflict" && it["message"].to_string().contains(part)
            })
        });
    }
    controller.idle().await;
    let made = || names(&central, "Logical_Switch");
    assert!(
        !made().iter().any(|it| it.ends_with("layer2_switch")),
        "{:?}",
        made()
    );
    server.delete_object("Service", "default", "wide");
    await_row(&central, "Logical_Switch", "served_ovn_layer2_switch", true);
    central.nbctl(format!("ls-del {switch}"));
    await_row(&central, "Logical_Switch", switch, true);
    central.nbctl(format!("lr-del {router}"));
    await_row(&central, "Logical_Router", router, true);
    await_row(&central, "Logical_Switch", "own_ovn_layer2_switch", true);
    controller.idle().await;
    controller.stop().await.unwrap();
}
