use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::remote::Remote;
use crate::replica::{MonitorMethod, Only, TableSpec};
use crate::wire::Limits;

/// What a client connects to and watches, and its limits.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The server's remote, or those of a cluster's servers, which are tried in turn; at least one.
    pub remotes: Vec<Remote>,
    /// Whether to use only the leader of a clustered database, or the one server of any other.
    /// Writes to a follower take another hop, and a follower's data may be late.
    pub leader_only: bool,
    /// Keys for an `ssl:` remote.
    pub tls: Option<TlsKeys>,
    /// The database, such as `Open_vSwitch`.
    pub database: &'static str,
    /// The tables of the replica.
    pub tables: Vec<TableSpec>,
    /// Of these tables only some rows. A server that knows no [`MonitorMethod::Conditional`] sends
    /// all.
    pub only: Vec<Only>,
    /// The monitor request to try first. If the server does not know
    /// [`MonitorMethod::Conditional`], the plain one is used.
    pub monitor: MonitorMethod,
    /// Limits on what the server can make the client store.
    pub limits: Limits,
    /// The approximate maximum size of the replica, in bytes.
    pub replica_bytes: usize,
    /// After this long without a byte from the server, the client sends an echo, and after as long
    /// again it closes the connection.
    pub probe: Duration,
    /// The same until the replica is current. A server writes a large database's content in one go,
    /// and for each connection anew: closing the connection would only make the next wait longer.
    pub sync_probe: Duration,
    /// Time limit of one attempt to connect.
    pub connect_timeout: Duration,
    /// The pause before the third attempt; the second is immediate, and each later pause is twice
    /// as long as the previous one.
    pub backoff_first: Duration,
    /// The longest pause between attempts.
    pub backoff_max: Duration,
    /// How transactions share requests.
    pub group: GroupCommit,
    /// The maximum number of transactions waiting to be sent.
    pub queue: usize,
    /// The largest transaction, in bytes of JSON.
    pub transaction_bytes: usize,
}

/// PEM files with this end's identity and the CA that it trusts: the columns of `Open_vSwitch`'s
/// SSL table, or the options of ovn-controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsKeys {
    /// The private key.
    pub private_key: PathBuf,
    /// The certificate.
    pub certificate: PathBuf,
    /// The certificate of the CA that signed the server's.
    pub ca_certificate: PathBuf,
}

/// The limits of one request. A transaction larger than `bytes` is sent alone.
#[derive(Clone, Copy, Debug)]
pub struct GroupCommit {
    /// Number of transactions; 1 disables group commit.
    pub transactions: usize,
    /// Size in bytes.
    pub bytes: usize,
}

impl ClientConfig {
    /// The defaults for a database at one or several remotes.
    ///
    /// # Panics
    /// There is no remote.
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
            only: Vec::new(),
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
