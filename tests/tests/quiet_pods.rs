//! Plain mode: a pod with an IPv6 address says nothing that nobody needs, and all of IPv6 works.

use std::net::{IpAddr, Ipv6Addr, SocketAddrV6, UdpSocket};
use std::time::Duration;

use nix::net::if_::if_nametoindex;
use podwire_tests::frames::{self, ALL_NODES, Capture, is_icmpv6};
use podwire_tests::{
    AgentOptions, Place, Pod, TestNode, addresses, annotation, conf, links, traffic,
};
use serde_json::json;

const ROUTER_SOLICITATION: u8 = 133;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// A pod, and its IPv6 address.
fn wired<'node>(node: &'node TestNode, name: &str) -> (Pod<'node>, IpAddr) {
    let pod = node.pod(name);
    let given = addresses(&pod.add().success()).unwrap();
    (pod, given.into_iter().find(IpAddr::is_ipv6).unwrap())
}

/// Tells the frames that the pod sends.
fn sent_by(pod: &Pod<'_>) -> impl Fn(&[u8]) -> bool {
    let mac = links::find(pod.place(), "eth0").unwrap().mac;
    move |frame| {
        let source: Vec<String> = frame[6..12].iter().map(|it| format!("{it:02x}")).collect();
        source.join(":") == mac
    }
}

#[test]
fn a_pod_neither_probes_for_its_link_local_address_nor_asks_for_routers() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let heard = |quiet: bool| {
        let capture = Capture::of(node.place()).unwrap();
        let pod = node.pod(&format!("pod-{quiet}"));
        let mut conf = conf();
        conf["quietPods"] = json!(quiet);
        pod.exec("ADD", &conf).success();
        let is_from_pod = sent_by(&pod);
        if quiet {
            // What a pod's kernel has to say of a link it says before the link answers for it: the
            // fence.
            links::await_link_local(pod.place(), "eth0");
            frames::send_icmpv6(pod.place(), "eth0", &[128, 0, 0, 0, 0, 0, 0, 0], ALL_NODES)
                .unwrap();
            let is_echo = |it: &[u8]| is_icmpv6(it, 128) && is_from_pod(it);
            let before = capture.until(is_echo).unwrap();
            let is_noise = |it: &&Vec<u8>| {
                let noise = [SOLICITATION, ROUTER_SOLICITATION];
                is_from_pod(it) && noise.iter().any(|kind| is_icmpv6(it, *kind))
            };
            let noise: Vec<&Vec<u8>> = before.iter().filter(is_noise).collect();
            assert!(noise.is_empty(), "{noise:x?}");
        } else {
            for kind in [SOLICITATION, ROUTER_SOLICITATION] {
                let is_noise = |it: &[u8]| is_icmpv6(it, kind) && is_from_pod(it);
                capture.until(is_noise).unwrap();
            }
        }
    };
    heard(true);
    heard(false);
}

/// Ages everything that ages in silence: neighbours, learnt MAC addresses, the datapath's flows. In
/// the machine whose clock skips waiting (.ci/test-kernel), that much time passes; elsewhere they
/// are removed.
fn forget(node: &TestNode, pods: [&Pod<'_>; 2]) {
    if let Ok(seconds) = std::env::var("PODWIRE_TEST_SILENCE") {
        std::thread::sleep(Duration::from_secs(seconds.parse().unwrap()));
        return;
    }
    for pod in pods {
        pod.run("ip", "neighbor flush all");
    }
    node.run("ip", "neighbor flush all");
    node.appctl("fdb/flush br-int");
    node.appctl("revalidator/purge");
}

#[test]
fn neighbours_find_each_other_both_ways_after_a_long_silence() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let ((web, of_web), (db, of_db)) = (wired(&node, "web"), wired(&node, "db"));
    let gateway: IpAddr = "fd70:6f64:7769:7265::1".parse().unwrap();
    for (from, to) in [
        (web.place(), of_db),
        (db.place(), of_web),
        (web.place(), gateway),
        (node.place(), of_web),
    ] {
        traffic::ping(from, to, 2).unwrap();
        forget(&node, [&web, &db]);
        traffic::ping(from, to, 2).unwrap();
        forget(&node, [&web, &db]);
    }
    let link_local = links::await_link_local(db.place(), "eth0");
    web.run("ping", format!("-n -c 2 -w 10 {link_local}%eth0"));
}

#[test]
fn a_listener_of_a_group_hears_what_is_sent_to_it() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let ((web, _), (db, _)) = (wired(&node, "web"), wired(&node, "db"));
    let group: Ipv6Addr = "ff15::7".parse().unwrap();
    let listen = || {
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 1007)).unwrap();
        let link = if_nametoindex("eth0").unwrap();
        socket.join_multicast_v6(&group, link).unwrap();
        socket
    };
    let listener = db.place().run(listen);
    forget(&node, [&web, &db]);
    let send = || {
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
        let link = if_nametoindex("eth0").unwrap();
        let to = SocketAddrV6::new(group, 1007, 0, link);
        socket.send_to(b"to all who listen", to).unwrap();
    };
    web.place().run(send);
    let patience = Some(Duration::from_secs(30));
    listener.set_read_timeout(patience).unwrap();
    assert_eq!(listener.recv(&mut [0; 64]).unwrap(), 17);
}

/// A router advertisement of a prefix for addresses without state (RFC 4861 §4.2, RFC 4862 §5.5.3).
fn advertisement(prefix: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    message.extend([3, 4, 64, 0xc0]);
    message.extend([0, 0, 14, 16, 0, 0, 14, 16, 0, 0, 0, 0]);
    message.extend(prefix.octets());
    message
}

#[test]
fn a_pod_believes_a_router_and_asks_for_one_only_where_its_network_has_some() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    agent.await_ready(true);
    // Nobody heeds a router that speaks from another address than this one.
    links::await_link_local(node.place(), "br-int");
    // What an agent's quiet-pods says matters to neither.
    let networks = [(None, false), (Some(true), false), (Some(false), true)];
    for (number, (quiet, believes)) in networks.into_iter().enumerate() {
        let capture = Capture::of(node.place()).unwrap();
        let pod = node.pod(&format!("pod-{number}"));
        let mut conf = conf();
        if let Some(quiet) = quiet {
            conf["quietPods"] = json!(quiet);
        }
        let given = addresses(&pod.exec("ADD", &conf).success()).unwrap();
        let link_local = links::await_link_local(pod.place(), "eth0");
        let is_from_pod = sent_by(&pod);
        if believes {
            let asks = |it: &[u8]| is_icmpv6(it, ROUTER_SOLICITATION) && is_from_pod(it);
            capture.until(asks).unwrap();
        }
        let prefix = Ipv6Addr::new(0xfd01, 0, 0, number as u16, 0, 0, 0, 0);
        frames::send_icmpv6(node.place(), "br-int", &advertisement(prefix), ALL_NODES).unwrap();
        let address =
            Ipv6Addr::from(u128::from(prefix) | u128::from(link_local) & u128::from(u64::MAX));
        let address = format!("{address}/64");
        if believes {
            links::await_addresses(pod.place(), "eth0", &[&address]);
        } else {
            // The fence: what is answered came after it.
            let own = given.into_iter().find(IpAddr::is_ipv6).unwrap();
            traffic::ping(node.place(), own, 1).unwrap();
            assert!(!links::addresses(pod.place(), "eth0").contains(&address));
            assert_eq!(pod.run("ip", "-6 route show proto ra"), "");
        }
    }
}

#[test]
fn a_pod_asks_for_routers_when_it_wants_to() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let (pod, _) = wired(&node, "web");
    let is_from_pod = sent_by(&pod);
    let capture = Capture::of(node.place()).unwrap();
    let ask = || std::fs::write("/proc/sys/net/ipv6/conf/eth0/accept_ra", "1");
    pod.place().run(ask).unwrap();
    for state in ["down", "up"] {
        pod.run("ip", format!("link set eth0 {state}"));
    }
    let asks = |it: &[u8]| is_icmpv6(it, ROUTER_SOLICITATION) && is_from_pod(it);
    capture.until(asks).unwrap();
}

/// The sandbox of a pod with the addresses of a number, and this MAC address.
fn pod_with_mac<'node>(node: &'node TestNode, number: u8, mac: &str) -> Pod<'node> {
    let mut entry = annotation::entry(number);
    entry["mac_address"] = json!(mac);
    node.numbered_pod(number).on_default_network(&entry)
}

const OTHER_MAC: &str = "0a:58:de:ad:be:ef";

/// Whether a frame announces an address: ARP for the sender's own, or an advertisement to all.
fn announces(frame: &[u8]) -> bool {
    let is_arp = frame[12..14] == [0x08, 0x06] && frame[28..32] == frame[38..42];
    is_arp || is_icmpv6(frame, ADVERTISEMENT) && frame[..6] == [0x33, 0x33, 0, 0, 0, 1]
}

/// Adds a pod, and counts the announcements of its addresses that each listener hears.
fn announced<const N: usize>(pod: &Pod<'_>, listeners: [&Place; N]) -> [usize; N] {
    let captures = listeners.map(|it| Capture::of(it).unwrap());
    pod.add().success();
    links::await_link_local(pod.place(), "eth0");
    // All hear it, and it comes last: the fence.
    frames::send_icmpv6(pod.place(), "eth0", &[128, 0, 0, 0, 0, 0, 0, 0], ALL_NODES).unwrap();
    let is_from_pod = sent_by(pod);
    captures.map(|capture| {
        let is_last = |it: &[u8]| is_icmpv6(it, 128) && is_from_pod(it);
        let before = capture.until(is_last).unwrap();
        let own = before.iter().filter(|it| is_from_pod(it));
        own.filter(|it| announces(it)).count()
    })
}

#[test]
fn an_address_is_announced_when_another_mac_had_it() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let neighbour = node.wired_pod(12);
    let told = |mac: &str| {
        let pod = pod_with_mac(&node, 77, mac);
        let [told] = announced(&pod, [neighbour.place()]);
        pod.del().success();
        told
    };
    let own = annotation::mac(77);
    assert_eq!(told(&own), 0, "nobody had its addresses while it was there");
    assert_eq!(told(OTHER_MAC), 2);
    assert_eq!(told(&own), 2, "the other had them before");
    assert_eq!(told(&own), 0);
}

#[test]
fn an_announcement_reaches_those_alone_who_may_know_the_address_by_another_mac() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let early = node.wired_pod(12);
    let first = node.wired_pod(77);
    let reached_from = |place: &Place| {
        for address in [annotation::ipv4(77), annotation::ipv6(77)] {
            traffic::ping(place, address.parse().unwrap(), 1).unwrap();
        }
    };
    reached_from(early.place());
    reached_from(node.place());
    first.del().success();
    let late = node.wired_pod(13);

    let second = pod_with_mac(&node, 77, OTHER_MAC);
    assert_eq!(announced(&second, [early.place(), late.place()]), [2, 0]);
    // The first packet already.
    reached_from(early.place());
    reached_from(node.place());
    reached_from(late.place());

    // A new agent does not know who had an address before, or what the ports of now know.
    let _agent = agent.kill_and_restart();
    let later = node.wired_pod(14);
    let third = node.wired_pod(78);
    let fourth = pod_with_mac(&node, 79, "0a:58:de:ad:be:f0");
    let listeners = [early.place(), late.place(), later.place(), third.place()];
    assert_eq!(announced(&fourth, listeners), [2, 2, 0, 0]);
}

#[test]
fn a_port_without_port_security_hears_every_announcement() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.wired_pod(77);
    let late = node.wired_pod(13);
    let open = node.numbered_pod(14);
    let mut conf = conf();
    conf["portSecurity"] = json!(false);
    let heard_in = |place: &Place| {
        // A later ADD has its flows when those of what came before are there.
        node.added_pod("later").del().success();
        node.appctl("revalidator/purge");
        let capture = Capture::of(place).unwrap();
        let mut message = vec![ADVERTISEMENT, 0, 0, 0, 0x20, 0, 0, 0];
        let address: Ipv6Addr = annotation::ipv6(77).parse().unwrap();
        message.extend(address.octets());
        frames::send_icmpv6(pod.place(), "eth0", &message, ALL_NODES).unwrap();
        frames::send_icmpv6(pod.place(), "eth0", &[128, 0, 0, 0, 0, 0, 0, 0], ALL_NODES).unwrap();
        let before = capture.until(|it| is_icmpv6(it, 128)).unwrap();
        before.iter().filter(|it| announces(it)).count()
    };
    links::await_link_local(pod.place(), "eth0");
    assert_eq!(heard_in(late.place()), 0);
    open.exec("ADD", &conf).success();
    assert_eq!(heard_in(open.place()), 1);
    open.exec("DEL", &conf).success();
    assert_eq!(heard_in(late.place()), 0);
}

#[test]
fn neighbours_learn_that_a_newer_sandbox_has_another_mac() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let neighbour = node.wired_pod(12);
    let older = pod_with_mac(&node, 77, OTHER_MAC);
    older.add().success();
    let addresses = [annotation::ipv4(77), annotation::ipv6(77)].map(|it| it.parse().unwrap());
    let reach = || addresses.map(|it| traffic::ping(neighbour.place(), it, 1).unwrap());
    reach();
    let newer = older.another_sandbox();
    let newer = newer.on_default_network(&annotation::entry(77));
    assert_eq!(announced(&newer, [neighbour.place()]), [2]);
    reach();
}

#[test]
fn neighbours_learn_that_the_mac_of_a_failed_add_is_not_the_address_s() {
    let node = TestNode::with_ovs();
    let options = AgentOptions::for_numbered_pods();
    let agent = node.start_agent(&options);
    let neighbour = node.wired_pod(12);
    agent.stop();
    let _agent = node.start_agent(&options.failing_at("add-live"));
    let failed = pod_with_mac(&node, 77, OTHER_MAC);
    failed.add().error();
    let late = node.wired_pod(13);
    let listeners = [neighbour.place(), late.place()];
    assert_eq!(announced(&node.numbered_pod(77), listeners), [2, 0]);
}

#[test]
fn pods_of_a_burst_hear_nothing_of_what_was_there_before_them() {
    const PODS: usize = 24;
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pods: [Pod<'_>; PODS] = std::array::from_fn(|at| node.numbered_pod(20 + at as u8));
    std::thread::scope(|scope| {
        for pod in &pods {
            scope.spawn(|| pod.add().success());
        }
    });
    let late = pod_with_mac(&node, 77, OTHER_MAC);
    assert_eq!(announced(&late, pods.each_ref().map(Pod::place)), [0; PODS]);
}
