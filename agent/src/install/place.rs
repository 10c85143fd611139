//! Puts whole files in place: a file is written without a name, or beside its destination, synced,
//! and linked or renamed. A runtime that execs the plugin or reads a configuration at that moment
//! gets the old file or the new one. A running program keeps the file that it was started from
//! (writing into it would fail with ETXTBSY).

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags};
use podwire_daemon::file::{FileError, if_there};

/// Suffix of another owner's file that podwire's replaced. No runtime reads or execs a file with
/// this name.
const BACKUP: &str = ".before-podwire";
/// Suffix of a file being written. Runtimes ignore it.
const UNFINISHED: &str = ".podwire-new";
/// More than any plugin or configuration has, in bytes.
const LARGEST: u64 = 256 << 20;

/// Reads a file; `None` if there is none.
///
/// # Errors
/// It can't be read, or is larger than anything that belongs here.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    let read = || {
        let mut content = Vec::new();
        File::open(path)?
            .take(LARGEST + 1)
            .read_to_end(&mut content)?;
        match content.len() as u64 > LARGEST {
            true => Err(io::ErrorKind::FileTooLarge.into()),
            false => Ok(content),
        }
    };
    if_there(read()).map_err(FileError::of("read", path))
}

/// Puts a file with this content and mode at `path`; on failure, leaves the present one unchanged.
///
/// # Errors
/// A step failed; nothing is left of it.
pub(super) fn put(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    let directory = parent(path);
    fs::create_dir_all(directory).map_err(FileError::of("make directory", directory))?;
    if !is_there(path) && link_new(path, content, mode).is_ok() {
        return sync(directory);
    }
    let unfinished = beside(path, UNFINISHED);
    let placed = write(&unfinished, content, mode)
        .and_then(|()| fs::rename(&unfinished, path).map_err(FileError::of("rename", path)));
    if placed.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    placed?;
    sync(directory)
}

/// Puts a new file in place without an intermediate name. A runtime that watches an empty directory
/// tries to read each file that appears there, and logs an error while none is a complete
/// configuration. So the file is written without a name in the parent directory (open(2),
/// O_TMPFILE) and linked. This fails if the two are on different file systems, or theirs does not
/// support it.
fn link_new(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .mode(0o600)
        .custom_flags(nix::libc::O_TMPFILE)
        .open(parent(parent(path)))?;
    fill(&mut file, content, mode)?;
    // Closed for writing before it gets a name; otherwise an exec would fail with ETXTBSY.
    let readable = File::open(by_descriptor(&file))?;
    drop(file);
    let followed = AtFlags::AT_SYMLINK_FOLLOW;
    nix::unistd::linkat(
        AT_FDCWD,
        by_descriptor(&readable).as_str(),
        AT_FDCWD,
        path,
        followed,
    )?;
    let is_program = mode & 0o111 != 0;
    match content.split_last() {
        Some((last, before)) if !is_program => {
            // containerd reloads when a file is written, renamed or removed, but not when one is
            // created (go-cni's watch in its CRI plugin); a link is a creation.
            let named = OpenOptions::new().write(true).open(path)?;
            named.write_all_at(&[*last], before.len() as u64)
        }
        _ => Ok(()),
    }
}

fn by_descriptor(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Keeps the file at `path` under another name. An earlier copy stays, because it is what was there
/// before podwire.
///
/// # Errors
/// It can't be linked there.
pub(super) fn keep(path: &Path) -> Result<PathBuf, FileError> {
    let kept = beside(path, BACKUP);
    match fs::hard_link(path, &kept) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(FileError::of("keep a copy as", &kept)(error)),
    }
    Ok(kept)
}

/// Removes a file, and returns whether it existed.
///
/// # Errors
/// It can't be removed.
pub(super) fn remove(path: &Path) -> Result<bool, FileError> {
    match if_there(fs::remove_file(path)).map_err(FileError::of("remove", path))? {
        Some(()) => sync(parent(path)).map(|()| true),
        None => Ok(false),
    }
}

/// The file that [`keep`] kept for `path`, if any.
pub(super) fn kept(path: &Path) -> Option<PathBuf> {
    let kept = beside(path, BACKUP);
    is_there(&kept).then_some(kept)
}

fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Restores the name of a kept file.
///
/// # Errors
/// It stays under the other name.
pub(super) fn give_back(path: &Path) -> Result<(), FileError> {
    fs::rename(beside(path, BACKUP), path).map_err(FileError::of("give back", path))?;
    sync(parent(path))
}

/// Writes and syncs a new file. A leftover with the same name, or a link that somebody put there,
/// is removed and not followed.
fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    let failed = |step| FileError::of(step, path);
    if_there(fs::remove_file(path)).map_err(failed("remove"))?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(failed("make"))?;
    fill(&mut file, content, mode).map_err(failed("write"))
}

fn fill(file: &mut File, content: &[u8], mode: u32) -> io::Result<()> {
    file.write_all(content)?;
    // Independent of the umask.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.sync_all()
}

fn sync(directory: &Path) -> Result<(), FileError> {
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(FileError::of("sync", directory))
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

    use super::*;

    #[test]
    fn a_file_is_whole_with_the_permissions_asked_for_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("net.d/10-podwire.conflist");
        put(&path, b"new", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn who_watches_the_directory_sees_the_new_file_come_and_then_written() {
        let above = tempfile::tempdir().unwrap();
        let dir = above.path().join("net.d");
        fs::create_dir(&dir).unwrap();
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
        let all = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE;
        inotify.add_watch(&dir, all).unwrap();
        let path = dir.join("10-podwire.conflist");
        put(&path, b"new", 0o600).unwrap();
        let seen = inotify.read_events().unwrap();
        let seen: Vec<_> = seen.into_iter().map(|it| (it.mask, it.name)).collect();
        let name = Some("10-podwire.conflist".into());
        let expected = [AddWatchFlags::IN_CREATE, AddWatchFlags::IN_MODIFY];
        assert_eq!(seen, expected.map(|mask| (mask, name.clone())));
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn a_link_is_replaced_and_what_it_leads_to_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (path, aim) = (dir.path().join("plugin"), dir.path().join("aim"));
        fs::write(&aim, "other").unwrap();
        symlink(&aim, &path).unwrap();
        symlink(&aim, beside(&path, UNFINISHED)).unwrap();
        put(&path, b"new", 0o755).unwrap();
        assert_eq!(fs::read(&aim).unwrap(), b"other");
        assert!(!fs::symlink_metadata(&path).unwrap().is_symlink());
    }

    #[test]
    fn a_place_that_can_not_be_written_names_the_step_and_keeps_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugin");
        fs::create_dir(&path).unwrap();
        let error = put(&path, b"new", 0o755).unwrap_err().to_string();
        assert!(error.starts_with("rename "), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_was_there_first_is_what_is_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugin");
        for content in ["theirs", "ours", "ours again"] {
            if path.exists() {
                keep(&path).unwrap();
            }
            put(&path, content.as_bytes(), 0o755).unwrap();
        }
        assert!(remove(&path).unwrap() && !remove(&path).unwrap());
        give_back(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"theirs");
    }
}
