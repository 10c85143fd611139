//! The protocol core: JSON-RPC 1.0 over a byte stream, as RFC 7047 §4 uses it, without any IO.
//!
//! [`Session`] is fed the bytes that arrive and returns [`Event`]s; what it wants to send collects
//! in [`Session::outgoing`]. It splits the stream into messages in time linear in the bytes,
//! however they are chunked; keeps message size, nesting depth and unsent bytes within [`Limits`];
//! matches replies to requests; and answers the server's echoes. Any stream, and any test, can
//! drive it.

mod decoder;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::HashSet;

use serde::Deserialize;
use serde_json::value::RawValue;

pub use decoder::Decoder;

use crate::value::append;

/// Limits on what a peer can make the session store.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest message, in bytes.
    pub message_bytes: usize,
    /// How deep arrays and objects may nest. An OVSDB schema needs about 10; `serde_json` itself
    /// stops at 128.
    pub depth: usize,
    /// How many bytes may wait to be sent: a peer that requests echoes without reading them is cut
    /// off here.
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

/// Why a connection can't continue. After any of these, the session is unusable.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// A message grew past [`Limits::message_bytes`].
    #[error("a message is longer than the {0} bytes allowed")]
    MessageTooLong(usize),
    /// A message nests deeper than [`Limits::depth`].
    #[error("a message nests deeper than the {0} levels allowed")]
    TooDeep(usize),
    /// A byte between messages that does not begin an object.
    #[error("byte {0:#04x} where a message should begin")]
    NotAnObject(u8),
    /// A closing bracket without a matching opening one.
    #[error("byte {0:#04x} closes no bracket of its kind")]
    Unbalanced(u8),
    /// A message that is not JSON, or not JSON-RPC 1.0.
    #[error("a message that is not JSON-RPC: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A reply to a request that was never sent, or that has been answered.
    #[error("a reply to no request of ours, id {0}")]
    UnknownReply(String),
    /// The peer reads too slowly; see [`Limits::unsent_bytes`].
    #[error("more than {0} bytes wait to be sent")]
    UnsentTooLong(usize),
}

/// The meaning of a message from the peer.
#[derive(Debug)]
pub enum Event<'a> {
    /// The answer to the request with this id: its result, or its error.
    Reply {
        /// The id that [`Session::request`] returned.
        id: u64,
        /// `result`, or `error` if that is not null.
        outcome: Result<&'a str, &'a str>,
    },
    /// A notification, such as `update2`.
    Notification {
        /// Its method.
        method: Cow<'a, str>,
        /// Its parameters, as JSON.
        params: &'a str,
    },
    /// The peer sent a request; the answer is already in [`Session::outgoing`].
    Answered,
}

/// One JSON-RPC connection.
#[derive(Debug)]
pub struct Session {
    decoder: Decoder,
    outgoing: Vec<u8>,
    /// How much of `outgoing` has been sent.
    sent: usize,
    next_id: u64,
    /// Requests without a reply yet.
    unanswered: HashSet<u64>,
    unsent_limit: usize,
}

/// The members of a message. In JSON-RPC 1.0 a request has `method`, a notification has `method`
/// and a null `id`, a reply has no `method`; all known peers treat an absent member like a null
/// one.
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
    /// A new session.
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

    /// Adds bytes from the peer. Call [`Self::poll`] until it returns nothing before adding more.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.decoder.feed(bytes);
    }

    /// The next complete message, or `None` if none is complete yet.
    ///
    /// # Errors
    /// The first violation of the protocol; close the connection then.
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

    /// Queues a request, whose `params` are written by `params`, and returns its id. They are not
    /// checked, and must be one JSON array.
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

    /// The bytes to send. The driver reports with [`Self::sent`] how many it has sent.
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing[self.sent..]
    }

    /// The first `count` bytes of [`Self::outgoing`] were sent.
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
