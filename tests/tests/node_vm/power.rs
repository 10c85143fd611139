//! Power that is lost while the only NIC is moved into br-ex, or back: after its boot the machine
//! answers at its addresses.

use super::*;

/// Everything but the move.
const ROUTED: &str = "--ovn-remote tcp:203.0.113.6:6642";

/// What of that which nobody has asked to be on the disk is there when the power is lost: nothing,
/// all, what is in files that were there before, what is in directories. A kernel may write any of
/// it at any time.
const WRITTEN: [&str; 4] = [
    "true",
    "sync",
    "sync /etc/openvswitch/conf.db",
    "sync /etc/systemd/system /etc/systemd/system/ovsdb-server.service.d",
];

/// Which steps a test takes: `POWER_STEPS` is the first one and how far they are apart, as in 2,3.
fn wanted() -> (usize, usize) {
    let wanted = std::env::var("POWER_STEPS").unwrap_or_default();
    let (first, apart) = wanted.split_once(',').unwrap_or(("1", "1"));
    (first.parse().unwrap(), apart.parse().unwrap())
}

/// Loses its power at each step of a command that follows these, and boots, until it has as many
/// steps. Gives their number, and the machine in which the command has ended.
#[track_caller]
fn at_every_step(
    (vm, lan): (&Vm, &Lan),
    before: &[String],
    (verb, flags): (&str, &str),
) -> (usize, Running) {
    let mut running = vm.boot();
    let (first, apart) = wanted();
    for (case, boundary) in (first..).step_by(apart).enumerate() {
        for line in before {
            running.run(line);
        }
        let fault = format!("PODWIRE_NODE_FAULT={boundary} PODWIRE_NODE_FAULT_STOPS=yes");
        let command = node("podwire-faults", verb, flags);
        let said = running.run(&format!("until_stopped env {fault} {command}"));
        if said.ends_with("ended with 0\n") {
            return (boundary - 1, running);
        }
        assert!(said.contains("stopped at boundary"), "{boundary}: {said}");
        let written = WRITTEN[case % WRITTEN.len()];
        // A directory may not be there yet.
        running.finish(written);
        running.lose_power();
        let case = format!("{verb}, boundary {boundary}, after {written}");
        println!("{case}");
        running = vm.boot();
        assert_answers(&mut running, lan, &case);
    }
    unreachable!("it has an end")
}

#[test]
#[ignore = "boots a virtual machine for each step: make test-kernel-gateway"]
fn a_machine_that_loses_its_power_at_any_step_of_a_move_answers_after_its_boot() {
    let (vm, lan) = machine(&["vm-network.service"], &[NETWORK]);
    let routed = [node("podwire", "init", ROUTED)];
    let (steps, mut running) = at_every_step((&vm, &lan), &routed, ("init", BRIDGED));
    assert!(steps > 12, "only {steps}");
    lan.assert_reaches();
    // Confirmed: after the boot it is moved again, by the service.
    running.run("sync");
    running.lose_power();
    running = vm.boot();
    assert_answers(&mut running, &lan, "confirmed");
    running.run("systemctl start podwire-node");
    let ports = running.run("ovs-vsctl list-ports br-ex");
    assert_eq!(ports, "eth0\n");
    let addresses = running.run("ip -o address show dev br-ex");
    assert!(addresses.contains("192.0.2.11/24"), "{addresses}");
    lan.assert_reaches();
}

#[test]
#[ignore = "boots a virtual machine for each step: make test-kernel-gateway"]
fn a_machine_that_loses_its_power_at_any_step_of_the_way_back_answers_after_its_boot() {
    let (vm, lan) = machine(&["vm-network.service"], &[NETWORK]);
    let moved = [node("podwire", "init", BRIDGED)];
    for verb in ["rollback", "cleanup"] {
        let (steps, mut running) = at_every_step((&vm, &lan), &moved, (verb, ""));
        assert!(steps > 12, "only {steps} of {verb}");
        lan.assert_reaches();
        running.run("sync");
        running.lose_power();
        let mut running = vm.boot();
        assert_answers(&mut running, &lan, verb);
        running.lose_power();
    }
}
