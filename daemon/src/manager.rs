//! Notices to the service manager, if there is one (sd_notify(3)).

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

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
                // A daemon's one thread must not wait for the manager.
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
            // sd_watchdog_enabled(3): half of the time after which it would kill the daemon.
            watchdog: limit.map(|limit| Duration::from_micros(limit / 2)),
        })
    }

    /// Repeatedly reports that this thread still runs, for as long as it does; without a watchdog,
    /// never. It does not end.
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
            assert_eq!(manager.unwrap().watchdog, expected, "{limit}, {pid:?}");
        }
    }
}
