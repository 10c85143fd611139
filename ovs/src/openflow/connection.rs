//! The tokio shell around a [`Session`]: one connection to a bridge's management socket.

use std::io;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::error::OpenFlowError;
use super::flow::{Cookie, FlowMod};
use super::wire::{Answer, Refusal, Session};

/// Where ovs-vswitchd listens for the OpenFlow clients of a bridge, whether or not the bridge has a
/// controller (`bridge_configure_remotes` in vswitchd/bridge.c; ovs-ofctl(8) uses the same).
pub fn management_socket(rundir: &Path, bridge: &str) -> PathBuf {
    rundir.join(format!("{bridge}.mgmt"))
}

/// A connection that was greeted. Of asynchronous messages it asks for those about removed flows
/// alone.
///
/// Nothing here has a deadline: an answer comes, or the end of the connection does, and a stopped
/// switch gives neither until it goes on.
#[derive(Debug)]
pub struct Connection {
    socket: PathBuf,
    stream: UnixStream,
    session: Session,
    /// The cookies of flows that were removed while something else was awaited.
    removed: Vec<u64>,
    /// What was read last.
    chunk: Box<[u8]>,
}

impl Connection {
    /// Connects and agrees on OpenFlow 1.4.
    ///
    /// # Errors
    /// Nobody listens, or the switch does not serve OpenFlow 1.4.
    pub async fn open(socket: PathBuf) -> Result<Self, OpenFlowError> {
        let stream = match UnixStream::connect(&socket).await {
            Ok(stream) => stream,
            Err(source) => return Err(OpenFlowError::Connect { socket, source }),
        };
        let mut connection = Self {
            socket,
            stream,
            session: Session::new(),
            removed: Vec::new(),
            chunk: vec![0; 4096].into(),
        };
        while connection.answer().await? != Answer::Ready {}
        Ok(connection)
    }

    /// Makes changes, all of them or none, and returns when they are in effect. Dropped before
    /// that, it leaves a connection that is to be dropped as well.
    ///
    /// # Errors
    /// [`OpenFlowError::Refused`] with the connection still good; any other with it broken.
    pub async fn commit(&mut self, changes: &[FlowMod]) -> Result<(), OpenFlowError> {
        if changes.is_empty() {
            return Ok(());
        }
        let bundle = self.session.bundle(changes);
        let barrier = self.session.barrier();
        let mut refused = None;
        loop {
            match self.answer().await? {
                Answer::Refused { request, refusal } if request >= bundle => {
                    refused = refused.or(Some(refusal));
                }
                Answer::Barrier { request } if request == barrier => break,
                Answer::Removed { cookie } => self.removed.push(cookie),
                _ => {}
            }
        }
        if let Some(refusal) = refused {
            self.session.discard(bundle);
            return Err(self.refused(refusal));
        }
        self.session.commit(bundle);
        loop {
            match self.answer().await? {
                Answer::Committed { request } if request == bundle => return Ok(()),
                Answer::Refused { request, refusal } if request > barrier => {
                    return Err(self.refused(refusal));
                }
                Answer::Removed { cookie } => self.removed.push(cookie),
                _ => {}
            }
        }
    }

    /// How many flows have this cookie, in all tables.
    ///
    /// # Errors
    /// As those of [`Self::commit`].
    pub async fn count(&mut self, cookie: Cookie) -> Result<u32, OpenFlowError> {
        let asked = self.session.count(cookie);
        loop {
            match self.answer().await? {
                Answer::Count { request, flows } if request == asked => return Ok(flows),
                Answer::Refused { request, refusal } if request == asked => {
                    return Err(self.refused(refusal));
                }
                Answer::Removed { cookie } => self.removed.push(cookie),
                _ => {}
            }
        }
    }

    /// Waits until a flow that tells its removal was deleted, by whomever, and returns its cookie;
    /// answers what the switch asks meanwhile. It may be dropped and called again.
    ///
    /// # Errors
    /// The switch has closed the connection.
    pub async fn removed(&mut self) -> Result<u64, OpenFlowError> {
        if let Some(cookie) = self.removed.pop() {
            return Ok(cookie);
        }
        loop {
            if let Answer::Removed { cookie } = self.answer().await? {
                return Ok(cookie);
            }
        }
    }

    async fn answer(&mut self) -> Result<Answer, OpenFlowError> {
        loop {
            let answer = self.session.poll().map_err(|source| OpenFlowError::Wire {
                socket: self.socket.clone(),
                source,
            })?;
            let outgoing = self.session.take_outgoing();
            if !outgoing.is_empty() {
                self.stream
                    .write_all(&outgoing)
                    .await
                    .map_err(|source| self.broken(source))?;
            }
            if let Some(answer) = answer {
                return Ok(answer);
            }
            match self.stream.read(&mut self.chunk).await {
                Ok(0) => return Err(self.broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.session.feed(&self.chunk[..count]),
                Err(source) => return Err(self.broken(source)),
            }
        }
    }

    fn refused(&self, refusal: Refusal) -> OpenFlowError {
        OpenFlowError::Refused {
            socket: self.socket.clone(),
            refusal,
        }
    }

    fn broken(&self, source: io::Error) -> OpenFlowError {
        OpenFlowError::Io {
            socket: self.socket.clone(),
            source,
        }
    }
}
