//! Every step of a move, for each program that configures the NIC: init dies there, and the guard
//! undoes the move; or the guard dies in its turn, and the machine boots. Either way it answers at
//! its old addresses.

use podwire_tests::lan::Dhcp;
use podwire_tests::managers::Manager;

use super::guard::{GUARD, await_guard_end, killed};
use super::*;

/// Everything but the move.
const ROUTED: &str = "--ovn-remote tcp:203.0.113.6:6642";

/// Who undoes a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Guard,
    Boot,
}

/// Which steps a test takes: with network managers, which take seconds each time, every third one,
/// from another first one in each test; all of them by `make test-move`.
fn steps_from(first: usize) -> (usize, usize) {
    match std::env::var_os("MOVE_STEPS") {
        Some(_) => (1, 1),
        None => (first, 3),
    }
}

/// Kills init at its steps of the move, from the first one on, so many apart. `manage` starts the
/// program that configures the NIC, as at a boot. Gives the number of steps.
#[track_caller]
fn at_every_step<'m, M>(
    by: By,
    machine: &'m Machine,
    lan: &Lan,
    manage: impl Fn() -> M,
    (first, apart): (usize, usize),
) -> usize
where
    M: 'm,
{
    let mut manager = Some(manage());
    lan.assert_reached(machine);
    // Of everything else, another test kills the steps.
    machine.init(ROUTED);
    let mut steps = 0;
    for boundary in (first..).step_by(apart) {
        let guard = (by == By::Boot).then_some(1 + steps % 9);
        let ended = killed(machine, "init", BRIDGED, boundary, guard);
        if ended.status.success() {
            break;
        }
        assert!(ended.status.code().is_none(), "{boundary}: {ended:#?}");
        match phase(machine).as_deref() {
            // It has not begun.
            None | Some("rolled-back") => continue,
            Some("confirmed") => {
                machine.podwire_node("rollback", "").success("rollback");
                continue;
            }
            Some(_) => {}
        }
        steps += 1;
        // The first step is before there is a guard.
        let is_guarded = machine.node().path(GUARD).exists();
        match by {
            By::Guard if is_guarded => {
                await_moved_back(machine);
                // It waits for a lease then.
                await_guard_end(machine);
            }
            By::Guard => {
                let said = machine.podwire_node("init", BRIDGED);
                said.assert_says(Some(0), &["an unfinished move of eth0 was undone first"]);
                machine.podwire_node("rollback", "").success("rollback");
            }
            By::Boot => {
                if is_guarded {
                    await_guard_end(machine);
                }
                drop(manager.take());
                manager = Some(boot_with(machine, &manage));
                // Everything of the kernel's has gone.
                machine.init(ROUTED);
            }
        }
        assert_answers(machine, lan, boundary);
    }
    steps * apart
}

/// Whether the machine has its addresses on its NIC, and is reached there, after a kill there.
#[track_caller]
fn assert_answers(machine: &Machine, lan: &Lan, boundary: usize) {
    await_addresses(machine, "eth0");
    let ports = machine.node().vsctl("list-br");
    let bridges: Vec<&str> = ports.lines().filter(|it| *it == "br-ex").collect();
    for bridge in bridges {
        let ports = machine.node().vsctl(format!("list-ports {bridge}"));
        assert_eq!(ports.trim(), "", "{boundary}");
    }
    lan.assert_reached(machine);
}

fn by_network_manager(by: By, first: usize) {
    let (machine, lan) = machine();
    let _dhcp = Dhcp::start(&machine, &lan);
    let manage = || {
        let manager = Lan::network_manager(&machine, super::network_manager::OWN);
        Lan::await_renewed(&machine, "eth0");
        manager
    };
    let steps = at_every_step(by, &machine, &lan, manage, steps_from(first));
    assert!(steps > 20, "only {steps}");
}

#[test]
fn a_move_that_is_killed_at_any_step_is_undone_by_a_boot() {
    let (machine, lan) = machine();
    let manage = || configure_by_hand(&machine);
    let steps = at_every_step(By::Boot, &machine, &lan, manage, (1, 1));
    assert!(steps > 12, "only {steps}");
}

#[test]
fn a_move_under_networkd_that_is_killed_at_any_step_is_undone_by_its_guard() {
    let (machine, lan) = machine();
    let _dhcp = Dhcp::start(&machine, &lan);
    let manage = || -> Manager<'_> {
        machine.node().run("rm", "-rf /run/systemd/network");
        Lan::networkd(&machine, super::networkd::OWN)
    };
    let steps = at_every_step(By::Guard, &machine, &lan, manage, steps_from(3));
    // What networkd has not made yet, such as a link-local address, is not moved.
    assert!(steps > 9, "only {steps}");
}

#[test]
fn a_move_under_network_manager_that_is_killed_at_any_step_is_undone_by_its_guard() {
    by_network_manager(By::Guard, 1);
}

#[test]
fn a_move_under_network_manager_that_is_killed_at_any_step_is_undone_by_a_boot() {
    by_network_manager(By::Boot, 2);
}
