//! What befalls single ports: a container id that comes again, a port removed by hand, a host end
//! renamed or moved, a database that hangs.

use std::thread;

use nix::sys::signal::Signal;
use podwire_tests::annotation::ipv4;
use podwire_tests::{AgentOptions, TestNode, conf, conf_of_version, links, traffic};
use serde_json::json;

#[test]
fn a_container_id_that_comes_again_while_the_switch_stands_still_has_traffic() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.wired_pod(11);
    // Not the node: its kernel hears on the host end and would answer for the switch.
    let other = node.wired_pod(12);
    let address = ipv4(11).parse().unwrap();
    traffic::ping(other.place(), address, 1).unwrap();
    for _ in 0..5 {
        // So ovs-vswitchd learns of both rows in one turn.
        node.signal_vswitchd(Signal::SIGSTOP);
        pod.del().success();
        thread::scope(|scope| {
            let adding = scope.spawn(|| pod.add().success());
            node.await_port(&pod.container, true);
            node.signal_vswitchd(Signal::SIGCONT);
            adding.join().unwrap();
        });
        traffic::ping(other.place(), address, 1).unwrap();
    }
    for pod in [pod, other] {
        pod.del().success();
    }
    node.leftovers().assert_none();
}

#[test]
fn a_port_that_was_removed_by_hand_comes_back_and_that_of_a_deleted_pod_does_not() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let (pod, other) = (node.wired_pod(11), node.wired_pod(12));
    for _ in 0..3 {
        let host = pod.host_link();
        node.vsctl(format!("--no-wait del-port br-int {host}"));
        node.await_port(&pod.container, true);
        node.await_ofport(host).unwrap();
        traffic::ping_until_answered(other.place(), ipv4(11).parse().unwrap()).unwrap();
    }
    // Its link is there, but it is no living pod's any more.
    node.signal_ovsdb_server(Signal::SIGSTOP);
    let del = thread::scope(|scope| {
        let del = scope.spawn(|| pod.del().success());
        let entry = format!(
            "/run/podwire/attachments/{}:eth0:pods.deleting",
            pod.container
        );
        agent.await_file(&entry);
        node.signal_ovsdb_server(Signal::SIGCONT);
        del.join().unwrap()
    });
    assert!(del.is_null());
    other.del().success();
    node.leftovers().assert_none();
}

#[test]
fn one_of_several_ports_that_was_removed_by_hand_comes_back() {
    let node = TestNode::with_ovs();
    let options = AgentOptions::default().with("--no-port-security");
    let _agent = node.start_agent(&options);
    let interface = |number: u8, name: &str| {
        json!({
            "interface": name, "ip_address": format!("172.16.{number}.2/24"),
            "mac_address": format!("0a:00:00:00:00:{number:02x}"),
        })
    };
    let list = json!([interface(1, "*"), interface(2, "net1")]);
    let pod = node.pod("two").annotate("ovnIfaceList", &list);
    pod.add().success();
    let of_net1 = "external_ids:pod-if-name=net1";
    let find = ["--bare", "--columns=name", "find", "interface", of_net1];
    let host = node.vsctl(find).trim().to_owned();
    node.vsctl(format!("--no-wait del-port br-int {host}"));
    node.await_ofport(&host).unwrap();
    pod.del().success();
    node.leftovers().assert_none();
}

#[test]
fn a_del_removes_a_pair_whose_host_end_was_renamed_or_moved() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let elsewhere = node.pod("elsewhere");
    for moved in [false, true] {
        let pod = node.wired_pod(11);
        let host = pod.host_link();
        match moved {
            true => node.run("ip", format!("link set {host} netns {}", elsewhere.netns)),
            false => node.run("ip", format!("link set {host} name renamed")),
        };
        pod.del().success();
        assert!(links::find(pod.place(), "eth0").is_none());
        node.leftovers().assert_none();
    }
}

#[test]
fn a_pod_whose_host_end_was_renamed_keeps_its_pair_when_its_port_is_removed() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.numbered_pod(11);
    let result = pod.add().success();
    let host = pod.host_link();
    node.run("ip", format!("link set {host} name renamed"));
    node.vsctl(format!("--no-wait del-port br-int {host}"));
    agent.await_log("it has lost its port");
    assert!(links::find(pod.place(), "eth0").is_some());
    let error = pod.check(&result).error();
    error.assert_names(&["has no port for"]);
    pod.del().success();
    node.leftovers().assert_none();
}

#[test]
fn an_add_that_fails_against_a_hung_database_leaves_nothing_when_it_goes_on() {
    let node = TestNode::with_ovs();
    let options = AgentOptions::for_numbered_pods().with("--add-timeout 1");
    let agent = node.start_agent(&options);
    for is_deleted in [false, true] {
        let pod = node.numbered_pod(11);
        node.signal_ovsdb_server(Signal::SIGSTOP);
        pod.add().error();
        if is_deleted {
            pod.del().success();
        }
        node.signal_ovsdb_server(Signal::SIGCONT);
        agent.await_log(&format!(
            "leftovers of an attachment that is gone\",\"attachment\":\"eth0 of container {}",
            pod.container
        ));
        node.await_port(&pod.container, false);
        node.leftovers().assert_none();
    }
}

#[test]
fn gc_spares_a_pod_whose_add_was_under_way_when_it_began() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    // host-local waits for its lock, and GC, which comes to the lowest container id first, for
    // host-local.
    let mut stale = node.pod("stale");
    stale.container.replace_range(..2, "00");
    let mut delegating = conf_of_version("1.0.0");
    let ranges = json!([[{"subnet": "10.55.0.0/24"}]]);
    delegating["ipam"] =
        json!({"type": "host-local", "dataDir": "/run/host-local", "ranges": ranges});
    stale.exec("ADD", &delegating).success();
    let lock = std::fs::File::open(node.path("/run/host-local/pods/lock")).unwrap();
    lock.lock().unwrap();
    let mut pod = node.numbered_pod(11);
    pod.container.replace_range(..2, "ff");
    let mut gc = conf();
    gc["cni.dev/valid-attachments"] = json!([]);
    thread::scope(|scope| {
        node.signal_vswitchd(Signal::SIGSTOP);
        let add = scope.spawn(|| pod.add().success());
        node.await_port(&pod.container, true);
        let collected = scope.spawn(|| {
            let run = stale.exec_with("GC", gc.to_string().as_bytes(), &[]);
            run.success();
        });
        node.await_port(&stale.container, false);
        node.signal_vswitchd(Signal::SIGCONT);
        add.join().unwrap();
        lock.unlock().unwrap();
        collected.join().unwrap();
    });
    assert!(node.interface_of(&pod.container).is_some());
    assert!(links::find(pod.place(), "eth0").is_some());
    pod.del().success();
    node.leftovers().assert_none();
}

#[test]
fn an_add_that_fails_against_a_hung_database_costs_no_older_sandbox_its_network() {
    // With the usual time limit, the connection is lost before the ADD's time is up.
    for flags in ["", "--add-timeout 1"] {
        let node = TestNode::with_ovs();
        let agent = node.start_agent(&AgentOptions::for_numbered_pods().with(flags));
        let (web, other) = (node.wired_pod(11), node.wired_pod(12));
        let newer = web.another_sandbox();
        node.signal_ovsdb_server(Signal::SIGSTOP);
        let error = newer.add().error();
        assert_eq!(error.code, 11, "{error:?}");
        node.signal_ovsdb_server(Signal::SIGCONT);
        agent.await_log("restored");
        node.await_port(&newer.container, false);
        node.await_ofport(web.host_link()).unwrap();
        traffic::ping_until_answered(other.place(), ipv4(11).parse().unwrap()).unwrap();
        for pod in [web, newer, other] {
            pod.del().success();
        }
        node.leftovers().assert_none();
    }
}
