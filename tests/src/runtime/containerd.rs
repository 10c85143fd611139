//! containerd, driven over CRI as kubelet drives it.
//!
//! It runs below a small shell that starts it again when it was killed, as a service manager would.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::enclosure::Enclosure;
use super::{CONFIGURATIONS, IMAGE, PLUGINS, configure_as, image, install_plugins};
use crate::cri::{Cri, DnsConfig, LinuxPodSandboxConfig, PodSandboxConfig, PodSandboxMetadata};
use crate::failure::{Failure, Step};
use crate::process;
use crate::watch::{Watch, Woken};
use crate::{Place, TestNode, random};

const DIRECTORY: &str = "/run/containerd";
const SOCKET: &str = "/run/containerd/containerd.sock";

/// containerd starts in half a second on an idle machine.
const LIMIT: Duration = Duration::from_secs(60);

/// What the supervisor runs: containerd, again for as long as it ends by a signal.
const SUPERVISE: &str = r#"until containerd --config "$0"; do [ $? -gt 128 ] || exit 1; done"#;

/// A running containerd. Dropping it ends it and all its sandboxes.
#[derive(Debug)]
pub struct Containerd<'node> {
    node: &'node TestNode,
    cri: Cri,
    enclosure: Enclosure,
}

impl<'node> Containerd<'node> {
    /// Starts containerd with this network, and waits until it says that its network is ready.
    pub fn start(node: &'node TestNode, network: &Value) -> Result<Containerd<'node>, Failure> {
        install_plugins(node)?;
        configure_as(node, network)?;
        let containerd = Containerd::without_network(node)?;
        containerd.await_network()?;
        Ok(containerd)
    }

    /// Starts containerd with what is installed on the node, and waits until it serves.
    pub fn without_network(node: &'node TestNode) -> Result<Containerd<'node>, Failure> {
        let config = format!("{DIRECTORY}/config.toml");
        std::fs::create_dir_all(node.path(DIRECTORY)).step(|| "make containerd's directory")?;
        std::fs::write(node.path(&config), toml()).step(|| "write containerd's configuration")?;
        // One that is not there can't be watched.
        std::fs::create_dir_all(node.path(CONFIGURATIONS))
            .step(|| "make the configurations' directory")?;
        let enclosure = Enclosure::start(node, SUPERVISE, &config, "containerd")?;
        let cri = Cri::at(node.path(SOCKET));
        let containerd = Containerd {
            node,
            cri,
            enclosure,
        };
        containerd.await_condition("RuntimeReady")?;
        let archive = image::write(node)?;
        // containerd 2 imports in the daemon, which has no unpacker for `native`; 1.6 has no such
        // flag.
        let help = node.run("ctr", "images import --help");
        let local = if help.contains("--local") {
            "--local"
        } else {
            ""
        };
        node.run(
            "ctr",
            format!(
                "--address {SOCKET} --namespace k8s.io images import {local} --snapshotter native \
                 {archive}"
            ),
        );
        Ok(containerd)
    }

    /// Waits until containerd says that its network is ready.
    pub fn await_network(&self) -> Result<(), Failure> {
        self.await_condition("NetworkReady")
    }

    /// Its CRI.
    pub fn cri(&self) -> &Cri {
        &self.cri
    }

    /// A sandbox' configuration for a pod of the namespace `tests`, with a fresh uid.
    pub fn pod(&self, name: &str) -> PodSandboxConfig {
        PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: name.into(),
                uid: random::uuid(),
                namespace: "tests".into(),
                attempt: 0,
            }),
            hostname: name.into(),
            // Else the machine's own resolv.conf would be copied, which a machine without one
            // lacks.
            dns_config: Some(DnsConfig {
                servers: vec!["192.0.2.53".into()],
            }),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: self.enclosure.cgroup(),
            }),
            ..PodSandboxConfig::default()
        }
    }

    /// Where a running sandbox has its network.
    pub fn place(&self, sandbox: &str) -> Result<Place, Failure> {
        let netns = self.netns(sandbox)?;
        Ok(self.node.place().at_network(Path::new(&netns)))
    }

    /// The path of a running sandbox' network namespace on the node.
    pub fn netns(&self, sandbox: &str) -> Result<String, Failure> {
        let (_, info) = self.cri.pod_sandbox_status(sandbox)?;
        let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array();
        let network = namespaces
            .into_iter()
            .flatten()
            .find(|namespace| namespace["type"] == "network");
        let path = network.and_then(|namespace| namespace["path"].as_str());
        path.map(str::to_owned).ok_or_else(|| Failure::Unlike {
            object: format!("the sandbox {sandbox}"),
            expected: "a network namespace".into(),
            seen: info.to_string(),
        })
    }

    /// Kills containerd, and waits until its supervisor has started another that serves. Sandboxes
    /// live on.
    pub fn kill_and_restart(&self) -> Result<(), Failure> {
        let old = self.pid()?;
        kill(Pid::from_raw(old), Signal::SIGKILL).step(|| "kill containerd")?;
        self.await_answer("another one", || Ok(self.pid().is_ok_and(|pid| pid != old)))?;
        self.await_network()
    }

    fn pid(&self) -> Result<i32, Failure> {
        let processes = process::with_environment(&self.node.process_mark())?;
        let containerd = processes
            .into_iter()
            .find(|process| process.name == "containerd");
        containerd
            .map(|process| process.pid)
            .ok_or_else(|| Failure::Unlike {
                object: "the node's processes".into(),
                expected: "containerd among them".into(),
                seen: "none".into(),
            })
    }

    /// Waits until containerd says this of itself.
    fn await_condition(&self, condition: &str) -> Result<(), Failure> {
        self.await_answer(condition, || {
            let conditions = self.cri.conditions()?;
            Ok(conditions
                .iter()
                .any(|seen| seen.r#type == condition && seen.status))
        })
    }

    /// Asks again each time when containerd logs something. That it serves by now it need not log,
    /// so the question is also repeated.
    fn await_answer(
        &self,
        awaited: &str,
        wanted: impl Fn() -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        const REPEAT: Duration = Duration::from_millis(50);
        let log = Watch::new(self.enclosure.daemon().log())?;
        let until = Instant::now() + LIMIT;
        loop {
            let seen = match wanted() {
                Ok(true) => return Ok(()),
                Ok(false) => "not yet".to_owned(),
                Err(failure) => failure.to_string(),
            };
            let left = until.saturating_duration_since(Instant::now());
            let woken = log.wait(self.enclosure.daemon().end(), left.min(REPEAT))?;
            if woken == Woken::Ended || left.is_zero() {
                let log =
                    std::fs::read_to_string(self.enclosure.daemon().log()).unwrap_or_default();
                return Err(Failure::Deadline {
                    awaited: format!("containerd: {awaited}"),
                    waited: LIMIT - left,
                    seen: format!("{seen}; its log says:\n{log}"),
                });
            }
        }
    }
}

/// containerd's own configuration. `native` needs nothing of the file system, and a machine for
/// tests has perhaps no AppArmor.
fn toml() -> String {
    format!(
        r#"version = 2
root = "{DIRECTORY}/root"
state = "{DIRECTORY}/state"
disabled_plugins = [
    "io.containerd.internal.v1.restart", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[grpc]
address = "{SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
path = "{DIRECTORY}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{IMAGE}"
disable_apparmor = true
restrict_oom_score_adj = true
stream_server_address = "127.0.0.1"
stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{PLUGINS}"
conf_dir = "{CONFIGURATIONS}"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"#
    )
}
