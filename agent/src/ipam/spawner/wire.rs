//! Messages between agent and spawner: JSON in packets of a SOCK_SEQPACKET socket.
//!
//! The first byte of each packet tells whether a message begins or ends with it. So a new reader,
//! after the earlier one died in the middle of a message, skips to the next beginning.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Exec, Output};

/// The largest message, in bytes: two outputs of 1 MiB, each byte of which JSON may encode as six.
pub(super) const MESSAGE_MAX: usize = 16 << 20;

/// The largest packet, in bytes; several fit into a socket's buffer (wmem_default).
pub(super) const PACKET_MAX: usize = 32 << 10;

/// Bit in the first byte of a message's first packet.
const FIRST: u8 = 1;
/// The same of its last packet.
const LAST: u8 = 2;

/// A message from the agent.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    /// Run this program, and reply with this number.
    Run { id: u64, exec: Exec },
    /// Nobody waits for this reply any more: kill the program.
    Cancel { id: u64 },
}

/// A message from the spawner.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
    /// From the worker: the reply to a `Run`.
    Ran { id: u64, outcome: Outcome },
    /// From the supervisor: the worker ended in this way; its open requests have no reply.
    Restarted { ended: String },
}

/// How a run ended.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// It exited by itself.
    Ended(Output),
    /// It could not be started.
    NotStarted { reason: String, errno: Option<i32> },
    /// Killed: its time was up.
    TimedOut { stderr: String },
    /// Killed: it wrote too much to this stream.
    TooMuchOutput { stream: String },
    /// Killed: its pipes failed.
    Io { reason: String },
    /// Killed: nobody waits for it.
    Cancelled,
}

impl Outcome {
    pub(super) fn not_started(error: &io::Error) -> Self {
        Self::NotStarted {
            reason: error.to_string(),
            errno: error.raw_os_error(),
        }
    }
}

/// The two ends of a socket that preserves packet boundaries.
pub(super) fn pair() -> io::Result<(UnixStream, UnixStream)> {
    let (family, kind) = (AddressFamily::Unix, SockType::SeqPacket);
    let (one, other) = socketpair(family, kind, None, SockFlag::SOCK_CLOEXEC)?;
    Ok((one.into(), other.into()))
}

/// The message as bytes. The caller must not send one that is too large: see [`MESSAGE_MAX`].
pub(super) fn encode(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("numbers and strings always serialise")
}

/// A message's packets, in order.
pub(super) fn packets(message: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let chunks = message.chunks(PACKET_MAX - 1);
    let last = chunks.len().saturating_sub(1);
    chunks.enumerate().map(move |(at, chunk)| {
        let flags = if at == 0 { FIRST } else { 0 } | if at == last { LAST } else { 0 };
        [&[flags], chunk].concat()
    })
}

/// Sends a message.
pub(super) fn write(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    packets(&encode(message)).try_for_each(|packet| stream.write_all(&packet))
}

/// The message being received.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// None before its first packet.
    partial: Option<Vec<u8>>,
}

impl Inbox {
    /// Adds a packet; returns the message that ends with it.
    pub(super) fn push<T: DeserializeOwned>(&mut self, packet: &[u8]) -> io::Result<Option<T>> {
        let Some((flags, bytes)) = packet.split_first() else {
            return Ok(None);
        };
        if flags & FIRST != 0 {
            self.partial = Some(Vec::new());
        }
        let Some(message) = &mut self.partial else {
            return Ok(None);
        };
        if message.len() + bytes.len() > MESSAGE_MAX {
            let problem = format!("a message of more than {MESSAGE_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        message.extend_from_slice(bytes);
        if flags & LAST == 0 {
            return Ok(None);
        }
        let message = self.partial.take().unwrap_or_default();
        Ok(Some(serde_json::from_slice(&message)?))
    }

    /// Blocks until the next message; `None` if the other end is closed.
    pub(super) fn read<T: DeserializeOwned>(
        &mut self,
        stream: &mut impl Read,
    ) -> io::Result<Option<T>> {
        let mut packet = vec![0; PACKET_MAX];
        loop {
            match stream.read(&mut packet)? {
                0 => return Ok(None),
                size => {
                    if let Some(message) = self.push(&packet[..size])? {
                        return Ok(Some(message));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
