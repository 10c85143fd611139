//! The service manager's protocols, if there is one: the socket that it holds (sd_listen_fds(3)),
//! and notifications (sd_notify(3)).
//!
//! A socket held by the manager outlives the agent: a client that connects between two agents waits
//! in its queue and is served by the next one.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use listenfd::ListenFd;

/// Why the service manager's socket can't be used.
#[derive(Debug, thiserror::Error)]
pub enum InheritedError {
    /// It is not a socket of the right kind.
    #[error("{0}")]
    Unfit(#[from] io::Error),
    /// There is more than one.
    #[error("there are {0} sockets, but the agent serves only one")]
    Many(usize),
    /// Plugins would look for the agent elsewhere.
    #[error(
        "it is {}, but --socket is {}",
        shown(.found),
        .wanted.display()
    )]
    Elsewhere {
        /// Its path; None if it has no name.
        found: Option<PathBuf>,
        /// The setting.
        wanted: PathBuf,
    },
}

/// The socket that the service manager passed, if any. Call this while there is one thread, and
/// before anything is started: no child may inherit it.
///
/// # Errors
/// Something was passed that can't be served.
pub fn inherited_listener(
    wanted: &std::path::Path,
) -> Result<Option<UnixListener>, InheritedError> {
    let mut handed = ListenFd::from_env();
    if handed.len() > 1 {
        return Err(InheritedError::Many(handed.len()));
    }
    let Some(listener) = handed.take_unix_listener(0)? else {
        return Ok(None);
    };
    let found = listener.local_addr()?.as_pathname().map(PathBuf::from);
    if found.as_deref() != Some(wanted) {
        return Err(InheritedError::Elsewhere {
            found,
            wanted: wanted.to_owned(),
        });
    }
    Ok(Some(listener))
}

fn shown(path: &Option<PathBuf>) -> String {
    path.as_ref().map_or_else(
        || "without a name".to_owned(),
        |path| path.display().to_string(),
    )
}

/// The connection to the service manager; unconnected if there is none.
#[derive(Debug)]
pub struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// Text that the manager's full queue did not accept; sent with the next message.
    unsent: Mutex<String>,
    /// The interval of liveness messages.
    watchdog: Option<Duration>,
}

impl Manager {
    /// From the environment (NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID).
    ///
    /// # Errors
    /// There is a manager, but no socket to reach it.
    pub fn from_environment() -> io::Result<Self> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> io::Result<Self> {
        let socket = match variable("NOTIFY_SOCKET") {
            Some(name) if !name.is_empty() => {
                let address = match name.as_bytes().strip_prefix(b"@") {
                    Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name)?,
                    None => SocketAddr::from_pathname(&name)?,
                };
                let socket = UnixDatagram::unbound()?;
                // The agent's one thread must not wait for the manager.
                socket.set_nonblocking(true)?;
                Some((socket, address))
            }
            _ => None,
        };
        let number = |name| variable(name)?.to_str()?.parse::<u64>().ok();
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let limit = number("WATCHDOG_USEC").filter(|limit| is_ours && *limit > 0);
        Ok(Self {
            socket,
            unsent: Mutex::default(),
            // sd_watchdog_enabled(3): half of the time after which it would kill the agent.
            watchdog: limit.map(|limit| Duration::from_micros(limit / 2)),
        })
    }

    /// Reports that the agent serves.
    pub fn serving(&self) {
        self.notify("READY=1\nSTATUS=serving; not yet ready for an ADD");
    }

    /// The interval of liveness messages.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Reports one line of status text.
    pub fn status(&self, line: &str) {
        self.notify(&format!("STATUS={line}"));
    }

    /// Reports that the agent is stopping.
    pub fn stopping(&self) {
        self.notify("STOPPING=1\nSTATUS=ending; pods keep their network");
    }

    /// Repeatedly reports that the agent's one thread still runs, for as long as it does; without a
    /// watchdog, never.
    pub async fn keep_alive(&self) {
        let Some(period) = self.watchdog else {
            return std::future::pending().await;
        };
        let mut beat = tokio::time::interval(period);
        loop {
            beat.tick().await;
            self.notify(WATCHDOG);
        }
    }

    /// Sends assignments, one per line (sd_notify(3)).
    pub fn notify(&self, message: &str) {
        let Some((socket, address)) = &self.socket else {
            return;
        };
        let mut unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        let is_beat = message == WATCHDOG;
        // The last status counts, but systemd reads the first in a message.
        let kept = unsent
            .lines()
            .filter(|line| is_beat || !line.starts_with("STATUS="));
        let lines: Vec<&str> = kept.chain(message.lines()).collect();
        let whole = lines.join("\n");
        match socket.send_to_addr(whole.as_bytes(), address) {
            Ok(_) => unsent.clear(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !is_beat {
                    *unsent = whole;
                }
            }
            Err(error) => tracing::warn!(%error, message, "the service manager can't be notified"),
        }
    }
}

const WATCHDOG: &str = "WATCHDOG=1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_s_time_is_halved_and_that_of_another_process_is_not_ours() {
        let own = std::process::id().to_string();
        for (limit, pid, expected) in [
            ("400000", Some(&*own), Some(200)),
            ("400000", None, Some(200)),
            ("400000", Some("1"), None),
            ("0", None, None),
            ("soon", None, None),
        ] {
            let manager = Manager::from_variables(|name| match name {
                "WATCHDOG_USEC" => Some(limit.into()),
                "WATCHDOG_PID" => pid.map(Into::into),
                _ => None,
            });
            let expected = expected.map(Duration::from_millis);
            assert_eq!(manager.unwrap().watchdog(), expected, "{limit}, {pid:?}");
        }
    }
}
