//! Packets as frames: the first of a connection, its answer, and what passes every policy.

use std::net::IpAddr;

use etherparse::{IpHeaders, PacketBuilder, PacketBuilderStep};

use crate::world::Packet;

pub(crate) type Mac = [u8; 6];

/// The port that connections come from.
const SOURCE: u16 = 40000;
/// The sequence number of what opens a TCP connection, and of its answer.
const SEQUENCE: u32 = 1;
const WINDOW: u16 = 1024;
/// Where a frame has its [`Tag`]: at its end, after these bytes.
const MAGIC: &[u8; 8] = b"podwire:";

/// What a frame is, and what number it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tag {
    pub(crate) kind: Kind,
    pub(crate) number: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The first packet of a connection.
    Probe,
    /// The one that answers it.
    Answer,
    /// Sent after others, and let pass by every policy.
    Mark,
}

const KINDS: [Kind; 3] = [Kind::Probe, Kind::Answer, Kind::Mark];

impl Tag {
    fn bytes(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.push(self.kind as u8);
        bytes.extend(self.number.to_be_bytes());
        bytes
    }

    /// The one that a frame has.
    pub(crate) fn of(frame: &[u8]) -> Option<Self> {
        let start = frame.len().checked_sub(MAGIC.len() + 5)?;
        let rest = frame[start..].strip_prefix(MAGIC)?;
        let (kind, number) = rest.split_first()?;
        Some(Self {
            kind: *KINDS.get(usize::from(*kind))?,
            number: u32::from_be_bytes(number.try_into().ok()?),
        })
    }
}

fn ip([from_mac, to_mac]: [Mac; 2], from: IpAddr, to: IpAddr) -> PacketBuilderStep<IpHeaders> {
    let ethernet = PacketBuilder::ethernet2(from_mac, to_mac);
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.octets(), to.octets(), 64),
        (IpAddr::V6(from), IpAddr::V6(to)) => ethernet.ipv6(from.octets(), to.octets(), 64),
        _ => panic!("{from} and {to} are of two families"),
    }
}

/// The first packet of a connection, or its answer.
pub(crate) fn frame(kind: Kind, macs: [Mac; 2], packet: &Packet, number: u32) -> Vec<u8> {
    let tag = Tag { kind, number }.bytes();
    let Packet {
        from,
        to,
        protocol,
        port,
    } = *packet;
    match kind {
        Kind::Answer => with(ip(macs, to, from), (protocol, [port, SOURCE]), true, &tag),
        _ => with(ip(macs, from, to), (protocol, [SOURCE, port]), false, &tag),
    }
}

fn with(
    headers: PacketBuilderStep<IpHeaders>,
    (protocol, [from, to]): (&str, [u16; 2]),
    is_answer: bool,
    tag: &[u8],
) -> Vec<u8> {
    let mut frame = Vec::new();
    match protocol {
        "TCP" if is_answer => {
            // Of a SYN and the tag's bytes.
            let next = SEQUENCE + 1 + u32::try_from(tag.len()).unwrap();
            let tcp = headers.tcp(from, to, SEQUENCE, WINDOW).syn().ack(next);
            tcp.write_to_vec(&mut frame, tag).unwrap();
        }
        "TCP" => {
            let tcp = headers.tcp(from, to, SEQUENCE, WINDOW).syn();
            tcp.write_to_vec(&mut frame, tag).unwrap();
        }
        "UDP" => headers.udp(from, to).write_to_vec(&mut frame, tag).unwrap(),
        other => panic!("{other}"),
    }
    frame
}

/// An ARP reply to one receiver (RFC 826): neighbours find each other, whatever policies say.
pub(crate) fn mark([from, to]: [Mac; 2], number: u32) -> Vec<u8> {
    let tag = Tag {
        kind: Kind::Mark,
        number,
    };
    let mut frame = [to, from].concat();
    frame.extend([0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 2]);
    for mac in [from, to] {
        frame.extend(mac);
        // An address of each that nobody else has.
        frame.extend([169, 254, mac[4], mac[5]]);
    }
    frame.extend(tag.bytes());
    frame
}
