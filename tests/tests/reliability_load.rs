//! Too much, too late, at the wrong moment, or cut in the middle: clear errors, nothing left, and
//! service afterwards.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use podwire_tests::annotation::{entry, ipv4};
use podwire_tests::links::LinkRecorder;
use podwire_tests::{AgentOptions, TestNode, conf, links, traffic};
use serde_json::json;

fn options() -> AgentOptions {
    AgentOptions::for_numbered_pods()
}

fn address(number: u8) -> IpAddr {
    ipv4(number).parse().unwrap()
}

#[test]
fn twenty_dels_of_one_pod_at_once_all_succeed() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&options());
    let pod = node.numbered_pod(11);
    pod.add().success();
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| pod.del().success());
        }
    });
    node.leftovers().assert_none();
}

#[test]
fn what_the_agent_does_not_admit_is_to_be_tried_again() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&options().with("--max-operations 1"));
    let [first, second] = [11, 12].map(|number| node.numbered_pod(number));
    // A hung vswitchd holds the first ADD at its wait for the ofport.
    node.signal_vswitchd(Signal::SIGSTOP);
    let recorder = LinkRecorder::start(node.place());
    thread::scope(|scope| {
        let adding = scope.spawn(|| first.add().success());
        recorder.await_born(first.host_link());
        let error = second.add().error();
        assert_eq!(error.code, 11);
        assert!(error.msg.contains("1 operations"), "{error:?}");
        // Pods end, and the node's readiness is told, nevertheless.
        second.del().success();
        assert!(!agent.log().contains("carrying out a DEL from the spool"));
        let status = second.exec("STATUS", &conf()).error();
        status.assert_names(&["ovs-vswitchd does not answer"]);
        node.signal_vswitchd(Signal::SIGCONT);
        adding.join().unwrap();
    });
    second.add().success();
}

#[test]
fn a_gc_while_an_add_is_in_flight_leaves_it_alone() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&options());
    let [adding, dead] = [11, 12].map(|number| node.numbered_pod(number));
    dead.add().success();
    node.signal_vswitchd(Signal::SIGSTOP);
    let recorder = LinkRecorder::start(node.place());
    thread::scope(|scope| {
        let add = scope.spawn(|| adding.add().success());
        recorder.await_born(adding.host_link());
        let mut gc = conf();
        gc["cni.dev/valid-attachments"] = json!([]);
        adding
            .exec_with("GC", gc.to_string().as_bytes(), &[])
            .success();
        node.signal_vswitchd(Signal::SIGCONT);
        add.join().unwrap();
    });
    assert!(node.interface_of(&dead.container).is_none());
    traffic::ping(node.place(), address(11), 1).unwrap();
}

#[test]
fn a_del_of_a_pod_whose_netns_path_another_pod_has_now_leaves_that_one_alone() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&options());
    let mut gone = node.numbered_pod(11);
    gone.add().success();
    gone.remove_netns();
    let other = node.numbered_pod(12);
    other.add().success();
    let conf = conf().to_string();
    gone.exec_with("DEL", conf.as_bytes(), &[("CNI_NETNS", Some(&other.netns))])
        .success();
    assert!(node.interface_of(&gone.container).is_none());
    assert!(links::find(other.place(), "eth0").is_some());
    traffic::ping(node.place(), address(12), 1).unwrap();
    other.del().success();
    node.leftovers().assert_none();
}

#[test]
fn with_a_full_disk_an_add_names_the_file_and_a_del_still_works() {
    let node = TestNode::with_ovs();
    std::fs::create_dir(node.path("/run/podwire")).unwrap();
    let small = [
        "-t",
        "tmpfs",
        "-o",
        "size=128k,mode=0700",
        "podwire-small",
        "/run/podwire",
    ];
    node.run("mount", small);
    let _agent = node.start_agent(&options());
    let [wired, next] = [11, 12].map(|number| node.numbered_pod(number));
    wired.add().success();
    let filler = node.path("/run/podwire/filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}

    let error = next.add().error();
    assert_eq!(error.code, 5);
    for words in ["/run/podwire/attachments", "No space left"] {
        assert!(error.msg.contains(words), "{error:?}");
    }
    assert!(links::find(next.place(), "eth0").is_none());
    wired.del().success();
    node.leftovers().assert_none();
    drop(file);
    std::fs::remove_file(&filler).unwrap();
    next.add().success();
}

#[test]
fn open_vswitch_may_die_and_come_back_under_load() {
    const RUNTIMES: u8 = 4;
    /// More than a wait for the switch and one for the database take.
    const PATIENCE: Duration = Duration::from_secs(60);
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&options());
    let done = AtomicBool::new(false);
    let (wiring, wired) = mpsc::channel();
    let runtime = |number: u8, wiring: mpsc::Sender<()>| {
        for round in 0.. {
            if done.load(Ordering::Relaxed) {
                return;
            }
            // Another pod each time, so that no ADD clears up behind an earlier one.
            let pod = node.pod(&format!("pod{number}-{round}"));
            let pod = pod.on_default_network(&entry(number));
            let added = pod.add();
            if added.finished.status.success() {
                wiring.send(()).unwrap();
            } else {
                let error = added.error();
                assert_eq!(error.code, 11, "{error:?}");
            }
            pod.del().success();
        }
    };
    thread::scope(|scope| {
        // Whatever happens here, the others must end.
        let _done = Done(&done);
        for number in 11..11 + RUNTIMES {
            let (runtime, wiring) = (&runtime, wiring.clone());
            scope.spawn(move || runtime(number, wiring));
        }
        let pods_are_wired = || {
            while wired.try_recv().is_ok() {}
            for _ in 0..2 * RUNTIMES {
                wired.recv_timeout(PATIENCE).unwrap();
            }
        };
        pods_are_wired();
        node.kill_ovsdb_server();
        // By a DEL that went on without the database, and succeeded.
        agent.await_log("the rows go when the database is there again");
        node.start_ovsdb_server();
        pods_are_wired();
        node.kill_vswitchd();
        node.start_vswitchd();
        pods_are_wired();
        node.kill_vswitchd();
        node.kill_ovsdb_server();
        node.start_ovsdb_server();
        node.start_vswitchd();
        pods_are_wired();
    });
    agent.await_ready(true);
    let pod = node.numbered_pod(11);
    pod.add().success();
    traffic::ping(node.place(), address(11), 1).unwrap();
    pod.del().success();
    node.leftovers().assert_none();
}

/// Sets a flag when the test goes on or fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How many more bytes may pass before the connection is cut.
type Budget = Arc<AtomicI64>;

/// Passes bytes on until the budget is spent; the connection ends in mid-message then.
fn pump(mut from: UnixStream, mut to: UnixStream, budget: &AtomicI64) {
    let mut chunk = [0; 4096];
    while let Ok(came) = from.read(&mut chunk) {
        let left = budget.fetch_sub(came as i64, Ordering::SeqCst);
        let pass = usize::try_from(left).unwrap_or(0).min(came);
        if came == 0 || to.write_all(&chunk[..pass]).is_err() || pass < came {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

fn cutting_proxy(at: &Path, database: &Path, budgets: [Budget; 2]) {
    let listener = UnixListener::bind(at).unwrap();
    let database = database.to_owned();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = UnixStream::connect(&database) else {
                continue;
            };
            let (from_client, to_client) = (client.try_clone().unwrap(), client);
            let (to_server, from_server) = (server.try_clone().unwrap(), server);
            let [up, down] = budgets.clone();
            thread::spawn(move || pump(from_client, to_server, &up));
            thread::spawn(move || pump(from_server, to_client, &down));
        }
    });
}

#[test]
fn a_connection_to_the_database_may_be_cut_at_any_byte() {
    const ENOUGH: i64 = i64::MAX / 2;
    let node = TestNode::with_ovs();
    std::fs::create_dir(node.path("/run/cut")).unwrap();
    let budgets: [Budget; 2] = std::array::from_fn(|_| Arc::new(AtomicI64::new(ENOUGH)));
    cutting_proxy(
        &node.path("/run/cut/db.sock"),
        &node.path("/run/openvswitch/db.sock"),
        budgets.clone(),
    );
    let options = options().with([
        "--ovsdb",
        "unix:/run/cut/db.sock",
        "--ovs-rundir",
        "/run/openvswitch",
        // Some cuts leave an ADD without the answer that it waits for.
        "--add-timeout",
        "3",
    ]);
    let agent = node.start_agent(&options);
    let mut cut = 0;
    for budget in &budgets {
        // An ADD is some 1,500 bytes each way; each cut is at another place of a message.
        for position in (0..2200).step_by(367) {
            let pod = node.numbered_pod(11);
            budget.store(position, Ordering::SeqCst);
            let add = pod.add();
            if !add.succeeded() {
                let error = add.error();
                assert_eq!(error.code, 11, "cut after {position}: {error:?}");
                cut += 1;
            }
            budget.store(ENOUGH, Ordering::SeqCst);
            agent.await_ready(true);
            pod.del().success();
            assert!(node.leftovers().is_empty(), "cut after {position}");
        }
    }
    assert!(cut > 0, "no cut was ever felt");
}
