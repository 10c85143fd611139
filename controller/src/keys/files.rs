//! Files and directories that only root reads, written as a whole.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use podwire_daemon::file::{FileError, if_there};

use super::KeysError;

/// Makes a directory, with those above it, unless it is there.
pub(super) fn make_directory(path: &Path) -> Result<(), FileError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
        .create(path)
        .map_err(FileError::of("make the directory", path))
}

/// Keeps other processes of this command out while the value lives.
pub(super) fn lock(directory: &Path) -> Result<File, KeysError> {
    let opened = File::open(directory).map_err(FileError::of("open", directory))?;
    match opened.try_lock() {
        Ok(()) => Ok(opened),
        Err(TryLockError::WouldBlock) => Err(KeysError::Locked(directory.to_owned())),
        Err(TryLockError::Error(error)) => Err(FileError::of("lock", directory)(error).into()),
    }
}

/// The names of a directory's directories; none if it does not exist.
pub(super) fn directories(path: &Path) -> Result<Vec<String>, FileError> {
    let entries = if_there(fs::read_dir(path)).map_err(FileError::of("read", path))?;
    let mut names = Vec::new();
    for entry in entries.into_iter().flatten() {
        let entry = entry.map_err(FileError::of("read", path))?;
        if entry.path().is_dir() {
            names.extend(entry.file_name().into_string());
        }
    }
    names.sort();
    Ok(names)
}

/// A file's content as text; None if it does not exist.
pub(super) fn read(path: &Path) -> Result<Option<String>, FileError> {
    if_there(fs::read_to_string(path)).map_err(FileError::of("read", path))
}

/// Replaces a file. Whoever reads it meanwhile sees the old content or the new one.
pub(super) fn write(path: &Path, text: &str, mode: u32) -> Result<(), FileError> {
    let temporary = path.with_extension("new");
    let written = || -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode)
            .open(&temporary)?;
        // One that an interrupted run left has its own.
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    written().map_err(FileError::of("write", path))
}
