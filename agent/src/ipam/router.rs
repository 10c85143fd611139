//! What routers of a physical network advertise (RFC 4861, section 4.2), and the addresses that the
//! pod's kernel makes of it (RFC 4862).
//!
//! The kernel reads the same advertisements. They are read here to know what to wait for.

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::Ipv6Net;
use macaddr::MacAddr6;
use podwire_netns::{AddressChanges, Ipv6Address, Netlink, Packets, icmpv6};
use tokio::time::{Instant, timeout_at};

use super::link::{LinkError, Place, open, receive, sent};
use crate::duration;

/// All routers of a link, and where they are on Ethernet (RFC 2464, section 7).
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
const ROUTERS_MAC: MacAddr6 = MacAddr6::new(0x33, 0x33, 0, 0, 0, 2);
const SOLICITATION: u8 = 133;
const ADVERTISEMENT: u8 = 134;
const ICMPV6: u8 = 58;

/// The first wait for an advertisement; each further one is twice as long.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// Options of an advertisement (RFC 4861, section 4.6.2; RFC 8106, section 5.1).
const PREFIX: u8 = 3;
const NAME_SERVERS: u8 = 25;
/// The length of a prefix that Ethernet's addresses are made of (RFC 2464, section 4).
const AUTONOMOUS_LENGTH: u8 = 64;
/// Link-local addresses (RFC 4291, section 2.5.6).
const LINK_LOCAL: Ipv6Net = Ipv6Net::new_assert(
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0),
    AUTONOMOUS_LENGTH,
);

/// What a router says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertisement {
    /// Its link-local address.
    pub router: Ipv6Addr,
    /// Whether it is a default router.
    pub is_default: bool,
    /// Whether addresses are to be had by DHCPv6.
    pub is_managed: bool,
    /// Whether everything else is to be had by DHCPv6.
    pub is_other: bool,
    /// The prefixes of which each host makes an address.
    pub prefixes: Vec<Ipv6Net>,
    /// Name servers.
    pub name_servers: Vec<Ipv6Addr>,
}

/// Why a pod has no address by a router.
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    /// Packets could not be sent or received, or addresses not be read.
    #[error("router advertisements on {0}")]
    Link(#[from] LinkError),
    /// No router is there.
    #[error("no router has sent an advertisement on {ifname} within {}", duration::text(*waited))]
    Silent {
        /// The interface.
        ifname: String,
        /// For how long.
        waited: Duration,
    },
    /// Its advertisement leads to no address.
    #[error(
        "router {router} on {ifname} advertises neither a prefix for addresses (flag A) nor DHCPv6 \
         (flag M)"
    )]
    Nothing {
        /// The interface.
        ifname: String,
        /// The router.
        router: Ipv6Addr,
    },
    /// Another host has the address that the kernel made.
    #[error("another host has {address}, which {ifname} has made as its own")]
    Duplicate {
        /// The interface.
        ifname: String,
        /// The address.
        address: Ipv6Addr,
    },
    /// The kernel made no address, or its duplicate address detection has not ended.
    #[error("{ifname} has made no address of its router's prefix {prefixes} in time")]
    Late {
        /// The interface.
        ifname: String,
        /// The prefixes.
        prefixes: String,
    },
}

/// Asks routers for an advertisement, until the deadline.
///
/// # Errors
/// [`RouterError::Link`], [`RouterError::Silent`].
pub async fn ask(
    netlink: &Netlink,
    place: &Place,
    deadline: Instant,
) -> Result<Advertisement, RouterError> {
    let socket = open(netlink, place, Packets::Ipv6).await?;
    // From no address: the interface's own may not be usable yet (RFC 4861, section 4.1).
    let message = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    let solicitation = icmpv6(Ipv6Addr::UNSPECIFIED, ROUTERS, message);
    let (began, mut wait) = (Instant::now(), FIRST_WAIT);
    loop {
        sent(socket.send(&solicitation, ROUTERS_MAC), &place.ifname)?;
        let advertised = receive(&socket, &place.ifname, |packet, _| parse(packet));
        let until = deadline.min(Instant::now() + wait);
        match timeout_at(until, advertised).await {
            Ok(advertisement) => return Ok(advertisement?),
            Err(_) if Instant::now() >= deadline => {
                return Err(RouterError::Silent {
                    ifname: place.ifname.clone(),
                    waited: began.elapsed(),
                });
            }
            Err(_) => wait *= 2,
        }
    }
}

/// The addresses that the kernel makes of prefixes, once they can be used. `changes` are those
/// since before the advertisement.
///
/// # Errors
/// [`RouterError`].
pub async fn made_of(
    netlink: &Netlink,
    place: &Place,
    prefixes: &[Ipv6Net],
    changes: &AddressChanges,
    deadline: Instant,
) -> Result<Vec<Ipv6Net>, RouterError> {
    let making = usable(netlink, place, prefixes, changes);
    timeout_at(deadline, making).await.unwrap_or_else(|_| {
        let prefixes: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
        Err(RouterError::Late {
            ifname: place.ifname.clone(),
            prefixes: prefixes.join(", "),
        })
    })
}

/// The interface's link-local address, once it can be used.
pub(super) async fn link_local(netlink: &Netlink, place: &Place) -> Result<Ipv6Addr, RouterError> {
    let netns = Arc::clone(&place.netns);
    let changes = netlink.ipv6_address_changes(netns, &place.ifname).await;
    let changes = changes.map_err(LinkError::opening(place))?;
    let found = usable(netlink, place, &[LINK_LOCAL], &changes).await?;
    Ok(found.first().map_or(Ipv6Addr::UNSPECIFIED, Ipv6Net::addr))
}

/// An address of the interface for each prefix, once the duplicate address detection of all has
/// ended.
async fn usable(
    netlink: &Netlink,
    place: &Place,
    prefixes: &[Ipv6Net],
    changes: &AddressChanges,
) -> Result<Vec<Ipv6Net>, RouterError> {
    let is_of =
        |it: &Ipv6Address, prefix: &Ipv6Net| prefix.contains(&it.net.addr()) && !it.temporary;
    let mut changed = Vec::new();
    loop {
        let netns = Arc::clone(&place.netns);
        let all = netlink.ipv6_addresses(netns, &place.ifname).await;
        let all = all.map_err(LinkError::opening(place))?;
        let is_lost = |it: &&Ipv6Address| it.duplicate && prefixes.iter().any(|of| is_of(it, of));
        if let Some(lost) = all.iter().chain(&changed).find(is_lost) {
            return Err(RouterError::Duplicate {
                ifname: place.ifname.clone(),
                address: lost.net.addr(),
            });
        }
        let usable = |prefix: &Ipv6Net| {
            let mut of = all.iter().filter(|it| is_of(it, prefix));
            of.find(|it| !it.tentative).map(|it| it.net)
        };
        let found: Option<Vec<Ipv6Net>> = prefixes.iter().map(usable).collect();
        if let Some(found) = found {
            return Ok(found);
        }
        changed = changes.next().await.map_err(|source| LinkError::Socket {
            ifname: place.ifname.clone(),
            source,
        })?;
    }
}

/// The advertisement in an IPv6 packet; None if it is another packet.
fn parse(packet: &[u8]) -> Option<Advertisement> {
    let router = ipv6_at(packet, 8)?;
    // RFC 4861, section 6.1.2.
    let is_one = packet.first()? >> 4 == 6
        && packet.get(6..8)? == [ICMPV6, 255]
        && *packet.get(40)? == ADVERTISEMENT
        && router.is_unicast_link_local();
    if !is_one {
        return None;
    }
    let mut advertisement = Advertisement {
        router,
        is_default: packet.get(46..48)? != [0, 0],
        is_managed: packet.get(45)? & 0x80 != 0,
        is_other: packet.get(45)? & 0x40 != 0,
        prefixes: Vec::new(),
        name_servers: Vec::new(),
    };
    let mut rest = packet.get(56..)?;
    while let [kind, words, ..] = *rest {
        // One without a length spoils all (RFC 4861, section 4.6).
        let length = (words > 0).then_some(usize::from(words) * 8)?;
        let (option, others) = rest.split_at_checked(length)?;
        rest = others;
        match kind {
            PREFIX => advertisement.prefixes.extend(autonomous(option)),
            NAME_SERVERS if option.get(4..8)? != [0; 4] => {
                let servers = option[8..].chunks_exact(16);
                let servers = servers.filter_map(|it| ipv6_at(it, 0));
                advertisement.name_servers.extend(servers);
            }
            _ => {}
        }
    }
    Some(advertisement)
}

/// The prefix of an option if hosts make addresses of it (RFC 4862, section 5.5.3).
fn autonomous(option: &[u8]) -> Option<Ipv6Net> {
    let [_, _, length, flags, lifetimes @ ..] = option else {
        return None;
    };
    let prefix = Ipv6Net::new(ipv6_at(option, 16)?, *length).ok()?.trunc();
    let u32_at = |at: usize| -> Option<u32> {
        Some(u32::from_be_bytes(
            lifetimes.get(at..at + 4)?.try_into().ok()?,
        ))
    };
    let (valid, preferred) = (u32_at(0)?, u32_at(4)?);
    let is_used = flags & 0x40 != 0
        && *length == AUTONOMOUS_LENGTH
        && valid > 0
        && preferred <= valid
        && !prefix.addr().is_unicast_link_local();
    is_used.then_some(prefix)
}

fn ipv6_at(packet: &[u8], at: usize) -> Option<Ipv6Addr> {
    let octets: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
    Some(octets.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use podwire_netns::ALL_NODES;

    fn option(prefix: &str, flags: u8, valid: u32, preferred: u32) -> Vec<u8> {
        let prefix: Ipv6Net = prefix.parse().unwrap();
        let mut option = vec![PREFIX, 4, prefix.prefix_len(), flags];
        option.extend(valid.to_be_bytes());
        option.extend(preferred.to_be_bytes());
        option.extend([0; 4]);
        option.extend(prefix.addr().octets());
        option
    }

    fn packet(flags: u8, lifetime: u8, options: &[Vec<u8>]) -> Vec<u8> {
        let mut message = vec![ADVERTISEMENT, 0, 0, 0, 64, flags, 0, lifetime];
        message.extend([0; 8]);
        message.extend(options.concat());
        icmpv6("fe80::1".parse().unwrap(), ALL_NODES, message)
    }

    #[test]
    fn an_advertisement_says_how_hosts_get_addresses() {
        let dns: Ipv6Addr = "2001:db8::53".parse().unwrap();
        let mut servers = vec![NAME_SERVERS, 3, 0, 0, 0, 0, 0, 60];
        servers.extend(dns.octets());
        let options = [
            option("2001:db8::/64", 0xc0, 600, 300),
            option("2001:db8:1::/64", 0x80, 600, 300),
            option("2001:db8:2::/56", 0xc0, 600, 300),
            option("2001:db8:3::/64", 0xc0, 0, 0),
            option("2001:db8:4::/64", 0xc0, 300, 600),
            option("fe80::/64", 0xc0, 600, 300),
            servers,
        ];
        let advertisement = parse(&packet(0x80, 30, &options)).unwrap();
        assert_eq!(advertisement.prefixes, ["2001:db8::/64".parse().unwrap()]);
        assert_eq!(advertisement.router, "fe80::1".parse::<Ipv6Addr>().unwrap());
        assert!(advertisement.is_managed && advertisement.is_default);
        assert_eq!(advertisement.name_servers, [dns]);
        let bare = parse(&packet(0, 0, &[])).unwrap();
        assert!(!bare.is_managed && !bare.is_default && !bare.is_other);
        let other = parse(&packet(0x40, 0, &[])).unwrap();
        assert!(other.is_other && !other.is_managed);
    }

    #[test]
    fn what_no_router_of_the_link_has_sent_or_is_cut_short_is_none() {
        let whole = packet(0, 30, &[option("2001:db8::/64", 0xc0, 600, 300)]);
        assert!(parse(&whole).is_some());
        for (at, byte) in [(6, 17), (7, 254), (8, 0x20), (40, 133)] {
            let mut changed = whole.clone();
            changed[at] = byte;
            assert_eq!(parse(&changed), None, "{at}");
        }
        for length in 0..whole.len() {
            let read = parse(&whole[..length]);
            assert!(read.is_none_or(|it| it.prefixes.is_empty()), "{length}");
        }
    }
}
