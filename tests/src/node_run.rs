//! A running `podwire node run`, and what it tells its service manager.

use std::os::unix::net::UnixDatagram;
use std::process::{Command, ExitStatus};
use std::time::Instant;

use nix::sys::signal::Signal;

use crate::failure::{OrFail, Step};
use crate::node::DAEMON_LIMIT;
use crate::process::Daemon;
use crate::watch::await_log;
use crate::words::Words;
use crate::{TestNode, agent_binary, without_own_variables};

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
    #[track_caller]
    pub fn start(node: &TestNode, arguments: impl Words) -> Self {
        let run = Self::launch(node, arguments);
        run.await_state("READY=1");
        run
    }

    /// Starts it with this command line.
    #[track_caller]
    pub fn launch(node: &TestNode, arguments: impl Words) -> Self {
        let mut command = Command::new(agent_binary());
        without_own_variables(&mut command);
        command.args(arguments.words());
        Self::launch_by(node, command)
    }

    /// Starts it by this command.
    #[track_caller]
    pub fn launch_by(node: &TestNode, mut command: Command) -> Self {
        let _ = std::fs::remove_file(node.path(NOTIFY));
        let manager = node.place().run(|| UnixDatagram::bind(NOTIFY));
        let manager = manager
            .step(|| "bind the service manager's socket")
            .or_fail();
        command.env("NOTIFY_SOCKET", NOTIFY);
        let daemon = Daemon::start(node.keeper(), &command, &node.path(LOG)).or_fail();
        Self { daemon, manager }
    }

    /// Waits until it tells the service manager this.
    #[track_caller]
    pub fn await_state(&self, wanted: &str) {
        let until = Instant::now() + DAEMON_LIMIT;
        let mut seen = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.daemon.ended().is_some() {
                let log = self.log();
                panic!("no {wanted:?} from podwire node run, but {seen:#?}; its log says:\n{log}");
            }
            // Short, to see the end of a process that says nothing any more.
            let limit = left.min(std::time::Duration::from_millis(200));
            self.manager
                .set_read_timeout(Some(limit))
                .step(|| "set a timeout")
                .or_fail();
            let mut bytes = [0; 4096];
            if let Ok(length) = self.manager.recv(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
                let is_wanted = text.contains(wanted);
                seen.push(text);
                if is_wanted {
                    return;
                }
            }
        }
    }

    /// What it has logged so far.
    #[track_caller]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.daemon.log())
            .step(|| "read the node role's log")
            .or_fail()
    }

    /// Waits until the log has this many lines with this text, and gives the last.
    #[track_caller]
    pub fn await_log(&self, text: &str, count: usize) -> String {
        self.await_lines(text, count, |line| line.contains(text))
    }

    /// Waits until the log has this many lines that are wanted, and gives the last.
    #[track_caller]
    pub fn await_lines(&self, of: &str, count: usize, wanted: impl Fn(&str) -> bool) -> String {
        let awaited = format!("{count} times {of:?} in the node role's log");
        let look = |log: &str| {
            let mut lines = log.lines().filter(|line| wanted(line));
            let line = lines.nth(count.saturating_sub(1)).map(str::to_owned);
            line.ok_or_else(|| log.to_owned())
        };
        await_log(&self.daemon, DAEMON_LIMIT, &awaited, look).or_fail()
    }

    /// Waits until the services on the host are as wanted: looks once they follow the cluster, and
    /// whenever they changed.
    #[track_caller]
    pub fn await_services(&self, wanted: impl Fn() -> bool) {
        let mut changes = 1;
        self.await_log("services follow the cluster", changes);
        while !wanted() {
            changes += 1;
            self.await_log("services follow the cluster", changes);
        }
    }

    /// How often the log has this text.
    #[track_caller]
    pub fn count(&self, text: &str) -> usize {
        self.log().matches(text).count()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Sends it a signal, such as SIGSTOP, by which it hangs.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        self.daemon.signal(signal).or_fail();
    }

    /// Stops it in good order (SIGTERM), and says how it ended.
    #[track_caller]
    pub fn stop(self) -> ExitStatus {
        self.daemon.end_by(Signal::SIGTERM, DAEMON_LIMIT).or_fail()
    }

    /// Waits until it has ended by itself, and says how.
    #[track_caller]
    pub fn await_end(&self) -> ExitStatus {
        self.daemon.await_end(DAEMON_LIMIT).or_fail()
    }

    /// Kills it.
    #[track_caller]
    pub fn kill(self) {
        self.daemon.end_by(Signal::SIGKILL, DAEMON_LIMIT).or_fail();
    }
}
