//! Netlink messages that rtnetlink does not know (netlink(7)).

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
