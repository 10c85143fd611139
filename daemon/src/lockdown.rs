//! Gives up all privileges that a daemon does not need, before its first thread starts: sets
//! no_new_privs, drops all but a few capabilities, and allows only the system calls of its work.
//!
//! All three belong to threads, not to the process, and each thread inherits them from the one that
//! starts it. So [`Privileges::keep`] is called once, by the only thread, and fails if there is
//! another. Programs that the daemon starts inherit all three too.

mod seccomp;
mod syscalls;

use std::fmt;
use std::io;
use std::path::Path;

use caps::errors::CapsError;
use caps::{CapSet, CapsHashSet};
use clap::ValueEnum;
use itertools::Itertools as _;

pub use caps::Capability;

/// What a daemon keeps.
#[derive(Debug, Clone)]
pub struct Privileges {
    /// Its capabilities; capabilities(7) says what they allow.
    pub capabilities: Vec<Capability>,
    /// What it needs beyond the system calls of every daemon.
    pub calls: Calls,
}

/// System calls beyond those of every daemon, which serves and follows servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// None.
    Common,
    /// Entering network namespaces, packet sockets, ethtool.
    Namespaces,
    /// Starting programs, without new namespaces, and what such a program calls to start.
    Programs,
}

/// What becomes of a system call that is not on the daemon's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Seccomp {
    /// It fails with ENOSYS; one that only an intruder would make ends the process
    Enforce,
    /// It passes, and the kernel logs it as an audit record of type 1326
    Log,
    /// There is no filter
    Off,
}

/// What the daemon holds from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    capabilities: Vec<Capability>,
    seccomp: Seccomp,
}

/// Why the privileges could not be dropped. No daemon runs with more than intended.
#[derive(Debug, thiserror::Error)]
pub enum LockdownError {
    /// Other threads would keep what is dropped now.
    #[error(
        "the process already runs {count} threads, which would keep the privileges that this one \
         drops"
    )]
    Threads {
        /// Number of threads.
        count: usize,
    },
    /// The threads could not be counted.
    #[error("count the threads in {path}: {source}")]
    Count {
        /// Where they are listed.
        path: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// A capability that is needed is missing.
    #[error("{} is missing: start as root, or grant it", missing.iter().join(", "))]
    Lacking {
        /// The missing capabilities.
        missing: Vec<Capability>,
    },
    /// A set of capabilities could not be read or changed.
    #[error("{step}: {source}")]
    Capabilities {
        /// The operation that failed.
        step: &'static str,
        /// The kernel's error.
        source: CapsError,
    },
    /// no_new_privs could not be set.
    #[error("set no_new_privs: {0}")]
    NoNewPrivs(#[source] io::Error),
    /// The filter could not be built.
    #[error("build the seccomp filter: {0}")]
    Build(#[from] seccompiler::BackendError),
    /// The kernel refused the filter.
    #[error("install the seccomp filter (--seccomp=off runs without): {0}")]
    Install(#[from] seccompiler::Error),
}

impl Privileges {
    /// Drops everything else.
    ///
    /// # Errors
    /// There is a second thread, something needed is missing, or the kernel refused a step.
    pub fn keep(self, seccomp: Seccomp) -> Result<Held, LockdownError> {
        only_thread()?;
        // First, because it allows seccomp without a capability.
        no_new_privs()?;
        // What a program of root's gets at exec is the bounding set.
        let by_exec: &[_] = match self.calls {
            Calls::Programs => &self.capabilities,
            Calls::Common | Calls::Namespaces => &[],
        };
        keep(&self.capabilities, by_exec)?;
        Ok(Held {
            seccomp: seccomp::install(seccomp, self.calls)?,
            capabilities: self.capabilities,
        })
    }
}

/// Drops every capability for good: exec can't regain any. For a process that starts programs which
/// need none, so without a filter of system calls.
///
/// # Errors
/// There is a second thread, or the kernel refused a step.
pub fn drop_capabilities() -> Result<(), LockdownError> {
    only_thread()?;
    no_new_privs()?;
    keep(&[], &[])
}

/// Whether another user owns this path, of which root needs CAP_DAC_OVERRIDE then; or, until it is
/// there, the first of its parent directories that is.
///
/// Open vSwitch may start after the daemon, so its socket may not exist yet. Its directory is
/// created at boot, owned by the user that Open vSwitch runs as (tmpfiles.d), who will own the
/// socket too.
pub fn is_anothers(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let found = path.ancestors().find_map(|path| path.metadata().ok());
    nix::unistd::geteuid().is_root() && found.is_some_and(|metadata| metadata.uid() != 0)
}

fn only_thread() -> Result<(), LockdownError> {
    const TASKS: &str = "/proc/self/task";
    let count = |source| LockdownError::Count {
        path: TASKS,
        source,
    };
    match std::fs::read_dir(TASKS).map_err(count)?.count() {
        1 => Ok(()),
        count => Err(LockdownError::Threads { count }),
    }
}

fn no_new_privs() -> Result<(), LockdownError> {
    nix::sys::prctl::set_no_new_privs().map_err(|errno| LockdownError::NoNewPrivs(errno.into()))
}

/// Drops all other capabilities from every set. The bounding set goes first, since that takes
/// CAP_SETPCAP. With nothing more in the bounding set than `by_exec`, nothing inheritable and
/// no_new_privs, no exec can regain one.
fn keep(wanted: &[Capability], by_exec: &[Capability]) -> Result<(), LockdownError> {
    let failed = |step| move |source| LockdownError::Capabilities { step, source };
    let held = caps::read(None, CapSet::Permitted).map_err(failed("read the capabilities"))?;
    let missing: Vec<_> = wanted
        .iter()
        .copied()
        .filter(|wanted| !held.contains(wanted))
        .collect();
    if !missing.is_empty() {
        return Err(LockdownError::Lacking { missing });
    }
    caps::clear(None, CapSet::Ambient).map_err(failed("clear the ambient capabilities"))?;
    // A container may lack CAP_SETPCAP. What its bounding set still has can't be gained either,
    // because with no_new_privs exec grants nothing.
    if held.contains(&Capability::CAP_SETPCAP) {
        let bounding =
            caps::read(None, CapSet::Bounding).map_err(failed("read the bounding set"))?;
        for other in bounding.into_iter().filter(|it| !by_exec.contains(it)) {
            caps::drop(None, CapSet::Bounding, other).map_err(failed("clear the bounding set"))?;
        }
    }
    let kept: CapsHashSet = wanted.iter().copied().collect();
    caps::clear(None, CapSet::Inheritable).map_err(failed("clear the inheritable capabilities"))?;
    caps::set(None, CapSet::Effective, &kept).map_err(failed("drop effective capabilities"))?;
    caps::set(None, CapSet::Permitted, &kept).map_err(failed("drop permitted capabilities"))
}

/// `CAP_NET_ADMIN, CAP_SYS_ADMIN; seccomp enforce`.
impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let capabilities = match &*self.capabilities {
            [] => "no capability".to_owned(),
            some => some.iter().join(", "),
        };
        let seccomp = match self.seccomp {
            Seccomp::Enforce => "enforce",
            Seccomp::Log => "log",
            Seccomp::Off => "off",
        };
        write!(f, "{capabilities}; seccomp {seccomp}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_of_this_user_or_none_at_all_is_nobody_else_s() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_anothers(dir.path()));
        assert!(!is_anothers(&dir.path().join("run/openvswitch/db.sock")));
    }

    #[test]
    fn another_users_directory_tells_that_its_socket_will_be_another_users() {
        let dir = tempfile::tempdir().unwrap();
        let openvswitch = dir.path().join("openvswitch");
        std::fs::create_dir(&openvswitch).unwrap();
        std::os::unix::fs::chown(&openvswitch, Some(4242), None).unwrap();
        assert!(is_anothers(&openvswitch.join("db.sock")));
    }

    #[test]
    fn a_process_with_threads_is_refused() {
        // A test's thread is never the first of its process.
        let none = Privileges {
            capabilities: Vec::new(),
            calls: Calls::Common,
        };
        assert!(matches!(
            none.keep(Seccomp::Off),
            Err(LockdownError::Threads { count: 2.. })
        ));
    }
}
