use std::path::PathBuf;
use std::time::Duration;

use super::remote::Remote;
use crate::replica::{MonitorMethod, TableSpec};
use crate::wire::Limits;

/// What a client connects to, watches, and holds itself to.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Where the server is, or each of a cluster's. They take turns; there is at least one.
    pub remotes: Vec<Remote>,
    /// Whether only the leader of a clustered database will do, or the one server of any other.
    /// Writes that go to a follower take another hop, and what a follower shows may be late.
    pub leader_only: bool,
    /// What an `ssl:` remote needs.
    pub tls: Option<TlsKeys>,
    /// The database, such as `Open_vSwitch`.
    pub database: &'static str,
    /// What the replica holds.
    pub tables: Vec<TableSpec>,
    /// The monitor request to begin with. When the server does not know
    /// [`MonitorMethod::Conditional`], the plain one is used.
    pub monitor: MonitorMethod,
    /// What the server may make us hold.
    pub limits: Limits,
    /// What the replica may grow to, in bytes, roughly.
    pub replica_bytes: usize,
    /// After this long without a byte from the server it is asked for an echo, and after as long
    /// again the connection is given up.
    pub probe: Duration,
    /// The same until the replica is in sync. A server writes a large database's contents in one
    /// go, for each connection anew: one that is given up for that makes the next wait longer.
    pub sync_probe: Duration,
    /// How long one attempt to connect may take.
    pub connect_timeout: Duration,
    /// The pause before the third attempt; the second is immediate, and each later pause is twice
    /// as long as the one before.
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

/// PEM files with what this end is known by, and whom it believes: the columns of `Open_vSwitch`'s
/// SSL table, or the options of ovn-controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsKeys {
    /// Our private key.
    pub private_key: PathBuf,
    /// Our certificate.
    pub certificate: PathBuf,
    /// The certificate of the CA that has signed the server's.
    pub ca_certificate: PathBuf,
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
    /// The defaults for a database at a remote, or at several.
    ///
    /// # Panics
    /// Without any remote.
    pub fn new(
        remotes: impl Into<Vec<Remote>>,
        database: &'static str,
        tables: Vec<TableSpec>,
    ) -> Self {
        let remotes = remotes.into();
        assert!(
            !remotes.is_empty(),
            "a client of {database} without a remote"
        );
        Self {
            remotes,
            leader_only: false,
            tls: None,
            database,
            tables,
            monitor: MonitorMethod::Conditional,
            limits: Limits::default(),
            replica_bytes: 256 << 20,
            probe: Duration::from_secs(5),
            sync_probe: Duration::from_secs(5),
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
