//! What agent and spawner say to each other: JSON behind its length, four bytes, most significant
//! first.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Exec, Output};

/// The largest message, in bytes, without its length: two outputs of 1 MiB, each byte of which JSON
/// may spell with six.
pub(super) const MESSAGE_MAX: usize = 16 << 20;

/// The length of the length.
pub(super) const PREFIX: usize = 4;

/// From the agent.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    /// Run this, and reply under this number.
    Run { id: u64, exec: Exec },
    /// Nobody waits for this reply any more: kill the program.
    Cancel { id: u64 },
}

/// From the spawner: one for each `Run`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Reply {
    pub(super) id: u64,
    pub(super) outcome: Outcome,
}

/// How a run ended.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// By itself.
    Ended(Output),
    /// It never began.
    NotStarted { reason: String, errno: Option<i32> },
    /// Killed since its time was over.
    TimedOut { stderr: String },
    /// Killed since it wrote too much to this stream.
    TooMuchOutput { stream: String },
    /// Killed since its pipes failed.
    Io { reason: String },
    /// Killed since nobody waits for it.
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

/// The message as it goes over the socket. An oversized one is for the caller to hold back: see
/// [`MESSAGE_MAX`].
pub(super) fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut frame = vec![0; PREFIX];
    serde_json::to_writer(&mut frame, message)
        .expect("numbers and strings always serialise, and a Vec takes them");
    let length = u32::try_from(frame.len() - PREFIX).unwrap_or(u32::MAX);
    frame[..PREFIX].copy_from_slice(&length.to_be_bytes());
    frame
}

/// The length that a prefix announces.
pub(super) fn length(prefix: [u8; PREFIX]) -> io::Result<usize> {
    match usize::try_from(u32::from_be_bytes(prefix)) {
        Ok(length) if length <= MESSAGE_MAX => Ok(length),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a message longer than any",
        )),
    }
}

/// The next message, or `None` when the other end closed between two.
pub(super) fn read<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<Option<T>> {
    let mut prefix = [0; PREFIX];
    let (first, rest) = prefix.split_at_mut(1);
    match stream.read(first)? {
        0 => return Ok(None),
        _ => stream.read_exact(rest)?,
    }
    let mut body = vec![0; length(prefix)?];
    stream.read_exact(&mut body)?;
    Ok(Some(serde_json::from_slice(&body)?))
}

/// Sends a message.
pub(super) fn write(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    stream.write_all(&encode(message))
}

#[cfg(test)]
mod tests;
