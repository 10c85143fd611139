//! DHCP's messages: what the client asks, and what servers answer.

use std::hash::{BuildHasher, RandomState};
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use macaddr::MacAddr6;
use podwire_cni::spool::boottime;

use super::options::{self, Options};
use super::term::{FOREVER, SHORTEST};
use super::{DhcpError, Lease, Provided, Term, Times};

/// The shortest message that every relay passes on (RFC 1542, section 2.1), in bytes.
const LEAST_LENGTH: usize = 300;

/// BOOTREQUEST and BOOTREPLY.
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
/// Ethernet, and the length of its addresses.
const ETHERNET: [u8; 2] = [1, 6];

/// Types of messages (RFC 2132, section 9.6).
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const SELECT: u8 = 3;
const DECLINE: u8 = 4;
const ACK: u8 = 5;
const NAK: u8 = 6;
const RELEASE: u8 = 7;

/// What a client asks for.
const ASKED: [u8; 7] = [
    options::MASK,
    options::ROUTES,
    options::ROUTERS,
    options::NAME_SERVERS,
    options::DOMAIN,
    options::RENEWAL,
    options::REBINDING,
];

/// What the client asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// For offers, preferably of this address.
    Discover {
        /// The address.
        wanted: Option<Ipv4Addr>,
    },
    /// For what a server has offered.
    Select {
        /// The address.
        address: Ipv4Addr,
        /// The server.
        server: Ipv4Addr,
    },
    /// For more time.
    Renew {
        /// The address.
        address: Ipv4Addr,
    },
    /// For nothing: another host has the address.
    Decline {
        /// The address.
        address: Ipv4Addr,
        /// The server.
        server: Ipv4Addr,
    },
    /// For nothing: the address is given back.
    Release {
        /// The address.
        address: Ipv4Addr,
        /// The server.
        server: Ipv4Addr,
    },
}

impl Ask {
    /// The message's name.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Discover { .. } => "DHCPDISCOVER",
            Self::Select { .. } | Self::Renew { .. } => "DHCPREQUEST",
            Self::Decline { .. } => "DHCPDECLINE",
            Self::Release { .. } => "DHCPRELEASE",
        }
    }

    /// The address that the packet comes from: none before the client has it.
    pub(super) fn source(&self) -> Ipv4Addr {
        match *self {
            Self::Discover { .. } | Self::Select { .. } | Self::Decline { .. } => {
                Ipv4Addr::UNSPECIFIED
            }
            Self::Renew { address } | Self::Release { address, .. } => address,
        }
    }

    /// The message's type.
    fn kind(&self) -> u8 {
        match self {
            Self::Discover { .. } => DISCOVER,
            Self::Select { .. } | Self::Renew { .. } => SELECT,
            Self::Decline { .. } => DECLINE,
            Self::Release { .. } => RELEASE,
        }
    }

    /// The message (RFC 2131, section 4.3.6 and table 5).
    pub(super) fn encode(&self, id: u32, mac: MacAddr6, provided: &[Provided]) -> Vec<u8> {
        let mut message = vec![0; options::COOKIE_AT];
        let mut set = |at: usize, bytes: &[u8]| {
            message[at..at + bytes.len()].copy_from_slice(bytes);
        };
        set(0, &[REQUEST]);
        set(1, &ETHERNET);
        set(4, &id.to_be_bytes());
        set(12, &self.source().octets());
        set(28, mac.as_bytes());
        message.extend(options::COOKIE);

        let mut option = |code, value: &[u8]| options::write(code, value, &mut message);
        option(options::TYPE, &[self.kind()]);
        match *self {
            Self::Discover {
                wanted: Some(address),
            } => option(options::WANTED, &address.octets()),
            Self::Select { address, server } | Self::Decline { address, server } => {
                option(options::WANTED, &address.octets());
                option(options::SERVER, &server.octets());
            }
            Self::Release { server, .. } => option(options::SERVER, &server.octets()),
            Self::Discover { wanted: None } | Self::Renew { .. } => {}
        }
        let is_last = matches!(self, Self::Decline { .. } | Self::Release { .. });
        for more in provided {
            if !is_last || more.is_identity() {
                option(more.code, more.value.as_bytes());
            }
        }
        if !is_last {
            option(options::ASKED, &ASKED);
        }
        options::end(&mut message);
        message.resize(message.len().max(LEAST_LENGTH), 0);
        message
    }
}

/// What a server answers.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) address: Ipv4Addr,
    pub(super) server: Ipv4Addr,
    server_mac: MacAddr6,
    is_refusal: bool,
    options: Options,
}

impl Answer {
    /// The answer in a packet's payload; None if it is to another question or client, or can't be
    /// used.
    pub(super) fn parse(
        payload: &[u8],
        id: u32,
        mac: MacAddr6,
        from: MacAddr6,
        ask: &Ask,
    ) -> Option<Self> {
        let field = |at: usize, length: usize| payload.get(at..at + length);
        let is_ours = field(0, 1)? == [REPLY]
            && field(1, 2)? == ETHERNET
            && field(4, 4)? == id.to_be_bytes()
            && field(28, 6)? == mac.as_bytes();
        if !is_ours {
            return None;
        }
        let options = Options::parse(payload)?;
        let server = options.address(options::SERVER)?;
        let kind = options.byte(options::TYPE)?;
        let address: [u8; 4] = field(16, 4)?.try_into().ok()?;
        let address = Ipv4Addr::from(address);
        let (is_refusal, fits) = match (*ask, kind) {
            (Ask::Discover { .. }, OFFER) => (false, true),
            (Ask::Select { server: chosen, .. }, NAK) => (true, server == chosen),
            (Ask::Renew { .. }, NAK) => (true, true),
            (
                Ask::Select {
                    address: asked,
                    server: chosen,
                },
                ACK,
            ) => (false, server == chosen && address == asked),
            (Ask::Renew { address: asked }, ACK) => (false, address == asked),
            _ => (false, false),
        };
        let has_time = options.number(options::LEASE_TIME).is_some();
        let is_usable = is_refusal || (is_host(address) && has_time);
        (fits && is_usable).then_some(Self {
            address,
            server,
            server_mac: from,
            is_refusal,
            options,
        })
    }

    /// Itself, unless it refuses.
    pub(super) fn accepted(self, ifname: &str, ask: &Ask) -> Result<Self, DhcpError> {
        let address = match *ask {
            Ask::Select { address, .. } | Ask::Renew { address } if self.is_refusal => address,
            _ => return Ok(self),
        };
        Err(DhcpError::Refused {
            ifname: ifname.to_owned(),
            server: self.server.to_string(),
            address: address.into(),
        })
    }

    /// The lease that it gives, from now on.
    pub(super) fn lease(&self, ifname: &str) -> Lease {
        let options = &self.options;
        let routers = options.addresses(options::ROUTERS).into_iter();
        Lease {
            ifname: ifname.to_owned(),
            address: self.net(),
            server: self.server,
            server_mac: self.server_mac.into_array(),
            routers: routers.filter(|it| is_host(*it)).collect(),
            routes: options.routes(options::ROUTES),
            name_servers: options.addresses(options::NAME_SERVERS),
            domain: options.text(options::DOMAIN).and_then(domain),
            provided: Vec::new(),
            term: Term {
                since: boottime(),
                times: self.times(),
            },
        }
    }

    /// The address with its prefix length. Without a mask, or with one that makes no network, it is
    /// alone.
    fn net(&self) -> Ipv4Net {
        let alone = Ipv4Net::from(self.address);
        let Some(mask) = self.options.address(options::MASK) else {
            return alone;
        };
        let net = Ipv4Net::with_netmask(self.address, mask);
        net.ok().filter(|net| net.prefix_len() > 0).unwrap_or(alone)
    }

    fn times(&self) -> Times {
        let said = |code| self.options.number(code);
        let end = said(options::LEASE_TIME).unwrap_or(FOREVER).max(SHORTEST);
        let renewal = said(options::RENEWAL).unwrap_or(end / 2);
        let rebinding = said(options::REBINDING).unwrap_or(end - end / 8);
        Times::of(end, renewal, rebinding)
    }
}

/// Whether a host can have the address.
fn is_host(address: Ipv4Addr) -> bool {
    !address.is_unspecified()
        && !address.is_broadcast()
        && !address.is_multicast()
        && !address.is_loopback()
}

/// A domain's name, if it is one: it ends up in a file of the pod. Some servers end it with a NUL.
fn domain(name: &str) -> Option<String> {
    let name = name.trim_end_matches('\0');
    let is_of_names = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name = !name.is_empty() && name.len() < 254 && name.bytes().all(is_of_names);
    is_name.then(|| name.to_owned())
}

/// A transaction's id that nobody can guess who does not hear it.
pub(in crate::ipam) fn new_id() -> u32 {
    RandomState::new().hash_one(boottime()) as u32
}

#[cfg(test)]
mod tests;
