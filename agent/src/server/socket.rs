//! The agent's socket, in a directory that only root may enter and that one agent at a time owns.
//!
//! Cleaners of temporary files also remove files below /run. So both are watched, and re-created if
//! they are removed.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use podwire_cni::private_dir::{DirError, PrivateDir};
use podwire_daemon::file::{FileError, if_there};
use podwire_daemon::files::FileEvents;
use tokio::net::{UnixListener, UnixStream};

/// Why the run directory or the socket could not be created.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The run directory can't be used.
    #[error("{0}")]
    Dir(#[from] DirError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// Another agent uses this run directory.
    #[error("another podwire agent uses {path}; stop it, or give this one its own --run-dir")]
    Held {
        /// The directory.
        path: PathBuf,
    },
}

/// A file's device and inode.
type FileId = (u64, u64);

/// The run directory, locked for this process until it is dropped.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    id: FileId,
    _lock: Flock<OwnedFd>,
}

impl RunDir {
    /// Creates the directory (0700) if it is missing, checks its owner, closes it to others, and
    /// locks it. The lock is on the directory itself: if it were on a file inside, and that were
    /// removed unnoticed, two agents could each have one.
    ///
    /// # Errors
    /// It can't be created, belongs to another user, or another agent holds it.
    pub fn open(path: &Path) -> Result<Self, SocketError> {
        Self::lock(path, FlockArg::LockExclusiveNonblock)
    }

    /// Like [`Self::open`], but waits until the agent that holds it has ended. Meanwhile signals
    /// have their default effect.
    ///
    /// # Errors
    /// It can't be created or belongs to another user.
    pub fn open_when_free(path: &Path) -> Result<Self, SocketError> {
        match Self::open(path) {
            Err(SocketError::Held { .. }) => {}
            other => return other,
        }
        tracing::info!(
            run_dir = %path.display(),
            "another agent serves; standing by until it ends"
        );
        loop {
            let dir = Self::lock(path, FlockArg::LockExclusive)?;
            // The serving agent has re-created the directory, and this is the lock of the removed
            // one.
            if id_of(path) == Some(dir.id) {
                return Ok(dir);
            }
        }
    }

    fn lock(path: &Path, how: FlockArg) -> Result<Self, SocketError> {
        let failed = |step| FileError::of(step, path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed("create the directory of"))?;
        }
        let directory = PrivateDir::open(path)?;
        directory.close_to_others()?;
        let descriptor = directory
            .as_fd()
            .try_clone_to_owned()
            .map_err(failed("lock"))?;
        match Flock::lock(descriptor, how) {
            Ok(lock) => Ok(Self {
                path: path.to_owned(),
                id: directory.id()?,
                _lock: lock,
            }),
            Err((_, Errno::EWOULDBLOCK)) => Err(SocketError::Held {
                path: path.to_owned(),
            }),
            Err((_, errno)) => Err(failed("lock")(errno.into()).into()),
        }
    }

    /// Re-creates and locks it if it no longer exists; returns whether it did.
    fn restore(&mut self) -> Result<bool, SocketError> {
        if id_of(&self.path) == Some(self.id) {
            return Ok(false);
        }
        *self = Self::open(&self.path)?;
        Ok(true)
    }
}

/// The identity of the file with this name now.
fn id_of(path: &Path) -> Option<FileId> {
    let found = fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// The socket that plugins connect to.
#[derive(Debug)]
pub struct AgentSocket {
    run_dir: RunDir,
    path: PathBuf,
    listener: Listener,
    /// None if the kernel offers no watch.
    watch: Option<FileEvents>,
}

#[derive(Debug)]
struct Listener {
    /// The same socket as `listener`, for its queue.
    queue: StdListener,
    listener: UnixListener,
    /// The identity of its path.
    id: Option<FileId>,
    /// Whether this process created it; a socket held by a service manager stays.
    is_own: bool,
}

impl AgentSocket {
    /// A socket that ends with this process.
    ///
    /// # Errors
    /// The directory or the socket can't be created.
    pub fn make(run_dir: RunDir, path: &Path) -> Result<Self, SocketError> {
        let listener = listen(path)?;
        Ok(Self::new(run_dir, path, listener))
    }

    /// A socket held by a service manager, which hands it to the next agent too.
    ///
    /// # Errors
    /// The runtime refuses it.
    pub fn inherited(run_dir: RunDir, path: &Path, listener: StdListener) -> io::Result<Self> {
        let listener = Listener::new(path, listener, false)?;
        Ok(Self::new(run_dir, path, listener))
    }

    fn new(run_dir: RunDir, path: &Path, listener: Listener) -> Self {
        let path = path.to_owned();
        let mut socket = Self {
            run_dir,
            path,
            listener,
            watch: None,
        };
        socket.watch();
        socket
    }

    /// The next connection.
    ///
    /// # Errors
    /// accept(2) failed.
    pub async fn accept(&mut self) -> io::Result<UnixStream> {
        loop {
            let removed = async {
                match &self.watch {
                    // It fails only when the runtime ends.
                    Some(watch) => drop(watch.next().await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                accepted = self.listener.listener.accept() => {
                    return accepted.map(|(stream, _)| stream);
                }
                () = removed => self.watch(),
            }
        }
    }

    /// Watches directory and socket, and re-creates them if they are gone.
    fn watch(&mut self) {
        loop {
            // First, so that no later change is missed.
            let watch = FileEvents::of_end(&self.path, &self.run_dir.path);
            let watch = match self.restore() {
                Ok(true) => continue,
                Ok(false) => watch,
                Err(error) => {
                    tracing::error!(
                        %error,
                        "no plugin can reach this agent; it tries again when something changes \
                         there"
                    );
                    FileEvents::of_sockets(&self.run_dir.path)
                }
            };
            let socket = self.path.display();
            let unwatched = |error: &io::Error| {
                tracing::error!(
                    %error,
                    %socket,
                    "the socket can't be watched; should it be removed, restart the agent"
                );
            };
            self.watch = watch.inspect_err(unwatched).ok();
            return;
        }
    }

    /// Returns whether something was re-created.
    fn restore(&mut self) -> Result<bool, SocketError> {
        let mut is_changed = self.run_dir.restore()?;
        if is_changed {
            tracing::error!(
                directory = %self.run_dir.path.display(),
                "the run directory was removed; creating it again"
            );
        }
        match id_of(&self.path) {
            None => {
                self.listener = listen(&self.path)?;
                is_changed = true;
                tracing::error!(
                    socket = %self.path.display(),
                    "the agent's socket was removed; creating it again"
                );
            }
            id if id != self.listener.id => {
                tracing::error!(
                    socket = %self.path.display(),
                    "another program has put something in the place of the agent's socket"
                );
            }
            _ => {}
        }
        Ok(is_changed)
    }

    /// Closes it, and returns the connections in its queue: if this process created the socket,
    /// nobody else would ever serve them. Later clients find no socket and retry until the next
    /// agent has created one. The queue of a socket that stays is left to the next agent.
    pub fn close(&self) -> Vec<UnixStream> {
        if !self.listener.is_own {
            return Vec::new();
        }
        // First, because a client that connected after the queue was emptied would be lost.
        if id_of(&self.path) == self.listener.id {
            let _ = fs::remove_file(&self.path);
        }
        let queue = std::iter::from_fn(|| self.listener.queue.accept().ok());
        queue
            .filter_map(|(stream, _)| {
                stream.set_nonblocking(true).ok()?;
                UnixStream::from_std(stream).ok()
            })
            .collect()
    }
}

impl Listener {
    fn new(path: &Path, queue: StdListener, is_own: bool) -> io::Result<Self> {
        queue.set_nonblocking(true)?;
        Ok(Self {
            listener: UnixListener::from_std(queue.try_clone()?)?,
            queue,
            id: id_of(path),
            is_own,
        })
    }
}

/// Binds the socket under a temporary name and moves it into place. So its mode is never other than
/// 0600, and a plugin that connects reaches either the old agent's socket or this one.
///
/// # Errors
/// It can't be bound, restricted or renamed.
fn listen(path: &Path) -> Result<Listener, SocketError> {
    let new = path.with_added_extension("new");
    let failed = |step| FileError::of(step, &new);
    if_there(fs::remove_file(&new)).map_err(failed("remove"))?;
    let listener = StdListener::bind(&new).map_err(failed("bind"))?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).map_err(failed("restrict"))?;
    fs::rename(&new, path).map_err(failed("rename"))?;
    Ok(Listener::new(path, listener, true).map_err(failed("watch"))?)
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
            Err(SocketError::Dir(DirError::Unsafe { mode: 0o777, .. }))
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
    async fn who_waits_in_the_queue_of_a_socket_that_closes_is_let_in_and_nobody_later() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let socket = AgentSocket::make(RunDir::open(dir.path()).unwrap(), &path).unwrap();
        let _queued = [(); 3].map(|()| std::os::unix::net::UnixStream::connect(&path).unwrap());
        assert_eq!(socket.close().len(), 3);
        let late = std::os::unix::net::UnixStream::connect(&path).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn the_queue_of_a_socket_that_stays_is_left_for_the_successor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let held = StdListener::bind(&path).unwrap();
        let _queued = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let inherited = |listener| {
            AgentSocket::inherited(RunDir::open(dir.path()).unwrap(), &path, listener).unwrap()
        };
        let socket = inherited(held.try_clone().unwrap());
        assert!(socket.close().is_empty());
        drop(socket);
        let mut successor = inherited(held);
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
            tokio::join!(UnixStream::connect(&path), listener.listener.accept());
        assert!(client.is_ok() && accepted.is_ok());
    }

    #[tokio::test]
    async fn a_socket_or_directory_that_is_removed_is_made_again_and_locked_again() {
        let dir = tempfile::tempdir().unwrap();
        let (run, elsewhere) = (dir.path().join("run"), dir.path().join("elsewhere"));
        let path = run.join("agent.sock");
        let mut socket = AgentSocket::make(RunDir::open(&run).unwrap(), &path).unwrap();
        let removals: [&dyn Fn() -> io::Result<()>; 4] = [
            &|| fs::remove_file(&path),
            &|| fs::rename(&path, &elsewhere),
            &|| fs::remove_dir_all(&run),
            &|| fs::rename(&run, &elsewhere),
        ];
        for remove in removals {
            let _ = fs::remove_file(&elsewhere);
            remove().unwrap();
            let made = async {
                let comes = FileEvents::of_sockets(&run).unwrap();
                if !path.exists() {
                    comes.next().await.unwrap();
                }
                loop {
                    // It is first bound under another name.
                    match UnixStream::connect(&path).await {
                        Ok(stream) => return stream,
                        Err(_) => tokio::task::yield_now().await,
                    }
                }
            };
            let (accepted, _stream) = tokio::join!(socket.accept(), made);
            accepted.unwrap();
            assert!(matches!(RunDir::open(&run), Err(SocketError::Held { .. })));
        }
    }

    #[tokio::test]
    async fn a_socket_in_the_place_of_ours_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let mut socket = AgentSocket::make(RunDir::open(dir.path()).unwrap(), &path).unwrap();
        fs::remove_file(&path).unwrap();
        let _theirs = StdListener::bind(&path).unwrap();
        socket.watch();
        assert!(socket.close().is_empty());
        assert!(path.exists());
    }
}
