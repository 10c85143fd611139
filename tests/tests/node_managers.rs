//! `podwire node run` beside what else manages a machine's network: systemd-networkd,
//! NetworkManager and firewalld. What they do to our items is put back, or prevented by the files
//! that the package brings for them.

use podwire_tests::TestNode;
use podwire_tests::machine::Machine;
use podwire_tests::managers::Manager;

/// For every link: what clouds' images have, and worse.
const ALL: &str = "[Match]\nName=*\n[Network]\nAddress=198.51.100.7/32\nLinkLocalAddressing=no\n\
                   IPv6AcceptRA=no\nKeepConfiguration=no";

/// The uplink's own, which keeps what is set on it: from 257 on networkd removes the routes of a
/// link whose file does not say so.
const UPLINK: &str = "[Match]\nName=eth0\n[Network]\nAddress=198.51.100.8/32\n\
                      LinkLocalAddressing=no\nIPv6AcceptRA=no\nKeepConfiguration=yes";

/// A file that the package installs, as the repository has it.
fn shipped(name: &str) -> String {
    let path = format!("{}/../deploy/network/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

fn addresses(node: &TestNode) -> String {
    let show = ["-o", "address", "show", "dev", "ovn-k8s-mp0"];
    node.run("ip", show)
}

#[test]
fn what_networkd_takes_away_is_put_back_and_its_file_keeps_it_from_that() {
    let machine = Machine::new();
    let node = machine.node();
    let run = machine.start_run("");
    {
        let _networkd = Manager::networkd(
            node,
            &[("10-uplink.network", UPLINK), ("50-all.network", ALL)],
        )
        .unwrap();
        let configured = ["--timeout=20", "--interface=ovn-k8s-mp0:routable"];
        node.run("/usr/lib/systemd/systemd-networkd-wait-online", configured);
        node.run("networkctl", "reconfigure ovn-k8s-mp0");
        node.run("/usr/lib/systemd/systemd-networkd-wait-online", configured);
        machine.await_well();
        // It did take the link.
        assert!(addresses(node).contains("198.51.100.7"));
        node.run("networkctl", "reload");
        machine.await_well();
    }
    let remove = ["address", "del", "198.51.100.7/32", "dev", "ovn-k8s-mp0"];
    node.run("ip", remove);
    let own = shipped("05-podwire.network");
    let files = [
        ("05-podwire.network", &*own),
        ("10-uplink.network", UPLINK),
        ("50-all.network", ALL),
    ];
    let _networkd = Manager::networkd(node, &files).unwrap();
    let configured = ["--timeout=20", "--interface=eth0:routable"];
    node.run("/usr/lib/systemd/systemd-networkd-wait-online", configured);
    let listed = node.run("networkctl", "list --no-pager --no-legend");
    let link = listed
        .lines()
        .find(|line| line.contains("ovn-k8s-mp0"))
        .unwrap();
    assert!(link.contains("unmanaged"), "{listed}");
    assert!(!addresses(node).contains("198.51.100.7"));
    machine.await_well();
    assert!(run.stop().success());
}

#[test]
fn what_network_manager_takes_away_is_put_back_and_its_file_keeps_it_from_that() {
    let machine = Machine::new();
    let node = machine.node();
    let run = machine.start_run("");
    let nmcli = |line: &str| node.run("nmcli", line);
    {
        let _manager = Manager::network_manager(node).unwrap();
        // An operator who means well.
        nmcli("device set ovn-k8s-mp0 managed yes");
        nmcli(
            "connection modify --temporary ovn-k8s-mp0 \
             ipv4.method manual ipv4.addresses 198.51.100.7/32",
        );
        // It replaces what is set on the link by what is in the profile.
        nmcli("connection up ovn-k8s-mp0");
        run.await_log("restored ", 1);
        machine.await_well();
    }
    node.run("mkdir", "-p /run/nm/lib");
    let write = format!(
        "cat >/run/nm/lib/podwire.conf <<'END'\n{}\nEND",
        shipped("podwire.conf")
    );
    node.run("sh", ["-c", &write]);
    let _manager = Manager::network_manager(node).unwrap();
    let listed = nmcli("--terse --fields DEVICE,STATE device");
    assert!(listed.contains("ovn-k8s-mp0:unmanaged"), "{listed}");
    machine.await_well();
    assert!(run.stop().success());
}

#[test]
fn firewalld_is_told_of_pods_again_after_its_reload_and_keeps_nothing_after_cleanup() {
    let machine = Machine::new();
    let node = machine.node();
    let _firewalld = Manager::firewalld(node).unwrap();
    let firewall = |line: &str| node.run("firewall-cmd", line);
    let zones = || {
        let runtime = firewall("--list-all-zones");
        (runtime, firewall("--permanent --list-all-zones"))
    };
    let before = zones();
    let run = machine.start_run("");
    let is_told = || {
        let trusted = firewall("--zone=trusted --list-all");
        assert!(trusted.contains("interfaces: ovn-k8s-mp0"), "{trusted}");
        for source in ["10.244.0.0/16", "fd00:10:244::/48"] {
            assert!(trusted.contains(source), "{trusted}");
        }
        let public = firewall("--zone=public --list-ports");
        assert_eq!(public.trim(), "6081/udp");
    };
    is_told();
    // Nothing of it is for good: its reload ends it, and is followed.
    firewall("--reload");
    // A firewalld that does not answer while it reloads is told anew, and not put back.
    let link = "firewalld: link ovn-k8s-mp0 in zone trusted";
    run.await_lines(link, 1, |line| {
        line.contains(link) && !line.contains("which does not answer")
    });
    machine.await_well();
    is_told();
    let source = "restored firewalld: 10.244.0.0/16 in zone trusted";
    let earlier = run.count(source);
    firewall("--zone=trusted --remove-source=10.244.0.0/16");
    run.await_log(source, earlier + 1);
    machine.await_well();
    assert_eq!(zones().1, before.1);
    assert!(run.stop().success());
    machine.cleanup("");
    assert_eq!(zones(), before);

    machine.init("--firewalld permanent");
    assert_ne!(zones().1, before.1);
    firewall("--reload");
    is_told();
    // As after a reboot: only what outlives one tells that it is ours.
    node.run("rm", "-r /run/podwire/node");
    machine.cleanup("");
    assert_eq!(zones(), before);

    // Who wants to do it by hand is told how.
    let planned = machine.podwire_node("plan", "--firewalld off").stdout;
    let told = "firewall-cmd --permanent --zone=trusted --add-interface=ovn-k8s-mp0";
    assert!(planned.contains(told), "{planned}");
    assert!(!planned.contains("+ firewalld"), "{planned}");
}
