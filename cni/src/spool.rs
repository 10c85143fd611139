//! DELs that no agent took: one file each, in a directory beside the agent's socket, written by the
//! plugin and executed by the agent.
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
/// The maximum number of files.
pub const MAX_ENTRIES: usize = 1024;
/// The maximum total size, in bytes.
pub const MAX_BYTES: u64 = 16 << 20;

const SUFFIX: &str = ".del";
/// The format of the files.
const FORMAT: u32 = 1;
/// The maximum size of what surrounds a request.
const ENVELOPE: usize = 128;
/// No plugin takes this long to write a file: an older one was left by a plugin that was killed.
const ABANDONED: u64 = 120 * 1_000_000_000;

/// Why the spool can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The directory or a file in it failed.
    #[error("{0}")]
    Dir(#[from] DirError),
    /// There is no room for another one.
    #[error("{} is full: {entries} requests of {bytes} bytes wait for the agent", .path.display())]
    Full {
        /// The directory.
        path: PathBuf,
        /// Its number of files.
        entries: usize,
        /// Their size in bytes.
        bytes: u64,
    },
    /// The file was not written by podwire.
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

/// A file's name; sorts by time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(String);

/// A DEL as it was spooled.
#[derive(Debug)]
pub struct Spooled {
    /// The time, on [`boottime`]'s clock.
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
    /// Parses a file's content.
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
    // The clock exists since Linux 2.6.39, and its value fits for 500 years.
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(std::time::Duration::ZERO, Into::into);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

impl Spool {
    /// Opens the spool of an agent's socket, and creates it (and the run directory, if needed) with
    /// mode 0700.
    ///
    /// # Errors
    /// It can't be created or opened, or someone other than root could change it.
    pub fn open(socket: &Path) -> Result<Self, SpoolError> {
        let run_dir = PrivateDir::open(socket.parent().unwrap_or(Path::new("/")))?;
        Ok(Self(run_dir.below(DIRECTORY)?))
    }

    /// Its path.
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

    /// The waiting requests, oldest first. Removes what a killed plugin left unfinished.
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

    /// Reads one; `None` if it is gone, for example because its plugin took it back.
    ///
    /// # Errors
    /// It can't be read, or [`Self::write`] did not write it.
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

    /// Removes one; does nothing if it is gone.
    ///
    /// # Errors
    /// It can't be removed.
    pub fn remove(&self, name: &Name) -> Result<(), SpoolError> {
        Ok(self.0.remove(&name.0)?)
    }
}

#[cfg(test)]
mod tests;
