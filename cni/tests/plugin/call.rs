//! Calling the plugin.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// How long a test waits for what a working plugin does at once, so that a broken one makes it
/// fail instead of hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// One call: an environment, a configuration, and how it is started.
pub(crate) struct Call {
    command: Command,
    stdin: Vec<u8>,
    stderr: Option<OwnedFd>,
}

/// How a call ended.
pub(crate) struct Outcome {
    /// None when a signal ended it.
    pub(crate) exit: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Call {
    /// The binary under test, with a valid environment for any verb and nothing on stdin.
    pub(crate) fn new(verb: &str) -> Self {
        Self::of(Path::new(env!("CARGO_BIN_EXE_podwire-cni")), verb)
    }

    pub(crate) fn of(binary: &Path, verb: &str) -> Self {
        let mut command = Command::new(binary);
        command.env_clear().envs([
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", "0a1b2c"),
            ("CNI_NETNS", "/run/netns/pod"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web"),
            ("CNI_PATH", "/opt/cni/bin"),
        ]);
        Self {
            command,
            stdin: Vec::new(),
            stderr: None,
        }
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    pub(crate) fn arguments(mut self, arguments: &[&str]) -> Self {
        self.command.args(arguments);
        self
    }

    pub(crate) fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// Lets stderr go elsewhere than into the outcome.
    pub(crate) fn stderr(mut self, stderr: OwnedFd) -> Self {
        self.stderr = Some(stderr);
        self
    }

    /// A configuration that leads to this socket.
    pub(crate) fn to(self, socket: &Path) -> Self {
        self.stdin(conf(socket, json!({})))
    }

    /// Starts it with stdin written and closed.
    pub(crate) fn spawn(self) -> Child {
        let (mut child, bytes) = self.spawn_silent();
        let mut stdin = child.stdin.take().unwrap();
        // A plugin that has seen enough closes its end early.
        thread::spawn(move || drop(stdin.write_all(&bytes)));
        child
    }

    /// Starts it with stdin open and nothing written yet.
    pub(crate) fn spawn_silent(mut self) -> (Child, Vec<u8>) {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped());
        match self.stderr {
            Some(stderr) => self.command.stderr(stderr),
            None => self.command.stderr(Stdio::piped()),
        };
        (self.command.spawn().unwrap(), self.stdin)
    }

    pub(crate) fn run(self) -> Outcome {
        Outcome::of(self.spawn())
    }
}

impl Outcome {
    /// Waits for the end, and brings it about when the plugin does not.
    pub(crate) fn of(child: Child) -> Self {
        let pid = Pid::from_raw(child.id().try_into().unwrap());
        let (end, ended) = mpsc::channel::<()>();
        let watch = thread::spawn(move || {
            if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                kill(pid, Signal::SIGKILL).unwrap();
            }
        });
        let output = child.wait_with_output().unwrap();
        drop(end);
        watch.join().unwrap();
        Self {
            exit: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The code, text and version of the error object, which must be all there is.
    #[track_caller]
    pub(crate) fn error(&self) -> (u64, String, String) {
        let stdout = String::from_utf8_lossy(&self.stdout);
        assert_eq!(
            self.exit,
            Some(1),
            "stdout: {stdout}, stderr: {}",
            self.stderr
        );
        assert_eq!(self.stderr, "");
        let object: Value =
            serde_json::from_slice(&self.stdout).expect("one JSON object on stdout");
        let text = |name: &str| object[name].as_str().expect(name).to_owned();
        (
            object["code"].as_u64().expect("code"),
            text("msg"),
            text("cniVersion"),
        )
    }

    /// Asserts an error of this code whose text has all of these parts.
    #[track_caller]
    pub(crate) fn assert_error(&self, code: u64, parts: &[&str]) {
        let (got, msg, _) = self.error();
        assert_eq!(got, code, "{msg}");
        for part in parts {
            assert!(msg.contains(part), "{part:?} in {msg:?}");
        }
    }

    #[track_caller]
    pub(crate) fn assert_answer(&self, stdout: &[u8]) {
        assert_eq!(
            String::from_utf8_lossy(&self.stdout),
            String::from_utf8_lossy(stdout)
        );
        assert_eq!((self.exit, self.stderr.as_str()), (Some(0), ""));
    }
}

/// A configuration that leads to this socket, with these members besides.
pub(crate) fn conf(socket: &Path, extra: Value) -> Vec<u8> {
    let mut conf = json!({"cniVersion": "1.1.0", "name": "pods", "type": "podwire-cni",
        "agentSocket": socket});
    for (name, value) in extra.as_object().unwrap() {
        conf[name] = value.clone();
    }
    conf.to_string().into_bytes()
}
