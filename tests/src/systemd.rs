//! The real systemd as the first process of a node: with its own PID namespace and its own part of
//! the machine's cgroups, and no units but those that a test makes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use nix::sys::signal::Signal;

use crate::failure::{Failure, OrFail};
use crate::node::DAEMON_LIMIT;
use crate::process::{Daemon, finish};
use crate::words::Words;
use crate::{TestNode, random};

/// The targets that systemd itself asks for.
const TARGETS: &str = "sysinit basic shutdown default umount final";

/// A running systemd. Dropping it ends it, and all that it has started.
#[derive(Debug)]
pub struct Systemd<'node> {
    node: &'node TestNode,
    daemon: Daemon,
    cgroup: PathBuf,
}

impl<'node> Systemd<'node> {
    /// Starts it, and waits until it answers.
    #[track_caller]
    pub fn start(node: &'node TestNode) -> Self {
        let name = format!("podwire-test-{}-{}", std::process::id(), random::hex(8));
        let cgroups = "/run/cgroups";
        let cgroup = format!("{cgroups}/{name}");
        // What a cgroup namespace shows begins at the cgroup of the process that makes it.
        let start = format!(
            "set -e
             for target in {TARGETS}; do
                 printf '[Unit]\\nDefaultDependencies=no\\n' >/run/units/$target.target
             done
             echo $$ >{cgroup}/cgroup.procs
             exec unshare --mount --pid --cgroup --fork --kill-child sh -c '
                 mount -t cgroup2 none /sys/fs/cgroup
                 mount -t proc proc /proc
                 exec env --ignore-environment container=test SYSTEMD_UNIT_PATH=/run/units \\
                     PATH=$PATH /lib/systemd/systemd --system --unit=default.target \\
                     --log-target=console --show-status=0'"
        );
        node.run("mkdir", ["-p", cgroups, "/run/units"]);
        node.run("mount", ["-t", "cgroup2", "none", cgroups]);
        node.run("mkdir", [&*cgroup]);
        let mut command = Command::new("sh");
        command.args(["-c", &start]);
        let log = node.path("/run/log/systemd.log");
        let daemon = Daemon::start(node.keeper(), &command, &log).or_fail();
        let cgroup = node.path(&cgroup);
        let systemd = Self {
            node,
            daemon,
            cgroup,
        };
        systemd.await_answer().or_fail();
        systemd
    }

    /// A command within systemd's PID namespace: systemd answers nobody outside it.
    pub fn inside(&self, line: impl Words) -> Command {
        let pid = self.daemon.pid();
        let children = format!("/proc/{pid}/task/{pid}/children");
        let children = std::fs::read_to_string(children).unwrap_or_default();
        let first = children.split_whitespace().next().unwrap_or("0");
        let mut command = Command::new("nsenter");
        command.args(["--target", first, "--mount", "--pid", "--"]);
        command.args(line.words());
        command
    }

    /// Runs systemctl, which must succeed.
    #[track_caller]
    pub fn systemctl(&self, line: impl Words) -> String {
        self.ask(line).or_fail()
    }

    fn ask(&self, line: impl Words) -> Result<String, Failure> {
        let line = std::iter::once("systemctl".to_owned()).chain(line.words());
        let command = self.inside(line.collect::<Vec<_>>());
        let place = self.node.place();
        let finished = place.run(|| finish(command, b"", DAEMON_LIMIT))?;
        finished.output("systemctl")
    }

    fn await_answer(&self) -> Result<(), Failure> {
        let until = Instant::now() + DAEMON_LIMIT;
        loop {
            let Err(error) = self.ask("list-units --no-pager") else {
                return Ok(());
            };
            if self.daemon.ended().is_some() || Instant::now() > until {
                return Err(Failure::Deadline {
                    awaited: "an answer of systemd".to_owned(),
                    waited: DAEMON_LIMIT,
                    seen: format!("{error}, and its log says:\n{}", self.log()),
                });
            }
        }
    }

    /// What it and its units have logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.daemon.log()).unwrap_or_default()
    }
}

impl Drop for Systemd<'_> {
    fn drop(&mut self) {
        let _ = self.daemon.end_by(Signal::SIGKILL, DAEMON_LIMIT);
        // The kernel ends the processes of its namespace with it; their cgroups can go then.
        let until = Instant::now() + DAEMON_LIMIT;
        while self.cgroup.exists() && Instant::now() < until {
            remove_group(&self.cgroup);
        }
    }
}

/// Removes a cgroup with those below it, as far as they have no process any more.
fn remove_group(group: &Path) {
    for below in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if below.file_type().is_ok_and(|it| it.is_dir()) {
            remove_group(&below.path());
        }
    }
    let _ = std::fs::remove_dir(group);
}
