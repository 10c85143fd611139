//! The manifests of deploy/kubernetes: held to Kubernetes' own types field by field, and run as kubelet would, as far as that goes
//! without an image: the init step, the agent and the probes as processes in a root with what the image has, with the mounts,
//! the environment and the commands of the manifest.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use k8s_openapi::DeepMerge;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, Namespace, PodSpec, ServiceAccount, VolumeMount,
};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use podwire_tests::process::{Finished, finish};
use podwire_tests::{Agent, AgentOptions, TestNode, agent_binary, plugin_binary};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

const OVERLAYS: [&str; 3] = ["plain", "ovn", "multus"];

/// Of kustomize what the overlays use, and no more.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[expect(dead_code, reason = "named so that they are known")]
struct Kustomization {
    api_version: String,
    kind: String,
    resources: Vec<String>,
    #[serde(default)]
    patches: Vec<Patch>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Patch {
    path: String,
}

fn manifests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes")
}

fn documents(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    let documents = text.split("\n---\n");
    documents
        .map(|text| {
            serde_saphyr::from_str(text)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        })
        .collect()
}

/// As `kubectl kustomize` renders a directory: its resources, and the patches merged by Kubernetes' own rules.
fn render(directory: &Path) -> Vec<Value> {
    let text = fs::read_to_string(directory.join("kustomization.yaml")).unwrap();
    let this: Kustomization = serde_saphyr::from_str(&text).unwrap();
    let mut objects = Vec::new();
    for resource in &this.resources {
        let path = directory.join(resource);
        objects.extend(if path.is_dir() {
            render(&path)
        } else {
            documents(&path)
        });
    }
    for patch in &this.patches {
        for patch in documents(&directory.join(&patch.path)) {
            let target = objects.iter_mut().find(|it| id(it) == id(&patch));
            let target = target.unwrap_or_else(|| panic!("nothing to patch: {patch}"));
            *target = match patch["kind"].as_str().unwrap() {
                "DaemonSet" => merged::<DaemonSet>(target, &patch),
                "ConfigMap" => merged::<ConfigMap>(target, &patch),
                kind => panic!("no rule to merge a {kind}"),
            };
        }
    }
    objects
}

fn id(object: &Value) -> (String, String) {
    (
        object["kind"].to_string(),
        object["metadata"]["name"].to_string(),
    )
}

fn merged<T: DeepMerge + DeserializeOwned + Serialize>(base: &Value, patch: &Value) -> Value {
    let mut object: T = exact(base);
    object.merge_from(exact(patch));
    serde_json::to_value(object).unwrap()
}

/// An object of Kubernetes' type, of which every field that is written is one that the type has.
fn exact<T: DeserializeOwned + Serialize>(written: &Value) -> T {
    let object: T = serde_json::from_value(written.clone())
        .unwrap_or_else(|error| panic!("{error}: {written}"));
    let known = serde_json::to_value(&object).unwrap();
    assert_known(written, &known, "");
    object
}

fn assert_known(written: &Value, known: &Value, place: &str) {
    match (written, known) {
        (Value::Object(written), Value::Object(known)) => {
            for (field, value) in written {
                let place = format!("{place}.{field}");
                let known = known
                    .get(field)
                    .unwrap_or_else(|| panic!("Kubernetes has no {place}"));
                assert_known(value, known, &place);
            }
        }
        (Value::Array(written), Value::Array(known)) => {
            for (number, (written, known)) in written.iter().zip(known).enumerate() {
                assert_known(written, known, &format!("{place}[{number}]"));
            }
        }
        _ => assert_eq!(written, known, "{place}"),
    }
}

fn of_kind<T: DeserializeOwned + Serialize>(objects: &[Value], kind: &str) -> Vec<T> {
    let objects = objects.iter().filter(|object| object["kind"] == kind);
    objects.map(exact).collect()
}

fn pod_spec(objects: &[Value]) -> PodSpec {
    let daemonset = of_kind::<DaemonSet>(objects, "DaemonSet").remove(0);
    daemonset.spec.unwrap().template.spec.unwrap()
}

fn config(objects: &[Value], name: &str) -> BTreeMap<String, String> {
    let maps = of_kind::<ConfigMap>(objects, "ConfigMap");
    let map = maps
        .into_iter()
        .find(|map| map.metadata.name.as_deref() == Some(name));
    map.unwrap().data.unwrap()
}

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

/// A container of the manifest as a process: a root with what the image has, below it the manifest's mounts.
struct Image<'node> {
    node: &'node TestNode,
    pod: PodSpec,
    environment: Vec<(String, String)>,
}

const ROOT: &str = "/run/image";
/// Where the node has what is not below its own /run: the rest is the machine's.
const HOST: &str = "/run/host";

impl<'node> Image<'node> {
    fn new(node: &'node TestNode, overlay: &str) -> Image<'node> {
        let objects = render(&manifests().join("overlays").join(overlay));
        let network = node.path("/run/volumes/network");
        fs::create_dir_all(&network).unwrap();
        for (file, text) in config(&objects, "podwire-network") {
            fs::write(network.join(file), text).unwrap();
        }
        let mut environment: Vec<_> = config(&objects, "podwire").into_iter().collect();
        environment.push(("PODWIRE_NODE_NAME".into(), "node1".into()));
        let image = Image {
            node,
            pod: pod_spec(&objects),
            environment,
        };
        image.fill();
        image
    }

    /// deploy/Containerfile: the two binaries, on what distroless/cc has of a Debian.
    fn fill(&self) {
        let agent = agent_binary().unwrap();
        let libraries = self.node.run("ldd", &[agent.to_str().unwrap()]).unwrap();
        let libraries = libraries
            .split_whitespace()
            .filter(|word| word.starts_with('/'));
        for library in libraries {
            self.node
                .run("install", &["-D", library, &format!("{ROOT}{library}")])
                .unwrap();
        }
        for directory in ["usr/bin", "usr/lib/podwire", "proc", "dev", "run", "var"] {
            fs::create_dir_all(self.node.path(&format!("{ROOT}/{directory}"))).unwrap();
        }
        self.node
            .run("ln", &["-s", "../run", &format!("{ROOT}/var/run")])
            .unwrap();
        let binary = format!("{ROOT}/usr/bin/podwire");
        self.node
            .run("strip", &["-o", &binary, agent.to_str().unwrap()])
            .unwrap();
        let plugin = plugin_binary().unwrap();
        fs::copy(
            plugin,
            self.node
                .path(&format!("{ROOT}/usr/lib/podwire/podwire-cni")),
        )
        .unwrap();
    }

    /// Writes a program that is the container's start, and says where.
    fn program(&self, name: &str, container: &Container) -> PathBuf {
        let mounts: Vec<String> = container
            .volume_mounts
            .iter()
            .flatten()
            .map(|mount| self.mount(mount))
            .collect();
        let command: Vec<String> = container
            .command
            .iter()
            .flatten()
            .map(|word| format!("'{word}'"))
            .collect();
        let script = format!(
            "#!/bin/bash\nset -e\nif [[ ${{INSIDE:-}} != 1 ]]; then INSIDE=1 exec unshare --mount --propagation slave \"$0\"; fi\n\
             mount --bind {ROOT} {ROOT}\n{}\nmount -t proc proc {ROOT}/proc\nmount --rbind /dev {ROOT}/dev\n\
             mount -o remount,bind,ro {ROOT}\nunset INSIDE\nexec chroot {ROOT} {}\n",
            mounts.join("\n"),
            command.join(" ")
        );
        let path = format!("/run/{name}");
        fs::write(self.node.path(&path), script).unwrap();
        fs::set_permissions(self.node.path(&path), fs::Permissions::from_mode(0o755)).unwrap();
        path.into()
    }

    fn mount(&self, mount: &VolumeMount) -> String {
        let volume = self
            .pod
            .volumes
            .iter()
            .flatten()
            .find(|volume| volume.name == mount.name)
            .unwrap();
        let source = match &volume.host_path {
            Some(host) if host.path.starts_with("/run/") => host.path.clone(),
            Some(host) => format!("{HOST}{}", host.path),
            None => format!("/run/volumes/{}", volume.name),
        };
        let target = format!("{ROOT}{}", mount.mount_path);
        // Kubernetes' default is that nothing propagates.
        let propagation = match mount.mount_propagation.as_deref() {
            Some("HostToContainer") => "rslave",
            None => "rprivate",
            Some(other) => panic!("{other} is more than is needed"),
        };
        let mut script = format!(
            "mkdir -p {source} {target}\nmount --rbind --make-{propagation} {source} {target}"
        );
        if mount.read_only == Some(true) {
            script += &format!("\nmount -o remount,bind,ro {target}");
        }
        script
    }

    fn run(&self, program: &Path) -> Finished {
        let mut command = Command::new(program);
        command.envs(self.environment.iter().cloned());
        self.node
            .place()
            .run(|| finish(command, b"", Duration::from_secs(60)))
            .unwrap()
            .unwrap()
    }

    /// Runs a probe's command in the container of this process.
    fn probe(&self, agent: &Agent<'_>, command: &[String]) -> Finished {
        let mut entered = Command::new("nsenter");
        entered
            .args([
                "--target",
                &agent.pid().to_string(),
                "--mount",
                "--root",
                "--wd",
            ])
            .args(command);
        self.node
            .place()
            .run(|| finish(entered, b"", Duration::from_secs(60)))
            .unwrap()
            .unwrap()
    }
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
    let options = AgentOptions {
        program: Some(image.program("agent", container)),
        environment: image.environment.clone(),
        ..AgentOptions::default()
    };
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
