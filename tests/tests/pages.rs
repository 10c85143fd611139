//! Every page that a daemon serves over TCP: it is served in time however many clients connect and
//! say nothing, and such clients take nothing from the rest of the daemon.

use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::controller::Controller;
use podwire_tests::http::{get_from, silent_clients};
use podwire_tests::machine::Machine;
use podwire_tests::ovn::Central;
use podwire_tests::{AgentOptions, NodeRun, Place, TestNode, agent_binary};
use serde_json::json;

/// More than a process may have descriptors, by default.
const CLIENTS: usize = 3000;
/// More than a daemon with two kinds of pages may hold, and fewer than keep it from its work.
const MOST: usize = 600;

/// Asks for a page beside silent clients, of whom more come all the time, and returns them.
#[track_caller]
fn flooded(place: &Place, address: &str, path: &str) -> Vec<TcpStream> {
    let mut silent = silent_clients(place, address, CLIENTS);
    let asked = AtomicBool::new(false);
    let (more, answers) = std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let mut more = Vec::new();
            while !asked.load(Ordering::Relaxed) {
                more = silent_clients(place, address, 100);
            }
            more
        });
        let answers = (0..20).map(|_| get_from(place, address, path));
        let answers: Result<Vec<_>, _> = answers.collect();
        asked.store(true, Ordering::Relaxed);
        (flood.join().unwrap(), answers)
    });
    for (status, body) in answers.unwrap() {
        assert_eq!(status, 200, "{address}{path}: {body}");
    }
    silent.extend(more);
    silent
}

#[track_caller]
fn assert_few_descriptors(pid: u32) {
    let held = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count();
    assert!(held < MOST, "process {pid} holds {held} descriptors");
}

#[test]
fn silent_clients_take_the_agents_metrics_from_nobody() {
    let node = TestNode::with_ovs();
    let address = "127.0.0.1:9476";
    let options = AgentOptions::default().with(format!("--metrics-address {address}"));
    let agent = node.start_agent(&options);
    let silent = flooded(node.place(), address, "/metrics");
    assert_few_descriptors(agent.pid());
    drop(silent);
    agent.stop();
}

#[test]
fn silent_clients_take_neither_a_page_nor_nft_from_the_node_role() {
    let machine = Machine::new();
    let place = machine.node().place();
    let server = ApiServer::start_in(place);
    server.apply(apiserver::node("node-a", "192.0.2.11"));
    let mut service = apiserver::service("default", "local", "10.96.0.11", 80);
    let changes = json!({
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 32000,
    });
    for (field, value) in changes.as_object().unwrap() {
        service["spec"][field] = value.clone();
    }
    server.apply(service);
    let mut endpoints = apiserver::endpoints("default", "local", &["10.244.1.5"], 8080);
    endpoints["endpoints"][0]["nodeName"] = json!("node-a");
    server.apply(endpoints);
    let page = "127.0.0.1:9477";
    let flags = format!("--k8s-apiserver {} --metrics-address {page}", server.url());
    // The usual limit of a service or a container.
    let mut command = Command::new("prlimit");
    command.arg("--nofile=1024:1024").arg(agent_binary());
    command.args(machine.arguments("run", flags));
    let run = NodeRun::launch_by(machine.node(), command);
    run.await_state("READY=1");
    run.await_log("services follow the cluster", 1);

    let mut silent = flooded(place, page, "/metrics");
    for health in ["127.0.0.1:32000", "[::1]:32000"] {
        silent.extend(flooded(place, health, "/"));
    }
    assert_few_descriptors(run.pid());
    machine.node().run("nft", "flush ruleset");
    run.await_log("restored nftables table inet podwire-node", 1);
    drop(silent);
    run.stop();
    machine.cleanup("");
}

#[test]
fn silent_clients_do_not_have_a_controller_restarted() {
    let central = Central::start();
    let place = central.machine().place();
    let server = ApiServer::start_in(place);
    server.apply(apiserver::node("node-a", "192.0.2.1"));
    let controller = Controller::start(&central, &server, "one", "--metrics-address [::]:9413");
    controller.await_log("all nodes and pods are known");
    let mut silent = Vec::new();
    for address in ["127.0.0.1:9413", "[::1]:9413"] {
        silent.extend(flooded(place, address, "/healthz"));
    }
    assert_few_descriptors(controller.pid());
    drop(silent);
    assert!(controller.stop().success());
}
