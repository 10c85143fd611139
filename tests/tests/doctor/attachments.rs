//! What an attachment lacks: its row, its links, its addresses.

use std::fs::{self, File};

use podwire_tests::{AgentOptions, TestNode};

use crate::patient::Patient;
use crate::with_ovs;

/// Runs a line of shell on the node, with the port's name as `$H` and the pod's namespace as `$N`.
fn spoil(node: &TestNode, patient: &Patient<'_>, line: &str) {
    let pods = patient.pods.borrow();
    let pod = pods.last().unwrap();
    let (link, netns) = (pod.host_link(), &pod.netns);
    let set = format!("H={link} N={netns} A=/run/podwire/attachments; {line}");
    let done = node.shell(&set);
    assert!(done.status.success(), "{line}: {}", done.stderr);
}

#[test]
fn what_a_command_on_the_node_fixes() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    patient.wire("web");
    for (kind, line) in [
        (
            "iface-id-changed",
            "ovs-vsctl set interface $H external_ids:iface-id=x",
        ),
        ("in-vlan", "ovs-vsctl set port $H tag=7"),
        ("pod-link-down", "nsenter --net=$N ip link set eth0 down"),
        (
            "pod-mac",
            "nsenter --net=$N ip link set eth0 address 02:00:00:00:00:78",
        ),
        (
            "address-lost",
            "nsenter --net=$N ip addr flush dev eth0 scope global",
        ),
        ("route-lost", "nsenter --net=$N ip route del default"),
        ("tx-checksum", "nsenter --net=$N ethtool -K eth0 tx on"),
        (
            "host-link-renamed",
            "ip link set $H down; ip link set $H name other; ip link set other up",
        ),
        ("host-mac", "ip link set $H address 02:00:00:00:00:77"),
        ("host-mtu", "ip link set $H mtu 900"),
        ("host-link-down", "ip link set $H down"),
    ] {
        spoil(&node, &patient, line);
        patient.healthy_after(&[kind]);
        let kubelets = patient.followed.iter().find(|it| it.starts_with("kubectl"));
        assert_eq!(kubelets, None, "{kind}");
    }
}

#[test]
fn what_only_a_new_sandbox_fixes() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    patient.wire("web");
    for (kind, line) in [
        (
            "add-interrupted",
            "for f in $A/*.json; do mv $f ${f%.json}.adding; done",
        ),
        ("no-record", "rm $A/*"),
        (
            "record-unreadable",
            "for f in $A/*.json; do echo '{' >$f; done",
        ),
        (
            "on-other-bridge",
            "P=$(ovs-vsctl get port $H _uuid); ovs-vsctl --may-exist add-br br-x -- set bridge \
             br-x datapath_type=netdev -- remove bridge br-int ports $P -- add bridge br-x ports \
             $P",
        ),
        ("port-error", "ovs-vsctl set interface $H type=none"),
        (
            "pod-link-missing",
            "nsenter --net=$N ip link set eth0 down; nsenter --net=$N ip link set eth0 name other",
        ),
        (
            "host-link-missing",
            "ip netns add elsewhere; ip link set $H netns elsewhere",
        ),
        (
            "host-link-replaced",
            "ip link set $H down; ip link set $H name old; ip link add $H type veth peer name \
             another; ip link set $H up",
        ),
    ] {
        spoil(&node, &patient, line);
        patient.healthy_after(&[kind]);
        let last = patient.followed.last().map(String::as_str);
        assert_eq!(last, Some("kubectl -n tests delete pod web"), "{kind}");
    }
}

#[test]
fn a_port_that_has_no_ofport_for_ovs_vswitchd_gives_none() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    patient.wire("web");
    node.stop_vswitchd();
    spoil(
        &node,
        &patient,
        "ovs-vsctl --no-wait clear interface $H ofport",
    );
    patient.healthy_after(&["vswitchd-silent", "no-ofport"]);
}

#[test]
fn a_namespace_whose_path_is_gone() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    patient.wire("web");
    let netns = patient.pods.borrow()[0].netns.clone();
    // A process of the pod's holds it.
    let _held = File::open(node.path(&netns)).unwrap();
    patient.pods.borrow_mut()[0].remove_netns();
    assert!(!node.path(&netns).exists() || fs::metadata(node.path(&netns)).is_ok());
    patient.healthy_after(&["namespace-gone", "is gone"]);
}

/// The pod's link is another one than the switch listens on, though its row looks well.
#[test]
fn a_port_that_carries_no_packets() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    patient.wire("web");
    let container = patient.pods.borrow()[0].container.clone();
    node.deafen_port(&container, |line| spoil(&node, &patient, line));
    patient.healthy_after(&["carries-nothing"]);
}
