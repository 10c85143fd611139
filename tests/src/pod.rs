//! A pod sandbox, and the runtime that execs the plugin for it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Map, Value, json};

use crate::failure::{Failure, OrFail, Step};
use crate::node::run_in;
use crate::place::Place;
use crate::plugin::{ANNOTATIONS, PluginRun, conf};
use crate::process::finish;
use crate::words::Words;
use crate::{TestNode, annotation, plugin_binary, random};

/// Longer than every deadline of the plugin itself.
const PLUGIN_LIMIT: Duration = Duration::from_secs(150);

/// A pod sandbox of a node: a network namespace, bind-mounted where containerd puts it, and the
/// identity that the runtime tells the plugin. The namespace goes when the pod is dropped; what the
/// plugin made for it does not, unless it lives in there.
#[derive(Debug)]
pub struct Pod<'node> {
    node: &'node TestNode,
    place: Place,
    /// K8S_POD_NAMESPACE.
    pub namespace: String,
    /// K8S_POD_NAME.
    pub name: String,
    /// K8S_POD_UID.
    pub uid: String,
    /// CNI_CONTAINERID.
    pub container: String,
    /// CNI_NETNS, as a path on the node.
    pub netns: String,
    /// CNI_IFNAME.
    pub interface: String,
    /// What the runtime hands over as the pod's annotations.
    pub annotations: BTreeMap<String, String>,
}

impl<'node> Pod<'node> {
    /// A sandbox of the pod `tests/<name>`, with a fresh container id and pod uid.
    pub fn new(node: &'node TestNode, name: &str) -> Result<Pod<'node>, Failure> {
        let place = node.place().with_new_network();
        let netns = format!("/run/netns/cni-{}", random::uuid());
        place.run(|| pin_network(&netns))?;
        Ok(Pod {
            node,
            place,
            namespace: "tests".into(),
            name: name.into(),
            uid: random::uuid(),
            container: random::container_id(),
            netns,
            interface: "eth0".into(),
            annotations: BTreeMap::new(),
        })
    }

    /// A further sandbox of the same pod, as kubelet's retry makes it.
    #[track_caller]
    pub fn another_sandbox(&self) -> Pod<'node> {
        let mut pod = Pod::new(self.node, &self.name).or_fail();
        pod.namespace.clone_from(&self.namespace);
        pod.uid.clone_from(&self.uid);
        pod.annotations.clone_from(&self.annotations);
        pod
    }

    /// Adds an annotation.
    pub fn annotate(mut self, key: &str, value: &Value) -> Pod<'node> {
        self.annotations.insert(key.into(), value.to_string());
        self
    }

    /// Adds `k8s.ovn.org/pod-networks` with this entry for the default network.
    pub fn on_default_network(self, entry: &Value) -> Pod<'node> {
        self.annotate(annotation::POD_NETWORKS, &json!({ "default": entry }))
    }

    /// The node that it is on.
    pub fn node(&self) -> &'node TestNode {
        self.node
    }

    /// Where the pod's processes run.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The host end of its first interface; the port has the same name.
    pub fn host_link(&self) -> &str {
        &self.container[..15]
    }

    /// Runs a program in the pod's network namespace and returns its standard output.
    #[track_caller]
    pub fn run(&self, program: &str, arguments: impl Words) -> String {
        run_in(&self.place, program, arguments).or_fail()
    }

    /// Takes the namespace away from under the pod, as a runtime or a reboot of the sandbox does
    /// before a late DEL. [`Pod::place`] is the node's own from then on.
    #[track_caller]
    pub fn remove_netns(&mut self) {
        self.place = self.node.place().clone();
        self.node
            .place()
            .run(|| unpin_network(&self.netns))
            .or_fail()
    }

    /// ADD with the minimal configuration.
    #[track_caller]
    pub fn add(&self) -> PluginRun {
        self.exec("ADD", &conf())
    }

    /// CHECK with the minimal configuration and the ADD's result.
    #[track_caller]
    pub fn check(&self, result: &Value) -> PluginRun {
        let mut conf = conf();
        conf["prevResult"] = result.clone();
        self.exec("CHECK", &conf)
    }

    /// DEL with the minimal configuration and no prevResult.
    #[track_caller]
    pub fn del(&self) -> PluginRun {
        self.exec("DEL", &conf())
    }

    /// Execs the plugin for this pod; the annotations go into the configuration's runtimeConfig.
    #[track_caller]
    pub fn exec(&self, command: &str, conf: &Value) -> PluginRun {
        self.exec_with(
            command,
            self.with_annotations(conf).to_string().as_bytes(),
            &[],
        )
    }

    /// Execs the plugin for this pod with exactly this input and with changes to its environment:
    /// `None` takes a variable away.
    #[track_caller]
    pub fn exec_with(
        &self,
        command: &str,
        stdin: &[u8],
        changes: &[(&str, Option<&str>)],
    ) -> PluginRun {
        self.exec_binary(&plugin_binary(), command, stdin, changes)
    }

    /// [`Pod::exec_with`] of another plugin binary.
    #[track_caller]
    pub fn exec_binary(
        &self,
        binary: &Path,
        command: &str,
        stdin: &[u8],
        changes: &[(&str, Option<&str>)],
    ) -> PluginRun {
        let mut plugin = Command::new(binary);
        plugin.current_dir("/").envs(self.environment(command));
        for (variable, value) in changes {
            match value {
                Some(value) => plugin.env(variable, value),
                None => plugin.env_remove(variable),
            };
        }
        let finished = self
            .node
            .place()
            .run(|| finish(plugin, stdin, PLUGIN_LIMIT))
            .or_fail();
        PluginRun {
            command: command.into(),
            container: self.container.clone(),
            finished,
        }
    }

    /// Starts the plugin for this pod and leaves it running: for a test that kills it.
    #[track_caller]
    pub fn spawn(&self, command: &str, conf: &Value) -> Child {
        let mut plugin = Command::new(plugin_binary());
        plugin
            .current_dir("/")
            .envs(self.environment(command))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let spawned = self.node.place().run(|| plugin.spawn());
        let mut child = spawned.step(|| "start the plugin").or_fail();
        if let Some(mut stdin) = child.stdin.take() {
            let text = self.with_annotations(conf).to_string();
            stdin
                .write_all(text.as_bytes())
                .step(|| "write the plugin's input")
                .or_fail();
        }
        child
    }

    /// The variables that containerd adds to its own environment, CNI_ARGS in random order: it
    /// keeps them in a map.
    pub fn environment(&self, command: &str) -> Vec<(&'static str, String)> {
        let mut arguments = [
            "IgnoreUnknown=1".to_owned(),
            format!("K8S_POD_NAMESPACE={}", self.namespace),
            format!("K8S_POD_NAME={}", self.name),
            format!("K8S_POD_INFRA_CONTAINER_ID={}", self.container),
            format!("K8S_POD_UID={}", self.uid),
        ];
        random::shuffle(&mut arguments);
        vec![
            ("CNI_COMMAND", command.to_owned()),
            ("CNI_CONTAINERID", self.container.clone()),
            ("CNI_NETNS", self.netns.clone()),
            ("CNI_IFNAME", self.interface.clone()),
            ("CNI_ARGS", arguments.join(";")),
            ("CNI_PATH", "/usr/lib/cni".to_owned()),
        ]
    }

    fn with_annotations(&self, conf: &Value) -> Value {
        let mut conf = conf.clone();
        let declared = conf["capabilities"][ANNOTATIONS] == true;
        if declared && !self.annotations.is_empty() {
            let runtime = conf.as_object_mut().map(|conf| {
                conf.entry("runtimeConfig")
                    .or_insert_with(|| Map::new().into())
            });
            if let Some(runtime) = runtime {
                runtime[ANNOTATIONS] = json!(self.annotations);
            }
        }
        conf
    }
}

impl TestNode {
    /// A sandbox of the pod `tests/pod<number>`, annotated with what [`annotation::entry`] has for
    /// this number.
    #[track_caller]
    pub fn numbered_pod(&self, number: u8) -> Pod<'_> {
        let pod = Pod::new(self, &format!("pod{number}")).or_fail();
        pod.on_default_network(&annotation::entry(number))
    }

    /// A sandbox of the pod `tests/<name>` after an ADD that succeeded.
    #[track_caller]
    pub fn added_pod(&self, name: &str) -> Pod<'_> {
        let pod = self.pod(name);
        pod.add().success();
        pod
    }

    /// [`TestNode::numbered_pod`] after an ADD that succeeded.
    #[track_caller]
    pub fn wired_pod(&self, number: u8) -> Pod<'_> {
        let pod = self.numbered_pod(number);
        pod.add().success();
        pod
    }
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        // Fails only when the namespace has been unmounted before; all is gone with the node
        // anyway.
        let _ = self.node.place().run(|| unpin_network(&self.netns));
    }
}

/// Bind-mounts the calling thread's network namespace on `path`.
fn pin_network(path: &str) -> Result<(), Failure> {
    std::fs::write(path, "").step(|| format!("make {path}"))?;
    mount(
        Some("/proc/thread-self/ns/net"),
        path,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .step(|| format!("mount the network namespace on {path}"))
}

fn unpin_network(path: &str) -> Result<(), Failure> {
    umount2(path, MntFlags::MNT_DETACH).step(|| format!("unmount {path}"))?;
    std::fs::remove_file(path).step(|| format!("remove {path}"))
}
