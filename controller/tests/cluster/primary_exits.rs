//! The way out of primary networks, by packets: each pod leaves by its own node, and none comes to
//! others by it.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use podwire_tests::apiserver::{ApiServer, endpoints, pod_on, service};
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{Place, Pod, traffic};
use serde_json::{Value, json};

use crate::fixture::{Running, annotation, await_row, column, names, pod_of, populate};
use crate::networks::{NETWORKS, await_event, definition};
use crate::packets::Network;
use crate::primary::{labelled, namespace, none_talk};

pub(crate) const BOTH: [&str; 2] = ["--cluster-subnets", "10.244.0.0/16/24,fd00:10:244::/48/64"];
/// What is outside, on each node.
pub(crate) const OUTSIDE: [&str; 2] = ["198.51.100.1", "2001:db8:1::1"];

/// A namespace with a primary network of its name.
pub(crate) fn with_network(network: &Network, namespace: &str, shape: &Value) {
    defined(&network.server, namespace, shape);
}

fn defined(server: &ApiServer, namespace: &str, shape: &Value) {
    server.apply(labelled(namespace));
    let mut shape = shape.clone();
    shape["role"] = "primary".into();
    shape["netAttachDefName"] = format!("{namespace}/own").into();
    let mut own = definition("own", namespace, &shape);
    own["metadata"]["namespace"] = namespace.into();
    own["metadata"]["uid"] = format!("uid-of-{namespace}-own").into();
    server.apply(own);
}

pub(crate) fn addresses(entry: &Value) -> Vec<IpAddr> {
    let all = entry["ip_addresses"].as_array().unwrap().iter();
    let texts = all.map(|it| it.as_str().unwrap().split('/').next().unwrap());
    texts.map(|it| it.parse().unwrap()).collect()
}

/// A pod, wired, with its addresses on the default network and on its primary one.
pub(crate) struct Wired<'n> {
    pub(crate) pod: Pod<'n>,
    pub(crate) default: Vec<IpAddr>,
    pub(crate) own: Vec<IpAddr>,
}

pub(crate) fn wired<'n>(
    network: &'n Network,
    node: usize,
    namespace: &str,
    name: &str,
) -> Wired<'n> {
    let node = &network.nodes[node];
    let mut pod = node.pod(name);
    namespace.clone_into(&mut pod.namespace);
    network.server.apply(pod_on(&node.name, &pod, json!({})));
    let is_there = |pod: &Value| annotation(pod, NETWORKS).is_some();
    let object = network
        .server
        .await_object(("Pod", namespace, name), is_there);
    let all = annotation(&object, NETWORKS).unwrap();
    let own = &all[format!("{namespace}/own")];
    let pod = pod.annotate(NETWORKS, &all);
    pod.add().success();
    Wired {
        pod,
        default: addresses(&all["default"]),
        own: if own.is_null() {
            Vec::new()
        } else {
            addresses(own)
        },
    }
}

/// A node's host: the management port, which it forwards by, and an address that stands for all
/// that is outside.
pub(crate) fn host(network: &Network, number: u8) -> &OvnNode {
    let node = &network.nodes[usize::from(number)];
    let name = &node.name;
    node.run(
        "ovs-vsctl",
        format!(
            "add-port br-int mp0 -- set interface mp0 type=internal \
             mac=\"0a:58:0a:f4:{number:02x}:02\" external_ids:iface-id=k8s-{name}"
        ),
    );
    for command in [
        format!("address add 10.244.{number}.2/24 dev mp0"),
        format!("address add fd00:10:244:{number}::2/64 dev mp0 nodad"),
        "link set mp0 up".to_owned(),
        "link set lo up".to_owned(),
        format!("address add {}/32 dev lo", OUTSIDE[0]),
        format!("address add {}/128 dev lo nodad", OUTSIDE[1]),
        // As the node role has it for what its host forwards.
        format!("route add 10.244.0.0/16 via 10.244.{number}.1"),
        format!("route add 10.96.0.0/16 via 10.244.{number}.1"),
        format!("route add fd00:10:244::/48 via fd00:10:244:{number}::1"),
    ] {
        node.run("ip", command);
    }
    for setting in ["ipv4.ip_forward", "ipv6.conf.all.forwarding"] {
        node.run("sysctl", format!("-qw net.{setting}=1"));
    }
    network.central.await_up(&format!("k8s-{name}"), true);
    node
}

/// With which address a pod comes to one that is outside.
pub(crate) fn source(from: &Place, to: &Place, address: &str) -> IpAddr {
    let address: IpAddr = address.parse().unwrap();
    let listener = to.run(|| TcpListener::bind((address, 0))).unwrap();
    let at = listener.local_addr().unwrap();
    let limit = Duration::from_secs(10);
    let _client = from
        .run(|| TcpStream::connect_timeout(&at, limit))
        .unwrap_or_else(|error| panic!("{address}: {error}"));
    listener.accept().unwrap().1.ip()
}

/// Waits until an address is translated, or is not.
fn await_nat(central: &Central, address: &IpAddr, is_there: bool) {
    let of = json!([["external_ip", "==", address.to_string()]]);
    let until = if is_there { "!=" } else { "==" };
    let northbound = central.northbound();
    northbound
        .wait("NAT", of, until, &["external_ip"], json!([]))
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_primary_networks_leave_the_cluster_by_their_own_nodes_and_reach_nobody_inside() {
    let (network, mut controller) = Network::start(&BOTH);
    let agents = network.start_agents();
    let (server, central) = (&network.server, &network.central);
    server.apply(crate::policies::namespace("tests", json!({})));
    for namespace in ["shop", "bank"] {
        with_network(
            &network,
            namespace,
            &json!({ "subnets": "10.1.0.0/24,fd01::/64" }),
        );
    }
    let plain = wired(&network, 0, "tests", "plain");
    let far = wired(&network, 1, "tests", "far");
    let one = wired(&network, 0, "shop", "one");
    let two = wired(&network, 1, "shop", "two");
    let theirs = wired(&network, 0, "bank", "theirs");
    assert_eq!(one.own[0], theirs.own[0]);
    for port in ["rtoe-shop_node-a", "rtoe-shop_node-b", "rtoe-bank_node-a"] {
        await_row(central, "Logical_Router_Port", port, true);
    }
    let hosts = [host(&network, 0), host(&network, 1)];
    central.sync();

    // Out, with an address of the own node's subnet, which is the network's alone.
    let mut seen = BTreeSet::new();
    for (pod, host, net) in [
        (&one, hosts[0], ["10.244.0.0/24", "fd00:10:244::/64"]),
        (&two, hosts[1], ["10.244.1.0/24", "fd00:10:244:1::/64"]),
        (&theirs, hosts[0], ["10.244.0.0/24", "fd00:10:244::/64"]),
    ] {
        for (outside, net) in OUTSIDE.into_iter().zip(net) {
            let address = outside.parse().unwrap();
            traffic::ping_until_answered(pod.pod.place(), address).unwrap();
            traffic::tcp_echo(pod.pod.place(), host.place(), address, 1 << 18).unwrap();
            traffic::udp_echo(pod.pod.place(), host.place(), address, 500).unwrap();
            let from = source(pod.pod.place(), host.place(), outside);
            assert!(
                net.parse::<ipnet::IpNet>().unwrap().contains(&from),
                "{from}"
            );
            assert!(seen.insert(from), "{from} is another's, too");
        }
    }
    let pods = [&plain, &far, &one, &two, &theirs];
    let of_pods = pods.iter().flat_map(|it| &it.default);
    assert!(of_pods.into_iter().all(|it| !seen.contains(it)));

    // Nobody inside: pods, services of others, nodes' management ports, other networks' routers.
    server.apply(service("tests", "front", "10.96.0.40", 80));
    server.apply(endpoints(
        "tests",
        "front",
        &[&plain.default[0].to_string()],
        8080,
    ));
    await_row(
        central,
        "Load_Balancer",
        "Service_tests/front_TCP_cluster",
        true,
    );
    central.sync();
    let by: SocketAddr = "10.96.0.40:80".parse().unwrap();
    let at = SocketAddr::new(plain.default[0], 8080);
    traffic::tcp_echo_by(hosts[0].place(), plain.pod.place(), at, Some(by), 500).unwrap();
    let on = SocketAddr::new;
    let (one, two, theirs, plain) = (one, two, theirs, plain);
    let mut pairs = vec![(&one.pod, plain.pod.place(), at, Some(by))];
    for family in [0, 1] {
        let port = 9000 + 100 * u16::try_from(family).unwrap();
        pairs.extend([
            (
                &one.pod,
                plain.pod.place(),
                on(plain.default[family], port),
                None,
            ),
            (
                &one.pod,
                far.pod.place(),
                on(far.default[family], port),
                None,
            ),
            (
                &two.pod,
                plain.pod.place(),
                on(plain.default[family], port + 1),
                None,
            ),
            (
                &one.pod,
                theirs.pod.place(),
                on(theirs.default[family], port),
                None,
            ),
        ]);
    }
    for (host, number) in hosts.iter().zip(0..) {
        for text in [
            format!("10.244.{number}.2"),
            format!("fd00:10:244:{number}::2"),
        ] {
            let at = on(text.parse().unwrap(), 9300);
            pairs.push((&one.pod, host.place(), at, None));
        }
    }
    none_talk(&pairs);

    // Nor does a neighbour of the router come in by it, with what needs no answer.
    for (family, net) in [(0, "10.1.0.0/24"), (1, "fd01::/64")] {
        let gateway = column(
            central,
            "Logical_Router_Port",
            "rtoe-shop_node-a",
            "networks",
        );
        let gateway = gateway[family]
            .as_str()
            .unwrap()
            .split('/')
            .next()
            .unwrap()
            .to_owned();
        plain.pod.place().run(|| {
            let added = std::process::Command::new("ip")
                .args(["route", "add", net, "via", &gateway, "dev", "eth0"])
                .status();
            assert!(added.unwrap().success());
        });
        let at = on(one.own[family], 9400 + u16::try_from(family).unwrap());
        let ours = one.pod.place().run(|| UdpSocket::bind(at)).unwrap();
        ours.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        // The first may be lost while the neighbour is looked for.
        let theirs: SocketAddr = match family {
            0 => "0.0.0.0:0".parse().unwrap(),
            _ => "[::]:0".parse().unwrap(),
        };
        let theirs = plain.pod.place().run(|| UdpSocket::bind(theirs)).unwrap();
        for _ in 0..20 {
            theirs.send_to(b"in", at).unwrap();
            let came = ours.recv(&mut [0; 8]).map_err(|error| error.kind());
            assert_eq!(came, Err(ErrorKind::WouldBlock), "family {family}");
            ours.set_read_timeout(Some(Duration::from_millis(50)))
                .unwrap();
        }
    }

    // A service with a node port: the way to its endpoint, and back.
    let exposed = |is_exposed: bool| {
        let mut service = service("shop", "web", "10.96.0.41", 80);
        if is_exposed {
            service["spec"]["type"] = "NodePort".into();
            service["spec"]["ports"][0]["nodePort"] = 30080.into();
        }
        service
    };
    server.apply(exposed(true));
    server.apply(endpoints(
        "shop",
        "web",
        &[&one.default[0].to_string()],
        8080,
    ));
    let ways = || {
        let policies = central.nbctl("lr-policy-list ovn_cluster_router");
        let nats = central.nbctl("lr-nat-list shop_ovn_cluster_router");
        let lines = policies.lines().chain(nats.lines());
        lines
            .filter(|it| it.contains("8080") || it.starts_with("dnat"))
            .count()
    };
    await_nat(central, &one.default[0], true);
    assert_eq!(ways(), 4);

    // A successor has nothing to do.
    controller.idle().await;
    controller.stop().await.unwrap();
    let mut next = Running::start(central, server, &BOTH);
    let done = next.idle().await;
    assert_eq!((done.operations, done.writes), (0, 0));
    server.apply(exposed(false));
    await_nat(central, &one.default[0], false);
    assert_eq!(ways(), 0);
    server.apply(exposed(true));
    await_nat(central, &one.default[0], true);
    // A way out goes with the last pod of its node.
    two.pod.del().success();
    server.delete("shop", "two");
    await_row(central, "Logical_Router_Port", "rtoe-shop_node-b", false);
    traffic::tcp_echo(
        one.pod.place(),
        hosts[0].place(),
        OUTSIDE[0].parse().unwrap(),
        500,
    )
    .unwrap();
    for wired in [&one, &theirs, &plain, &far] {
        wired.pod.del().success();
        server.delete(&wired.pod.namespace, &wired.pod.name);
    }
    for namespace in ["shop", "bank"] {
        server.delete_object("NetworkAttachmentDefinition", namespace, "own");
        let router = format!("{namespace}_ovn_cluster_router");
        await_row(central, "Logical_Router", &router, false);
    }
    next.idle().await;
    assert_eq!(names(central, "Logical_Router"), ["ovn_cluster_router"]);
    drop(agents);
    next.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_subnet_is_full_says_which_network_has_no_way_out_there() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    for name in ["second", "third"] {
        server.apply(pod_of("node-a", name));
    }
    // Then each pod's namespace is waited for.
    server.apply(namespace("default", &json!({})));
    // Of four addresses for pods, three are taken.
    let small = ["--cluster-subnets", "10.244.0.0/24/29"];
    let mut controller = Running::start(&central, &server, &small);
    controller.idle().await;
    defined(&server, "shop", &json!({ "subnets": "10.1.0.0/24" }));
    let mut pod = pod_of("node-a", "last");
    pod["metadata"]["namespace"] = "shop".into();
    server.apply(pod);
    let own = |pod: &Value| annotation(pod, NETWORKS).map(|it| it["shop/own"].clone());
    let is_there = |pod: &Value| own(pod).is_some_and(|it| !it.is_null());
    let pod = server.await_object(("Pod", "shop", "last"), is_there);
    let all = annotation(&pod, NETWORKS).unwrap();
    let own = ["default", "shop/own"].map(|entry| addresses(&all[entry])[0].to_string());
    assert_eq!(own, ["10.244.0.6", "10.1.0.2"]);
    let said = "pods of network shop have no way to the outside there";
    await_event(&server, "Node", "node-a", said);
    controller.idle().await;
    let ports = names(&central, "Logical_Router_Port");
    assert!(!ports.contains(&"rtoe-shop_node-a".to_owned()), "{ports:?}");
    controller.stop().await.unwrap();
}
