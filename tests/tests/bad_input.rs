//! What must be refused, one test for each: the right code, words that name the fault, and nothing
//! made.

use podwire_tests::annotation::{GATEWAY_V4, GATEWAY_V6, entry, ipv4, mac};
use podwire_tests::{AgentOptions, CniError, Pod, TestNode, conf, links};
use serde_json::{Value, json};

/// Lets `attempt` fail for a fresh pod and returns the error, once nothing is left of the attempt.
fn refusal(attempt: impl FnOnce(&TestNode, &Pod<'_>) -> CniError) -> CniError {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.pod("web");
    let error = attempt(&node, &pod);
    node.leftovers().assert_none();
    let links: Vec<_> = links::list(pod.place())
        .into_iter()
        .map(|link| link.name)
        .filter(|it| it != "lo")
        .collect();
    assert!(links.is_empty(), "in the pod: {links:?}");
    error
}

/// The error of an ADD with this stdin and these changes of the environment.
fn refused_add(stdin: &[u8], changes: &[(&str, Option<&str>)]) -> CniError {
    refusal(|_, pod| pod.exec_with("ADD", stdin, changes).error())
}

/// The error of an ADD of a pod with this entry in its annotation.
fn refused_entry(entry: &Value) -> CniError {
    refusal(|_, pod| {
        let mut conf = conf();
        let annotation = json!({"default": entry}).to_string();
        conf["runtimeConfig"] = json!({
            "io.kubernetes.cri.pod-annotations": {"k8s.ovn.org/pod-networks": annotation}
        });
        pod.exec_with("ADD", conf.to_string().as_bytes(), &[])
            .error()
    })
}

#[test]
fn malformed_stdin() {
    for stdin in ["", "{", "not JSON", "{\"cniVersion\": \"1.1.0\",}"] {
        let error = refused_add(stdin.as_bytes(), &[]);
        assert_eq!(error.code, 6, "{stdin:?}: {error:?}");
    }
    let error = refused_add(
        b"{\"cniVersion\": \"1.1.0\", \"name\": \"\xff\", \"type\": \"podwire-cni\"}",
        &[],
    );
    assert_eq!(error.code, 6, "{error:?}");
}

#[test]
fn stdin_that_is_json_but_no_configuration() {
    for stdin in ["[]", "null", "\"text\"", "1"] {
        let error = refused_add(stdin.as_bytes(), &[]);
        assert!(matches!(error.code, 6 | 7), "{stdin:?}: {error:?}");
    }
    for (member, value) in [
        ("name", json!("")),
        ("name", json!("a/b")),
        ("name", json!(7)),
        ("mtu", json!("big")),
        ("ipam", json!([])),
    ] {
        let mut conf = conf();
        conf[member] = value;
        let error = refused_add(conf.to_string().as_bytes(), &[]);
        assert!(matches!(error.code, 6 | 7), "{conf}: {error:?}");
        error.assert_names(&[member]);
    }
}

#[test]
fn oversized_stdin() {
    let mut conf = conf();
    conf["padding"] = json!("x".repeat(1 << 20));
    let error = refused_add(conf.to_string().as_bytes(), &[]);
    assert_eq!(error.code, 6, "{error:?}");
    error.assert_names(&["1048576"]);
}

#[test]
fn deeply_nested_stdin() {
    let stdin = format!(
        "{{\"cniVersion\": \"1.1.0\", \"name\": \"pods\", \"type\": \"podwire-cni\", \"x\": {}",
        "[".repeat(200_000)
    );
    let error = refused_add(stdin.as_bytes(), &[]);
    assert_eq!(error.code, 6, "{error:?}");
}

#[test]
fn unknown_cni_version() {
    for version in ["0.1.0", "0.2.0", "1.2.0", "2.0.0", "one", ""] {
        let mut conf = conf();
        conf["cniVersion"] = json!(version);
        let error = refused_add(conf.to_string().as_bytes(), &[]);
        assert_eq!(error.code, 1, "{version}: {error:?}");
    }
}

#[test]
fn missing_and_empty_variables() {
    let conf = conf().to_string();
    for variable in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_COMMAND"] {
        for value in [None, Some("")] {
            let error = refused_add(conf.as_bytes(), &[(variable, value)]);
            assert_eq!(error.code, 4, "{variable}={value:?}: {error:?}");
            error.assert_names(&[variable]);
        }
    }
    let error = refused_add(
        conf.as_bytes(),
        &[("CNI_CONTAINERID", None), ("CNI_IFNAME", None)],
    );
    error.assert_names(&["CNI_CONTAINERID", "CNI_IFNAME"]);
}

#[test]
fn over_long_variables() {
    let conf = conf().to_string();
    let (id, path) = ("a".repeat(10_000), format!("/run/{}", "x".repeat(5_000)));
    for (variable, value) in [
        ("CNI_IFNAME", "sixteen-letters-"),
        ("CNI_CONTAINERID", &id),
        ("CNI_NETNS", &path),
    ] {
        let error = refused_add(conf.as_bytes(), &[(variable, Some(value))]);
        assert_eq!(error.code, 4, "{variable}: {error:?}");
        error.assert_names(&[variable]);
        assert!(
            error.msg.len() < 1_000,
            "the message repeats all of {variable}"
        );
    }
}

#[test]
fn variables_that_hold_what_they_may_not() {
    let conf = conf().to_string();
    for (variable, value) in [
        ("CNI_COMMAND", "PLEASE"),
        ("CNI_CONTAINERID", "../../etc"),
        ("CNI_CONTAINERID", "-starts-with-a-dash"),
        ("CNI_IFNAME", "a/b"),
        ("CNI_IFNAME", "a b"),
        ("CNI_IFNAME", "a:b"),
        ("CNI_IFNAME", ".."),
        ("CNI_NETNS", "relative/path"),
    ] {
        let error = refused_add(conf.as_bytes(), &[(variable, Some(value))]);
        assert_eq!(error.code, 4, "{variable}={value}: {error:?}");
        error.assert_names(&[variable]);
    }
}

#[test]
fn a_del_of_an_interface_name_that_no_add_takes_has_nothing_to_remove() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let pod = node.pod("web");
    let conf = conf().to_string();
    for name in ["sixteen-letters-", "a/b", ".."] {
        let changes = [("CNI_IFNAME", Some(name))];
        let error = pod.exec_with("ADD", conf.as_bytes(), &changes).error();
        assert_eq!(error.code, 4, "{name}: {error:?}");
        let removed = pod.exec_with("DEL", conf.as_bytes(), &changes).success();
        assert!(removed.is_null(), "{name}: {removed}");
    }
    let changes = [
        ("CNI_IFNAME", Some("a/b")),
        ("CNI_CONTAINERID", Some("../x")),
    ];
    let error = pod.exec_with("DEL", conf.as_bytes(), &changes).error();
    error.assert_names(&["CNI_CONTAINERID"]);
}

#[test]
fn cni_args_with_equals_signs_in_values_are_served() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.pod("web");
    let arguments = format!(
        "IgnoreUnknown=1;TOKEN=a=b==;K8S_POD_NAME=web;K8S_POD_NAMESPACE=tests;X=;K8S_POD_UID={}",
        pod.uid
    );
    pod.exec_with(
        "ADD",
        conf().to_string().as_bytes(),
        &[("CNI_ARGS", Some(&arguments))],
    )
    .success();
    let row = node.interface_of(&pod.container).unwrap();
    assert_eq!(row["external_ids"]["iface-id"], "tests_web");
}

#[test]
fn an_interface_name_that_exists() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.numbered_pod(11);
    let result = pod.add().success();
    // The second ADD must neither succeed nor harm what the first one made.
    let error = pod.add().error();
    error.assert_names(&["eth0"]);
    pod.check(&result).success();
    pod.del().success();

    let foreign = node.numbered_pod(12);
    foreign.run("ip", "link add eth0 type veth peer name eth1");
    let error = foreign.add().error();
    assert_eq!(error.code, 4, "{error:?}");
    error.assert_names(&["eth0"]);
    node.leftovers().assert_none();
    assert!(links::find(foreign.place(), "eth0").is_some());
}

#[test]
fn a_netns_path_that_is_absent() {
    let error = refused_add(
        conf().to_string().as_bytes(),
        &[("CNI_NETNS", Some("/run/netns/absent"))],
    );
    assert_eq!(error.code, 4, "{error:?}");
    error.assert_names(&["/run/netns/absent"]);
}

#[test]
fn a_netns_path_that_is_a_plain_file_or_directory_or_other_namespace() {
    for path in [
        "/etc/hostname",
        "/run",
        "/dev/null",
        "/proc/self/ns/uts",
        "/proc/self/ns/mnt",
    ] {
        let error = refused_add(conf().to_string().as_bytes(), &[("CNI_NETNS", Some(path))]);
        assert_eq!(error.code, 4, "{path}: {error:?}");
        error.assert_names(&[path]);
    }
}

#[test]
fn a_netns_path_that_is_a_fifo_hangs_nobody() {
    let error = refusal(|node, pod| {
        node.run("mkfifo", "/run/fifo");
        pod.exec_with(
            "ADD",
            conf().to_string().as_bytes(),
            &[("CNI_NETNS", Some("/run/fifo"))],
        )
        .error()
    });
    assert_eq!(error.code, 4, "{error:?}");
}

#[test]
fn the_nodes_own_network_namespace() {
    let error = refusal(|node, pod| {
        // The plugin's own is the node's, and so is what is pinned from it.
        node.run("touch", "/run/netns/host");
        node.run("mount", "--bind /proc/self/ns/net /run/netns/host");
        pod.exec_with(
            "ADD",
            conf().to_string().as_bytes(),
            &[("CNI_NETNS", Some("/run/netns/host"))],
        )
        .error()
    });
    assert_eq!(error.code, 4, "{error:?}");
    error.assert_names(&["/run/netns/host"]);
}

#[test]
fn an_invalid_cidr() {
    for address in [
        "10.244.1.11",
        "10.244.1.300/24",
        "10.244.1.11/33",
        "fd00::1/129",
        "",
        "0.0.0.0/0",
        "127.0.0.1/8",
        "224.0.0.1/24",
        "ff02::1/64",
    ] {
        let error = refused_entry(&json!({"ip_addresses": [address], "mac_address": mac(11)}));
        assert_ne!(error.code, 11, "no retry will help: {error:?}");
        error.assert_names(&[address.split('/').next().unwrap_or_default()]);
    }
}

#[test]
fn an_invalid_mac() {
    for mac in [
        "",
        "0a:58",
        "0a:58:0a:f4:01:zz",
        "0a:58:0a:f4:01:0b:0c",
        "00:00:00:00:00:00",
        "01:00:5e:00:00:01",
        "ff:ff:ff:ff:ff:ff",
    ] {
        let error = refused_entry(
            &json!({"ip_addresses": [format!("{}/24", ipv4(11))], "mac_address": mac}),
        );
        assert_ne!(error.code, 11, "no retry will help: {error:?}");
        error.assert_names(&["mac"]);
    }
    refused_entry(&json!({"ip_addresses": [format!("{}/24", ipv4(11))]}));
}

#[test]
fn an_invalid_mtu() {
    // IPv6 takes 1280 (RFC 8200 §5); IPv4 alone takes what the kernel does.
    for (mtu, addresses) in [
        (67, false),
        (65_536, false),
        (1279, true),
        (-1, true),
        (65_536, true),
    ] {
        let error = refusal(|_, pod| {
            let mut conf = conf();
            let mut entry = entry(11);
            if !addresses {
                entry =
                    json!({"ip_addresses": [format!("{}/24", ipv4(11))], "mac_address": mac(11)});
            }
            conf["mtu"] = json!(mtu);
            let annotation = json!({"default": entry}).to_string();
            conf["runtimeConfig"] = json!({
                "io.kubernetes.cri.pod-annotations": {"k8s.ovn.org/pod-networks": annotation}
            });
            pod.exec_with("ADD", conf.to_string().as_bytes(), &[])
                .error()
        });
        error.assert_names(&["mtu"]);
    }
}

#[test]
fn the_smallest_and_largest_mtu_are_served() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let four = json!({"ip_addresses": [format!("{}/24", ipv4(11))], "mac_address": mac(11)});
    for (mtu, entry) in [
        (68, &four),
        (65_535, &four),
        (1280, &entry(11)),
        (65_535, &entry(11)),
    ] {
        let pod = node.pod("web").on_default_network(entry);
        let mut conf = conf();
        conf["mtu"] = json!(mtu);
        pod.exec("ADD", &conf).success();
        assert_eq!(links::find(pod.place(), "eth0").unwrap().mtu, mtu);
        pod.del().success();
    }
}

#[test]
fn a_route_whose_families_differ() {
    for (destination, hop) in [("10.96.0.0/12", GATEWAY_V6), ("fd00:96::/112", GATEWAY_V4)] {
        let mut entry = entry(11);
        entry["routes"] = json!([{"dest": destination, "nextHop": hop}]);
        let error = refused_entry(&entry);
        assert_ne!(error.code, 11, "no retry will help: {error:?}");
        error.assert_names(&[destination, hop]);
    }
    let mut four = json!({"ip_addresses": [format!("{}/24", ipv4(11))], "mac_address": mac(11)});
    four["gateway_ips"] = json!([GATEWAY_V6]);
    refused_entry(&four).assert_names(&[GATEWAY_V6]);
}

#[test]
fn an_annotation_that_is_no_json_or_has_no_entry_for_the_network() {
    for annotation in [
        "",
        "{",
        "[]",
        "null",
        "{\"other\": {}}",
        "{\"default\": []}",
    ] {
        refusal(|_, pod| {
            let mut conf = conf();
            conf["runtimeConfig"] = json!({
                "io.kubernetes.cri.pod-annotations": {"k8s.ovn.org/pod-networks": annotation}
            });
            let error = pod
                .exec_with("ADD", conf.to_string().as_bytes(), &[])
                .error();
            error.assert_names(&["k8s.ovn.org/pod-networks"]);
            error
        });
    }
}

#[test]
fn open_vswitch_not_running() {
    let node = TestNode::new();
    let _agent = podwire_tests::Agent::launch(&node, &AgentOptions::default()).unwrap();
    let pod = node.pod("web");
    let error = pod.add().error();
    assert_eq!(error.code, 11, "{error:?}");
    error.assert_names(&["db.sock"]);
    let status = pod.exec("STATUS", &conf()).error();
    assert!(matches!(status.code, 50 | 51), "{status:?}");
}

#[test]
fn vswitchd_dead_behind_a_living_database() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::for_numbered_pods());
    node.stop_vswitchd();
    let pod = node.pod("web");
    let error = pod.add().error();
    assert_eq!(error.code, 11, "{error:?}");
    error.assert_names(&["ovs-vswitchd"]);
    node.leftovers().assert_none();
    node.start_vswitchd();
    agent.await_ready(true);
    pod.add().success();
}

#[test]
fn an_address_range_that_is_used_up() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default().subnet("10.9.0.0/30"));
    let [first, second] = ["first", "second"].map(|name| node.pod(name));
    first.add().success();
    let error = second.add().error();
    error.assert_names(&["10.9.0.0/30"]);
    first.del().success();
    node.leftovers().assert_none();
}

#[test]
fn names_longer_than_kubernetes_allows() {
    for (key, most) in [("K8S_POD_NAME", 253), ("K8S_POD_NAMESPACE", 63)] {
        let args = format!(
            "K8S_POD_NAMESPACE=tests;K8S_POD_NAME=web;{key}={}",
            "a".repeat(5_000)
        );
        let conf = conf().to_string();
        let error = refused_add(conf.as_bytes(), &[("CNI_ARGS", Some(&args))]);
        assert_eq!(error.code, 4, "{error:?}");
        error.assert_names(&[key, &most.to_string()]);
    }
}

#[test]
fn addresses_that_no_interface_may_have() {
    for address in [
        "8.8.8.8/0",
        "169.254.169.254/32",
        "127.0.0.1/8",
        "224.0.0.1/24",
        "0.0.0.0/24",
        "255.255.255.255/32",
        "::ffff:10.1.2.3/120",
    ] {
        let error = refused_entry(&json!({"ip_addresses": [address], "mac_address": mac(11)}));
        error.assert_names(&["k8s.ovn.org/pod-networks", "ip_addresses[0]", address]);
    }
}
