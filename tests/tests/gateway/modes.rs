//! A node whose gateway changes from one mode to the other and back, while connections are open.

use super::*;

/// An open connection, by its two ends: the first one speaks first.
struct Open {
    what: String,
    /// As a list has it.
    name: String,
    ends: [TcpStream; 2],
}

/// Two connections from one place to an address of another: the client of one and the server of the
/// other one speak first.
#[track_caller]
fn open(what: &str, from: &Place, to: &Place, address: IpAddr) -> [Open; 2] {
    open_by(what, from, to, SocketAddr::new(address, 0), None)
}

/// The same, to a listener at this address, which clients may reach by another one.
#[track_caller]
fn open_by(
    what: &str,
    from: &Place,
    to: &Place,
    at: SocketAddr,
    by: Option<SocketAddr>,
) -> [Open; 2] {
    let listener = to.run(|| TcpListener::bind(at)).unwrap();
    let at = by.unwrap_or(listener.local_addr().unwrap());
    ["client", "server"].map(|first| {
        let client = from.run(|| TcpStream::connect_timeout(&at, LIMIT)).unwrap();
        let (server, _) = listener.accept().unwrap();
        let ends = [client.local_addr(), client.peer_addr()].map(Result::unwrap);
        let name = format!("tcp {} to {}", ends[0], ends[1]);
        let ends = match first {
            "client" => [client, server],
            _ => [server, client],
        };
        for end in &ends {
            end.set_read_timeout(Some(LIMIT)).unwrap();
        }
        let what = format!("{what}, to {at}, where the {first} speaks first");
        Open { what, name, ends }
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

/// Those that this node's host or gateway router translates, and one that it does not.
fn opened(cluster: &Cluster, pod: &Place, addresses: &[IpAddr]) -> Vec<Open> {
    let (host, outside) = (cluster.node.place(), cluster.outside());
    let mut all = Vec::new();
    let ports = cluster.node_addresses().into_iter().zip([30080, 30086]);
    for (family, (own, port)) in ports.enumerate() {
        let away = OUTSIDE[family].parse().unwrap();
        all.extend(open("a pod to the outside", pod, outside, away));
        all.extend(open("a host to the outside", host, outside, away));
        let at = SocketAddr::new(addresses[family], 8080);
        let by = Some(SocketAddr::new(own, port));
        all.extend(open_by("the outside to a node port", outside, pod, at, by));
    }
    all
}

/// The kernel's datapath has the host's own table of connections.
#[test]
#[ignore = "wants the kernel's datapath: make test-kernel-gateway-modes"]
fn connections_that_a_change_of_the_mode_ends_are_listed_and_the_others_stay() {
    let cluster = start();
    let Cluster { server, node, .. } = &cluster;
    let mut run = cluster.run("routed");
    let agent = node.start_agent(&OvnNode::agent_options());
    let (web, addresses) = node.wired(server, "web", "web");
    cluster.central.sync();
    cluster.publish("tests", "Cluster", &addresses);
    cluster.await_published(node, &run, &addresses);
    for mode in ["shared", "routed"] {
        let mut all = opened(&cluster, web.place(), &addresses);
        for open in &mut all {
            open.exchange().unwrap();
        }
        let planned = node.podwire(cluster.line("plan", mode)).stdout;
        assert!(run.stop().success());
        // Its Node stays as it is.
        run = NodeRun::start(node, cluster.line("run", mode));
        cluster.await_router(mode == "shared");
        if mode == "shared" {
            run.await_log("flows of br-ex, for host and gateway router", 1);
            cluster.await_answers(&run);
        }
        let said = run.log();
        for open in &mut all {
            let named = [&planned, &said].map(|text| text.contains(&open.name));
            let goes_on = open.exchange();
            let what = &open.what;
            println!("to {mode}: {what}: listed {named:?}, {goes_on:?}");
            let is_hosts = what.contains("a host to");
            assert_eq!(named, [!is_hosts; 2], "{what}: {planned}\n{said}");
            let is_pods = what.contains("a pod to");
            if is_hosts || is_pods && what.contains("the client speaks first") {
                goes_on.unwrap_or_else(|error| panic!("to {mode}: {what}: {error}"));
            }
        }
    }
    drop(agent);
    assert!(run.stop().success());
}
