//! Pods of the manifests as processes of machines: each container with the image's root, below it
//! the manifest's mounts, and the manifest's command, environment and capabilities, in a PID
//! namespace of its own, as kubelet and a runtime would start it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVar, PodSpec, Probe, Secret, Volume};
use nix::sys::signal::Signal;
use podwire_tests::TestNode;
use podwire_tests::process::{Daemon, Finished, finish};
use serde_json::Value;

use super::image::HOST;
use super::render::exact;

/// How long a command in a container may take: longer than the deadlines of the manifests' own.
const LIMIT: Duration = Duration::from_secs(90);

/// A machine of the cluster, with the image that all its containers have.
pub(super) struct Host<'h> {
    pub(super) node: &'h TestNode,
    pub(super) name: &'h str,
    pub(super) address: String,
    pub(super) image: &'h Path,
}

/// A pod on a machine.
pub(super) struct PodOn<'h> {
    host: &'h Host<'h>,
    objects: &'h [Value],
    workload: &'h str,
    spec: PodSpec,
}

/// A container that was started. Dropping it kills it, with all its processes.
pub(super) struct Running<'h> {
    host: &'h Host<'h>,
    container: Container,
    environment: BTreeMap<String, String>,
    daemon: Daemon,
}

impl<'h> PodOn<'h> {
    /// A pod of the workload of this name among the objects.
    pub(super) fn new(host: &'h Host<'h>, objects: &'h [Value], workload: &'h str) -> Self {
        let is_it =
            |it: &&Value| it["metadata"]["name"] == workload && it["spec"]["template"].is_object();
        let object = objects.iter().find(is_it).unwrap();
        let spec = exact(&object["spec"]["template"]["spec"]);
        let pod = PodOn {
            host,
            objects,
            workload,
            spec,
        };
        for volume in pod.spec.volumes.iter().flatten() {
            pod.fill(volume);
        }
        pod
    }

    fn named(&self, kind: &str, name: &str) -> Option<&Value> {
        let mut objects = self.objects.iter();
        objects.find(|it| it["kind"] == kind && it["metadata"]["name"] == name)
    }

    /// Where the machine has a volume.
    fn place(&self, volume: &Volume) -> String {
        match &volume.host_path {
            Some(host) if host.path.starts_with("/etc/") => format!("{HOST}{}", host.path),
            Some(host) => host.path.clone(),
            None => format!("/run/volumes/{}/{}", self.workload, volume.name),
        }
    }

    fn fill(&self, volume: &Volume) {
        let place = self.host.node.path(&self.place(volume));
        fs::create_dir_all(&place).unwrap();
        let mut files = BTreeMap::new();
        let mut mode = 0o644;
        if let Some(source) = &volume.config_map {
            let map: ConfigMap = exact(self.named("ConfigMap", &source.name).unwrap());
            let data = map.data.unwrap().into_iter();
            files.extend(data.map(|(name, text)| (name, text.into_bytes())));
        } else if let Some(source) = &volume.secret {
            let name = source.secret_name.as_deref().unwrap();
            let secret = self.named("Secret", name).map(exact::<Secret>);
            assert!(secret.is_some() || source.optional == Some(true), "{name}");
            let data = secret.into_iter().flat_map(|it| it.data.unwrap());
            files.extend(data.map(|(name, bytes)| (name, bytes.0)));
            mode = u32::try_from(source.default_mode.unwrap()).unwrap();
        }
        for (name, bytes) in files {
            let file = place.join(name);
            fs::write(&file, bytes).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        }
    }

    /// Runs the init containers one after the other; each must succeed.
    #[track_caller]
    pub(super) fn init(&self) {
        for container in self.spec.init_containers.iter().flatten() {
            self.launch(container).succeed();
        }
    }

    /// Starts an init container, or another one.
    #[track_caller]
    pub(super) fn start(&self, name: &str) -> Running<'h> {
        let mut containers = self.spec.init_containers.iter().flatten();
        let mut others = self.spec.containers.iter();
        let container = containers.find(|it| it.name == name);
        let container = container.or_else(|| others.find(|it| it.name == name));
        self.launch(container.unwrap())
    }

    /// The names of its containers.
    pub(super) fn containers(&self) -> Vec<&str> {
        let names = self.spec.containers.iter();
        names.map(|it| it.name.as_str()).collect()
    }

    fn launch(&self, container: &Container) -> Running<'h> {
        let environment = self.environment(container);
        let mut script = "#!/bin/bash\nset -e\nif [[ ${INSIDE:-} != 1 ]]; then INSIDE=1 exec \
             unshare --mount --pid --fork --kill-child --propagation slave \"$0\"; fi\nunset \
             INSIDE\n"
            .to_owned();
        let root = self.host.image.display();
        script += &format!("mount --bind {root} {root}\n");
        for mount in container.volume_mounts.iter().flatten() {
            let mut volumes = self.spec.volumes.iter().flatten();
            let volume = volumes.find(|it| it.name == mount.name).unwrap();
            let (source, target) = (self.place(volume), format!("{root}{}", mount.mount_path));
            script += &format!("mkdir -p {target}\nmount --bind {source} {target}\n");
            if mount.read_only == Some(true) {
                script += &format!("mount -o remount,bind,ro {target}\n");
            }
        }
        script += &format!("mount -t proc proc {root}/proc\nmount --rbind /dev {root}/dev\n");
        let security = container.security_context.as_ref().unwrap();
        assert_eq!(security.read_only_root_filesystem, Some(true));
        script += &format!("mount -o remount,bind,ro {root}\nexec");
        if security.privileged != Some(true) {
            let capabilities = security.capabilities.as_ref().unwrap();
            assert_eq!(capabilities.drop.as_deref(), Some(&["ALL".to_owned()][..]));
            // chroot needs one itself.
            let added = capabilities.add.iter().flatten();
            let added: String = added.map(|it| format!(",+{}", it.to_lowercase())).collect();
            script += &format!(" setpriv --inh-caps=-all --bounding-set=-all,+sys_chroot{added}");
        }
        script += &format!(" chroot {root}");
        for word in container.command.iter().chain(&container.args).flatten() {
            script += &format!(" '{}'", expanded(word, &environment));
        }
        let name = format!("{}-{}", self.workload, container.name);
        let path = PathBuf::from(format!("/run/{name}"));
        let file = self.host.node.path(path.to_str().unwrap());
        fs::write(&file, script + "\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = Command::new(path);
        command.env_clear().envs(&environment);
        Running {
            host: self.host,
            container: container.clone(),
            environment,
            daemon: self.host.node.start_bare(&command, &name).unwrap(),
        }
    }

    fn environment(&self, container: &Container) -> BTreeMap<String, String> {
        // As the image's configuration has it.
        let path = ("PATH".to_owned(), "/usr/sbin:/usr/bin".to_owned());
        let mut all = BTreeMap::from([path]);
        let config = |name: &str| {
            let map: ConfigMap = exact(self.named("ConfigMap", name).unwrap());
            map.data.unwrap()
        };
        for source in container.env_from.iter().flatten() {
            all.extend(config(&source.config_map_ref.as_ref().unwrap().name));
        }
        for variable in container.env.iter().flatten() {
            let value = self.value(variable, &all, &config);
            all.insert(variable.name.clone(), value);
        }
        all
    }

    fn value(
        &self,
        variable: &EnvVar,
        before: &BTreeMap<String, String>,
        config: &dyn Fn(&str) -> BTreeMap<String, String>,
    ) -> String {
        let Some(source) = &variable.value_from else {
            return expanded(variable.value.as_deref().unwrap(), before);
        };
        if let Some(key) = &source.config_map_key_ref {
            return config(&key.name)[&key.key].clone();
        }
        match source.field_ref.as_ref().unwrap().field_path.as_str() {
            "status.hostIP" => self.host.address.clone(),
            "spec.nodeName" => self.host.name.to_owned(),
            other => panic!("{other}"),
        }
    }
}

/// With `$(NAME)` replaced, as kubelet does it.
fn expanded(text: &str, environment: &BTreeMap<String, String>) -> String {
    let mut text = text.to_owned();
    for (name, value) in environment {
        text = text.replace(&format!("$({name})"), value);
    }
    assert!(!text.contains("$("), "{text}");
    text
}

impl Running<'_> {
    /// Waits until it has ended with success, as an init container must.
    #[track_caller]
    pub(super) fn succeed(&self) {
        let status = self.daemon.await_end(LIMIT).unwrap();
        assert!(status.success(), "{}: {}", self.container.name, self.log());
    }

    /// Waits until it has ended by itself with a failure.
    #[track_caller]
    pub(super) fn fail(&self) -> String {
        assert!(!self.daemon.await_end(LIMIT).unwrap().success());
        self.log()
    }

    /// What it printed, and those before it of the same name.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.daemon.log()).unwrap()
    }

    /// Waits until it has printed this.
    #[track_caller]
    pub(super) fn await_log(&self, text: &str) {
        let started = Instant::now();
        while !self.log().contains(text) {
            assert!(started.elapsed() < LIMIT, "no {text:?} in {}", self.log());
            std::thread::yield_now();
        }
    }

    /// The first process of the container, once it has the image's root.
    #[track_caller]
    fn first_process(&self) -> String {
        let holder = self.daemon.pid();
        let children = format!("/proc/{holder}/task/{holder}/children");
        loop {
            assert!(self.daemon.ended().is_none(), "it ended: {}", self.log());
            let child = fs::read_to_string(&children).unwrap_or_default();
            let child = child.trim().to_owned();
            let root = fs::read_link(format!("/proc/{child}/root"));
            if !child.is_empty() && root.is_ok_and(|it| it.ends_with(self.host.image)) {
                return child;
            }
            std::thread::yield_now();
        }
    }

    /// Runs a command in the container, as `kubectl exec` and probes do.
    #[track_caller]
    pub(super) fn exec(&self, words: &[&str]) -> Finished {
        let mut command = Command::new("nsenter");
        let target = self.first_process();
        command
            .args(["--target", &target, "--mount", "--pid", "--root", "--wd"])
            .args(words)
            .env_clear()
            .envs(&self.environment);
        let place = self.host.node.place();
        place.run(|| finish(command, b"", LIMIT)).unwrap()
    }

    /// The same, by a line of words; it must succeed, and its output is returned.
    #[track_caller]
    pub(super) fn run(&self, line: &str) -> String {
        let words: Vec<_> = line.split(' ').collect();
        self.exec(&words).success(line).trim().to_owned()
    }

    /// Whether a probe succeeds.
    #[track_caller]
    pub(super) fn passes(&self, probe: &Probe) -> bool {
        let command = probe.exec.as_ref().unwrap().command.as_ref().unwrap();
        let words: Vec<_> = command.iter().map(String::as_str).collect();
        self.exec(&words).status.success()
    }

    /// Waits until all its probes succeed, each repeated as kubelet would do it.
    #[track_caller]
    pub(super) fn await_healthy(&self) {
        let probes = [
            &self.container.liveness_probe,
            &self.container.readiness_probe,
        ];
        for probe in probes.into_iter().flatten() {
            let command = probe.exec.as_ref().unwrap().command.as_ref().unwrap();
            let started = Instant::now();
            while !self.passes(probe) {
                let is_early = started.elapsed() < LIMIT;
                assert!(is_early, "{command:?} fails: {}", self.log());
            }
        }
    }

    /// Ends it as kubelet does: by the command before the signal, if it has one.
    #[track_caller]
    pub(super) fn stop(self) {
        let lifecycle = self.container.lifecycle.as_ref().unwrap();
        let before = lifecycle.pre_stop.as_ref().unwrap();
        let command = before.exec.as_ref().unwrap().command.as_ref().unwrap();
        let words: Vec<_> = command.iter().map(String::as_str).collect();
        // It may be killed by the end of the container's first process, which it asked for.
        self.exec(&words);
        assert!(self.daemon.await_end(LIMIT).unwrap().success());
    }

    /// Kills it with all its processes (SIGKILL).
    #[track_caller]
    pub(super) fn kill(self) {
        self.daemon.end_by(Signal::SIGKILL, LIMIT).unwrap();
    }
}
