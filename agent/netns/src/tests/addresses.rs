use super::*;

#[test]
fn addresses_of_both_families_are_usable_at_once() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        netlink.attached(&pod, spec("a1")).await.unwrap();

        let seen = pod.json("addr show eth0")[0]["addr_info"].clone();
        let global = |address: &str, length: u64| {
            let found = seen
                .as_array()
                .unwrap()
                .iter()
                .find(|a| a["local"] == address);
            let found = found.unwrap_or_else(|| panic!("{address} in {seen}"));
            assert_eq!(found["prefixlen"], length);
            assert_eq!(found["scope"], "global");
            assert_eq!(found["tentative"], Value::Null, "{found}");
        };
        global("10.1.2.3", 24);
        global("fd00:1::3", 64);
        // The connected routes are the kernel's.
        assert_eq!(pod.json("route show 10.1.2.0/24")[0]["protocol"], "kernel");
        assert_eq!(
            pod.json("-6 route show fd00:1::/64")[0]["protocol"],
            "kernel"
        );
    });
}

#[test]
fn an_address_given_twice_is_set_once() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let address = "10.1.2.3/24".parse().unwrap();
        let twice = LinkSpec {
            addresses: vec![address, address],
            ..spec("a1")
        };
        netlink.attached(&pod, twice).await.unwrap();
        let seen = pod.json("-4 addr show eth0")[0]["addr_info"].clone();
        assert_eq!(seen.as_array().unwrap().len(), 1);
    });
}

#[test]
fn ipv6_that_the_namespace_has_off_is_switched_on_for_the_interface_and_lo() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let sysctl = |link: &str| format!("/proc/sys/net/ipv6/conf/{link}/disable_ipv6");
        pod.inside(|| std::fs::write(sysctl("all"), "1").unwrap());
        pod.inside(|| std::fs::write(sysctl("default"), "1").unwrap());

        let with_route = LinkSpec {
            routes: vec![route("::/0", "fd00:1::1")],
            ..spec("a1")
        };
        netlink.attached(&pod, with_route).await.unwrap();

        let read = |link: &str| pod.inside(|| std::fs::read_to_string(sysctl(link)).unwrap());
        assert_eq!(read("eth0"), "0\n");
        assert_eq!(read("lo"), "0\n");
        assert_eq!(read("default"), "1\n");
        let seen = pod.json("-6 addr show eth0 scope global")[0]["addr_info"].clone();
        assert_eq!(seen[0]["local"], "fd00:1::3");
        assert_eq!(seen[0]["tentative"], Value::Null);
        assert_eq!(pod.json("-6 route show default")[0]["gateway"], "fd00:1::1");
    });
}

#[test]
fn ipv6_that_the_namespace_has_off_stays_off_for_a_pod_without_ipv6() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let sysctl = |link: &str| format!("/proc/sys/net/ipv6/conf/{link}/disable_ipv6");
        pod.inside(|| std::fs::write(sysctl("default"), "1").unwrap());
        let ipv4 = LinkSpec {
            addresses: vec!["10.1.2.3/24".parse().unwrap()],
            ..spec("a1")
        };
        netlink.attached(&pod, ipv4).await.unwrap();
        let now = pod.inside(|| std::fs::read_to_string(sysctl("eth0")).unwrap());
        assert_eq!(now, "1\n");
    });
}

#[test]
fn an_ipv6_address_on_a_link_of_mtu_below_1280_is_an_error_that_names_both() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let attaching = netlink.attach(
            pod.netns(),
            LinkSpec {
                mtu: 1000,
                ..spec("a1")
            },
        );
        let error = attaching.done().await.unwrap_err();
        let told = error.to_string();
        assert!(
            told.starts_with("cannot set address fd00:1::3/64 on eth0: "),
            "{told}"
        );
        assert!(veth_names().is_empty());
    });
}

#[test]
fn thousands_of_addresses_are_set() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let address = |n: u32| {
            format!("10.{}.{}.1/24", 100 + n / 250, n % 250)
                .parse()
                .unwrap()
        };
        let many = LinkSpec {
            addresses: (0..1_000).map(address).collect(),
            ..spec("a1")
        };
        netlink.attached(&pod, many).await.unwrap();
        let seen = pod.json("-4 addr show eth0")[0]["addr_info"].clone();
        assert_eq!(seen.as_array().unwrap().len(), 1_000);
    });
}
