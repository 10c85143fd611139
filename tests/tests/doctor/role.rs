//! `podwire node run`, beside the agent.

use std::cell::RefCell;
use std::fs;

use nix::sys::signal::Signal;
use podwire_tests::lan::Lan;
use podwire_tests::machine::Machine;
use podwire_tests::{AgentOptions, NodeRun};

use crate::patient::Patient;

/// Packets of this size get through OVN's tunnels.
fn options() -> AgentOptions {
    AgentOptions::default().with("--mtu 1400")
}

#[test]
fn a_node_role_that_ended_is_started_again() {
    let machine = Machine::new();
    let started: RefCell<Option<NodeRun>> = RefCell::default();
    let node = machine.node();
    let run = machine.start_run("");
    let mut patient = Patient::healthy(node, options());
    let seen = node.podwire("status").stdout;
    assert!(seen.contains("node role     in sync: all "), "{seen}");
    let (_, json) = node.podwire_json("status -o json");
    assert_eq!(json["nodeRole"]["runs"], true, "{json}");
    run.kill();
    let seen = node.podwire("status");
    assert!(
        seen.stdout.contains("! node role     does not run"),
        "{seen:?}"
    );
    assert_eq!(seen.status.code(), Some(0), "pods are served");
    patient.complains_of("node-role-ended", "does not run");

    // Where the package is.
    fs::create_dir_all(node.path("/run/systemd/system")).unwrap();
    fs::write(node.path("/run/systemd/system/podwire-node.service"), "").unwrap();
    patient.others = Box::new(|asked| {
        let is_start = asked == "systemctl start podwire-node";
        if is_start {
            started.replace(Some(machine.start_run("")));
        }
        is_start
    });
    patient.healthy_after(&["node-role-ended", "does not run"]);
}

#[test]
fn a_node_role_that_hangs_is_told_from_one_that_works() {
    let machine = Machine::new();
    let started: RefCell<Option<NodeRun>> = RefCell::default();
    let node = machine.node();
    let hung = RefCell::new(Some(machine.start_run("")));
    let mut patient = Patient::healthy(node, options());
    hung.borrow().as_ref().unwrap().signal(Signal::SIGSTOP);
    let seen = node.podwire("status");
    assert!(
        seen.stdout
            .contains("! node role     does not answer within 2 s"),
        "{seen:?}"
    );
    let (_, json) = node.podwire_json("status -o json");
    let role = &json["nodeRole"];
    assert_eq!(
        (&role["runs"], &role["hangs"]),
        (&true.into(), &true.into())
    );
    let (code, shown) = machine.show();
    assert_eq!((code, &shown["run"]["well"]), (Some(1), &false.into()));
    patient.complains_of("node-role-silent", "does not answer within 2 s");

    // Where the package is.
    fs::create_dir_all(node.path("/run/systemd/system")).unwrap();
    fs::write(node.path("/run/systemd/system/podwire-node.service"), "").unwrap();
    patient.others = Box::new(|asked| {
        let is_restart = asked == "systemctl restart podwire-node";
        if is_restart {
            hung.take().unwrap().kill();
            started.replace(Some(machine.start_run("")));
        }
        is_restart
    });
    patient.healthy_after(&["node-role-silent", "does not answer within 2 s"]);
}

#[test]
fn a_moved_nic_that_awaits_a_person_is_confirmed() {
    let (machine, _lan) = Lan::with_machine();
    let bridged = "--profile bridged --ovn-remote tcp:203.0.113.6:6642";
    let mut patient = Patient::healthy(machine.node(), options());
    machine.init(format!("{bridged} --confirm-within 1h"));
    let _run = machine.start_run(bridged);
    patient.healthy_after(&["nic-unconfirmed", "eth0 is in br-ex until "]);
    machine.podwire_node("rollback", "").success("rollback");
}

#[test]
fn what_the_node_role_puts_back_and_can_not_put_back_is_told() {
    let machine = Machine::new();
    let node = machine.node();
    let run = machine.start_run("");
    let patient = Patient::healthy(node, options());
    let delete = ["address", "del", "10.244.1.2/24", "dev", "ovn-k8s-mp0"];
    node.run("ip", delete);
    run.await_log("restored address", 1);
    machine.await_well();
    patient.is_healthy();
    patient.complains_of(
        "node-role-restored",
        "items that podwire node run restored: ",
    );

    // Again and again, until it is not restored for a while.
    let mut deleted = 1;
    while run.count("not restored for") == 0 {
        node.run("ip", delete);
        deleted += 1;
        let ends = |line: &str| line.contains("not restored for");
        let seen = |line: &str| line.contains("restored address") || ends(line);
        run.await_lines("restored, or not", deleted, seen);
    }
    run.await_log("not restored for a while: ", 1);
    patient.complains_of("node-role-unwell", "not restored for a while");
    fs::write(node.path("/run/podwire/node/state"), "{").unwrap();
    patient.complains_of("node-role-unreadable", "EOF");
}
