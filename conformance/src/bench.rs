//! What a case works with: a host, containers on it, and calls of the plugin as a runtime makes
//! them.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::answer::Ran;
use crate::case::{Held, Verdict};
use crate::chain;
use crate::container::Container;
use crate::exec::{self, Input};
use crate::host::{Footprint, Host};
use crate::ipam::{self, Recorder};
use crate::spec::{Verb, Version};
use crate::subject::{Kind, Subject};
use crate::trouble::Trouble;

/// CNI_IFNAME where a case does not say otherwise.
pub(crate) const IFNAME: &str = "eth0";

/// A plugin configuration.
pub(crate) type Conf = Map<String, Value>;

/// One case's means, in one version of the specification.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) version: Version,
    pub(crate) subject: &'a Subject,
    // Dropped in this order: the namespaces' mounts are in the host's directory.
    containers: Mutex<Vec<Arc<Container>>>,
    pub(crate) host: Host,
    /// What an ADD was called with and no DEL has undone yet.
    attached: Mutex<Vec<Attachment>>,
}

/// The parameters by which a DEL undoes an ADD.
#[derive(Clone, Debug)]
struct Attachment {
    id: String,
    ifname: String,
    netns: String,
    conf: Value,
    path: String,
}

/// A container with an attachment, and what its ADD answered.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) container: Arc<Container>,
    pub(crate) ifname: String,
    pub(crate) conf: Conf,
    pub(crate) result: Value,
}

impl<'a> Bench<'a> {
    /// Moves the calling thread to the case's host.
    pub(crate) fn new(subject: &'a Subject, version: Version) -> Result<Bench<'a>, Trouble> {
        Ok(Bench {
            version,
            subject,
            host: Host::enter(subject)?,
            containers: Mutex::default(),
            attached: Mutex::default(),
        })
    }

    /// The subject's configuration in the case's version, as the first plugin of a chain gets it.
    pub(crate) fn conf(&self) -> Conf {
        let mut conf = self.subject.conf.clone();
        conf.insert("cniVersion".into(), self.version.as_str().into());
        conf
    }

    /// The same with a member set.
    pub(crate) fn conf_with(&self, member: &str, value: impl Into<Value>) -> Conf {
        let mut conf = self.conf();
        conf.insert(member.into(), value.into());
        conf
    }

    /// A configuration whose addresses come from a new recorder.
    pub(crate) fn delegation(&self) -> Result<(Conf, Recorder), Trouble> {
        let recorder = Recorder::install(self.host.directory(), &self.subject.recorder)?;
        let ipam = json!({"type": ipam::TYPE, "probe": {"number": 7, "list": ["a", null]}});
        Ok((self.conf_with("ipam", ipam), recorder))
    }

    /// A new container. It lives as long as the bench, unless a case takes it away.
    pub(crate) fn container(&self) -> Result<Arc<Container>, Trouble> {
        let id = fresh_id();
        let netns = self.host.directory().join(format!("netns-{}", &id[..12]));
        let mut container = Container::new(id, netns)?;
        if self.subject.kind == Kind::Chained {
            container.before = Some(chain::make(&container, IFNAME, self.version)?);
        }
        let container = Arc::new(container);
        lock(&self.containers).push(Arc::clone(&container));
        Ok(container)
    }

    /// The ids of all containers so far.
    pub(crate) fn container_ids(&self) -> Vec<String> {
        let containers = lock(&self.containers);
        containers.iter().map(|it| it.id.clone()).collect()
    }

    /// What is held on the host now.
    pub(crate) fn footprint(&self) -> Result<Footprint, Trouble> {
        self.host.footprint(&self.container_ids())
    }

    /// A call of the plugin with the subject's configuration.
    pub(crate) fn call(&self, verb: Verb) -> Call<'_> {
        Call {
            bench: self,
            verb: verb.as_str().into(),
            conf: self.conf(),
            input: None,
            ifname: if verb.is_of_attachment() {
                IFNAME.into()
            } else {
                String::new()
            },
            container: None,
            netns: None,
            before: None,
            changes: Vec::new(),
            is_of_attachment: verb.is_of_attachment(),
        }
    }

    /// ADD of a new container, which must succeed.
    pub(crate) fn attach(&self) -> Result<Attached, Verdict> {
        self.attach_with(self.conf())
    }

    pub(crate) fn attach_with(&self, conf: Conf) -> Result<Attached, Verdict> {
        self.attach_to(&self.container()?, IFNAME, conf)
    }

    /// ADD of this container under this name, which must succeed.
    pub(crate) fn attach_to(
        &self,
        container: &Arc<Container>,
        ifname: &str,
        conf: Conf,
    ) -> Result<Attached, Verdict> {
        let add = self.call(Verb::Add).of(container).ifname(ifname);
        let result = add.conf(conf.clone()).run()?.object()?;
        Ok(Attached {
            container: Arc::clone(container),
            ifname: ifname.into(),
            conf,
            result,
        })
    }

    /// A call that concerns this attachment, with prevResult as the version's runtimes give it.
    pub(crate) fn call_for(&self, verb: Verb, attached: &Attached) -> Call<'_> {
        let call = self
            .call(verb)
            .of(&attached.container)
            .ifname(&attached.ifname);
        let mut conf = attached.conf.clone();
        if self.version >= Version::V0_4_0 {
            conf.insert("prevResult".into(), attached.result.clone());
        }
        call.conf(conf)
    }

    /// DEL as a runtime does it, which must succeed.
    pub(crate) fn detach(&self, attached: &Attached) -> Held {
        self.call_for(Verb::Del, attached).run()?.success()
    }

    /// Attaches and detaches a container, after which what the network's attachments share (a
    /// bridge, a chain of rules) is there, and what each has for itself is not.
    pub(crate) fn warm_up(&self, conf: &Conf) -> Result<Footprint, Verdict> {
        self.detach(&self.attach_with(conf.clone())?)?;
        Ok(self.footprint()?)
    }

    /// Undoes what the case has left attached, so that a host that outlives it is as before.
    pub(crate) fn clean(&self) {
        if self.subject.host_netns.is_none() {
            // All of a private host goes with its thread.
            return;
        }
        for attachment in std::mem::take(&mut *lock(&self.attached)) {
            let mut command = Command::new(&self.subject.plugin);
            self.environment(&mut command)
                .env("CNI_COMMAND", "DEL")
                .env("CNI_CONTAINERID", &attachment.id)
                .env("CNI_NETNS", &attachment.netns)
                .env("CNI_IFNAME", &attachment.ifname)
                .env("CNI_PATH", &attachment.path);
            let conf = attachment.conf.to_string().into_bytes();
            // Whether it works has been another case's business.
            let _ = exec::run(command, Input::Bytes(conf), self.subject.limit);
        }
    }

    fn environment<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        let stale = std::env::vars_os().map(|(name, _)| name);
        for name in stale.filter(|name| name.to_string_lossy().starts_with("CNI_")) {
            command.env_remove(name);
        }
        if let Some(arguments) = &self.subject.cni_args {
            command.env("CNI_ARGS", arguments);
        }
        command.current_dir("/")
    }
}

/// A call of the plugin in the making.
#[derive(Clone, Debug)]
pub(crate) struct Call<'b> {
    bench: &'b Bench<'b>,
    verb: String,
    conf: Conf,
    input: Option<Input>,
    ifname: String,
    container: Option<String>,
    netns: Option<PathBuf>,
    before: Option<Value>,
    changes: Vec<(String, Option<String>)>,
    is_of_attachment: bool,
}

impl Call<'_> {
    /// Another CNI_COMMAND than the suite knows.
    pub(crate) fn verb(mut self, verb: &str) -> Self {
        self.verb = verb.into();
        self
    }

    /// For this container.
    pub(crate) fn of(mut self, container: &Arc<Container>) -> Self {
        self.container = Some(container.id.clone());
        self.netns = Some(container.netns.clone());
        self.before.clone_from(&container.before);
        self
    }

    pub(crate) fn ifname(mut self, ifname: &str) -> Self {
        self.ifname = ifname.into();
        self
    }

    pub(crate) fn conf(mut self, conf: Conf) -> Self {
        self.conf = conf;
        self
    }

    /// Sets a member of the configuration.
    pub(crate) fn member(mut self, member: &str, value: impl Into<Value>) -> Self {
        self.conf.insert(member.into(), value.into());
        self
    }

    /// Takes a member of the configuration away.
    pub(crate) fn without_member(mut self, member: &str) -> Self {
        self.conf.remove(member);
        self
    }

    /// Standard input in place of the configuration.
    pub(crate) fn input(mut self, input: Input) -> Self {
        self.input = Some(input);
        self
    }

    /// Sets an environment variable, whatever it would have been.
    pub(crate) fn set(mut self, variable: &str, value: &str) -> Self {
        self.changes.push((variable.into(), Some(value.into())));
        self
    }

    /// Takes an environment variable away.
    pub(crate) fn unset(mut self, variable: &str) -> Self {
        self.changes.push((variable.into(), None));
        self
    }

    /// CNI_PATH as the call will have it.
    pub(crate) fn cni_path(&self) -> String {
        let mut directories = self.bench.subject.cni_path.clone();
        // Last: what the plugin needs must be looked for in every directory.
        let recorder = self.bench.host.directory().join("ipam");
        directories.extend(recorder.is_dir().then_some(recorder));
        let directories: Vec<_> = directories
            .iter()
            .map(|directory| directory.to_string_lossy())
            .collect();
        directories.join(":")
    }

    /// Execs the plugin.
    pub(crate) fn run(self) -> Result<Ran, Trouble> {
        let bench = self.bench;
        let path = self.cni_path();
        let mut conf = self.conf;
        if let (Some(before), "ADD") = (&self.before, self.verb.as_str()) {
            conf.entry("prevResult").or_insert_with(|| before.clone());
        }
        let mut command = Command::new(&bench.subject.plugin);
        bench
            .environment(&mut command)
            .env("CNI_COMMAND", &self.verb)
            .env("CNI_PATH", &path);
        if self.is_of_attachment {
            command.env("CNI_IFNAME", &self.ifname);
        }
        if let Some(id) = &self.container {
            command.env("CNI_CONTAINERID", id);
        }
        if let Some(netns) = &self.netns {
            command.env("CNI_NETNS", netns);
        }
        for (variable, value) in &self.changes {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
        let conf = Value::Object(conf);
        let input = self
            .input
            .unwrap_or_else(|| Input::Bytes(conf.to_string().into_bytes()));
        let id = self.container.unwrap_or_default();
        if self.verb == "ADD" {
            // Also when it fails: the specification has a DEL follow it.
            lock(&bench.attached).push(Attachment {
                id: id.clone(),
                ifname: self.ifname.clone(),
                netns: self.netns.unwrap_or_default().to_string_lossy().into(),
                conf,
                path,
            });
        }
        let ran = Ran::new(&self.verb, exec::run(command, input, bench.subject.limit)?);
        if self.verb == "DEL" && ran.is_success() {
            lock(&bench.attached).retain(|it| it.id != id || it.ifname != self.ifname);
        }
        Ok(ran)
    }
}

/// 64 hexadecimal digits, as runtimes have them, and different in their first 12: plugins name
/// links by the beginning of it.
fn fresh_id() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = now.unwrap_or_default().as_nanos() as u64;
    // A bijection that spreads consecutive numbers (the finaliser of SplitMix64).
    let spread = |x: u64| {
        let mut x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    let process = u64::from(std::process::id());
    let words = [nanos ^ (count << 32), count, process, nanos].map(spread);
    words.map(|word| format!("{word:016x}")).concat()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
