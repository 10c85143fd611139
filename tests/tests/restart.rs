//! An agent that is restarted while ADDs run, with a socket of its own and with one that a service manager holds; and what it
//! tells that manager.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use podwire_tests::{Agent, AgentOptions, TestNode};

const RUNTIMES: usize = 4;
const RESTARTS: usize = 4;

/// ADDs and DELs without a pause, while the agent is restarted again and again; how many ADDs were wired and how many were told
/// to try again.
fn restart_under_load(node: &TestNode, options: &AgentOptions) -> (usize, usize) {
    let mut running = Some(node.start_agent(options).unwrap());
    let done = AtomicBool::new(false);
    let runtime = |number: usize| {
        let (mut wired, mut later) = (0, 0);
        while !done.load(Ordering::Relaxed) {
            let pod = node.pod(&format!("pod{number}")).unwrap();
            let added = pod.add().unwrap();
            if added.finished.status.success() {
                wired += 1;
            } else {
                let error = added.error().unwrap();
                assert_eq!(error.code, 11, "{error:?}");
                later += 1;
            }
            pod.del().unwrap().success().unwrap();
        }
        (wired, later)
    };
    let counts = thread::scope(|scope| {
        let runtimes: Vec<_> = (0..RUNTIMES)
            .map(|number| {
                let runtime = &runtime;
                scope.spawn(move || runtime(number))
            })
            .collect();
        for _ in 0..RESTARTS {
            let stopping = running.take().map(Agent::stop);
            assert!(stopping.unwrap().unwrap().success());
            running = Some(node.start_agent(options).unwrap());
        }
        done.store(true, Ordering::Relaxed);
        runtimes
            .into_iter()
            .map(|runtime| runtime.join().unwrap())
            .collect::<Vec<_>>()
    });
    drop(running);
    node.start_agent(options).unwrap().stop().unwrap();
    node.leftovers().unwrap().assert_none();
    counts.into_iter().fold((0, 0), |(wired, later), count| {
        (wired + count.0, later + count.1)
    })
}

/// The socket as systemd makes it for podwire.socket.
fn held_socket(node: &TestNode) -> Arc<OwnedFd> {
    let make = || {
        std::fs::create_dir("/run/podwire").unwrap();
        UnixListener::bind("/run/podwire/agent.sock").unwrap()
    };
    Arc::new(node.place().run(make).unwrap().into())
}

#[test]
fn a_restart_under_load_leaves_each_add_wired_or_rolled_back() {
    let node = TestNode::with_ovs().unwrap();
    let (wired, later) = restart_under_load(&node, &AgentOptions::default());
    assert!(wired > 0, "{later} were told to try again");
}

#[test]
fn with_a_socket_that_the_service_manager_holds_no_add_is_refused() {
    let node = TestNode::with_ovs().unwrap();
    let options = AgentOptions {
        listener: Some(held_socket(&node)),
        ..AgentOptions::default()
    };
    let (wired, later) = restart_under_load(&node, &options);
    assert!(wired > 0);
    assert_eq!(later, 0, "of {wired}");
    assert!(
        node.path("/run/podwire/agent.sock").exists(),
        "it is the manager's"
    );
}

#[test]
fn an_add_that_comes_while_no_agent_runs_waits_for_the_next_in_the_managers_socket() {
    let node = TestNode::with_ovs().unwrap();
    let options = AgentOptions {
        listener: Some(held_socket(&node)),
        ..AgentOptions::default()
    };
    let pod = node.pod("web").unwrap();
    thread::scope(|scope| {
        let adding = scope.spawn(|| pod.add().unwrap().success().unwrap());
        let _agent = node.start_agent(&options).unwrap();
        adding.join().unwrap();
        pod.del().unwrap().success().unwrap();
    });
}

#[test]
fn a_socket_that_is_not_the_one_configured_is_refused() {
    let node = TestNode::with_ovs().unwrap();
    let options = AgentOptions {
        run_dir: Some("/run/elsewhere".into()),
        listener: Some(held_socket(&node)),
        ..AgentOptions::default()
    };
    let failure = node.start_agent(&options).unwrap_err().to_string();
    assert!(
        failure.contains("--socket says /run/elsewhere/agent.sock"),
        "{failure}"
    );
}

#[test]
fn the_service_manager_is_told_of_the_start_of_each_half_of_the_watchdogs_time_and_of_the_end() {
    let node = TestNode::with_ovs().unwrap();
    let manager = node
        .place()
        .run(|| UnixDatagram::bind("/run/notify").unwrap())
        .unwrap();
    manager
        .set_read_timeout(Some(Duration::from_secs(15)))
        .unwrap();
    let heard = |wanted: &str| {
        let mut buffer = [0; 512];
        loop {
            let length = manager.recv(&mut buffer).unwrap();
            let message = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if message.lines().any(|line| line == wanted) {
                return;
            }
        }
    };
    let options = AgentOptions {
        environment: vec![
            ("NOTIFY_SOCKET".into(), "/run/notify".into()),
            ("WATCHDOG_USEC".into(), "100000".into()),
        ],
        ..AgentOptions::default()
    };
    let agent = node.start_agent(&options).unwrap();
    heard("READY=1");
    heard("WATCHDOG=1");
    heard("WATCHDOG=1");
    agent.stop().unwrap();
    heard("STOPPING=1");
}
