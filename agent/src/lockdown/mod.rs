//! Gives up, before the first thread is started, all power that the agent does not need:
//! no_new_privs, every capability but a few, and every system call but those that a network agent
//! makes.
//!
//! All three belong to threads and not to the process, and threads inherit them from the one that
//! starts them. So [`apply`] is called once, by the only thread there is, and says so when there is
//! another. The spawner of IPAM plugins is started before, for exec hands the lock-down on; it does
//! [`apply_for_plugins`] itself.

mod capabilities;
mod seccomp;
mod syscalls;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use caps::errors::CapsError;

pub use capabilities::{Needs, Reason};

use crate::config::{Config, Mode, Seccomp};

/// What the agent holds from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    capabilities: Vec<caps::Capability>,
    seccomp: Seccomp,
}

/// Why the power could not be given up. The agent does not run with more than it was meant to have.
#[derive(Debug, thiserror::Error)]
pub enum LockdownError {
    /// What is given up now, other threads would keep.
    #[error("the agent already runs {count} threads, which would keep what this one gives up")]
    Threads {
        /// How many there are.
        count: usize,
    },
    /// The threads could not be counted.
    #[error("count the agent's threads in {path}: {source}")]
    Count {
        /// Where they are listed.
        path: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A capability that is needed is not there to keep.
    #[error("the agent lacks {}: start it as root, or grant it", names(missing))]
    Lacking {
        /// What is missing.
        missing: Vec<caps::Capability>,
    },
    /// A set of capabilities could not be read or changed.
    #[error("{step}: {source}")]
    Capabilities {
        /// What was attempted.
        step: &'static str,
        /// What the kernel said.
        source: CapsError,
    },
    /// no_new_privs could not be set.
    #[error("set no_new_privs: {0}")]
    NoNewPrivs(#[source] io::Error),
    /// The filter could not be built.
    #[error("build the seccomp filter: {0}")]
    Build(#[from] seccompiler::BackendError),
    /// The kernel did not take the filter.
    #[error("install the seccomp filter (--seccomp=off runs without): {0}")]
    Install(#[from] seccompiler::Error),
}

/// Gives up everything but what `needs` asks for.
///
/// # Errors
/// When there is a second thread, when something needed is not there, or when the kernel refuses a
/// step.
pub fn apply(needs: &Needs, seccomp: Seccomp) -> Result<Held, LockdownError> {
    only_thread()?;
    // First: it lets seccomp be used without a capability.
    nix::sys::prctl::set_no_new_privs().map_err(|errno| LockdownError::NoNewPrivs(errno.into()))?;
    let wanted: Vec<_> = needs.with_reasons().map(|(kept, _)| kept).collect();
    let capabilities = capabilities::keep(&wanted)?;
    let seccomp = seccomp::install(seccomp)?;
    Ok(Held {
        capabilities,
        seccomp,
    })
}

/// Gives up every capability, for good: exec can bring none back. That is for who starts other
/// programs, so there is no filter of system calls.
///
/// # Errors
/// When there is a second thread, or when the kernel refuses a step.
pub fn apply_for_plugins() -> Result<(), LockdownError> {
    only_thread()?;
    nix::sys::prctl::set_no_new_privs().map_err(|errno| LockdownError::NoNewPrivs(errno.into()))?;
    capabilities::keep(&[]).map(drop)
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

impl Needs {
    /// What a configuration needs.
    pub fn of(config: &Config) -> Self {
        let ovn = (config.ovn.mode == Mode::Ovn).then_some(&config.ovn.rundir);
        Self {
            other_processes_namespaces: config.power.proc_netns,
            foreign_socket: [Some(&config.ovsdb), Some(&config.ovs_rundir), ovn]
                .into_iter()
                .flatten()
                .find_map(|path| foreign(path)),
        }
    }
}

/// The first of a path and the directories above it that is there, when it belongs to somebody
/// other than this process.
///
/// Open vSwitch may start later than the agent, and then there is no socket yet; but its directory
/// is made at boot, for the user that Open vSwitch runs as (tmpfiles.d), and tells as well whose
/// socket it will be.
fn foreign(path: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::MetadataExt as _;
    let own = nix::unistd::geteuid().as_raw();
    let (found, metadata) = path
        .ancestors()
        .find_map(|path| Some((path, std::fs::metadata(path).ok()?)))?;
    (metadata.uid() != own).then(|| found.to_owned())
}

/// `CAP_NET_ADMIN, CAP_SYS_ADMIN; seccomp enforce`.
impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seccomp = match self.seccomp {
            Seccomp::Enforce => "enforce",
            Seccomp::Log => "log",
            Seccomp::Off => "off",
        };
        write!(f, "{}; seccomp {seccomp}", names(&self.capabilities))
    }
}

fn names(capabilities: &[caps::Capability]) -> String {
    let names: Vec<String> = capabilities.iter().map(ToString::to_string).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_of_this_user_or_none_at_all_needs_no_capability() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(foreign(dir.path()), None);
        assert_eq!(foreign(&dir.path().join("run/openvswitch/db.sock")), None);
    }

    #[test]
    fn another_users_directory_tells_that_its_socket_will_be_another_users() {
        let dir = tempfile::tempdir().unwrap();
        let openvswitch = dir.path().join("openvswitch");
        std::fs::create_dir(&openvswitch).unwrap();
        std::os::unix::fs::chown(&openvswitch, Some(4242), None).unwrap();
        assert_eq!(
            foreign(&openvswitch.join("db.sock")).as_deref(),
            Some(openvswitch.as_path())
        );
    }

    #[test]
    fn a_process_with_threads_is_refused() {
        // The test's own thread is never the process's first.
        assert!(matches!(
            apply(&Needs::default(), Seccomp::Off),
            Err(LockdownError::Threads { count: 2.. })
        ));
    }
}
