//! Where a node's container runtime and its containers live: a process namespace of their own,
//! below a shell that stays. With that shell all of them end, so that a test leaves no container,
//! however it ends.
//!
//! Their mount namespace has a `/proc` of its own and shares `/run` with the node's, so that both
//! see the network namespaces that the runtime pins there.

use std::process::Command;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::cgroup::Cgroup;
use crate::TestNode;
use crate::failure::{Failure, Step};
use crate::process::Daemon;

/// A process namespace of a node. Dropping it ends every process in it.
#[derive(Debug)]
pub(super) struct Enclosure {
    first: Daemon,
    // Goes after the processes in it.
    cgroup: Cgroup,
}

impl Enclosure {
    /// Starts `script` with its first argument as the first process of a namespace; what it prints
    /// goes into the log of this name.
    pub(super) fn start(
        node: &TestNode,
        script: &str,
        argument: &str,
        log: &str,
    ) -> Result<Enclosure, Failure> {
        let cgroup = Cgroup::of(node)?;
        let share = || {
            mount(
                None::<&str>,
                "/run",
                None::<&str>,
                MsFlags::MS_SHARED,
                None::<&str>,
            )
        };
        node.place().run(share).step(|| "share /run")?;
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["--propagation", "unchanged", "--"])
            .args(["sh", "-c", script, argument]);
        let log = node.path(&format!("/run/log/{log}.log"));
        let first = Daemon::start(node.keeper(), &command, &log)?;
        Ok(Enclosure { first, cgroup })
    }

    /// What it was started as, which ends when the namespace does.
    pub(super) fn daemon(&self) -> &Daemon {
        &self.first
    }

    /// The path below which its containers are to have their cgroups.
    pub(super) fn cgroup(&self) -> String {
        self.cgroup.path()
    }

    /// The process id of the namespace's first process, as it is seen from outside; `None` before
    /// that lives.
    pub(super) fn first_pid(&self) -> Option<i32> {
        let parent = self.first.pid();
        let children = format!("/proc/{parent}/task/{parent}/children");
        let children = std::fs::read_to_string(children).unwrap_or_default();
        children.split_whitespace().next()?.parse().ok()
    }
}

impl Drop for Enclosure {
    fn drop(&mut self) {
        // The first process takes all others with it and is not reaped before they are; unshare,
        // which waits for it, ends last.
        if let Some(pid) = self.first_pid() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let _ = self.first.await_end(Duration::from_secs(10));
    }
}
