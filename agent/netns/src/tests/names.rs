use nix::errno::Errno;

use super::*;

#[test]
fn a_taken_host_name_gives_way_to_the_next() {
    on_own_host(async |netlink| {
        run("ip link add first type veth peer firstp");
        let pod = Pod::new();
        let names = vec!["first".to_owned(), "firstp".to_owned(), "third".to_owned()];
        let (host, _) = netlink
            .attached(
                &pod,
                LinkSpec {
                    host_names: names,
                    ..spec("")
                },
            )
            .await
            .unwrap();
        assert_eq!(host.link.name, "third");
        assert_eq!(veth_names(), ["first", "firstp", "third"]);
    });
}

#[test]
fn no_free_host_name_is_an_error_that_names_them_all() {
    on_own_host(async |netlink| {
        run("ip link add first type veth peer second");
        let pod = Pod::new();
        let names = vec!["first".to_owned(), "second".to_owned()];
        let error = netlink
            .attached(
                &pod,
                LinkSpec {
                    host_names: names,
                    ..spec("")
                },
            )
            .await;
        let told = error.unwrap_err().to_string();
        assert_eq!(told, "no free name for the host end: first, second taken");
        assert_eq!(pod.json("link show type veth"), Value::Array(vec![]));
    });
}

#[test]
fn an_interface_that_the_pod_has_is_an_error_and_stays_as_it_is() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        pod.run("ip link add eth0 type veth peer eth0p");
        let before = pod.json("link show");
        let error = netlink.attached(&pod, spec("a1")).await.unwrap_err();
        let netns = pod.netns.path().to_owned();
        assert_eq!(
            error,
            Error::PodInterfaceExists {
                name: "eth0".to_owned(),
                netns
            }
        );
        assert_eq!(pod.json("link show"), before);
        assert!(veth_names().is_empty());
    });
}

#[test]
fn the_pods_name_may_be_one_that_the_host_has() {
    on_own_host(async |netlink| {
        run("ip link add eth0 type veth peer uplink");
        let pod = Pod::new();
        netlink.attached(&pod, spec("a1")).await.unwrap();
        assert_eq!(veth_names(), ["a1", "eth0", "uplink"]);
    });
}

#[test]
fn taken_indexes_are_passed_over() {
    on_own_host(async |netlink| {
        let (first, second) = (Pod::new(), Pod::new());
        let (_, end) = netlink.attached(&first, spec("a1")).await.unwrap();
        // Chosen indexes go up in pairs, the pod's below the host's: take the next pod's, then the
        // next host's.
        let (in_pod, on_host) = (end.ifindex + 2, end.ifindex + 5);
        second.run(&format!(
            "ip link add other index {in_pod} type veth peer otherp"
        ));
        run(&format!(
            "ip link add other index {on_host} type veth peer otherp"
        ));

        let (host, end) = netlink.attached(&second, spec("a2")).await.unwrap();
        assert_eq!(end.ifindex, in_pod + 4);
        assert_eq!(json("link show a2")[0]["ifindex"], host.link.ifindex);
    });
}

#[test]
fn an_mtu_that_the_kernel_refuses_is_an_error_of_the_pair_and_leaves_nothing() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let error = netlink
            .attached(
                &pod,
                LinkSpec {
                    mtu: 20,
                    ..spec("a1")
                },
            )
            .await
            .unwrap_err();
        let Error::MakePair { refusal, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(refusal.errno, Errno::EINVAL);
        assert!(
            error
                .to_string()
                .starts_with("cannot create the veth pair a1 and eth0 in /proc/")
        );
        assert!(veth_names().is_empty());
    });
}
