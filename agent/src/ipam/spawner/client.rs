//! The agent's end.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};

use super::wire::{self, Outcome, Reply, Request};
use super::{Exec, Output, SUBCOMMAND, SpawnError};

/// How much longer than the program the spawner itself may take before it counts as stuck.
const GRACE: Duration = Duration::from_secs(5);

/// A spawner that was started and is not yet in use: what stands between the start, which must come
/// before the agent's first thread, and the first use, which needs the async runtime.
#[derive(Debug)]
pub struct SpawnerProcess {
    child: Child,
    stream: StdUnixStream,
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
}

/// Who waits for which reply; `None` once the spawner is gone.
#[derive(Debug)]
struct Waiting(Mutex<Option<HashMap<u64, oneshot::Sender<Outcome>>>>);

impl Spawner {
    /// Starts the spawner: this very program with the argument [`SUBCOMMAND`], nothing of its
    /// environment, and standard error shared. To be called before the process has a second thread
    /// and before it gives up any privilege.
    ///
    /// # Errors
    /// socketpair(2) or the start of the process failed.
    pub fn start() -> io::Result<SpawnerProcess> {
        let mut command = Command::new("/proc/self/exe");
        command.arg(SUBCOMMAND).env_clear();
        Self::start_as(command)
    }

    /// Starts `command` as the spawner.
    pub(super) fn start_as(mut command: Command) -> io::Result<SpawnerProcess> {
        let (ours, theirs) = StdUnixStream::pair()?;
        let child = command
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(SpawnerProcess {
            child,
            stream: ours,
        })
    }

    /// Runs a program to its end. When the future is dropped, the program is killed.
    ///
    /// # Errors
    /// [`SpawnError`]; a program that ran and returned a status other than 0 is no error here.
    pub async fn run(&self, exec: Exec) -> Result<Output, SpawnError> {
        let (path, timeout) = (exec.path.clone(), exec.timeout);
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let request = wire::encode(&Request::Run { id, exec });
        let size = request.len() - wire::PREFIX;
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

    /// Whether the spawner still serves: STATUS asks, when a network delegates.
    pub fn is_alive(&self) -> bool {
        self.shared.waiting.is_open()
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
        tokio::spawn(send_all(outbox, writer));
        tokio::spawn(receive_all(
            reader,
            Arc::clone(&waiting),
            requests.downgrade(),
            self.child,
        ));
        Ok(Spawner {
            shared: Arc::new(Shared {
                next_id: AtomicU64::new(0),
                requests,
                waiting,
            }),
        })
    }
}

/// One task writes, so that a dropped caller leaves no half message behind. Ends, and closes our
/// end, with the last [`Spawner`].
async fn send_all(mut outbox: mpsc::UnboundedReceiver<Vec<u8>>, mut writer: OwnedWriteHalf) {
    while let Some(request) = outbox.recv().await {
        if writer.write_all(&request).await.is_err() {
            // The reading task sees the same end, and tells those who wait.
            return;
        }
    }
}

/// Hands out replies until the spawner is gone, then tells all who wait and reaps it.
async fn receive_all(
    mut reader: OwnedReadHalf,
    waiting: Arc<Waiting>,
    requests: mpsc::WeakUnboundedSender<Vec<u8>>,
    mut child: Child,
) {
    let error = loop {
        match receive(&mut reader).await {
            Ok(reply) => waiting.deliver(reply),
            Err(error) => break error,
        }
    };
    waiting.close();
    // At the end of the stream it has exited, having killed what it ran; one that sent nonsense has
    // to be stopped.
    let _ = child.kill();
    let status = tokio::task::spawn_blocking(move || child.wait()).await;
    if requests.upgrade().is_some() {
        tracing::error!(%error, ?status, "the spawner is gone: IPAM plugins cannot be run until the agent restarts");
    }
}

async fn receive(reader: &mut OwnedReadHalf) -> io::Result<Reply> {
    let mut prefix = [0; wire::PREFIX];
    reader.read_exact(&mut prefix).await?;
    let mut body = vec![0; wire::length(prefix)?];
    reader.read_exact(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
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

    fn deliver(&self, reply: Reply) {
        let waiter = self
            .lock()
            .as_mut()
            .and_then(|waiting| waiting.remove(&reply.id));
        if let Some(waiter) = waiter {
            // The caller may have gone between the two.
            let _ = waiter.send(reply.outcome);
        }
    }

    fn close(&self) {
        *self.lock() = None;
    }

    fn is_open(&self) -> bool {
        self.lock().is_some()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<HashMap<u64, oneshot::Sender<Outcome>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
