//! Gives up all privileges that the agent does not need, before the first thread starts: sets
//! no_new_privs, drops all but a few capabilities, and allows only the system calls of a network
//! agent.
//!
//! All three belong to threads, not to the process, and each thread inherits them from the one that
//! starts it. So [`apply`] is called once, by the only thread, and fails if there is another. The
//! spawner of IPAM plugins starts earlier, because the lock-down survives exec; it calls
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

/// Why the privileges could not be dropped. The agent does not run with more than intended.
#[derive(Debug, thiserror::Error)]
pub enum LockdownError {
    /// Other threads would keep what is dropped now.
    #[error(
        "the agent already runs {count} threads, which would keep the privileges that this one \
         drops"
    )]
    Threads {
        /// Number of threads.
        count: usize,
    },
    /// The threads could not be counted.
    #[error("count the agent's threads in {path}: {source}")]
    Count {
        /// Where they are listed.
        path: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// A capability that is needed is missing.
    #[error("the agent lacks {}: start it as root, or grant it", names(missing))]
    Lacking {
        /// The missing capabilities.
        missing: Vec<caps::Capability>,
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

/// Drops everything except what `needs` requires.
///
/// # Errors
/// There is a second thread, something needed is missing, or the kernel refused a step.
pub fn apply(needs: &Needs, seccomp: Seccomp) -> Result<Held, LockdownError> {
    only_thread()?;
    // First, because it allows seccomp without a capability.
    nix::sys::prctl::set_no_new_privs().map_err(|errno| LockdownError::NoNewPrivs(errno.into()))?;
    let wanted: Vec<_> = needs.with_reasons().map(|(kept, _)| kept).collect();
    let capabilities = capabilities::keep(&wanted)?;
    let seccomp = seccomp::install(seccomp)?;
    Ok(Held {
        capabilities,
        seccomp,
    })
}

/// Drops every capability for good: exec can't regain any. For a process that starts other
/// programs, so without a filter of system calls.
///
/// # Errors
/// There is a second thread, or the kernel refused a step.
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

/// The first existing path among this one and its parent directories, if another user owns it.
///
/// Open vSwitch may start after the agent, so the socket may not exist yet. Its directory is
/// created at boot, owned by the user that Open vSwitch runs as (tmpfiles.d), who will own the
/// socket too.
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
        // A test's thread is never the first of its process.
        assert!(matches!(
            apply(&Needs::default(), Seccomp::Off),
            Err(LockdownError::Threads { count: 2.. })
        ));
    }
}
