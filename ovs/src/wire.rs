//! The protocol core: JSON-RPC 1.0 over a byte stream, as RFC 7047 §4 uses it, without any IO.
//!
//! [`Session`] is fed the bytes that arrive and yields [`Event`]s; what it wants sent collects in
//! [`Session::outgoing`]. It splits the stream into messages in time linear in the bytes, whatever
//! their chunks, holds message size, nesting depth and unsent bytes under [`Limits`], matches
//! replies to requests, and answers the server's echoes. Any stream, and any test, can drive it.

mod decoder;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::HashSet;

use serde::Deserialize;
use serde_json::value::RawValue;

pub use decoder::Decoder;

use crate::value::append;

/// What a peer may make us hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest message, in bytes.
    pub message_bytes: usize,
    /// How deep arrays and objects may nest. An OVSDB schema needs about 10; `serde_json` itself
    /// stops at 128.
    pub depth: usize,
    /// How many bytes may wait to be sent: a peer that asks for echoes and reads none of them is
    /// cut off here.
    pub unsent_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes: 32 << 20,
            depth: 32,
            unsent_bytes: 8 << 20,
        }
    }
}

/// Why a connection can't go on. None of these leaves the session usable.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// A message grew past [`Limits::message_bytes`].
    #[error("a message is longer than the {0} bytes allowed")]
    MessageTooLong(usize),
    /// A message nests deeper than [`Limits::depth`].
    #[error("a message nests deeper than the {0} levels allowed")]
    TooDeep(usize),
    /// A byte between messages that begins no object.
    #[error("byte {0:#04x} where a message should begin")]
    NotAnObject(u8),
    /// A closing bracket that closes nothing of its kind.
    #[error("byte {0:#04x} closes no bracket of its kind")]
    Unbalanced(u8),
    /// A message that is not JSON, or not JSON-RPC 1.0.
    #[error("a message that is not JSON-RPC: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A reply to a request that was never sent, or was answered already.
    #[error("a reply to no request of ours, id {0}")]
    UnknownReply(String),
    /// The peer reads too slowly for what it makes us send; see [`Limits::unsent_bytes`].
    #[error("more than {0} bytes wait to be sent")]
    UnsentTooLong(usize),
}

/// What a message from the peer means.
#[derive(Debug)]
pub enum Event<'a> {
    /// The answer to the request with this id: its result, or its error.
    Reply {
        /// What [`Session::request`] returned.
        id: u64,
        /// `result`, or `error` when that is not null.
        outcome: Result<&'a str, &'a str>,
    },
    /// A notification, such as `update2`.
    Notification {
        /// Its method.
        method: Cow<'a, str>,
        /// Its parameters, as JSON.
        params: &'a str,
    },
    /// The peer asked something; the answer already waits in [`Session::outgoing`].
    Answered,
}

/// One JSON-RPC connection.
#[derive(Debug)]
pub struct Session {
    decoder: Decoder,
    outgoing: Vec<u8>,
    /// How much of `outgoing` is sent already.
    sent: usize,
    next_id: u64,
    /// Requests that no reply has come for.
    unanswered: HashSet<u64>,
    unsent_limit: usize,
}

/// The members of a message. In JSON-RPC 1.0 a request has `method`, a notification has `method`
/// and a null `id`, a reply has no `method`; an absent member and a null one mean the same to every
/// peer there is.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
}

impl Session {
    /// A session at the start of a connection.
    pub fn new(limits: Limits) -> Self {
        Self {
            decoder: Decoder::new(limits),
            outgoing: Vec::new(),
            sent: 0,
            next_id: 0,
            unanswered: HashSet::new(),
            unsent_limit: limits.unsent_bytes,
        }
    }

    /// Takes bytes as they came from the peer. Call [`Self::poll`] until it has nothing more before
    /// feeding again.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.decoder.feed(bytes);
    }

    /// What the next whole message means, or `None` when none is whole yet.
    ///
    /// # Errors
    /// The first violation of the protocol; the connection is then to be closed.
    pub fn poll(&mut self) -> Result<Option<Event<'_>>, WireError> {
        let Some(bytes) = self.decoder.next_message()? else {
            return Ok(None);
        };
        let message: Message<'_> = serde_json::from_slice(bytes)?;
        let params = message.params.map_or("[]", RawValue::get);
        match (message.method, message.id) {
            (Some(method), None) => Ok(Some(Event::Notification { method, params })),
            (Some(method), Some(id)) => {
                if method == "echo" {
                    append(
                        &mut self.outgoing,
                        format_args!(r#"{{"id":{id},"result":{params},"error":null}}"#),
                    );
                } else {
                    append(
                        &mut self.outgoing,
                        format_args!(r#"{{"id":{id},"result":null,"error":"unknown method"}}"#),
                    );
                }
                if self.outgoing.len() - self.sent > self.unsent_limit {
                    return Err(WireError::UnsentTooLong(self.unsent_limit));
                }
                Ok(Some(Event::Answered))
            }
            (None, id) => {
                let text = id.map_or("null", RawValue::get);
                let id = text.parse().ok().filter(|id| self.unanswered.remove(id));
                let id =
                    id.ok_or_else(|| WireError::UnknownReply(text.chars().take(40).collect()))?;
                let outcome = match message.error {
                    Some(error) => Err(error.get()),
                    None => Ok(message.result.map_or("null", RawValue::get)),
                };
                Ok(Some(Event::Reply { id, outcome }))
            }
        }
    }

    /// Queues a request whose `params` are written by `params`, and returns its id. Nothing is
    /// checked: `params` is to write one JSON array.
    pub fn request(&mut self, method: &str, params: impl FnOnce(&mut Vec<u8>)) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        append(&mut self.outgoing, format_args!(r#"{{"id":{id},"method":"#));
        serde_json::to_writer(&mut self.outgoing, method)
            .expect("writing a str to a Vec has no way to fail");
        self.outgoing.extend_from_slice(br#","params":"#);
        params(&mut self.outgoing);
        self.outgoing.push(b'}');
        self.unanswered.insert(id);
        id
    }

    /// What waits to be sent. The driver tells with [`Self::sent`] how much it could send.
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing[self.sent..]
    }

    /// The first `count` bytes of [`Self::outgoing`] are sent.
    pub fn sent(&mut self, count: usize) {
        self.sent = (self.sent + count).min(self.outgoing.len());
        if self.sent == self.outgoing.len() {
            self.outgoing.clear();
            self.outgoing.shrink_to(KEPT_BYTES);
            self.sent = 0;
        } else if self.sent > self.outgoing.len() / 2 {
            // At most as many bytes are moved as were sent since the last move.
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
    }
}

/// How much of a buffer is kept for the next message.
const KEPT_BYTES: usize = 256 << 10;
