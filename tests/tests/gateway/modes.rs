//! A node that changes from one mode of its gateway to the other.

use super::*;

/// The gateway router translates where the host does, and finds what it has translated.
#[test]
#[ignore = "the userspace datapath tracks connections by itself: make test-kernel"]
fn connections_of_pods_stay_while_their_node_gets_a_gateway_router_and_loses_it() {
    let cluster = start();
    let Cluster { server, node, .. } = &cluster;
    let run = cluster.run("routed");
    let agent = node.start_agent(&OvnNode::agent_options());
    let (web, _) = node.wired(server, "web", "web");
    cluster.central.sync();
    let mut open: Vec<[TcpStream; 2]> = Vec::new();
    for outside in OUTSIDE {
        let outside: IpAddr = outside.parse().unwrap();
        traffic::ping_until_answered(web.place(), outside).unwrap();
        let at = SocketAddr::new(outside, 0);
        let listener = cluster.outside().run(|| TcpListener::bind(at)).unwrap();
        let to = listener.local_addr().unwrap();
        let client = web.place().run(|| TcpStream::connect(to)).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        for stream in [&client, &accepted] {
            stream.set_read_timeout(Some(LIMIT)).unwrap();
        }
        open.push([client, accepted]);
    }
    let mut exchange = || {
        for [client, accepted] in &mut open {
            client.write_all(b"ping").unwrap();
            accepted.read_exact(&mut [0; 4]).unwrap();
            accepted.write_all(b"pong").unwrap();
            client.read_exact(&mut [0; 4]).unwrap();
        }
    };
    exchange();
    assert!(run.stop().success());
    let run = cluster.run("shared");
    cluster.await_router(true);
    run.await_log("flows of br-ex, for host and gateway router", 1);
    cluster.central.sync();
    exchange();
    let outside = OUTSIDE[0].parse().unwrap();
    traffic::ping_until_answered(web.place(), outside).unwrap();
    assert!(packets_of_router(node) > 0);
    assert!(run.stop().success());
    let run = cluster.run("routed");
    cluster.await_router(false);
    exchange();
    drop(agent);
    assert!(run.stop().success());
}
