use std::io;
use std::time::Duration;

use super::remote::Remote;
use crate::replica::ReplicaError;
use crate::transact::batch::BadReply;
use crate::wire::WireError;

/// Why there is no connection, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The attempt failed.
    #[error("connecting to {remote}: {source}")]
    Connect {
        /// Where to.
        remote: Remote,
        /// What went wrong.
        source: io::Error,
    },
    /// The attempt took too long.
    #[error("connecting to {remote} took longer than {} ms", .limit.as_millis())]
    ConnectTimeout {
        /// Where to.
        remote: Remote,
        /// As long as it may take.
        limit: Duration,
    },
    /// The server hung up.
    #[error("the server closed the connection")]
    Closed,
    /// The stream failed.
    #[error("reading or writing: {0}")]
    Io(#[from] io::Error),
    /// The server broke the protocol.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// What the server sent does not fit its schema.
    #[error("{0}")]
    Replica(#[from] ReplicaError),
    /// A reply does not fit its transaction.
    #[error("{0}")]
    BadReply(BadReply),
    /// A notification can't be read.
    #[error("a notification that can't be read: {0}")]
    Notification(serde_json::Error),
    /// The server refused a request without which there is no replica.
    #[error("the server refused {method}: {error}")]
    Refused {
        /// The request.
        method: &'static str,
        /// The error as it came.
        error: String,
    },
    /// The server cancelled the monitor.
    #[error("the server cancelled the monitor")]
    MonitorCancelled,
    /// Not a byte in time.
    #[error("not a byte from the server within {} ms of an echo request", .0.as_millis())]
    Silent(Duration),
    /// The server does not serve the database.
    #[error("the server has no database {0}")]
    NotServed(&'static str),
    /// A cluster's member that has lost the others.
    #[error("the server is cut off from the cluster of {0}")]
    NotConnected(&'static str),
    /// A cluster's member that is not its leader.
    #[error("the server is not the leader of the cluster of {0}")]
    NotLeader(&'static str),
}
