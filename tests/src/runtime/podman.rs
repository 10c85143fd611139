//! podman with its CNI backend, each call a process of its own as at a shell.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::enclosure::Enclosure;
use super::{CONFIGURATIONS, PLUGINS, configure_as, image, install_plugins};
use crate::failure::{Failure, Step};
use crate::process::{Finished, finish};
use crate::watch::{Watch, Woken};
use crate::words::Words;
use crate::{Place, TestNode};

const DIRECTORY: &str = "/run/podman";
const LIMIT: Duration = Duration::from_secs(60);

/// Reaps what podman leaves to the machine's first process, and says that it is there.
const REAP: &str = r#"sleep infinity & : >"$0/ready"; wait"#;

/// podman's settings on a node.
#[derive(Debug)]
pub struct Podman<'node> {
    node: &'node TestNode,
    enclosure: Enclosure,
}

impl<'node> Podman<'node> {
    /// Sets podman up with this network, whose name is to be `pods`, and loads
    /// [`IMAGE`](super::IMAGE).
    pub fn start(node: &'node TestNode, network: &Value) -> Result<Podman<'node>, Failure> {
        install_plugins(node)?;
        configure_as(node, network)?;
        let directory = node.path(DIRECTORY);
        std::fs::create_dir_all(&directory).step(|| "make podman's directory")?;
        for (name, text) in [
            ("containers.conf", containers()),
            ("storage.conf", storage()),
        ] {
            std::fs::write(directory.join(name), text).step(|| format!("write {name}"))?;
        }
        let changes = Watch::new(&directory)?;
        let enclosure = Enclosure::start(node, REAP, DIRECTORY, "podman")?;
        let until = Instant::now() + LIMIT;
        while !directory.join("ready").exists() {
            let left = until.saturating_duration_since(Instant::now());
            if changes.wait(enclosure.daemon().end(), left)? != Woken::Changed {
                return Err(Failure::Deadline {
                    awaited: "the first process of podman's namespace".into(),
                    waited: LIMIT - left,
                    seen: std::fs::read_to_string(enclosure.daemon().log()).unwrap_or_default(),
                });
            }
        }
        let podman = Podman { node, enclosure };
        let archive = image::write(node)?;
        podman.run(format!("load --quiet --input {archive}"))?;
        Ok(podman)
    }

    /// Runs podman with these arguments, and returns what it printed.
    pub fn run(&self, arguments: impl Words) -> Result<String, Failure> {
        let arguments = arguments.words();
        let command = format!("podman {}", arguments.join(" "));
        self.call(arguments)?.output(&command)
    }

    /// Runs podman with these arguments, however that ends.
    pub fn call(&self, arguments: impl Words) -> Result<Finished, Failure> {
        let first = self.enclosure.first_pid().unwrap_or_default();
        let mut command = Command::new("nsenter");
        command
            .args([
                "--target",
                &first.to_string(),
                "--pid",
                "--mount",
                "--",
                "podman",
            ])
            .args(arguments.words())
            .env("CONTAINERS_CONF", format!("{DIRECTORY}/containers.conf"))
            .env(
                "CONTAINERS_STORAGE_CONF",
                format!("{DIRECTORY}/storage.conf"),
            );
        self.node.place().run(|| finish(command, b"", LIMIT))
    }

    /// Starts a container of the network `pods` in the background, and returns its id.
    pub fn start_container(&self, name: &str) -> Result<String, Failure> {
        let parent = format!("--cgroup-parent={}", self.enclosure.cgroup());
        let id = self.run(format!(
            "run --detach --pull=never --network=pods {parent} --name {name} {}",
            super::IMAGE
        ))?;
        Ok(id.trim().to_owned())
    }

    /// Where a running container has its network.
    pub fn place(&self, name: &str) -> Result<Place, Failure> {
        let path = self.run(format!(
            "inspect --format {{{{.NetworkSettings.SandboxKey}}}} {name}"
        ))?;
        Ok(self.node.place().at_network(path.trim().as_ref()))
    }
}

/// Limits are told, for podman's own choice of them is more than a test's process may have.
fn containers() -> String {
    format!(
        r#"[containers]
apparmor_profile = "unconfined"
default_ulimits = ["nofile=1024:4096", "nproc=4096:4096"]
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "runc"
static_dir = "{DIRECTORY}/static"
tmp_dir = "{DIRECTORY}/tmp"
volume_path = "{DIRECTORY}/volumes"
[network]
network_backend = "cni"
cni_plugin_dirs = ["{PLUGINS}"]
network_config_dir = "{CONFIGURATIONS}"
"#
    )
}

fn storage() -> String {
    format!(
        "[storage]\ndriver = \"vfs\"\nrunroot = \"{DIRECTORY}/runroot\"\ngraphroot \
         = \"{DIRECTORY}/graphroot\"\n"
    )
}
