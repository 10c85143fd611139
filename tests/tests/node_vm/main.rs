//! `podwire node` with the profile *bridged* on a whole machine, which systemd boots, with Debian's
//! units of Open vSwitch and the kernel's datapath: in a virtual machine. `make
//! test-kernel-gateway` runs these tests, several of them for many minutes.

mod links;
mod netplan;
mod power;

use std::path::Path;

use podwire_tests::lan::Lan;
use podwire_tests::machine::arguments;
use podwire_tests::vm::{Running, Vm};
use podwire_tests::{TestNode, agent_binary, faulty_agent_binary, stripped};

/// What the machine is told.
const BRIDGED: &str = "--profile bridged --ovn-remote tcp:203.0.113.6:6642";

/// What configures the NIC at a boot: a script, as ifupdown and cloud images have it.
const NETWORK: (&str, &str) = (
    "/etc/systemd/system/vm-network.service",
    "[Unit]\nDefaultDependencies=no\nAfter=network-pre.target\nBefore=network.target\n\
     [Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/bash -ec '\
     ip link set lo up; ip link set eth0 addrgenmode none; ip link set eth0 up; \
     ip address replace fe80::11/64 dev eth0 nodad; \
     ip address replace 192.0.2.11/24 dev eth0; \
     ip address replace 2001:db8::11/64 dev eth0 nodad; \
     ip route replace default via 192.0.2.1 dev eth0 metric 100; \
     ip -6 route replace default via 2001:db8::1 dev eth0 metric 100'\n",
);

/// A machine with an Open vSwitch, and what is around it. It starts these units, and has these
/// files.
#[track_caller]
fn machine(starts: &[&str], configuration: &[(&str, &str)]) -> (Vm, Lan) {
    machine_on((TestNode::new(), "eth0"), starts, configuration)
}

/// The same, where the network has this link to its NIC.
#[track_caller]
fn machine_on(
    network: (TestNode, &'static str),
    starts: &[&str],
    configuration: &[(&str, &str)],
) -> (Vm, Lan) {
    let run = arguments("run", BRIDGED).join(" ");
    let own = format!("[Service]\nExecStart=\nExecStart=/usr/bin/podwire {run}\n");
    let unit = include_str!("../../../deploy/systemd/podwire-node.service");
    let mut files = vec![
        ("/etc/systemd/system/podwire-node.service", unit),
        ("/etc/systemd/system/podwire-node.service.d/own.conf", &own),
    ];
    files.extend(configuration);
    let directory = tempfile::tempdir().unwrap();
    let programs = [agent_binary(), faulty_agent_binary()];
    let programs = programs.map(|program| stripped(&program, directory.path()));
    let programs: Vec<&Path> = programs.iter().map(AsRef::as_ref).collect();
    let vm = Vm::new(network, starts, &files, &programs);
    let lan = Lan::at_tap(vm.network().place());
    let mut first = vm.boot();
    first.run(
        "ovs-vsctl add-br br-int -- set bridge br-int fail_mode=secure -- set open_vswitch . \
         external_ids:hostname=machine.example external_ids:system-id=a-chassis && sync",
    );
    first.lose_power();
    (vm, lan)
}

/// A command line of `podwire node`.
fn node(program: &str, verb: &str, flags: &str) -> String {
    let words = arguments(verb, flags);
    format!("{program} {}", words.join(" "))
}

/// Whether the machine that has booted has its addresses on its NIC, and answers there.
#[track_caller]
fn assert_answers(vm: &mut Running, lan: &Lan, case: &str) {
    let shown = vm.run("ip -o address show scope global; ovs-vsctl show");
    for address in ["192.0.2.11/24", "2001:db8::11/64"] {
        let mut lines = shown.lines();
        let there = lines.any(|line| line.contains("eth0") && line.contains(address));
        assert!(there, "{case}: {shown}");
    }
    assert!(!shown.contains("Port eth0"), "{case}: {shown}");
    lan.assert_reaches();
}
