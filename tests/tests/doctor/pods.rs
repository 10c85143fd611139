//! What the agent says of its pods' operations, and what is left of pods.

use std::thread;

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{AgentOptions, annotation, links};
use serde_json::json;

use crate::patient::Patient;
use crate::with_ovs;

#[test]
fn operations_that_fail_are_findings_until_the_pod_has_its_network() {
    let node = with_ovs();
    let patient = Patient::healthy(&node, AgentOptions::default());
    let pod = node.pod("web");
    let mut conf = podwire_tests::conf();
    conf["args"] = json!({"cni": {"ips": ["10.186.0.1/22"]}});
    for _ in 0..4 {
        pod.exec("ADD", &conf).error();
        // As containerd does at once.
        pod.del().success();
    }
    patient.complains_of("add-failed", "the last ADD of tests/web failed");
    let result = pod.add().success();
    patient.is_healthy();
    let other = node.pod("other");
    other.check(&result).error();
    patient.complains_of("operation-failed", "the last CHECK of tests/other failed");
}

#[test]
fn attachments_and_qos_rows_left_over() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    let mut pod = node.added_pod("web");
    let host_end = links::LinkRecorder::start(node.place());
    pod.remove_netns();
    host_end.await_gone(pod.host_link());
    patient.healthy_after(&["left-over", "attachments left over: 1"]);
    assert_eq!(patient.followed, ["podwire gc"]);
    let create = [
        "create",
        "qos",
        "type=linux-htb",
        "external_ids:sandbox=abc",
    ];
    node.vsctl(create);
    patient.healthy_after(&["qos-left-over", "1 QoS row"]);
    assert_eq!(patient.followed[1..], ["podwire gc"]);
    node.leftovers().assert_none();
}

#[test]
fn an_annotation_that_does_not_come() {
    let (node, server) = ApiServer::beside_a_node();
    let pod = node.pod("web");
    server.apply(apiserver::pod_on("n1", &pod, json!({})));
    let entry = annotation::entry(11);
    let wired = std::sync::OnceLock::new();
    let options = server.watched_by("n1", "60");
    let options = options.with("--log info,podwire::pods=debug");
    let mut patient = Patient::healthy(&node, options);
    patient.fill_in = vec![
        ("MAC", annotation::mac(11)),
        (
            "ADDRESS/LENGTH",
            entry["ip_addresses"][0].as_str().unwrap().to_owned(),
        ),
    ];
    std::thread::scope(|scope| {
        let add = scope.spawn(|| {
            let added = pod.add();
            wired.set(()).unwrap();
            added.success()
        });
        let agent = patient.agent.as_ref().unwrap();
        agent.await_log("awaits its pod's annotation");
        patient.others = Box::new(|asked| {
            let annotated = asked.strip_prefix("kubectl -n tests annotate pod web ");
            let Some((key, value)) = annotated.and_then(|it| it.split_once('=')) else {
                return false;
            };
            let annotations = json!({ key: value });
            server.apply(apiserver::pod_on("n1", &pod, annotations));
            wired.wait();
            true
        });
        let words = "an ADD of pod tests/web waits for its network annotation";
        patient.healthy_after(&["annotation-awaited", words]);
        let result = add.join().unwrap();
        assert_eq!(result["interfaces"][1]["mac"], annotation::mac(11));
    });
}

#[test]
fn a_port_that_ovn_has_forgotten() {
    let (central, node) = Central::with_node();
    let mut patient = Patient::healthy(&node, OvnNode::agent_options());
    let (pod, port) = central.schedule(&node, "web", 11);
    pod.add().success();
    let (container, iface_id) = (
        pod.container.clone(),
        format!("{}_{}", pod.namespace, pod.name),
    );
    patient.is_run(pod);
    central.remove_port(&iface_id);
    node.await_installed(&container, false);
    // The control plane makes the logical port of the pod that comes.
    let central = &central;
    patient.others = Box::new(move |asked| {
        if asked == "kubectl -n tests delete pod web" {
            central.add_port(&port);
        }
        false
    });
    patient.healthy_after(&["ovn-not-installed", "OVN has not installed the flows"]);
}

#[test]
fn an_add_that_waited_for_ovn_northd() {
    let (central, node) = Central::with_node();
    let patient = Patient::healthy(&node, OvnNode::agent_options());
    let (pod, port) = central.announce(&node, "web", 11);
    let agent = patient.agent.as_ref().unwrap();
    thread::scope(|scope| {
        let add = scope.spawn(|| pod.add().success());
        agent.await_log("waiting for ovn-northd");
        central.add_port(&port);
        add.join().unwrap();
    });
    patient.complains_of("northd-slow", "1 of the 1 ADDs");
    patient.is_healthy();
}
