use std::io;
use std::time::Duration;

use super::remote::Remote;
use crate::replica::ReplicaError;
use crate::transact::batch::BadReply;
use crate::wire::WireError;

/// Why there is no connection, or no longer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("connecting to {remote}: {source}")]
    Connect { remote: Remote, source: io::Error },
    #[error("connecting to {remote} took longer than {limit:?}")]
    ConnectTimeout { remote: Remote, limit: Duration },
    #[error("the server closed the connection")]
    Closed,
    #[error("reading or writing: {0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Wire(#[from] WireError),
    #[error("{0}")]
    Replica(#[from] ReplicaError),
    #[error("{0}")]
    BadReply(#[from] BadReply),
    #[error("a notification that can't be read: {0}")]
    Notification(serde_json::Error),
    #[error("the server refused {method}: {error}")]
    Refused { method: &'static str, error: String },
    #[error("the server cancelled the monitor")]
    MonitorCancelled,
    #[error("not a byte from the server within {0:?} of an echo request")]
    Silent(Duration),
}
