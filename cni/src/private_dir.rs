//! A directory that only root can change, and the small files in it.
//!
//! It is accessed by descriptor, and only after a check of its owner and mode; no symlink in it is
//! followed. A file with its final name is complete: it is written under another name and renamed.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, geteuid, unlinkat};

/// The suffix of a file being written.
pub const UNFINISHED: &str = ".tmp";

/// The permissions of a directory.
const DIRECTORY_MODE: Mode = Mode::S_IRWXU;

/// Why a directory or a file in it can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// An operation failed.
    #[error("{step} {}: {}", .path.display(), .errno.desc())]
    Io {
        /// The operation.
        step: &'static str,
        /// Its object.
        path: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
    /// Someone other than root could change its content.
    #[error(
        "{} belongs to uid {uid} and has mode {mode:o}; it must belong to root, and only root may \
         write to it",
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
    /// It is a device, a pipe, or larger than any file that is written here.
    #[error("{}: {problem}", .path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        problem: String,
    },
}

impl DirError {
    /// Whether the directory itself was removed.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self,
            Self::Io {
                errno: Errno::ENOENT,
                ..
            }
        )
    }
}

/// The directory, open.
#[derive(Debug)]
pub struct PrivateDir {
    path: PathBuf,
    directory: OwnedFd,
}

impl PrivateDir {
    /// Opens a directory that only root may write to; creates it with mode 0700 if it is missing.
    ///
    /// # Errors
    /// It can't be created or opened, is a symlink, or others may write to it.
    pub fn open(path: &Path) -> Result<Self, DirError> {
        open_directory(AT_FDCWD, path, path.to_owned(), 0o022)
    }

    /// The subdirectory with this name, created with mode 0700 if it is missing.
    ///
    /// # Errors
    /// As those of [`Self::open`], or others may read it.
    pub fn below(&self, name: &str) -> Result<Self, DirError> {
        open_directory(
            &self.directory,
            Path::new(name),
            self.path.join(name),
            0o077,
        )
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Device and inode, which distinguish it from another with the same name.
    ///
    /// # Errors
    /// fstat(2) failed.
    pub fn id(&self) -> Result<(u64, u64), DirError> {
        let found = fstat(&self.directory).map_err(self.failed("look at", ""))?;
        Ok((found.st_dev, found.st_ino))
    }

    /// Removes all permissions of everybody but its owner.
    ///
    /// # Errors
    /// fchmod(2) failed.
    pub fn close_to_others(&self) -> Result<(), DirError> {
        fchmod(&self.directory, DIRECTORY_MODE).map_err(self.failed("close to others", ""))
    }

    /// Writes a file (0600), given in parts, in place of any with this name.
    ///
    /// # Errors
    /// A step failed; the old file stays then.
    pub fn write(&self, name: &str, parts: &[&[u8]]) -> Result<(), DirError> {
        self.write_with(name, parts, |_| Ok(()))
    }

    /// Like [`Self::write`], but also synced to the disk, if there is one.
    ///
    /// # Errors
    /// As those of [`Self::write`].
    pub fn write_synced(&self, name: &str, parts: &[&[u8]]) -> Result<(), DirError> {
        self.write_with(name, parts, |file| fsync(file))?;
        fsync(&self.directory).map_err(self.failed("sync", ""))
    }

    fn write_with(
        &self,
        name: &str,
        parts: &[&[u8]],
        sync: impl FnOnce(&File) -> nix::Result<()>,
    ) -> Result<(), DirError> {
        let unfinished = format!("{name}{UNFINISHED}");
        let flags = OFlag::O_WRONLY
            | OFlag::O_CREAT
            | OFlag::O_TRUNC
            | OFlag::O_NOFOLLOW
            | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let mut written =
            openat(&self.directory, unfinished.as_str(), flags, mode).and_then(|file| {
                let mut file = File::from(file);
                parts
                    .iter()
                    .try_for_each(|part| file.write_all(part))
                    .map_err(|error| errno_of(&error))?;
                sync(&file)
            });
        if written.is_ok() {
            written = renameat(&self.directory, unfinished.as_str(), &self.directory, name);
        }
        written.map_err(|errno| {
            // A symlink with this name too: it would be in the way again.
            let _ = self.remove(&unfinished);
            self.failed("write", name)(errno)
        })
    }

    /// Reads a file of at most `limit` bytes; `None` if there is none.
    ///
    /// # Errors
    /// It can't be read, is a symlink or not a regular file, or is larger.
    pub fn read(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>, DirError> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = match openat(&self.directory, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(self.failed("open", name)(errno)),
        };
        let not_ours = |problem: String| DirError::NotOurs {
            path: self.path.join(name),
            problem,
        };
        let found = fstat(&file).map_err(self.failed("look at", name))?;
        if !is_kind(&found, SFlag::S_IFREG) {
            return Err(not_ours("it is not a plain file".to_owned()));
        }
        let size = usize::try_from(found.st_size).unwrap_or_default();
        // Without a byte of room beside them, the search for the end would begin by growing.
        let mut bytes = Vec::with_capacity(size.min(limit) + 1);
        File::from(file)
            .take(limit as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| self.failed("read", name)(errno_of(&error)))?;
        if bytes.len() > limit {
            return Err(not_ours(format!("it has more than {limit} bytes")));
        }
        Ok(Some(bytes))
    }

    /// Renames a file; does nothing if there is none.
    ///
    /// # Errors
    /// renameat(2) failed.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), DirError> {
        match renameat(&self.directory, from, &self.directory, to) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(self.failed("rename", from)(errno)),
        }
    }

    /// Removes a file; does nothing if there is none.
    ///
    /// # Errors
    /// unlinkat(2) failed.
    pub fn remove(&self, name: &str) -> Result<(), DirError> {
        match unlinkat(&self.directory, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(self.failed("remove", name)(errno)),
        }
    }

    /// The names of all files; names that are not UTF-8 are skipped.
    ///
    /// # Errors
    /// The directory can't be read.
    pub fn names(&self) -> Result<Vec<String>, DirError> {
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

    /// A file's size in bytes, if it exists.
    pub fn size(&self, name: &str) -> Option<u64> {
        let found = fstatat(&self.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
        u64::try_from(found.st_size).ok()
    }

    fn failed(&self, step: &'static str, name: &str) -> impl Fn(Errno) -> DirError + use<> {
        // With an empty name, join would append a slash.
        let path = if name.is_empty() {
            self.path.clone()
        } else {
            self.path.join(name)
        };
        move |errno| DirError::Io {
            step,
            path: path.clone(),
            errno,
        }
    }
}

/// For locks: flock(2) takes a directory as well as a file.
impl AsFd for PrivateDir {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Opens a directory, which is created if it is missing, and on which nobody else has any of these
/// permissions.
fn open_directory(
    holder: impl AsFd,
    name: &Path,
    path: PathBuf,
    forbidden: u32,
) -> Result<PrivateDir, DirError> {
    let io = |step| {
        let path = path.clone();
        move |errno| DirError::Io { step, path, errno }
    };
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let open = || openat(&holder, name, flags, Mode::empty());
    let directory = match open() {
        Err(Errno::ENOENT) => {
            match mkdirat(&holder, name, DIRECTORY_MODE) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(io("make directory")(errno)),
            }
            open()
        }
        opened => opened,
    };
    let directory = directory.map_err(io("open"))?;
    let found = fstat(&directory).map_err(io("look at"))?;
    let (uid, mode) = (found.st_uid, found.st_mode & 0o7777);
    if uid != geteuid().as_raw() || mode & forbidden != 0 {
        return Err(DirError::Unsafe { path, uid, mode });
    }
    Ok(PrivateDir { path, directory })
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

fn is_kind(found: &FileStat, kind: SFlag) -> bool {
    SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == kind
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_file_is_whole_private_and_gone_once_removed() {
        let parent = tempfile::tempdir().unwrap();
        let dir = PrivateDir::open(&parent.path().join("run")).unwrap();
        dir.write("a", &[b"one ", b"two"]).unwrap();
        dir.write_synced("a", &[b"three"]).unwrap();
        assert_eq!(dir.read("a", 5).unwrap().unwrap(), b"three");
        assert!(dir.read("a", 4).is_err());
        assert_eq!(dir.size("a"), Some(5));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&dir.path().join("a")), 0o600);
        assert_eq!(mode(dir.path()), 0o700);
        dir.rename("a", "b").unwrap();
        dir.rename("a", "b").unwrap();
        assert_eq!(dir.names().unwrap(), ["b"]);
        dir.remove("b").unwrap();
        dir.remove("b").unwrap();
        assert_eq!(dir.read("b", 5).unwrap(), None);
    }

    #[test]
    fn no_symlink_is_followed_at_any_level() {
        let parent = tempfile::tempdir().unwrap();
        let victims = parent.path().join("victims");
        fs::create_dir(&victims).unwrap();
        fs::set_permissions(&victims, fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(victims.join("a"), "precious").unwrap();
        let link = parent.path().join("link");
        symlink(&victims, &link).unwrap();
        assert!(PrivateDir::open(&link).is_err());
        let dir = PrivateDir::open(&parent.path().join("run")).unwrap();
        symlink(&victims, dir.path().join("below")).unwrap();
        assert!(dir.below("below").is_err());
        for name in ["a", "b.tmp"] {
            symlink(victims.join("a"), dir.path().join(name)).unwrap();
        }
        assert!(dir.read("a", 100).is_err());
        assert!(dir.write("b", &[b"x"]).is_err());
        dir.write("a", &[b"x"]).unwrap();
        assert_eq!(fs::read(victims.join("a")).unwrap(), b"precious");
    }

    #[test]
    fn a_directory_that_was_removed_says_so() {
        let parent = tempfile::tempdir().unwrap();
        let dir = PrivateDir::open(&parent.path().join("run")).unwrap();
        fs::remove_dir(dir.path()).unwrap();
        assert!(dir.write("a", &[]).unwrap_err().is_not_found());
        assert!(dir.names().unwrap().is_empty());
    }
}
