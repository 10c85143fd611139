//! Pods of a primary network leave as those of the default one do, and are reached by node ports:
//! by the gateway router, and after a change of the mode by the host.

use podwire_tests::Pod;
use podwire_tests::ovn::primary_network;

use super::*;

/// A pod of a namespace with a primary network, wired, once OVN has it; its addresses on the
/// default network, and on that one.
fn wired<'c>(cluster: &'c Cluster, namespace: &str) -> (Pod<'c>, [Vec<IpAddr>; 2]) {
    let Cluster { server, node, .. } = cluster;
    primary_network(server, namespace, ("layer2", "10.1.0.0/24,fd01::/64"));
    let wired = node.wired_on_own(server, namespace, namespace);
    cluster
        .central
        .await_up(&format!("{namespace}.own_{namespace}_{namespace}"), true);
    wired
}

impl Cluster {
    /// Everybody reaches the pod by the node ports, and it sees these clients from outside.
    fn assert_published(&self, (pod, own): (&Pod<'_>, &[IpAddr]), clients: [Option<IpAddr>; 2]) {
        let ports = self.node_addresses().into_iter().zip([30080, 30086]);
        for ((address, client), (node, port)) in own.iter().zip(clients).zip(ports) {
            let at = SocketAddr::new(*address, 8080);
            let listener = pod.place().run(|| TcpListener::bind(at)).unwrap();
            let by = SocketAddr::new(node, port);
            assert_eq!(seen_by(&listener, self.outside(), by), client);
            assert!(seen_by(&listener, self.node.place(), by).is_some());
            assert!(seen_by(&listener, pod.place(), by).is_some());
        }
    }
}

#[test]
fn pods_of_primary_networks_leave_and_are_reached_by_router_and_by_host() {
    let cluster = start();
    let (run, agent) = cluster.share();
    // With one address.
    let pods = ["shop", "bank"].map(|it| wired(&cluster, it));
    cluster.central.sync();
    for (pod, _) in &pods {
        cluster.assert_all_reached(pod.place());
    }
    assert!(packets_of_router(&cluster.node) > 100);
    let (pod, [default, own]) = &pods[0];
    cluster.publish("shop", "Local", default);
    for address in default {
        let exposed = json!([["external_ip", "==", address.to_string()]]);
        let northbound = cluster.central.northbound();
        northbound
            .wait("NAT", exposed, "!=", &["external_ip"], json!([]))
            .unwrap();
    }
    cluster.await_published(&cluster.node, &run, default);
    run.await_log("nftables table netdev podwire-router", 1);
    let clients = [(OUTSIDE[0], "169.254.169.6"), (OUTSIDE[1], "fd69::6")];
    let seen = clients.map(|(outside, led)| cluster.client(outside, led));
    cluster.assert_published((pod, own), seen);
    assert!(run.stop().success());
    let run = cluster.run("routed");
    cluster.await_router(false);
    for (pod, _) in &pods {
        cluster.assert_all_reached(pod.place());
    }
    assert_eq!(packets_of_router(&cluster.node), 0);
    let seen = OUTSIDE.map(|outside| outside.parse().ok());
    cluster.await_published(&cluster.node, &run, default);
    cluster.assert_published((pod, own), seen);
    assert!(run.stop().success());
    drop(agent);
}
