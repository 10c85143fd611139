use std::io;
use std::time::Duration;

use super::remote::Remote;
use crate::replica::ReplicaError;
use crate::transact::batch::BadReply;
use crate::wire::WireError;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The attempt failed.
    #[error("connecting to {remote}: {source}")]
    Connect {
        /// The remote.
        remote: Remote,
        /// What went wrong.
        source: io::Error,
    },
    /// The attempt took too long.
    #[error("connecting to {remote} took longer than {} ms", .limit.as_millis())]
    ConnectTimeout {
        /// The remote.
        remote: Remote,
        /// The time limit.
        limit: Duration,
    },
    /// The client made another connection: [`super::Protocol::reconnect`].
    #[error("another connection takes over")]
    Retired,
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The stream failed.
    #[error("reading or writing: {0}")]
    Io(#[from] io::Error),
    /// The server violated the protocol.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// What the server sent does not fit its schema.
    #[error("{0}")]
    Replica(#[from] ReplicaError),
    /// A reply does not fit its transaction.
    #[error("{0}")]
    BadReply(BadReply),
    /// A notification is invalid.
    #[error("a notification that can't be read: {0}")]
    Notification(serde_json::Error),
    /// The server refused a request that the replica needs.
    #[error("the server refused {method}: {error}")]
    Refused {
        /// The request.
        method: &'static str,
        /// The error as received.
        error: String,
    },
    /// The server cancelled the monitor.
    #[error("the server cancelled the monitor")]
    MonitorCancelled,
    /// No byte arrived in time.
    #[error("not a byte from the server within {} ms of an echo request", .0.as_millis())]
    Silent(Duration),
    /// The server does not have the database.
    #[error("the server has no database {0}")]
    NotServed(&'static str),
    /// A member of a cluster that has lost the others.
    #[error("the server is cut off from the cluster of {0}")]
    NotConnected(&'static str),
    /// A cluster's member that is not its leader.
    #[error("the server is not the leader of the cluster of {0}")]
    NotLeader(&'static str),
}
