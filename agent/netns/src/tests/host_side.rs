use std::time::Instant;

use futures_util::{FutureExt as _, StreamExt as _};
use ipnet::IpNet;

use super::super::generic;
use super::*;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

fn addresses(link: &str) -> Vec<String> {
    let seen = json(&format!("addr show {link} scope global"));
    let of_link = seen[0]["addr_info"].as_array().cloned().unwrap_or_default();
    // `ip` prints an empty object for an address of another scope.
    let told = |a: &Value| Some(format!("{}/{}", a["local"].as_str()?, a["prefixlen"]));
    of_link.iter().filter_map(told).collect()
}

#[test]
fn addresses_are_given_to_a_link_that_is_made_later() {
    on_own_host(async |netlink| {
        let wanted: Vec<IpNet> = vec![
            "10.5.0.1/16".parse().unwrap(),
            "fd00:5::1/64".parse().unwrap(),
        ];
        let ensured = netlink.ensure_addresses("br-int", wanted, true, soon());
        let made = async {
            tokio::task::yield_now().await;
            run("ip link add br-int type bridge");
        };
        let (link, ()) = tokio::join!(ensured, made);
        let link = link.unwrap();
        assert_eq!(json("link show br-int")[0]["ifindex"], link.ifindex);
        assert_eq!(addresses("br-int"), ["10.5.0.1/16", "fd00:5::1/64"]);
        let flags = json("link show br-int")[0]["flags"].clone();
        assert!(flags.as_array().unwrap().contains(&"UP".into()));
    });
}

#[test]
fn addresses_that_are_there_stay() {
    on_own_host(async |netlink| {
        run("ip link add br-int type bridge");
        run("ip addr add 10.5.0.1/16 dev br-int");
        run("ip addr add 172.16.0.1/16 dev br-int");
        let wanted = vec![
            "10.5.0.1/16".parse().unwrap(),
            "10.6.0.1/16".parse().unwrap(),
        ];
        netlink
            .ensure_addresses("br-int", wanted, false, soon())
            .await
            .unwrap();
        assert_eq!(
            addresses("br-int"),
            ["10.5.0.1/16", "172.16.0.1/16", "10.6.0.1/16"]
        );
        assert_eq!(json("link show br-int")[0]["operstate"], "DOWN");
    });
}

#[test]
fn addresses_are_taken_away_and_others_stay() {
    on_own_host(async |netlink| {
        run("ip link add br-int type bridge");
        run("ip addr add 10.5.0.1/16 dev br-int");
        run("ip addr add fd00:5::1/64 dev br-int");
        run("ip addr add 172.16.0.1/16 dev br-int");
        let seen = netlink.host_addresses("br-int").await.unwrap();
        assert!(seen.contains(&"172.16.0.1/16".parse().unwrap()), "{seen:?}");
        let outdated: Vec<IpNet> = ["10.5.0.1/16", "fd00:5::1/64", "10.99.0.1/16"]
            .map(|text| text.parse().unwrap())
            .into();
        let removing = netlink.remove_addresses("br-int", outdated.clone());
        removing.await.unwrap();
        assert_eq!(addresses("br-int"), ["172.16.0.1/16"]);
        netlink.remove_addresses("br-none", outdated).await.unwrap();
        assert!(netlink.host_addresses("br-none").await.unwrap().is_empty());
    });
}

#[test]
fn a_host_link_with_ipv6_off_gets_it_for_its_ipv6_address() {
    on_own_host(async |netlink| {
        run("ip link add br-int type bridge");
        std::fs::write("/proc/sys/net/ipv6/conf/br-int/disable_ipv6", "1").unwrap();
        let wanted = vec!["fd00:5::1/64".parse().unwrap()];
        netlink
            .ensure_addresses("br-int", wanted, true, soon())
            .await
            .unwrap();
        assert_eq!(addresses("br-int"), ["fd00:5::1/64"]);
    });
}

#[test]
fn a_link_that_does_not_appear_by_the_deadline_is_named() {
    on_own_host(async |netlink| {
        let wanted = vec!["10.5.0.1/16".parse().unwrap()];
        let deadline = Instant::now() + Duration::from_millis(10);
        let error = netlink
            .ensure_addresses("br-int", wanted, true, deadline)
            .await
            .unwrap_err();
        let told = error.to_string();
        assert!(
            told.ends_with(" for link br-int to appear; there is no link of that name"),
            "{told}"
        );
    });
}

#[test]
fn a_link_that_goes_before_it_has_its_addresses_is_awaited_anew() {
    on_own_host(async |netlink| {
        // The room still believes in a link that the kernel no longer has.
        netlink
            .threads
            .links
            .replace(vec![believed("br-int", 4711)]);
        let wanted = vec!["10.5.0.1/16".parse().unwrap()];
        let ensured = netlink.ensure_addresses("br-int", wanted, true, soon());
        let made = async {
            tokio::task::yield_now().await;
            run("ip link add br-int type bridge");
        };
        let (link, ()) = tokio::join!(ensured, made);
        assert_ne!(link.unwrap().ifindex, 4711);
        assert_eq!(addresses("br-int"), ["10.5.0.1/16"]);
    });
}

fn believed(name: &str, ifindex: u32) -> LinkState {
    LinkState {
        ifindex,
        name: name.to_owned(),
        up: false,
        mac: None,
        mtu: 1500,
        kind: None,
        peer_ifindex: None,
        group: 0,
        master: None,
    }
}

#[test]
fn after_lost_notifications_the_list_of_links_tells_who_came_and_went() {
    let links = super::super::monitor::Links::default();
    links.replace(vec![believed("stays", 1), believed("goes", 2)]);
    let (stays, goes, comes) = (
        links.watch("stays"),
        links.watch("goes"),
        links.watch("comes"),
    );
    links.replace(vec![believed("stays", 1), believed("comes", 3)]);
    assert!(!stays.has_changed().unwrap());
    assert_eq!(*goes.borrow(), None);
    assert_eq!(comes.borrow().as_ref().map(|link| link.ifindex), Some(3));
    // Another link has taken the name of one that was renamed.
    links.replace(vec![believed("stays", 4), believed("renamed", 1)]);
    assert_eq!(stays.borrow().as_ref().map(|link| link.ifindex), Some(4));
    assert_eq!(*comes.borrow(), None);
}

#[test]
fn a_link_made_anew_shows_its_new_index_and_a_renamed_one_leaves_its_name() {
    on_own_host(async |netlink| {
        let mut state = netlink.watch_link("br-int");
        assert_eq!(*state.borrow_and_update(), None);
        run("ip link add br-int type bridge");
        let first = state
            .wait_for(Option::is_some)
            .await
            .unwrap()
            .clone()
            .unwrap();
        assert_eq!(first.kind.as_deref(), Some("bridge"));
        assert!(!first.up);

        run("ip link set br-int up");
        state
            .wait_for(|s| s.as_ref().is_some_and(|s| s.up))
            .await
            .unwrap();
        run("ip link del br-int");
        run("ip link add br-int type bridge");
        let again = |s: &Option<LinkState>| s.as_ref().is_some_and(|s| s.ifindex != first.ifindex);
        state.wait_for(again).await.unwrap();

        run("ip link set br-int name br-old");
        state.wait_for(Option::is_none).await.unwrap();
        // One who asks later is told at once.
        assert!(netlink.watch_link("br-old").borrow().is_some());
    });
}

#[test]
fn an_interface_is_observed_as_it_was_made() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        pod.run("ip link add net1 type veth peer net1p");
        pod.run("ip addr add 10.77.0.2/24 dev net1");
        pod.run("ip link set net1 up");
        let full = LinkSpec {
            routes: vec![
                Route {
                    mtu: Some(1300),
                    ..route("0.0.0.0/0", "10.1.2.1")
                },
                Route {
                    table: Some(1000),
                    ..route("fd00:2::/64", "fd00:1::1")
                },
            ],
            netdev_datapath: true,
            ..spec("a1")
        };
        let (host, end) = netlink.attached(&pod, full).await.unwrap();

        let seen = netlink.observe(pod.netns(), "eth0").await.unwrap().unwrap();
        assert_eq!(seen.link.ifindex, end.ifindex);
        assert_eq!(seen.link.mac, Some(spec("").pod_mac));
        assert_eq!(seen.link.mtu, 1400);
        assert!(seen.link.up);
        assert_eq!(seen.link.kind.as_deref(), Some("veth"));
        assert_eq!(seen.link.peer_ifindex, Some(host.link.ifindex));
        assert_eq!(seen.tx_checksum, Some(false));
        for address in spec("").addresses {
            assert!(
                seen.addresses.contains(&address),
                "{address} in {:?}",
                seen.addresses
            );
        }
        assert!(!seen.addresses.contains(&"10.77.0.2/24".parse().unwrap()));
        let told: Vec<String> = seen.routes.iter().map(ObservedRoute::to_string).collect();
        assert!(
            told.contains(&"0.0.0.0/0 via 10.1.2.1 mtu 1300".to_owned()),
            "{told:?}"
        );
        let other_table = "fd00:2::/64 via fd00:1::1 metric 1024 table 1000".to_owned();
        assert!(told.contains(&other_table), "{told:?}");
        assert!(
            !told.iter().any(|route| route.starts_with("10.77.")),
            "{told:?}"
        );

        assert_eq!(netlink.observe(pod.netns(), "eth7").await.unwrap(), None);
    });
}

#[test]
fn a_link_s_own_ipv6_address_is_no_change_of_the_uplink() {
    on_own_host(async |_| {
        let mut changes = crate::uplink_changes().unwrap();
        run("ip link add d0 type veth peer name d1");
        run("ip link set d0 up");
        run("ip address add fe80::1/64 dev d0 nodad");
        run("ip address add 10.7.0.1/24 dev d0");
        changes.next().await.unwrap();
        assert!(changes.next().now_or_never().is_none());
    });
}

#[test]
fn host_links_are_found_by_name_and_veths_listed_alone() {
    on_own_host(async |netlink| {
        run("ip link add br-int type bridge");
        let pod = Pod::new();
        let (host, end) = netlink.attached(&pod, spec("a1")).await.unwrap();
        let link = netlink.host_link("a1").await.unwrap().unwrap();
        assert_eq!(
            (link.ifindex, link.peer_ifindex),
            (host.link.ifindex, Some(end.ifindex))
        );
        let named = netlink.host_links_named(&["a0", "a1", "a2"]).await.unwrap();
        let named: Vec<_> = named.into_iter().map(Result::unwrap).collect();
        assert_eq!(named, [None, Some(link.clone()), None]);
        assert_eq!(netlink.list_veths().await.unwrap(), [link]);
        assert_eq!(netlink.host_link("a2").await.unwrap(), None);
    });
}

#[test]
fn a_generic_netlink_family_is_there_or_not() {
    on_own_host(async |netlink| {
        assert!(generic::has_family("nlctrl").unwrap());
        assert!(!generic::has_family("no_such_family").unwrap());
        netlink.kernel_datapath_available().await.unwrap();
    });
}
