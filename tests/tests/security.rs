//! Who gets in, what a client can cost, and what privileges the daemons have.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::controller::Controller;
use podwire_tests::machine::Machine;
use podwire_tests::ovn::Central;
use podwire_tests::{
    Agent, AgentOptions, TestNode, child_of, conf, conf_of_version, links, plugin_binary,
};
use serde_json::json;

/// linux/capability.h
const DAC_OVERRIDE: u64 = 1 << 1;
const NET_ADMIN: u64 = 1 << 12;
const NET_RAW: u64 = 1 << 13;
const SYS_PTRACE: u64 = 1 << 19;
const SYS_ADMIN: u64 = 1 << 21;
const ALWAYS: u64 = NET_ADMIN | NET_RAW | SYS_ADMIN;
/// An unprivileged user.
const NOBODY: u32 = 65534;

/// What /proc says of one thread.
fn status(path: &std::path::Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(path.join("status")).unwrap();
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_owned(), value.trim().to_owned()))
    };
    text.lines().filter_map(field).collect()
}

fn capabilities(status: &BTreeMap<String, String>, set: &str) -> u64 {
    u64::from_str_radix(&status[set], 16).unwrap()
}

/// The effective capabilities, which must be the same in every thread.
fn power(agent: &Agent<'_>) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap();
    let mut power: Vec<u64> = tasks
        .flatten()
        .map(|task| capabilities(&status(&task.path()), "CapEff"))
        .collect();
    power.dedup();
    assert_eq!(power.len(), 1, "threads differ: {power:x?}");
    power[0]
}

#[test]
fn every_thread_has_three_capabilities_no_way_to_more_and_a_filter() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let pod = node.pod("web");
    // Whatever threads an operation starts are there after one.
    pod.add().success();
    pod.del().success();
    assert!(assert_locked_down(agent.pid(), ALWAYS, 0) > 1);
}

/// Every thread has these capabilities, those that started programs can have, no way to more, and a
/// filter. Returns the number of threads.
#[track_caller]
fn assert_locked_down(pid: u32, held: u64, by_exec: u64) -> usize {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut count = 0;
    for task in tasks.flatten() {
        let status = status(&task.path());
        let name = &status["Name"];
        for (set, held) in [
            ("CapEff", held),
            ("CapPrm", held),
            ("CapInh", 0),
            ("CapBnd", by_exec),
            ("CapAmb", 0),
        ] {
            assert_eq!(capabilities(&status, set), held, "{set} of {name}");
        }
        assert_eq!(status["NoNewPrivs"], "1", "{name}");
        assert_eq!(status["Seccomp"], "2", "{name}");
        count += 1;
    }
    count
}

#[test]
fn every_thread_of_the_node_role_has_one_capability_and_nft_no_other() {
    let machine = Machine::new();
    let server = ApiServer::start_in(machine.node().place());
    server.apply(apiserver::node("node-a", "192.0.2.11"));
    server.apply(apiserver::service("default", "web", "10.96.0.11", 80));
    // By name, for which the resolver starts a thread.
    let url = server.url().replace("127.0.0.1", "localhost");
    let run = machine.start_run(format!("--k8s-apiserver {url}"));
    run.await_log("services follow the cluster", 1);
    assert_locked_down(run.pid(), NET_ADMIN, NET_ADMIN);
    run.stop();
    machine.cleanup("");
}

#[test]
fn every_thread_of_a_controller_has_no_capability() {
    let central = Central::start();
    let server = ApiServer::start_in(central.machine().place());
    server.apply(apiserver::node("node-a", "192.0.2.1"));
    let controller = Controller::start(&central, &server, "one", "");
    controller.await_log("all rows are in sync");
    assert_locked_down(controller.pid(), 0, 0);
    assert!(controller.stop().success());
}

/// The threads that are scheduled in real time, by name: policy and priority (proc_pid_stat(5),
/// fields 41 and 40).
fn real_time(agent: &Agent<'_>) -> BTreeMap<String, (u32, u32)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap();
    let scheduled = tasks.flatten().map(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap();
        // The name stands in parentheses and may hold anything; what follows begins with field 3.
        let (name, rest) = stat.rsplit_once(')').unwrap();
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let name = name.split_once('(').unwrap().1.to_owned();
        (
            name,
            (fields[38].parse().unwrap(), fields[37].parse().unwrap()),
        )
    });
    scheduled.filter(|(_, (policy, _))| *policy != 0).collect()
}

#[test]
fn the_thread_that_makes_links_alone_has_real_time_priority_where_it_may_and_none_when_told_so() {
    const SCHED_RR: u32 = 2;
    let node = TestNode::with_ovs();
    let pod = node.pod("web");
    {
        let agent = node.start_agent(&AgentOptions::default());
        pod.add().success();
        pod.del().success();
        // A control group may refuse it to root (CONFIG_RT_GROUP_SCHED).
        let may = Command::new("chrt")
            .args(["--rr", "1", "true"])
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .success();
        let wanted = may.then(|| ("podwire-netlink".to_owned(), (SCHED_RR, 1)));
        assert_eq!(real_time(&agent), wanted.into_iter().collect());
    }
    let agent = node.start_agent(&AgentOptions::default().with("--no-realtime"));
    pod.add().success();
    assert_eq!(real_time(&agent), BTreeMap::new());
}

#[test]
fn the_processes_that_run_ipam_plugins_have_no_capability_and_can_gain_none() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    // Once it has run a plugin, it is there.
    let mut conf = conf_of_version("1.0.0");
    conf["ipam"] = json!({"type": "static", "addresses": [{"address": "10.56.0.5/24"}]});
    let pod = node.pod("web");
    pod.exec("ADD", &conf).success();
    let keeper = child_of(agent.pid());
    for process in [keeper, child_of(keeper)] {
        let status = status(std::path::Path::new(&format!("/proc/{process}")));
        assert_eq!(status["NoNewPrivs"], "1");
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(capabilities(&status, set), 0, "{set}");
        }
    }
}

#[test]
fn sockets_of_another_user_keep_dac_override_and_pods_are_wired() {
    let node = TestNode::with_ovs();
    let directory = node.path("/run/openvswitch");
    for entry in fs::read_dir(&directory).unwrap().flatten() {
        let path = entry.path();
        if path
            .extension()
            .is_some_and(|it| it == "sock" || it == "ctl")
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
            chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
    chown(&directory, Some(NOBODY), Some(NOBODY)).unwrap();
    let agent = node.start_agent(&AgentOptions::default());
    assert_eq!(power(&agent), ALWAYS | DAC_OVERRIDE);
    let pod = node.added_pod("web");
    pod.del().success();
    node.leftovers().assert_none();
}

#[test]
fn a_namespace_named_by_process_is_refused_and_taken_when_so_configured() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let mut pod = node.pod("web");
    let mut sleeper = Command::new("sleep");
    sleeper.arg("120").stdout(Stdio::null());
    let mut sleeper = pod.place().run(|| sleeper.spawn()).unwrap();
    pod.netns = format!("/proc/{}/ns/net", sleeper.id());
    let error = pod.add().error();
    assert_eq!(error.code, 4, "{error:?}");
    assert!(error.msg.contains("--proc-netns"), "{error:?}");
    node.leftovers().assert_none();
    agent.stop();
    let agent = node.start_agent(&AgentOptions::default().with("--proc-netns"));
    assert_eq!(power(&agent), ALWAYS | SYS_PTRACE);
    let added = pod.add();
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    added.success();
    pod.del().success();
    node.leftovers().assert_none();
}

#[test]
fn nobody_but_root_gets_in() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let pod = node.pod("web");
    let plugin = node.path("/run/podwire-cni");
    fs::copy(plugin_binary(), &plugin).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    let as_nobody = |verb: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg("/run/podwire-cni").envs(pod.environment(verb));
        let input = conf().to_string();
        let finished = node
            .place()
            .run(|| {
                podwire_tests::process::finish(command, input.as_bytes(), Duration::from_secs(60))
            })
            .unwrap();
        assert!(!finished.status.success());
        finished.stdout
    };
    // The directory and the socket's own mode are the first doors …
    let run_dir = agent.socket().parent().unwrap().to_owned();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&run_dir), mode(&agent.socket())), (0o700, 0o600));
    assert!(as_nobody("ADD").contains("\"code\""));
    // … and with both open the kernel's word for who it is remains.
    fs::set_permissions(&run_dir, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(agent.socket(), fs::Permissions::from_mode(0o666)).unwrap();
    for verb in ["ADD", "STATUS"] {
        assert!(as_nobody(verb).contains("\"code\""));
    }
    let log = agent.log();
    assert!(
        log.contains("uid 65534") && log.contains("is not root"),
        "{log}"
    );
    assert!(links::find(pod.place(), "eth0").is_none());
    node.leftovers().assert_none();
    pod.add().success();
}

#[test]
fn two_thousand_silent_and_slow_clients_cost_no_one_else() {
    const CLIENTS: usize = 2000;
    // Each is a descriptor here too.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let socket = agent.socket();
    let beginnings: [&[u8]; 4] = [
        b"",
        b"POST /v1/cni HTTP/1.1\r\nhost: x\r\nslow: ",
        b"POST /v1/cni HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n{\"version\":1,",
        b"POST /v1/cni HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"ver\r\n",
    ];
    let mut clients: Vec<UnixStream> = (0..CLIENTS)
        .map(|number| {
            let mut client = UnixStream::connect(&socket).unwrap();
            // An agent that has closed this one already is a possible answer too.
            let _ = client.write_all(beginnings[number % beginnings.len()]);
            client
        })
        .collect();
    let pod = node.added_pod("web");
    pod.del().success();
    let held = fs::read_dir(format!("/proc/{}/fd", agent.pid()))
        .unwrap()
        .count();
    assert!(held < CLIENTS * 3 / 4, "the agent holds {held} descriptors");
    // The first to come has made room, and knows it by now.
    let first = &mut clients[0];
    first
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    assert_eq!(first.read(&mut [0]).map_err(|error| error.kind()), Ok(0));
}

#[test]
fn a_request_that_does_not_end_is_ended_and_its_client_told() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let ends = |beginning: &[u8]| {
        let mut client = UnixStream::connect(agent.socket()).unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        client.write_all(beginning).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    };
    std::thread::scope(|scope| {
        let header = scope.spawn(|| ends(b"POST /v1/cni HTTP/1.1\r\nhost: x\r\nslow: "));
        let silent = scope.spawn(|| ends(b""));
        let body = ends(
            b"POST /v1/cni HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\nconnection: close\r\n\r\n{",
        );
        assert!(body.starts_with("HTTP/1.1 408 "), "{body}");
        // These two have no request that an answer could be to.
        for answer in [header.join().unwrap(), silent.join().unwrap()] {
            assert!(
                answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
                "{answer}"
            );
        }
    });
    // A few times what the agent reads of a header; hyper by itself would read more, and answer.
    let endless = format!(
        "GET /v1/health HTTP/1.1\r\nhost: x\r\nlong: {}\r\n\r\n",
        "x".repeat(1 << 16)
    );
    let mut client = UnixStream::connect(agent.socket()).unwrap();
    let _ = client.write_all(endless.as_bytes());
    let mut answer = String::new();
    // Closed with bytes unread, which the client sees as a reset, or as an answer before it.
    let _ = client.read_to_string(&mut answer);
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 431 "),
        "{answer}"
    );
}

#[test]
fn what_is_more_than_the_agent_admits_is_to_be_tried_again() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default().with("--max-operations 2"));
    // Both hold their places for as long as Open vSwitch does not answer.
    node.signal_vswitchd(Signal::SIGSTOP);
    let recorder = links::LinkRecorder::start(node.place());
    let pods: Vec<_> = ["one", "two", "three"].map(|name| node.pod(name)).into();
    let mut running: Vec<_> = pods[..2]
        .iter()
        .map(|pod| pod.spawn("ADD", &conf()))
        .collect();
    for pod in &pods[..2] {
        recorder.await_born(pod.host_link());
    }
    let error = pods[2].add().error();
    assert_eq!(error.code, 11, "{error:?}");
    assert!(error.msg.contains("2 operations"), "{error:?}");
    node.signal_vswitchd(Signal::SIGCONT);
    for plugin in &mut running {
        assert!(plugin.wait().unwrap().success());
    }
    pods[2].add().success();
}
