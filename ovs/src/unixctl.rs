//! The control socket of an Open vSwitch or OVN daemon (ovs-appctl(8)): JSON-RPC 1.0, a method and
//! strings in, one string out.
//!
//! It tells what the database can't: whether the daemon is alive. If ovs-vswitchd is stopped, the
//! database still accepts every port, whose `ofport` then never comes.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout_at};

use crate::value::{EncodeError, encode_str};
use crate::wire::{Event, Limits, Session, WireError};

/// A daemon's control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unixctl {
    socket: PathBuf,
}

/// Why a daemon gave no valid answer.
#[derive(Debug, thiserror::Error)]
pub enum UnixctlError {
    /// The pidfile can't be read: usually the daemon is not running.
    #[error("reading the pidfile {}: {source}", path.display())]
    Pidfile {
        /// The pidfile.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The pidfile contains no process id.
    #[error("the pidfile {} holds no process id", path.display())]
    NoPid {
        /// The pidfile.
        path: PathBuf,
    },
    /// The socket refuses connections: usually the daemon is not running.
    #[error("connecting to {}: {source}", socket.display())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The connection broke.
    #[error("talking to {}: {source}", socket.display())]
    Io {
        /// The socket.
        socket: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The answer is not JSON-RPC.
    #[error("the answer of {}: {source}", socket.display())]
    Wire {
        /// The socket.
        socket: PathBuf,
        /// What went wrong.
        source: WireError,
    },
    /// The method or an argument can't be encoded.
    #[error("a unixctl argument: {0}")]
    Argument(#[from] EncodeError),
    /// The daemon refused; its own message.
    #[error("{} refused {method}: {error}", socket.display())]
    Refused {
        /// The socket.
        socket: PathBuf,
        /// The request.
        method: String,
        /// The daemon's answer.
        error: String,
    },
    /// The daemon accepted the connection but did not answer: it is stopped, or stuck.
    #[error("{} did not answer {method} within {} ms", socket.display(), waited.as_millis())]
    Timeout {
        /// The socket.
        socket: PathBuf,
        /// The request.
        method: String,
        /// How long the caller waited.
        waited: Duration,
    },
}

impl Unixctl {
    /// The control socket at this path.
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
        }
    }

    /// The control socket of the daemon with the pidfile `<rundir>/<daemon>.pid`:
    /// `<rundir>/<daemon>.<pid>.ctl`, as `unixctl_server_create` in lib/unixctl.c names it.
    ///
    /// # Errors
    /// [`UnixctlError::Pidfile`] and [`UnixctlError::NoPid`]. Whether the process is alive is not
    /// checked.
    pub fn for_daemon(rundir: &Path, daemon: &str) -> Result<Self, UnixctlError> {
        let path = rundir.join(format!("{daemon}.pid"));
        let pid = match std::fs::read_to_string(&path) {
            Ok(text) => text.trim().parse::<u32>(),
            Err(source) => return Err(UnixctlError::Pidfile { path, source }),
        };
        let pid = pid.map_err(|_| UnixctlError::NoPid { path })?;
        Ok(Self::at(rundir.join(format!("{daemon}.{pid}.ctl"))))
    }

    /// The socket's path.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Runs a command, such as `fdb/show` with a bridge, and returns what ovs-appctl would print.
    ///
    /// # Errors
    /// See [`UnixctlError`]; [`UnixctlError::Timeout`] at the deadline.
    pub async fn call(
        &self,
        method: &str,
        arguments: &[&str],
        deadline: Instant,
    ) -> Result<String, UnixctlError> {
        let started = Instant::now();
        timeout_at(deadline, self.exchange(method, arguments))
            .await
            .unwrap_or_else(|_| {
                Err(UnixctlError::Timeout {
                    socket: self.socket.clone(),
                    method: method.to_owned(),
                    waited: started.elapsed(),
                })
            })
    }

    /// Whether the daemon's main loop runs: it answers `version`.
    pub async fn is_alive(&self, deadline: Instant) -> bool {
        self.call("version", &[], deadline).await.is_ok()
    }

    async fn exchange(&self, method: &str, arguments: &[&str]) -> Result<String, UnixctlError> {
        let mut session = Session::new(Limits::default());
        request(&mut session, method, arguments)?;
        let connected = UnixStream::connect(&self.socket).await;
        let mut stream = connected.map_err(|source| UnixctlError::Connect {
            socket: self.socket.clone(),
            source,
        })?;
        let io = |source| UnixctlError::Io {
            socket: self.socket.clone(),
            source,
        };
        let wire = |source| UnixctlError::Wire {
            socket: self.socket.clone(),
            source,
        };
        stream.write_all(session.outgoing()).await.map_err(io)?;
        let mut chunk = vec![0; 16 << 10];
        loop {
            match session.poll().map_err(wire)? {
                Some(Event::Reply {
                    outcome: Ok(result),
                    ..
                }) => return Ok(text(result)),
                Some(Event::Reply {
                    outcome: Err(error),
                    ..
                }) => {
                    return Err(UnixctlError::Refused {
                        socket: self.socket.clone(),
                        method: method.to_owned(),
                        error: text(error),
                    });
                }
                Some(_) => {}
                None => {
                    let count = stream.read(&mut chunk).await.map_err(io)?;
                    if count == 0 {
                        return Err(io(io::ErrorKind::UnexpectedEof.into()));
                    }
                    session.feed(&chunk[..count]);
                }
            }
        }
    }
}

fn request(session: &mut Session, method: &str, arguments: &[&str]) -> Result<(), UnixctlError> {
    let mut params = vec![b'['];
    for (at, argument) in arguments.iter().enumerate() {
        if at > 0 {
            params.push(b',');
        }
        encode_str(argument, &mut params)?;
    }
    params.push(b']');
    session.request(method, |out| out.extend_from_slice(&params));
    Ok(())
}

/// The string in a result or an error; anything else as JSON.
fn text(json: &str) -> String {
    serde_json::from_str(json).unwrap_or_else(|_| json.to_owned())
}
