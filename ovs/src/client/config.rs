use std::time::Duration;

use super::remote::Remote;
use super::tls::TlsKeys;
use crate::replica::{MonitorMethod, TableSpec};
use crate::wire::Limits;

/// What a client connects to, watches, and holds itself to.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Where the server is.
    pub remote: Remote,
    /// What an `ssl:` remote needs.
    pub tls: Option<TlsKeys>,
    /// The database, such as `Open_vSwitch`.
    pub database: &'static str,
    /// What the replica holds.
    pub tables: Vec<TableSpec>,
    /// The monitor request to begin with. When the server does not know [`MonitorMethod::Conditional`], the plain one is used.
    pub monitor: MonitorMethod,
    /// What the server may make us hold.
    pub limits: Limits,
    /// What the replica may grow to, in bytes, roughly.
    pub replica_bytes: usize,
    /// After this long without a byte from the server it is asked for an echo, and after as long again the connection is given up.
    pub probe: Duration,
    /// How long one attempt to connect may take.
    pub connect_timeout: Duration,
    /// The pause before the third attempt; the second is immediate, and each later pause is twice as long as the one before.
    pub backoff_first: Duration,
    /// The longest pause between attempts.
    pub backoff_max: Duration,
    /// How transactions share requests.
    pub group: GroupCommit,
    /// How many callers may wait for their transaction to be sent.
    pub queue: usize,
    /// The largest transaction, in bytes of JSON.
    pub transaction_bytes: usize,
}

/// The most that one request carries. A transaction larger than `bytes` still goes, alone.
#[derive(Clone, Copy, Debug)]
pub struct GroupCommit {
    /// How many transactions; 1 switches group commit off.
    pub transactions: usize,
    /// How many bytes.
    pub bytes: usize,
}

impl ClientConfig {
    /// The defaults for a database at a remote.
    pub fn new(remote: Remote, database: &'static str, tables: Vec<TableSpec>) -> Self {
        Self {
            remote,
            tls: None,
            database,
            tables,
            monitor: MonitorMethod::Conditional,
            limits: Limits::default(),
            replica_bytes: 256 << 20,
            probe: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            backoff_first: Duration::from_millis(50),
            backoff_max: Duration::from_secs(2),
            group: GroupCommit::default(),
            queue: 4096,
            transaction_bytes: 4 << 20,
        }
    }
}

impl Default for GroupCommit {
    fn default() -> Self {
        Self {
            transactions: 64,
            bytes: 1 << 20,
        }
    }
}

impl GroupCommit {
    /// One transaction in each request.
    pub const OFF: Self = Self {
        transactions: 1,
        bytes: 0,
    };
}
