//! The record of a NIC that is moved into a bridge: what the kernel had on it, on disk before the
//! first change of the move, so that any process can move it back.
//!
//! It is on tmpfs, like the journal: the kernel's part does not outlive a boot. What does, the rows
//! of Open vSwitch, has podwire's mark. Whoever changes the record, or what it is about, holds its
//! lock.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use netlink_packet_route::address::{AddressMessage, AddressScope};
use netlink_packet_route::neighbour::NeighbourMessage;
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::rule::RuleMessage;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::wire::hexed;

/// A NIC and its bridge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Moved {
    pub(crate) nic: String,
    pub(crate) bridge: String,
    pub(crate) phase: Phase,
    /// What the NIC had before.
    pub(crate) had: Held,
}

/// How far a move is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    /// It is moved back at this time (RFC 3339, in UTC), unless it is confirmed before.
    Moving {
        until: String,
    },
    Confirmed,
    /// It was moved back, for this reason.
    RolledBack {
        why: String,
    },
}

/// What the kernel has on a link, as it lists it, in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Held {
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

impl Held {
    /// Whether there is an address that others can reach.
    pub(crate) fn has_addresses(&self) -> bool {
        let mut addresses = self.addresses.iter();
        addresses.any(|message| message.header.scope == AddressScope::Universe)
    }
}

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

/// The record's path.
pub(crate) fn file(directory: &Path) -> PathBuf {
    directory.join(DIRECTORY).join(FILE)
}

/// The lock of the record, and of the move itself.
pub(crate) type Lock = Flock<File>;

/// Waits for the lock; None if another process has it, and `waits` is false.
pub(crate) fn lock(directory: &Path, waits: bool) -> Result<Option<Lock>, MovedError> {
    let directory = directory.join(DIRECTORY);
    fs::create_dir_all(&directory).map_err(failed("make", &directory))?;
    let opened = File::open(&directory).map_err(failed("open", &directory))?;
    let how = match waits {
        true => FlockArg::LockExclusive,
        false => FlockArg::LockExclusiveNonblock,
    };
    match Flock::lock(opened, how) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(failed("lock", &directory)(errno.into())),
    }
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
        let new = path.with_extension("new");
        let text = serde_json::to_vec(self).map_err(io::Error::from);
        let written = text.and_then(|text| {
            let parent = directory.join(DIRECTORY);
            fs::create_dir_all(&parent)?;
            let mut file = File::create(&new)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(parent)?.sync_all()
        });
        written.map_err(failed("write", &path))
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

    /// Whether the NIC is in the bridge, or on its way.
    pub(crate) fn is_there(&self) -> bool {
        !matches!(self.phase, Phase::RolledBack { .. })
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> MovedError + use<> {
    let path = path.to_owned();
    move |source| MovedError { what, path, source }
}
