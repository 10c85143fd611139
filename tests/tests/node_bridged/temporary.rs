//! Privacy addresses (RFC 8981) under each network manager: br-ex gets its own, and connections
//! that have one of the NIC's go on.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use podwire_tests::lan::Dhcp;
use podwire_tests::managers::Manager;

use super::*;

const SERVER: &str = "2001:db8::20";

fn by_networkd(machine: &Machine) -> Manager<'_> {
    let own = super::networkd::OWN.replace("DHCP=ipv4", "IPv6PrivacyExtensions=yes\nDHCP=ipv4");
    Lan::networkd(machine, &own)
}

fn by_network_manager(machine: &Machine) -> Manager<'_> {
    let own = [super::network_manager::OWN, &["ipv6.ip6-privacy", "2"]].concat();
    let manager = Lan::network_manager(machine, &own);
    Lan::await_renewed(machine, "eth0");
    manager
}

/// The addresses of a link that are such.
fn temporary(machine: &Machine, link: &str) -> String {
    let show = format!("-6 -o address show dev {link} temporary -deprecated -tentative");
    machine.node().run("ip", show)
}

#[track_caller]
fn await_temporary(machine: &Machine, link: &str) {
    machine.await_set(&format!("a temporary address on {link}"), || {
        let seen = temporary(machine, link);
        let is_there = seen.contains("inet6");
        is_there
            .then_some(())
            .ok_or_else(|| addresses(machine, link))
    });
}

/// A connection by the machine's choice of a source, with both ends.
#[track_caller]
fn connected(machine: &Machine, listener: &TcpListener) -> [TcpStream; 2] {
    let to = listener.local_addr().unwrap();
    let client = machine.node().place().run(|| TcpStream::connect(to));
    let client = client.unwrap();
    let (server, _) = listener.accept().unwrap();
    [client, server]
}

#[track_caller]
fn assert_carries([client, server]: &mut [TcpStream; 2]) {
    client.write_all(b"there").unwrap();
    server.read_exact(&mut [0; 5]).unwrap();
    server.write_all(b"back").unwrap();
    client.read_exact(&mut [0; 4]).unwrap();
}

fn goes_on(manage: impl for<'m> Fn(&'m Machine) -> Manager<'m>) {
    let (machine, lan) = machine();
    let _dhcp = Dhcp::start(&machine, &lan);
    let _manager = manage(&machine);
    await_temporary(&machine, "eth0");
    let at = SocketAddr::new(SERVER.parse().unwrap(), 0);
    let listener = lan.place().run(|| TcpListener::bind(at)).unwrap();
    let mut first = connected(&machine, &listener);
    for stream in &first {
        let limit = Some(std::time::Duration::from_secs(10));
        stream.set_read_timeout(limit).unwrap();
    }
    let own = |pair: &[TcpStream; 2]| pair[0].local_addr().unwrap().ip().to_string();
    let source = own(&first);
    assert!(temporary(&machine, "eth0").contains(&source), "{source}");

    machine.init(BRIDGED);
    assert_moved(&machine);
    assert_carries(&mut first);
    await_temporary(&machine, "br-ex");
    assert!(!temporary(&machine, "br-ex").contains(&source));
    let mut second = connected(&machine, &listener);
    assert!(temporary(&machine, "br-ex").contains(&own(&second)));
    assert_carries(&mut second);

    machine.podwire_node("rollback", "").success("rollback");
    assert_moved_back(&machine, &lan);
    for pair in [&mut first, &mut second] {
        assert_carries(pair);
    }
    await_temporary(&machine, "eth0");
}

#[test]
fn temporary_addresses_go_on_under_networkd() {
    goes_on(by_networkd);
}

#[test]
fn temporary_addresses_go_on_under_network_manager() {
    goes_on(by_network_manager);
}

/// With privacy addresses on the NIC, NetworkManager first shows a profile of its own there,
/// without IPv4, from which it then takes the NIC: with such a script, after a while.
#[test]
fn a_script_that_network_manager_waits_for_fails_no_rollback() {
    let (machine, lan) = machine();
    let _dhcp = Dhcp::start(&machine, &lan);
    let node = machine.node();
    Manager::before_down(node, "#!/bin/sh\necho $1 >>/run/nm/taken\nsleep 1\n");
    let manager = by_network_manager(&machine);
    let _dispatcher = manager.dispatcher().unwrap();
    await_temporary(&machine, "eth0");
    machine.init(BRIDGED);
    assert_moved(&machine);
    await_temporary(&machine, "br-ex");
    machine.podwire_node("rollback", "").success("rollback");
    assert_moved_back(&machine, &lan);
    let taken = node.run("cat", "/run/nm/taken");
    assert!(taken.contains("eth0"), "{taken}");
}
