//! Netlink messages from and to bytes.
//!
//! Route messages are built with netlink-packet-route. The kernel's answers are parsed attribute by
//! attribute, only those that are needed, so that a newer kernel's unknown or longer attribute
//! can't spoil an answer. Conntrack and generic netlink, of which this module needs four messages,
//! are encoded by hand in the same way.

use std::net::IpAddr;

use macaddr::MacAddr6;
use netlink_packet_core::{
    NetlinkHeader, NetlinkMessage, NetlinkPayload, parse_ip, parse_mac, parse_string,
};
use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;
use nix::libc;

use super::Refusal;

/// The size of `struct nlmsghdr`; every message begins with one, aligned to four bytes.
pub(super) const HEADER: usize = 16;

/// Requests that go to the kernel together; it executes those of a datagram in order, each on its
/// own (`netlink_rcv_skb`).
#[derive(Debug, Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    starts: Vec<usize>,
}

impl Batch {
    /// A batch of one.
    pub(super) fn of(message: RouteNetlinkMessage, flags: u16) -> Batch {
        let mut batch = Batch::default();
        batch.push(message, flags);
        batch
    }

    /// Adds a route message; NLM_F_REQUEST and NLM_F_ACK are implied.
    pub(super) fn push(&mut self, message: RouteNetlinkMessage, flags: u16) {
        let mut message = NetlinkMessage::new(
            NetlinkHeader::default(),
            NetlinkPayload::InnerMessage(message),
        );
        message.header.flags = request_flags(flags);
        message.finalize();
        let start = self.begin();
        self.bytes.resize(start + message.buffer_len(), 0);
        message.serialize(&mut self.bytes[start..]);
    }

    /// Adds a message of any other family: its fixed header and attributes.
    pub(super) fn push_raw(&mut self, kind: u16, flags: u16, body: &[u8]) {
        let start = self.begin();
        let length = (HEADER + body.len()) as u32;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes
            .extend_from_slice(&request_flags(flags).to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 8]);
        self.bytes.extend_from_slice(body);
        debug_assert_eq!(self.bytes.len(), start + HEADER + body.len());
    }

    /// Number of requests.
    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    /// Numbers its requests from `first`.
    pub(super) fn number(&mut self, first: u32) {
        for (number, start) in self.starts.iter().enumerate() {
            let sequence = first.wrapping_add(number as u32);
            self.bytes[start + 8..start + 12].copy_from_slice(&sequence.to_ne_bytes());
        }
    }

    /// All of them as one datagram.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Datagrams of at most `size` requests each, with the number of requests.
    pub(super) fn datagrams(&self, size: usize) -> impl Iterator<Item = (&[u8], usize)> {
        let ends = self.starts.iter().copied().skip(size).step_by(size);
        let ends = ends.chain([self.bytes.len()]);
        self.starts
            .chunks(size)
            .zip(ends)
            .map(|(starts, end)| (&self.bytes[starts[0]..end], starts.len()))
    }

    fn begin(&mut self) -> usize {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self.starts.push(self.bytes.len());
        self.bytes.len()
    }
}

fn request_flags(flags: u16) -> u16 {
    let request = flags | libc::NLM_F_REQUEST as u16;
    // A dump ends with NLMSG_DONE; an ack would come in addition.
    if flags & libc::NLM_F_DUMP as u16 == libc::NLM_F_DUMP as u16 {
        request
    } else {
        request | libc::NLM_F_ACK as u16
    }
}

/// One message from the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// `RTM_*`, `NLMSG_*` or the family's own.
    pub kind: u16,
    /// `NLM_F_*`.
    pub flags: u16,
    /// The request that it answers.
    pub sequence: u32,
    /// The netlink port of whoever caused it.
    pub port: u32,
    /// Everything after the netlink header.
    pub body: &'a [u8],
}

/// The messages of a datagram, up to the first truncated one.
pub fn messages(mut datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(datagram, 0)? as usize;
        let body = datagram.get(HEADER..length)?;
        let message = Message {
            kind: u16_at(datagram, 4)?,
            flags: u16_at(datagram, 6)?,
            sequence: u32_at(datagram, 8)?,
            port: u32_at(datagram, 12)?,
            body,
        };
        datagram = datagram
            .get(length.next_multiple_of(4)..)
            .unwrap_or_default();
        Some(message)
    })
}

/// The attributes in `bytes`, as (type without flag bits, payload), up to the first truncated one.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u16_at(bytes, 0)? as usize;
        let kind = u16_at(bytes, 2)? & libc::NLA_TYPE_MASK as u16;
        let payload = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, payload))
    })
}

/// The payload of the first attribute with that type.
pub(super) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes)
        .find(|(k, _)| *k == kind)
        .map(|(_, payload)| payload)
}

/// Appends an attribute.
pub(super) fn put(bytes: &mut Vec<u8>, kind: u16, payload: &[u8]) {
    bytes.extend_from_slice(&((4 + payload.len()) as u16).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// Appends an attribute that contains attributes.
pub(super) fn put_nested(bytes: &mut Vec<u8>, kind: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    let mut inside = Vec::new();
    fill(&mut inside);
    put(bytes, kind | libc::NLA_F_NESTED as u16, &inside);
}

/// The result in an NLMSG_ERROR (or NLMSG_DONE) message: an ack, or an error.
///
/// The socket has NETLINK_CAP_ACK set, so only the header of the request is quoted.
pub(super) fn verdict(message: &Message<'_>) -> Result<(), Refusal> {
    let errno = u32_at(message.body, 0).unwrap_or_default() as i32;
    if errno == 0 {
        return Ok(());
    }
    let told = message.flags & libc::NLM_F_ACK_TLVS as u16 != 0;
    let behind = if message.kind == libc::NLMSG_DONE as u16 {
        4
    } else {
        4 + HEADER
    };
    let text = message
        .body
        .get(behind..)
        .filter(|_| told)
        .and_then(error_text);
    Err(Refusal {
        errno: Errno::from_raw(-errno),
        text,
    })
}

/// The kernel's message in an error's attributes.
pub(super) fn error_text(attributes: &[u8]) -> Option<String> {
    /// linux/netlink.h, `enum nlmsgerr_attrs`.
    const NLMSGERR_ATTR_MSG: u16 = 1;
    attribute(attributes, NLMSGERR_ATTR_MSG).and_then(string)
}

/// A native-endian u16 at an offset.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..at + 2)?
        .try_into()
        .ok()
        .map(u16::from_ne_bytes)
}

/// A native-endian u32 at an offset.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..at + 4)?
        .try_into()
        .ok()
        .map(u32::from_ne_bytes)
}

/// A string with or without its terminating zero.
pub(super) fn string(payload: &[u8]) -> Option<String> {
    parse_string(payload).ok()
}

/// An address of either family, by its length.
pub(super) fn ip(payload: &[u8]) -> Option<IpAddr> {
    parse_ip(payload).ok()
}

/// A MAC address.
pub(super) fn mac(payload: &[u8]) -> Option<MacAddr6> {
    parse_mac(payload).ok().map(MacAddr6::from)
}
