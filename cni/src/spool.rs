//! DELs that no agent took: one file each, in a directory beside the agent's socket, written by the
//! plugin and carried out by the agent.
//!
//! Times are of CLOCK_BOOTTIME, which no clock step moves; the directory is on tmpfs and ends with
//! the boot that they count from.

use std::path::{Path, PathBuf};

use nix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::private_dir::{DirError, PrivateDir, UNFINISHED};
use crate::wire::MAX_REQUEST;

/// The directory's name, beside the agent's socket.
pub const DIRECTORY: &str = "spool";
/// The most files that it may hold.
pub const MAX_ENTRIES: usize = 1024;
/// The most bytes that they may have together.
pub const MAX_BYTES: u64 = 16 << 20;

const SUFFIX: &str = ".del";
/// The format of the files.
const FORMAT: u32 = 1;
/// What is written around a request, at the most.
const ENVELOPE: usize = 128;
/// No plugin takes this long to write a file: what is older was left by one that was killed.
const ABANDONED: u64 = 120 * 1_000_000_000;

/// Why the spool can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The directory or a file in it.
    #[error("{0}")]
    Dir(#[from] DirError),
    /// There is no room for one more.
    #[error("{} is full: {entries} requests of {bytes} bytes wait for the agent", .path.display())]
    Full {
        /// The directory.
        path: PathBuf,
        /// How many files it has.
        entries: usize,
        /// Their bytes.
        bytes: u64,
    },
    /// A file is not one of ours.
    #[error("{}: {problem}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

/// The directory, open.
#[derive(Debug)]
pub struct Spool(PrivateDir);

/// A file's name; in order of time when sorted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(String);

/// A DEL as it was spooled.
#[derive(Debug)]
pub struct Spooled {
    /// When, on [`boottime`]'s clock.
    pub written: u64,
    /// The request, as [`crate::wire::Request`] encodes it.
    pub request: Box<RawValue>,
}

#[derive(Deserialize)]
struct Form {
    format: u32,
    written: u64,
    request: Box<RawValue>,
}

impl Spooled {
    /// Reads a file's content.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        // A parser may quote a whole value.
        let brief = |error: serde_json::Error| error.to_string().chars().take(300).collect();
        let form: Form = serde_json::from_slice(text).map_err::<String, _>(brief)?;
        if form.format != FORMAT {
            return Err(format!("its format is {}, not {FORMAT}", form.format));
        }
        Ok(Self {
            written: form.written,
            request: form.request,
        })
    }
}

/// Nanoseconds since boot, suspended time included.
pub fn boottime() -> u64 {
    // The clock exists since Linux 2.6.39, and its reading fits for 500 years.
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(std::time::Duration::ZERO, Into::into);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

impl Spool {
    /// Opens the spool that goes with an agent's socket, and makes it (and the run directory, when
    /// nothing has yet) with mode 0700.
    ///
    /// # Errors
    /// It can't be made or opened, or somebody else than root could change it.
    pub fn open(socket: &Path) -> Result<Self, SpoolError> {
        let run_dir = PrivateDir::open(socket.parent().unwrap_or(Path::new("/")))?;
        Ok(Self(run_dir.below(DIRECTORY)?))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes one request, given in parts, and syncs it to the disk, if there is one.
    ///
    /// # Errors
    /// [`SpoolError::Full`], or a step failed; nothing is left then.
    pub fn write(&self, request: &[&[u8]]) -> Result<Name, SpoolError> {
        let (mut entries, mut bytes) = (0, 0);
        for file in self.0.names()? {
            entries += 1;
            bytes += self.0.size(&file).unwrap_or(0);
        }
        let more: usize = request.iter().map(|part| part.len()).sum();
        if entries >= MAX_ENTRIES || bytes + more as u64 > MAX_BYTES {
            return Err(SpoolError::Full {
                path: self.path().to_owned(),
                entries,
                bytes,
            });
        }
        let now = boottime();
        let name = format!("{now:020}-{}{SUFFIX}", std::process::id());
        let head = format!("{{\"format\":{FORMAT},\"written\":{now},\"request\":");
        let parts = [&[head.as_bytes()][..], request, &[b"}"]].concat();
        self.0.write_synced(&name, &parts)?;
        Ok(Name(name))
    }

    /// The requests that wait, oldest first. What a killed plugin left unfinished is removed.
    ///
    /// # Errors
    /// The directory can't be read.
    pub fn names(&self) -> Result<Vec<Name>, SpoolError> {
        let (mut names, now) = (Vec::new(), boottime());
        for file in self.0.names()? {
            if file.ends_with(SUFFIX) {
                names.push(Name(file));
            } else if let Some(stem) = file.strip_suffix(UNFINISHED) {
                let begun = stem.split('-').next().and_then(|time| time.parse().ok());
                if begun.is_none_or(|begun: u64| now.saturating_sub(begun) > ABANDONED) {
                    let _ = self.remove(&Name(file));
                }
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Reads one; `None` when it is gone, as one is that its plugin took back.
    ///
    /// # Errors
    /// It can't be read, or is not a file as [`Self::write`] makes them.
    pub fn read(&self, name: &Name) -> Result<Option<Spooled>, SpoolError> {
        let malformed = |problem: String| SpoolError::Malformed {
            path: self.path().join(&name.0),
            problem,
        };
        match self.0.read(&name.0, MAX_REQUEST + ENVELOPE) {
            Ok(None) => Ok(None),
            Ok(Some(text)) => Spooled::parse(&text).map(Some).map_err(malformed),
            Err(DirError::NotOurs { problem, .. }) => Err(malformed(problem)),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes one; that it is gone is no error.
    ///
    /// # Errors
    /// It stays.
    pub fn remove(&self, name: &Name) -> Result<(), SpoolError> {
        Ok(self.0.remove(&name.0)?)
    }
}

#[cfg(test)]
mod tests;
