//! Files that are whole, and on disk.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Writes a file so that after a loss of power it is there, whole, if this has returned. Its
/// readers may be other users: systemd-networkd's is one.
pub(super) fn write(path: &str, text: &str) -> io::Result<()> {
    let new = format!("{path}.new");
    let directory = Path::new(path).parent().unwrap_or(Path::new("/"));
    if !directory.exists() {
        fs::create_dir_all(directory)?;
        fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    }
    let mut file = File::create(&new)?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    // The name in its directory, and that of a directory that is new.
    for directory in [Some(directory), directory.parent()].into_iter().flatten() {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}
