//! What happens on br-ex after the move, under each network manager: a lease is renewed, asked for
//! of any server, and runs out.

use podwire_tests::lan::Dhcp;
use podwire_tests::managers::Manager;

use super::*;

fn by_networkd(machine: &Machine) -> Manager<'_> {
    Lan::networkd(machine, super::networkd::OWN)
}

fn by_network_manager(machine: &Machine) -> Manager<'_> {
    let manager = Lan::network_manager(machine, super::network_manager::OWN);
    Lan::await_renewed(machine, "eth0");
    manager
}

/// Renews at T1, asks every server at T2, and loses its address at the lease's end until a server
/// is there again.
fn lives_by_its_lease(manage: impl for<'m> Fn(&'m Machine) -> Manager<'m>) {
    let (machine, lan) = machine();
    let dhcp = Dhcp::start_hurried(&machine, &lan);
    let manager = manage(&machine);
    let clients = dhcp.clients();
    machine.init(BRIDGED);
    assert_moved(&machine);
    for only_broadcasts in [false, true] {
        if only_broadcasts {
            lan.hear_only_broadcasts(true);
        }
        let asked = dhcp.count("DHCPACK");
        dhcp.await_count("DHCPACK", asked + 1);
    }
    lan.hear_only_broadcasts(false);
    assert_eq!(dhcp.clients(), clients);
    assert_moved(&machine);
    lan.assert_reached(&machine);

    drop(dhcp);
    machine.await_lease_end(|| {
        let there = addresses(&machine, "br-ex");
        (!there.contains("192.0.2.11")).then_some(()).ok_or(there)
    });
    let ports = machine.node().vsctl("list-ports br-ex");
    assert_eq!(ports.trim(), "eth0");
    let dhcp = Dhcp::start_hurried(&machine, &lan);
    Lan::await_renewed(&machine, "br-ex");
    assert_moved(&machine);
    assert_eq!(dhcp.clients(), clients);
    lan.assert_reached(&machine);
    drop(manager);
}

#[test]
fn a_lease_under_networkd_is_renewed_on_the_bridge_and_runs_out_there() {
    lives_by_its_lease(by_networkd);
}

#[test]
fn a_lease_under_network_manager_is_renewed_on_the_bridge_and_runs_out_there() {
    lives_by_its_lease(by_network_manager);
}
