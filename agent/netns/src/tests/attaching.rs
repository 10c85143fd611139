use netlink_sys::{Socket, SocketAddr};

use super::super::wire::messages;
use super::*;
use crate::answer;

#[test]
fn both_ends_are_born_with_name_mac_mtu_and_one_queue_each() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let (host, end) = netlink.attached(&pod, spec("a1")).await.unwrap();

        let of_host = json("-d link show a1")[0].clone();
        let of_pod = pod.json("-d link show eth0")[0].clone();
        for (link, mac) in [
            (&of_host, "0a:58:00:00:00:01"),
            (&of_pod, "0a:58:00:00:00:02"),
        ] {
            assert_eq!(link["address"], mac);
            assert_eq!(link["mtu"], 1400);
            assert_eq!(link["num_tx_queues"], 1);
            assert_eq!(link["num_rx_queues"], 1);
            assert_eq!(link["operstate"], "UP");
            assert_eq!(link["linkinfo"]["info_kind"], "veth");
        }
        assert_eq!(of_host["ifindex"], host.link.ifindex);
        assert_eq!(host.link.name, "a1");
        assert_eq!(of_pod["ifindex"], end.ifindex);
        assert_eq!(host.pod_ifindex, end.ifindex);
        assert!(end.ifindex >= 1 << 30 && host.link.ifindex >= 1 << 30);
        assert_ne!(end.ifindex, host.link.ifindex);
    });
}

#[test]
fn the_first_step_is_the_wait_for_those_that_were_requested_before() {
    on_own_host(async |netlink| {
        let pods = [Pod::new(), Pod::new()];
        let [first, second] = [("a1", &pods[0]), ("a2", &pods[1])]
            .map(|(name, pod)| netlink.attach(pod.netns(), spec(name)));
        let (_, first) = first.done().await.unwrap();
        let (second, _) = second.done().await.unwrap();
        let [queue, pair, ..] = second.steps.as_slice() else {
            panic!("{:?}", second.steps);
        };
        assert_eq!((queue.name, pair.name), ("netlink queue", "make pair"));
        let before = first.steps.last().unwrap();
        assert!(before.start + before.took <= queue.start + queue.took);
        assert!(queue.start + queue.took <= pair.start);
    });
}

#[test]
fn loopback_is_up() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        netlink.attached(&pod, spec("a1")).await.unwrap();
        let flags = pod.json("link show lo")[0]["flags"].clone();
        assert!(flags.as_array().unwrap().contains(&"UP".into()), "{flags}");
    });
}

#[test]
fn the_host_end_has_no_ipv6_and_sends_nothing() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        netlink.attached(&pod, spec("a1")).await.unwrap();

        let disabled = std::fs::read_to_string("/proc/sys/net/ipv6/conf/a1/disable_ipv6");
        assert_eq!(disabled.unwrap().trim(), "1");
        assert_eq!(json("addr show a1")[0]["addr_info"], Value::Array(vec![]));
        // MLD reports would leave at the moment in which the link comes up.
        assert_eq!(json("-s link show a1")[0]["stats64"]["tx"]["packets"], 0);
    });
}

#[test]
fn a_pod_end_with_ipv4_alone_sends_nothing_either_when_asked() {
    on_own_host(async |netlink| {
        for (name, pod_ipv6) in [("a1", PodIpv6::Off), ("a2", PodIpv6::Usual)] {
            let is_off = pod_ipv6 == PodIpv6::Off;
            let pod = Pod::new();
            let quiet = LinkSpec {
                pod_ipv6,
                addresses: vec!["10.1.2.3/24".parse().unwrap()],
                ..spec(name)
            };
            netlink.attached(&pod, quiet).await.unwrap();
            let disabled = pod.run("cat /proc/sys/net/ipv6/conf/eth0/disable_ipv6");
            assert_eq!(disabled.trim() == "1", is_off);
            if is_off {
                let link = pod.json("-s link show eth0")[0].clone();
                assert_eq!(link["stats64"]["tx"]["packets"], 0);
            }
        }
    });
}

#[test]
fn a_pod_end_with_addresses_believes_no_router_or_makes_none_of_its_prefix() {
    on_own_host(async |netlink| {
        for (name, pod_ipv6, accepts) in [
            ("a1", PodIpv6::Quiet, ["0", "1"]),
            ("a2", PodIpv6::Assigned, ["0", "1"]),
            ("a3", PodIpv6::Usual, ["1", "1"]),
            ("a4", PodIpv6::Routed, ["1", "0"]),
        ] {
            let pod = Pod::new();
            let spec = LinkSpec {
                pod_ipv6,
                addresses: vec!["fd00::3/64".parse().unwrap()],
                ..spec(name)
            };
            netlink.attached(&pod, spec).await.unwrap();
            let seen = ["accept_ra", "autoconf"]
                .map(|it| pod.run(&format!("cat /proc/sys/net/ipv6/conf/eth0/{it}")));
            assert_eq!(seen.each_ref().map(|it| it.trim()), accepts, "{name}");
        }
    });
}

/// The kernel asks for routers in the moment in which the link-local address can be used: at once
/// where it isn't probed for.
#[test]
fn a_quiet_pod_end_with_ipv6_neither_probes_nor_asks_for_routers() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let in_pod = pod.inside(|| listener(nix::libc::RTMGRP_IPV6_IFADDR));
        let quiet = LinkSpec {
            pod_ipv6: PodIpv6::Quiet,
            addresses: vec!["fd00::3/64".parse().unwrap()],
            ..spec("a1")
        };
        netlink.attached(&pod, quiet).await.unwrap();
        in_pod.set_non_blocking(false).unwrap();
        let usable = || pod.run("ip -6 addr show eth0 scope link -tentative");
        while usable().is_empty() {
            in_pod.recv(&mut Vec::with_capacity(1 << 16), 0).unwrap();
        }
        let counters = pod.run("cat /proc/net/dev_snmp6/eth0");
        let count = |name: &str| {
            let line = counters.lines().find_map(|line| line.strip_prefix(name));
            line.map(|count| count.trim().to_owned())
        };
        for sent in ["Icmp6OutNeighborSolicits", "Icmp6OutRouterSolicits"] {
            assert!(
                matches!(count(sent).as_deref(), None | Some("0")),
                "{counters}"
            );
        }
    });
}

#[test]
fn a_link_in_use_by_the_pod_starts_with_ipv4_alone_when_its_mtu_is_too_small_for_ipv6() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let small = LinkSpec {
            mtu: 576,
            addresses: vec!["10.1.2.3/24".parse().unwrap()],
            ..spec("a1")
        };
        netlink.attached(&pod, small).await.unwrap();
        assert_eq!(pod.json("addr show eth0")[0]["mtu"], 576);
    });
}

#[test]
fn no_link_is_deleted_or_renamed_in_either_namespace() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let on_host = listener(nix::libc::RTMGRP_LINK);
        let in_pod = pod.inside(|| listener(nix::libc::RTMGRP_LINK));
        netlink.attached(&pod, spec("a1")).await.unwrap();

        for (socket, name) in [(on_host, "a1"), (in_pod, "eth0")] {
            let events = heard(&socket);
            assert!(events.iter().any(|(_, heard)| heard == name), "{events:?}");
            for (kind, heard) in &events {
                assert_eq!(*kind, nix::libc::RTM_NEWLINK, "{events:?}");
                assert!(heard == name || heard == "lo", "{events:?}");
            }
        }
    });
}

/// Each message makes ovs-vswitchd work through all of its ports. The kernel's work item for
/// carriers may tell once more when it comes in between, so the quietest of several pairs counts.
#[test]
fn the_host_is_told_twice_of_a_pair_and_twice_of_its_end() {
    on_own_host(async |netlink| {
        let mut rounds = Vec::new();
        for _ in 0..5 {
            let pod = Pod::new();
            let on_host = listener(nix::libc::RTMGRP_LINK);
            let (host, _) = netlink.attached(&pod, spec("a1")).await.unwrap();
            // The carrier is told by that work item, which the deletion would overtake.
            let mut events = Vec::new();
            on_host.set_non_blocking(false).unwrap();
            while events.len() < 2 {
                let mut buffer = Vec::with_capacity(1 << 16);
                on_host.recv(&mut buffer, 0).unwrap();
                events.extend(links(&buffer));
            }
            on_host.set_non_blocking(true).unwrap();
            netlink.delete(vec![host.link]).await.unwrap();

            events.extend(heard(&on_host));
            rounds.push(
                events
                    .into_iter()
                    .map(|(kind, _)| kind)
                    .collect::<Vec<u16>>(),
            );
        }
        let (told, gone) = (nix::libc::RTM_NEWLINK, nix::libc::RTM_DELLINK);
        let quietest = rounds.iter().min_by_key(|events| events.len()).unwrap();
        assert_eq!(*quietest, [told, told, told, gone], "{rounds:?}");
    });
}

fn listener(groups: i32) -> Socket {
    let mut socket = Socket::new(netlink_sys::protocols::NETLINK_ROUTE).unwrap();
    socket.bind(&SocketAddr::new(0, groups as u32)).unwrap();
    socket.set_non_blocking(true).unwrap();
    socket
}

/// Returns when these are the host's veths; `events` has listened since before they changed.
fn await_veths(events: &Socket, names: &[&str]) {
    events.set_non_blocking(false).unwrap();
    while veth_names() != names {
        events.recv(&mut Vec::with_capacity(1 << 16), 0).unwrap();
    }
}

/// What the kernel has told so far; it tells before it answers the request that brought it about.
fn heard(socket: &Socket) -> Vec<(u16, String)> {
    let mut events = Vec::new();
    let mut buffer = Vec::with_capacity(1 << 16);
    while socket.recv(&mut buffer, 0).is_ok() {
        events.extend(links(&buffer));
        buffer.clear();
    }
    events
}

fn links(datagram: &[u8]) -> impl Iterator<Item = (u16, String)> {
    messages(datagram).filter_map(|m| Some((m.kind, answer::link(&m)?.name)))
}

#[test]
fn tx_checksum_offload_goes_off_on_the_pod_end_when_asked_and_stays_otherwise() {
    on_own_host(async |netlink| {
        let (asked, not_asked) = (Pod::new(), Pod::new());
        let off = LinkSpec {
            netdev_datapath: true,
            ..spec("a1")
        };
        netlink.attached(&asked, off).await.unwrap();
        netlink.attached(&not_asked, spec("a2")).await.unwrap();

        assert!(
            asked
                .run("ethtool -k eth0")
                .contains("tx-checksumming: off")
        );
        assert!(
            not_asked
                .run("ethtool -k eth0")
                .contains("tx-checksumming: on")
        );
        assert!(run("ethtool -k a1").contains("tx-checksumming: on"));
    });
}

#[test]
fn a_namespace_of_another_user_namespace_is_wired_like_any() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    on_own_host(async |netlink| {
        let mut child = Command::new("unshare")
            .args([
                "--user",
                "--map-root-user",
                "--net",
                "sh",
                "-c",
                "echo ready; read wait",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        let handle = File::open(format!("/proc/{}/ns/net", child.id())).unwrap();
        let netns = Arc::new(Netns::open(path_of(&handle)).unwrap());
        let pod = Pod { handle, netns };

        let full = LinkSpec {
            routes: vec![route("0.0.0.0/0", "10.1.2.1"), route("::/0", "fd00:1::1")],
            netdev_datapath: true,
            announce: vec!["10.1.2.3".parse().unwrap()],
            ..spec("a1")
        };
        let (host, end) = netlink.attached(&pod, full).await.unwrap();
        assert!(end.announce().is_empty());
        assert_eq!(
            pod.json("addr show eth0")[0]["addr_info"][0]["local"],
            "10.1.2.3"
        );
        netlink.delete(vec![host.link]).await.unwrap();

        drop(child.stdin.take());
        child.wait().unwrap();
    });
}

#[test]
fn an_attachment_that_nobody_waits_for_leaves_nothing() {
    on_own_host(async |netlink| {
        let pods: Vec<Pod> = (0..8).map(|_| Pod::new()).collect();
        let events = listener(nix::libc::RTMGRP_LINK);
        // Some are dropped before their turn, some while their pair is being made.
        for (number, pod) in pods.iter().enumerate() {
            drop(netlink.attach(pod.netns(), spec(&format!("drop{number}"))));
            tokio::task::yield_now().await;
        }
        let after = Pod::new();
        let (last, _) = netlink.attached(&after, spec("kept")).await.unwrap();
        await_veths(&events, &["kept"]);
        netlink.delete(vec![last.link]).await.unwrap();
    });
}

#[test]
fn a_pair_that_is_made_but_never_received_is_removed() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let events = listener(nix::libc::RTMGRP_LINK);
        let attaching = netlink.attach(pod.netns(), spec("a1"));
        await_veths(&events, &["a1"]);
        drop(attaching);
        await_veths(&events, &[]);
    });
}

#[test]
fn many_attachments_at_once_each_get_their_own() {
    on_own_host(async |netlink| {
        let pods: Vec<Pod> = (0..40).map(|_| Pod::new()).collect();
        let attachings: Vec<_> = pods
            .iter()
            .enumerate()
            .map(|(number, pod)| {
                let address = format!("10.1.2.{}/24", number + 1).parse().unwrap();
                let own = LinkSpec {
                    addresses: vec![address],
                    ..spec(&format!("m{number}"))
                };
                netlink.attach(pod.netns(), own)
            })
            .collect();
        for (number, (attaching, pod)) in attachings.into_iter().zip(&pods).enumerate() {
            let (host, _) = attaching.done().await.unwrap();
            assert_eq!(host.link.name, format!("m{number}"));
            let seen = pod.json("-4 addr show eth0");
            assert_eq!(
                seen[0]["addr_info"][0]["local"],
                format!("10.1.2.{}", number + 1)
            );
            assert_eq!(seen[0]["ifindex"], host.pod_ifindex);
        }
    });
}

/// A UDP packet makes the pod ask for its destination's MAC address. The answer to a ping that is
/// sent after that comes after any answer to the question, so there is nothing to wait for.
#[test]
fn the_host_does_not_answer_arp_on_a_host_end() {
    on_own_host(async |netlink| {
        run("ip link add node type veth peer nodep");
        run("ip addr add 10.1.2.1/24 dev node");
        run("ip addr add 10.1.2.2/24 dev node");
        run("ip link set node up");
        run("ip link set nodep up");
        let pod = Pod::new();
        netlink.attached(&pod, spec("a1")).await.unwrap();
        run("ip route add 10.1.2.3/32 dev a1");
        run("ip neigh add 10.1.2.3 dev a1 lladdr 0a:58:00:00:00:02 nud permanent");
        pod.run("ip neigh add 10.1.2.1 dev eth0 lladdr 0a:58:00:00:00:01 nud permanent");

        let socket = pod.inside(|| std::net::UdpSocket::bind("0.0.0.0:0").unwrap());
        socket.send_to(b"where are you?", "10.1.2.2:9").unwrap();
        pod.run("ping -c 1 -W 10 10.1.2.1");
        let asked = pod.json("neigh show 10.1.2.2");
        assert_eq!(asked[0]["lladdr"], Value::Null, "{asked}");
        assert_eq!(asked[0]["dst"], "10.1.2.2", "the pod asked: {asked}");
    });
}
