//! Netlink messages as bytes (linux/netlink.h, linux/rtnetlink.h, linux/ethtool_netlink.h).

use std::io;
use std::net::IpAddr;

use netlink_sys::Socket;
use nix::libc;

/// Create it, and refuse when it is there.
pub(super) const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
/// linux/if_link.h: IFLA_INFO_KIND, IFLA_INFO_DATA.
pub(super) const INFO_KIND: u16 = 1;
pub(super) const INFO_DATA: u16 = 2;
/// linux/veth.h: VETH_INFO_PEER.
pub(super) const VETH_PEER: u16 = 1;

const HEADER: usize = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_FLAG_OMIT_REPLY: u32 = 2;

/// A message under construction.
#[derive(Debug)]
pub(super) struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16) -> Self {
        let flags = flags | (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        Self(bytes)
    }

    /// A link message with these IFF_ flags set.
    pub(super) fn link(kind: u16, flags: u16, index: u32, set: u32) -> Self {
        let mut message = Self::new(kind, flags);
        message.link_header(index, set);
        message
    }

    /// `struct ifinfomsg`.
    pub(super) fn link_header(&mut self, index: u32, set: u32) {
        self.0.extend_from_slice(&[0; 4]);
        for field in [index, set, set] {
            self.0.extend_from_slice(&field.to_ne_bytes());
        }
    }

    /// RTM_NEWADDR, without duplicate address detection.
    pub(super) fn address(address: IpAddr, length: u8, index: u32) -> Self {
        let mut message = Self::new(libc::RTM_NEWADDR, CREATE);
        let nodad = if address.is_ipv6() {
            libc::IFA_F_NODAD as u8
        } else {
            0
        };
        message
            .0
            .extend_from_slice(&[family_of(address), length, nodad, 0]);
        message.0.extend_from_slice(&index.to_ne_bytes());
        message.ip(libc::IFA_LOCAL, address);
        message.ip(libc::IFA_ADDRESS, address);
        message
    }

    /// RTM_NEWROUTE of the default route.
    pub(super) fn default_route(gateway: IpAddr, index: u32) -> Self {
        let mut message = Self::new(libc::RTM_NEWROUTE, CREATE);
        message.0.extend_from_slice(&[
            family_of(gateway),
            0,
            0,
            0,
            libc::RT_TABLE_MAIN,
            libc::RTPROT_STATIC,
            libc::RT_SCOPE_UNIVERSE,
            libc::RTN_UNICAST,
        ]);
        message.0.extend_from_slice(&0u32.to_ne_bytes());
        message.ip(libc::RTA_GATEWAY, gateway);
        message.number(libc::RTA_OIF, index);
        message
    }

    pub(super) fn bytes(&mut self, kind: u16, payload: &[u8]) {
        let length = 4 + payload.len() as u16;
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(payload);
        self.pad();
    }

    pub(super) fn text(&mut self, kind: u16, text: &str) {
        self.bytes(kind, &[text.as_bytes(), &[0]].concat());
    }

    pub(super) fn number(&mut self, kind: u16, number: u32) {
        self.bytes(kind, &number.to_ne_bytes());
    }

    pub(super) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.bytes(kind | libc::NLA_F_NESTED as u16, &[]);
        fill(self);
        let length = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    fn ip(&mut self, kind: u16, address: IpAddr) {
        match address {
            IpAddr::V4(v4) => self.bytes(kind, &v4.octets()),
            IpAddr::V6(v6) => self.bytes(kind, &v6.octets()),
        }
    }

    fn generic(kind: u16, command: u8) -> Self {
        let mut message = Self::new(kind, 0);
        message.0.extend_from_slice(&[command, 1, 0, 0]);
        message
    }

    fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}

/// ETHTOOL_MSG_FEATURES_SET: a bit that is named without a value is to be off.
pub(super) fn tx_checksum_off(family: u16, index: u32) -> Message {
    const HEADER_DEV_INDEX: u16 = 1;
    const HEADER_FLAGS: u16 = 3;
    const FEATURES_HEADER: u16 = 1;
    const FEATURES_WANTED: u16 = 3;
    const BITSET_BITS: u16 = 3;
    const BITS_BIT: u16 = 1;
    const BIT_NAME: u16 = 2;
    let mut message = Message::generic(family, ETHTOOL_MSG_FEATURES_SET);
    message.nest(FEATURES_HEADER, |header| {
        header.number(HEADER_DEV_INDEX, index);
        header.number(HEADER_FLAGS, ETHTOOL_FLAG_OMIT_REPLY);
    });
    message.nest(FEATURES_WANTED, |wanted| {
        wanted.nest(BITSET_BITS, |bits| {
            bits.nest(BITS_BIT, |bit| bit.text(BIT_NAME, "tx-checksum-ip-generic"));
        });
    });
    message
}

/// The number of a generic netlink family.
pub(super) fn family(socket: &Socket, name: &str) -> io::Result<u16> {
    let mut request = Message::generic(libc::GENL_ID_CTRL as u16, CTRL_CMD_GETFAMILY);
    request.text(CTRL_ATTR_FAMILY_NAME, name);
    let mut found = None;
    Datagram::of(&[request]).exchange_with(socket, |body| {
        // Behind `struct genlmsghdr`.
        let mut rest = body.get(4..).unwrap_or_default();
        while let Some(length) = u16_at(rest, 0)
            .map(usize::from)
            .filter(|length| *length >= 4)
        {
            if u16_at(rest, 2) == Some(CTRL_ATTR_FAMILY_ID) {
                found = u16_at(rest, 4);
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    })?;
    found.ok_or_else(|| io::Error::other(format!("the kernel knows no family {name}")))
}

/// Messages that go to the kernel together; it works them off in order.
pub(super) struct Datagram {
    bytes: Vec<u8>,
    messages: usize,
}

impl Datagram {
    pub(super) fn of(messages: &[Message]) -> Self {
        let mut bytes = Vec::with_capacity(1024);
        for (number, Message(message)) in messages.iter().enumerate() {
            let start = bytes.len();
            bytes.extend_from_slice(message);
            bytes[start..start + 4].copy_from_slice(&(message.len() as u32).to_ne_bytes());
            bytes[start + 8..start + 12].copy_from_slice(&(number as u32).to_ne_bytes());
        }
        Self {
            bytes,
            messages: messages.len(),
        }
    }

    /// Sends it and reads as many acks as it has messages; the first refusal is returned, all are
    /// read.
    pub(super) fn exchange(&self, socket: &Socket) -> io::Result<()> {
        self.exchange_with(socket, |_| ())
    }

    fn exchange_with(&self, socket: &Socket, mut answer: impl FnMut(&[u8])) -> io::Result<()> {
        socket.send(&self.bytes, 0)?;
        let mut acks = 0;
        let mut outcome = Ok(());
        let mut buffer = Vec::with_capacity(8192);
        while acks < self.messages {
            buffer.clear();
            socket.recv(&mut buffer, 0)?;
            let mut rest = buffer.as_slice();
            while let Some(length) = u32_at(rest, 0).map(|length| length as usize) {
                let body = rest.get(HEADER..length).unwrap_or_default();
                if u16_at(rest, 4) == Some(libc::NLMSG_ERROR as u16) {
                    acks += 1;
                    let errno = u32_at(body, 0).unwrap_or_default() as i32;
                    if errno != 0 && outcome.is_ok() {
                        outcome = Err(io::Error::from_raw_os_error(-errno));
                    }
                } else {
                    answer(body);
                }
                rest = rest
                    .get(length.max(HEADER).next_multiple_of(4)..)
                    .unwrap_or_default();
            }
        }
        outcome
    }
}

fn family_of(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}
