//! The agent's socket: in a directory that only root may enter, owned by one agent at a time.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use tokio::net::{UnixListener, UnixStream};

/// Why the run directory or the socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A step on a file failed.
    #[error("{step} {path}: {source}")]
    Io {
        /// What was attempted.
        step: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another user could swap what is in it.
    #[error(
        "{path} belongs to uid {uid} with mode {mode:o}; it must belong to root and be writable by nobody else"
    )]
    UnsafeDirectory {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// Another agent runs with this run directory.
    #[error("another podwire agent holds {path}; stop it, or give this one its own --run-dir")]
    Held {
        /// The lock file.
        path: PathBuf,
    },
}

/// The run directory, locked for this process until it is dropped.
#[derive(Debug)]
pub struct RunDir {
    _lock: Flock<File>,
}

impl RunDir {
    /// Makes the directory (0700) when it is missing, checks whose it is, and locks it.
    ///
    /// # Errors
    /// When it can't be made, belongs to somebody else, or another agent holds it.
    pub fn open(path: &Path) -> Result<Self, SocketError> {
        make_private_directory(path)?;
        let lock_path = path.join("lock");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC)
            .open(&lock_path)
            .map_err(|source| SocketError::Io {
                step: "open",
                path: lock_path.clone(),
                source,
            })?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Self { _lock: lock }),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Err(SocketError::Held { path: lock_path }),
            Err((_, errno)) => Err(SocketError::Io {
                step: "lock",
                path: lock_path,
                source: errno.into(),
            }),
        }
    }
}

/// Makes a directory that only root may enter; an existing one is taken when only root may write to it.
fn make_private_directory(path: &Path) -> Result<(), SocketError> {
    let io = |step| {
        move |source| SocketError::Io {
            step,
            path: path.to_owned(),
            source,
        }
    };
    match DirBuilder::new().recursive(true).mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(io("make directory")(error)),
    }
    let found = fs::symlink_metadata(path).map_err(io("look at"))?;
    let mode = found.mode() & 0o7777;
    if !found.is_dir() {
        return Err(io("use")(io::Error::from(io::ErrorKind::NotADirectory)));
    }
    if found.uid() != nix::unistd::geteuid().as_raw() || mode & 0o022 != 0 {
        return Err(SocketError::UnsafeDirectory {
            path: path.to_owned(),
            uid: found.uid(),
            mode,
        });
    }
    if mode & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))
            .map_err(io("close to others"))?;
    }
    Ok(())
}

/// What plugins connect to.
#[derive(Debug)]
pub struct Door {
    listener: UnixListener,
    /// Its path, when it goes with this process; a socket that a service manager holds stays.
    own: Option<PathBuf>,
}

impl Door {
    /// A socket that goes with this process.
    ///
    /// # Errors
    /// The directory or the socket can't be made, or another agent serves there.
    pub fn make(path: &Path) -> Result<Self, SocketError> {
        Ok(Self {
            listener: listen(path)?,
            own: Some(path.to_owned()),
        })
    }

    /// A socket that a service manager holds and will hand to our successor too.
    ///
    /// # Errors
    /// The runtime does not take it.
    pub fn inherited(listener: StdListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener: UnixListener::from_std(listener)?,
            own: None,
        })
    }

    /// The next connection.
    ///
    /// # Errors
    /// Of accept(2).
    pub async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }

    /// Closes it, and gives those who stand in its queue: with a socket of our own nobody else would ever serve them. Who comes
    /// now finds none, and tries again until our successor has made one. The queue of a socket that stays is our successor's.
    pub fn close(self) -> Vec<UnixStream> {
        let Some(path) = self.own else {
            return Vec::new();
        };
        // First, for who connects after the queue was emptied would be lost.
        let _ = fs::remove_file(path);
        let Ok(listener) = self.listener.into_std() else {
            return Vec::new();
        };
        let queue = std::iter::from_fn(|| listener.accept().ok());
        queue
            .filter_map(|(stream, _)| {
                stream.set_nonblocking(true).ok()?;
                UnixStream::from_std(stream).ok()
            })
            .collect()
    }
}

/// Binds the socket under a temporary name and moves it into place, so that it is never seen with other rights than 0600 and
/// a plugin that connects meets either the old agent's socket or this one.
///
/// # Errors
/// When it can't be bound, restricted or renamed.
fn listen(path: &Path) -> Result<UnixListener, SocketError> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let io = |step| {
        let path = new.clone();
        move |source| SocketError::Io { step, path, source }
    };
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io("remove")(error)),
        _ => {}
    }
    let listener = StdListener::bind(&new).map_err(io("bind"))?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).map_err(io("restrict"))?;
    listener
        .set_nonblocking(true)
        .map_err(io("set non-blocking"))?;
    fs::rename(&new, path).map_err(io("rename"))?;
    UnixListener::from_std(listener).map_err(io("watch"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_on_the_same_directory_is_refused_and_a_later_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let first = RunDir::open(&run).unwrap();
        assert!(matches!(RunDir::open(&run), Err(SocketError::Held { .. })));
        drop(first);
        RunDir::open(&run).unwrap();
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused_and_one_they_may_read_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        fs::create_dir(&run).unwrap();
        fs::set_permissions(&run, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(
            RunDir::open(&run),
            Err(SocketError::UnsafeDirectory { mode: 0o777, .. })
        ));
        fs::set_permissions(&run, fs::Permissions::from_mode(0o755)).unwrap();
        RunDir::open(&run).unwrap();
        assert_eq!(fs::metadata(&run).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_link_in_place_of_the_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(RunDir::open(&link).is_err());
    }

    #[tokio::test]
    async fn who_stands_in_the_queue_of_a_socket_that_closes_is_let_in_and_who_comes_later_finds_none()
     {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let door = Door::make(&path).unwrap();
        let _queued = [(); 3].map(|()| std::os::unix::net::UnixStream::connect(&path).unwrap());
        assert_eq!(door.close().len(), 3);
        let late = std::os::unix::net::UnixStream::connect(&path).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn the_queue_of_a_socket_that_stays_is_left_for_the_successor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let held = StdListener::bind(&path).unwrap();
        let _queued = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let door = Door::inherited(held.try_clone().unwrap()).unwrap();
        assert!(door.close().is_empty());
        let successor = Door::inherited(held).unwrap();
        successor.accept().await.unwrap();
    }

    #[tokio::test]
    async fn the_socket_is_for_root_alone_and_replaces_a_dead_agents() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        drop(listen(&path).unwrap());
        let listener = listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let (client, accepted) =
            tokio::join!(tokio::net::UnixStream::connect(&path), listener.accept());
        assert!(client.is_ok() && accepted.is_ok());
    }
}
