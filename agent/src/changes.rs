//! Changes in a directory: inotify as something to wait for.
//!
//! The events only tell when to read again, never what has changed: one change often concerns
//! several files, or a symlink (a mounted ConfigMap), or is a rename.

use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::net::unix::pipe;

/// The next event in a directory, or in the nearest one above it that exists.
///
/// The descriptor is inotify's. tokio has no safe type for it, and this one only waits until it is
/// readable.
#[derive(Debug)]
pub(crate) struct Changes(pipe::Receiver);

/// Events that mean a file has new content. Its creation is none: it is empty then.
const FILES: AddWatchFlags = AddWatchFlags::IN_CLOSE_WRITE
    .union(AddWatchFlags::IN_MOVE)
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR);
/// Events of a file that was written elsewhere and moved here.
const ARRIVALS: AddWatchFlags = AddWatchFlags::IN_MOVED_TO.union(AddWatchFlags::IN_ONLYDIR);
/// Events after which a file is no longer in its place.
const END: AddWatchFlags = AddWatchFlags::IN_DELETE_SELF
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_DONT_FOLLOW);
/// Events after which a directory may exist.
const MAKING: AddWatchFlags = FILES.union(AddWatchFlags::IN_CREATE);

impl Changes {
    /// Watches a directory's files or, while the directory is missing, the nearest one above it
    /// that exists. No event after it returns is missed.
    ///
    /// # Errors
    /// inotify refused: a limit (fs.inotify.max_user_instances), or the directory can't be entered.
    pub(crate) fn of(directory: &Path) -> io::Result<Self> {
        Self::watch(&[directory], FILES)
    }

    /// Like [`Self::of`], for any of several directories.
    ///
    /// # Errors
    /// As those of [`Self::of`].
    pub(crate) fn of_any(directories: &[&Path]) -> io::Result<Self> {
        Self::watch(directories, FILES)
    }

    /// Like [`Self::of`], for files that are complete when they are created: sockets.
    ///
    /// # Errors
    /// As those of [`Self::of`].
    pub(crate) fn of_sockets(directory: &Path) -> io::Result<Self> {
        Self::watch(&[directory], MAKING)
    }

    /// Like [`Self::of`], for files that only arrive by a rename: other events, such as their
    /// removal, wake nobody.
    ///
    /// # Errors
    /// As those of [`Self::of`].
    pub(crate) fn of_arrivals(directory: &Path) -> io::Result<Self> {
        Self::watch(&[directory], ARRIVALS)
    }

    /// Watches for the end of a file and of a directory: it is removed, moved or replaced. Only
    /// what exists now is watched.
    ///
    /// # Errors
    /// As those of [`Self::of`].
    pub(crate) fn of_end(file: &Path, directory: &Path) -> io::Result<Self> {
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
        pipe::Receiver::from_owned_fd_unchecked(inotify.into()).map(Self)
    }

    fn watch(directories: &[&Path], wanted: AddWatchFlags) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        for directory in directories {
            add(&inotify, directory, wanted)?;
        }
        pipe::Receiver::from_owned_fd_unchecked(inotify.into()).map(Self)
    }

    /// Waits for the first event. Every wait has its own watch, so the queue never overflows.
    pub(crate) async fn next(&self) -> io::Result<()> {
        self.0.readable().await
    }
}

fn add(inotify: &Inotify, directory: &Path, wanted: AddWatchFlags) -> io::Result<()> {
    loop {
        let mut missing = None;
        for place in directory.ancestors() {
            let flags = if missing.is_none() { wanted } else { MAKING };
            // One path may be above two of them.
            let flags = flags | AddWatchFlags::from_bits_retain(libc::IN_MASK_ADD);
            match inotify.add_watch(place, flags) {
                Ok(_) => break,
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
