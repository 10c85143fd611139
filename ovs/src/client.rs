//! A connection to an OVSDB server that restores itself, the replica that it feeds, and the
//! transactions that it carries.
//!
//! [`Client::start`] returns at once; one task connects, takes a snapshot, follows the updates, and
//! reconnects after every loss. Nothing here polls: waits end with an update, a reconnect or their
//! deadline.
//!
//! **Order of replies and updates.** `ovsdb_jsonrpc_session_send` in ovsdb/jsonrpc-server.c flushes
//! a client's monitors before each reply, and this client processes what it reads in order. So when
//! [`Client::transact`] returns `Ok`, its changes are in the replica.

mod driver;
mod followers;
mod row_waits;
mod stream;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::replica::{Db, Index, Row};
use crate::transact::{Outcome, TransactError, Transaction};
use crate::value::{Atom, Uuid};

pub use crate::protocol::{
    ClientConfig, GroupCommit, HostPort, Remote, RemoteError, Stats, TlsKeys,
};
pub use followers::{Changed, Follower};

use driver::{Shared, Withdrawn};

/// A handle to a connection; clones share it. The connection ends with the last handle.
#[derive(Clone, Debug)]
pub struct Client {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
}

/// The state of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// There is no connection. The replica holds the last known state.
    Disconnected {
        /// Since when.
        since: Instant,
        /// Why the last attempt or connection ended; `None` before the first.
        last_error: Option<Arc<str>>,
    },
    /// The server answers; its snapshot is on the way.
    Connected,
    /// The replica is current.
    Synced,
}

/// The replica's version and the connection's state. A change of either is a reason to look again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Counts the updates and snapshots that changed a row.
    pub generation: u64,
    /// Counts the snapshots taken, one for each connection.
    pub resyncs: u64,
    /// The connection's state.
    pub state: State,
}

/// Why a wait ended without a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The deadline passed.
    #[error("waited {} ms for {awaited}; seen instead: {seen}", .waited.as_millis())]
    Timeout {
        /// What the caller waited for.
        awaited: String,
        /// How long it waited.
        waited: Duration,
        /// The row's last state, or the state of the connection.
        seen: String,
    },
    /// The table is not watched.
    #[error("table {0} is not watched")]
    NotWatched(String),
    /// The client's task has ended, with its runtime.
    #[error("the OVSDB client has ended while {0} was awaited")]
    Ended(String),
}

/// The changes that wake a wait.
struct Watched<'a> {
    table: &'a str,
    row: Uuid,
    also: Option<(Index, Atom)>,
}

impl Client {
    /// Starts a client on the current tokio runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime, as `tokio::spawn` does.
    pub fn start(config: ClientConfig) -> Self {
        let shared = Arc::new(Shared::new(config));
        tokio::spawn(driver::run(Arc::clone(&shared)));
        Self {
            handle: Arc::new(Handle { shared }),
        }
    }

    /// Commits a transaction and returns its outcome; the replica already contains its changes.
    ///
    /// Without a connection, it waits for one, up to the deadline. Dropping the future withdraws
    /// the transaction unless it has been sent; after that, it runs to completion.
    ///
    /// # Errors
    /// See [`TransactError`]; each variant says whether the transaction may be committed
    /// nevertheless.
    pub async fn transact(
        &self,
        transaction: &Transaction,
        deadline: Instant,
    ) -> Result<Outcome, TransactError> {
        let shared = &self.handle.shared;
        if transaction.is_empty() {
            return Ok(Outcome::default());
        }
        let started = Instant::now();
        let mut submitted = shared.submit(transaction)?;
        match timeout_at(deadline, submitted.answer()).await {
            Ok(outcome) => outcome,
            Err(_) => match submitted.withdraw() {
                Withdrawn::Unsent => Err(self.timed_out(false, started)),
                Withdrawn::Sent => Err(self.timed_out(true, started)),
                Withdrawn::Answered(outcome) => outcome,
            },
        }
    }

    /// Sets the guards at the beginning of every later request, replacing earlier ones; an empty
    /// transaction means none. If a guard does not hold, nothing of the request is done, and each
    /// of its callers gets [`TransactError::Fenced`].
    ///
    /// # Errors
    /// [`TransactError::Invalid`].
    pub fn set_fence(&self, guards: &Transaction) -> Result<(), TransactError> {
        let shared = &self.handle.shared;
        shared.poke(|protocol| protocol.set_fence(guards))
    }

    /// Follows changes of rows, by whomever, from now on.
    pub fn follow(&self) -> Follower {
        self.handle.shared.followers.follow()
    }

    /// Reads the replica. `look` must be short, because updates wait for its end, and must not
    /// contain another read: a lock is held.
    pub fn read<T>(&self, look: impl FnOnce(&Db) -> T) -> T {
        look(&self.handle.shared.db())
    }

    /// Waits until the replica, while it is current, contains what is `awaited`. The predicate is
    /// called once at the start and once after each change.
    ///
    /// Every change of any row wakes it; if many callers wait for their own row, use
    /// [`Self::wait_row`].
    ///
    /// # Errors
    /// [`WaitError::Timeout`] at the deadline.
    pub async fn wait<T>(
        &self,
        awaited: &str,
        deadline: Instant,
        mut predicate: impl FnMut(&Db) -> Option<T>,
    ) -> Result<T, WaitError> {
        let started = Instant::now();
        let mut versions = self.subscribe();
        loop {
            versions.mark_unchanged();
            if let Some(found) = self.read_synced(&mut predicate).flatten() {
                return Ok(found);
            }
            match timeout_at(deadline, versions.changed()).await {
                Ok(_) if self.handle.shared.has_ended() => {
                    return Err(WaitError::Ended(awaited.to_owned()));
                }
                Ok(_) => {}
                Err(_) => {
                    let seen = match self.state() {
                        State::Synced => "a replica in sync, without it".to_owned(),
                        state => state.to_string(),
                    };
                    return Err(WaitError::Timeout {
                        awaited: awaited.to_owned(),
                        waited: started.elapsed(),
                        seen,
                    });
                }
            }
        }
    }

    /// Waits until a row meets the predicate. The predicate is called once at the start, after each
    /// change of that row, with `None` if the row is gone, and after each resync; never while the
    /// replica is out of date.
    ///
    /// For a row that [`Self::transact`] has inserted, the wait may begin after the transaction has
    /// returned: no update is missed, and `None` means that the row has been deleted since.
    ///
    /// # Errors
    /// [`WaitError::Timeout`] at the deadline, with the row's last state.
    pub async fn wait_row<T>(
        &self,
        table: &str,
        row: Uuid,
        deadline: Instant,
        mut predicate: impl FnMut(Option<&Row<'_>>) -> Option<T>,
    ) -> Result<T, WaitError> {
        let watched = Watched {
            table,
            row,
            also: None,
        };
        self.wait_watched(watched, deadline, |db| {
            predicate(db.row(table, row).as_ref())
        })
        .await
    }

    /// Like [`Self::wait_row`], but also calls the predicate after each change after which `index`
    /// has a row of that table under `value`: for a row that must remain the only one with that
    /// value.
    ///
    /// # Errors
    /// [`WaitError::Timeout`] at the deadline, with the row's last state.
    pub async fn wait_row_and_index<T>(
        &self,
        table: &str,
        row: Uuid,
        (index, value): (Index, &str),
        deadline: Instant,
        predicate: impl FnMut(&Db) -> Option<T>,
    ) -> Result<T, WaitError> {
        let watched = Watched {
            table,
            row,
            also: Some((index, value.into())),
        };
        self.wait_watched(watched, deadline, predicate).await
    }

    async fn wait_watched<T>(
        &self,
        Watched { table, row, also }: Watched<'_>,
        deadline: Instant,
        mut predicate: impl FnMut(&Db) -> Option<T>,
    ) -> Result<T, WaitError> {
        let started = Instant::now();
        let shared = &self.handle.shared;
        let number = shared
            .db()
            .table_number(table)
            .ok_or_else(|| WaitError::NotWatched(table.to_owned()))?;
        let waiter = shared.row_waits.register((number, row), also);
        loop {
            if let Some(found) = self.read_synced(&mut predicate).flatten() {
                return Ok(found);
            }
            if timeout_at(deadline, waiter.woken()).await.is_ok() {
                if shared.has_ended() {
                    return Err(WaitError::Ended(format!("a change of {table} {row}")));
                }
                continue;
            }
            let seen = match self.state() {
                State::Synced => self.read(|db| {
                    db.row(table, row)
                        .map_or_else(|| "no such row".to_owned(), |row| row.to_string())
                }),
                state => state.to_string(),
            };
            return Err(WaitError::Timeout {
                awaited: format!("a change of {table} {row}"),
                waited: started.elapsed(),
                seen,
            });
        }
    }

    /// Waits until the replica is current.
    ///
    /// # Errors
    /// [`WaitError::Timeout`] at the deadline, with the reason why the last attempt failed.
    pub async fn synced(&self, deadline: Instant) -> Result<(), WaitError> {
        self.wait("OVSDB to be in sync", deadline, |_| Some(()))
            .await
    }

    /// The present state of the connection.
    pub fn state(&self) -> State {
        self.handle.shared.version.borrow().state.clone()
    }

    /// The present version, and a notification of each later one. A slow subscriber sees only the
    /// latest.
    pub fn subscribe(&self) -> watch::Receiver<Version> {
        self.handle.shared.version.subscribe()
    }

    /// Ends a pause before the next connection attempt.
    pub fn nudge(&self) {
        let now = Instant::now().into_std();
        self.handle.shared.poke(|protocol| protocol.nudge(now));
    }

    /// Ends the connection once nothing is in flight, and makes another at once, which reads the
    /// TLS keys again. No transaction is lost, and none waits for longer than the new connection
    /// takes.
    pub fn reconnect(&self) {
        let now = Instant::now().into_std();
        self.handle.shared.poke(|protocol| protocol.reconnect(now));
    }

    /// Counters since the start. Must not be called within [`Self::read`]: the task may hold the
    /// counters while it waits for that to end.
    pub fn stats(&self) -> Stats {
        self.handle.shared.with(|protocol| protocol.stats())
    }

    /// `None` while the replica is out of date.
    fn read_synced<T>(&self, look: impl FnOnce(&Db) -> T) -> Option<T> {
        let shared = &self.handle.shared;
        // The state changes before another connection touches the replica, which needs this lock.
        let db = shared.db();
        let synced = shared.version.borrow().state == State::Synced;
        synced.then(|| look(&db))
    }

    fn timed_out(&self, sent: bool, started: Instant) -> TransactError {
        TransactError::Timeout {
            sent,
            waited: started.elapsed(),
            seen: match self.state() {
                // The probe will find out, some seconds later, that the connection is dead.
                State::Synced if sent => {
                    "it was sent, and ovsdb-server has not answered".to_owned()
                }
                state => state.to_string(),
            },
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.poke(crate::protocol::Protocol::close);
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Disconnected { since, last_error } => {
                write!(f, "no connection for {} ms", since.elapsed().as_millis())?;
                last_error
                    .as_ref()
                    .map_or(Ok(()), |error| write!(f, " ({error})"))
            }
            Self::Connected => f.write_str("connected, without the database's snapshot yet"),
            Self::Synced => f.write_str("connected and in sync"),
        }
    }
}
