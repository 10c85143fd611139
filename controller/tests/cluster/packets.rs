//! What the rows are for: packets between pods on two nodes, and to a service.

use std::net::{IpAddr, SocketAddr};

use podwire_tests::apiserver::{ApiServer, endpoints, node, pod_on, service};
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::traffic;
use serde_json::json;

use crate::fixture::{Running, await_network};

fn address(pod: &serde_json::Value) -> IpAddr {
    let text = pod["ip_address"].as_str().unwrap();
    text.split('/').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_reach_each_other_across_nodes_and_the_service_in_front_of_one() {
    let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
    let nodes = [("node-a", 1), ("node-b", 2)].map(|(name, number)| {
        let machine = central.node(name, number).unwrap();
        server.apply(node(name, &machine.tunnel_address()));
        machine
    });
    let controller = Running::start(&central, &server, &[]);
    let agents = nodes
        .each_ref()
        .map(|node| node.start_agent(&OvnNode::agent_options()).unwrap());
    let pods = [(&nodes[0], "web"), (&nodes[1], "db")].map(|(node, name)| {
        let pod = node.pod(name).unwrap();
        server.apply(pod_on(&node.name, &pod, json!({})));
        let entry = await_network(&server, &pod.namespace, name);
        (pod.on_default_network(&entry), address(&entry))
    });
    for (pod, _) in &pods {
        pod.add().unwrap().success().unwrap();
    }
    let [(web, web_address), (db, db_address)] = &pods;
    traffic::ping_until_answered(web.place(), *db_address).unwrap();
    traffic::tcp_echo(web.place(), db.place(), *db_address, 1 << 20).unwrap();
    traffic::tcp_echo(db.place(), web.place(), *web_address, 1 << 20).unwrap();

    let vip = "10.96.0.10";
    server.apply(service(&db.namespace, "front", vip, 80));
    server.apply(endpoints(
        &db.namespace,
        "front",
        &[&db_address.to_string()],
        8080,
    ));
    let row = "Service_default/front_TCP_cluster".replace("default", &db.namespace);
    crate::fixture::await_row(&central, "Load_Balancer", &row, true);
    central.sync().unwrap();
    let listening = SocketAddr::new(*db_address, 8080);
    let by = SocketAddr::new(vip.parse().unwrap(), 80);
    traffic::tcp_echo_by(web.place(), db.place(), listening, Some(by), 1 << 16).unwrap();
    drop(agents);
    controller.stop().await.unwrap();
}
