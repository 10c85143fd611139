use std::sync::Arc;

use clap::{Args as _, Command, Parser};
use podwire_cluster::address::{mac, management};
use podwire_cluster::annotations::{DOOR_MAC, HOST_ADDRESSES, NODE_SUBNETS};

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    settings: SettingsArgs,
}

fn check(flags: &[&str]) -> Result<Settings, String> {
    let line = ["podwire", "--mode", "ovn"].iter().chain(flags);
    let line = Line::try_parse_from(line).unwrap();
    line.settings
        .check(false)
        .map_err(|error| error.to_string())
}

#[test]
fn a_flag_that_can_not_be_is_named_with_its_value_and_what_would_do() {
    for (flags, said) in [
        (
            &[][..],
            "--node-subnet is missing: name the node's part of the pod network, as in \
             10.244.1.0/24",
        ),
        (
            &[
                "--node-subnet",
                "10.1.0.0/24",
                "--node-subnet",
                "10.2.0.0/24",
            ],
            "--node-subnet 10.2.0.0/24: 10.1.0.0/24 is of the same family, and there may be one of \
             each",
        ),
        (
            &["--node-subnet", "10.1.0.0/30"],
            "--node-subnet 10.1.0.0/30: too small for a node's pods: /29 at most",
        ),
        (
            &[
                "--node-subnet",
                "10.1.0.0/24",
                "--cluster-subnet",
                "10.2.0.0/16",
            ],
            "--node-subnet 10.1.0.0/24: it is in none of --cluster-subnet",
        ),
        (
            &["--node-subnet", "10.1.0.0/24", "--encap-ip", "eth0"],
            "--encap-ip eth0: expected IP addresses of this machine, as in 192.0.2.11",
        ),
        (
            &[
                "--node-subnet",
                "10.1.0.0/24",
                "--encap-ip",
                "192.0.2.1,192.0.2.1",
            ],
            "--encap-ip 192.0.2.1: it is named twice",
        ),
        (
            &["--node-subnet", "10.1.0.0/24", "--encap-port", "0"],
            "--encap-port 0: expected a port of UDP, 1 to 65535",
        ),
        (
            &[
                "--node-subnet",
                "10.1.0.0/24",
                "--bridge-mapping",
                "physnet1",
            ],
            "--bridge-mapping physnet1: expected a network and a bridge, as in physnet1:br-data",
        ),
        (
            &[
                "--node-subnet",
                "10.1.0.0/24",
                "--bridge-mapping",
                "a:br-int",
            ],
            "--bridge-mapping a:br-int: the integration bridge has no way to a physical network: \
             name another",
        ),
        (
            &[
                "--node-subnet",
                "10.1.0.0/24",
                "--bridge-mapping",
                "a:b,a:c",
            ],
            "--bridge-mapping a:c: the network is on b already",
        ),
        (
            &[
                "--node-subnet",
                "10.1.0.0/24",
                "--ovn-option",
                "ovn-monitor-all=1",
            ],
            "--ovn-option ovn-monitor-all=1: expected true or false behind ovn-monitor-all=",
        ),
        (
            &["--node-subnet", "10.1.0.0/24", "--ovs-cpus", "3-1"],
            "--ovs-cpus 3-1: expected numbers of processors and ranges of them, as in 0,2-3",
        ),
        (
            &["--node-subnet", "10.1.0.0/24", "--ovs-handler-threads", "0"],
            "--ovs-handler-threads 0: expected 1 to 1024",
        ),
        (
            &[
                "--node-subnet",
                "10.1.0.0/24",
                "--conntrack-buckets",
                "16385",
            ],
            "--conntrack-buckets 16385: expected a power of two, 8192 to 4194304, such as 16384",
        ),
        (
            &["--node-subnet", "10.1.0.0/24", "--node-name", "A_b"],
            "--node-name A_b: expected a Kubernetes name: a-z, 0-9, '-' and '.'",
        ),
    ] {
        assert_eq!(check(flags).unwrap_err(), said);
    }
}

/// As of the agent, whose variable it is too.
#[test]
fn without_a_mode_it_is_plain_and_what_is_for_ovn_says_so() {
    let check = |flags: &[&str], by_api| {
        let line = Line::try_parse_from(["podwire"].iter().chain(flags)).unwrap();
        let checked = line.settings.check(by_api);
        checked
            .map(|settings| settings.mode)
            .map_err(|error| error.to_string())
    };
    assert_eq!(check(&[], true), Ok(Mode::Plain));
    let remote = ["--ovn-remote", "tcp:192.0.2.9:6642"];
    let said = "--ovn-remote tcp:192.0.2.9:6642: it is for OVN: omit it, or use --mode ovn";
    for by_api in [true, false] {
        assert_eq!(check(&remote, by_api).unwrap_err(), said);
    }
    let said = check(&[], false).unwrap_err();
    assert!(
        said.starts_with("--mode plain: the other nodes are known from"),
        "{said}"
    );
}

#[test]
fn a_node_subnet_outside_of_the_cluster_s_of_the_other_family_is_fine() {
    let settings = check(&[
        "--node-subnet",
        "fd00::/64",
        "--cluster-subnet",
        "10.2.0.0/16",
        "--mtu",
        "1400",
    ]);
    assert_eq!(settings.unwrap().mtu, Some(1400));
}

#[test]
fn networks_may_be_repeated_or_have_commas_or_spaces() {
    let of_each = |flags: &[&str]| check(flags).unwrap().cluster_subnets;
    let twice = [
        "--cluster-subnet",
        "10.1.0.0/16",
        "--cluster-subnet",
        "fd00::/48",
    ];
    let node = ["--node-subnet", "10.1.0.0/24"];
    let apart = of_each(&[&node[..], &twice].concat());
    assert_eq!(apart.len(), 2);
    for one in [
        "10.1.0.0/16,fd00::/48",
        "10.1.0.0/16, fd00::/48",
        "10.1.0.0/16 fd00::/48",
    ] {
        assert_eq!(
            of_each(&[&node[..], &["--cluster-subnet", one]].concat()),
            apart
        );
    }
}

/// In a pod, settings are variables: only they reach a command that is executed there too.
#[test]
fn every_setting_has_a_variable() {
    let command = Command::new("node");
    let command =
        ApiArgs::augment_args(PlaceArgs::augment_args(SettingsArgs::augment_args(command)));
    let without = command
        .get_arguments()
        .filter(|flag| flag.get_env().is_none());
    assert_eq!(without.collect::<Vec<_>>(), Vec::<&clap::Arg>::new());
}

#[test]
fn a_door_is_used_if_its_node_says_so_and_only_for_pods_of_that_node() {
    let flags = "--node-name here --node-subnet 10.244.0.0/24 --cluster-subnet 10.244.0.0/16 \
                 --cluster-subnet fd00::/48";
    let settings = check(&flags.split_whitespace().collect::<Vec<_>>()).unwrap();
    let node = |subnets: &str, mac: &str| {
        let annotations = [
            (
                "k8s.ovn.org/node-subnets",
                format!("{{\"default\":{subnets}}}"),
            ),
            ("k8s.ovn.org/host-addresses", r#"["192.0.2.7"]"#.to_owned()),
            ("k8s.ovn.org/podwire-door-mac", mac.to_owned()),
        ];
        Arc::new(crate::cluster::ApiNode {
            annotations: annotations
                .map(|(key, value)| (key.to_owned(), value))
                .into(),
            addresses: vec!["192.0.2.8".parse().unwrap()],
            ..Default::default()
        })
    };
    let its = "0a:58:0a:f4:01:02";
    let good = node(r#"["10.244.1.0/24","fd00::/64"]"#, its);
    let others = [
        ("a", good.clone()),
        // The door is away, or another one.
        ("b", node(r#"["10.244.2.0/24"]"#, "")),
        ("c", node(r#"["10.244.2.0/24"]"#, its)),
        // Not the pods' network, this node's part of it, another node's.
        ("d", node(r#""198.51.100.0/24""#, "0a:58:c6:33:64:02")),
        ("e", node(r#"["10.244.0.0/25"]"#, "0a:58:0a:f4:00:02")),
        ("f", node(r#"["10.244.0.0/15"]"#, "0a:58:0a:f4:00:02")),
        ("g", node(r#"["10.244.1.128/25"]"#, "0a:58:0a:f4:01:82")),
        ("here", good),
    ];
    let mut nodes: BTreeMap<_, _> = others.map(|(name, it)| (name.to_owned(), it)).into();
    let doors = settings.doors_of(&nodes).unwrap();
    let [door] = &doors[..] else {
        panic!("{doors:?}");
    };
    assert_eq!(door.mac.to_string(), its);
    assert_eq!(door.subnets.len(), 2);
    let addresses = ["192.0.2.7", "192.0.2.8"].map(|ip| ip.parse().unwrap());
    assert_eq!(door.addresses, addresses.into());
    // Whose own addresses are not known is led as before.
    let node = Arc::make_mut(nodes.get_mut("a").unwrap());
    node.annotations.remove("k8s.ovn.org/host-addresses");
    nodes.retain(|name, _| *name == "a");
    assert_eq!(settings.doors_of(&nodes), Some(Vec::new()));
}

/// In the order of their names; each says what it has, and one that has a part of another's is left
/// out, whether it is larger or smaller.
#[test]
fn of_doors_whose_subnets_overlap_the_first_one_counts() {
    let flags = [
        "--node-subnet",
        "10.0.0.0/24",
        "--cluster-subnet",
        "10.0.0.0/8",
    ];
    let settings = check(&flags).unwrap();
    let node = |subnets: &[&str]| {
        let first: IpNet = subnets[0].parse().unwrap();
        let annotations = [
            (
                NODE_SUBNETS,
                serde_json::json!({ "default": subnets }).to_string(),
            ),
            (DOOR_MAC, mac(management(&first).addr()).to_string()),
            (HOST_ADDRESSES, "[]".to_owned()),
        ];
        Arc::new(crate::cluster::ApiNode {
            annotations: annotations.map(|(key, it)| (key.to_owned(), it)).into(),
            ..Default::default()
        })
    };
    let own = (0..500).map(|number: u32| {
        let [.., a, b] = number.to_be_bytes();
        (
            format!("b{number:03}"),
            node(&[&format!("10.{}.{b}.0/24", 100 + a)]),
        )
    });
    let mut nodes: BTreeMap<_, _> = own.collect();
    let wrong: [(&str, &[&str]); 4] = [
        ("c-part", &["10.100.7.128/25"]),
        ("c-whole", &["10.100.0.0/16"]),
        ("c-second", &["10.99.0.0/24", "10.101.3.0/24"]),
        ("c-twice", &["10.98.0.0/16", "10.98.1.0/24"]),
    ];
    nodes.extend(wrong.map(|(name, subnets)| (name.to_owned(), node(subnets))));
    assert_eq!(settings.doors_of(&nodes).unwrap().len(), 500);
    nodes.insert("a".to_owned(), node(&["10.100.0.0/16"]));
    // The first 256 are in it.
    assert_eq!(settings.doors_of(&nodes).unwrap().len(), 1 + 500 - 256);
}
