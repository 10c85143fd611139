//! The agent starts no process to wire a pod, as strace sees it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwire_tests::{AgentOptions, TestNode};

#[test]
fn twenty_adds_and_dels_fork_clone_or_exec_no_process() {
    const ROUNDS: usize = 20;
    const RECORD: &str = "/run/strace";
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let mut strace = Command::new("strace");
    strace
        .args([
            "-f",
            "-e",
            "trace=fork,vfork,clone,clone3,execve,execveat,accept4",
        ])
        .args(["-o", RECORD, "-p", &agent.pid().to_string()])
        .stderr(Stdio::piped());
    let mut strace = node.place().run(|| strace.spawn()).unwrap();
    let mut messages = BufReader::new(strace.stderr.take().unwrap()).lines();
    let attached = messages.next().unwrap().unwrap();
    assert!(attached.contains("attached"), "{attached}");
    // It says so of every new thread and process too, and would end if nobody listened.
    let listener = thread::spawn(move || messages.for_each(drop));

    for _ in 0..ROUNDS {
        let pod = node.wired_pod(11);
        pod.del().success();
    }
    // strace detaches and writes out what it has; the agent goes on.
    kill(
        Pid::from_raw(strace.id().try_into().unwrap()),
        Signal::SIGINT,
    )
    .unwrap();
    strace.wait().unwrap();
    listener.join().unwrap();

    let calls = std::fs::read_to_string(node.path(RECORD)).unwrap();
    let accepted = calls
        .lines()
        .filter(|call| call.contains("accept4(") && !call.contains("= -1"))
        .count();
    assert!(
        accepted >= 2 * ROUNDS,
        "strace saw only {accepted} connections of {}:\n{calls}",
        2 * ROUNDS
    );
    // A thread is a clone too, and allowed.
    let starts = ["fork(", "clone(", "clone3(", "execve(", "execveat("];
    let started: Vec<_> = calls
        .lines()
        .filter(|call| {
            starts.iter().any(|start| call.contains(start)) && !call.contains("CLONE_THREAD")
        })
        .collect();
    assert!(started.is_empty(), "{started:#?}");
}
