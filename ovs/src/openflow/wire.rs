//! The protocol without IO: bytes in, answers out, and the other way round.

use std::fmt;

use super::flow::{Cookie, FLOW_MOD, FlowMod, encode_aggregate};

/// OpenFlow 1.4, the first with bundles (§7.3.9); Open vSwitch serves it by default since 2.8.
const VERSION: u8 = 0x05;
/// `struct ofp_header`.
const HEADER: usize = 8;

const HELLO: u8 = 0;
const ERROR: u8 = 1;
const ECHO_REQUEST: u8 = 2;
const ECHO_REPLY: u8 = 3;
const GET_CONFIG_REQUEST: u8 = 7;
const GET_CONFIG_REPLY: u8 = 8;
const SET_CONFIG: u8 = 9;
const FLOW_REMOVED: u8 = 11;
const MULTIPART_REQUEST: u8 = 18;
const MULTIPART_REPLY: u8 = 19;
const BARRIER_REQUEST: u8 = 20;
const BARRIER_REPLY: u8 = 21;
const SET_ASYNC: u8 = 28;
const BUNDLE_CONTROL: u8 = 33;
const BUNDLE_ADD_MESSAGE: u8 = 34;

/// OFPBCT_*.
const OPEN_REQUEST: u16 = 0;
const COMMIT_REQUEST: u16 = 4;
const COMMIT_REPLY: u16 = 5;
const DISCARD_REQUEST: u16 = 6;

/// What a connection is told unasked: none of the packets and ports, of removed flows those that
/// somebody deleted. Properties of OFPT_SET_ASYNC (§7.3.10): OFPACPT_PACKET_IN_MASTER,
/// OFPACPT_PORT_STATUS_MASTER, OFPACPT_FLOW_REMOVED_MASTER with OFPRR_DELETE.
const TOLD: [(u16, u32); 3] = [(1, 0), (3, 0), (5, 1 << 2)];

/// OFPBF_ATOMIC | OFPBF_ORDERED: a packet meets all of it or none, and the messages count in their
/// order.
const ATOMIC_ORDERED: u16 = 3;

/// What came that is an answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Both sides speak OpenFlow 1.4, and the switch will tell of removed flows.
    Ready,
    /// The bundle of this number is in effect.
    Committed {
        /// As [`Session::bundle`] returned it.
        request: u32,
    },
    /// All that was sent before this barrier has been processed (§7.3.7).
    Barrier {
        /// As [`Session::barrier`] returned it.
        request: u32,
    },
    /// The number of flows that was asked for.
    Count {
        /// As [`Session::count`] returned it.
        request: u32,
        /// The number.
        flows: u32,
    },
    /// A flow that tells its removal was deleted.
    Removed {
        /// Its cookie.
        cookie: u64,
    },
    /// A request was refused.
    Refused {
        /// Which.
        request: u32,
        /// Why.
        refusal: Refusal,
    },
}

/// What came is not OpenFlow 1.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A message shorter than its header.
    #[error("a message of {0} bytes, shorter than its header")]
    Length(u16),
    /// The switch speaks only other versions.
    #[error(
        "the switch does not serve OpenFlow 1.4 (version byte {0}); its Bridge row's protocols \
         column may leave it out"
    )]
    Version(u8),
    /// A message's body is cut short.
    #[error("a message of type {0} is cut short")]
    Cut(u8),
}

/// An OFPT_ERROR (§7.4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// OFPET_*.
    pub kind: u16,
    /// What of it.
    pub code: u16,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            0 => "OFPET_HELLO_FAILED",
            1 => "OFPET_BAD_REQUEST",
            2 => "OFPET_BAD_ACTION",
            3 => "OFPET_BAD_INSTRUCTION",
            4 => "OFPET_BAD_MATCH",
            5 => "OFPET_FLOW_MOD_FAILED",
            8 => "OFPET_TABLE_MOD_FAILED",
            13 => "OFPET_TABLE_FEATURES_FAILED",
            17 => "OFPET_BUNDLE_FAILED",
            0xffff => "OFPET_EXPERIMENTER",
            other => return write!(f, "error type {other} code {}", self.code),
        };
        write!(f, "{kind} code {}", self.code)
    }
}

/// One connection's protocol state.
#[derive(Debug, Default)]
pub struct Session {
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    last_request: u32,
    is_ready: bool,
}

impl Session {
    /// A session that begins: its greeting is to be sent.
    pub fn new() -> Self {
        let mut session = Self::default();
        let hello = session.begin(HELLO);
        // OFPHET_VERSIONBITMAP (§7.5.1): 1.4 alone.
        session.outgoing.extend([0, 1, 0, 8]);
        session.outgoing.extend((1u32 << VERSION).to_be_bytes());
        session.end(hello);
        session
    }

    /// Queues an atomic bundle of these changes, neither committed nor discarded, and returns its
    /// number. Each message of it that the switch can't take is an [`Answer::Refused`].
    ///
    /// A barrier is to follow, and only then [`Self::commit`]: Open vSwitch leaves out of a bundle
    /// what it can't read, and would commit the rest (`handle_bundle_add` in ofproto/ofproto.c).
    pub fn bundle(&mut self, changes: &[FlowMod]) -> u32 {
        let bundle = self.last_request + 1;
        self.control(bundle, OPEN_REQUEST);
        let mut inner = Vec::with_capacity(128);
        for change in changes {
            inner.clear();
            change.encode(&mut inner);
            let message = self.begin(BUNDLE_ADD_MESSAGE);
            self.outgoing.extend(bundle.to_be_bytes());
            self.outgoing.extend([0; 2]);
            self.outgoing.extend(ATOMIC_ORDERED.to_be_bytes());
            // The inner header has the outer one's number (§7.3.9.6).
            let length = (HEADER + inner.len()) as u16;
            self.outgoing.extend([VERSION, FLOW_MOD]);
            self.outgoing.extend(length.to_be_bytes());
            self.outgoing.extend(self.last_request.to_be_bytes());
            self.outgoing.extend(&inner);
            self.end(message);
        }
        bundle
    }

    /// Queues the commit of a bundle, which [`Answer::Committed`] or [`Answer::Refused`] answers.
    pub fn commit(&mut self, bundle: u32) {
        self.control(bundle, COMMIT_REQUEST);
    }

    /// Queues the end of a bundle that is not to be committed.
    pub fn discard(&mut self, bundle: u32) {
        self.control(bundle, DISCARD_REQUEST);
    }

    /// Queues the question how many flows have this cookie, and returns its number.
    pub fn count(&mut self, cookie: Cookie) -> u32 {
        let message = self.begin(MULTIPART_REQUEST);
        encode_aggregate(cookie, &mut self.outgoing);
        self.end(message);
        self.last_request
    }

    /// Queues a barrier.
    pub fn barrier(&mut self) -> u32 {
        let message = self.begin(BARRIER_REQUEST);
        self.end(message);
        self.last_request
    }

    /// What is to be sent, which is then the caller's.
    pub fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }

    /// Takes in what came.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.incoming.extend_from_slice(bytes);
    }

    /// The next answer in what came; none until more comes. Echo requests are answered on the way.
    ///
    /// # Errors
    /// What came is not OpenFlow 1.4; the connection is of no further use.
    pub fn poll(&mut self) -> Result<Option<Answer>, WireError> {
        while let Some(message) = self.next_message()? {
            let Message {
                kind,
                request,
                body,
                ..
            } = &message;
            match *kind {
                HELLO if !self.is_ready => {
                    let theirs = Message::versions(&message);
                    if theirs & 1 << VERSION == 0 {
                        return Err(WireError::Version(message.version));
                    }
                    let message = self.begin(GET_CONFIG_REQUEST);
                    self.end(message);
                }
                ERROR => {
                    let (kind, code) = match (u16_at(body, 0), u16_at(body, 2)) {
                        (Some(kind), Some(code)) => (kind, code),
                        _ => return Err(WireError::Cut(ERROR)),
                    };
                    let refusal = Refusal { kind, code };
                    // OFPET_HELLO_FAILED, in whichever version the switch would rather speak.
                    if !self.is_ready {
                        return Err(WireError::Version(message.version));
                    }
                    return Ok(Some(Answer::Refused {
                        request: *request,
                        refusal,
                    }));
                }
                ECHO_REQUEST => {
                    self.header(ECHO_REPLY, HEADER + body.len(), *request);
                    self.outgoing.extend(body);
                }
                GET_CONFIG_REPLY if !self.is_ready => {
                    let flags = u16_at(body, 0).ok_or(WireError::Cut(GET_CONFIG_REPLY))?;
                    self.listen(flags);
                    self.is_ready = true;
                    return Ok(Some(Answer::Ready));
                }
                FLOW_REMOVED => {
                    let cookie = body.get(..8).and_then(|it| it.try_into().ok());
                    let cookie = cookie.ok_or(WireError::Cut(FLOW_REMOVED))?;
                    let cookie = u64::from_be_bytes(cookie);
                    return Ok(Some(Answer::Removed { cookie }));
                }
                MULTIPART_REPLY => {
                    // Behind 8 bytes of the reply's head: packets, bytes, flows.
                    let flows = body.get(24..28).and_then(|it| it.try_into().ok());
                    let flows = flows.ok_or(WireError::Cut(MULTIPART_REPLY))?;
                    return Ok(Some(Answer::Count {
                        request: *request,
                        flows: u32::from_be_bytes(flows),
                    }));
                }
                BARRIER_REPLY => return Ok(Some(Answer::Barrier { request: *request })),
                BUNDLE_CONTROL => {
                    let number = body.get(..4).and_then(|it| it.try_into().ok());
                    let number = number.ok_or(WireError::Cut(BUNDLE_CONTROL))?;
                    if u16_at(body, 4) == Some(COMMIT_REPLY) {
                        let request = u32::from_be_bytes(number);
                        return Ok(Some(Answer::Committed { request }));
                    }
                }
                // What nobody asked for, such as a port's status.
                _ => {}
            }
        }
        Ok(None)
    }

    fn next_message(&mut self) -> Result<Option<Message>, WireError> {
        let Some(header) = self.incoming.get(..HEADER) else {
            return Ok(None);
        };
        let length = u16::from_be_bytes([header[2], header[3]]);
        if usize::from(length) < HEADER {
            return Err(WireError::Length(length));
        }
        let (version, kind) = (header[0], header[1]);
        let request = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let Some(body) = self.incoming.get(HEADER..length.into()) else {
            return Ok(None);
        };
        let body = body.to_vec();
        self.incoming.drain(..usize::from(length));
        Ok(Some(Message {
            version,
            kind,
            request,
            body,
        }))
    }

    /// Queues the requests to be told of removed flows. A service connection is told of anything
    /// only if it takes packets of a length above 0 (`ofconn_receives_async_msg` in
    /// ofproto/connmgr.c); `flags`, which are the switch's and not the connection's, stay.
    fn listen(&mut self, flags: u16) {
        let message = self.begin(SET_ASYNC);
        for (property, mask) in TOLD {
            self.outgoing.extend(property.to_be_bytes());
            self.outgoing.extend(8u16.to_be_bytes());
            self.outgoing.extend(mask.to_be_bytes());
        }
        self.end(message);
        let message = self.begin(SET_CONFIG);
        self.outgoing.extend(flags.to_be_bytes());
        self.outgoing.extend(1u16.to_be_bytes());
        self.end(message);
    }

    fn control(&mut self, bundle: u32, kind: u16) {
        let message = self.begin(BUNDLE_CONTROL);
        self.outgoing.extend(bundle.to_be_bytes());
        self.outgoing.extend(kind.to_be_bytes());
        self.outgoing.extend(ATOMIC_ORDERED.to_be_bytes());
        self.end(message);
    }

    fn begin(&mut self, kind: u8) -> usize {
        let start = self.outgoing.len();
        self.last_request += 1;
        self.header(kind, 0, self.last_request);
        start
    }

    fn header(&mut self, kind: u8, length: usize, request: u32) {
        self.outgoing.extend([VERSION, kind]);
        self.outgoing.extend((length as u16).to_be_bytes());
        self.outgoing.extend(request.to_be_bytes());
    }

    fn end(&mut self, start: usize) {
        let length = (self.outgoing.len() - start) as u16;
        self.outgoing[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
    }
}

struct Message {
    version: u8,
    kind: u8,
    request: u32,
    body: Vec<u8>,
}

impl Message {
    /// The versions of a greeting, a bit each. Without a bitmap it is every one up to the header's
    /// (§6.3.1).
    fn versions(&self) -> u32 {
        let element = self.body.get(..8);
        match element {
            Some([0, 1, 0, 8, a, b, c, d]) => u32::from_be_bytes([*a, *b, *c, *d]),
            _ => (1u32 << (self.version + 1).min(31)) - 1,
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let value = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([value[0], value[1]]))
}

#[cfg(test)]
mod tests;
