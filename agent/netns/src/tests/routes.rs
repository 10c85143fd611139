use super::*;

async fn with_routes(netlink: &Netlink, pod: &Pod, routes: Vec<Route>) -> Result<PodEnd, Error> {
    netlink
        .attached(
            pod,
            LinkSpec {
                routes,
                ..spec("a1")
            },
        )
        .await
        .map(|(_, end)| end)
}

#[test]
fn a_route_takes_gateway_mtu_mss_metric_table_and_scope() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let routes = vec![
            route("0.0.0.0/0", "10.1.2.1"),
            route("::/0", "fd00:1::1"),
            Route {
                mtu: Some(1300),
                advmss: Some(1260),
                ..route("10.20.0.0/16", "10.1.2.1")
            },
            Route {
                priority: Some(77),
                ..route("10.30.0.0/16", "10.1.2.1")
            },
            Route {
                table: Some(1000),
                ..route("10.40.0.0/16", "10.1.2.1")
            },
            Route {
                scope: Some(200),
                ..route("10.50.0.0/16", "")
            },
            Route {
                mtu: Some(1280),
                priority: Some(5),
                ..route("fd00:2::/64", "fd00:1::1")
            },
        ];
        with_routes(&netlink, &pod, routes).await.unwrap();

        let show = |words: &str| pod.json(&format!("route show {words}"))[0].clone();
        assert_eq!(show("default")["gateway"], "10.1.2.1");
        assert_eq!(show("default")["dev"], "eth0");
        assert_eq!(show("10.20.0.0/16")["metrics"][0]["mtu"], 1300);
        assert_eq!(show("10.20.0.0/16")["metrics"][0]["advmss"], 1260);
        assert_eq!(show("10.30.0.0/16")["metric"], 77);
        assert_eq!(show("table 1000")["dst"], "10.40.0.0/16");
        assert_eq!(show("10.50.0.0/16")["scope"], "site");
        let of_ipv6 = |dst: &str| pod.json(&format!("-6 route show {dst}"))[0].clone();
        assert_eq!(of_ipv6("default")["gateway"], "fd00:1::1");
        assert_eq!(of_ipv6("fd00:2::/64")["metrics"][0]["mtu"], 1280);
        assert_eq!(of_ipv6("fd00:2::/64")["metric"], 5);
    });
}

#[test]
fn a_route_without_gateway_is_on_the_link_and_host_bits_do_not_matter() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let routes = vec![route("192.168.7.9/24", ""), route("fd00:9::9/64", "")];
        with_routes(&netlink, &pod, routes).await.unwrap();
        let ipv4 = pod.json("route show 192.168.7.0/24")[0].clone();
        assert_eq!(
            (&ipv4["scope"], &ipv4["dev"]),
            (&"link".into(), &"eth0".into())
        );
        assert_eq!(pod.json("-6 route show fd00:9::/64")[0]["dev"], "eth0");
    });
}

#[test]
fn a_gateway_outside_the_pods_subnets_is_on_the_link_when_the_route_says_so() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let onlink = |dst: &str, gateway: &str| Route {
            onlink: true,
            ..route(dst, gateway)
        };
        let lone = LinkSpec {
            addresses: vec![
                "10.1.2.3/32".parse().unwrap(),
                "fd00:1::3/128".parse().unwrap(),
            ],
            routes: vec![
                onlink("0.0.0.0/0", "169.254.1.1"),
                route("::/0", "fe80::1"),
                onlink("fd00:5::/64", "fd00:4::1"),
            ],
            ..spec("a1")
        };
        netlink.attached(&pod, lone).await.unwrap();
        let default = pod.json("route show default")[0].clone();
        assert_eq!(default["gateway"], "169.254.1.1");
        assert_eq!(default["flags"][0], "onlink");
        assert_eq!(pod.json("-6 route show default")[0]["gateway"], "fe80::1");
        assert_eq!(
            pod.json("-6 route show fd00:5::/64")[0]["flags"][0],
            "onlink"
        );
    });
}

#[test]
fn a_gateway_behind_a_route_on_the_link_needs_no_flag() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let routes = vec![
            route("169.254.1.1/32", ""),
            route("0.0.0.0/0", "169.254.1.1"),
        ];
        with_routes(&netlink, &pod, routes).await.unwrap();
        let default = pod.json("route show default")[0].clone();
        assert_eq!(default["flags"], Value::Array(vec![]), "{default}");
    });
}

#[test]
fn the_route_that_is_there_already_is_no_error() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        // The first is the connected route, which the address brought.
        let routes = vec![
            route("10.1.2.0/24", ""),
            route("10.9.0.0/16", "10.1.2.1"),
            route("10.9.0.0/16", "10.1.2.1"),
        ];
        with_routes(&netlink, &pod, routes).await.unwrap();
        for (destination, gateway) in [
            ("10.1.2.0/24", Value::Null),
            ("10.9.0.0/16", "10.1.2.1".into()),
        ] {
            let shown = pod.json(&format!("route show {destination}"));
            assert_eq!(shown.as_array().unwrap().len(), 1, "{shown}");
            assert_eq!(shown[0]["gateway"], gateway, "{shown}");
        }
    });
}

#[test]
fn another_interfaces_route_in_the_place_is_an_error_that_names_it() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        pod.run("ip link add net1 type veth peer net1p");
        pod.run("ip addr add 10.77.0.2/24 dev net1");
        pod.run("ip link set net1 up");
        pod.run("ip route add 10.9.0.0/16 via 10.1.2.1 dev net1 onlink");
        let error = with_routes(&netlink, &pod, vec![route("10.9.0.0/16", "10.1.2.1")]).await;
        assert_eq!(
            error.unwrap_err().to_string(),
            "cannot set route 10.9.0.0/16 via 10.1.2.1 on eth0: \
             10.9.0.0/16 via 10.1.2.1 dev net1 is in its place"
        );
    });
}

#[test]
fn another_gateways_ipv6_route_in_the_place_is_an_error_that_names_it() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let routes = vec![
            route("fd00:9::/64", "fd00:1::1"),
            route("fd00:9::/64", "fd00:1::2"),
        ];
        let error = with_routes(&netlink, &pod, routes).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot set route fd00:9::/64 via fd00:1::2 on eth0: \
             fd00:9::/64 via fd00:1::1 metric 1024 dev eth0 is in its place"
        );
    });
}

#[test]
fn a_route_that_the_kernel_refuses_is_named_with_the_kernels_words() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let local = 254;
        let routes = vec![Route {
            scope: Some(local),
            ..route("10.9.0.0/16", "10.1.2.1")
        }];
        let told = with_routes(&netlink, &pod, routes)
            .await
            .unwrap_err()
            .to_string();
        assert_eq!(
            told,
            "cannot set route 10.9.0.0/16 via 10.1.2.1 on eth0: EINVAL: Invalid argument \
             (Route with host scope can not have a gateway)"
        );
    });
}

/// More than the answers that a socket's receive buffer holds (ENOBUFS).
const MANY: u32 = 2_000;

#[test]
fn thousands_of_routes_are_set() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let subnet = |n: u32| {
            route(
                &format!("10.{}.{}.0/24", 100 + n / 250, n % 250),
                "10.1.2.1",
            )
        };
        with_routes(&netlink, &pod, (0..MANY).map(subnet).collect())
            .await
            .unwrap();
        let set = pod.json("route show via 10.1.2.1");
        assert_eq!(set.as_array().unwrap().len(), MANY as usize);
    });
}

#[test]
fn the_route_that_is_refused_among_thousands_is_the_one_named() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let subnet = |n: u32| {
            route(
                &format!("10.{}.{}.0/24", 100 + n / 250, n % 250),
                "10.1.2.1",
            )
        };
        let mut routes: Vec<Route> = (0..MANY).map(subnet).collect();
        routes[1_500] = route("10.9.0.0/16", "192.168.99.1");
        let error = with_routes(&netlink, &pod, routes).await.unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("cannot set route 10.9.0.0/16 via 192.168.99.1 on eth0: "),
            "{error}"
        );
    });
}
