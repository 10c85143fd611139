//! The manifests of deploy/kubernetes: held to Kubernetes' own types field by field, and run as kubelet would, as far as that goes
//! without an image: the init step, the agent and the probes as processes in a root with what the image has, with the mounts,
//! the environment and the commands of the manifest.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]
mod image;
mod render;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use podwire_tests::{Agent, AgentOptions, TestNode};
use serde_json::Value;

use image::{HOST, Image, ROOT};
use render::{config, exact, manifests, of_kind, render};

const OVERLAYS: [&str; 3] = ["plain", "ovn", "multus"];

#[test]
fn every_field_is_one_that_kubernetes_knows_and_every_reference_leads_somewhere() {
    for overlay in OVERLAYS {
        let objects = render(&manifests().join("overlays").join(overlay));
        of_kind::<Namespace>(&objects, "Namespace");
        let account = of_kind::<ServiceAccount>(&objects, "ServiceAccount")
            .remove(0)
            .metadata;
        let role = of_kind::<ClusterRole>(&objects, "ClusterRole").remove(0);
        let binding = of_kind::<ClusterRoleBinding>(&objects, "ClusterRoleBinding").remove(0);
        assert_eq!(Some(binding.role_ref.name), role.metadata.name);
        let subject = binding.subjects.unwrap().remove(0);
        assert_eq!(
            (Some(subject.name), subject.namespace),
            (account.name.clone(), account.namespace.clone())
        );

        let daemonset = of_kind::<DaemonSet>(&objects, "DaemonSet").remove(0);
        assert_eq!(daemonset.metadata.namespace, account.namespace);
        let spec = daemonset.spec.unwrap();
        let labels = spec.template.metadata.unwrap().labels.unwrap();
        for (key, value) in spec.selector.match_labels.unwrap() {
            assert_eq!(labels.get(&key), Some(&value));
        }
        let pod = spec.template.spec.unwrap();
        assert_eq!(pod.service_account_name, account.name);
        let volumes: BTreeSet<String> = pod
            .volumes
            .iter()
            .flatten()
            .map(|volume| volume.name.clone())
            .collect();
        for container in pod
            .containers
            .iter()
            .chain(pod.init_containers.iter().flatten())
        {
            for mount in container.volume_mounts.iter().flatten() {
                assert!(
                    volumes.contains(&mount.name),
                    "{overlay}: no volume {}",
                    mount.name
                );
            }
        }
        assert!(
            config(&objects, "podwire")
                .keys()
                .all(|key| key.starts_with("PODWIRE_"))
        );
        config(&objects, "podwire-network");
    }
}

#[test]
fn the_agent_may_read_pods_and_tell_events_and_nothing_else() {
    let objects = render(&manifests().join("overlays/ovn"));
    let role = of_kind::<ClusterRole>(&objects, "ClusterRole").remove(0);
    let rules: Vec<String> = role
        .rules
        .unwrap()
        .into_iter()
        .map(|rule| {
            format!(
                "{:?} {:?} {:?}",
                rule.api_groups.unwrap(),
                rule.resources.unwrap(),
                rule.verbs
            )
        })
        .collect();
    assert_eq!(
        rules,
        [
            r#"[""] ["pods"] ["list", "watch"]"#,
            r#"["events.k8s.io"] ["events"] ["create", "patch"]"#
        ]
    );
}

#[test]
fn a_field_that_kubernetes_does_not_know_is_found() {
    let objects = render(&manifests().join("base"));
    let mut wrong = objects
        .iter()
        .find(|object| object["kind"] == "DaemonSet")
        .unwrap()
        .clone();
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = Value::Bool(true);
    assert!(std::panic::catch_unwind(|| exact::<DaemonSet>(&wrong)).is_err());
}

#[test]
fn init_step_agent_and_probes_work_with_the_mounts_of_the_manifest_and_without_a_shell() {
    let node = TestNode::new().unwrap();
    // As systemd has it; the fixture's own is private.
    node.run("mount", &["--make-rshared", "/run"]).unwrap();
    let image = Image::new(&node, "plain");
    assert!(!node.path(&format!("{ROOT}/bin/sh")).exists());

    let init = image.program("init", &image.pod.init_containers.as_ref().unwrap()[0]);
    let installed = image.run(&init);
    assert!(installed.status.success(), "{installed:?}");
    let plugin = format!("{HOST}/opt/cni/bin/podwire-cni");
    assert!(node.path(&plugin).exists());

    let container = &image.pod.containers[0];
    let probes = [&container.liveness_probe, &container.readiness_probe].map(|probe| {
        probe
            .as_ref()
            .unwrap()
            .exec
            .as_ref()
            .unwrap()
            .command
            .clone()
            .unwrap()
    });
    let [live, ready] = &probes;
    let start = image.program("agent", container);
    let options = AgentOptions {
        environment: image.environment.clone(),
        ..AgentOptions::default()
    }
    .under(&[start.to_str().unwrap()]);
    let agent = Agent::launch(&node, &options).unwrap();
    assert!(image.probe(&agent, live).status.success());
    let told = image.probe(&agent, ready);
    assert!(
        !told.status.success() && told.stderr.contains("db.sock"),
        "{told:?}"
    );
    let conf = format!("{HOST}/etc/cni/net.d/10-podwire.conflist");
    assert!(!node.path(&conf).exists());

    node.start_ovsdb_server().unwrap();
    node.start_vswitchd().unwrap();
    agent.await_log("10-podwire.conflist installed").unwrap();
    assert!(image.probe(&agent, ready).status.success());
    let list: Value = serde_json::from_str(&fs::read_to_string(node.path(&conf)).unwrap()).unwrap();
    let mut conf_of_call = list["plugins"][0].clone();
    conf_of_call["name"] = list["name"].clone();
    conf_of_call["cniVersion"] = "1.1.0".into();

    // Its namespace is mounted after the container's own mounts were made.
    let pod = node.pod("web").unwrap();
    for verb in ["ADD", "DEL"] {
        let run = pod
            .exec_binary(
                Path::new(&plugin),
                verb,
                conf_of_call.to_string().as_bytes(),
                &[],
            )
            .unwrap();
        run.success().unwrap();
    }
    agent.stop().unwrap();
    assert!(
        node.path(&conf).exists(),
        "pods keep their network while the agent is replaced"
    );
    node.leftovers().unwrap().assert_none();
}
