//! A NIC that NetworkManager configures: by a profile, by DHCP, by router advertisements. The real
//! one, and a real DHCP server.

use podwire_tests::lan::Dhcp;
use podwire_tests::managers::Manager;

use super::networkd::{await_made, made};
use super::*;

/// Every way at once.
pub(super) const OWN: &[&str] = &[
    "ipv4.method",
    "auto",
    "ipv4.routes",
    "198.51.100.0/24 192.0.2.20",
    "ipv6.method",
    "auto",
    "ipv6.addresses",
    "2001:db8::11/64",
    "ipv6.routes",
    "2001:db8:113::/64 2001:db8::1",
];
/// Without any server.
const STATIC: &[&str] = &[
    "ipv4.method",
    "manual",
    "ipv4.addresses",
    "192.0.2.11/24",
    "ipv4.gateway",
    "192.0.2.1",
    "ipv6.method",
    "manual",
    "ipv6.addresses",
    "2001:db8::11/64",
    "ipv6.gateway",
    "2001:db8::1",
];

fn device_states(machine: &Machine) -> String {
    let fields = "--terse --fields DEVICE,STATE,CONNECTION device";
    machine.node().run("nmcli", fields)
}

#[track_caller]
fn assert_configured(machine: &Machine, states: &[&str]) {
    // It may have made everything, and not have said so yet.
    machine.node().run("nm-online", "--quiet --timeout 30");
    let listed = device_states(machine);
    for state in states {
        assert!(
            listed.lines().any(|line| line == *state),
            "{state}:\n{listed}"
        );
    }
}

#[test]
fn network_manager_goes_on_with_the_bridge_and_the_lease_is_kept() {
    let (machine, lan) = machine();
    let node = machine.node();
    let dhcp = Dhcp::start(&machine, &lan);
    let manager = Lan::network_manager(&machine, OWN);
    Lan::await_renewed(&machine, "eth0");
    lan.assert_reached(&machine);
    let before = made(&machine, "eth0");
    let clients = dhcp.clients();

    machine.init(BRIDGED);
    assert_moved(&machine);
    await_made(&machine, "br-ex", &before);
    assert_configured(
        &machine,
        &["eth0:unmanaged:", "br-ex:connected:ovs-if-br-ex"],
    );
    lan.assert_reached(&machine);
    assert_eq!(clients.len(), 1);
    assert_eq!(dhcp.clients(), clients);
    assert!(!dhcp.log().contains("DHCPRELEASE"), "{}", dhcp.log());
    assert!(machine.init(BRIDGED).starts_with("0 steps: "));

    // Whoever has it read its files again, or the cable out for a moment.
    for line in [
        "connection reload",
        "general reload",
        "device reapply br-ex",
    ] {
        node.run("nmcli", line);
    }
    lan.flap();
    Lan::await_renewed(&machine, "br-ex");
    await_made(&machine, "br-ex", &before);
    assert_moved(&machine);
    lan.assert_reached(&machine);

    machine.podwire_node("rollback", "").success("rollback");
    assert_moved_back(&machine, &lan);
    await_made(&machine, "eth0", &before);
    assert_configured(&machine, &["eth0:connected:own"]);
    assert_eq!(dhcp.clients(), clients);
    let known = node.run("nmcli", "--terse --fields NAME connection");
    assert!(!known.contains("ovs-if-br-ex"), "{known}");
    machine.cleanup("");
    drop(manager);
}

#[test]
fn a_profile_with_lasting_addresses_is_the_bridge_s_and_a_restart_keeps_it() {
    let (machine, lan) = machine();
    let node = machine.node();
    let manager = Lan::network_manager(&machine, STATIC);
    lan.assert_reached(&machine);
    // What another program has set there goes along.
    node.run("ip", "address add 192.0.2.77/32 dev eth0");
    machine.init(BRIDGED);
    assert_moved(&machine);
    assert!(addresses(&machine, "br-ex").contains("192.0.2.77/32"));
    lan.assert_reached(&machine);
    drop(manager);
    let manager = Manager::network_manager_again(node).unwrap();
    lan.assert_reached(&machine);
    assert_configured(
        &machine,
        &["eth0:unmanaged:", "br-ex:connected:ovs-if-br-ex"],
    );
    machine.cleanup("");
    assert_moved_back(&machine, &lan);
    assert!(addresses(&machine, "eth0").contains("192.0.2.77/32"));
    assert_configured(&machine, &["eth0:connected:own"]);
    drop(manager);
}

#[test]
fn a_dhcp_server_that_is_gone_undoes_the_move_and_the_address_stays() {
    let (machine, lan) = machine();
    let dhcp = Dhcp::start(&machine, &lan);
    let _manager = Lan::network_manager(&machine, OWN);
    Lan::await_renewed(&machine, "eth0");
    drop(dhcp);
    let refused = machine.podwire_node("init", BRIDGED);
    refused.assert_says(
        Some(1),
        &[
            "the network manager has not made on br-ex: route 0.0.0.0/0",
            "was moved back",
        ],
    );
    assert_moved_back(&machine, &lan);
    let _dhcp = Dhcp::start(&machine, &lan);
    lan.assert_reached(&machine);
}

/// NetworkManager then has no route for it either.
#[test]
fn a_profile_that_takes_no_addresses_any_more_fails_no_rollback() {
    let (machine, lan) = machine();
    let _dhcp = Dhcp::start(&machine, &lan);
    let _manager = Lan::network_manager(&machine, OWN);
    Lan::await_renewed(&machine, "eth0");
    machine.init(BRIDGED);
    assert_moved(&machine);
    let change = "connection modify --temporary own ipv4.method disabled ipv4.routes ''";
    let change: Vec<&str> = change.split(' ').map(|it| it.trim_matches('\'')).collect();
    machine.node().run("nmcli", &change[..]);
    machine.podwire_node("rollback", "").success("rollback");
    await_addresses(&machine, "eth0");
    let ports = machine.node().vsctl("list-br");
    assert!(!ports.contains("br-ex"), "{ports}");
}

#[test]
fn what_network_manager_cannot_do_for_a_bridge_is_refused_with_its_reason() {
    let (machine, _lan) = machine();
    let _manager = Lan::network_manager(&machine, STATIC);
    let refused = |change: &str, words: &[&str]| {
        machine.node().run("nmcli", change);
        machine.node().run("nmcli", "connection up own");
        await_own_addresses(&machine);
        let before = machine.snapshot().without_lifetimes();
        let said = machine.podwire_node("init", BRIDGED);
        said.assert_says(Some(1), words);
        said.assert_says(Some(1), &["nothing was changed"]);
        before.assert_same(&machine.snapshot().without_lifetimes());
    };
    refused(
        "connection modify --temporary own ipv6.method ignore ipv6.addresses '' ipv6.gateway ''",
        &["eth0 by the profile own", "ipv6.method=ignore"],
    );
    machine.node().run("nmcli", "connection down own");
    let said = machine.podwire_node("init", BRIDGED);
    said.assert_says(Some(1), &["there is no default route"]);

    // As netplan's generator writes it.
    let mut netplans = STATIC.to_vec();
    netplans.extend(["con-name", "netplan-eth0"]);
    let add = "connection add save no type ethernet ifname eth0";
    let add: Vec<&str> = add.split(' ').chain(netplans).collect();
    machine.node().run("nmcli", &add[..]);
    machine.node().run("nmcli", "connection up netplan-eth0");
    await_own_addresses(&machine);
    let said = machine.podwire_node("init", BRIDGED);
    said.assert_says(
        Some(1),
        &[
            "netplan has written eth0's profile netplan-eth0",
            "nothing was changed",
        ],
    );
}
