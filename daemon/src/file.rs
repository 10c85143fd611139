//! Files: an operation that failed, and files that need not be there.

use std::io;
use std::path::{Path, PathBuf};

/// An operation on a file that failed.
#[derive(Debug, thiserror::Error)]
#[error("{step} {}: {source}", .path.display())]
pub struct FileError {
    step: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl FileError {
    /// That this step failed with this file.
    pub fn of(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self { step, path, source }
    }
}

/// What was found; None if there is no such file.
///
/// # Errors
/// All but that.
pub fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}
