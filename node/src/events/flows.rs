//! When to look at the gateway bridge's flows again.

use std::io;
use std::path::PathBuf;

use podwire_daemon::files::FileEvents;
use podwire_ovs::openflow::Connection;

/// Notifications that flows may be gone: ovs-vswitchd starts without them, and others may delete
/// them.
pub(crate) struct FlowNotices {
    socket: PathBuf,
    connection: Option<Connection>,
}

impl FlowNotices {
    pub(crate) fn of(socket: PathBuf) -> Self {
        Self {
            socket,
            connection: None,
        }
    }

    /// Waits until there may be others. It may be dropped and called again.
    pub(crate) async fn next(&mut self) -> io::Result<()> {
        if let Some(connection) = &mut self.connection {
            if connection.removed().await.is_err() {
                self.connection = None;
            }
            return Ok(());
        }
        // Before the attempt: a socket that is created from here on is noticed.
        let coming = self
            .socket
            .parent()
            .map(FileEvents::of_sockets)
            .transpose()?;
        self.connection = Connection::open(self.socket.clone()).await.ok();
        match coming {
            Some(coming) if self.connection.is_none() => coming.next().await,
            _ => Ok(()),
        }
    }
}
