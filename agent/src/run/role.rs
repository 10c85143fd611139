//! The node role beside the agent, for one command that is both, as ovn-kubernetes' `ovnkube`.
//!
//! It is a process of its own: it keeps the power that the agent gives up. A socket that is its
//! standard input ties the two: each sees the other's end by the end of that, whatever it died of.
//! One that was told to stop says so first, by a byte.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use tokio::io::AsyncReadExt as _;
use tokio_util::sync::CancellationToken;

use crate::config::RoleCommand;

/// The node role, as long as this is there.
pub(super) struct Role(UnixStream);

impl Role {
    /// Starts it. To be called while the agent has all its power, and after it has taken what its
    /// service manager handed over: that is for the agent alone.
    pub(super) fn start(role: &RoleCommand) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("podwire").args(&role.arguments);
        for of_manager in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
            command.env_remove(of_manager);
        }
        command.envs(role.variables.iter().cloned());
        let child = command.stdin(OwnedFd::from(theirs)).spawn()?;
        tracing::info!(pid = child.id(), "started the node role");
        Ok(Self(ours))
    }

    /// Has the agent stop when it ends. The token that is given back is cancelled when it did so
    /// without being told to.
    pub(super) fn watch(self, stop: CancellationToken) -> io::Result<CancellationToken> {
        self.0.set_nonblocking(true)?;
        let mut stream = tokio::net::UnixStream::from_std(self.0)?;
        let ended = CancellationToken::new();
        let told = ended.clone();
        tokio::spawn(async move {
            if stream.read(&mut [0]).await.is_ok_and(|length| length > 0) {
                tracing::info!("the node role was stopped");
            } else {
                told.cancel();
            }
            stop.cancel();
        });
        Ok(ended)
    }
}
