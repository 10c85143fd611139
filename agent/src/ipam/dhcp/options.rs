//! The options of DHCP's messages (RFC 2132).

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::ops::Range;

use ipnet::Ipv4Net;

/// Subnet mask.
pub(super) const MASK: u8 = 1;
/// Routers.
pub(super) const ROUTERS: u8 = 3;
/// Name servers.
pub(super) const NAME_SERVERS: u8 = 6;
/// The domain's name.
pub(super) const DOMAIN: u8 = 15;
/// The address that the client asks for.
pub(super) const WANTED: u8 = 50;
/// How long a lease is, in seconds.
pub(super) const LEASE_TIME: u8 = 51;
/// Which other fields have options too.
const OVERLOAD: u8 = 52;
/// The message's type.
pub(super) const TYPE: u8 = 53;
/// The server's identifier, which is an address.
pub(super) const SERVER: u8 = 54;
/// The options that the client asks for.
pub(super) const ASKED: u8 = 55;
/// T1, in seconds.
pub(super) const RENEWAL: u8 = 58;
/// T2, in seconds.
pub(super) const REBINDING: u8 = 59;
/// Classless routes (RFC 3442).
pub(super) const ROUTES: u8 = 121;

const PAD: u8 = 0;
const END: u8 = 255;

/// What comes before the options: the magic number of RFC 2131, section 3.
pub(super) const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// Where it is in a message.
pub(super) const COOKIE_AT: usize = 236;

/// Two fields of a message, which may have options.
const SERVER_NAME: Range<usize> = 44..108;
const FILE: Range<usize> = 108..236;

/// The options of a message that was received. Those that come several times are one (RFC 3396).
#[derive(Debug)]
pub(super) struct Options(BTreeMap<u8, Vec<u8>>);

impl Options {
    /// Reads them; None if that is no DHCP message, or one is cut off.
    pub(super) fn parse(message: &[u8]) -> Option<Self> {
        let (cookie, options) = message.get(COOKIE_AT..)?.split_at_checked(COOKIE.len())?;
        if cookie != COOKIE {
            return None;
        }
        let mut all = Self(BTreeMap::new());
        all.read(options)?;
        let overload = all.byte(OVERLOAD).unwrap_or(0);
        for (bit, field) in [(1, FILE), (2, SERVER_NAME)] {
            if overload & bit != 0 {
                all.read(message.get(field)?)?;
            }
        }
        Some(all)
    }

    fn read(&mut self, mut bytes: &[u8]) -> Option<()> {
        loop {
            bytes = match bytes {
                [] | [END, ..] => return Some(()),
                [PAD, rest @ ..] => rest,
                [code, length, rest @ ..] => {
                    let (value, rest) = rest.split_at_checked(usize::from(*length))?;
                    self.0.entry(*code).or_default().extend(value);
                    rest
                }
                [_] => return None,
            };
        }
    }

    fn value(&self, code: u8) -> &[u8] {
        self.0.get(&code).map_or(&[], Vec::as_slice)
    }

    /// A number of one byte.
    pub(super) fn byte(&self, code: u8) -> Option<u8> {
        match self.value(code) {
            [byte] => Some(*byte),
            _ => None,
        }
    }

    /// A number of four bytes.
    pub(super) fn number(&self, code: u8) -> Option<u32> {
        let bytes = self.value(code).try_into().ok()?;
        Some(u32::from_be_bytes(bytes))
    }

    /// One address.
    pub(super) fn address(&self, code: u8) -> Option<Ipv4Addr> {
        self.number(code).map(Ipv4Addr::from)
    }

    /// A list of addresses.
    pub(super) fn addresses(&self, code: u8) -> Vec<Ipv4Addr> {
        let addresses = self.value(code).chunks_exact(4);
        addresses.filter_map(address).collect()
    }

    /// A text.
    pub(super) fn text(&self, code: u8) -> Option<&str> {
        std::str::from_utf8(self.0.get(&code)?).ok()
    }

    /// A list of routes with their next hops (RFC 3442); empty if one of them can't be read.
    pub(super) fn routes(&self, code: u8) -> Vec<(Ipv4Net, Ipv4Addr)> {
        let mut routes = Vec::new();
        let mut bytes = self.value(code);
        while !bytes.is_empty() {
            let Some((route, rest)) = route(bytes) else {
                return Vec::new();
            };
            routes.push(route);
            bytes = rest;
        }
        routes
    }
}

/// The first route of a list, and the rest of it: a prefix length, the prefix's bytes that are not
/// beyond it, and the next hop.
fn route(bytes: &[u8]) -> Option<((Ipv4Net, Ipv4Addr), &[u8])> {
    let (length, rest) = bytes.split_first()?;
    let (prefix, rest) = rest.split_at_checked(usize::from(length.div_ceil(8)))?;
    let (next_hop, rest) = rest.split_at_checked(4)?;
    let mut octets = [0; 4];
    octets.get_mut(..prefix.len())?.copy_from_slice(prefix);
    let net = Ipv4Net::new(octets.into(), *length).ok()?;
    Some(((net.trunc(), address(next_hop)?), rest))
}

fn address(bytes: &[u8]) -> Option<Ipv4Addr> {
    let octets: [u8; 4] = bytes.try_into().ok()?;
    Some(octets.into())
}

/// Writes an option of at most 255 bytes; what is longer is cut off.
pub(super) fn write(code: u8, value: &[u8], message: &mut Vec<u8>) {
    let value = &value[..value.len().min(usize::from(u8::MAX))];
    message.extend([code, value.len() as u8]);
    message.extend(value);
}

/// Ends the options.
pub(super) fn end(message: &mut Vec<u8>) {
    message.push(END);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(bytes: &[u8]) -> Option<Options> {
        let mut message = vec![0; COOKIE_AT];
        message.extend(COOKIE);
        message.extend(bytes);
        Options::parse(&message)
    }

    #[test]
    fn options_are_read_until_their_end_and_not_when_one_is_cut_off() {
        let all = options(&[0, 0, 53, 1, 5, 51, 4, 0, 0, 1, 0, 255, 54, 9]).unwrap();
        assert_eq!(
            (all.byte(TYPE), all.number(LEASE_TIME)),
            (Some(5), Some(256))
        );
        assert_eq!(all.address(SERVER), None);
        assert_eq!(options(&[53, 1, 5]).unwrap().byte(TYPE), Some(5));
        for cut_off in [&[53][..], &[53, 1], &[51, 4, 0, 0, 1]] {
            assert!(options(cut_off).is_none(), "{cut_off:?}");
        }
        assert!(Options::parse(&[0; 300]).is_none(), "no DHCP message");
    }

    #[test]
    fn an_option_in_parts_is_one_and_may_be_in_other_fields() {
        let parts = options(&[6, 4, 192, 0, 2, 1, 53, 1, 5, 6, 4, 192, 0, 2, 2]).unwrap();
        let servers = [1, 2].map(|last| Ipv4Addr::new(192, 0, 2, last));
        assert_eq!(parts.addresses(NAME_SERVERS), servers);
        let mut message = vec![0; COOKIE_AT];
        message[FILE.start..][..7].copy_from_slice(&[54, 4, 192, 0, 2, 1, 255]);
        message[SERVER_NAME.start..][..3].copy_from_slice(&[15, 1, b'a']);
        message.extend(COOKIE);
        message.extend([52, 1, 3]);
        let all = Options::parse(&message).unwrap();
        assert_eq!(
            (all.address(SERVER), all.text(DOMAIN)),
            (Some(servers[0]), Some("a"))
        );
        *message.last_mut().unwrap() = 0;
        assert_eq!(Options::parse(&message).unwrap().address(SERVER), None);
    }

    #[test]
    fn routes_have_no_more_bytes_than_their_prefix_and_are_all_read_or_none() {
        let hop = [192, 0, 2, 1];
        let list = |routes: &[&[u8]]| {
            let value: Vec<u8> = routes
                .iter()
                .flat_map(|it| [it, &hop[..]].concat())
                .collect();
            let mut bytes = Vec::new();
            write(ROUTES, &value, &mut bytes);
            let read = options(&bytes).unwrap().routes(ROUTES);
            let read = read.iter().map(|(net, hop)| format!("{net} {hop}"));
            read.collect::<Vec<_>>()
        };
        let good = list(&[&[0], &[8, 10], &[17, 10, 1, 255], &[32, 10, 1, 2, 3]]);
        let wanted = ["0.0.0.0/0", "10.0.0.0/8", "10.1.128.0/17", "10.1.2.3/32"];
        assert_eq!(good, wanted.map(|net| format!("{net} 192.0.2.1")));
        assert_eq!(list(&[&[8, 10], &[33, 1, 2, 3, 4, 5]]), [""; 0]);
        assert_eq!(list(&[&[8, 10], &[32, 10]]), [""; 0]);
    }
}
