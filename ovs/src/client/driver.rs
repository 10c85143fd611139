//! The client's one task: it drives the protocol over a stream, and reports events.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::followers::Followers;
use super::row_waits::RowWaits;
use super::stream::{self, Stream};
use super::{State, Version};
use crate::protocol::{
    Answer, ClientConfig, ConnectionError, Event, Protocol, Remote, Ticket, TlsKeys,
};
use crate::replica::{Changes, Db};
use crate::transact::{TransactError, Transaction};

const CHUNK_BYTES: usize = 64 << 10;

/// The state shared by the handles and the task.
#[derive(Debug)]
pub(super) struct Shared {
    db: Arc<RwLock<Db>>,
    driven: Mutex<Driven>,
    /// Wakes the task: there is something to send, or another reason to look.
    wake: Notify,
    pub(super) version: watch::Sender<Version>,
    pub(super) row_waits: RowWaits,
    pub(super) followers: Followers,
    database: &'static str,
    tls: Option<TlsKeys>,
    /// The task has ended.
    ended: AtomicBool,
}

/// The protocol, and the waiters for its answers.
#[derive(Debug)]
struct Driven {
    protocol: Protocol,
    callers: HashMap<Ticket, oneshot::Sender<Answer>>,
}

/// A caller's end of a transaction. Dropping it withdraws the transaction if it was not sent yet.
pub(super) struct Submitted<'a> {
    shared: &'a Shared,
    ticket: Ticket,
    answer: oneshot::Receiver<Answer>,
}

/// The state of a transaction whose caller no longer waits.
pub(super) enum Withdrawn {
    /// It was never sent, or its request was aborted.
    Unsent,
    /// It has been sent.
    Sent,
    /// It has been answered.
    Answered(Answer),
}

/// Runs until the last handle is dropped.
pub(super) async fn run(shared: Arc<Shared>) {
    let _end = End(&shared);
    while !shared.with(|protocol| protocol.is_closed()) {
        let remote = shared.with(|protocol| protocol.poll_connect(now()).cloned());
        let Some(remote) = remote else {
            shared.pause(std::future::pending::<()>()).await;
            continue;
        };
        let connecting = stream::connect(&remote, shared.tls.as_ref());
        match shared.pause_while_connecting(connecting).await {
            Some(Ok(stream)) => {
                shared.with(|protocol| protocol.handle_connected(now()));
                shared.serve(stream).await;
            }
            Some(Err(source)) => {
                let error = ConnectionError::Connect { remote, source };
                shared.with(|protocol| protocol.handle_disconnected(now(), error));
            }
            None => {}
        }
    }
}

/// However the task ends, nobody is left waiting for it.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
        self.0.with(|protocol| protocol.abort(&ended(false)));
        self.0.driven().callers.clear();
        self.0.version.send_modify(|version| {
            version.state = State::Disconnected {
                since: Instant::now(),
                last_error: Some(ENDED.into()),
            }
        });
        self.0.row_waits.wake_all();
        self.0.followers.end();
    }
}

impl Shared {
    pub(super) fn new(config: ClientConfig) -> Self {
        let state = State::Disconnected {
            since: Instant::now(),
            last_error: None,
        };
        let db = Db::new(&config.tables).with_limit(config.replica_bytes);
        let db = Arc::new(RwLock::new(db));
        Self {
            wake: Notify::new(),
            version: watch::Sender::new(Version {
                generation: 0,
                resyncs: 0,
                state,
            }),
            row_waits: RowWaits::default(),
            followers: Followers::default(),
            database: config.database,
            tls: config.tls.clone(),
            ended: AtomicBool::new(false),
            driven: Mutex::new(Driven {
                protocol: Protocol::new(config, Arc::clone(&db), now()),
                callers: HashMap::new(),
            }),
            db,
        }
    }

    pub(super) fn submit(&self, transaction: &Transaction) -> Result<Submitted<'_>, TransactError> {
        let mut driven = self.driven();
        if self.has_ended() {
            return Err(ended(false));
        }
        let ticket = driven.protocol.submit(transaction)?;
        let (sender, answer) = oneshot::channel();
        driven.callers.insert(ticket, sender);
        drop(driven);
        self.wake.notify_one();
        Ok(Submitted {
            shared: self,
            ticket,
            answer,
        })
    }

    /// Calls the protocol, reports the resulting events, and wakes the task.
    pub(super) fn poke<T>(&self, step: impl FnOnce(&mut Protocol) -> T) -> T {
        let done = self.with(step);
        self.wake.notify_one();
        done
    }

    /// Calls the protocol and reports the resulting events. Must not be called during a read of the
    /// replica, whose lock a call may take.
    pub(super) fn with<T>(&self, step: impl FnOnce(&mut Protocol) -> T) -> T {
        let mut driven = self.driven();
        let done = step(&mut driven.protocol);
        while let Some(event) = driven.protocol.poll_event() {
            self.deliver(&mut driven, event);
        }
        done
    }

    pub(super) fn db(&self) -> RwLockReadGuard<'_, Db> {
        self.db.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn driven(&self) -> MutexGuard<'_, Driven> {
        self.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves one connection.
    async fn serve(&self, mut stream: Box<dyn Stream>) {
        let mut chunk = vec![0; CHUNK_BYTES].into_boxed_slice();
        loop {
            if self.with(|protocol| !protocol.is_connected() || protocol.is_closed()) {
                return;
            }
            let exchange = poll_fn(|context| self.exchange(stream.as_mut(), &mut chunk, context));
            match self.pause(exchange).await {
                Some(Ok(count)) => {
                    self.with(|protocol| protocol.handle_input(now(), &chunk[..count]));
                }
                Some(Err(error)) => {
                    self.with(|protocol| protocol.handle_disconnected(now(), error));
                }
                None => {}
            }
        }
    }

    /// Waits for `going_on`, or until there is a reason to look at the protocol first: `None`.
    async fn pause<T>(&self, going_on: impl Future<Output = T>) -> Option<T> {
        let due = self.with(|protocol| protocol.poll_timeout()).into();
        tokio::select! {
            biased;
            done = going_on => return Some(done),
            () = self.wake.notified() => {}
            () = sleep_until(due) => self.with(|protocol| protocol.handle_timeout(now())),
        }
        None
    }

    /// Like [`Self::pause`], until the attempt is over. Looking at the protocol does not end it.
    async fn pause_while_connecting<T>(&self, connecting: impl Future<Output = T>) -> Option<T> {
        let mut connecting = std::pin::pin!(connecting);
        while self.with(|protocol| protocol.is_connecting() && !protocol.is_closed()) {
            if let Some(done) = self.pause(&mut connecting).await {
                return Some(done);
            }
        }
        None
    }

    /// Writes as much as the stream accepts, and returns when it has read something. Both at once:
    /// a server that is itself blocked writing to this client would never read.
    fn exchange(
        &self,
        mut stream: &mut dyn Stream,
        chunk: &mut [u8],
        context: &mut Context<'_>,
    ) -> Poll<Result<usize, ConnectionError>> {
        let mut driven = self.driven();
        loop {
            let outgoing = driven.protocol.poll_transmit();
            if outgoing.is_empty() {
                break;
            }
            match Pin::new(&mut stream).poll_write(context, outgoing) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(ConnectionError::Closed)),
                Poll::Ready(Ok(count)) => driven.protocol.transmitted(count),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Pending => break,
            }
        }
        drop(driven);
        // A TLS session accepts a whole write and may still hold what the socket did not accept.
        if let Poll::Ready(Err(error)) = Pin::new(&mut stream).poll_flush(context) {
            return Poll::Ready(Err(error.into()));
        }
        let mut buffer = ReadBuf::new(chunk);
        match Pin::new(&mut stream).poll_read(context, &mut buffer) {
            Poll::Ready(Ok(())) if buffer.filled().is_empty() => {
                Poll::Ready(Err(ConnectionError::Closed))
            }
            Poll::Ready(Ok(())) => Poll::Ready(Ok(buffer.filled().len())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            Poll::Pending => Poll::Pending,
        }
    }

    fn deliver(&self, driven: &mut Driven, event: Event) {
        let remote = driven.protocol.remote();
        match event {
            Event::Connected(forgotten) => {
                debug!(%remote, "OVSDB connected");
                self.version
                    .send_modify(|version| version.state = State::Connected);
                self.changed(&forgotten);
            }
            Event::Synced(changes) => {
                let (database, changed) = (self.database, changes.len());
                info!(%remote, database, changed, "OVSDB in sync");
                self.version.send_modify(|version| {
                    version.state = State::Synced;
                    version.resyncs += 1;
                    version.generation += u64::from(!changes.is_empty());
                });
                self.row_waits.wake_all();
                self.followers.changed(&self.db(), &changes, true);
            }
            Event::Updated(changes) => {
                if !changes.is_empty() {
                    self.version.send_modify(|version| version.generation += 1);
                    self.changed(&changes);
                }
            }
            Event::Answered(ticket, answer) => {
                if let Some(caller) = driven.callers.remove(&ticket) {
                    // Nobody listens if the caller has left; what was sent is executed
                    // nevertheless.
                    let _ = caller.send(answer);
                }
            }
            Event::Disconnected { error, failures } => self.disconnected(remote, &error, failures),
        }
    }

    fn changed(&self, changes: &Changes) {
        let db = self.db();
        self.row_waits.wake(&db, &changes.rows);
        self.followers.changed(&db, changes, false);
    }

    fn disconnected(&self, next: &Remote, error: &ConnectionError, failures: u32) {
        let since_before = match self.version.borrow().state {
            State::Disconnected { since, .. } => Some(since),
            State::Connected | State::Synced => None,
        };
        // Every attempt on a server that is down would be a line in the log.
        if failures == 0 {
            info!(database = self.database, %next, "OVSDB connection is made anew");
        } else if failures == 1 {
            warn!(database = self.database, %error, %next, "OVSDB connection lost");
        } else {
            debug!(database = self.database, %error, %next, failures, "OVSDB connection failed");
        }
        let since = since_before.unwrap_or_else(Instant::now);
        let last_error = Some(error.to_string().into());
        self.version
            .send_modify(|version| version.state = State::Disconnected { since, last_error });
    }
}

impl Submitted<'_> {
    pub(super) async fn answer(&mut self) -> Answer {
        (&mut self.answer)
            .await
            .unwrap_or_else(|_| Err(ended(true)))
    }

    pub(super) fn withdraw(mut self) -> Withdrawn {
        if self.take_back() {
            return Withdrawn::Unsent;
        }
        self.answer
            .try_recv()
            .map_or(Withdrawn::Sent, Withdrawn::Answered)
    }

    fn take_back(&self) -> bool {
        let mut driven = self.shared.driven();
        driven.callers.remove(&self.ticket);
        driven.protocol.withdraw(self.ticket)
    }
}

impl Drop for Submitted<'_> {
    fn drop(&mut self) {
        self.take_back();
    }
}

const ENDED: &str = "the OVSDB client has ended";

fn ended(sent: bool) -> TransactError {
    TransactError::Disconnected {
        sent,
        reason: ENDED.to_owned(),
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}
