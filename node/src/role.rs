//! The role's state on this machine, for the agent's tools: the part of `podwire node show` that
//! needs no settings.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use podwire_daemon::file::if_there;
use serde::Serialize;

use crate::alive::{self, PATIENCE};
use crate::journal::Journal;
use crate::moved::Moved;
use crate::record::{self, Restored, RunState, STATE};

/// The directory of the role below that of podwire's run files.
pub const DIRECTORY: &str = "node";

/// The state of `podwire node run`, running or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Role {
    /// Whether its process is there.
    pub runs: bool,
    /// Whether its process is there and does not answer.
    pub hangs: bool,
    /// Whether every item was as planned in its last report.
    pub well: bool,
    /// Its last status text.
    pub status: String,
    /// Number of changes that cleanup would undo.
    pub made: usize,
    /// A NIC in its bridge that is moved back unless somebody confirms: until when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unconfirmed: Option<String>,
    /// What it restored since cleanup or boot, oldest first; only the last ones if there are many.
    pub restored: Vec<Restored>,
    /// The same under its former name, for one more release.
    pub put_back: Vec<Restored>,
}

impl Role {
    /// Whether it runs, and keeps everything.
    pub fn is_well(&self) -> bool {
        self.runs && !self.hangs && self.well
    }

    /// Its status, or that it does not run, or hangs.
    pub fn said(&self) -> Cow<'_, str> {
        match (self.runs, self.hangs) {
            (true, false) => self.status.as_str().into(),
            (true, true) => format!(
                "does not answer within {} s: what it created stays, but nothing restores it. Its \
                 last status: {}",
                PATIENCE.as_secs(),
                self.status
            )
            .into(),
            (false, _) => "does not run: what it created stays, but nothing restores it".into(),
        }
    }
}

/// The state of the role in this directory; None if `podwire node run` never ran.
///
/// # Errors
/// The files can't be read.
pub async fn role(directory: &Path) -> io::Result<Option<Role>> {
    let Some(text) = if_there(fs::read(directory.join(STATE)))? else {
        return Ok(None);
    };
    let RunState { well, status } = serde_json::from_slice(&text)?;
    let journal = Journal::read(directory).map_err(io::Error::other)?;
    let moved = Moved::read(directory).map_err(io::Error::other)?;
    let restored = record::read(directory);
    let runs = is_held(directory)?;
    Ok(Some(Role {
        runs,
        hangs: runs && alive::hangs(directory).await,
        well,
        status,
        made: journal.undos().len(),
        unconfirmed: moved.as_ref().and_then(Moved::unconfirmed),
        put_back: restored.clone(),
        restored,
    }))
}

/// Whether a `podwire node` process has locked the directory.
fn is_held(directory: &Path) -> io::Result<bool> {
    match Flock::lock(File::open(directory)?, FlockArg::LockSharedNonblock) {
        Ok(_) => Ok(false),
        Err((_, Errno::EWOULDBLOCK)) => Ok(true),
        Err((_, errno)) => Err(errno.into()),
    }
}
