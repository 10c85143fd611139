//! Files that are whole, and on disk.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Replaces a file, or makes it: after a loss of power it is there, whole, if this has returned.
/// One that can't be written leaves the former.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    write(path, content, None)
}

/// The same, with its directory, for a reader that is another user, as systemd-networkd's is.
pub(crate) fn publish(path: &Path, content: &[u8]) -> io::Result<()> {
    let directory = directory(path);
    if !directory.exists() {
        fs::create_dir_all(directory)?;
        fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    }
    write(path, content, Some(0o644))
}

fn directory(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

fn write(path: &Path, content: &[u8], mode: Option<u32>) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let mut file = File::create(&new)?;
    if let Some(mode) = mode {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    // The name in its directory, and that of a directory that is new.
    let directory = directory(path);
    for directory in [Some(directory), directory.parent()].into_iter().flatten() {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}
