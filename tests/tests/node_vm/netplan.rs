//! netplan, which writes for systemd-networkd: the real one, in a machine with systemd, udev and
//! D-Bus, which it talks to.

use super::*;

const FILE: &str = "/etc/netplan/10-own.yaml";

/// netplan has systemd end its removal of what it has made itself in Open vSwitch, which is nothing
/// here, after ten seconds: the emulated machine alone needs about as long to start Python.
const PATIENT: (&str, &str) = (
    "/etc/systemd/system/netplan-ovs-cleanup.service.d/patient.conf",
    "[Service]\nTimeoutStartSec=300\n",
);

/// The machine's NIC with this address beside its own.
fn configured(other: &str) -> String {
    format!(
        "network:\n  version: 2\n  renderer: networkd\n  ethernets:\n    eth0:\n      \
         accept-ra: false\n      \
         addresses: [192.0.2.11/24, \"2001:db8::11/64\", {other}]\n      routes:\n      \
         - {{to: default, via: 192.0.2.1, metric: 100}}\n      \
         - {{to: default, via: \"2001:db8::1\", metric: 100}}\n"
    )
}

#[track_caller]
fn assert_moved(running: &mut Running, lan: &Lan, case: &str) {
    let shown = running.run("ip -o address show scope global; ovs-vsctl list-ports br-ex");
    for address in ["192.0.2.11/24", "2001:db8::11/64"] {
        let mut lines = shown.lines().filter(|line| line.contains(address));
        let line = lines.next().unwrap_or_default();
        assert!(
            line.contains("br-ex") && lines.next().is_none(),
            "{case}: {shown}"
        );
    }
    assert!(shown.ends_with("eth0\n"), "{case}: {shown}");
    lan.assert_reaches();
}

#[test]
#[ignore = "boots a virtual machine: make test-kernel-gateway"]
fn netplan_apply_leaves_the_bridge_as_it_is_and_the_nic_has_its_changes_when_it_is_back() {
    let units = [
        "systemd-udevd.service",
        "systemd-udev-trigger.service",
        "dbus.service",
        "systemd-networkd.service",
    ];
    let text = configured("192.0.2.12/24");
    let (vm, lan) = machine(&units, &[(FILE, &text), PATIENT]);
    let mut running = vm.boot();
    lan.assert_reaches();
    let made = running.run("networkctl list --no-legend --no-pager; ls /run/systemd/network");
    assert!(made.contains("10-netplan-eth0.network"), "{made}");
    running.run(&node("podwire", "init", BRIDGED));
    assert_moved(&mut running, &lan, "init");
    running.run("netplan apply");
    assert_moved(&mut running, &lan, "netplan apply");
    let changed = configured("192.0.2.13/24");
    running.run(&format!("printf %b {changed:?} >{FILE}"));
    running.run("netplan apply");
    assert_moved(&mut running, &lan, "netplan apply of a change");

    // The renderer's own files lead at a boot, and then the move is made again.
    running.run("sync");
    running.lose_power();
    let mut running = vm.boot();
    assert_answers(&mut running, &lan, "a boot");
    running.run("systemctl start podwire-node");
    // The NIC has not the address that it had when its move was confirmed, which is waited for.
    running.run("grep -qm 1 'in sync: all' <(journalctl -f -n all -u podwire-node)");
    assert_moved(&mut running, &lan, "after a boot");
    running.run("netplan apply");
    assert_moved(&mut running, &lan, "netplan apply after a boot");
    running.run("systemctl stop podwire-node");
    running.run(&node("podwire", "rollback", ""));
    assert_answers(&mut running, &lan, "rollback");
    let addresses = running.run("ip -o -4 address show dev eth0");
    assert!(addresses.contains("192.0.2.13/24"), "{addresses}");
    running.run("netplan apply");
    assert_answers(&mut running, &lan, "netplan apply without the bridge");
}
