//! A running `podwire node run`, and what it tells its service manager.

use std::os::unix::net::UnixDatagram;
use std::process::{Command, ExitStatus};
use std::time::Instant;

use nix::sys::signal::Signal;

use crate::failure::{Failure, Step};
use crate::node::DAEMON_LIMIT;
use crate::process::Daemon;
use crate::watch::{Watch, Woken};
use crate::{TestNode, agent_binary};

const LOG: &str = "/run/log/podwire-node.log";
const NOTIFY: &str = "/run/notify-node";

/// A running `podwire node run`. Dropping it kills it.
#[derive(Debug)]
pub struct NodeRun {
    daemon: Daemon,
    manager: UnixDatagram,
}

impl NodeRun {
    /// Starts it with this command line, and waits until it says that the node is ready.
    pub fn start(node: &TestNode, arguments: &[String]) -> Result<Self, Failure> {
        let run = Self::launch(node, arguments)?;
        run.await_state("READY=1")?;
        Ok(run)
    }

    /// Starts it with this command line.
    pub fn launch(node: &TestNode, arguments: &[String]) -> Result<Self, Failure> {
        let mut command = Command::new(agent_binary()?);
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("PODWIRE_") {
                command.env_remove(variable);
            }
        }
        command.args(arguments);
        Self::launch_by(node, command)
    }

    /// Starts it by this command.
    pub fn launch_by(node: &TestNode, mut command: Command) -> Result<Self, Failure> {
        let _ = std::fs::remove_file(node.path(NOTIFY));
        let manager = node.place().run(|| UnixDatagram::bind(NOTIFY))?;
        let manager = manager.step(|| "bind the service manager's socket")?;
        command.env("NOTIFY_SOCKET", NOTIFY);
        let daemon = Daemon::start(node.keeper(), &command, &node.path(LOG))?;
        Ok(Self { daemon, manager })
    }

    /// Waits until it tells the service manager this.
    pub fn await_state(&self, wanted: &str) -> Result<(), Failure> {
        let until = Instant::now() + DAEMON_LIMIT;
        let mut seen = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.daemon.ended().is_some() {
                return Err(Failure::Deadline {
                    awaited: format!("{wanted:?} from podwire node run"),
                    waited: DAEMON_LIMIT - left,
                    seen: format!("{seen:#?}, and its log says:\n{}", self.log()?),
                });
            }
            // Short, to see the end of a process that says nothing any more.
            let limit = left.min(std::time::Duration::from_millis(200));
            self.manager
                .set_read_timeout(Some(limit))
                .step(|| "set a timeout")?;
            let mut bytes = [0; 4096];
            if let Ok(length) = self.manager.recv(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
                let is_wanted = text.contains(wanted);
                seen.push(text);
                if is_wanted {
                    return Ok(());
                }
            }
        }
    }

    /// What it has logged so far.
    pub fn log(&self) -> Result<String, Failure> {
        std::fs::read_to_string(self.daemon.log()).step(|| "read the node role's log")
    }

    /// Waits until the log has this many lines with this text, and gives the last.
    pub fn await_log(&self, text: &str, count: usize) -> Result<String, Failure> {
        let changes = Watch::new(self.daemon.log())?;
        let until = Instant::now() + DAEMON_LIMIT;
        loop {
            let log = self.log()?;
            let mut lines = log.lines().filter(|line| line.contains(text));
            if let Some(line) = lines.nth(count.saturating_sub(1)) {
                return Ok(line.to_owned());
            }
            let left = until.saturating_duration_since(Instant::now());
            if changes.wait(self.daemon.end(), left)? != Woken::Changed {
                return Err(Failure::Deadline {
                    awaited: format!("{count} times {text:?} in the node role's log"),
                    waited: DAEMON_LIMIT - left,
                    seen: log,
                });
            }
        }
    }

    /// How often the log has this text.
    pub fn count(&self, text: &str) -> Result<usize, Failure> {
        Ok(self.log()?.matches(text).count())
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Stops it in good order (SIGTERM), and says how it ended.
    pub fn stop(self) -> Result<ExitStatus, Failure> {
        self.daemon.end_by(Signal::SIGTERM, DAEMON_LIMIT)
    }

    /// Waits until it has ended by itself, and says how.
    pub fn await_end(&self) -> Result<ExitStatus, Failure> {
        self.daemon.await_end(DAEMON_LIMIT)
    }

    /// Kills it.
    pub fn kill(self) -> Result<(), Failure> {
        self.daemon.end_by(Signal::SIGKILL, DAEMON_LIMIT).map(drop)
    }
}
