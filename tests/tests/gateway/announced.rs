//! Load balancers' addresses and external IPs on a node with a gateway router, announced as MetalLB
//! does: in its layer 2 mode a program on the node answers who has the address, which no link has;
//! in its BGP mode routers outside have a route to the node.

use podwire_tests::frames::{self, Capture};

use super::*;

/// Of both families: an address of the nodes' own network, and one that the outside routes.
const ASKED: [&str; 2] = ["172.31.0.200", "fd00:31::200"];
const ROUTED: [&str; 2] = ["198.51.100.10", "2001:db8:51::10"];
const EXTERNAL: [&str; 2] = ["198.51.100.11", "2001:db8:51::11"];
const PORT: u16 = 8000;

/// Makes these addresses a load balancer's and an external IP of a service of a pod's.
fn publish(cluster: &Cluster, policy: &str, addresses: &[IpAddr]) {
    for (family, address) in addresses.iter().enumerate() {
        let (name, cluster_ip) = [("lb", "10.96.0.20"), ("lb6", "fd00:96::20")][family];
        let mut service = apiserver::service("tests", name, cluster_ip, PORT);
        service["spec"]["type"] = "LoadBalancer".into();
        service["spec"]["externalTrafficPolicy"] = policy.into();
        service["spec"]["externalIPs"] = json!([EXTERNAL[family]]);
        let ingress = [ASKED[family], ROUTED[family]].map(|ip| json!({ "ip": ip }));
        service["status"] = json!({ "loadBalancer": { "ingress": ingress } });
        let mut slice = apiserver::endpoints("tests", name, &[&address.to_string()], 8080);
        if address.is_ipv6() {
            slice["addressType"] = "IPv6".into();
        }
        slice["endpoints"][0]["nodeName"] = json!("node-a");
        cluster.server.apply(slice);
        cluster.server.apply(service);
    }
}

/// Whether a frame asks who has this address: ARP (RFC 826) or a neighbour solicitation (RFC 4861).
fn asks_for(frame: &[u8], ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            frame.len() >= 42
                && frame[12..14] == [0x08, 0x06]
                && frame[20..22] == [0, 1]
                && frame[38..42] == ip.octets()
        }
        IpAddr::V6(ip) => frames::is_icmpv6(frame, 135) && frame[62..78] == ip.octets(),
    }
}

/// Answers the outside's next question for an address with the MAC address of the node's br-ex.
#[track_caller]
fn answer(cluster: &Cluster, ip: IpAddr) {
    let node = cluster.node.place();
    let mac = cluster.node.run("cat", "/sys/class/net/br-ex/address");
    let digits = mac.trim().split(':');
    let mac: Vec<u8> = digits
        .map(|it| u8::from_str_radix(it, 16).unwrap())
        .collect();
    let heard = Capture::on(node, "br-ex").unwrap();
    let asks = cluster.outside().run(|| {
        UdpSocket::bind(match ip {
            IpAddr::V4(_) => "0.0.0.0:0",
            IpAddr::V6(_) => "[::]:0",
        })
    });
    asks.unwrap().send_to(b"?", (ip, 9)).unwrap();
    let question = std::cell::RefCell::new(Vec::new());
    let is_it = |frame: &[u8]| {
        *question.borrow_mut() = frame.to_vec();
        asks_for(frame, ip)
    };
    heard.until(is_it).unwrap();
    let question = question.into_inner();
    match ip {
        IpAddr::V4(ip) => {
            let asker = &question[22..32];
            let header = [0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 2];
            let frame = [&asker[..6], &mac, &header, &mac, &ip.octets(), asker].concat();
            frames::send(node, "br-ex", &[frame]).unwrap();
        }
        IpAddr::V6(ip) => {
            // Override; with the target's link-layer address.
            let header = [136, 0, 0, 0, 0x20, 0, 0, 0];
            let message = [&header[..], &ip.octets(), &[2, 1], &mac].concat();
            frames::send_icmpv6(node, "br-ex", &message, frames::ALL_NODES).unwrap();
        }
    }
}

#[test]
fn addresses_that_a_speaker_or_a_router_announces_lead_to_pods() {
    let cluster = start();
    let Cluster { node, .. } = &cluster;
    let (run, agent) = cluster.share();
    let (web, addresses) = node.wired(&cluster.server, "web", "web");
    for (routed, own) in [ROUTED, EXTERNAL]
        .iter()
        .flat_map(|it| it.iter().zip(cluster.node_addresses()))
    {
        let family = if own.is_ipv4() { "-4" } else { "-6" };
        let route = format!("{family} route add {routed} via {own}");
        cluster.central.machine().run("ip", route);
    }
    // Until addresses are no longer tentative, which takes longer than a connection may.
    cluster.assert_all_reached(web.place());
    for address in &addresses {
        traffic::ping_until_answered(node.place(), *address).unwrap();
    }
    for policy in ["Cluster", "Local"] {
        publish(&cluster, policy, &addresses);
        run.await_services(|| {
            let table = node.run("nft", "list table inet podwire-services");
            let all = [ASKED, ROUTED, EXTERNAL];
            all.iter().flatten().all(|it| table.contains(it))
        });
        cluster.central.sync();
        for (family, address) in addresses.iter().enumerate() {
            let at = SocketAddr::new(*address, 8080);
            let listener = web.place().run(|| TcpListener::bind(at)).unwrap();
            let client = cluster.client(OUTSIDE[family], ["169.254.169.6", "fd69::6"][family]);
            for named in [ASKED, ROUTED, EXTERNAL] {
                let ip: IpAddr = named[family].parse().unwrap();
                let by = SocketAddr::new(ip, PORT);
                if named == ASKED && policy == "Cluster" {
                    answer(&cluster, ip);
                }
                let seen = seen_by(&listener, cluster.outside(), by);
                assert_eq!(seen, client, "{policy}: {ip}");
                // From the host, and from a pod, which OVN leads.
                assert!(
                    seen_by(&listener, node.place(), by).is_some(),
                    "{policy}: {ip}"
                );
                assert!(
                    seen_by(&listener, web.place(), by).is_some(),
                    "{policy}: {ip}"
                );
            }
            drop(listener);
            for named in [ASKED, ROUTED] {
                let by = SocketAddr::new(named[family].parse().unwrap(), PORT);
                let (outside, pod) = (cluster.outside(), web.place());
                traffic::tcp_echo_by(outside, pod, at, Some(by), 1 << 18).unwrap();
            }
        }
    }
    drop(agent);
    assert!(run.stop().success());
}
