//! The agent's end of the socket.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::wire::{self, Inbox, Outcome, Reply, Request};
use super::{Exec, Output, SUBCOMMAND, SpawnError};

/// Time that the spawner gets beyond the program's limit, before it counts as stuck.
const GRACE: Duration = Duration::from_secs(5);

/// A spawner that was started but is not yet in use. It must be started before the agent's first
/// thread, but its use needs the async runtime.
#[derive(Debug)]
pub struct SpawnerProcess {
    child: Child,
    stream: StdUnixStream,
    directories: Arc<[PathBuf]>,
}

/// A connection to the spawner; clones share it. The spawner exits when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct Spawner {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    next_id: AtomicU64,
    requests: mpsc::UnboundedSender<Vec<u8>>,
    waiting: Arc<Waiting>,
    ended: CancellationToken,
    directories: Arc<[PathBuf]>,
}

/// The waiters for replies; `None` once the spawner is gone.
#[derive(Debug)]
struct Waiting(Mutex<Option<HashMap<u64, oneshot::Sender<Outcome>>>>);

impl Spawner {
    /// Starts the spawner: this program with the argument [`SUBCOMMAND`], an empty environment, and
    /// shared standard error. It runs plugins in or below these directories only. Call this before
    /// the process has a second thread and before it drops any privilege.
    ///
    /// # Errors
    /// socketpair(2) failed, or the process could not be started.
    pub fn start(directories: Vec<PathBuf>) -> io::Result<SpawnerProcess> {
        let mut command = Command::new("/proc/self/exe");
        command.arg(SUBCOMMAND).args(&directories).env_clear();
        Self::start_as(command, directories)
    }

    /// Starts `command` as the spawner.
    pub(super) fn start_as(
        mut command: Command,
        directories: Vec<PathBuf>,
    ) -> io::Result<SpawnerProcess> {
        let (ours, theirs) = wire::pair()?;
        let child = command
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(SpawnerProcess {
            child,
            stream: ours,
            directories: directories.into(),
        })
    }

    /// The plugin directories.
    pub fn directories(&self) -> &[PathBuf] {
        &self.shared.directories
    }

    /// Runs a program to completion. Dropping the future kills the program.
    ///
    /// # Errors
    /// [`SpawnError`]; a status other than 0 is not an error here.
    pub async fn run(&self, exec: Exec) -> Result<Output, SpawnError> {
        let (path, timeout) = (exec.path.clone(), exec.timeout);
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let request = wire::encode(&Request::Run { id, exec });
        let size = request.len();
        if size > wire::MESSAGE_MAX {
            return Err(SpawnError::TooLarge {
                path,
                size,
                limit: wire::MESSAGE_MAX,
            });
        }
        let gone = || SpawnError::Gone { path: path.clone() };
        let reply = self.shared.waiting.enter(id).ok_or_else(gone)?;
        let _cancel = CancelOnDrop {
            shared: &self.shared,
            id,
        };
        self.shared.requests.send(request).map_err(|_| gone())?;
        let waited = timeout + GRACE;
        let outcome = match tokio::time::timeout(waited, reply).await {
            Ok(outcome) => outcome.map_err(|_| gone())?,
            Err(_) => return Err(SpawnError::Unresponsive { path, waited }),
        };
        match outcome {
            Outcome::Ended(output) => Ok(output),
            Outcome::NotStarted { reason, errno } => Err(SpawnError::Start {
                path,
                reason,
                errno,
            }),
            Outcome::TimedOut { stderr } => Err(SpawnError::Timeout {
                path,
                timeout,
                stderr,
            }),
            Outcome::TooMuchOutput { stream } => Err(SpawnError::TooMuchOutput { path, stream }),
            Outcome::Io { reason } => Err(SpawnError::Io { path, reason }),
            Outcome::Cancelled => Err(gone()),
        }
    }

    /// Whether the spawner still works.
    pub fn is_alive(&self) -> bool {
        !self.shared.ended.is_cancelled()
    }

    /// Completes when both processes are gone. The agent can't start new ones and has to be
    /// restarted.
    pub async fn ended(&self) {
        self.shared.ended.cancelled().await;
    }
}

impl SpawnerProcess {
    /// The spawner's process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Connects to the spawner. Call this within the async runtime.
    ///
    /// # Errors
    /// The runtime refused the socket.
    pub fn connect(self) -> io::Result<Spawner> {
        self.stream.set_nonblocking(true)?;
        let (reader, writer) = UnixStream::from_std(self.stream)?.into_split();
        let waiting = Arc::new(Waiting(Mutex::new(Some(HashMap::new()))));
        let (requests, outbox) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            next_id: AtomicU64::new(0),
            requests,
            waiting: Arc::clone(&waiting),
            ended: CancellationToken::new(),
            directories: self.directories,
        });
        tokio::spawn(send_all(outbox, writer));
        let requests = shared.requests.downgrade();
        let ended = shared.ended.clone();
        tokio::spawn(receive_all(reader, waiting, requests, ended, self.child));
        Ok(Spawner { shared })
    }
}

/// One task writes, so that a dropped caller leaves no partial message. It ends, and closes the
/// agent's end, with the last [`Spawner`].
async fn send_all(mut outbox: mpsc::UnboundedReceiver<Vec<u8>>, mut writer: OwnedWriteHalf) {
    while let Some(request) = outbox.recv().await {
        for packet in wire::packets(&request) {
            if writer.write_all(&packet).await.is_err() {
                // The reading task sees the same, and tells those who wait.
                return;
            }
        }
    }
}

/// Distributes replies until the spawner is gone; then fails all waiters and reaps it.
async fn receive_all(
    reader: OwnedReadHalf,
    waiting: Arc<Waiting>,
    requests: mpsc::WeakUnboundedSender<Vec<u8>>,
    ended: CancellationToken,
    mut child: Child,
) {
    let mut inbox = Inbox::default();
    let error = loop {
        match receive(&reader, &mut inbox).await {
            Ok(Reply::Ran { id, outcome }) => waiting.deliver(id, outcome),
            Ok(Reply::Restarted { ended }) => {
                tracing::warn!(
                    ended,
                    "the worker that runs IPAM plugins was replaced by a new one"
                );
                // The new worker may find requests that the old one had not read; nobody waits for
                // them.
                for id in waiting.fail_all() {
                    let cancel = wire::encode(&Request::Cancel { id });
                    requests.upgrade().map(|requests| requests.send(cancel));
                }
            }
            Err(error) => break error,
        }
    };
    ended.cancel();
    waiting.close();
    // At the end of the stream it has killed what it ran, and exited; one that sent garbage has to
    // be stopped.
    let _ = child.kill();
    let ended = match tokio::task::spawn_blocking(move || child.wait()).await {
        Ok(Ok(status)) => status.to_string(),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    if requests.upgrade().is_some() {
        tracing::error!(%error, ended, "the spawner of IPAM plugins has ended");
    }
}

async fn receive(reader: &OwnedReadHalf, inbox: &mut Inbox) -> io::Result<Reply> {
    let mut packet = vec![0; wire::PACKET_MAX];
    loop {
        reader.readable().await?;
        // Not with AsyncRead: it takes a read that does not fill its buffer for the last available
        // data, which is true of a stream but not of packets.
        match reader.try_read(&mut packet) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(size) => {
                if let Some(reply) = inbox.push(&packet[..size])? {
                    return Ok(reply);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Stops waiting for a reply, and cancels the request if the reply is still to come.
struct CancelOnDrop<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if self.shared.waiting.leave(self.id) {
            // A closed channel means that the spawner is dead and runs nothing.
            let _ = self
                .shared
                .requests
                .send(wire::encode(&Request::Cancel { id: self.id }));
        }
    }
}

impl Waiting {
    /// Registers a wait for the reply to `id`; `None` if the spawner is gone.
    fn enter(&self, id: u64) -> Option<oneshot::Receiver<Outcome>> {
        let (sender, receiver) = oneshot::channel();
        self.lock().as_mut()?.insert(id, sender);
        Some(receiver)
    }

    /// Removes the wait; true if the reply had not come.
    fn leave(&self, id: u64) -> bool {
        self.lock()
            .as_mut()
            .is_some_and(|waiting| waiting.remove(&id).is_some())
    }

    fn deliver(&self, id: u64, outcome: Outcome) {
        let waiter = self.lock().as_mut().and_then(|waiting| waiting.remove(&id));
        if let Some(waiter) = waiter {
            // The caller may have gone in between.
            let _ = waiter.send(outcome);
        }
    }

    /// Fails all waiters, and returns the numbers of their requests.
    fn fail_all(&self) -> Vec<u64> {
        let failed = self.lock().as_mut().map(std::mem::take).unwrap_or_default();
        failed.into_keys().collect()
    }

    fn close(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<HashMap<u64, oneshot::Sender<Outcome>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
