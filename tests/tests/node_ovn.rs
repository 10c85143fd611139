//! A machine that `podwire node init` made a part of a real OVN network: what goes between the
//! host, a pod, a service and the outside.

use nix::sys::signal::Signal;
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{NodeRun, traffic};
use serde_json::json;

#[test]
fn host_and_pod_reach_each_other_and_the_pod_reaches_the_outside() {
    let central = Central::start();
    let node = central.node_without_controller("node-a", 1);
    node.make_bridge();
    node.start_controller();
    let init = format!(
        "node init --mode ovn --node-name node-a --interface {} --node-subnet 10.128.1.0/24 \
         --cluster-subnet 10.128.0.0/14 --service-cidr 10.96.0.0/16 \
         --ovn-remote tcp:172.31.0.1:6642",
        node.uplink()
    );
    node.podwire(init).success("podwire node init");
    // ovn-controller has joined by what init told it.
    central.await_chassis("node-a");

    // The controller's part: the switch, the management port's logical port, the way out, a
    // service.
    central.add_switch(&node);
    let nbctl = |arguments: &str| central.nbctl(arguments);
    nbctl("lsp-add node-a k8s-node-a");
    nbctl("lsp-set-addresses k8s-node-a '0a:58:0a:80:01:02 10.128.1.2'");
    nbctl("--policy=src-ip lr-route-add cluster 10.128.1.0/24 10.128.1.2");
    nbctl("lb-add web 10.96.0.10:80 10.128.1.11:8080 tcp");
    nbctl("ls-lb-add node-a web");
    central.await_up("k8s-node-a", true);

    let _agent = node.start_agent(&OvnNode::agent_options());
    let (pod, port) = central.schedule(&node, "web", 11);
    pod.add().success();
    central.sync();
    let (host, outside) = (node.place(), central.machine().place());
    let address = port.ipv4().parse().unwrap();
    traffic::ping_until_answered(host, address).unwrap();
    traffic::tcp_echo(host, pod.place(), address, 1 << 16).unwrap();
    let (listening, service) = ("10.128.1.11:8080", "10.96.0.10:80");
    let service = Some(service.parse().unwrap());
    traffic::tcp_echo_by(
        host,
        pod.place(),
        listening.parse().unwrap(),
        service,
        1 << 16,
    )
    .unwrap();
    // The outside knows no way to pods: an answer is one to the node's own address.
    let central_address = "172.31.0.1".parse().unwrap();
    traffic::tcp_echo(pod.place(), outside, central_address, 1 << 16).unwrap();
    traffic::udp_echo(pod.place(), outside, central_address, 1000).unwrap();

    pod.del().success();
    let done = node.podwire("node cleanup --cluster");
    let done = done.success("podwire node cleanup");
    assert!(
        done.contains("removed chassis node-a from the southbound"),
        "{done}"
    );
    assert_eq!(central.sbctl("--bare --columns=name list chassis"), "");
    node.leftovers().assert_none();
}

#[test]
fn a_machine_that_is_another_s_twin_is_refused_before_anything_is_changed() {
    let central = Central::start();
    let node = central.node_without_controller("node-a", 1);
    node.make_bridge();
    let uplink = node.uplink();
    let podwire = |verb| {
        node.podwire(format!(
            "node {verb} --mode ovn --node-name node-a --interface {uplink} \
             --node-subnet 10.128.1.0/24 \
             --ovn-remote tcp:172.31.0.1:6642"
        ))
    };
    let add = |name: &str, ip: &str, host: &str| {
        central.sbctl(format!("chassis-add {name} geneve {ip}"));
        central.sbctl(format!("set chassis {name} hostname={host}"));
    };
    for (name, ip, said) in [
        (
            "node-a",
            "172.31.0.99",
            "system-id node-a is the chassis of other in the southbound database",
        ),
        (
            "old",
            "172.31.0.2",
            "chassis old (other) already has the tunnel address 172.31.0.2: name another address \
             with --encap-ip; or, if that chassis is gone, run `ovn-sbctl chassis-del old`",
        ),
    ] {
        add(name, ip, "other");
        let planned = podwire("plan");
        assert_eq!(planned.status.code(), Some(1), "{planned:?}");
        assert!(planned.stdout.contains(said), "{planned:?}");
        let refused = podwire("init");
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(refused.stderr.contains(said), "{refused:?}");
        let keys = node.vsctl("get open_vswitch . external_ids");
        assert!(!keys.contains("ovn-encap-ip"), "{keys}");
        central.sbctl(format!("chassis-del {name}"));
    }
    // One's own, of an earlier start, is no other's.
    add("node-a", "172.31.0.2", "node-a");
    podwire("init").success("podwire node init");
    // A firewall of somebody else's that drops is told of.
    node.run("nft", "add table ip filter");
    let chain = "add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }";
    node.run("nft", chain);
    let planned = podwire("plan");
    assert!(
        planned.stdout.contains("nft list chain ip filter FORWARD"),
        "{planned:?}"
    );
    assert_eq!(planned.status.code(), Some(0), "{planned:?}");
}

#[test]
fn other_nodes_learn_a_changed_address_soon_and_until_then_show_says_that_they_do_not() {
    let central = Central::start();
    let node = central.node_without_controller("node-a", 1);
    node.make_bridge();
    node.run("ip", "route add default via 172.31.0.1");
    node.start_controller();
    let arguments = |verb| {
        format!(
            "node {verb} --mode ovn --node-name node-a --node-subnet 10.128.1.0/24 \
             --ovn-remote tcp:172.31.0.1:6642"
        )
    };
    let run = NodeRun::start(&node, arguments("run"));
    central.await_chassis("node-a");
    let probe = || {
        let rows = node.ovsdb_rows("Open_vSwitch");
        rows[0]["external_ids"]["ovn-remote-probe-interval"].clone()
    };
    assert_eq!(probe(), json!("100000"));
    node.podwire(arguments("show")).success("podwire node show");

    // Its connection is from the former address, and it has something to say by it.
    node.signal_controller(Signal::SIGSTOP);
    let uplink = node.uplink();
    node.run("ip", format!("address del 172.31.0.2/24 dev {uplink}"));
    node.run("ip", format!("address add 172.31.0.77/24 dev {uplink}"));
    node.run("ip", "route replace default via 172.31.0.1");
    run.await_log(
        "changed with the machine: external_ids:ovn-encap-ip = 172.31.0.77",
        1,
    );
    run.await_state("STATUS=waiting for ovn-controller");
    assert_eq!(probe(), json!("5000"));
    let shown = node.podwire(arguments("show"));
    assert_eq!(shown.status.code(), Some(1), "{shown:?}");
    let stale = "missing  external_ids:ovn-encap-ip = 172.31.0.77 (ovn-controller";
    assert!(shown.stdout.contains(stale), "{shown:?}");

    node.signal_controller(Signal::SIGCONT);
    let is_known = || {
        let conditions = json!([
            ["chassis_name", "==", "node-a"],
            ["ip", "==", "172.31.0.77"]
        ]);
        central
            .southbound()
            .wait("Encap", conditions, "!=", &["ip"], json!([]))
    };
    // Two probes without an answer may take longer than one limit, on a busy machine.
    is_known()
        .or_else(|_| is_known())
        .expect("the address in the southbound database");
    run.await_state("STATUS=in sync");
    assert_eq!(probe(), json!("100000"));
    node.podwire(arguments("show")).success("podwire node show");
    assert!(run.stop().success());
}
