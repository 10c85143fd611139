//! What `make demo` runs.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use podwire_tests::{hex, process};

const DEMO: &str = env!("CARGO_BIN_EXE_podwire-demo");

/// Runs the demo to its end, which must be a good one; what it printed must hold each of these.
fn ends_well(demo: Command, shown: &[&str]) -> String {
    ends_well_with(demo, "", shown)
}

fn ends_well_with(demo: Command, typed: &str, shown: &[&str]) -> String {
    let finished = process::finish(demo, typed.as_bytes(), Duration::from_secs(100)).unwrap();
    let stdout = finished.success("podwire-demo");
    for words in shown {
        assert!(stdout.contains(words), "no {words} in:\n{stdout}");
    }
    stdout
}

#[test]
fn the_demo_shows_both_pods_and_ends_well() {
    let shown = [
        "demo/web",
        "demo/db",
        "10.244.1.11/24",
        "fd00:10:244:1::c/64",
        "0a:58:0a:f4:01:0b",
        "ofport",
        "✓ nothing is left",
    ];
    let stdout = ends_well(Command::new(DEMO), &shown);
    assert!(
        !stdout.contains('\x1b'),
        "colour where there is no terminal"
    );
}

#[test]
fn the_underlay_demo_has_pods_and_a_host_talk_on_a_vlan_and_ends_well() {
    let mut demo = Command::new(DEMO);
    demo.arg("underlay");
    let shown = [
        "✓ the host outside and web exchange",
        "✓ web and db, across the switch, exchange",
        "by TCP over IPv6",
        "✓ the host outside says that web's address is its own",
        "✓ who is in another VLAN hears nobody",
        "it is put back",
        "✓ nothing is left",
    ];
    ends_well(demo, &shown);
}

#[test]
fn the_networks_demo_shows_refusals_and_a_network_that_the_default_one_does_not_reach() {
    let mut demo = Command::new(DEMO);
    demo.arg("networks");
    let shown = [
        "network shop-blue exists with other subnets",
        "can't change while pods are on it: shop/db, shop/web",
        "✓ web and twin talk on shop/red",
        "✓ ledger and vault talk on their network",
        "✓ web does not reach ledger",
        "✓ ledger does not reach web",
        "✓ nothing is left",
    ];
    ends_well(demo, &shown);
}

#[test]
fn the_ovn_demo_draws_its_network_and_ends_well() {
    let mut demo = Command::new(DEMO);
    demo.arg("ovn");
    let shown = [
        "┌─ node-a",
        "══ geneve ══",
        "fd00:10:128:2::c/64",
        "iface-id demo_web",
        "ovn-controller: installed",
        "✓ nothing is left",
    ];
    ends_well(demo, &shown);
}

#[test]
fn the_node_demo_shows_every_path_and_leaves_the_machines_as_they_were() {
    let mut demo = Command::new(DEMO);
    demo.arg("node");
    let shown = [
        "+ port ovn-k8s-mp0 on br-int",
        "✓ pod to pod",
        "✓ pod to outside",
        "✓ outside to node-b's node port",
        "✓ node-b's host to cluster IP",
        "┌─ router",
        "┌─ node-a",
        "══ geneve ══",
        "✓ node-a: nft flush ruleset",
        "✓ node-a: ip address del",
        "✓ node-a: byte for byte as before",
        "✓ node-b: byte for byte as before",
        "✓ nothing is left",
    ];
    ends_well(demo, &shown);
}

#[test]
fn the_gateway_demo_moves_the_only_nic_under_a_stream_and_undoes_what_fails() {
    let mut demo = Command::new(DEMO);
    demo.arg("gateway");
    let shown = [
        "✓ podwire node init --profile bridged",
        "longest gap",
        "192.0.2.11/24 on br-ex",
        "✓ podwire node init: refused after the move, and moved back",
        "192.0.2.11/24 on eth0",
        "✓ nothing is left",
    ];
    ends_well(demo, &shown);
}

#[test]
fn the_cluster_demo_runs_without_a_real_kubernetes_too() {
    let mut demo = Command::new(DEMO);
    demo.arg("cluster").env("PODWIRE_KUBERNETES", "/nowhere");
    let shown = [
        "✓ a stand-in for the Kubernetes API",
        "✓ podwire-controller two stands by",
        "✓ web to db by the service",
        "✓ a client outside to db by node-a's node port",
        "══ geneve ══",
        "✓ the leader is killed",
        " s, with 0 operations",
        "✓ no row of theirs is left",
        "✓ nothing is left",
    ];
    ends_well(demo, &shown);
}

#[test]
fn the_network_of_one_node_stays_for_as_long_as_a_shell_on_it() {
    let typed = "set -e; podwire trace web db\n\
                 podwire-controller explain pod tests/web --to tests/db\n\
                 ovn-nbctl show; ovs-vsctl show\n";
    let mut demo = Command::new(DEMO);
    demo.arg("stay")
        .env("SHELL", "/bin/sh")
        .env("PODWIRE_KUBERNETES", "/nowhere");
    let shown = [
        "a shell on that node",
        "OVN delivers it to logical port tests_db",
        "reaches    pod tests/db",
        "switch ",
        "Bridge br-int",
        "The shell has ended (exit status: 0)",
        "✓ no row of theirs is left",
        "✓ nothing is left",
    ];
    ends_well_with(demo, typed, &shown);
}

#[test]
fn the_policy_demo_draws_who_reaches_whom_and_what_decides() {
    let mut demo = Command::new(DEMO);
    demo.arg("policy");
    let shown = [
        "✓ before any policy: each pair by a packet, as explained",
        "30 of 30 connections",
        "✓ with the policies: each pair by a packet, as explained",
        "ingress of data/db: allowed by rule 0 of policy db-from-api",
        "egress of shop/web: denied: no rule of web-to-api allows it",
        "✓ nothing is left",
    ];
    ends_well(demo, &shown);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/demo-policy.html");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(
        page.contains("no rule of web-to-api") && !page.contains("http://"),
        "{page}"
    );
}

#[test]
fn an_interrupted_demo_leaves_no_process() {
    // Orphans come to this process, which can then wait for their end.
    set_child_subreaper(true).unwrap();
    let mark = hex(16);
    let mut demo = Command::new(DEMO)
        .env("PODWIRE_DEMO_TEST", &mark)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let started = BufReader::new(demo.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .any(|line| line.contains("✓ ovsdb-server and ovs-vswitchd"));
    assert!(started);
    let pid = i32::try_from(demo.id()).unwrap();
    let mut others = process::with_environment(&format!("PODWIRE_DEMO_TEST={mark}")).unwrap();
    others.retain(|process| process.pid != pid);
    assert!(
        others.iter().any(|process| process.name == "ovs-vswitchd"),
        "{others:?}"
    );
    kill(Pid::from_raw(pid), Signal::SIGINT).unwrap();
    assert_eq!(demo.wait().unwrap().signal(), Some(Signal::SIGINT as i32));
    // Also those that the demo started after it was looked at. One whose parent is in the midst of
    // ending is not ours to wait for yet (ECHILD), and is looked at again; one that stays is waited
    // for without end, which nextest ends.
    let left = || process::with_environment(&format!("PODWIRE_DEMO_TEST={mark}")).unwrap();
    let mut ending = left();
    while !ending.is_empty() {
        for process in &ending {
            let _ = waitpid(Pid::from_raw(process.pid), None);
        }
        ending = left();
    }
    assert_eq!(left(), []);
}
