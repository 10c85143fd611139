//! Bonds and VLANs, which the kernel of a machine that runs tests may not have: the link with the
//! addresses is moved, with all that is below it as it is.

use super::*;

/// A bond of one NIC with this option, and on it what a test says, with the machine's addresses on
/// the last link.
fn configured(option: &str, on_top: &str, link: &str) -> String {
    let bond = format!(
        "ip link add bond0 type bond mode active-backup miimon 100 {option}; \
         ip link set eth0 master bond0; ip link set eth0 up; ip link set bond0 up;"
    );
    addressed(&format!("{bond} {on_top}"), link)
}

/// What is made by these commands, with the machine's addresses on this link.
fn addressed(made: &str, link: &str) -> String {
    format!(
        "[Unit]\nDefaultDependencies=no\nAfter=network-pre.target\nBefore=network.target\n\
         [Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/bash -ec '\
         ip link set lo up; {made} \
         ip link set {link} addrgenmode none; ip link set {link} up; \
         ip address replace fe80::11/64 dev {link} nodad; \
         ip address replace 192.0.2.11/24 dev {link}; \
         ip address replace 2001:db8::11/64 dev {link} nodad; \
         ip route replace default via 192.0.2.1 dev {link} metric 100; \
         ip -6 route replace default via 2001:db8::1 dev {link} metric 100'\n"
    )
}

const SERVICE: &str = "vm-network.service";
const UNIT: &str = "/etc/systemd/system/vm-network.service";

#[test]
#[ignore = "boots a virtual machine: make test-kernel-gateway"]
fn a_bond_is_moved_with_its_members_as_they_are() {
    let text = configured("", "", "bond0");
    let (vm, lan) = machine(&[SERVICE], &[(UNIT, &text)]);
    let mut running = vm.boot();
    lan.assert_reaches();
    let links = "ip -o link show type bond; cat /proc/net/bonding/bond0";
    let before = running.run(links);
    running.run(&node("podwire", "init", BRIDGED));
    assert_in_bridge(&mut running, &lan, "bond0");
    running.run("sync");
    running.lose_power();
    let mut running = vm.boot();
    lan.assert_reaches();
    assert_eq!(running.run("ovs-vsctl list-ports br-ex"), "");
    running.run("systemctl start podwire-node");
    assert_in_bridge(&mut running, &lan, "bond0");
    running.run("systemctl stop podwire-node");
    running.run(&node("podwire", "cleanup", ""));
    lan.assert_reaches();
    assert_eq!(running.run(links), before);
}

#[test]
#[ignore = "boots a virtual machine: make test-kernel-gateway"]
fn a_bond_that_takes_its_members_mac_addresses_is_refused() {
    let text = configured("fail_over_mac active", "", "bond0");
    let (vm, lan) = machine(&[SERVICE], &[(UNIT, &text)]);
    let mut running = vm.boot();
    let (code, said) = running.finish(&node("podwire", "init", BRIDGED));
    assert_eq!(code, "1", "{said}");
    assert!(said.contains("set fail_over_mac to none"), "{said}");
    lan.assert_reaches();
}

#[test]
#[ignore = "boots a virtual machine: make test-kernel-gateway"]
fn a_vlan_on_a_bond_is_moved_and_a_bond_below_one_is_not() {
    let on_top = "ip link add link bond0 name bond0.100 type vlan id 100;";
    let text = configured("", on_top, "bond0.100");
    // The kernel that runs the test may have no VLANs.
    let network = TestNode::with_ovs();
    network.add_bridge("br-lan");
    network.vsctl("add-port br-lan eth0 tag=100 -- set interface eth0 type=internal");
    network.vsctl("add-port br-lan far");
    let (vm, lan) = machine_on((network, "far"), &[SERVICE], &[(UNIT, &text)]);
    let mut running = vm.boot();
    lan.assert_reaches();
    let bond = node(
        "podwire",
        "init",
        &format!("{BRIDGED} --interface bond0 --encap-ip 192.0.2.11"),
    );
    let (code, said) = running.finish(&bond);
    assert_eq!(code, "1", "{said}");
    assert!(said.contains("bond0.100 (vlan) is on bond0"), "{said}");
    running.run(&node("podwire", "init", BRIDGED));
    assert_in_bridge(&mut running, &lan, "bond0.100");
    running.run(&node("podwire", "rollback", ""));
    lan.assert_reaches();
    let addresses = running.run("ip -o address show dev bond0.100");
    assert!(addresses.contains("192.0.2.11/24"), "{addresses}");
}

/// A team of one NIC, which teamd keeps; the kernel sees no more of it than its kind.
#[test]
#[ignore = "boots a virtual machine: make test-kernel-gateway"]
fn a_team_is_refused_and_stays_as_it_is() {
    let team = r#"{"device": "team0", "runner": {"name": "activebackup"},
                  "link_watch": {"name": "ethtool"}, "ports": {"eth0": {}}}"#;
    let made = "mkdir -p /run/teamd; teamd -d -f /etc/vm/team.conf; ip link set eth0 up;";
    let text = addressed(made, "team0");
    let files = [(UNIT, &*text), ("/etc/vm/team.conf", team)];
    let (vm, lan) = machine(&[SERVICE], &files);
    let mut running = vm.boot();
    lan.assert_reaches();
    let show = "ip -d -o link show type team; ip -o address show; ip route; ip -6 route; \
                ovs-vsctl list-br";
    let before = running.run(show);
    assert!(before.contains("team0"), "{before}");
    for (flags, wanted) in [
        ("", "team0 is a link of kind team"),
        (
            "--interface eth0 --encap-ip 192.0.2.11",
            "eth0 is a part of team0",
        ),
    ] {
        let line = node("podwire", "init", &format!("{BRIDGED} {flags}"));
        let (code, said) = running.finish(&line);
        assert_eq!(code, "1", "{said}");
        assert!(said.contains(wanted), "{said}");
    }
    assert_eq!(running.run(show), before);
    lan.assert_reaches();
}

#[track_caller]
fn assert_in_bridge(running: &mut Running, lan: &Lan, link: &str) {
    let ports = running.run("ovs-vsctl list-ports br-ex");
    assert_eq!(ports.trim(), link);
    let addresses = running.run("ip -o address show scope global");
    for address in ["192.0.2.11/24", "2001:db8::11/64"] {
        let mut lines = addresses.lines().filter(|line| line.contains(address));
        assert!(lines.all(|line| line.contains("br-ex")), "{addresses}");
    }
    lan.assert_reaches();
}
