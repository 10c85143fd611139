//! What must not lose the machine: a NIC that can't be moved back, a process that sees too little.

use std::process::Command;

use podwire_tests::machine::Machine;
use podwire_tests::{NodeRun, agent_binary};

use super::guard::{GUARD, await_guard_end};
use super::{
    BRIDGED, assert_moved, assert_moved_back, await_moved_back, boot_file, machine, phase,
};

/// Runs the start of a command line before that of a verb, and returns its output and whether it
/// succeeded.
fn behind(machine: &Machine, start: &str, verb: &str, flags: &str) -> (String, bool) {
    let program = agent_binary().display().to_string();
    let line = machine.arguments(verb, flags).join(" ");
    let script = format!("{start} {program} {line} 2>&1 && echo succeeded; true");
    let said = machine.node().run("sh", ["-c", &script]);
    let succeeded = said.trim_end().ends_with("succeeded");
    (said, succeeded)
}

#[test]
fn a_bridge_stays_whose_nic_can_not_be_moved_back() {
    let (machine, lan) = machine();
    let before = machine.snapshot();
    machine.init(BRIDGED);
    let addresses = || machine.node().run("ip", "-o address show dev br-ex");
    let moved = addresses();
    // Another process holds the record.
    let locked = "flock /run/podwire/node/uplink";
    let (said, succeeded) = behind(&machine, locked, "cleanup", "");
    assert!(
        !succeeded && said.contains("another `podwire node` moves the NIC"),
        "{said}"
    );
    assert_moved(&machine);
    lan.assert_reached(&machine);
    // Without it, the next boot would find the NIC in the bridge.
    assert!(boot_file(&machine).contains("del-port br-ex eth0"));
    assert_eq!(addresses(), moved);
    machine.cleanup("");
    assert_moved_back(&machine, &lan);
    before.assert_same(&machine.snapshot());
}

/// Open vSwitch could not write down that the NIC leaves: it would stay in the bridge, without the
/// addresses by which the machine is reached there.
#[test]
fn a_full_disk_leaves_the_nic_in_the_bridge_with_all_that_it_has() {
    const FILLING: &str = "/run/openvswitch/filling";
    let (machine, lan) = machine();
    let node = machine.node();
    node.kill_vswitchd();
    node.stop_ovsdb_server();
    let small = "cp -a /run/openvswitch /run/copy && \
                 mount -t tmpfs -o size=1m none /run/openvswitch && \
                 cp -a /run/copy/. /run/openvswitch && rm -r /run/copy";
    node.run("sh", ["-c", small]);
    node.start_ovsdb_server();
    node.start_vswitchd();
    // The last page of the database's file has room for a few more changes, of which ovs-vswitchd
    // may not be able to say that it has made them.
    let fill = format!(
        "dd if=/dev/zero of={FILLING} bs=4k 2>/dev/null; i=0; \
         while ovs-vsctl --no-wait set bridge br-int external_ids:i=$i 2>/dev/null; \
         do i=$((i + 1)); done"
    );
    let fill = || drop(node.run("sh", ["-c", &fill]));
    let empty = || drop(node.run("rm", FILLING));

    machine.init(BRIDGED);
    fill();
    for verb in ["rollback", "cleanup"] {
        let refused = machine.podwire_node(verb, "");
        refused.assert_says(Some(1), &["uplink eth0 in br-ex", "conf.db: write failed"]);
        assert_moved(&machine);
        lan.assert_reached(&machine);
        assert_eq!(phase(&machine).as_deref(), Some("confirmed"));
    }
    await_guard_end(&machine);
    empty();
    machine.podwire_node("rollback", "").success("rollback");
    assert_moved_back(&machine, &lan);

    // The guard tries again until there is room.
    machine.init(format!("{BRIDGED} --confirm-within 20s"));
    fill();
    let log = GUARD.replace("/guard", "/guard.log");
    machine.await_file(&log, |text| {
        text.contains("conf.db: write failed); retrying")
    });
    assert_moved(&machine);
    lan.assert_reached(&machine);
    empty();
    await_moved_back(&machine);
    assert_moved_back(&machine, &lan);
    machine.cleanup("");
}

#[test]
fn a_container_that_sees_no_network_manager_moves_no_nic() {
    let (machine, lan) = machine();
    let before = machine.snapshot();
    let pod = "KUBERNETES_SERVICE_HOST=10.96.0.1";
    let (said, succeeded) = behind(&machine, pod, "init", BRIDGED);
    assert!(
        !succeeded && said.contains("a container does not see"),
        "{said}"
    );
    machine.cleanup("");
    before.assert_same(&machine.snapshot());

    machine.init(BRIDGED);
    let (said, succeeded) = behind(&machine, pod, "cleanup", "");
    assert!(
        !succeeded && said.contains("a container does not see"),
        "{said}"
    );
    assert_moved(&machine);
    lan.assert_reached(&machine);
    // The role goes on in one, for it moves nothing.
    let mut command = Command::new(agent_binary());
    command.args(machine.arguments("run", BRIDGED));
    command.env("KUBERNETES_SERVICE_HOST", "10.96.0.1");
    let run = NodeRun::launch_by(machine.node(), command);
    run.await_state("READY=1");
    assert!(run.stop().success());
    assert_moved(&machine);
    machine.cleanup("");
    assert_moved_back(&machine, &lan);
}

#[test]
fn the_profile_adopt_refuses_a_bridge_of_podwire_s() {
    let (machine, lan) = machine();
    machine.init(BRIDGED);
    let adopt = "--profile adopt --ovn-remote tcp:203.0.113.6:6642";
    let refused = machine.podwire_node("init", adopt);
    refused.assert_says(Some(1), &["podwire made it for eth0"]);
    assert_moved(&machine);
    lan.assert_reached(&machine);
    machine.cleanup("");
    assert_moved_back(&machine, &lan);
}

#[test]
fn others_can_read_the_files_that_are_for_them() {
    let (machine, lan) = machine();
    let (said, succeeded) = behind(&machine, "umask 077;", "init", BRIDGED);
    assert!(succeeded, "{said}");
    let drop_ins = "/etc/systemd/system/ovsdb-server.service.d";
    let modes = machine
        .node()
        .run("sh", ["-c", &format!("stat -c %a {drop_ins} {drop_ins}/*")]);
    assert_eq!(modes, "755\n644\n");
    machine.cleanup("");
    assert_moved_back(&machine, &lan);
}
