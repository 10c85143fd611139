//! What a cluster costs one of its nodes: a real ovn-controller below the same southbound database,
//! with `ovn-monitor-all` and without; and what many such nodes cost that database's server, or a
//! relay of it.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use podwire_tests::Failure;
use podwire_tests::ovn::OvnNode;
use serde_json::json;

use super::Options;
use super::crowd::{Crowd, Recorder};
use super::measure::{Bench, Figure, megabytes, seconds};
use super::rows::Rows;
use super::southbound::bound;
use super::table;
use crate::cluster::{name_of_node, uid_of_pod};
use crate::process::{processor_time, status};

/// For how long ovn-controller may not compute before it counts as done.
const QUIET: Duration = Duration::from_millis(300);

/// The name of a figure of one of the ways, which the program has until it ends.
fn name(all: bool, what: &str) -> &'static str {
    format!("monitor-all={all}: {what}").leak()
}

/// Measures both ways; the pods of other nodes that come are numbered from `first` on. With
/// connections beside the node's, first to the server, then to a relay. `preload`: a library that
/// replaces functions of ovn-controller, ld.so(8).
pub(crate) fn measure(
    bench: &mut Bench<'_>,
    first: u32,
    options: &Options,
    preload: Option<&str>,
) -> Result<Vec<Figure>, Failure> {
    let (count, crowd) = (options.changes, options.connections);
    let environment = preload.map(|library| ("LD_PRELOAD", library));
    let mut figures = Vec::new();
    // Each on another node than the first.
    let nodes = bench.cluster.nodes;
    let mut others = (first..).filter(|number| number % nodes != 0);
    let mut add_pod = |bench: &mut Bench<'_>| {
        let number = others.next().unwrap_or(first);
        bench.rows.add_pod(bench.cluster, number)?;
        let seen = bench.southbound.await_seen(&bound(&Rows::port(number)));
        seen.map(drop)
    };
    for all in [true, false] {
        let mut figure = |what: &str, number, unit| {
            figures.push((name(all, what), number, unit));
        };
        bench.settle()?;
        let central = &bench.cluster.central;
        // One of the cluster's chassis, which a controller takes for its own by the name.
        let node = central.node_without_controller(&name_of_node(0), 1);
        node.make_bridge();
        node.set_key("ovn-monitor-all", &all.to_string());
        for (key, value) in &options.ovn_options {
            node.set_key(key, value);
        }
        let recorder = Recorder::start(central)?;
        node.set_remote(&recorder.remote());
        let iface_id = Rows::port(0);
        node.vsctl(format!(
            "add-port br-int pod0 -- set interface pod0 type=internal \
             external_ids:iface-id={iface_id} external_ids:iface-id-ver={}",
            uid_of_pod(0)
        ));
        let began = Instant::now();
        node.start_controller_with(environment.as_slice());
        await_installed(&node)?;
        figure("first pod installed, wall", seconds(began.elapsed()), "s");
        let pid = controller_of(&node)?;
        settle(pid)?;
        let used = processor_time(pid)?;
        figure("first pod installed, processor", seconds(used), "s");
        let before = node.controller_runs();
        (0..count).try_for_each(|_| add_pod(bench))?;
        settle(pid)?;
        let per_pod = (processor_time(pid)? - used) / count;
        figure(
            "a pod of another node, processor",
            seconds(per_pod) * 1e3,
            "ms",
        );
        let runs = node.controller_runs().since(&before, "logical_flow_output");
        #[expect(clippy::cast_precision_loss, reason = "a few for each pod")]
        let [whole, steps] = [runs.whole, runs.steps].map(|it| it as f64);
        figure("flows computed as a whole meanwhile", whole, "times");
        figure("flows computed by what changed", steps, "times");
        let resident = |pid| Ok::<_, Failure>(megabytes(status(pid, "VmRSS:")? * 1024));
        figure("ovn-controller, resident", resident(pid)?, "MB");
        node.end_controller(Signal::SIGKILL);
        if crowd == 0 {
            continue;
        }
        let requests = recorder.requests();
        let [server, _] = central.pids();
        let mut relay = None;
        for whose in ["server", "relay"] {
            let (remote, pid) = relay.take().unwrap_or((central.local_remote(), server));
            let mut figure =
                |what: &str, number, unit| figure(&format!("{whose}: {what}"), number, unit);
            settle(pid)?;
            let used = || processor_time(pid);
            let before = used()?;
            (0..count).try_for_each(|_| add_pod(bench))?;
            settle(pid)?;
            let alone = used()? - before;
            let before = used()?;
            let connections = Crowd::join(&remote, &requests, crowd)?;
            settle(pid)?;
            let each = (used()? - before) / crowd;
            figure("a connection until it has all", seconds(each) * 1e3, "ms");
            figure("resident with all connections", resident(pid)?, "MB");
            let before = used()?;
            let mut last = Vec::new();
            for _ in 0..count {
                let began = Instant::now();
                add_pod(bench)?;
                settle(pid)?;
                last.push(connections.last_read() - began);
            }
            let each = (used()? - before).saturating_sub(alone) / count / crowd;
            figure("a pod, for each connection", seconds(each) * 1e6, "us");
            last.sort();
            let [_, p50, p99] = table::summary(&last);
            figure("a pod until the last connection, p50", p50, "ms");
            figure("a pod until the last connection, p99", p99, "ms");
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
