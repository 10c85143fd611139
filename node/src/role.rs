//! How the role stands on this machine, for the agent's tools: what `podwire node show` reads of it
//! that needs no settings.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::Serialize;

use crate::journal::Journal;
use crate::kept::{self, PutBack, STATE, State};

/// The directory of the role below that of podwire's run files.
pub const DIRECTORY: &str = "node";

/// How `podwire node run` stands, or was left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Role {
    /// Whether it runs.
    pub runs: bool,
    /// Whether every item was as it should be when it said so last.
    pub well: bool,
    /// What it said last of how it stands.
    pub status: String,
    /// How many things cleanup would undo.
    pub made: usize,
    /// What was put back since cleanup or boot, oldest first; of many, the last ones.
    pub put_back: Vec<PutBack>,
}

/// How the role stands whose directory this is; none where `podwire node run` never ran.
///
/// # Errors
/// What is there can't be read.
pub fn role(directory: &Path) -> io::Result<Option<Role>> {
    let text = match fs::read(directory.join(STATE)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let State { well, status } = serde_json::from_slice(&text)?;
    let journal = Journal::read(directory).map_err(io::Error::other)?;
    Ok(Some(Role {
        runs: is_held(directory)?,
        well,
        status,
        made: journal.undos().len(),
        put_back: kept::read(directory),
    }))
}

/// Whether a `podwire node` has the directory's lock.
fn is_held(directory: &Path) -> io::Result<bool> {
    match Flock::lock(File::open(directory)?, FlockArg::LockSharedNonblock) {
        Ok(_) => Ok(false),
        Err((_, Errno::EWOULDBLOCK)) => Ok(true),
        Err((_, errno)) => Err(errno.into()),
    }
}
