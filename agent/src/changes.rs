//! What happens in a directory: inotify as something to wait for.
//!
//! The events only say when to look again, never what has changed: one change is often several
//! files, or a symlink (a mounted ConfigMap), or comes by a rename.

use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::net::unix::pipe;

/// What will happen in a directory, or what makes it.
///
/// The descriptor is inotify's: tokio has no safe type for it, and this one only awaits that it can
/// be read.
#[derive(Debug)]
pub(crate) struct Changes(pipe::Receiver);

/// Events that mean a file has become another one. Not its creation: nothing is in it yet.
const FILES: AddWatchFlags = AddWatchFlags::IN_CLOSE_WRITE
    .union(AddWatchFlags::IN_MOVE)
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR);
/// Events by which a file has come that was written elsewhere.
const ARRIVALS: AddWatchFlags = AddWatchFlags::IN_MOVED_TO.union(AddWatchFlags::IN_ONLYDIR);
/// Events by which a thing is no longer where it was.
const END: AddWatchFlags = AddWatchFlags::IN_DELETE_SELF
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_DONT_FOLLOW);
/// Events by which a directory may come to be.
const MAKING: AddWatchFlags = FILES.union(AddWatchFlags::IN_CREATE);

impl Changes {
    /// Watches a directory's files, or while there is none the nearest directory above that is
    /// there. Nothing is missed of what happens after it returns.
    ///
    /// # Errors
    /// inotify refused: a limit (fs.inotify.max_user_instances), or the directory can't be entered.
    pub(crate) fn of(directory: &Path) -> io::Result<Self> {
        Self::watch(&[directory], FILES)
    }

    /// As [`Self::of`], for several directories, of which any may change.
    ///
    /// # Errors
    /// As those of [`Self::of`].
    pub(crate) fn of_any(directories: &[&Path]) -> io::Result<Self> {
        Self::watch(directories, FILES)
    }

    /// As [`Self::of`], for things that are whole when they are made: sockets.
    ///
    /// # Errors
    /// As those of [`Self::of`].
    pub(crate) fn of_sockets(directory: &Path) -> io::Result<Self> {
        Self::watch(&[directory], MAKING)
    }

    /// As [`Self::of`], for files that come by a rename and in no other way: what else happens, as
    /// their removal, wakes nobody.
    ///
    /// # Errors
    /// As those of [`Self::of`].
    pub(crate) fn of_arrivals(directory: &Path) -> io::Result<Self> {
        Self::watch(&[directory], ARRIVALS)
    }

    /// Watches for the end of a file and of a directory: that it is removed, moved, or another one
    /// put in its place. Only what is there now is watched.
    ///
    /// # Errors
    /// As those of [`Self::of`].
    pub(crate) fn of_end(file: &Path, directory: &Path) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        // A file that is still open loses its name (IN_ATTRIB) before it goes (IN_DELETE_SELF).
        // With a directory the former would tell of its files too.
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

    /// Waits for the first event. Each look has a watch of its own, and so the queue never fills.
    pub(crate) async fn next(&self) -> io::Result<()> {
        self.0.readable().await
    }
}

fn add(inotify: &Inotify, directory: &Path, wanted: AddWatchFlags) -> io::Result<()> {
    loop {
        let mut missing = None;
        for place in directory.ancestors() {
            let flags = if missing.is_none() { wanted } else { MAKING };
            // One place may be above two of them.
            let flags = flags | AddWatchFlags::from_bits_retain(libc::IN_MASK_ADD);
            match inotify.add_watch(place, flags) {
                Ok(_) => break,
                Err(Errno::ENOENT | Errno::ENOTDIR) => missing = Some(place),
                Err(errno) => return Err(errno.into()),
            }
        }
        // What was made before its parent was watched has told nobody.
        if !missing.is_some_and(Path::is_dir) {
            return Ok(());
        }
    }
}
