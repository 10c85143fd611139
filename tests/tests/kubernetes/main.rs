//! The manifests of deploy/kubernetes: held to Kubernetes' own types field by field, and run as
//! kubelet would, as far as that goes without an image: the init step, the agent and the probes as
//! processes in a root with what the image has, with the mounts, the environment and the commands
//! of the manifest.

mod helm;
mod image;
mod installed;
mod node_role;
mod operated;
mod pods;
mod render;
mod rights;
mod served;
mod sets;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ServiceAccount, Toleration};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use podwire_tests::apiserver::{self, ApiServer, Request};
use podwire_tests::{Agent, AgentOptions, TestNode, agent_binary, process};
use serde_json::{Value, json};

use image::{HOST, Image, ROOT};
use render::{config, exact, manifests, of_kind, pod_spec, render};

const OVERLAYS: [&str; 3] = ["plain", "ovn", "multus"];

#[test]
fn every_field_is_one_that_kubernetes_knows_and_every_reference_leads_somewhere() {
    for overlay in OVERLAYS {
        let objects = render(&manifests().join("overlays").join(overlay));
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
fn every_field_of_the_settings_of_node_role_and_controller_is_one_that_kubernetes_knows() {
    for (part, name) in [
        ("node", "podwire-node"),
        ("controller", "podwire-controller"),
    ] {
        let objects = render(&manifests().with_file_name(part));
        assert!(!config(&objects, name).is_empty());
    }
}

#[test]
fn every_field_of_the_admission_policies_is_one_that_kubernetes_knows() {
    let objects = render(&manifests().with_file_name("admission"));
    let policies = of_kind::<ValidatingAdmissionPolicy>(&objects, "ValidatingAdmissionPolicy");
    let bindings =
        of_kind::<ValidatingAdmissionPolicyBinding>(&objects, "ValidatingAdmissionPolicyBinding");
    let names: Vec<_> = policies.into_iter().map(|it| it.metadata.name).collect();
    let bound: Vec<_> = bindings
        .into_iter()
        .map(|binding| binding.spec.unwrap().policy_name)
        .collect();
    assert_eq!(names, bound);
    assert_eq!(names.len(), 2);
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
            r#"[""] ["events"] ["create", "patch"]"#
        ]
    );
}

/// What the role has to name for a request: API group, resource, verb.
fn asked_for(request: &Request) -> [String; 3] {
    let mut path = request.path.split('/').skip(1);
    let group = match path.next() {
        Some("api") => String::new(),
        _ => path.next().unwrap().to_owned(),
    };
    let mut rest = path.skip(1).peekable();
    if rest.next_if_eq(&"namespaces").is_some() {
        rest.next();
    }
    let verb = match request.method.as_str() {
        "POST" => "create",
        "PATCH" => "patch",
        _ if request.is_watch() => "watch",
        _ => "list",
    };
    let resource = rest.next().unwrap();
    let subresource = rest.nth(1);
    let resource = subresource.map_or(resource.to_owned(), |sub| format!("{resource}/{sub}"));
    [group, resource, verb.to_owned()]
}

#[test]
fn what_the_agent_asks_the_api_server_for_its_role_allows() {
    let (node, server) = ApiServer::beside_a_node();
    let _agent = node.start_agent(&server.watched_by("n1", "5"));
    let pod = node.pod("web");
    let bad = json!({ "k8s.ovn.org/pod-networks": "{" });
    server.apply(apiserver::pod_on("n1", &pod, bad));
    pod.add().error();
    server.await_events("an Event", |events| !events.is_empty());
    let asked: BTreeSet<_> = server.requests().iter().map(asked_for).collect();
    let verbs: Vec<_> = asked.iter().map(|[_, _, verb]| verb.as_str()).collect();
    assert_eq!(verbs, ["create", "list", "watch"], "{asked:?}");
    let role = rules(&render(&manifests().join("overlays/ovn")));
    for request in asked {
        assert!(role.contains(&request), "{request:?}");
    }
}

/// What the only ClusterRole allows, as [`asked_for`] has it.
fn rules(objects: &[Value]) -> BTreeSet<[String; 3]> {
    let role = of_kind::<ClusterRole>(objects, "ClusterRole").remove(0);
    let mut all = BTreeSet::new();
    for rule in role.rules.unwrap() {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                let verbs = rule.verbs.iter();
                all.extend(verbs.map(|verb| [group, resource, verb].map(String::clone)));
            }
        }
    }
    all
}

#[test]
fn the_agent_is_on_every_node_in_its_own_network_with_what_is_the_nodes_mounted() {
    let daemonset =
        of_kind::<DaemonSet>(&render(&manifests().join("overlays/ovn")), "DaemonSet").remove(0);
    let pod = daemonset.spec.unwrap().template.spec.unwrap();
    assert_eq!(pod.host_network, Some(true));
    assert_eq!(pod.dns_policy.as_deref(), Some("ClusterFirstWithHostNet"));
    let of_everything = Toleration {
        operator: Some("Exists".into()),
        ..Toleration::default()
    };
    // A node is not ready before it has a network.
    assert!(pod.tolerations.unwrap().contains(&of_everything));
    // The agent takes up to 10 s to end.
    assert!(pod.termination_grace_period_seconds.unwrap() > 10);
    let (agent, init) = (&pod.containers[0], &pod.init_containers.unwrap()[0]);
    assert_eq!(agent.image, init.image, "the plugin is the agent's own");
    let name = agent
        .env
        .iter()
        .flatten()
        .find(|it| it.name == "PODWIRE_NODE_NAME");
    let source = name
        .unwrap()
        .value_from
        .as_ref()
        .unwrap()
        .field_ref
        .as_ref();
    assert_eq!(source.unwrap().field_path, "spec.nodeName");

    let volumes = pod.volumes.unwrap();
    let mut mounts: Vec<String> = agent
        .volume_mounts
        .iter()
        .flatten()
        .map(|mount| {
            let volume = volumes.iter().find(|it| it.name == mount.name).unwrap();
            let source = volume.host_path.as_ref().map_or("", |it| &it.path);
            let propagation = mount.mount_propagation.as_deref().unwrap_or("None");
            let mode = if mount.read_only == Some(true) {
                "ro"
            } else {
                "rw"
            };
            format!("{source} {} {mode} {propagation}", mount.mount_path)
        })
        .collect();
    mounts.sort();
    assert_eq!(
        mounts,
        [
            " /etc/podwire/network ro None",
            "/etc/cni/net.d /etc/cni/net.d rw None",
            "/etc/openvswitch /etc/openvswitch ro None",
            "/opt/cni/bin /opt/cni/bin ro None",
            "/run/netns /run/netns rw HostToContainer",
            "/run/netns /var/run/netns rw HostToContainer",
            "/run/openvswitch /run/openvswitch rw None",
            "/run/ovn /run/ovn rw None",
            "/run/podwire /run/podwire rw None",
            "/var/lib/cni /var/lib/cni rw None",
        ]
    );
}

#[test]
fn every_variable_is_a_setting_and_every_network_configuration_one_that_podwire_installs() {
    let node = TestNode::new();
    for overlay in OVERLAYS {
        let objects = render(&manifests().join("overlays").join(overlay));
        let settings = config(&objects, "podwire");
        let mut print = Command::new(agent_binary());
        print.args(["agent", "--print-config"]).env_clear();
        // As every pod has it from its cluster.
        print.env("PODWIRE_K8S_APISERVER", "https://192.0.2.1");
        print.env("PODWIRE_NODE_NAME", "n1").envs(&settings);
        let printed = run(&node, print);
        for key in settings.keys() {
            let origin = format!(" # ${key}");
            let is_known = printed.lines().any(|line| line.ends_with(&origin));
            assert!(is_known, "{overlay}: {key} is not in\n{printed}");
        }

        let mut confs = config(&objects, "podwire-network");
        if let Some(installed) = settings.get("PODWIRE_INSTALL_CONF") {
            let file = installed.strip_prefix("/etc/podwire/network/").unwrap();
            assert!(confs.contains_key(file), "{overlay}: {installed}");
        }
        for definition in objects
            .iter()
            .filter(|it| it["kind"] == "NetworkAttachmentDefinition")
        {
            let text = definition["spec"]["config"].as_str().unwrap();
            confs.insert("definition.conf".to_owned(), text.to_owned());
        }
        for (file, text) in confs {
            let path = format!("/run/{file}");
            fs::write(node.path(&path), text).unwrap();
            let mut install = Command::new(agent_binary());
            install.args([
                "install",
                "--conf-only",
                "--dry-run",
                "--root",
                "/run/scratch",
            ]);
            run(&node, {
                install.args(["--conf", &path]);
                install
            });
        }
    }
}

fn run(node: &TestNode, command: Command) -> String {
    let finish = || process::finish(command, b"", Duration::from_secs(60));
    let finished = node.place().run(finish).unwrap();
    finished.success("podwire")
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
    let node = TestNode::new();
    // As systemd has it; the fixture's own is private.
    node.run("mount", "--make-rshared /run");
    let image = Image::new(&node, "plain");
    assert!(!node.path(&format!("{ROOT}/bin/sh")).exists());

    let init = image.program("init", &image.pod.init_containers.as_ref().unwrap()[0]);
    let installed = image.run(&init);
    assert!(installed.status.success(), "{installed:?}");
    let plugin = format!("{HOST}/opt/cni/bin/podwire-cni");
    assert!(node.path(&plugin).exists());

    let container = image.container("agent");
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

    node.start_ovsdb_server();
    node.start_vswitchd();
    agent.await_log("10-podwire.conflist installed");
    assert!(image.probe(&agent, ready).status.success());
    // As docs/tools.md has it with kubectl exec: the image has no tar.
    let bundle = ["/usr/bin/podwire", "bundle", "-"].map(str::to_owned);
    let bundle = image.probe(&agent, &bundle);
    assert!(bundle.status.success(), "{}", bundle.stderr);
    assert!(bundle.stderr.contains("wrote - with"), "{}", bundle.stderr);
    let trace = ["/usr/bin/ovn-trace", "--version"].map(str::to_owned);
    let trace = image.probe(&agent, &trace);
    assert!(trace.stdout.starts_with("ovn-trace "), "{trace:?}");
    let list: Value = serde_json::from_str(&fs::read_to_string(node.path(&conf)).unwrap()).unwrap();
    let mut conf_of_call = list["plugins"][0].clone();
    conf_of_call["name"] = list["name"].clone();
    conf_of_call["cniVersion"] = "1.1.0".into();

    // Its namespace is mounted after the container's own mounts were made.
    let pod = node.pod("web");
    for verb in ["ADD", "DEL"] {
        let run = pod.exec_binary(
            Path::new(&plugin),
            verb,
            conf_of_call.to_string().as_bytes(),
            &[],
        );
        run.success();
    }
    agent.stop();
    assert!(
        node.path(&conf).exists(),
        "pods keep their network while the agent is replaced"
    );
    node.leftovers().assert_none();
}

#[test]
fn the_daemonset_that_uninstalls_takes_configuration_ports_and_plugin_off_the_node() {
    let node = TestNode::with_ovs();
    // As systemd has it; the fixture's own is private.
    node.run("mount", "--make-rshared /run");
    let mut image = Image::new(&node, "plain");
    image.run(&image.program("init", &image.pod.init_containers.as_ref().unwrap()[0]));
    let start = image.program("agent", image.container("agent"));
    let options = AgentOptions {
        environment: image.environment.clone(),
        ..AgentOptions::default()
    }
    .under(&[start.to_str().unwrap()]);
    let agent = Agent::start(&node, &options).unwrap();
    agent.await_log("10-podwire.conflist installed");
    let _pod = node.added_pod("web");

    image.pod = pod_spec(&render(&manifests().join("uninstall")));
    let containers = [
        &image.pod.init_containers.as_ref().unwrap()[0],
        &image.pod.containers[0],
    ];
    let words = containers.map(|container| container.command.clone().unwrap()[1..].join(" "));
    assert_eq!(
        words,
        [
            "uninstall --pods --await-agent --root /host",
            "uninstall --stay --root /host"
        ]
    );
    let done = image.run(&image.program("uninstall", containers[0]));
    assert!(done.status.success(), "{done:?}");
    for directory in ["etc/cni/net.d", "opt/cni/bin"] {
        let left = node.run("ls", format!("{HOST}/{directory}"));
        assert_eq!(left, "", "{directory}");
    }
    agent.await_log("10-podwire.conflist was removed");
    node.leftovers().assert_none();

    let stays = node.podwire_live(format!("uninstall --stay --root {HOST}"));
    stays.await_line(&["left: the agent and its units"]);
    stays.terminate();
    assert!(stays.await_end().success());
}
