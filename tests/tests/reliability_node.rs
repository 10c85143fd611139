//! What befalls the node, or is done to it: descriptors used up, a clock that jumps, another
//! network namespace, other subnets.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::thread;

use nix::sys::signal::Signal;
use podwire_tests::annotation::{default_network, entry, ipv4};
use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::links::LinkRecorder;
use podwire_tests::{Agent, AgentOptions, TestNode, conf, links, traffic};
use serde_json::json;

/// Steps the clock of the day as programs see it that are started with it, and no other:
/// CLOCK_MONOTONIC and CLOCK_BOOTTIME don't step on a real machine either.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

#[test]
fn with_descriptors_used_up_adds_wait_or_say_so_and_are_served_once_there_are_some() {
    let node = TestNode::with_ovs();
    let options = AgentOptions::for_numbered_pods().under(&["prlimit", "--nofile=64:64"]);
    let agent = node.start_agent(&options);
    let pods: Vec<_> = (11..51).map(|number| node.numbered_pod(number)).collect();
    // A hung vswitchd holds every ADD at its wait for the ofport, and with it the ADD's
    // descriptors.
    node.signal_vswitchd(Signal::SIGSTOP);
    let failed: Vec<_> = thread::scope(|scope| {
        let adds: Vec<_> = pods
            .iter()
            .map(|pod| {
                scope.spawn(|| {
                    let add = pod.add();
                    (!add.succeeded()).then(|| add.error())
                })
            })
            .collect();
        agent.await_log("Too many open files");
        node.signal_vswitchd(Signal::SIGCONT);
        adds.into_iter().map(|add| add.join().unwrap()).collect()
    });
    for (pod, error) in pods.iter().zip(&failed) {
        if let Some(error) = error {
            assert_eq!(error.code, 11, "{error:?}");
            // As kubelet does. An ADD's packet socket is closed behind it, which takes the kernel
            // an RCU grace period: of many in a row some are open yet.
            let is_served = (0..100).any(|_| pod.add().succeeded());
            assert!(is_served, "{:?}", pod.add().error());
        }
    }
    traffic::ping(node.place(), ipv4(50).parse().unwrap(), 1).unwrap();
    for pod in &pods {
        pod.del().success();
    }
    node.leftovers().assert_none();
    agent.stop();
}

#[test]
fn clients_that_say_nothing_use_up_no_descriptors() {
    let node = TestNode::with_ovs();
    let options = AgentOptions::for_numbered_pods().under(&["prlimit", "--nofile=64:64"]);
    let agent = node.start_agent(&options);
    let _silent: Vec<_> = (0..200)
        .map(|_| UnixStream::connect(agent.socket()).unwrap())
        .collect();
    node.numbered_pod(11).add().success();
    assert!(!agent.log().contains("Too many open files"));
}

#[test]
fn a_clock_that_jumps_ends_no_wait_and_makes_no_del_too_old() {
    let (node, server) = ApiServer::beside_a_node();
    let jump = |by: &str| {
        std::fs::write(node.path("/run/clock.new"), by).unwrap();
        std::fs::rename(node.path("/run/clock.new"), node.path("/run/clock")).unwrap();
    };
    jump("+0");
    let options = server
        .watched_by("n1", "60")
        .with("--log info,podwire::pods=debug")
        .variable("LD_PRELOAD", FAKETIME)
        .variable("FAKETIME_TIMESTAMP_FILE", "/run/clock")
        .variable("FAKETIME_NO_CACHE", "1")
        .variable("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let mut agent = node.start_agent(&options);
    for (by, name) in [("+1000d", "forward"), ("-1000d", "back")] {
        let pod = node.pod(name);
        thread::scope(|scope| {
            let add = scope.spawn(|| pod.add().success());
            let waits = format!("{}/{}", pod.namespace, pod.name);
            agent.await_log(&waits);
            jump(by);
            let annotations = default_network(&entry(11));
            server.apply(apiserver::pod_on("n1", &pod, annotations));
            let result = add.join().unwrap();
            pod.check(&result).success();
        });
        // A DEL that waits in the spool while the clock jumps back, and an attachment that is
        // younger than it.
        let other = node.numbered_pod(12);
        other.add().success();
        agent = agent.kill_and_restart_with(|| {
            pod.del().success();
            jump("-2000d");
        });
        assert!(node.interface_of(&pod.container).is_none());
        traffic::ping(node.place(), ipv4(12).parse().unwrap(), 1).unwrap();
        other.del().success();
        node.leftovers().assert_none();
    }
    let years: std::collections::BTreeSet<String> = agent
        .log()
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|line| Some(line["timestamp"].as_str()?.get(..4)?.to_owned()))
        .collect();
    assert!(years.len() >= 3, "the clock did jump: {years:?}");
}

#[test]
fn an_agent_in_another_network_namespace_does_not_take_its_pods_for_gone() {
    let node = TestNode::with_ovs();
    let options = AgentOptions::for_numbered_pods();
    let agent = node.start_agent(&options);
    let pod = node.numbered_pod(11);
    let result = pod.add().success();
    agent.stop();

    let elsewhere = options.clone().under(&["unshare", "--net"]);
    let refusal = Agent::launch(&node, &elsewhere).unwrap_err().to_string();
    for words in [
        "1 attachments were created in network namespace",
        "host's network namespace",
    ] {
        assert!(refusal.contains(words), "{refusal}");
    }
    // Nothing tells this one where it was before; but it doesn't see the bridge either.
    let strange = AgentOptions {
        run_dir: Some("/run/strange".into()),
        ..elsewhere
    };
    let agent = Agent::launch(&node, &strange).unwrap();
    agent.await_log("seem to have outlived their links");
    agent.stop();

    let _agent = node.start_agent(&options);
    pod.check(&result).success();
    traffic::ping(node.place(), ipv4(11).parse().unwrap(), 1).unwrap();
}

#[test]
fn the_gateways_of_earlier_subnets_go_and_others_addresses_stay() {
    let node = TestNode::with_ovs();
    let gateways = || links::addresses(node.place(), "br-int");
    let subnets = |of: &[&str]| {
        let options = AgentOptions::default();
        of.iter()
            .fold(options, |options, subnet| options.subnet(subnet))
    };
    let agent = node.start_agent(&subnets(&["10.61.0.0/24", "fd61::/64"]));
    agent.await_log("10.61.0.1/24");
    node.run("ip", "address add 10.61.0.9/24 dev br-int");
    node.run("ip", "address add 10.63.0.1/24 dev br-int");
    agent.stop();

    let agent = node.start_agent(&subnets(&["10.62.0.0/24", "10.63.0.0/24"]));
    agent.await_log("10.62.0.1/24");
    assert_eq!(gateways(), ["10.61.0.9/24", "10.62.0.1/24", "10.63.0.1/24"]);
    agent.stop();

    let agent = node.start_agent(&subnets(&["10.62.0.0/24"]).with("--no-gateway"));
    agent.await_log(r#""addresses":"10.62.0.1/24""#);
    assert_eq!(
        gateways(),
        ["10.61.0.9/24", "10.63.0.1/24"],
        "what somebody else put there stays"
    );
}

#[test]
fn the_gateway_of_an_earlier_subnet_stays_for_as_long_as_a_pod_lives_in_it() {
    let node = TestNode::with_ovs();
    let options = |subnet: &str| AgentOptions::default().subnet(subnet);
    let agent = node.start_agent(&options("10.61.0.0/24"));
    agent.await_log("10.61.0.1/24");
    let pod = node.added_pod("web");
    agent.stop();

    let agent = node.start_agent(&options("10.62.0.0/24"));
    agent.await_log("10.62.0.1/24");
    traffic::ping(pod.place(), "10.61.0.1".parse().unwrap(), 1).unwrap();
    pod.del().success();
    agent.stop();

    let agent = node.start_agent(&options("10.62.0.0/24"));
    agent.await_log(r#""addresses":"10.61.0.1/24""#);
    let addresses = links::addresses(node.place(), "br-int");
    assert_eq!(addresses, ["10.62.0.1/24"]);
}

#[test]
fn a_client_that_went_away_is_missed_behind_what_it_had_sent_ahead_too() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.numbered_pod(11);
    node.signal_vswitchd(Signal::SIGSTOP);
    let recorder = LinkRecorder::start(node.place());
    let body = json!({
        "version": 1, "command": "ADD", "container_id": pod.container, "netns": pod.netns,
        "ifname": "eth0",
        "args": format!("K8S_POD_NAMESPACE={};K8S_POD_NAME={}", pod.namespace, pod.name),
        "path": "/usr/lib/cni",
        "config": conf(),
    })
    .to_string();
    let mut client = UnixStream::connect(agent.socket()).unwrap();
    let length = body.len();
    write!(
        client,
        "POST /v1/cni HTTP/1.1\r\nHost: podwire\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    recorder.await_born(pod.host_link());
    write!(client, "GET /v1/health HTTP/1.1\r\nHost: podwire\r\n\r\n").unwrap();
    drop(client);
    recorder.await_gone(pod.host_link());
    pod.del().success();
    node.leftovers().assert_none();
    node.signal_vswitchd(Signal::SIGCONT);
}
