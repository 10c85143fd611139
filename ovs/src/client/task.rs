//! The client's one task: connect, serve, and after a pause again.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use super::config::ClientConfig;
use super::connection::Connection;
use super::error::ConnectionError;
use super::queue::{Queue, Ticket};
use super::remote::Stream;
use super::row_waits::RowWaits;
use super::stats::{Stats, count};
use super::{State, Version};
use crate::replica::{Changes, Db};
use crate::transact::{TransactError, Transaction};

/// What the handles and the task share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: ClientConfig,
    db: RwLock<Db>,
    pub(super) version: watch::Sender<Version>,
    pub(super) row_waits: RowWaits,
    pub(super) queue: Queue,
    pub(super) nudge: Notify,
    pub(super) stats: Stats,
    /// Sets the row names of one transaction apart from another's.
    names: AtomicU64,
    /// The last handle is gone.
    closed: AtomicBool,
    pub(super) closing: Notify,
    /// The task is gone.
    ended: AtomicBool,
}

/// A connection that was in sync this long is worth an immediate attempt to get it back; one that was not might fail at once again.
const STABLE: Duration = Duration::from_secs(1);

/// Runs until the last handle is dropped.
pub(super) async fn run(shared: Arc<Shared>) {
    let _end = End(&shared);
    let mut failures = 0;
    while !shared.is_closed() {
        let started = Instant::now();
        let mut connection = None;
        let Err(error) = connect_and_serve(&shared, &mut connection).await else {
            return;
        };
        let was_synced = shared.version.borrow().state == State::Synced;
        failures = if was_synced && started.elapsed() >= STABLE {
            1
        } else {
            failures + 1
        };
        shared.disconnected(&error, failures);
        if let Some(connection) = connection {
            connection.abandon(&error);
        }
        pause(&shared, backoff(&shared.config, failures)).await;
    }
}

/// `Ok` when the client is to end.
async fn connect_and_serve<'a>(
    shared: &'a Shared,
    connection: &mut Option<Connection<'a>>,
) -> Result<(), ConnectionError> {
    let stream = connect(shared).await?;
    count(&shared.stats.connects);
    connection
        .insert(Connection::new(shared, stream))
        .serve()
        .await
}

async fn connect(shared: &Shared) -> Result<Box<dyn Stream>, ConnectionError> {
    let remote = &shared.config.remote;
    let limit = shared.config.connect_timeout;
    match timeout(limit, remote.connect(shared.config.tls.as_ref())).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(source)) => Err(ConnectionError::Connect {
            remote: remote.clone(),
            source,
        }),
        Err(_) => Err(ConnectionError::ConnectTimeout {
            remote: remote.clone(),
            limit,
        }),
    }
}

/// None before the second attempt; then doubling, each shortened at random by up to a quarter so that a node's clients spread.
fn backoff(config: &ClientConfig, failures: u32) -> Duration {
    let Some(doublings) = failures.checked_sub(2) else {
        return Duration::ZERO;
    };
    let pause = config
        .backoff_first
        .saturating_mul(1 << doublings.min(16))
        .min(config.backoff_max);
    let random = RandomState::new().hash_one(failures) % 256;
    pause - pause / 1024 * u32::try_from(random).unwrap_or_default()
}

async fn pause(shared: &Shared, pause: Duration) {
    if pause.is_zero() {
        return;
    }
    tokio::select! {
        () = sleep(pause) => {}
        () = shared.nudge.notified() => {}
        () = shared.closing.notified() => {}
    }
}

/// Whatever ends the task, nobody is left waiting for it.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
        let reason = "the OVSDB client has ended";
        self.0.queue.fail_all(&TransactError::Disconnected {
            sent: false,
            reason: reason.to_owned(),
        });
        let state = State::Disconnected {
            since: Instant::now(),
            last_error: Some(reason.into()),
        };
        self.0.version.send_modify(|version| version.state = state);
        self.0.row_waits.wake_all();
    }
}

impl Shared {
    pub(super) fn new(config: ClientConfig) -> Self {
        let state = State::Disconnected {
            since: Instant::now(),
            last_error: None,
        };
        Self {
            db: RwLock::new(Db::new(&config.tables).with_limit(config.replica_bytes)),
            version: watch::Sender::new(Version {
                generation: 0,
                resyncs: 0,
                state,
            }),
            row_waits: RowWaits::default(),
            queue: Queue::new(config.queue),
            nudge: Notify::new(),
            stats: Stats::default(),
            names: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            closing: Notify::new(),
            ended: AtomicBool::new(false),
            config,
        }
    }

    pub(super) fn submit(&self, transaction: &Transaction) -> Result<Ticket<'_>, TransactError> {
        let encoded = transaction.encode(self.names.fetch_add(1, Ordering::Relaxed))?;
        let (bytes, limit) = (encoded.bytes.len(), self.config.transaction_bytes);
        if bytes > limit {
            return Err(TransactError::TooLarge { bytes, limit });
        }
        let ticket = self.queue.submit(encoded)?;
        if self.has_ended() {
            return Err(TransactError::Disconnected {
                sent: false,
                reason: "the OVSDB client has ended".to_owned(),
            });
        }
        Ok(ticket)
    }

    pub(super) fn db(&self) -> RwLockReadGuard<'_, Db> {
        self.db.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn db_mut(&self) -> RwLockWriteGuard<'_, Db> {
        self.db.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn connected(&self) {
        debug!(remote = %self.config.remote, "OVSDB connected");
        self.version
            .send_modify(|version| version.state = State::Connected);
    }

    /// The replica took a snapshot.
    pub(super) fn synced(&self, changes: &Changes) {
        count(&self.stats.resyncs);
        info!(remote = %self.config.remote, database = self.config.database, changed = changes.rows.len(), "OVSDB in sync");
        self.version.send_modify(|version| {
            version.state = State::Synced;
            version.resyncs += 1;
            version.generation += u64::from(!changes.is_empty());
        });
        self.row_waits.wake_all();
    }

    /// The replica took an update.
    pub(super) fn updated(&self, changes: &Changes) {
        count(&self.stats.updates);
        if changes.is_empty() {
            return;
        }
        self.version.send_modify(|version| version.generation += 1);
        self.row_waits.wake(&self.db(), &changes.rows);
    }

    fn disconnected(&self, error: &ConnectionError, failures: u32) {
        let since_before = match self.version.borrow().state {
            State::Disconnected { since, .. } => Some(since),
            State::Connected | State::Synced => None,
        };
        // Every attempt on a server that is down would be a line in the log.
        if failures <= 1 {
            warn!(remote = %self.config.remote, %error, "OVSDB connection lost");
        } else {
            debug!(remote = %self.config.remote, %error, failures, "OVSDB connection failed");
        }
        let since = since_before.unwrap_or_else(Instant::now);
        let last_error = Some(error.to_string().into());
        self.version
            .send_modify(|version| version.state = State::Disconnected { since, last_error });
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.closing.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}
