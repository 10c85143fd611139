//! The client's side of OVSDB (RFC 7047) without IO: which remote to connect to and when, schema
//! and snapshot, the updates that keep a replica current, transactions in groups, probes, and every
//! timer.
//!
//! [`Protocol`] is driven like quinn-proto's connections. The driver reports what happened
//! ([`Protocol::handle_input`], [`Protocol::handle_timeout`], …) and asks what to do: connect
//! ([`Protocol::poll_connect`]), send ([`Protocol::poll_transmit`]), wait until
//! ([`Protocol::poll_timeout`]), report ([`Protocol::poll_event`]). The protocol never reads a
//! clock; each call brings the time. [`crate::client`] drives it on tokio, and a test can drive it
//! by hand.
//!
//! **Group commit.** Transactions that arrive while a request is in flight are collected, and sent
//! as one request after its reply. An idle client sends at once. Each caller has its own outcome: a
//! caller whose operation fails gets that error, and the others are sent again without it; if the
//! server names no operation, they are sent singly. Order is kept.
//!
//! **Fence.** Guards set with [`Protocol::set_fence`] begin every request, so that a client that
//! was replaced by another can't write: the server decides, whatever either's clock says.
//!
//! **Leader.** With [`ClientConfig::leader_only`], the row of `Database` in the `_Server` database
//! (ovsdb-server(5)) decides whether a server is suitable. When a cluster's leader changes, the old
//! one reports it, and the next remote is tried at once.

mod config;
mod connection;
mod dial;
mod error;
mod queue;
pub(crate) mod remote;
mod server;
mod stats;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use crate::replica::{Changes, Db};
use crate::transact::{Encoded, Outcome, TransactError, Transaction};

pub use config::{ClientConfig, GroupCommit, TlsKeys};
pub use error::ConnectionError;
pub use remote::{HostPort, Remote, RemoteError};
pub use stats::Stats;

use connection::Connection;
use dial::Dial;
use queue::Queue;

/// The state of one client over all its connections.
#[derive(Debug)]
pub struct Protocol {
    context: Context,
    link: Link,
    dial: Dial,
    /// Makes the row names of one transaction distinct from another's.
    names: u64,
    closing: bool,
}

/// What a connection leaves to the next one.
#[derive(Debug)]
struct Context {
    config: ClientConfig,
    replica: Arc<RwLock<Db>>,
    queue: Queue,
    /// Guards at the beginning of every request.
    fence: Option<Encoded>,
    events: VecDeque<Event>,
    stats: Stats,
}

#[derive(Debug)]
enum Link {
    /// Until the next attempt.
    Pause(Instant),
    /// The driver has to connect, or is connecting, until then.
    Connecting(Instant),
    Up(Box<Connection>),
}

/// A submitted transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// The outcome of a transaction.
pub type Answer = Result<Outcome, TransactError>;

/// An event.
#[derive(Debug)]
pub enum Event {
    /// The server answers and its snapshot is on the way. The rows are those dropped because of its
    /// new schema.
    Connected(Changes),
    /// The replica took a snapshot and is current.
    Synced(Changes),
    /// The replica took an update.
    Updated(Changes),
    /// A transaction is done.
    Answered(Ticket, Answer),
    /// There is no connection any more.
    Disconnected {
        /// Why.
        error: Arc<ConnectionError>,
        /// How many attempts or connections have ended since one was stable.
        failures: u32,
    },
}

impl Protocol {
    /// A client that wants a connection now. It stores what it receives in the replica.
    pub fn new(config: ClientConfig, replica: Arc<RwLock<Db>>, now: Instant) -> Self {
        Self {
            context: Context {
                queue: Queue::new(config.queue),
                config,
                replica,
                fence: None,
                events: VecDeque::new(),
                stats: Stats::default(),
            },
            link: Link::Pause(now),
            dial: Dial::new(now),
            names: 0,
            closing: false,
        }
    }

    /// The remote to connect to, if it is time for an attempt. The driver answers with
    /// [`Self::handle_connected`] or [`Self::handle_disconnected`].
    pub fn poll_connect(&mut self, now: Instant) -> Option<&Remote> {
        match self.link {
            Link::Pause(until) if until <= now && !self.closing => {
                self.link = Link::Connecting(now + self.context.config.connect_timeout);
                self.dial.started = now;
                Some(self.remote())
            }
            _ => None,
        }
    }

    /// The remote of this attempt or connection.
    pub fn remote(&self) -> &Remote {
        self.dial.remote(&self.context.config)
    }

    /// The connection is established.
    pub fn handle_connected(&mut self, now: Instant) {
        self.context.stats.connects += 1;
        match Connection::new(&self.context, now) {
            Ok(connection) => self.link = Link::Up(Box::new(connection)),
            Err(error) => self.end_connection(now, error),
        }
    }

    /// The attempt failed, or the connection ended. Does nothing if the protocol itself has ended
    /// it.
    pub fn handle_disconnected(&mut self, now: Instant, error: ConnectionError) {
        if !matches!(self.link, Link::Pause(_)) {
            self.end_connection(now, error);
        }
    }

    /// Bytes from the server.
    pub fn handle_input(&mut self, now: Instant, bytes: &[u8]) {
        if let Link::Up(connection) = &mut self.link
            && let Err(error) = connection.handle_input(&mut self.context, now, bytes)
        {
            self.end_connection(now, error);
        }
        self.end_retired(now);
    }

    /// The bytes to send. The driver reports with [`Self::transmitted`] how many it has sent.
    pub fn poll_transmit(&mut self) -> &[u8] {
        match &mut self.link {
            Link::Up(connection) => connection.poll_transmit(&mut self.context),
            Link::Pause(_) | Link::Connecting(_) => &[],
        }
    }

    /// The first `count` bytes of [`Self::poll_transmit`] were sent.
    pub fn transmitted(&mut self, count: usize) {
        if let Link::Up(connection) = &mut self.link {
            connection.transmitted(count);
        }
    }

    /// When to call [`Self::handle_timeout`], unless something else happens first.
    pub fn poll_timeout(&self) -> Instant {
        match &self.link {
            Link::Pause(until) | Link::Connecting(until) => *until,
            Link::Up(connection) => connection.timeout(&self.context.config),
        }
    }

    /// The time of [`Self::poll_timeout`] has come. Calling it early does no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        let config = &self.context.config;
        let ended = match &mut self.link {
            Link::Up(connection) => connection.handle_timeout(config, now).err(),
            Link::Connecting(until) if *until <= now => Some(ConnectionError::ConnectTimeout {
                remote: self.dial.remote(config).clone(),
                limit: config.connect_timeout,
            }),
            Link::Pause(_) | Link::Connecting(_) => None,
        };
        if let Some(error) = ended {
            self.end_connection(now, error);
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.context.events.pop_front()
    }

    /// Whether there is a connection: the driver reads its stream, and closes it once this is
    /// false.
    pub fn is_connected(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }

    /// Whether an attempt to connect is in progress.
    pub fn is_connecting(&self) -> bool {
        matches!(self.link, Link::Connecting(_))
    }

    /// Queues a transaction; [`Event::Answered`] has its outcome.
    ///
    /// # Errors
    /// [`TransactError::Invalid`], [`TransactError::TooLarge`], [`TransactError::Overloaded`].
    pub fn submit(&mut self, transaction: &Transaction) -> Result<Ticket, TransactError> {
        self.names += 1;
        let encoded = transaction.encode(self.names)?;
        let (bytes, limit) = (encoded.bytes.len(), self.context.config.transaction_bytes);
        if bytes > limit {
            return Err(TransactError::TooLarge { bytes, limit });
        }
        self.context.queue.submit(encoded)
    }

    /// Withdraws a transaction; true if it was not sent, or its request was aborted, and it never
    /// will be.
    pub fn withdraw(&mut self, ticket: Ticket) -> bool {
        if self.context.queue.take_out(ticket) {
            return true;
        }
        if let Link::Up(connection) = &mut self.link {
            connection.abandon(ticket);
        }
        false
    }

    /// Sets the guards at the beginning of every later request, replacing earlier ones. If one does
    /// not hold, all callers in that request get [`TransactError::Fenced`], and nothing is changed.
    ///
    /// # Errors
    /// [`TransactError::Invalid`].
    pub fn set_fence(&mut self, guards: &Transaction) -> Result<(), TransactError> {
        self.names += 1;
        let encoded = guards.encode(self.names)?;
        self.context.fence = (!guards.is_empty()).then_some(encoded);
        Ok(())
    }

    /// Ends a pause before the next attempt.
    pub fn nudge(&mut self, now: Instant) {
        if let Link::Pause(until) = &mut self.link {
            *until = now;
        }
    }

    /// Ends the connection once nothing is in flight, and makes another at once, to the same
    /// remote. Without a connection, it begins another attempt.
    pub fn reconnect(&mut self, now: Instant) {
        match &mut self.link {
            Link::Up(connection) => connection.retire(),
            Link::Pause(_) | Link::Connecting(_) => self.link = Link::Pause(now),
        }
        self.end_retired(now);
    }

    fn end_retired(&mut self, now: Instant) {
        if let Link::Up(connection) = &self.link
            && connection.is_retired()
            && connection.is_idle()
        {
            self.end_connection(now, ConnectionError::Retired);
        }
    }

    /// Completes what is in flight, and makes no further connection.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Whether a closed client has nothing in flight any more.
    pub fn is_closed(&self) -> bool {
        self.closing
            && match &self.link {
                Link::Up(connection) => connection.is_idle(),
                Link::Pause(_) | Link::Connecting(_) => true,
            }
    }

    /// Ends what is queued and what is in flight; nothing may follow.
    pub fn abort(&mut self, error: &TransactError) {
        for ticket in self.context.queue.take_all() {
            self.context.answer(ticket, Err(error.clone()));
        }
    }

    /// Counters since the start.
    pub fn stats(&self) -> Stats {
        self.context.stats
    }

    fn end_connection(&mut self, now: Instant, error: ConnectionError) {
        let error = Arc::new(error);
        let (was_synced, in_flight) = match std::mem::replace(&mut self.link, Link::Pause(now)) {
            Link::Up(connection) => (connection.is_synced(), connection.into_tickets()),
            Link::Pause(_) | Link::Connecting(_) => (false, Vec::new()),
        };
        let pause = match *error {
            ConnectionError::Retired => self.dial.again(),
            _ => self.dial.failed(now, was_synced, &self.context.config),
        };
        self.link = Link::Pause(now + pause);
        // Callers are notified after the state shows that the connection is lost.
        self.context.events.push_back(Event::Disconnected {
            error: Arc::clone(&error),
            failures: self.dial.failures,
        });
        for ticket in in_flight {
            let answer = TransactError::Disconnected {
                sent: true,
                reason: error.to_string(),
            };
            self.context.answer(ticket, Err(answer));
        }
    }
}

impl Context {
    fn db(&self) -> RwLockReadGuard<'_, Db> {
        self.replica.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn db_mut(&self) -> RwLockWriteGuard<'_, Db> {
        self.replica.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&mut self, ticket: Ticket, answer: Answer) {
        self.events.push_back(Event::Answered(ticket, answer));
    }
}
