//! What a large cluster costs each node: `podwire node run` and the agent, as they are shipped,
//! beside 500 nodes and 10,000 services with 5 endpoints each, one of ten with a node port.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use podwire_tests::apiserver::{ApiServer, endpoints, node, pod, service};
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{Failure, NodeRun};
use serde_json::json;

use crate::cluster::{
    PORT_OF_ENDS, address_of_service, ends_of_service, name_of_node, name_of_pod, name_of_service,
    namespace, place,
};
use crate::process::{processor_time, status};
use crate::scale::settle;

const NODES: u32 = 500;
const SERVICES: u32 = 10_000;
const CHANGES: u32 = 200;
/// A service of so many has a node port.
const EVERY: u32 = 10;

pub(crate) fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("podwire-bench-controller host: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<(), Failure> {
    let central = Central::start();
    let own = central.bare_node("node-a", 1);
    let server = ApiServer::start_in(own.place());
    server.apply(own.api_object());
    for number in 0..NODES {
        server.apply(node(&name_of_node(number), &place(number)));
    }
    for number in 0..SERVICES {
        let (namespace, name) = (namespace(number), name_of_service(number));
        let mut service = service(&namespace, &name, &address_of_service(number), 80);
        if number % EVERY == 0 {
            service["spec"]["type"] = "NodePort".into();
            service["spec"]["ports"][0]["nodePort"] = (30_000 + number / EVERY).into();
        }
        server.apply(service);
        apply_ends(&server, number, &ends_of_service(number));
    }
    let began = Instant::now();
    let run = NodeRun::launch(&own, own.host_arguments("run", Some(&server)));
    // When all lists are through.
    server.await_watches(3);
    settle(run.pid())?;
    println!("podwire node run, {NODES} nodes, {SERVICES} services");
    line(
        "until services follow the cluster, wall",
        began.elapsed(),
        1,
    );
    line("the same, processor", processor_time(run.pid())?, 1);
    own.start_controller();
    let options = OvnNode::agent_options().watching(&server, "node-a");
    let agent = own.start_agent(&options);
    let both = [("node role", run.pid()), ("agent", agent.pid())];
    let change = |what: &str, change: &dyn Fn(u32)| {
        let used = || {
            settle(both[0].1)?;
            Ok::<_, Failure>([processor_time(both[0].1)?, processor_time(both[1].1)?])
        };
        let before = used()?;
        for turn in 0..CHANGES {
            change(turn);
            std::thread::sleep(Duration::from_millis(10));
        }
        for ((who, _), (after, before)) in both.into_iter().zip(used()?.into_iter().zip(before)) {
            line(
                &format!("{what}, {who}, processor"),
                after.saturating_sub(before),
                CHANGES,
            );
        }
        Ok::<_, Failure>(())
    };
    change("an endpoint replaced", &|turn| {
        let number = turn * EVERY + 1;
        let mut ends = ends_of_service(number);
        ends[0] = place(250 << 16 | turn);
        apply_ends(&server, number, &ends);
    })?;
    change("the same, of a service with a node port", &|turn| {
        let number = turn * EVERY;
        let mut ends = ends_of_service(number);
        ends[0] = place(250 << 16 | turn);
        apply_ends(&server, number, &ends);
    })?;
    change("a heartbeat of a node", &|turn| {
        let number = turn % NODES;
        let mut node = node(&name_of_node(number), &place(number));
        node["status"]["conditions"] = json!([{ "type": "Ready", "lastHeartbeatTime": turn }]);
        server.apply(node);
    })?;
    change("a pod of the node", &|turn| {
        let name = name_of_pod(turn);
        server.apply(pod("node-a", "default", &name, &name, json!({})));
    })?;
    for (who, pid) in both {
        let resident = status(pid, "VmRSS:")? / 1024;
        let peak = status(pid, "VmHWM:")? / 1024;
        println!(
            "{:60}{resident:>8} MiB, at most {peak}",
            format!("{who}, resident")
        );
    }
    let requests = server.requests();
    let count = |watch| requests.iter().filter(|it| it.is_watch() == watch).count();
    let [watches, others] = [count(true), count(false)];
    println!("requests to the API server: {watches} watches, {others} others");
    for method in ["GET", "POST", "PATCH", "PUT"] {
        let of = requests
            .iter()
            .filter(|it| it.method == method && !it.is_watch());
        println!("    {method:6}{:>6}", of.count());
    }
    agent.stop();
    run.stop();
    Ok(())
}

fn apply_ends(server: &ApiServer, service: u32, ends: &[String]) {
    let ends: Vec<&str> = ends.iter().map(String::as_str).collect();
    let (namespace, name) = (namespace(service), name_of_service(service));
    server.apply(endpoints(&namespace, &name, &ends, PORT_OF_ENDS));
}

/// A duration for each of some.
fn line(what: &str, took: Duration, count: u32) {
    let each = took.as_secs_f64() * 1e3 / f64::from(count);
    println!("{what:60}{each:>10.2} ms");
}
