//! The podwire agent as a daemon of a node.

use std::ffi::OsString;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::failure::{Failure, OrFail, Step, tail};
use crate::node::DAEMON_LIMIT;
use crate::process::Daemon;
use crate::watch::{Watch, Woken, await_log, await_seen};
use crate::words::Words;
use crate::{TestNode, agent_binary, annotation, faulty_agent_binary, http, without_own_variables};

/// The configuration's file on a node.
pub const CONFIG: &str = "/run/podwire.toml";

const LOG: &str = "/run/log/agent.log";
const SOCKET: &str = "agent.sock";

/// Execs a program with the descriptor of this number as its third, as systemd hands over a socket.
/// (dash knows descriptors of one digit only.)
const HAND_OVER: &str = r#"from=$1; shift; if ((from != 3)); then exec 3<&"$from" {from}<&-; fi; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@""#;

/// How to start the agent. The default is no option at all, as a user's first `podwire agent`.
#[derive(Clone, Debug, Default)]
pub struct AgentOptions {
    /// `--run-dir`; without it /run/podwire.
    pub run_dir: Option<String>,
    /// Further command line arguments.
    pub arguments: Vec<String>,
    /// Environment variables.
    pub environment: Vec<(String, String)>,
    /// A program, with its arguments, that execs the agent, such as `prlimit --nofile=64`.
    pub under: Vec<String>,
    /// A listening socket that is handed over as systemd does it (sd_listen_fds(3)).
    pub listener: Option<Arc<OwnedFd>>,
    /// A fault point and what it does, such as `add-linked:kill`; without one the agent has none.
    pub fault: Option<String>,
}

impl AgentOptions {
    /// Adds command line arguments.
    pub fn with(mut self, arguments: impl Words) -> AgentOptions {
        self.arguments.extend(arguments.words());
        self
    }

    /// With the file that [`TestNode::configure`] writes; `--config`.
    pub fn configured(self) -> AgentOptions {
        self.with(format!("--config {CONFIG}"))
    }

    /// Has another program exec the agent.
    pub fn under(mut self, program: &[&str]) -> AgentOptions {
        self.under = program.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Adds an environment variable.
    pub fn variable(mut self, name: &str, value: &str) -> AgentOptions {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Has the agent die at this step.
    pub fn killed_at(mut self, step: &str) -> AgentOptions {
        self.fault = Some(format!("{step}:kill"));
        self
    }

    /// Has this step fail once.
    pub fn failing_at(mut self, step: &str) -> AgentOptions {
        self.fault = Some(format!("{step}:error"));
        self
    }

    /// With the subnets of [`annotation`], so that the bridge carries their gateways.
    pub fn for_numbered_pods() -> AgentOptions {
        AgentOptions::default()
            .subnet(annotation::SUBNET_V4)
            .subnet(annotation::SUBNET_V6)
    }

    /// Adds a `--subnet`.
    pub fn subnet(self, subnet: &str) -> AgentOptions {
        self.with(format!("--subnet {subnet}"))
    }
}

impl TestNode {
    /// Replaces the file [`CONFIG`] in one step, as editors and `podwire install` do. An agent that
    /// was started with it says in its log what became of that.
    #[track_caller]
    pub fn configure(&self, text: &str) {
        let fresh = self.path(&format!("{CONFIG}.new"));
        std::fs::write(&fresh, text)
            .step(|| "write the configuration")
            .or_fail();
        std::fs::rename(&fresh, self.path(CONFIG))
            .step(|| "replace the configuration")
            .or_fail();
    }
}

/// A copy of a descriptor that children inherit.
fn inheritable(descriptor: &OwnedFd) -> Result<OwnedFd, Failure> {
    nix::unistd::dup(descriptor).step(|| "duplicate the listening socket")
}

/// A running agent. Dropping it kills it.
#[derive(Debug)]
pub struct Agent<'node> {
    node: &'node TestNode,
    options: AgentOptions,
    daemon: Daemon,
}

impl<'node> Agent<'node> {
    /// Starts the agent on `node` and waits until it says that it is ready.
    pub fn start(node: &'node TestNode, options: &AgentOptions) -> Result<Agent<'node>, Failure> {
        let agent = Agent::launch(node, options)?;
        agent.await_answer("\"ready\": true", |health| health["ready"] == true)?;
        Ok(agent)
    }

    /// Starts the agent and waits until its socket answers at all: for tests in which it can't be
    /// healthy yet.
    pub fn launch(node: &'node TestNode, options: &AgentOptions) -> Result<Agent<'node>, Failure> {
        let binary = match &options.fault {
            None => agent_binary(),
            Some(_) => faulty_agent_binary(),
        };
        // Held until the child has its own.
        let handed = options.listener.as_deref().map(inheritable).transpose()?;
        let mut words: Vec<OsString> = options.under.iter().map(OsString::from).collect();
        if let Some(listener) = &handed {
            let number = listener.as_raw_fd().to_string();
            words.extend(["bash", "-c", HAND_OVER, "bash", &number].map(OsString::from));
        }
        words.push(binary.into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        without_own_variables(&mut command);
        if let Some(fault) = &options.fault {
            command.env("PODWIRE_FAULT", fault);
        }
        command.arg("agent");
        if let Some(directory) = &options.run_dir {
            command.args(["--run-dir", directory]);
        }
        command.args(&options.arguments);
        command.envs(
            options
                .environment
                .iter()
                .map(|(variable, value)| (variable, value)),
        );
        let run_dir = node.path(options.run_dir.as_deref().unwrap_or("/run/podwire"));
        std::fs::create_dir_all(&run_dir).step(|| format!("make {}", run_dir.display()))?;
        let daemon = Daemon::start(node.keeper(), &command, &node.path(LOG))?;
        let agent = Agent {
            node,
            options: options.clone(),
            daemon,
        };
        agent.await_answer("any answer", |_| true)?;
        Ok(agent)
    }

    /// The agent's process id.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// The agent's socket, as this process can open it.
    pub fn socket(&self) -> PathBuf {
        self.run_dir().join(SOCKET)
    }

    /// What the agent has logged so far.
    #[track_caller]
    pub fn log(&self) -> String {
        self.read_log().or_fail()
    }

    fn read_log(&self) -> Result<String, Failure> {
        std::fs::read_to_string(self.daemon.log()).step(|| "read the agent's log")
    }

    /// `GET` of one of the agent's pages: status and body.
    #[track_caller]
    pub fn get(&self, path: &str) -> (u16, String) {
        http::get(&self.socket(), path).or_fail()
    }

    /// `GET` of one of the agent's pages that must answer 200 and JSON.
    #[track_caller]
    pub fn get_json(&self, path: &str) -> Value {
        self.ask(path).or_fail()
    }

    fn ask(&self, path: &str) -> Result<Value, Failure> {
        let (status, body) = http::get(&self.socket(), path)?;
        let bad = |answer| Failure::Http {
            path: path.into(),
            server: self.socket().display().to_string(),
            answer,
        };
        if status != 200 {
            return Err(bad(format!("{status}: {body}")));
        }
        serde_json::from_str(&body).map_err(|error| bad(format!("not JSON ({error}): {body}")))
    }

    /// Waits until `GET /v1/health` says that the agent is ready, or that it is not.
    #[track_caller]
    pub fn await_ready(&self, ready: bool) {
        self.await_health(&format!("\"ready\": {ready}"), |health| {
            health["ready"] == ready
        });
    }

    /// Waits until the log holds a text.
    #[track_caller]
    pub fn await_log(&self, text: &str) {
        let awaited = format!("{text:?} in the agent's log");
        let look = |log: &str| log.contains(text).then_some(()).ok_or_else(|| tail(log));
        await_log(&self.daemon, DAEMON_LIMIT, &awaited, look).or_fail();
    }

    /// Waits until there is a file at this path of the node.
    #[track_caller]
    pub fn await_file(&self, path: &str) {
        self.await_path(path, true);
    }

    /// Waits until there is no file at this path of the node, in a directory that stays.
    #[track_caller]
    pub fn await_no_file(&self, path: &str) {
        self.await_path(path, false);
    }

    #[track_caller]
    fn await_path(&self, path: &str, there: bool) {
        let path = self.node.path(path);
        let directory = path.parent().unwrap_or(&path);
        let awaited = match there {
            true => format!("{} to be made", path.display()),
            false => format!("{} to be removed", path.display()),
        };
        let is_so = || path.exists() == there;
        let look = || is_so().then_some(()).ok_or_else(|| tail(&self.log()));
        await_seen(directory, &self.daemon, DAEMON_LIMIT, &awaited, look).or_fail();
    }

    /// Waits until `GET /v1/health` answers what is wanted.
    #[track_caller]
    pub fn await_health(&self, awaited: &str, wanted: impl Fn(&Value) -> bool) {
        self.await_answer(awaited, wanted).or_fail();
    }

    /// Stops it in good order (SIGTERM) and says how it ended.
    #[track_caller]
    pub fn stop(self) -> ExitStatus {
        self.daemon.end_by(Signal::SIGTERM, DAEMON_LIMIT).or_fail()
    }

    /// Waits until it has ended by itself, and says how.
    #[track_caller]
    pub fn await_end(self) -> ExitStatus {
        self.daemon.await_end(DAEMON_LIMIT).or_fail()
    }

    /// Sends it a signal, such as SIGSTOP.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        self.daemon.signal(signal).or_fail();
    }

    /// Kills it; its socket file stays behind.
    #[track_caller]
    pub fn kill(self) {
        self.daemon.end_by(Signal::SIGKILL, DAEMON_LIMIT).or_fail();
    }

    /// Kills it and starts another with the same options.
    #[track_caller]
    pub fn kill_and_restart(self) -> Agent<'node> {
        self.kill_and_restart_with(|| ())
    }

    /// Kills it, does something while none runs, and starts another with the same options.
    #[track_caller]
    pub fn kill_and_restart_with(self, between: impl FnOnce()) -> Agent<'node> {
        let (node, options) = (self.node, self.options.clone());
        self.kill();
        between();
        Agent::start(node, &options).or_fail()
    }

    fn run_dir(&self) -> PathBuf {
        self.node
            .path(self.options.run_dir.as_deref().unwrap_or("/run/podwire"))
    }

    /// Asks for the agent's health each time when something happens in its directory or log, until
    /// the answer is wanted.
    fn await_answer(&self, awaited: &str, wanted: impl Fn(&Value) -> bool) -> Result<(), Failure> {
        // The socket's appearance is an event; that the process listens on it, or that its health
        // changed, is none to an outsider, so the question is also repeated.
        const REPEAT: Duration = Duration::from_millis(20);
        let changes = Watch::new(&self.run_dir())?;
        let began = Instant::now();
        loop {
            let seen = match self.ask("/v1/health") {
                Ok(health) if wanted(&health) => return Ok(()),
                Ok(health) => health.to_string(),
                Err(failure) => failure.to_string(),
            };
            let left = DAEMON_LIMIT.saturating_sub(began.elapsed());
            let woken = changes.wait(self.daemon.end(), left.min(REPEAT))?;
            if woken == Woken::Ended || left.is_zero() {
                let ended = self.daemon.ended().map_or("it runs".to_owned(), |status| {
                    format!("it ended with {status}")
                });
                return Err(Failure::Deadline {
                    awaited: format!("{awaited} from the agent's GET /v1/health"),
                    waited: began.elapsed(),
                    seen: format!(
                        "{seen}; {ended}; its log says:\n{}",
                        tail(&self.read_log().unwrap_or_default())
                    ),
                });
            }
        }
    }
}
