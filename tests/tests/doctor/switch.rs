//! Open vSwitch, OVN, and the tunnel.

use std::path::Path;

use nix::sys::signal::Signal;
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{AgentOptions, Datapath, datapath, links};

use crate::patient::Patient;
use crate::with_ovs;

#[test]
fn no_bridge_and_no_agent() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    patient.stop_agent();
    node.vsctl("del-br br-int");
    patient.healthy_after(&["bridge-missing", "br-int is missing; the agent creates it"]);
    patient.serves();
}

#[test]
fn no_bridge_and_an_agent_whose_bridge_is_ovn_controllers() {
    let node = with_ovs();
    node.add_bridge("br-int");
    let options = AgentOptions::default().with("--mode ovn --wait ofport");
    let mut patient = Patient::new(&node, options);
    patient.start_agent();
    node.vsctl("del-br br-int");
    patient.complains_of("bridge-missing", "the agent does not create it");
}

#[test]
fn open_vswitch_stopped_killed_and_hung() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    patient.wire("web");
    node.stop_vswitchd();
    node.stop_ovsdb_server();
    patient.healthy_after(&["database-silent", "its database does not answer"]);
    node.kill_vswitchd();
    patient.healthy_after(&["vswitchd-silent", "ovs-vswitchd does not answer"]);
    node.signal_vswitchd(Signal::SIGSTOP);
    patient.healthy_after(&["vswitchd-silent", "ovs-vswitchd does not answer"]);
    patient.serves();
}

/// The kernel has no such module; where it does (`make test-kernel`), there is nothing to fix.
#[test]
fn a_bridge_on_a_datapath_that_is_not_there() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    let made_anew = |datapath: &str| {
        node.vsctl(format!(
            "--no-wait del-br br-int -- add-br br-int -- set bridge br-int datapath_type={datapath}"
        ));
        node.await_vswitchd();
    };
    if !Path::new("/sys/module/openvswitch").exists() {
        made_anew("system");
        patient.healthy_after(&[
            "datapath-missing",
            "br-int on datapath system does not work",
        ]);
        patient.serves();
    }
    made_anew("nonsense");
    patient.complains_of("bridge-error", "on datapath nonsense does not work");
}

#[test]
fn a_switch_without_descriptors() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    // Ports without links take no file; of each that has one the switch holds some.
    let ports = (0..130).map(|number| format!("-- add-port br-int p{number} "));
    node.vsctl(format!("--no-wait {}", ports.collect::<String>()));
    let pid = std::fs::read_to_string(node.path("/run/openvswitch/ovs-vswitchd.pid")).unwrap();
    node.run("prlimit", format!("--nofile=256: --pid {}", pid.trim()));
    // Without the power to raise it (CAP_SYS_RESOURCE) it is raised as far as it goes.
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let files = limits
        .lines()
        .find(|it| it.starts_with("Max open files"))
        .unwrap();
    let hard: u32 = files.split_whitespace().nth(4).unwrap().parse().unwrap();
    if hard < 65536 {
        patient.fill_in = vec![("65536:65536", format!("{hard}:{hard}"))];
    }
    patient.healthy_after(&["file-limit", "may open 256 files and has 131 ports"]);
}

#[test]
fn a_switch_with_many_ports_that_keeps_idle_flows() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    let add_ports = |numbers: std::ops::Range<usize>| {
        let ports = numbers.map(|number| format!("-- add-port br-int p{number} "));
        node.vsctl(format!("--no-wait {}", ports.collect::<String>()));
    };
    // Beside the bridge's own.
    add_ports(0..248);
    assert!(patient.ask().1.iter().all(|it| it.kind != "many-ports"));
    add_ports(248..249);
    patient.follows_note("many-ports", "br-int has 250 ports");
}

#[test]
fn ovn_controller_gone_and_with_it_the_bridge_and_what_it_was_told() {
    let central = Central::start();
    let node = central.node("node-a", 1);
    let mut patient = Patient::healthy(&node, OvnNode::agent_options());
    patient.others = Box::new(|asked| {
        let is_theirs = asked == "systemctl restart ovn-controller";
        if is_theirs {
            node.end_controller(Signal::SIGKILL);
            node.make_bridge();
            node.start_controller();
            central.await_chassis("node-a");
        }
        is_theirs
    });
    node.end_controller(Signal::SIGKILL);
    patient.healthy_after(&["controller-silent", "ovn-controller"]);
    node.end_controller(Signal::SIGTERM);
    node.vsctl("--if-exists del-br br-int");
    patient.healthy_after(&["bridge-missing", "controller-silent"]);

    node.set_key("ovn-bridge", "br-other");
    node.vsctl("--if-exists del-br br-int");
    let words = "external_ids:ovn-bridge makes ovn-controller use br-other";
    patient.healthy_after(&["other-bridge", words]);

    let get = ["get", "open_vswitch", ".", "external_ids:ovn-remote"];
    let remote = node.vsctl(get).trim().trim_matches('"').to_owned();
    patient.fill_in = vec![
        ("tcp:SOUTHBOUND:6642", remote),
        ("ADDRESS", node.tunnel_address()),
    ];
    for (key, kind) in [
        ("ovn-encap-ip", "encap-ip-unset"),
        ("ovn-remote", "ovn-remote-unset"),
    ] {
        node.vsctl(format!("remove open_vswitch . external_ids {key}"));
        patient.healthy_after(&[kind, &format!("external_ids:{key} is not set")]);
    }
}

#[test]
fn the_bridges_of_physical_networks() {
    let central = Central::start();
    let node = central.node("node-a", 1);
    let mut patient = Patient::healthy(&node, OvnNode::agent_options());
    let mappings = || node.vsctl("get open_vswitch . external_ids:ovn-bridge-mappings");
    node.set_key("ovn-bridge-mappings", "physnet1:br1");
    patient.healthy_after(&[
        "mapping-bridge-missing",
        "physical network physnet1 is not connected: bridge br1, in ovn-bridge-mappings, does",
    ]);
    assert_eq!(patient.followed, ["ovs-vsctl add-br br1"]);
    node.set_key("ovn-bridge-mappings", "physnet1:br1,nonsense,physnet2:br1");
    patient.healthy_after(&["mapping-wrong", "nonsense"]);
    assert_eq!(mappings().trim(), "\"physnet1:br1,physnet2:br1\"");
    node.set_key("ovn-bridge-mappings", "nonsense");
    patient.healthy_after(&["mapping-wrong", "nonsense"]);

    // The mapping of a pod's network is removed while the pod runs.
    node.set_key("ovn-bridge-mappings", "physnet1:br1,physnet3:br1");
    let (web, lan) = central.on_physical_network(&node, "web", "physnet3");
    web.exec("ADD", &lan).success();
    node.set_key("ovn-bridge-mappings", "physnet1:br1");
    patient.fill_in = vec![("BRIDGE", "br1".to_owned())];
    patient.healthy_after(&[
        "mapping-missing",
        "physical network physnet3 is not connected (pods on it: tests/web): ovn-bridge-mappings \
         has physnet1:br1 only",
    ]);
    assert_eq!(mappings().trim(), "\"physnet1:br1,physnet3:br1\"");
    web.exec("DEL", &lan).success();
}

/// The kernel's table is the whole machine's, and read-only in a node's network namespace. So that
/// it can be changed, the node has files in its place.
#[test]
fn a_large_connection_tracking_table_that_ovn_has_the_kernel_walk() {
    const KIND: &str = "conntrack-buckets";
    let central = Central::start();
    let node = central.node("node-a", 1);
    let mut patient = Patient::healthy(&node, OvnNode::agent_options());
    let is_silent = |patient: &Patient<'_>| patient.ask().1.iter().all(|it| it.kind != KIND);
    let put = |name: &str, text: &str| std::fs::write(node.path(name), text).unwrap();
    put("/run/max", "262144\n");
    put("/run/slabinfo", "nf_conntrack 300 320 256 16 1\n");
    put("/run/buckets", "262144\n");
    let tracking = "/proc/sys/net/netfilter/nf_conntrack";
    node.run("mount", format!("--bind /run/max {tracking}_max"));
    node.run("mount", "--bind /run/slabinfo /proc/slabinfo");
    assert!(is_silent(&patient), "the table can't be changed here");
    node.run("mount", format!("--bind /run/buckets {tracking}_buckets"));
    if datapath() == Datapath::Netdev {
        assert!(is_silent(&patient), "no bridge uses the kernel's table");
        return;
    }
    put("/run/slabinfo", "nf_conntrack 16385 16400 256 16 1\n");
    assert!(is_silent(&patient), "a quarter of the table is in use");
    put("/run/slabinfo", "nf_conntrack 300 320 256 16 1\n");
    patient.follows_note(KIND, "has 262144 buckets, for 300 connections now");
    assert_eq!(
        patient.followed,
        ["sysctl -w net.netfilter.nf_conntrack_buckets=16384"]
    );
}

#[test]
fn an_mtu_too_large_for_the_tunnel() {
    let node = with_ovs();
    std::fs::write(node.path("/run/podwire.toml"), "mtu = 1500\n").unwrap();
    let options = AgentOptions::default().with("--config /run/podwire.toml");
    let mut patient = Patient::healthy(&node, options);
    patient.wire("web");
    node.shell(
        "ip link add underlay type veth peer other && ip link set underlay mtu 1500 up && ip addr \
         add 192.0.2.1/24 dev underlay && ovs-vsctl set open_vswitch . \
         external_ids:ovn-encap-type=geneve external_ids:ovn-encap-ip=192.0.2.1",
    )
    .success("ip");
    let words = "pods get MTU 1500, and geneve over underlay (MTU 1500) carries 1442";
    patient.healthy_after(&["mtu-too-large", words]);
    assert_eq!(
        patient.followed,
        ["sed -i -e '1i mtu = 1442' -e '/^ *mtu *=/d' /run/podwire.toml"]
    );
    patient.complains_of("pods-mtu-too-large", "than the 1442 that get through: 1");
    let new = node.added_pod("new");
    assert_eq!(links::find(new.place(), "eth0").unwrap().mtu, 1442);
    patient.stop_agent();
    patient.options = AgentOptions::default().with("--mtu 1500");
    patient.start_agent();
    patient.complains_of(
        "mtu-too-large",
        "set --mtu on the agent's command line to 1442",
    );
    // Pods that ovn-kubernetes wired have less than what fits.
    node.shell("ip link add ovn-k8s-mp0 mtu 1400 type bridge")
        .success("ip");
    patient.complains_of(
        "mtu-too-large",
        "pods get MTU 1500, and the cluster's pods have that of ovn-k8s-mp0, 1400",
    );
}
