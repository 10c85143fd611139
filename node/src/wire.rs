//! Netlink messages that rtnetlink does not know (netlink(7)), and messages as text.

use std::fmt::Write as _;

use netlink_packet_core::{Emitable, Parseable};

/// `struct nlmsghdr` and `struct nfgenmsg`.
pub(crate) const HEADER: usize = 16;
pub(crate) const NFGENMSG: usize = 4;

/// Flag of an attribute's type: it contains attributes (linux/netlink.h, NLA_F_NESTED).
pub(crate) const NESTED: u16 = 1 << 15;

/// The messages of a datagram: their type, the netlink port of their cause, and what follows the
/// header.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, u32, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        let port = u32::from_ne_bytes(bytes.get(12..HEADER)?.try_into().ok()?);
        let message = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, port, message))
    })
}

/// Attributes: type without its flags, and value.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute with this type.
pub(crate) fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes)
        .find(|(kind, _)| *kind == wanted)
        .map(|(_, value)| value)
}

/// Appends an attribute.
pub(crate) fn put(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    to.extend(length.to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// A request with these flags.
pub(crate) fn request(kind: u16, flags: u16, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + message.len()).unwrap_or(u32::MAX);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    // Sequence and port: each answer is read before the next request is sent.
    bytes.extend([0; 8]);
    bytes.extend(message);
    bytes
}

/// A message in hexadecimal digits.
pub(crate) fn hex(message: &impl Emitable) -> String {
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut bytes);
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The message that [`hex`] has written.
pub(crate) fn of_hex<T: Parseable<[u8]>>(text: &str) -> Option<T> {
    let bytes = (0..text.len()).step_by(2);
    let bytes = bytes.map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok());
    let bytes = bytes.collect::<Option<Vec<u8>>>()?;
    T::parse(&bytes[..]).ok()
}

/// Messages in a record: each in hexadecimal digits.
pub(crate) mod hexed {
    use netlink_packet_core::{Emitable, Parseable};
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<T: Emitable, S: Serializer>(
        messages: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(messages.iter().map(super::hex))
    }

    pub(crate) fn deserialize<'de, T: Parseable<[u8]>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        let messages = texts.iter().map(|text| super::of_hex(text));
        let messages = messages.collect::<Option<Vec<T>>>();
        messages.ok_or_else(|| D::Error::custom("a message that netlink does not have"))
    }
}
