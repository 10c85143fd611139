//! DHCPv6's messages (RFC 8415): what the client asks, and what servers answer.

use std::net::Ipv6Addr;

use macaddr::MacAddr6;

/// Types of messages (section 7.3).
const SOLICIT: u8 = 1;
const ADVERTISE: u8 = 2;
const REQUEST: u8 = 3;
const RENEW: u8 = 5;
const REBIND: u8 = 6;
const REPLY: u8 = 7;
const RELEASE: u8 = 8;
const DECLINE: u8 = 9;
const INFORMATION_REQUEST: u8 = 11;

/// Codes of options (section 21; RFC 3646, RFC 7083).
const CLIENT_ID: u16 = 1;
const SERVER_ID: u16 = 2;
const IA_NA: u16 = 3;
const IA_ADDRESS: u16 = 5;
const OPTION_REQUEST: u16 = 6;
const ELAPSED_TIME: u16 = 8;
const STATUS: u16 = 13;
const NAME_SERVERS: u16 = 23;
const REFRESH_TIME: u16 = 32;
const INFORMATION_MAX_RT: u16 = 83;

/// Statuses (section 21.13) that say that a client's address is not its own: the server knows of
/// none, or it is not of this link.
const NOT_ITS_OWN: [u16; 2] = [3, 4];

/// The client's one set of addresses: each pod's interface has an identifier of its own.
const IAID: [u8; 4] = [0, 0, 0, 1];

/// The longest server identifier (section 11.1), in bytes.
const LONGEST_ID: usize = 130;

/// What the client asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask<'a> {
    /// For offers, preferably of this address.
    Solicit(Option<Ipv6Addr>),
    /// A server for what it has offered.
    Request(&'a Bound),
    /// A server for more time.
    Renew(&'a Bound),
    /// Any server for more time.
    Rebind(&'a Bound),
    /// For nothing: the address is given back.
    Release(&'a Bound),
    /// For nothing: another host has the address.
    Decline(&'a Bound),
    /// Any server for what does not depend on an address.
    Information,
}

/// An address, and the server that gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) address: Ipv6Addr,
    /// The server's identifier.
    pub(super) server: Vec<u8>,
}

impl Ask<'_> {
    /// The message's name.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Solicit(_) => "Solicit",
            Self::Request(_) => "Request",
            Self::Renew(_) => "Renew",
            Self::Rebind(_) => "Rebind",
            Self::Release(_) => "Release",
            Self::Decline(_) => "Decline",
            Self::Information => "Information-request",
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Solicit(_) => SOLICIT,
            Self::Request(_) => REQUEST,
            Self::Renew(_) => RENEW,
            Self::Rebind(_) => REBIND,
            Self::Release(_) => RELEASE,
            Self::Decline(_) => DECLINE,
            Self::Information => INFORMATION_REQUEST,
        }
    }

    fn bound(&self) -> Option<&Bound> {
        match self {
            Self::Solicit(_) | Self::Information => None,
            Self::Request(bound)
            | Self::Renew(bound)
            | Self::Rebind(bound)
            | Self::Release(bound)
            | Self::Decline(bound) => Some(bound),
        }
    }

    /// The message, from an interface with this MAC address.
    pub(super) fn encode(&self, id: [u8; 3], mac: MacAddr6) -> Vec<u8> {
        let mut message = vec![self.kind()];
        message.extend(id);
        write(&mut message, CLIENT_ID, &client_id(mac));
        let bound = self.bound();
        if let Some(bound) = bound.filter(|_| !matches!(self, Self::Rebind(_))) {
            write(&mut message, SERVER_ID, &bound.server);
        }
        // The first message of an exchange; later ones are the same, so that answers to each fit.
        write(&mut message, ELAPSED_TIME, &[0, 0]);
        let wanted = match self {
            Self::Solicit(wanted) => *wanted,
            Self::Information => {
                let wanted = [NAME_SERVERS, REFRESH_TIME, INFORMATION_MAX_RT];
                let wanted = wanted.map(u16::to_be_bytes);
                write(&mut message, OPTION_REQUEST, wanted.as_flattened());
                return message;
            }
            _ => bound.map(|bound| bound.address),
        };
        let mut set = IAID.to_vec();
        // The times are the server's to say.
        set.extend([0; 8]);
        if let Some(address) = wanted {
            let mut value = address.octets().to_vec();
            value.extend([0; 8]);
            write(&mut set, IA_ADDRESS, &value);
        }
        write(&mut message, IA_NA, &set);
        if !matches!(self, Self::Release(_) | Self::Decline(_)) {
            write(&mut message, OPTION_REQUEST, &NAME_SERVERS.to_be_bytes());
        }
        message
    }
}

/// The client's identifier (DUID-LL, section 11.4).
fn client_id(mac: MacAddr6) -> Vec<u8> {
    [&[0, 3, 0, 1], mac.as_bytes()].concat()
}

fn write(message: &mut Vec<u8>, code: u16, value: &[u8]) {
    message.extend(code.to_be_bytes());
    message.extend((value.len() as u16).to_be_bytes());
    message.extend(value);
}

/// What a server answers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) server: Vec<u8>,
    /// The address that it gives; None if it gives none.
    pub(super) given: Option<Given>,
    /// Whether it says that the client's address is not its own, or no longer.
    pub(super) ends: bool,
    pub(super) name_servers: Vec<Ipv6Addr>,
}

/// An address and its times, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) address: Ipv6Addr,
    /// T1 and T2; 0 leaves them to the client.
    pub(super) renewal: u32,
    pub(super) rebinding: u32,
    pub(super) preferred: u32,
    pub(super) valid: u32,
}

impl Answer {
    /// The answer in a message; None if it is to another question or client.
    pub(super) fn parse(message: &[u8], id: [u8; 3], mac: MacAddr6, ask: &Ask<'_>) -> Option<Self> {
        let kind = match ask {
            Ask::Solicit(_) => ADVERTISE,
            _ => REPLY,
        };
        let (head, all) = message.split_at_checked(4)?;
        let is_ours = head[0] == kind
            && head[1..] == id
            && options(all).any(|it| it == (CLIENT_ID, &client_id(mac)));
        let server = find(all, SERVER_ID).filter(|it| it.len() <= LONGEST_ID)?;
        let is_its = match ask {
            Ask::Solicit(_) | Ask::Rebind(_) | Ask::Information => true,
            _ => ask.bound().is_some_and(|bound| bound.server == server),
        };
        if !is_ours || !is_its {
            return None;
        }
        let name_servers = find(all, NAME_SERVERS).unwrap_or_default();
        let name_servers = name_servers.chunks_exact(16);
        let name_servers = name_servers.filter_map(|it| ipv6_at(it, 0)).collect();
        let sets = || options(all).filter(|(code, _)| *code == IA_NA);
        let given = sets().filter_map(|(_, set)| given(set)).next();
        Some(Self {
            server: server.to_owned(),
            given: given.filter(|_| succeeded(all)),
            ends: sets().any(|(_, set)| ends(set)),
            name_servers,
        })
    }
}

/// The first address of a set that can be used.
fn given(set: &[u8]) -> Option<Given> {
    let (head, rest) = set.split_at_checked(12)?;
    if head[..4] != IAID || !succeeded(rest) {
        return None;
    }
    let addresses = options(rest).filter(|(code, _)| *code == IA_ADDRESS);
    let mut usable = addresses.filter_map(|(_, value)| {
        let given = Given {
            address: ipv6_at(value, 0)?,
            renewal: u32_at(head, 4)?,
            rebinding: u32_at(head, 8)?,
            preferred: u32_at(value, 16)?,
            valid: u32_at(value, 20)?,
        };
        let address = given.address;
        let is_host = !address.is_unspecified()
            && !address.is_loopback()
            && !address.is_multicast()
            && !address.is_unicast_link_local();
        (is_host && given.valid > 0 && succeeded(value.get(24..)?)).then_some(given)
    });
    usable.next()
}

/// Whether a set says that its address is not the client's, or no longer.
fn ends(set: &[u8]) -> bool {
    let Some((head, rest)) = set.split_at_checked(12) else {
        return false;
    };
    let status = find(rest, STATUS).and_then(|status| u16_at(status, 0));
    let mut addresses = options(rest).filter(|(code, _)| *code == IA_ADDRESS);
    let is_over = addresses.any(|(_, value)| u32_at(value, 20) == Some(0));
    head[..4] == IAID && (is_over || status.is_some_and(|it| NOT_ITS_OWN.contains(&it)))
}

/// Whether options have no status, or that of success (section 21.13).
fn succeeded(all: &[u8]) -> bool {
    find(all, STATUS).is_none_or(|status| status.starts_with(&[0, 0]))
}

fn find(all: &[u8], code: u16) -> Option<&[u8]> {
    options(all).find_map(|(it, value)| (it == code).then_some(value))
}

/// Options up to the first that is cut short.
fn options(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (code, length) = (u16_at(rest, 0)?, usize::from(u16_at(rest, 2)?));
        let value = rest.get(4..4 + length)?;
        rest = &rest[4 + length..];
        Some((code, value))
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn ipv6_at(bytes: &[u8], at: usize) -> Option<Ipv6Addr> {
    let octets: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
    Some(octets.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAC: MacAddr6 = MacAddr6::new(2, 0, 0, 0, 0, 1);
    const ID: [u8; 3] = [1, 2, 3];
    const OWN: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);

    fn bound() -> Bound {
        Bound {
            address: OWN,
            server: vec![0, 3, 0, 1, 9],
        }
    }

    /// An answer with one address.
    fn answer(kind: u8, address: Ipv6Addr, valid: u32, status: Option<[u8; 2]>) -> Vec<u8> {
        let mut message = vec![kind];
        message.extend(ID);
        write(&mut message, CLIENT_ID, &client_id(MAC));
        write(&mut message, SERVER_ID, &bound().server);
        let mut value = address.octets().to_vec();
        value.extend(60_u32.to_be_bytes());
        value.extend(valid.to_be_bytes());
        let mut set = IAID.to_vec();
        set.extend([0, 0, 0, 30, 0, 0, 0, 48]);
        write(&mut set, IA_ADDRESS, &value);
        if let Some(status) = status {
            write(&mut set, STATUS, &status);
        }
        write(&mut message, IA_NA, &set);
        let dns: Ipv6Addr = "2001:db8::53".parse().unwrap();
        write(&mut message, NAME_SERVERS, &dns.octets());
        message
    }

    #[test]
    fn an_address_comes_with_its_server_its_times_and_name_servers() {
        let message = answer(ADVERTISE, OWN, 120, None);
        let read = Answer::parse(&message, ID, MAC, &Ask::Solicit(None)).unwrap();
        let given = Given {
            address: OWN,
            renewal: 30,
            rebinding: 48,
            preferred: 60,
            valid: 120,
        };
        assert_eq!(read.given, Some(given));
        assert_eq!(read.server, bound().server);
        assert_eq!(read.name_servers.len(), 1);
    }

    #[test]
    fn what_is_for_others_is_no_answer() {
        let reply = answer(REPLY, OWN, 120, None);
        let bound = bound();
        let parse = |id, mac, ask: &Ask<'_>| Answer::parse(&reply, id, mac, ask);
        assert!(parse(ID, MAC, &Ask::Request(&bound)).is_some());
        assert_eq!(parse(ID, MAC, &Ask::Solicit(None)), None);
        assert_eq!(parse([0; 3], MAC, &Ask::Request(&bound)), None);
        assert_eq!(parse(ID, MacAddr6::nil(), &Ask::Request(&bound)), None);
        let other = Bound {
            server: vec![1],
            ..bound
        };
        assert_eq!(parse(ID, MAC, &Ask::Renew(&other)), None);
        assert!(parse(ID, MAC, &Ask::Rebind(&other)).is_some());
        assert!(parse(ID, MAC, &Ask::Information).is_some());
    }

    #[test]
    fn an_address_without_time_or_success_or_of_no_host_is_none() {
        let bound = bound();
        for (address, valid, status, ends) in [
            (OWN, 0, None, true),
            (OWN, 120, Some([0, 3]), true),
            // The server could not do it now.
            (OWN, 120, Some([0, 1]), false),
            (Ipv6Addr::UNSPECIFIED, 120, None, false),
            ("fe80::1".parse().unwrap(), 120, None, false),
        ] {
            let reply = answer(REPLY, address, valid, status);
            let read = Answer::parse(&reply, ID, MAC, &Ask::Renew(&bound)).unwrap();
            let is_so = (read.given, read.ends);
            assert_eq!(is_so, (None, ends), "{address} {valid} {status:?}");
        }
    }

    #[test]
    fn each_message_names_the_client_and_its_server_if_it_is_for_one() {
        let bound = bound();
        for (ask, kind, has_server) in [
            (Ask::Solicit(Some(OWN)), 1, false),
            (Ask::Request(&bound), 3, true),
            (Ask::Renew(&bound), 5, true),
            (Ask::Rebind(&bound), 6, false),
            (Ask::Release(&bound), 8, true),
            (Ask::Decline(&bound), 9, true),
        ] {
            let message = ask.encode(ID, MAC);
            let all = &message[4..];
            assert_eq!(message[0], kind, "{ask:?}");
            assert_eq!(find(all, CLIENT_ID), Some(&client_id(MAC)[..]));
            assert_eq!(find(all, SERVER_ID).is_some(), has_server, "{ask:?}");
            let set = find(all, IA_NA).unwrap();
            assert_eq!(&find(&set[12..], IA_ADDRESS).unwrap()[..16], OWN.octets());
        }
    }

    #[test]
    fn a_question_for_information_has_no_addresses() {
        let message = Ask::Information.encode(ID, MAC);
        let all = &message[4..];
        assert_eq!(message[0], 11);
        assert_eq!(find(all, CLIENT_ID), Some(&client_id(MAC)[..]));
        assert_eq!(find(all, OPTION_REQUEST), Some(&[0, 23, 0, 32, 0, 83][..]));
        assert_eq!((find(all, IA_NA), find(all, SERVER_ID)), (None, None));
    }

    proptest! {
        #[test]
        fn what_a_host_sends_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut message = answer(REPLY, OWN, 120, None);
            let bound = bound();
            for at in 0..bytes.len().min(message.len()) {
                let before = std::mem::replace(&mut message[at], bytes[at]);
                Answer::parse(&message, ID, MAC, &Ask::Renew(&bound));
                Answer::parse(&message[..at], ID, MAC, &Ask::Renew(&bound));
                message[at] = before;
            }
            Answer::parse(&bytes, ID, MAC, &Ask::Renew(&bound));
        }
    }
}
