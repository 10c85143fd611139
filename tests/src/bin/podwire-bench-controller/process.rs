//! The controller in a process of its own.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use podwire_tests::{Failure, Step as _};

use crate::cluster::Cluster;

/// What it logs when all rows are in sync for the first time.
const DONE: &str = "all rows are in sync";

pub(crate) struct Controller {
    child: Child,
    log: BufReader<ChildStderr>,
}

impl Controller {
    pub(crate) fn start(cluster: &Cluster) -> Result<Self, Failure> {
        Self::start_by(&Self::binary(), cluster)
    }

    /// The controller under test.
    pub(crate) fn binary() -> PathBuf {
        let given = std::env::var_os("PODWIRE_CONTROLLER_BIN");
        given.map_or_else(|| "target/release/podwire-controller".into(), Into::into)
    }

    pub(crate) fn start_by(binary: &Path, cluster: &Cluster) -> Result<Self, Failure> {
        let mut command = Command::new(binary);
        command
            .args(["--k8s-apiserver", &cluster.server.url()])
            .args(["--cluster-subnets", "10.128.0.0/9/22"])
            .env("NO_COLOR", "1")
            .stderr(Stdio::piped());
        // It drops the privileges that a path into another mount namespace takes.
        let spawned = cluster.central.machine().place().run(|| command.spawn());
        let mut child = spawned.step(|| format!("start {}", binary.display()))?;
        let log = child.stderr.take().map(BufReader::new);
        Ok(Self {
            log: log.expect("its stderr is a pipe"),
            child,
        })
    }

    /// Waits until it says that everything is done; how many operations that took.
    pub(crate) fn await_done(&mut self) -> Result<u64, Failure> {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.log.read_line(&mut line);
            if read.step(|| "read the controller's log")? == 0 {
                return Err(std::io::Error::other("it ended")).step(|| "run the controller");
            }
            if !line.contains(DONE) {
                eprint!("  {line}");
                continue;
            }
            let mut words = line.split_whitespace();
            let count = words.find_map(|word| word.strip_prefix("operations="));
            return Ok(count.and_then(|count| count.parse().ok()).unwrap_or(0));
        }
    }

    /// Its peak of resident memory, in KiB.
    pub(crate) fn resident(&self) -> Result<u64, Failure> {
        status(self.child.id(), "VmHWM:")
    }

    /// The processor time that it has used.
    pub(crate) fn processor_time(&self) -> Result<Duration, Failure> {
        processor_time(self.child.id())
    }

    pub(crate) fn stop(mut self) -> Result<(), Failure> {
        let pid = nix::unistd::Pid::from_raw(self.child.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)
            .map_err(std::io::Error::from)
            .step(|| "end the controller")?;
        self.child
            .wait()
            .step(|| "wait for the controller")
            .map(drop)
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        // One that has ended already is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A number of `/proc/PID/status`, in KiB.
pub(crate) fn status(pid: u32, field: &str) -> Result<u64, Failure> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).step(|| format!("read {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    Ok(number.unwrap_or(0))
}

/// The processor time that a process has used, by the scheduler's clock, which has no ticks.
pub(crate) fn processor_time(pid: u32) -> Result<Duration, Failure> {
    let mut total = Duration::ZERO;
    let tasks = format!("/proc/{pid}/task");
    let entries = std::fs::read_dir(&tasks).step(|| format!("read {tasks}"))?;
    for entry in entries.flatten() {
        let path = entry.path().join("schedstat");
        let text = std::fs::read_to_string(&path).step(|| format!("read {}", path.display()))?;
        let first = text.split_whitespace().next();
        let nanoseconds = first.and_then(|it| it.parse().ok()).unwrap_or(0);
        total += Duration::from_nanos(nanoseconds);
    }
    Ok(total)
}
