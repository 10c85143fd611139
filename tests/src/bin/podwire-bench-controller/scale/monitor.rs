//! What a cluster costs one of its nodes: a real ovn-controller below the same southbound database,
//! with `ovn-monitor-all` and without; and what many such nodes cost that database's server, or a
//! relay of it.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use podwire_tests::Failure;
use podwire_tests::ovn::OvnNode;
use serde_json::json;

use super::crowd::{Crowd, Recorder};
use super::measure::{Bench, Figure, megabytes, seconds};
use super::rows::Rows;
use super::southbound::bound;
use crate::cluster::{name_of_node, uid_of_pod};
use crate::process::{processor_time, status};

/// For how long ovn-controller may not compute before it counts as done.
const QUIET: Duration = Duration::from_millis(300);

/// The names of one way's figures.
struct Names {
    monitor_all: &'static str,
    wall: &'static str,
    processor: &'static str,
    resident: &'static str,
    pod: &'static str,
    /// Of the server, and of a relay: what a connection costs it until it has all, and what each
    /// costs it for a pod of another node.
    crowds: [[&'static str; 2]; 2],
}

const WAYS: [Names; 2] = [
    Names {
        monitor_all: "true",
        wall: "monitor-all=true: first pod installed, wall",
        processor: "monitor-all=true: first pod installed, processor",
        resident: "monitor-all=true: ovn-controller, resident",
        pod: "monitor-all=true: a pod of another node, processor",
        crowds: [
            [
                "monitor-all=true: a connection, server",
                "monitor-all=true: a pod for a connection, server",
            ],
            [
                "monitor-all=true: a connection, relay",
                "monitor-all=true: a pod for a connection, relay",
            ],
        ],
    },
    Names {
        monitor_all: "false",
        wall: "monitor-all=false: first pod installed, wall",
        processor: "monitor-all=false: first pod installed, processor",
        resident: "monitor-all=false: ovn-controller, resident",
        pod: "monitor-all=false: a pod of another node, processor",
        crowds: [
            [
                "monitor-all=false: a connection, server",
                "monitor-all=false: a pod for a connection, server",
            ],
            [
                "monitor-all=false: a connection, relay",
                "monitor-all=false: a pod for a connection, relay",
            ],
        ],
    },
];

/// Measures both ways; the pods of other nodes that come are numbered from `first` on. With `crowd`
/// connections beside the node's, first to the server, then to a relay.
pub(crate) fn measure(
    bench: &mut Bench<'_>,
    first: u32,
    count: u32,
    crowd: u32,
) -> Result<Vec<Figure>, Failure> {
    let mut figures = Vec::new();
    // Each on another node than the first.
    let nodes = bench.cluster.nodes;
    let mut others = (first..).filter(|number| number % nodes != 0);
    let mut add_pods = |bench: &mut Bench<'_>| {
        for number in others.by_ref().take(count as usize) {
            bench.rows.add_pod(bench.cluster, number)?;
            bench.southbound.await_seen(&bound(&Rows::port(number)))?;
        }
        Ok::<_, Failure>(())
    };
    for names in &WAYS {
        bench.settle()?;
        let central = &bench.cluster.central;
        // One of the cluster's chassis, which a controller takes for its own by the name.
        let node = central.node_without_controller(&name_of_node(0), 1);
        node.make_bridge();
        node.set_key("ovn-monitor-all", names.monitor_all);
        let recorder = Recorder::start(central)?;
        node.set_remote(&recorder.remote());
        let iface_id = Rows::port(0);
        node.vsctl(format!(
            "add-port br-int pod0 -- set interface pod0 type=internal \
             external_ids:iface-id={iface_id} external_ids:iface-id-ver={}",
            uid_of_pod(0)
        ));
        let began = Instant::now();
        node.start_controller();
        await_installed(&node)?;
        figures.push((names.wall, seconds(began.elapsed()), "s"));
        let pid = controller_of(&node)?;
        settle(pid)?;
        let used = processor_time(pid)?;
        figures.push((names.processor, seconds(used), "s"));
        add_pods(bench)?;
        settle(pid)?;
        let per_pod = (processor_time(pid)? - used) / count;
        figures.push((names.pod, seconds(per_pod) * 1e3, "ms"));
        let resident = megabytes(status(pid, "VmRSS:")? * 1024);
        figures.push((names.resident, resident, "MB"));
        node.end_controller(Signal::SIGKILL);
        if crowd == 0 {
            continue;
        }
        let requests = recorder.requests();
        let [server, _] = central.pids();
        let mut relay = None;
        for [joined, told] in names.crowds {
            let (remote, pid) = relay.take().unwrap_or((central.local_remote(), server));
            settle(pid)?;
            let used = || processor_time(pid);
            let before = used()?;
            add_pods(bench)?;
            settle(pid)?;
            let alone = used()? - before;
            let before = used()?;
            let connections = Crowd::join(&remote, &requests, crowd)?;
            settle(pid)?;
            let each = (used()? - before) / crowd;
            figures.push((joined, seconds(each) * 1e3, "ms"));
            let before = used()?;
            add_pods(bench)?;
            settle(pid)?;
            let each = (used()? - before).saturating_sub(alone) / count / crowd;
            figures.push((told, seconds(each) * 1e6, "us"));
            drop(connections);
            relay = Some(central.relay());
        }
        central.end_relay();
    }
    Ok(figures)
}

fn await_installed(node: &OvnNode) -> Result<(), Failure> {
    let is_it = json!([
        ["name", "==", "pod0"],
        [
            "external_ids",
            "includes",
            ["map", [["ovn-installed", "true"]]]
        ],
    ]);
    // The database's own limit is for a test's node; a large cluster takes longer.
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let waited = node
            .ovsdb()
            .wait("Interface", is_it.clone(), "!=", &["name"], json!([]));
        if waited.is_ok() || Instant::now() > deadline {
            return waited;
        }
    }
}

/// The process of a node's ovn-controller.
pub(crate) fn controller_of(node: &OvnNode) -> Result<u32, Failure> {
    let text = node.run("cat", "/run/ovn/ovn-controller.pid");
    let pid = text.trim().parse().map_err(std::io::Error::other);
    podwire_tests::Step::step(pid, || "read ovn-controller's pidfile")
}

/// Waits until a process has done all that there was to do.
pub(crate) fn settle(pid: u32) -> Result<(), Failure> {
    let (mut since, mut before) = (Instant::now(), processor_time(pid)?);
    while since.elapsed() < QUIET {
        thread::sleep(QUIET / 10);
        let now = processor_time(pid)?;
        if now - before > Duration::from_millis(1) {
            since = Instant::now();
        }
        before = now;
    }
    Ok(())
}
