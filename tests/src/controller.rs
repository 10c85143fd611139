//! A running `podwire-controller` beside a central OVN.

use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::apiserver::ApiServer;
use crate::binaries::controller_binary;
use crate::failure::{Failure, Step};
use crate::ovn::Central;
use crate::process::Daemon;
use crate::watch::{Watch, Woken};

/// Longer than the lease of a controller that died.
const LIMIT: Duration = Duration::from_secs(60);

/// A running controller. Dropping it kills it.
#[derive(Debug)]
pub struct Controller {
    daemon: Daemon,
}

impl Controller {
    /// Starts one for a cluster, with this identity and more flags. The API server is to be on the
    /// central machine ([`ApiServer::start_in`]).
    pub fn start(
        central: &Central,
        server: &ApiServer,
        identity: &str,
        flags: &[&str],
    ) -> Result<Self, Failure> {
        let mut command = Command::new(controller_binary()?);
        command
            .args(["--k8s-apiserver", &server.url(), "--identity", identity])
            .args(flags)
            .env("NO_COLOR", "1");
        let machine = central.machine();
        let log = machine.path(&format!("/run/log/podwire-controller-{identity}.log"));
        let daemon = Daemon::start(machine.keeper(), &command, &log)?;
        Ok(Self { daemon })
    }

    /// Waits until it has logged a line with this text, and gives the line.
    pub fn await_log(&self, text: &str) -> Result<String, Failure> {
        let changes = Watch::new(self.daemon.log())?;
        let until = Instant::now() + LIMIT;
        loop {
            let log = std::fs::read_to_string(self.daemon.log());
            let log = log.step(|| "read the controller's log")?;
            if let Some(line) = log.lines().find(|line| line.contains(text)) {
                return Ok(line.to_owned());
            }
            let left = until.saturating_duration_since(Instant::now());
            if changes.wait(self.daemon.end(), left)? != Woken::Changed {
                return Err(Failure::Deadline {
                    awaited: format!("{text:?} in the controller's log"),
                    waited: LIMIT - left,
                    seen: log,
                });
            }
        }
    }

    /// Stops it in good order (SIGTERM), and says how it ended.
    pub fn stop(self) -> Result<ExitStatus, Failure> {
        self.daemon.end_by(Signal::SIGTERM, LIMIT)
    }

    /// Kills it.
    pub fn kill(self) -> Result<(), Failure> {
        self.daemon.end_by(Signal::SIGKILL, LIMIT).map(drop)
    }
}
