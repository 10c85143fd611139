//! Kills at every step: of the move, of the guard's rollback, of cleanup; and who undoes what is
//! left then.

use std::path::PathBuf;
use std::process::Command;

use podwire_tests::process::Finished;
use podwire_tests::systemd::Systemd;
use podwire_tests::{agent_binary, faulty_agent_binary};

use super::*;

/// An init that dies by SIGKILL at a boundary of its steps, and whose guard does so at one of its
/// own.
#[track_caller]
pub(super) fn killed(
    machine: &Machine,
    verb: &str,
    flags: &str,
    at: usize,
    guard: Option<usize>,
) -> Finished {
    let mut command = Command::new(faulty_agent_binary());
    command.args(machine.arguments(verb, flags));
    command.env("PODWIRE_NODE_FAULT", at.to_string());
    if let Some(guard) = guard {
        command.env("PODWIRE_GUARD_FAULT", guard.to_string());
    }
    machine.finish(command)
}

#[test]
fn a_move_that_is_killed_at_any_step_is_undone_by_its_guard() {
    let (machine, lan) = machine();
    let before = machine.snapshot();
    let (mut undone, mut unguarded) = (0, 0);
    for boundary in 1.. {
        let ended = killed(&machine, "init", BRIDGED, boundary, None);
        if ended.status.success() {
            break;
        }
        assert!(ended.status.code().is_none(), "{boundary}: {ended:#?}");
        match phase(&machine).as_deref() {
            None => {}
            // The guard does not run yet, and nothing is changed yet.
            Some("moving") if !machine.node().path(GUARD).exists() => {
                let said = machine.podwire_node("init", BRIDGED);
                said.assert_says(Some(0), &["an unfinished move of eth0 was undone first"]);
                assert_moved(&machine);
                unguarded += 1;
            }
            Some("confirmed") => assert_moved(&machine),
            Some(_) => {
                await_moved_back(&machine);
                undone += 1;
                assert_moved_back(&machine, &lan);
            }
        }
        machine.cleanup("");
        before.assert_same(&machine.snapshot());
    }
    assert!(undone > 12, "only {undone} boundaries within the move");
    // Once, or again where an earlier move took a step more on its way there.
    assert!(unguarded > 0);
    machine.cleanup("");
    before.assert_same(&machine.snapshot());
}

/// What a guard locks while it watches.
pub(super) const GUARD: &str = "/run/podwire/node/uplink/guard";

/// Waits until no guard runs any more.
#[track_caller]
pub(super) fn await_guard_end(machine: &Machine) {
    machine.node().run("flock", [GUARD, "true"]);
}

/// With nobody left, whatever comes next undoes it: the service, a boot, another init.
#[test]
fn a_move_that_is_killed_together_with_its_guard_is_undone_by_what_runs_next() {
    let (machine, lan) = machine();
    let mut cases = 0;
    for boundary in 1.. {
        let ended = killed(&machine, "init", BRIDGED, boundary, Some(1 + cases % 9));
        if ended.status.success() {
            break;
        }
        let is_mine = phase(&machine).as_deref() == Some("moving");
        if !is_mine || !machine.node().path(GUARD).exists() {
            machine.cleanup("");
            continue;
        }
        await_guard_end(&machine);
        if phase(&machine).as_deref() != Some("moving") {
            // It had fewer steps to take.
            machine.cleanup("");
            continue;
        }
        match cases % 3 {
            0 => {
                let run = machine.launch_run(BRIDGED);
                await_moved_back(&machine);
                assert!(run.stop().success());
            }
            1 => boot(&machine),
            _ => {
                let said = machine.podwire_node("init", BRIDGED);
                said.assert_says(Some(0), &["an unfinished move of eth0 was undone first"]);
                machine.podwire_node("rollback", "").success("rollback");
            }
        }
        lan.assert_reached(&machine);
        if cases % 3 == 1 {
            // It was never confirmed.
            let run = machine.launch_run(BRIDGED);
            run.await_state("which moves it");
            assert!(run.stop().success());
            lan.assert_reached(&machine);
        }
        cases += 1;
        machine.cleanup("");
    }
    assert!(cases > 12, "only {cases} boundaries within the move");
}

#[test]
fn a_cleanup_that_is_killed_at_any_step_is_completed_by_another() {
    let (machine, lan) = machine();
    let before = machine.snapshot();
    for boundary in 1.. {
        machine.init(BRIDGED);
        let ended = killed(&machine, "cleanup", "", boundary, None);
        if ended.status.success() {
            break;
        }
        if machine.node().path(GUARD).exists() {
            await_guard_end(&machine);
        }
        lan.assert_reached(&machine);
        machine.cleanup("");
        before.assert_same(&machine.snapshot());
    }
}

#[test]
fn systemd_starts_a_guard_again_that_is_killed() {
    let (machine, lan) = machine();
    let node = machine.node();
    let before = machine.snapshot();
    let systemd = Systemd::start(node);
    let podwire = |binary: PathBuf, flags: &str| {
        let mut line = vec![binary.display().to_string()];
        line.extend(machine.arguments("init", flags));
        systemd.inside(line)
    };
    let by_hand = podwire(agent_binary(), &format!("{BRIDGED} --confirm-within 20s"));
    machine.finish(by_hand).success("podwire node init");
    assert_moved(&machine);
    let units = systemd.systemctl("list-units --no-legend --plain podwire-guard-*");
    let unit = units.split(' ').next().unwrap();
    let group = systemd.systemctl(["show", "--property=ControlGroup", unit]);
    assert!(group.contains("/system.slice/podwire-guard-"), "{group}");
    let pid = node.run("cat", GUARD);
    systemd.systemctl(["kill", "--signal=KILL", unit]);
    // The one that systemd starts writes down its own.
    machine.await_file(GUARD, |text| text.ends_with('\n') && *text != *pid);
    let restarts = systemd.systemctl(["show", "-P", "NRestarts", unit]);
    assert_eq!(restarts.trim(), "1");
    await_moved_back(&machine);
    assert_moved_back(&machine, &lan);

    // The end of a session that it was started in, which ends all of its processes.
    let mut init = podwire(faulty_agent_binary(), BRIDGED);
    init.env("PODWIRE_NODE_FAULT", "14");
    let ended = machine.finish(init);
    assert!(!ended.status.success(), "{ended:#?}");
    await_moved_back(&machine);
    assert_moved_back(&machine, &lan);
    machine.cleanup("");
    drop(systemd);
    before.assert_same(&machine.snapshot());
}

#[test]
fn of_two_that_move_the_nic_at_the_same_moment_one_does() {
    let (machine, lan) = machine();
    let before = machine.snapshot();
    let both = std::thread::scope(|scope| {
        let both = [(), ()].map(|()| scope.spawn(|| machine.podwire_node("init", BRIDGED)));
        both.map(|one| one.join().unwrap())
    });
    let (done, refused): (Vec<_>, Vec<_>) = both.iter().partition(|it| it.status.success());
    assert!(!done.is_empty(), "{both:?}");
    for one in refused {
        one.assert_says(Some(1), &["another `podwire node` uses"]);
    }
    assert_moved(&machine);
    lan.assert_reached(&machine);
    machine.cleanup("");
    before.assert_same(&machine.snapshot());
}
