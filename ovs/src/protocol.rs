//! The client's side of OVSDB (RFC 7047) without IO: which remote to connect to and when, schema
//! and snapshot, the updates that keep a replica current, transactions in groups, probes, and every
//! timer.
//!
//! [`Protocol`] is driven as quinn-proto's connections are. It is told what happened
//! ([`Protocol::handle_input`], [`Protocol::handle_timeout`], …), and asked what to do: connect
//! ([`Protocol::poll_connect`]), send ([`Protocol::poll_transmit`]), wait until
//! ([`Protocol::poll_timeout`]), report ([`Protocol::poll_event`]). It never asks for the time;
//! each call brings it. [`crate::client`] drives it on tokio, and a test can drive it by hand.
//!
//! **Group commit.** While a request is in flight, transactions that arrive gather, and go as one
//! request when its reply is there. An idle client sends at once. Each caller has its own outcome:
//! a caller whose operation fails gets that error, and the others are sent again without it; when
//! the server names no operation, they are sent singly. Order is kept.
//!
//! **Fence.** Guards that are set with [`Protocol::set_fence`] begin every request, so that a
//! client that was replaced by another can't write: the server decides, whatever either's clock
//! says.
//!
//! **Leader.** With [`ClientConfig::leader_only`] the row of `Database` in the `_Server` database
//! (ovsdb-server(5)) decides whether a server will do. When the leader of a cluster changes, its
//! old one says so, and the next remote is tried at once.

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
    /// Sets the row names of one transaction apart from another's.
    names: u64,
    closing: bool,
}

/// What connections leave to the next one.
#[derive(Debug)]
struct Context {
    config: ClientConfig,
    replica: Arc<RwLock<Db>>,
    queue: Queue,
    /// Guards before every request.
    fence: Option<Encoded>,
    events: VecDeque<Event>,
    stats: Stats,
}

#[derive(Debug)]
enum Link {
    /// Until the next attempt.
    Pause(Instant),
    /// The driver is to connect, or is at it, until then.
    Connecting(Instant),
    Up(Box<Connection>),
}

/// A transaction that was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// What became of a transaction.
pub type Answer = Result<Outcome, TransactError>;

/// What happened, in order.
#[derive(Debug)]
pub enum Event {
    /// The server answers and its snapshot is awaited. The rows are those that its new schema made
    /// us forget.
    Connected(Changes),
    /// The replica took a snapshot: it is what the server has.
    Synced(Changes),
    /// The replica took an update.
    Updated(Changes),
    /// A transaction is done.
    Answered(Ticket, Answer),
    /// There is no connection, or no longer.
    Disconnected {
        /// Why.
        error: Arc<ConnectionError>,
        /// How many attempts or connections ended since one was stable.
        failures: u32,
    },
}

impl Protocol {
    /// A client that wants a connection now. What it learns goes into the replica.
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

    /// The remote to connect to, when it is time for an attempt. The driver answers with
    /// [`Self::handle_connected`] or
    /// [`Self::handle_disconnected`].
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

    /// A connection is there.
    pub fn handle_connected(&mut self, now: Instant) {
        self.context.stats.connects += 1;
        match Connection::new(&self.context, now) {
            Ok(connection) => self.link = Link::Up(Box::new(connection)),
            Err(error) => self.end_connection(now, error),
        }
    }

    /// The attempt failed, or the connection ended. It does nothing when the protocol itself has
    /// given it up.
    pub fn handle_disconnected(&mut self, now: Instant, error: ConnectionError) {
        if !matches!(self.link, Link::Pause(_)) {
            self.end_connection(now, error);
        }
    }

    /// Takes bytes as they came from the server.
    pub fn handle_input(&mut self, now: Instant, bytes: &[u8]) {
        if let Link::Up(connection) = &mut self.link
            && let Err(error) = connection.handle_input(&mut self.context, now, bytes)
        {
            self.end_connection(now, error);
        }
    }

    /// What is to be sent. The driver tells with [`Self::transmitted`] how much of it was.
    pub fn poll_transmit(&mut self) -> &[u8] {
        match &mut self.link {
            Link::Up(connection) => connection.poll_transmit(&mut self.context),
            Link::Pause(_) | Link::Connecting(_) => &[],
        }
    }

    /// The first `count` bytes of [`Self::poll_transmit`] are sent.
    pub fn transmitted(&mut self, count: usize) {
        if let Link::Up(connection) = &mut self.link {
            connection.transmitted(count);
        }
    }

    /// When [`Self::handle_timeout`] is to be called, unless something else happens before.
    pub fn poll_timeout(&self) -> Instant {
        match &self.link {
            Link::Pause(until) | Link::Connecting(until) => *until,
            Link::Up(connection) => connection.timeout(&self.context.config),
        }
    }

    /// The time of [`Self::poll_timeout`] has come. To be early does no harm.
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

    /// What happened next.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.context.events.pop_front()
    }

    /// Whether there is a connection: its stream is to be read, and closed once this is false.
    pub fn is_connected(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }

    /// Whether an attempt to connect is under way.
    pub fn is_connecting(&self) -> bool {
        matches!(self.link, Link::Connecting(_))
    }

    /// Queues a transaction; [`Event::Answered`] says what became of it.
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

    /// Takes a transaction back; true when it was not sent, or its request was aborted, and it
    /// never will be.
    pub fn withdraw(&mut self, ticket: Ticket) -> bool {
        if self.context.queue.take_out(ticket) {
            return true;
        }
        if let Link::Up(connection) = &mut self.link {
            connection.abandon(ticket);
        }
        false
    }

    /// Sets the guards that begin every later request, in place of those before. When one does not
    /// hold, everybody in that request gets [`TransactError::Fenced`], and nothing is changed.
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

    /// Lets what is in flight end, and makes no further connection.
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

    /// Ends what waits to be sent and what is in flight; nothing is to follow.
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
        let pause = self.dial.failed(now, was_synced, &self.context.config);
        self.link = Link::Pause(now + pause);
        // Callers are told when the state says already that the connection is lost.
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
