//! The agent's end.

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

/// How much longer than the program the spawner itself may take before it counts as stuck.
const GRACE: Duration = Duration::from_secs(5);

/// A spawner that was started and is not yet in use: what stands between the start, which must come
/// before the agent's first thread, and the first use, which needs the async runtime.
#[derive(Debug)]
pub struct SpawnerProcess {
    child: Child,
    stream: StdUnixStream,
    directories: Arc<[PathBuf]>,
}

/// A connection to the spawner, to be cloned at will. The spawner exits when the last clone is
/// gone.
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

/// Who waits for which reply; `None` once the spawner is gone.
#[derive(Debug)]
struct Waiting(Mutex<Option<HashMap<u64, oneshot::Sender<Outcome>>>>);

impl Spawner {
    /// Starts the spawner: this very program with the argument [`SUBCOMMAND`], nothing of its
    /// environment, and standard error shared. It will run plugins that are in or below these
    /// directories. To be called before the process has a second thread and before it gives up any
    /// privilege.
    ///
    /// # Errors
    /// socketpair(2) or the start of the process failed.
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

    /// Where plugins may be.
    pub fn directories(&self) -> &[PathBuf] {
        &self.shared.directories
    }

    /// Runs a program to its end. When the future is dropped, the program is killed.
    ///
    /// # Errors
    /// [`SpawnError`]; a program that ran and returned a status other than 0 is no error here.
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

    /// Whether the spawner still serves.
    pub fn is_alive(&self) -> bool {
        !self.shared.ended.is_cancelled()
    }

    /// Resolves when both its processes are gone. The agent, which may start none any more, then
    /// has to be started anew.
    pub async fn ended(&self) {
        self.shared.ended.cancelled().await;
    }
}

impl SpawnerProcess {
    /// The spawner's process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Takes the spawner into use. To be called within the async runtime.
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

/// One task writes, so that a dropped caller leaves no half message behind. Ends, and closes our
/// end, with the last [`Spawner`].
async fn send_all(mut outbox: mpsc::UnboundedReceiver<Vec<u8>>, mut writer: OwnedWriteHalf) {
    while let Some(request) = outbox.recv().await {
        for packet in wire::packets(&request) {
            if writer.write_all(&packet).await.is_err() {
                // The reading task sees the same end, and tells those who wait.
                return;
            }
        }
    }
}

/// Hands out replies until the spawner is gone, then tells all who wait and reaps it.
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
                // The new one may find requests that the old one did not get to: nobody waits for
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
    // At the end of the stream it has exited, having killed what it ran; one that sent nonsense has
    // to be stopped.
    let _ = child.kill();
    let ended = match tokio::task::spawn_blocking(move || child.wait()).await {
        Ok(Ok(status)) => status.to_string(),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    if requests.upgrade().is_some() {
        tracing::error!(%error, ended, "the spawner of IPAM plugins is gone");
    }
}

async fn receive(reader: &OwnedReadHalf, inbox: &mut Inbox) -> io::Result<Reply> {
    let mut packet = vec![0; wire::PACKET_MAX];
    loop {
        reader.readable().await?;
        // Not by AsyncRead: it takes a read that leaves room in its buffer for the last one there
        // is, which is so with a stream and not with packets.
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

/// Gives up the wait for a reply, and tells the spawner if the reply is still to come.
struct CancelOnDrop<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if self.shared.waiting.leave(self.id) {
            // A closed channel means a dead spawner, which runs nothing.
            let _ = self
                .shared
                .requests
                .send(wire::encode(&Request::Cancel { id: self.id }));
        }
    }
}

impl Waiting {
    /// Waits for the reply to `id`; `None` when the spawner is gone.
    fn enter(&self, id: u64) -> Option<oneshot::Receiver<Outcome>> {
        let (sender, receiver) = oneshot::channel();
        self.lock().as_mut()?.insert(id, sender);
        Some(receiver)
    }

    /// Waits no more; true when the reply had not come.
    fn leave(&self, id: u64) -> bool {
        self.lock()
            .as_mut()
            .is_some_and(|waiting| waiting.remove(&id).is_some())
    }

    fn deliver(&self, id: u64, outcome: Outcome) {
        let waiter = self.lock().as_mut().and_then(|waiting| waiting.remove(&id));
        if let Some(waiter) = waiter {
            // The caller may have gone between the two.
            let _ = waiter.send(outcome);
        }
    }

    /// Tells all who wait that no reply will come; the numbers of their requests.
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
