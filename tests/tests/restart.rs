//! An agent that is restarted while ADDs run, with a socket of its own and with one that a service
//! manager holds; and what it tells that manager.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use podwire_tests::apiserver::ApiServer;
use podwire_tests::{Agent, AgentOptions, Pod, TestNode, conf, links};

const RUNTIMES: usize = 4;
const RESTARTS: usize = 4;

#[test]
fn status_of_an_agent_that_has_just_started_waits_for_its_first_list() {
    let (node, server) = ApiServer::beside_a_node();
    server.hold(true);
    let agent = Agent::launch(&node, &server.watched_by("n1", "60")).unwrap();
    server.await_requests("the list of pods", |requests| !requests.is_empty());
    let pod = node.pod("any");
    thread::scope(|scope| {
        let status = scope.spawn(|| pod.exec("STATUS", &conf()));
        // Each looks at the same parts as STATUS, after which the answer would be known.
        for _ in 0..20 {
            assert_eq!(agent.get_json("/v1/health")["ready"], false);
        }
        server.hold(false);
        status.join().unwrap().success();
    });
    agent.stop();
    node.leftovers().assert_none();
}

/// ADDs and DELs without a pause, while the agent is restarted again and again; how many ADDs were
/// wired and how many were told to try again. Each of the first is wired and nothing is left of the
/// others, though no DEL follows them.
fn restart_under_load(node: &TestNode, options: &AgentOptions) -> (usize, usize) {
    let is_standby = options
        .arguments
        .iter()
        .any(|argument| argument == "--standby");
    let mut running = Some(node.start_agent(options));
    let done = AtomicBool::new(false);
    let runtime = |number: usize| {
        let (mut wired, mut later) = (0, Vec::new());
        while !done.load(Ordering::Relaxed) {
            let pod = node.pod(&format!("pod{number}"));
            // 51: ovs-vswitchd is stopped below. Without an agent it would be 50, and the node
            // NotReady.
            let status = pod.exec("STATUS", &conf());
            if is_standby && !status.finished.status.success() {
                assert_eq!(status.error().code, 51);
            }
            let added = pod.add();
            if added.finished.status.success() {
                wired += 1;
                assert_eq!(has_link_and_row(node, &pod), (true, true));
                pod.del().success();
            } else {
                let error = added.error();
                assert_eq!(error.code, 11, "{error:?}");
                later.push(pod);
            }
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
            let agent = running.take().unwrap();
            let successor = is_standby.then(|| node.start_agent(options));
            // An ADD is under way when the agent is told to end: it waits for a switch that does
            // not answer.
            node.signal_vswitchd(Signal::SIGSTOP);
            while agent.get_json("/v1/status")["attachments"]["adding"] == 0 {}
            agent.signal(Signal::SIGTERM);
            node.signal_vswitchd(Signal::SIGCONT);
            assert!(agent.await_end().success());
            let successor = successor.unwrap_or_else(|| node.start_agent(options));
            successor.await_ready(true);
            running = Some(successor);
        }
        done.store(true, Ordering::Relaxed);
        runtimes
            .into_iter()
            .map(|runtime| runtime.join().unwrap())
            .collect::<Vec<_>>()
    });
    drop(running);
    node.start_agent(options).stop();
    node.leftovers().assert_none();
    for pod in counts.iter().flat_map(|(_, later)| later) {
        assert_eq!(has_link_and_row(node, pod), (false, false));
    }
    counts.into_iter().fold((0, 0), |(wired, later), count| {
        (wired + count.0, later + count.1.len())
    })
}

fn has_link_and_row(node: &TestNode, pod: &Pod<'_>) -> (bool, bool) {
    let link = links::find(pod.place(), "eth0");
    let row = node.interface_of(&pod.container);
    (link.is_some(), row.is_some())
}

/// The socket as systemd makes it for podwire.socket.
fn held_socket(node: &TestNode) -> Arc<OwnedFd> {
    let make = || {
        std::fs::create_dir("/run/podwire").unwrap();
        UnixListener::bind("/run/podwire/agent.sock").unwrap()
    };
    Arc::new(node.place().run(make).into())
}

#[test]
fn a_restart_under_load_leaves_each_add_wired_or_rolled_back() {
    let node = TestNode::with_ovs();
    let (wired, later) = restart_under_load(&node, &AgentOptions::default());
    assert!(wired > 0, "{later} were told to try again");
}

#[test]
fn with_a_socket_that_the_service_manager_holds_no_add_is_refused() {
    let node = TestNode::with_ovs();
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
fn a_standby_takes_over_from_the_agent_that_ends_and_no_add_or_status_is_refused() {
    let node = TestNode::with_ovs();
    let options = AgentOptions::default().with("--standby");
    let (wired, later) = restart_under_load(&node, &options);
    assert!(wired > 0);
    assert_eq!(later, 0, "of {wired}");
}

#[test]
fn an_add_that_comes_while_no_agent_runs_waits_for_the_next_in_the_managers_socket() {
    let node = TestNode::with_ovs();
    let options = AgentOptions {
        listener: Some(held_socket(&node)),
        ..AgentOptions::default()
    };
    let pod = node.pod("web");
    thread::scope(|scope| {
        let adding = scope.spawn(|| pod.add().success());
        let _agent = node.start_agent(&options);
        adding.join().unwrap();
        pod.del().success();
    });
}

#[test]
fn a_socket_that_is_not_the_one_configured_is_refused() {
    let node = TestNode::with_ovs();
    let options = AgentOptions {
        run_dir: Some("/run/elsewhere".into()),
        listener: Some(held_socket(&node)),
        ..AgentOptions::default()
    };
    let failure = Agent::start(&node, &options).unwrap_err().to_string();
    assert!(
        failure.contains("--socket is /run/elsewhere/agent.sock"),
        "{failure}"
    );
}

/// A service manager's ear.
struct Manager(UnixDatagram);

impl Manager {
    fn new(node: &TestNode) -> Manager {
        let bind = || UnixDatagram::bind("/run/notify").unwrap();
        let socket = node.place().run(bind);
        socket
            .set_read_timeout(Some(Duration::from_secs(15)))
            .unwrap();
        Manager(socket)
    }

    fn options() -> AgentOptions {
        AgentOptions::default()
            .variable("NOTIFY_SOCKET", "/run/notify")
            .variable("WATCHDOG_USEC", "100000")
    }

    /// The next message with this line; those before it are passed over, so many at the most.
    fn hears(&self, wanted: &str) {
        let mut others = Vec::new();
        for _ in 0..200 {
            let mut buffer = [0; 512];
            let length = self.0.recv(&mut buffer).unwrap();
            let message = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if message.lines().any(|line| line == wanted) {
                return;
            }
            others.push(message);
        }
        panic!("no {wanted}: {others:?}");
    }
}

#[test]
fn the_service_manager_is_told_of_the_start_again_and_again_of_life_and_of_the_end() {
    let node = TestNode::with_ovs();
    let manager = Manager::new(&node);
    let agent = node.start_agent(&Manager::options());
    manager.hears("READY=1");
    manager.hears("WATCHDOG=1");
    manager.hears("WATCHDOG=1");
    agent.stop();
    manager.hears("STOPPING=1");
}

#[test]
fn a_service_manager_that_takes_nothing_holds_nobody_up_and_is_told_later() {
    let node = TestNode::with_ovs();
    let manager = Manager::new(&node);
    let fill = || {
        let sender = UnixDatagram::unbound().unwrap();
        sender.set_nonblocking(true).unwrap();
        while sender.send_to(b"of another unit", "/run/notify").is_ok() {}
    };
    node.place().run(fill);
    let agent = node.start_agent(&Manager::options());
    let _pod = node.added_pod("web");
    manager.hears("READY=1");
    manager.hears("WATCHDOG=1");
    agent.stop();
}

#[test]
fn who_was_let_in_before_the_end_is_served_though_his_request_comes_after() {
    let node = TestNode::with_ovs();
    let manager = Manager::new(&node);
    let agent = node.start_agent(&Manager::options());
    let mut early = UnixStream::connect(agent.socket()).unwrap();
    // It was let in before this one, which is answered.
    agent.get("/v1/health");
    agent.signal(Signal::SIGTERM);
    manager.hears("STOPPING=1");
    early
        .write_all(b"GET /v1/health HTTP/1.1\r\nHost: podwire\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    early.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
    assert!(agent.await_end().success());
}

#[test]
fn who_stands_in_the_queue_at_the_end_is_served_too() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    // More than the agent takes out of the queue before it looks for signals again.
    const CLIENTS: usize = 800;
    agent.signal(Signal::SIGSTOP);
    let queue: Vec<UnixStream> = (0..CLIENTS)
        .map(|_| {
            let mut client = UnixStream::connect(agent.socket()).unwrap();
            client
                .write_all(b"GET /v1/health HTTP/1.1\r\nHost: podwire\r\n\r\n")
                .unwrap();
            client
        })
        .collect();
    agent.signal(Signal::SIGTERM);
    agent.signal(Signal::SIGCONT);
    for (number, mut client) in queue.into_iter().enumerate() {
        let mut answer = String::new();
        client
            .read_to_string(&mut answer)
            .unwrap_or_else(|error| panic!("client {number} of {CLIENTS}: {error}"));
        assert!(answer.starts_with("HTTP/1.1 200"), "{number}: {answer:?}");
    }
    assert!(agent.await_end().success());
}
