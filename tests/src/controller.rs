//! A running `podwire-controller` beside a central OVN.

use std::process::{Command, ExitStatus};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::apiserver::ApiServer;
use crate::binaries::controller_binary;
use crate::failure::OrFail;
use crate::ovn::Central;
use crate::process::Daemon;
use crate::watch::await_log;
use crate::words::Words as _;

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
    #[track_caller]
    pub fn start(central: &Central, server: &ApiServer, identity: &str, flags: &str) -> Self {
        let flags = format!("--k8s-apiserver {} {flags}", server.url());
        Self::start_by(central, identity, &flags, "")
    }

    /// Starts one that finds the API server by a kubeconfig of the central machine, unless that is
    /// empty, or by its flags.
    #[track_caller]
    pub fn start_by(central: &Central, identity: &str, flags: &str, kubeconfig: &str) -> Self {
        let mut command = Command::new(controller_binary());
        command
            .args(["--identity", identity])
            .args(flags.words())
            .env("KUBECONFIG", kubeconfig);
        let machine = central.machine();
        let log = machine.path(&format!("/run/log/podwire-controller-{identity}.log"));
        let daemon = Daemon::start(machine.keeper(), &command, &log).or_fail();
        Self { daemon }
    }

    /// Waits until it has logged a line with this text, and gives the line.
    #[track_caller]
    pub fn await_log(&self, text: &str) -> String {
        let awaited = format!("{text:?} in the controller's log");
        let look = |log: &str| {
            let line = log.lines().find(|line| line.contains(text));
            line.map(str::to_owned).ok_or_else(|| log.to_owned())
        };
        await_log(&self.daemon, LIMIT, &awaited, look).or_fail()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Stops it in good order (SIGTERM), and says how it ended.
    #[track_caller]
    pub fn stop(self) -> ExitStatus {
        self.daemon.end_by(Signal::SIGTERM, LIMIT).or_fail()
    }

    /// Kills it.
    #[track_caller]
    pub fn kill(self) {
        self.daemon.end_by(Signal::SIGKILL, LIMIT).or_fail();
    }
}
