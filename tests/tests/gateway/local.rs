//! ovn-kubernetes' mode local: a node has a br-ex, and its pods leave by the host, with all of the
//! host's routes.

use podwire_tests::Neighbour;

use super::*;

#[test]
fn with_the_mode_local_pods_leave_by_the_routes_of_their_host() {
    let cluster = start_with("adopt", "local");
    let Cluster { node, server, .. } = &cluster;
    // A machine that only the host knows: no default route leads there.
    let neighbour = Neighbour::of(node);
    let run = cluster.run("local");
    let agent = node.start_agent(&OvnNode::agent_options());
    let (web, _) = node.wired(server, "web", "web");
    cluster.central.sync();
    cluster.assert_all_reached(web.place());
    let there = neighbour.address();
    let seen = seen_outside(web.place(), neighbour.place(), there);
    assert_eq!(seen, neighbour.node_address());
    traffic::tcp_echo(web.place(), neighbour.place(), there, 1 << 18).unwrap();
    // What a gateway router would end is listed: what has the address of another link.
    let planned = node.podwire(cluster.line("plan", "shared"));
    let own = cluster.node_addresses()[0];
    let ended = format!("{}, then {own}", neighbour.node_address());
    planned.assert_says(Some(1), &["source address, and end", &ended]);
    let plain = node.podwire(cluster.line("plan", "local"));
    assert!(!plain.stdout.contains("source address"), "{plain:?}");
    let routers = cluster.central.nbctl("lr-list");
    assert!(!routers.contains("GR_"), "{routers}");
    drop(agent);
    assert!(run.stop().success());
}
