//! Changes of files: inotify as something to wait for.
//!
//! The events only tell when to read again, never what has changed: one change often concerns
//! several files, or a symlink (a mounted ConfigMap), or is a rename.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use hyper::body::Buf as _;
use nix::errno::Errno;
use nix::libc;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use tokio::net::unix::pipe;

/// The events of files in directories, or in the nearest ones above them that exist.
#[derive(Debug)]
pub struct FileEvents {
    /// inotify's descriptor. tokio has no safe type for it, and this one waits until it is readable
    /// and reads it.
    events: pipe::Receiver,
    /// By watch, for a directory of which only some names matter: those of files, or that of a
    /// directory until it is made. Everything matters in the others.
    awaited: Names,
}

type Names = HashMap<i32, HashSet<Vec<u8>>>;

/// The size of `struct inotify_event` without the name: watch, mask, cookie and the name's length
/// (inotify(7)).
const HEADER: usize = 4 * size_of::<u32>();

/// Events that mean a file has new content. Its creation is none: it is empty then.
const FILES: AddWatchFlags = AddWatchFlags::IN_CLOSE_WRITE
    .union(AddWatchFlags::IN_MOVE)
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR);
/// Events of a file that was written elsewhere and moved here.
const ARRIVALS: AddWatchFlags = AddWatchFlags::IN_MOVED_TO.union(AddWatchFlags::IN_ONLYDIR);
/// Events after which a name in a directory is nobody's.
const REMOVALS: AddWatchFlags = AddWatchFlags::IN_MOVED_FROM
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR);
/// Events after which a name in a directory is another file's, or nobody's.
const NAMES: AddWatchFlags = AddWatchFlags::IN_MOVE
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_ONLYDIR);
/// Events after which a file is no longer in its place.
const END: AddWatchFlags = AddWatchFlags::IN_DELETE_SELF
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_DONT_FOLLOW);
/// Events after which a directory may exist.
const MAKING: AddWatchFlags = FILES.union(AddWatchFlags::IN_CREATE);

impl FileEvents {
    /// Watches a directory's files or, while the directory is missing, the nearest one above it
    /// that exists. No event after it returns is missed.
    ///
    /// # Errors
    /// inotify refused: a limit (fs.inotify.max_user_instances), or the directory can't be entered.
    pub fn of(directory: &Path) -> io::Result<Self> {
        Self::watch(&[directory], FILES)
    }

    /// Like [`Self::of`], for any of several directories.
    ///
    /// # Errors
    /// As those of [`Self::of`].
    pub fn of_any(directories: &[&Path]) -> io::Result<Self> {
        Self::watch(directories, FILES)
    }

    /// Like [`Self::of`], for files that are complete when they are created: sockets.
    ///
    /// # Errors
    /// As those of [`Self::of`].
    pub fn of_sockets(directory: &Path) -> io::Result<Self> {
        Self::watch(&[directory], MAKING)
    }

    /// Like [`Self::of`], for files that only arrive by a rename: other events, such as their
    /// removal, wake nobody.
    ///
    /// # Errors
    /// As those of [`Self::of`].
    pub fn of_arrivals(directory: &Path) -> io::Result<Self> {
        Self::watch(&[directory], ARRIVALS)
    }

    /// Like [`Self::of`], for the removal of files: others that are made or written wake nobody.
    ///
    /// # Errors
    /// As those of [`Self::of`].
    pub fn of_removals(directory: &Path) -> io::Result<Self> {
        Self::watch(&[directory], REMOVALS)
    }

    /// Watches for the removal of files, for their replacement by others, and for the removal of
    /// their directories, which are created if they are missing: whoever writes other files beside
    /// them wakes nobody.
    ///
    /// # Errors
    /// As those of [`Self::of`]; or a directory can't be created.
    pub fn of_names(files: &[PathBuf]) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let mut awaited = Names::new();
        for (directory, name) in files
            .iter()
            .filter_map(|it| it.parent().zip(it.file_name()))
        {
            let watch = watch_made(&inotify, directory)?;
            let names = awaited.entry(watch.as_raw()).or_default();
            names.insert(name.as_bytes().to_owned());
        }
        Self::begin(inotify, awaited)
    }

    /// Watches for the end of a file and of a directory: it is removed, moved or replaced. Only
    /// what exists now is watched.
    ///
    /// # Errors
    /// As those of [`Self::of`].
    pub fn of_end(file: &Path, directory: &Path) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        // A file that is still open loses its name (IN_ATTRIB) before it is deleted
        // (IN_DELETE_SELF). For a directory, IN_ATTRIB would report its files too.
        for (path, wanted) in [
            (directory, END),
            (file, END.union(AddWatchFlags::IN_ATTRIB)),
        ] {
            match inotify.add_watch(path, wanted) {
                Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Self::begin(inotify, HashMap::new())
    }

    fn watch(directories: &[&Path], wanted: AddWatchFlags) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let (mut whole, mut awaited) = (HashSet::new(), HashMap::new());
        for directory in directories {
            add(&inotify, directory, wanted, (&mut whole, &mut awaited))?;
        }
        awaited.retain(|watch, _| !whole.contains(watch));
        Self::begin(inotify, awaited)
    }

    fn begin(inotify: Inotify, awaited: Names) -> io::Result<Self> {
        Ok(Self {
            events: pipe::Receiver::from_owned_fd_unchecked(inotify.into())?,
            awaited,
        })
    }

    /// Waits for the first event that matters. An overflow of the queue (IN_Q_OVERFLOW) matters: it
    /// belongs to no watch.
    ///
    /// # Errors
    /// inotify's descriptor can't be read.
    pub async fn next(&self) -> io::Result<()> {
        loop {
            self.events.readable().await?;
            match self.read() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes events that are queued, and returns whether one of them matters.
    fn read(&self) -> io::Result<bool> {
        let mut buffer = [0; 4096];
        let count = self.events.try_read(&mut buffer)?;
        Ok(self.matters(&buffer[..count]))
    }

    fn matters(&self, mut events: &[u8]) -> bool {
        while events.len() >= HEADER {
            let watch = events.get_i32_ne();
            events.advance(size_of::<u32>() * 2);
            let length = events.get_u32_ne() as usize;
            let (name, rest) = events.split_at(length.min(events.len()));
            events = rest;
            // NULs pad it. An event without a name concerns the directory itself.
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            let awaited = self.awaited.get(&watch).filter(|_| !name.is_empty());
            if awaited.is_none_or(|awaited| awaited.contains(name)) {
                return true;
            }
        }
        false
    }
}

/// Watches a directory and adds its watch to `whole`; or, where it does not exist, the nearest one
/// above it, with the name in it that is `awaited`.
fn add(
    inotify: &Inotify,
    directory: &Path,
    wanted: AddWatchFlags,
    (whole, awaited): (&mut HashSet<i32>, &mut Names),
) -> io::Result<()> {
    loop {
        let mut missing: Option<&Path> = None;
        for place in directory.ancestors() {
            let flags = if missing.is_none() { wanted } else { MAKING };
            // One path may be above two of them.
            let flags = flags | AddWatchFlags::from_bits_retain(libc::IN_MASK_ADD);
            match inotify.add_watch(place, flags) {
                Ok(watch) => {
                    if let Some(name) = missing.and_then(Path::file_name) {
                        let names = awaited.entry(watch.as_raw()).or_default();
                        names.insert(name.as_bytes().to_owned());
                    } else {
                        whole.insert(watch.as_raw());
                    }
                    break;
                }
                Err(Errno::ENOENT | Errno::ENOTDIR) => missing = Some(place),
                Err(errno) => return Err(errno.into()),
            }
        }
        // A directory created before its parent was watched caused no event.
        if !missing.is_some_and(Path::is_dir) {
            return Ok(());
        }
    }
}

/// How often a directory is made again that somebody removes before it is watched.
const MOST_REMOVALS: usize = 100;

/// Watches a directory for [`NAMES`], and makes it if it is missing.
fn watch_made(inotify: &Inotify, directory: &Path) -> io::Result<WatchDescriptor> {
    let mut removals = 0;
    loop {
        let made = match directory.exists() {
            true => Ok(()),
            false => fs::create_dir_all(directory),
        };
        let watched = made.and_then(|()| Ok(inotify.add_watch(directory, NAMES)?));
        match watched {
            Err(error) if error.kind() == io::ErrorKind::NotFound && removals < MOST_REMOVALS => {
                removals += 1;
            }
            watched => return watched,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn beside_a_directory_that_does_not_exist_only_its_creation_matters() {
        let above = tempfile::tempdir().unwrap();
        let directory = above.path().join("node");
        let beside = above.path().join("addresses.json");
        let changes = FileEvents::of(&directory).unwrap();
        fs::write(above.path().join("tmp"), "").unwrap();
        fs::rename(above.path().join("tmp"), &beside).unwrap();
        fs::remove_file(&beside).unwrap();
        changes.events.readable().await.unwrap();
        assert!(!changes.read().unwrap(), "files beside it were changed");
        fs::create_dir(&directory).unwrap();
        changes.next().await.unwrap();
    }

    #[tokio::test]
    async fn everything_matters_in_a_directory_that_is_above_another_and_watched_itself() {
        let above = tempfile::tempdir().unwrap();
        let missing = above.path().join("node");
        for directories in [[above.path(), &missing], [&missing, above.path()]] {
            let changes = FileEvents::of_any(&directories).unwrap();
            fs::write(above.path().join("podwire.toml"), "").unwrap();
            changes.next().await.unwrap();
        }
    }
}
