//! The runtime's directories: its configurations and plugins.

use std::fs;

use podwire_tests::AgentOptions;
use serde_json::json;

use crate::patient::{BIN_DIR, CONF_DIR, Patient};
use crate::with_ovs;

#[test]
fn ovn_kubernetes_configuration_before_ours_and_its_binary_over_ours() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    let overlay =
        json!({"cniVersion": "0.4.0", "name": "ovn-kubernetes", "type": "ovn-k8s-cni-overlay"});
    patient.write_conf("10-ovn-kubernetes.conf", &overlay.to_string());
    fs::write(
        node.path(&format!("{BIN_DIR}/ovn-k8s-cni-overlay")),
        "theirs",
    )
    .unwrap();
    patient.healthy_after(&[
        "conf-not-first",
        "10-ovn-kubernetes.conf (ovn-k8s-cni-overlay), which sorts before",
    ]);
    assert_eq!(
        patient.followed,
        ["mv /run/cni/net.d/10-podwire.conf /run/cni/net.d/05-podwire.conf"]
    );
    fs::remove_file(node.path(&format!("{CONF_DIR}/05-podwire.conf"))).unwrap();
    patient.healthy_after(&["overlay-not-ours", "which is ovn-kubernetes' own plugin"]);
    let [ours, theirs] = ["podwire-cni", "ovn-k8s-cni-overlay"]
        .map(|name| fs::read(node.path(&format!("{BIN_DIR}/{name}"))).unwrap());
    assert!(ours == theirs);
}

/// No number sorts before `00-a`: what stands there is set aside.
#[test]
fn a_configuration_that_sorts_before_every_number() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    patient.write_conf("00-a.conf", r#"{"name":"b","type":"bridge"}"#);
    patient.healthy_after(&["conf-not-first", "00-a.conf (bridge), which sorts before"]);
    patient.write_conf("00-a.conf", r#"{"name":"b","type":"bridge"}"#);
    fs::remove_file(node.path(&format!("{CONF_DIR}/10-podwire.conf"))).unwrap();
    patient.healthy_after(&["no-conf", "no configuration names podwire"]);
    fs::remove_file(node.path(&format!("{CONF_DIR}/10-podwire.conflist"))).unwrap();
    patient.write_conf("00-q.conf", r#"{"name":"b","type":"bridge"}"#);
    patient.healthy_after(&["no-conf", "no configuration names podwire"]);
    assert!(patient.followed.last().unwrap().ends_with("--priority 00"));
}

#[test]
fn a_plugin_that_can_not_be_run_is_another_or_is_missing() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    let plugin = node.path(&format!("{BIN_DIR}/podwire-cni"));
    node.run("chmod", "644 /run/cni/bin/podwire-cni");
    patient.healthy_after(&["plugin-mode", "podwire-cni can't be run (mode 644)"]);
    assert_eq!(patient.followed, ["chmod 755 /run/cni/bin/podwire-cni"]);
    fs::write(&plugin, "theirs").unwrap();
    patient.healthy_after(&["plugin-not-ours", "something was copied over it"]);
    fs::remove_file(&plugin).unwrap();
    patient.healthy_after(&["plugin-missing", "podwire-cni is missing"]);
    patient.serves();
}

#[test]
fn a_directory_of_configurations_that_is_none() {
    let node = with_ovs();
    let patient = Patient::healthy(&node, AgentOptions::default());
    let directory = node.path(CONF_DIR);
    fs::remove_dir_all(&directory).unwrap();
    fs::write(&directory, "").unwrap();
    patient.complains_of("conf-unreadable", CONF_DIR);
}
