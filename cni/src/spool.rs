//! DELs that no agent took: one file each, in a directory beside the agent's socket, written by the
//! plugin and carried out by the agent.
//!
//! Both sides reach the directory by descriptor, and only after they have seen that root alone can
//! change it and what holds it. A file is whole from the moment that it bears its name: written
//! and synced under another, then renamed. Times are of CLOCK_BOOTTIME, which no clock step moves;
//! the directory is on tmpfs and ends with the boot that they count from.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{UnlinkatFlags, fsync, geteuid, unlinkat};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::wire::MAX_REQUEST;

/// The directory's name, beside the agent's socket.
pub const DIRECTORY: &str = "spool";
/// The most files that it may hold.
pub const MAX_ENTRIES: usize = 1024;
/// The most bytes that they may have together.
pub const MAX_BYTES: u64 = 16 << 20;

const SUFFIX: &str = ".del";
const UNFINISHED: &str = ".tmp";
/// The format of the files.
const FORMAT: u32 = 1;
/// What is written around a request, at the most.
const ENVELOPE: usize = 128;
/// No plugin takes this long to write a file: what is older was left by one that was killed.
const ABANDONED: u64 = 120 * 1_000_000_000;

/// Why the spool can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// A step on it failed.
    #[error("{step} {}: {}", .path.display(), .errno.desc())]
    Io {
        /// What was attempted.
        step: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        errno: Errno,
    },
    /// Somebody else than root could change what is in it.
    #[error(
        "{} belongs to uid {uid} with mode {mode:o}; it must belong to root and be writable by nobody else",
        .path.display()
    )]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its permission bits.
        mode: u32,
    },
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
pub struct Spool {
    path: PathBuf,
    directory: OwnedFd,
}

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
        let run_dir = socket.parent().unwrap_or(Path::new("/"));
        let holder = open_directory(AT_FDCWD, run_dir, run_dir, 0o022)?;
        let path = run_dir.join(DIRECTORY);
        let directory = open_directory(&holder, Path::new(DIRECTORY), &path, 0o077)?;
        Ok(Self { path, directory })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes one request, given in parts, and syncs it to the disk, if there is one.
    ///
    /// # Errors
    /// [`SpoolError::Full`], or a step failed; nothing is left then.
    pub fn write(&self, request: &[&[u8]]) -> Result<Name, SpoolError> {
        let (mut entries, mut bytes) = (0, 0);
        for file in self.files()? {
            entries += 1;
            bytes += self.size(&file).unwrap_or(0);
        }
        let more: usize = request.iter().map(|part| part.len()).sum();
        if entries >= MAX_ENTRIES || bytes + more as u64 > MAX_BYTES {
            return Err(SpoolError::Full {
                path: self.path.clone(),
                entries,
                bytes,
            });
        }
        let now = boottime();
        let stem = format!("{now:020}-{}", std::process::id());
        let (unfinished, name) = (format!("{stem}{UNFINISHED}"), format!("{stem}{SUFFIX}"));
        let written = self
            .write_unfinished(&unfinished, now, request)
            .and_then(|()| {
                renameat(
                    &self.directory,
                    unfinished.as_str(),
                    &self.directory,
                    name.as_str(),
                )
                .map_err(self.failed("rename", &unfinished))
            });
        if let Err(error) = written {
            let _ = unlinkat(
                &self.directory,
                unfinished.as_str(),
                UnlinkatFlags::NoRemoveDir,
            );
            return Err(error);
        }
        fsync(&self.directory).map_err(self.failed("sync", ""))?;
        Ok(Name(name))
    }

    /// The requests that wait, oldest first. What a killed plugin left unfinished is removed.
    ///
    /// # Errors
    /// The directory can't be read.
    pub fn names(&self) -> Result<Vec<Name>, SpoolError> {
        let (mut names, now) = (Vec::new(), boottime());
        for file in self.files()? {
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
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = match openat(&self.directory, name.0.as_str(), flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(self.failed("open", &name.0)(errno)),
        };
        let malformed = |problem: String| SpoolError::Malformed {
            path: self.path.join(&name.0),
            problem,
        };
        let found = fstat(&file).map_err(self.failed("look at", &name.0))?;
        if !is_kind(&found, SFlag::S_IFREG) {
            return Err(malformed("it is not a plain file".to_owned()));
        }
        let limit = MAX_REQUEST + ENVELOPE;
        let mut text = Vec::new();
        File::from(file)
            .take(limit as u64 + 1)
            .read_to_end(&mut text)
            .map_err(|error| self.failed("read", &name.0)(errno_of(&error)))?;
        if text.len() > limit {
            return Err(malformed(format!("it has more than {limit} bytes")));
        }
        Spooled::parse(&text).map(Some).map_err(malformed)
    }

    /// Removes one; that it is gone is no error.
    ///
    /// # Errors
    /// It stays.
    pub fn remove(&self, name: &Name) -> Result<(), SpoolError> {
        match unlinkat(&self.directory, name.0.as_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(self.failed("remove", &name.0)(errno)),
        }
    }

    fn write_unfinished(&self, name: &str, now: u64, request: &[&[u8]]) -> Result<(), SpoolError> {
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(
            &self.directory,
            name,
            flags,
            Mode::from_bits_truncate(0o600),
        )
        .map_err(self.failed("make", name))?;
        let mut file = File::from(file);
        let head = format!("{{\"format\":{FORMAT},\"written\":{now},\"request\":");
        let parts = [head.as_bytes()].into_iter().chain(request.iter().copied());
        for part in parts.chain([&b"}"[..]]) {
            file.write_all(part)
                .map_err(|error| self.failed("write", name)(errno_of(&error)))?;
        }
        fsync(file.as_fd()).map_err(self.failed("sync", name))
    }

    /// The names of all files.
    fn files(&self) -> Result<Vec<String>, SpoolError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut listing = Dir::openat(&self.directory, ".", flags, Mode::empty())
            .map_err(self.failed("list", ""))?;
        Ok(listing
            .iter()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned))
            .filter(|name| name != "." && name != "..")
            .collect())
    }

    fn size(&self, name: &str) -> Option<u64> {
        let found = fstatat(
            &self.directory,
            name,
            nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW,
        )
        .ok()?;
        u64::try_from(found.st_size).ok()
    }

    fn failed(&self, step: &'static str, name: &str) -> impl Fn(Errno) -> SpoolError + use<> {
        let path = self.path.join(name);
        move |errno| SpoolError::Io {
            step,
            path: path.clone(),
            errno,
        }
    }
}

/// Opens a directory, made with mode 0700 when it is missing, that nobody else has any of these
/// permissions on.
fn open_directory(
    holder: impl std::os::fd::AsFd,
    name: &Path,
    shown: &Path,
    forbidden: u32,
) -> Result<OwnedFd, SpoolError> {
    let io = |step| {
        move |errno| SpoolError::Io {
            step,
            path: shown.to_owned(),
            errno,
        }
    };
    match mkdirat(&holder, name, Mode::from_bits_truncate(0o700)) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(io("make directory")(errno)),
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let directory = openat(&holder, name, flags, Mode::empty()).map_err(io("open"))?;
    let found = fstat(&directory).map_err(io("look at"))?;
    let mode = found.st_mode & 0o7777;
    if found.st_uid != geteuid().as_raw() || mode & forbidden != 0 {
        return Err(SpoolError::Unsafe {
            path: shown.to_owned(),
            uid: found.st_uid,
            mode,
        });
    }
    Ok(directory)
}

fn is_kind(found: &FileStat, kind: SFlag) -> bool {
    SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == kind
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests;
