//! Errors, one variant for each step that can fail; each names its object.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use itertools::Itertools as _;
use nix::errno::Errno;

/// Why a path is not accepted as a pod's network namespace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetnsError {
    /// Nothing exists there.
    #[error("network namespace {path} does not exist")]
    Absent {
        /// As given.
        path: PathBuf,
    },
    /// Something else exists there.
    #[error("{path} is {found}, not a network namespace")]
    NotANamespace {
        /// As given.
        path: PathBuf,
        /// What it is, with its article.
        found: &'static str,
    },
    /// It is the agent's own namespace; wiring a pod there would reconfigure the host.
    #[error("{path} is the host's own network namespace")]
    OwnNamespace {
        /// As given.
        path: PathBuf,
    },
    /// It is given by process, and the agent lacks CAP_SYS_PTRACE (proc_ns_follow_link in
    /// fs/proc/namespaces.c).
    #[error(
        "network namespace {path} is named by a process that the agent may not inspect: start the \
         agent with --proc-netns, or make the runtime name namespaces by mounts"
    )]
    OfProcess {
        /// As given.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("cannot {step} network namespace {path}: {errno}")]
    Io {
        /// The operation: "open", "identify".
        step: &'static str,
        /// As given.
        path: PathBuf,
        /// The kernel's answer.
        errno: Errno,
    },
}

/// The kernel's refusal of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The error number.
    pub errno: Errno,
    /// The text in netlink's extended ack, if any.
    pub text: Option<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.errno)?;
        match &self.text {
            Some(text) => write!(f, " ({text})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    /// The refusal of a list that changed each time it was read.
    pub(super) fn upset(attempts: usize) -> Self {
        Refusal {
            errno: Errno::EINTR,
            text: Some(format!(
                "changed under each of {attempts} attempts to list it"
            )),
        }
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Refusal { errno, text: None }
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Errno::from_raw(errno).into(),
            None => Refusal {
                errno: Errno::EIO,
                text: Some(error.to_string()),
            },
        }
    }
}

/// A step of this module that failed. Cloneable, because one deletion in a group answers several
/// callers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A socket that this module needs could not be opened or configured.
    #[error("cannot open the {what} socket: {refusal}")]
    OpenSocket {
        /// Which one.
        what: &'static str,
        /// The kernel's answer.
        refusal: Refusal,
    },
    /// A thread could not be started.
    #[error("cannot start thread {thread}: {refusal}")]
    StartThread {
        /// Its name.
        thread: &'static str,
        /// The kernel's answer.
        refusal: Refusal,
    },
    /// The threads have ended: the agent is shutting down.
    #[error("the netlink threads have stopped")]
    Stopped,
    /// The namespace could not be entered to open a socket in it.
    #[error("cannot enter network namespace {netns}: {refusal}")]
    EnterNetns {
        /// Its path.
        netns: PathBuf,
        /// The kernel's answer.
        refusal: Refusal,
    },
    /// The pod already has an interface with that name (CNI spec, ADD: this must be an error).
    #[error("interface {name} already exists in {netns}")]
    PodInterfaceExists {
        /// The interface.
        name: String,
        /// The namespace's path.
        netns: PathBuf,
    },
    /// All candidate names for the host end are taken by other links.
    #[error("no free name for the host end: {} taken", names.join(", "))]
    HostNamesTaken {
        /// The candidates.
        names: Vec<String>,
    },
    /// The kernel refused to create the pair.
    #[error("cannot create the veth pair {host} and {pod} in {netns}: {refusal}")]
    MakePair {
        /// Host end.
        host: String,
        /// Pod end.
        pod: String,
        /// The pod's namespace.
        netns: PathBuf,
        /// The kernel's answer.
        refusal: Refusal,
    },
    /// A sysctl could not be read or written.
    #[error("cannot set sysctl {name} to {value}: {refusal}")]
    Sysctl {
        /// Below /proc/sys, with slashes.
        name: String,
        /// The value to write.
        value: &'static str,
        /// The kernel's answer.
        refusal: Refusal,
    },
    /// A link could not be set up.
    #[error("cannot set link {link} up: {refusal}")]
    SetUp {
        /// The link.
        link: String,
        /// The kernel's answer.
        refusal: Refusal,
    },
    /// An address was refused.
    #[error("cannot set address {address} on {link}: {refusal}")]
    SetAddress {
        /// The address.
        address: IpNet,
        /// The link.
        link: String,
        /// The kernel's answer.
        refusal: Refusal,
    },
    /// An address could not be removed.
    #[error("cannot remove address {address} from {link}: {refusal}")]
    RemoveAddress {
        /// The address.
        address: IpNet,
        /// The link.
        link: String,
        /// The kernel's answer.
        refusal: Refusal,
    },
    /// A route was refused.
    #[error("cannot set route {route} on {link}: {refusal}")]
    SetRoute {
        /// The route, as `ip route` writes it.
        route: String,
        /// The link.
        link: String,
        /// The kernel's answer.
        refusal: Refusal,
    },
    /// The route's destination is taken by a route over another interface or gateway.
    #[error("cannot set route {route} on {link}: {existing} is in its place")]
    RouteTaken {
        /// The route, as `ip route` writes it.
        route: String,
        /// The link.
        link: String,
        /// The existing route.
        existing: String,
    },
    /// TX checksum offload could not be switched off.
    #[error("cannot switch TX checksum offload off on {link}: {refusal}")]
    TxChecksum {
        /// The link.
        link: String,
        /// The kernel's answer.
        refusal: Refusal,
    },
    /// A gratuitous ARP or an unsolicited neighbour advertisement could not be sent.
    #[error("cannot announce {address}: {refusal}")]
    Announce {
        /// The address.
        address: IpAddr,
        /// The kernel's answer.
        refusal: Refusal,
    },
    /// Links could not be deleted.
    #[error("cannot delete link {link}: {refusal}")]
    Delete {
        /// The first of them.
        link: String,
        /// The kernel's answer.
        refusal: Refusal,
    },
    /// Something could not be read.
    #[error("cannot read {what}: {refusal}")]
    Read {
        /// What.
        what: String,
        /// The kernel's answer.
        refusal: Refusal,
    },
    /// Conntrack entries could not be removed.
    #[error(
        "cannot flush the conntrack entries of {}: {refusal}",
        addresses.iter().join(", ")
    )]
    FlushConntrack {
        /// The addresses.
        addresses: Vec<IpAddr>,
        /// The kernel's answer.
        refusal: Refusal,
    },
    /// A link did not appear in time.
    #[error(
        "waited {} ms for link {link} to appear; there is no link of that name",
        waited.as_millis()
    )]
    LinkAwaited {
        /// Its name.
        link: String,
        /// How long podwire waited.
        waited: Duration,
    },
}

impl Error {
    /// The kernel's refusal, if the step failed because of one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Error::OpenSocket { refusal, .. }
            | Error::StartThread { refusal, .. }
            | Error::EnterNetns { refusal, .. }
            | Error::MakePair { refusal, .. }
            | Error::Sysctl { refusal, .. }
            | Error::SetUp { refusal, .. }
            | Error::SetAddress { refusal, .. }
            | Error::RemoveAddress { refusal, .. }
            | Error::SetRoute { refusal, .. }
            | Error::TxChecksum { refusal, .. }
            | Error::Announce { refusal, .. }
            | Error::Delete { refusal, .. }
            | Error::Read { refusal, .. }
            | Error::FlushConntrack { refusal, .. } => Some(refusal),
            _ => None,
        }
    }

    /// Whether the step failed because its link is gone.
    pub(super) fn link_is_gone(&self) -> bool {
        match self {
            Error::SetAddress { refusal, .. } | Error::SetUp { refusal, .. } => {
                refusal.errno == Errno::ENODEV
            }
            _ => false,
        }
    }
}
