//! The record of a NIC that is moved into a bridge: what the kernel had on it, on disk before the
//! first change of the move, so that any process can move it back.
//!
//! It is on tmpfs, like the journal: the kernel's part does not outlive a boot. What does, the rows
//! of Open vSwitch, has podwire's mark. Whoever changes the record, or what it is about, holds its
//! lock.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::neighbour::NeighbourMessage;
use netlink_packet_route::route::{RouteMessage, RouteProtocol};
use netlink_packet_route::rule::RuleMessage;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::time::ClockId;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::files;
use crate::wire::hexed;

/// A NIC and its bridge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Moved {
    pub(crate) nic: String,
    pub(crate) bridge: String,
    pub(crate) phase: Phase,
    /// What the NIC had before.
    #[serde(alias = "had")]
    pub(crate) config: NicConfig,
}

/// How far a move is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    /// A process moves it. It is moved back if that ends, and at the deadline.
    Moving(Deadline),
    /// It is in the bridge, and is moved back at the deadline unless a person confirms before.
    Awaits(Deadline),
    Confirmed,
    /// It was moved back, for this reason.
    RolledBack {
        why: String,
    },
}

/// When a move is undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Deadline {
    /// For people: RFC 3339, in UTC. It also tells one move from another.
    pub(crate) until: String,
    /// In milliseconds of CLOCK_MONOTONIC: the time of day may be set.
    at: u64,
    /// The process that moves the NIC.
    pub(crate) mover: u32,
}

impl Deadline {
    /// For a move by this process.
    pub(crate) fn within(time: Duration) -> Self {
        let until = Timestamp::now().checked_add(time);
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            until: until.map_or_else(|_| String::new(), |until| format!("{until:.9}")),
            at: now().saturating_add(ms),
            mover: std::process::id(),
        }
    }

    /// The time until it.
    pub(crate) fn left(&self) -> Duration {
        Duration::from_millis(self.at.saturating_sub(now()))
    }
}

/// Since the boot, in milliseconds.
fn now() -> u64 {
    // This clock is always there (clock_gettime(2)).
    let now = ClockId::CLOCK_MONOTONIC
        .now()
        .map_or_else(|_| Duration::ZERO, Duration::from);
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// What the kernel has on a link, as it lists it, in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NicConfig {
    #[serde(with = "hexed")]
    pub(crate) addresses: Vec<AddressMessage>,
    /// Of every table, but those that the kernel makes for addresses.
    #[serde(with = "hexed")]
    pub(crate) routes: Vec<RouteMessage>,
    /// Those that name the link.
    #[serde(with = "hexed")]
    pub(crate) rules: Vec<RuleMessage>,
    /// Permanent ones, and those of gateways.
    #[serde(with = "hexed")]
    pub(crate) neighbours: Vec<NeighbourMessage>,
}

impl NicConfig {
    /// Whether there is an address that others can reach.
    pub(crate) fn has_addresses(&self) -> bool {
        let mut addresses = self.addresses.iter();
        addresses.any(|message| message.header.scope == AddressScope::Universe)
    }
}

/// Whether an address has a lifetime, which somebody renews.
pub(crate) fn is_leased(message: &AddressMessage) -> bool {
    message
        .attributes
        .iter()
        .any(|it| matches!(it, AddressAttribute::CacheInfo(life) if life.ifa_valid != FOREVER))
}

/// Whether the kernel makes no route for an address.
pub(crate) fn has_no_route(message: &AddressMessage) -> bool {
    has_flag(message, AddressFlags::Noprefixroute)
}

/// Whether an address has a flag.
pub(crate) fn has_flag(message: &AddressMessage, flag: AddressFlags) -> bool {
    let has = |it: &AddressAttribute| match it {
        AddressAttribute::Flags(flags) => flags.contains(flag),
        _ => false,
    };
    message.attributes.iter().any(has)
}

/// Whether somebody renews a route, by DHCP or router advertisements.
pub(crate) fn is_learned(message: &RouteMessage) -> bool {
    matches!(
        message.header.protocol,
        RouteProtocol::Dhcp | RouteProtocol::Ra
    )
}

/// The lifetime of an address that has none.
pub(crate) const FOREVER: u32 = u32::MAX;

/// Why the record can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{what} {}: {source}", path.display())]
pub(crate) struct MovedError {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Below the journal's directory; the directory is what is locked.
const DIRECTORY: &str = "uplink";
const FILE: &str = "record";
/// What a guard locks while it watches, with its process id.
const GUARD: &str = "guard";

/// The record's path.
pub(crate) fn file(directory: &Path) -> PathBuf {
    directory.join(DIRECTORY).join(FILE)
}

/// The lock of the record, and of the move itself.
pub(crate) type Lock = Flock<File>;

/// Locks it; None if another process has it.
pub(crate) fn lock(directory: &Path) -> Result<Option<Lock>, MovedError> {
    let (path, opened) = open(directory)?;
    now_or_never(opened, &path)
}

/// The lock of the one guard; None if another process has it.
pub(crate) fn lock_guard(directory: &Path) -> Result<Option<Lock>, MovedError> {
    let (path, opened) = open_guard(directory)?;
    now_or_never(opened, &path)
}

/// Waits for the lock, on a thread of its own: it ends with the process if nobody waits any longer.
pub(crate) async fn wait_for_lock(directory: &Path) -> Result<Lock, MovedError> {
    let (path, opened) = open(directory)?;
    locked(opened).await.map_err(failed("lock", &path))
}

/// Waits until no other process is the guard.
pub(crate) async fn wait_for_guard(directory: &Path) -> Result<Lock, MovedError> {
    let (path, opened) = open_guard(directory)?;
    locked(opened).await.map_err(failed("lock", &path))
}

fn open(directory: &Path) -> Result<(PathBuf, File), MovedError> {
    let directory = directory.join(DIRECTORY);
    fs::create_dir_all(&directory).map_err(failed("make", &directory))?;
    let opened = File::open(&directory).map_err(failed("open", &directory))?;
    Ok((directory, opened))
}

fn open_guard(directory: &Path) -> Result<(PathBuf, File), MovedError> {
    open(directory)?;
    let path = directory.join(DIRECTORY).join(GUARD);
    let mut options = File::options();
    let opened = options.create(true).truncate(false).write(true).open(&path);
    let opened = opened.map_err(failed("open", &path))?;
    Ok((path, opened))
}

fn now_or_never(opened: File, path: &Path) -> Result<Option<Lock>, MovedError> {
    match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(failed("lock", path)(errno.into())),
    }
}

/// A process that waits for a lock can't be notified, and tokio's own threads hold up its end.
async fn locked(opened: File) -> io::Result<Lock> {
    let (done, waits) = oneshot::channel();
    std::thread::Builder::new()
        .name("lock".to_owned())
        .spawn(move || {
            let locked = Flock::lock(opened, FlockArg::LockExclusive);
            // Nobody may wait any longer.
            let _ = done.send(locked.map_err(|(_, errno)| io::Error::from(errno)));
        })?;
    waits
        .await
        .map_err(|_| io::ErrorKind::Interrupted.into())
        .flatten()
}

/// Writes down which process is the guard, for people.
pub(crate) fn name_guard(lock: &mut Lock) {
    let _ = lock.set_len(0);
    let _ = writeln!(lock, "{}", std::process::id());
}

impl Moved {
    /// The record, if there is one.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>, MovedError> {
        let path = file(directory);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        let read = serde_json::from_slice(&text).map_err(io::Error::from);
        read.map(Some).map_err(failed("read", &path))
    }

    /// Writes it whole or not at all, and on disk.
    pub(crate) fn write(&self, directory: &Path) -> Result<(), MovedError> {
        let path = file(directory);
        let text = serde_json::to_vec(self).map_err(io::Error::from);
        let written = text.and_then(|text| {
            fs::create_dir_all(directory.join(DIRECTORY))?;
            files::replace(&path, &text)
        });
        written.map_err(failed("write", &path))
    }

    /// Removes the directory, if there is nothing in it.
    pub(crate) fn tidy(directory: &Path) {
        let _ = fs::remove_dir(directory.join(DIRECTORY));
    }

    /// Removes the record, of which nothing is left to be undone.
    pub(crate) fn forget(directory: &Path) -> Result<(), MovedError> {
        let directory = directory.join(DIRECTORY);
        match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove", &directory)(error))
            }
            _ => Ok(()),
        }
    }

    /// When it is undone, unless something is done before.
    pub(crate) fn deadline(&self) -> Option<&Deadline> {
        match &self.phase {
            Phase::Moving(deadline) | Phase::Awaits(deadline) => Some(deadline),
            Phase::Confirmed | Phase::RolledBack { .. } => None,
        }
    }

    /// What a person still has to do, if it is that.
    pub(crate) fn unconfirmed(&self) -> Option<String> {
        let Phase::Awaits(Deadline { until, .. }) = &self.phase else {
            return None;
        };
        let Self { nic, bridge, .. } = self;
        Some(format!(
            "{nic} is in {bridge} until {until}: log in anew, and run `podwire node confirm`, or \
             it is moved back"
        ))
    }

    /// Whether the NIC is in the bridge, or on its way.
    pub(crate) fn is_there(&self) -> bool {
        !matches!(self.phase, Phase::RolledBack { .. })
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> MovedError + use<> {
    let path = path.to_owned();
    move |source| MovedError { what, path, source }
}
