//! OVN mode: the agent's own flows in br-int, which drop what OVN lets pass. What they do is in
//! forged_frames; this is where they are.

use nix::sys::signal::Signal;
use podwire_tests::ovn::{Central, LogicalPort, OvnNode};
use podwire_tests::{Pod, conf, traffic};
use serde_json::{Value, json};

/// What no pod may be, of seven kinds.
const KINDS: usize = 7;

/// How many kinds are kept from a port of a pod.
fn kept(node: &OvnNode, pod: &Pod<'_>) -> usize {
    let row = node.interface_of(&pod.container).unwrap();
    let from = format!("in_port={},", row["ofport"]);
    let flows = node.appctl("bridge/dump-flows br-int");
    let flows = flows.lines().filter(|line| line.contains("goto_table:241"));
    flows
        .filter(|line| format!("{line},").contains(&from))
        .count()
}

/// A pod on the network of a network attachment definition.
fn attached<'node>(
    central: &Central,
    node: &'node OvnNode,
    (name, number): (&str, u8),
    port_security: Option<bool>,
) -> Pod<'node> {
    let pod = node.pod(name);
    let mut port = LogicalPort::of(&pod, node, number);
    port.name = format!("blue.tenant.a_tests_{name}");
    central.add_port(&port);
    let networks = json!({"blue/tenant-a": port.entry()});
    let pod = pod.annotate("k8s.ovn.org/pod-networks", &networks);
    let mut multus = with_port_security(port_security);
    multus["name"] = json!("tenant-a-network");
    multus["netAttachDefName"] = json!("blue/tenant-a");
    pod.exec("ADD", &multus).success();
    pod
}

fn with_port_security(said: Option<bool>) -> Value {
    let mut conf = conf();
    if let Some(said) = said {
        conf["portSecurity"] = json!(said);
    }
    conf
}

#[test]
fn pods_are_kept_from_it_on_the_clusters_network_and_where_a_network_wants_that() {
    let (central, node) = Central::with_node();
    let agent = node.start_agent(&OvnNode::agent_options());
    let mut pods = Vec::new();
    for (said, of_cluster, of_other) in [
        (None, KINDS, 0),
        (Some(true), KINDS, KINDS),
        (Some(false), 0, 0),
    ] {
        let number = 11 + pods.len() as u8;
        let (pod, _) = central.schedule(&node, &format!("web-{number}"), number);
        pod.exec("ADD", &with_port_security(said)).success();
        let number = number + 1;
        let attached = attached(&central, &node, (&format!("web-{number}"), number), said);
        let kinds = [&pod, &attached].map(|pod| kept(&node, pod));
        assert_eq!(kinds, [of_cluster, of_other], "{said:?}");
        pods.extend([pod, attached]);
    }
    // They come with the port, and go with it.
    let (pod, _) = central.schedule(&node, "gone", 31);
    pod.add().success();
    let flows = || {
        node.appctl("bridge/dump-flows br-int")
            .matches("goto_table:241")
            .count()
    };
    assert_eq!(flows(), 4 * KINDS);
    pod.del().success();
    let agent = agent.kill_and_restart();
    // The fence: this ADD's flows are committed with those of all ports, or after them.
    let (later, _) = central.schedule(&node, "later", 32);
    later.add().success();
    assert_eq!(flows(), 4 * KINDS);
    // What an earlier agent left was deleted by this one.
    assert!(!agent.log().contains("sent again"), "{}", agent.log());
    drop(agent);
    let agent = node.start_agent(&OvnNode::agent_options().with("--no-port-security"));
    let (open, _) = central.schedule(&node, "open", 33);
    open.add().success();
    agent.await_ready(true);
    assert_eq!(kept(&node, &open), 0);
}

/// It deletes every flow of the bridge then, whosever it is.
#[test]
fn they_are_back_when_ovn_controller_has_started_anew() {
    let (central, node) = Central::with_node();
    let agent = node.start_agent(&OvnNode::agent_options());
    let (web, port) = central.schedule(&node, "web", 11);
    web.add().success();
    for time in 1..=2 {
        node.end_controller(Signal::SIGKILL);
        node.start_controller();
        let said = "they are sent again";
        agent.await_log(said);
        central.sync();
        // The fence: this ADD's flows are committed with all others, or after them.
        let (later, _) = central.schedule(&node, &format!("later-{time}"), 20 + time);
        later.add().success();
        assert_eq!(kept(&node, &web), KINDS);
        traffic::ping_until_answered(later.place(), port.ipv4().parse().unwrap()).unwrap();
    }
    // Its own deletions are no news to it.
    assert_eq!(agent.log().matches("they are sent again").count(), 2);
}
