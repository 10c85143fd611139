//! On a node whose pods ovn-kubernetes wired: podwire's CHECK, DEL and GC work for them, and hold
//! back where they must.

use podwire_tests::{AgentOptions, CniError, Pod, TestNode, conf, links, traffic};
use serde_json::{Value, json};

const ADDRESS: &str = "10.186.0.77";
const MAC: &str = "0a:58:0a:ba:00:4d";

/// Wires a pod as ovn-kubernetes' node process does: its names, its external_ids, its transient
/// port.
fn wire<'node>(node: &'node TestNode, name: &str, more: &str) -> Pod<'node> {
    let pod = node.pod(name);
    let host = pod.host_link();
    let ip = |arguments: &str| node.run("ip", arguments);
    ip(&format!(
        "link add {host} type veth peer name eth0 address {MAC} netns {}",
        pod.netns
    ));
    ip(&format!("link set {host} up"));
    pod.run("ip", format!("address add {ADDRESS}/22 dev eth0"));
    pod.run("ip", "link set eth0 up");
    pod.run("ethtool", "-K eth0 tx off");
    let (uid, container) = (&pod.uid, &pod.container);
    node.vsctl(format!(
        "add-port br-int {host} other_config:transient=true -- set interface {host} \
         external_ids:attached_mac=\"{MAC}\" external_ids:iface-id=tests_{name} \
         external_ids:iface-id-ver={uid} external_ids:sandbox={container} \
         external_ids:ip_addresses={ADDRESS}/22 {more}"
    ));
    pod
}

/// What libcni has in its cache of that pod's ADD.
fn result(pod: &Pod<'_>) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            {"name": pod.host_link()},
            {"name": "eth0", "mac": MAC, "sandbox": pod.netns},
        ],
        "ips": [{"interface": 1, "address": format!("{ADDRESS}/22")}],
    })
}

fn gc(pod: &Pod<'_>, network: &str, plugin: &str, valid: &[&Pod<'_>]) {
    let valid: Vec<Value> = valid
        .iter()
        .map(|pod| json!({"containerID": pod.container, "ifname": "eth0"}))
        .collect();
    let mut conf = conf();
    conf["name"] = json!(network);
    conf["type"] = json!(plugin);
    conf["cni.dev/valid-attachments"] = json!(valid);
    pod.exec("GC", &conf).success();
}

fn check(pod: &Pod<'_>) -> Result<Value, CniError> {
    let run = pod.check(&result(pod));
    if run.succeeded() {
        return Ok(run.success());
    }
    Err(run.error())
}

#[test]
fn check_and_del_work_for_a_pod_that_ovn_kubernetes_wired() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let (pod, other) = (wire(&node, "web", ""), node.pod("other"));
    other.add().success();
    traffic::ping(node.place(), ADDRESS.parse().unwrap(), 1).unwrap();

    check(&pod).unwrap();
    pod.run("ip", "link set eth0 down");
    assert!(check(&pod).unwrap_err().msg.contains("eth0 is down"));

    // A DEL of another interface of the sandbox leaves this one alone.
    let mut second = pod.another_sandbox();
    second.container.clone_from(&pod.container);
    second.interface = "net1".into();
    second.del().success();
    assert!(node.interface_of(&pod.container).is_some());

    pod.del().success();
    pod.del().success();
    assert!(node.interface_of(&pod.container).is_none());
    other.del().success();
    node.leftovers().assert_none();
}

#[test]
fn del_finds_the_port_of_a_network_attachment_definition_old_and_new() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let nad = "external_ids:k8s.ovn.org/nad=tests/blue";
    for more in ["", "external_ids:pod-if-name=net1"] {
        let mut pod = wire(&node, "web", &format!("{nad} {more}"));
        let mut of_definition = conf();
        of_definition["netAttachDefName"] = json!("tests/blue");
        // It is none of the default network's.
        pod.del().success();
        assert!(node.interface_of(&pod.container).is_some(), "{more:?}");
        pod.interface = "net1".into();
        pod.exec("DEL", &of_definition).success();
        node.leftovers().assert_none();
    }
}

#[test]
fn a_del_of_such_a_pod_while_the_database_is_away_is_made_good() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let pod = wire(&node, "web", "");
    node.kill_ovsdb_server();
    pod.del().success();
    node.start_ovsdb_server();
    agent.await_log("finishing interrupted operations");
    agent.await_ready(true);
    let again = wire(&node, "again", "");
    again.del().success();
    assert!(node.interface_of(&pod.container).is_none());
}

#[test]
fn gc_collects_them_in_the_network_that_was_theirs_and_elsewhere_only_the_dead() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let (living, dead) = (wire(&node, "living", ""), wire(&node, "dead", ""));
    let secondary = wire(&node, "second", "external_ids:k8s.ovn.org/nad=tests/blue");
    let there = |pod: &Pod<'_>| node.interface_of(&pod.container).is_some();

    gc(&living, "pods", "podwire-cni", &[]);
    assert!(
        there(&living) && there(&dead),
        "beside podwire ovn-kubernetes may wire pods"
    );
    let mut lost = wire(&node, "lost", "");
    lost.remove_netns();
    // It may have gone with the namespace.
    node.shell(&format!("ip link delete {}", lost.host_link()));
    gc(&living, "pods", "podwire-cni", &[]);
    assert!(!there(&lost), "nothing lives by a port without a link");

    gc(&living, "pods", "ovn-k8s-cni-overlay", &[&living]);
    assert!(there(&living) && !there(&dead) && there(&secondary));
    gc(&living, "ovn-kubernetes", "podwire-cni", &[]);
    assert!(!there(&living) && there(&secondary));
}

#[test]
fn an_add_of_a_later_sandbox_takes_the_port_over_and_a_late_del_leaves_it() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let old = wire(&node, "web", "");
    let new = old.another_sandbox();
    new.add().success();
    let bearers: Vec<_> = node
        .ovsdb_rows("Interface")
        .into_iter()
        .filter(|row| row["external_ids"]["iface-id"] == "tests_web")
        .collect();
    assert_eq!(bearers.len(), 1, "{bearers:?}");
    assert_eq!(bearers[0]["external_ids"]["sandbox"], new.container);
    old.del().success();
    assert!(node.interface_of(&new.container).is_some());
    new.del().success();
    node.leftovers().assert_none();
}

#[test]
fn new_pods_get_the_mtu_of_the_management_port_as_old_ones_have() {
    let node = TestNode::with_ovs();
    node.add_bridge("br-int");
    let ip = |arguments: &str| node.run("ip", arguments);
    ip("link add eth9 mtu 1500 type bridge");
    ip("address add 192.0.2.1/24 dev eth9");
    ip("link set eth9 up");
    node.vsctl("set open . external_ids:ovn-encap-ip=192.0.2.1 external_ids:ovn-encap-type=geneve");
    ip("link add ovn-k8s-mp0 mtu 1400 type bridge");
    let options = AgentOptions::default().with("--mode ovn --wait ofport");
    let agent = node.start_agent(&options);
    let mtu = |number| {
        let pod = node.wired_pod(number);
        let mtu = links::find(pod.place(), "eth0").unwrap().mtu;
        pod.del().success();
        mtu
    };
    assert_eq!(mtu(11), 1400);
    ip("link set ovn-k8s-mp0 mtu 1300");
    agent.await_log("\"mtu\":1300");
    assert_eq!(mtu(12), 1300);
    ip("link delete ovn-k8s-mp0");
    agent.await_log("\"mtu\":1442");
    assert_eq!(mtu(13), 1442);
}
