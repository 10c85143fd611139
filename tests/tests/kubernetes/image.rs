//! A container of the manifest as processes of a node.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, PodSpec, VolumeMount};
use podwire_tests::process::{Finished, finish};
use podwire_tests::{Agent, TestNode, agent_binary, plugin_binary};
use serde_json::Value;

use super::render::{config, manifests, pod_spec, render};

/// A container of the manifest as a process: a root with what the image has, below it the
/// manifest's mounts.
pub(super) struct Image<'node> {
    node: &'node TestNode,
    pub(super) pod: PodSpec,
    pub(super) environment: Vec<(String, String)>,
}

pub(super) const ROOT: &str = "/run/image";
/// Where the node has what is not below its own /run: the rest is the machine's.
pub(super) const HOST: &str = "/run/host";

impl<'node> Image<'node> {
    pub(super) fn new(node: &'node TestNode, overlay: &str) -> Image<'node> {
        let objects = render(&manifests().join("overlays").join(overlay));
        let network = node.path("/run/volumes/network");
        fs::create_dir_all(&network).unwrap();
        for (file, text) in config(&objects, "podwire-network") {
            fs::write(network.join(file), text).unwrap();
        }
        if overlay == "plain" {
            // The node role's part, which its own tests run.
            fs::create_dir_all(node.path("/run/podwire/node")).unwrap();
            let told = "subnets = [\"10.244.1.0/24\", \"fd00:10:244:1::/64\"]\n";
            fs::write(node.path("/run/podwire/node/agent.toml"), told).unwrap();
        }
        Image::of(node, &objects, "podwire", "node1")
    }

    /// The image for the DaemonSet among these objects, with the settings of the ConfigMap of this
    /// name, if it has any.
    pub(super) fn of(node: &'node TestNode, objects: &[Value], settings: &str, name: &str) -> Self {
        let mut environment = Vec::new();
        if !settings.is_empty() {
            environment.extend(config(objects, settings));
        }
        environment.push(("PODWIRE_NODE_NAME".into(), name.into()));
        let image = Image {
            node,
            pod: pod_spec(objects),
            environment,
        };
        image.fill();
        image
    }

    /// The container of this name.
    pub(super) fn container(&self, name: &str) -> &Container {
        let mut containers = self.pod.containers.iter();
        containers.find(|it| it.name == name).unwrap()
    }

    /// The image's root directory.
    fn fill(&self) {
        let rootfs = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/image/rootfs");
        let [agent, plugin] = [agent_binary(), plugin_binary()];
        let stripped = "/run/podwire.stripped";
        self.node.run(
            "strip",
            format!("-o {stripped} {}", agent.to_str().unwrap()),
        );
        self.node.run(
            rootfs,
            format!("{ROOT} {stripped} {}", plugin.to_str().unwrap()),
        );
    }

    /// Writes a program that is the container's start, and says where.
    pub(super) fn program(&self, name: &str, container: &Container) -> PathBuf {
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
            "#!/bin/bash\nset -e\nif [[ ${{INSIDE:-}} != 1 ]]; then INSIDE=1 exec unshare --mount \
             --propagation slave \"$0\"; fi\nmount --bind {ROOT} {ROOT}\n{}\nmount -t proc proc \
             {ROOT}/proc\nmount --rbind /dev {ROOT}/dev\nmount -o remount,bind,ro {ROOT}\nunset \
             INSIDE\nexec chroot {ROOT} {}\n",
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

    pub(super) fn run(&self, program: &Path) -> Finished {
        let mut command = Command::new(program);
        command.envs(self.environment.iter().cloned());
        self.node
            .place()
            .run(|| finish(command, b"", Duration::from_secs(60)))
            .unwrap()
    }

    /// Runs a probe's command in the container of this process.
    pub(super) fn probe(&self, agent: &Agent<'_>, command: &[String]) -> Finished {
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
    }
}
