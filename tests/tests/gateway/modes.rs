//! A node whose gateway changes from one mode to the other and back, while connections are open.

use super::*;

/// An open connection, by its two ends: the first one speaks first.
struct Open {
    what: String,
    ends: [TcpStream; 2],
}

/// Two connections from one place to an address of another: the client of one and the server of the
/// other one speak first.
#[track_caller]
fn open(what: &str, from: &Place, to: &Place, address: IpAddr) -> [Open; 2] {
    let at = SocketAddr::new(address, 0);
    let listener = to.run(|| TcpListener::bind(at)).unwrap();
    let at = listener.local_addr().unwrap();
    ["client", "server"].map(|first| {
        let client = from.run(|| TcpStream::connect_timeout(&at, LIMIT)).unwrap();
        let (server, _) = listener.accept().unwrap();
        let ends = match first {
            "client" => [client, server],
            _ => [server, client],
        };
        for end in &ends {
            end.set_read_timeout(Some(LIMIT)).unwrap();
        }
        let what = format!("{what}, to {at}, where the {first} speaks first");
        Open { what, ends }
    })
}

impl Open {
    fn exchange(&mut self) -> std::io::Result<()> {
        let [first, second] = &mut self.ends;
        first.write_all(b"ping")?;
        second.read_exact(&mut [0; 4])?;
        second.write_all(b"pong")?;
        first.read_exact(&mut [0; 4])
    }
}

/// Those of pods with the outside depend on who else tracks connections, which on the userspace
/// datapath is not the kernel.
#[test]
fn connections_of_the_host_and_within_the_node_stay_while_it_gets_a_gateway_router_and_loses_it() {
    let cluster = start();
    let Cluster { server, node, .. } = &cluster;
    let run = cluster.run("routed");
    let agent = node.start_agent(&OvnNode::agent_options());
    let [(web, of_web), (db, of_db)] = ["web", "db"].map(|name| node.wired(server, name, name));
    cluster.central.sync();
    let (web, db, host, outside) = (web.place(), db.place(), node.place(), cluster.outside());
    let mut all = Vec::new();
    for (family, own) in cluster.node_addresses().into_iter().enumerate() {
        let away = OUTSIDE[family].parse().unwrap();
        all.extend(open("a pod to a pod", web, db, of_db[family]));
        all.extend(open("a pod to its host", web, host, own));
        all.extend(open("a host to its pod", host, web, of_web[family]));
        all.extend(open("a host to the outside", host, outside, away));
        all.extend(open("the outside to a host", outside, host, own));
    }
    let mut exchange = |mode: &str| {
        let mut failed = Vec::new();
        for open in &mut all {
            if let Err(error) = open.exchange() {
                failed.push(format!("{}: {error}", open.what));
            }
        }
        assert!(failed.is_empty(), "{mode}: {failed:#?}");
    };
    exchange("routed");
    assert!(run.stop().success());

    let run = cluster.run_shared();
    exchange("shared");
    traffic::ping_until_answered(web, OUTSIDE[0].parse().unwrap()).unwrap();
    assert!(packets_of_router(node) > 0);
    assert!(run.stop().success());

    let run = cluster.run("routed");
    cluster.await_router(false);
    exchange("routed again");
    drop(agent);
    assert!(run.stop().success());
}
