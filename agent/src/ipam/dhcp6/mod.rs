//! A DHCPv6 client (RFC 8415): one address of a pod's from the physical network.
//!
//! It speaks from the interface's link-local address through a packet socket, which is open only
//! during an exchange: the client's port is one that the agent has no right to, and may be the
//! pod's. As with IPv4, the first usable offer is taken.

mod message;

use std::net::{IpAddr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};
use itertools::Itertools as _;
use macaddr::MacAddr6;
use podwire_cni::spool::boottime;
use podwire_netns::{LinkSocket, Netlink, Packets, Route, udp_over_ipv6};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use super::dhcp::{
    CONFIRM_DEADLINE, DhcpError, FIRST_WAIT, Leased, Provided, RELEASE_DEADLINE, Term, Times,
    new_id,
};
use super::link::{Place, open, receive, sent};
use super::router::link_local;
use message::{Answer, Ask, Bound, Given};

/// All servers and relays of a link (section 7.1), where they are on Ethernet (RFC 2464, section
/// 7), and the ports (section 7.2).
const SERVERS_MAC: MacAddr6 = MacAddr6::new(0x33, 0x33, 0, 1, 0, 2);
const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const SERVER_PORT: u16 = 547;
const CLIENT_PORT: u16 = 546;

/// A lease, as the attachment's entry in the intent log has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease6 {
    /// The interface in the pod.
    pub ifname: String,
    /// The address. What else is on the link is the routers' to say.
    pub address: Ipv6Addr,
    /// The server's identifier (DUID).
    pub server: Vec<u8>,
    /// Name servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub name_servers: Vec<Ipv6Addr>,
    /// When it was last given, and what is due when.
    #[serde(flatten)]
    pub term: Term,
}

impl Lease6 {
    fn bound(&self) -> Bound {
        Bound {
            address: self.address,
            server: self.server.clone(),
        }
    }
}

/// Gets a lease: Solicit and Request, repeated until the deadline. `wanted` is the address to ask
/// for, if there was one before.
///
/// # Errors
/// [`DhcpError`].
async fn acquire(
    netlink: &Netlink,
    place: &Place,
    wanted: Option<Ipv6Addr>,
    deadline: Instant,
) -> Result<Lease6, DhcpError> {
    let exchange = Exchange::open(netlink, place, deadline).await?;
    loop {
        let solicit = Ask::Solicit(wanted);
        let (offer, given) = exchange.address(&solicit, deadline).await?;
        let bound = Bound {
            address: given.address,
            server: offer.server,
        };
        let until = deadline.min(Instant::now() + CONFIRM_DEADLINE);
        match exchange.address(&Ask::Request(&bound), until).await {
            Ok((answer, given)) => return Ok(exchange.lease(answer, given)),
            // Another client was faster; the next offer is another address.
            Err(error @ (DhcpError::Refused { .. } | DhcpError::NoAnswer { .. })) => {
                tokio::time::sleep_until(deadline.min(Instant::now() + FIRST_WAIT)).await;
                if Instant::now() >= deadline {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

impl Leased for Lease6 {
    fn term(&self) -> &Term {
        &self.term
    }

    fn term_mut(&mut self) -> &mut Term {
        &mut self.term
    }

    fn net(&self) -> IpNet {
        Ipv6Net::from(self.address).into()
    }

    fn server(&self) -> String {
        hex(&self.server)
    }

    fn ifname(&self) -> &str {
        &self.ifname
    }

    fn routes(&self, _has_default: bool) -> Vec<Route> {
        Vec::new()
    }

    /// Options of the configuration are DHCP's for IPv4.
    async fn acquire(
        netlink: &Netlink,
        place: &Place,
        _provided: &[Provided],
        earlier: Option<&Self>,
        deadline: Instant,
    ) -> Result<Self, DhcpError> {
        let wanted = earlier.map(|earlier| earlier.address);
        acquire(netlink, place, wanted, deadline).await
    }

    async fn renew(
        &self,
        netlink: &Netlink,
        place: &Place,
        any: bool,
        deadline: Instant,
    ) -> Result<Self, DhcpError> {
        let exchange = Exchange::open(netlink, place, deadline).await?;
        let bound = self.bound();
        let ask = match any {
            true => Ask::Rebind(&bound),
            false => Ask::Renew(&bound),
        };
        let (answer, given) = exchange.address(&ask, deadline).await?;
        if given.address != self.address {
            return Err(exchange.refused(&answer.server, self.address));
        }
        let mut renewed = exchange.lease(answer, given);
        renewed.name_servers.clone_from(&self.name_servers);
        Ok(renewed)
    }

    async fn decline(&self, netlink: &Netlink, place: &Place) -> Result<(), DhcpError> {
        told(netlink, place, &Ask::Decline(&self.bound())).await
    }

    async fn release(&self, netlink: &Netlink, place: &Place) -> Result<(), DhcpError> {
        told(netlink, place, &Ask::Release(&self.bound())).await
    }
}

/// The name servers of the first server that answers (section 18.2.6), until the deadline. The
/// first question goes at once: the random delay before it is for hosts that start together.
///
/// # Errors
/// [`DhcpError`].
pub async fn name_servers(
    netlink: &Netlink,
    place: &Place,
    deadline: Instant,
) -> Result<Vec<Ipv6Addr>, DhcpError> {
    let exchange = Exchange::open(netlink, place, deadline).await?;
    let answer = exchange.ask(&Ask::Information, deadline).await?;
    Ok(answer.name_servers)
}

/// Tells a server something, which it confirms.
async fn told(netlink: &Netlink, place: &Place, ask: &Ask<'_>) -> Result<(), DhcpError> {
    let deadline = Instant::now() + RELEASE_DEADLINE;
    let exchange = Exchange::open(netlink, place, deadline).await?;
    exchange.ask(ask, deadline).await.map(drop)
}

/// One exchange of messages on an interface.
struct Exchange<'a> {
    socket: LinkSocket,
    own: Ipv6Addr,
    place: &'a Place,
}

impl<'a> Exchange<'a> {
    async fn open(
        netlink: &Netlink,
        place: &'a Place,
        deadline: Instant,
    ) -> Result<Self, DhcpError> {
        let opened = timeout_at(deadline, Self::open_at_last(netlink, place)).await;
        opened.unwrap_or_else(|_| {
            Err(DhcpError::NoLinkLocal {
                ifname: place.ifname.clone(),
            })
        })
    }

    async fn open_at_last(netlink: &Netlink, place: &'a Place) -> Result<Self, DhcpError> {
        let own = link_local(netlink, place).await?;
        let socket = open(netlink, place, Packets::Ipv6).await?;
        Ok(Self { socket, own, place })
    }

    /// Asks until there is an answer with an address, or the deadline has passed. What an answer
    /// leaves out stays the client's until it ends (section 18.2.10).
    async fn address(
        &self,
        ask: &Ask<'_>,
        deadline: Instant,
    ) -> Result<(Answer, Given), DhcpError> {
        let answer = self.ask(ask, deadline).await?;
        let is_refused = answer.ends || matches!(ask, Ask::Request(_));
        match (answer.given, ask) {
            (Some(given), _) => Ok((answer, given)),
            (None, Ask::Request(bound) | Ask::Renew(bound) | Ask::Rebind(bound)) if is_refused => {
                Err(self.refused(&answer.server, bound.address))
            }
            (None, _) => Err(DhcpError::NoAddress {
                ifname: self.place.ifname.clone(),
                server: hex(&answer.server),
            }),
        }
    }

    /// Asks until there is an answer, or the deadline has passed. Of offers, one without an address
    /// is only taken at the end.
    async fn ask(&self, ask: &Ask<'_>, deadline: Instant) -> Result<Answer, DhcpError> {
        let began = Instant::now();
        let [_, id @ ..] = new_id().to_be_bytes();
        let message = ask.encode(id, self.socket.mac);
        let (mut wait, mut empty) = (FIRST_WAIT, None);
        loop {
            self.send(&message)?;
            let until = deadline.min(Instant::now() + wait);
            while let Ok(answer) = timeout_at(until, self.receive(id, ask)).await {
                match answer? {
                    answer if answer.given.is_none() && matches!(ask, Ask::Solicit(_)) => {
                        empty = Some(answer);
                    }
                    answer => return Ok(answer),
                }
            }
            if Instant::now() >= deadline {
                return empty.ok_or_else(|| DhcpError::NoAnswer {
                    ifname: self.place.ifname.clone(),
                    asked: ask.name(),
                    waited: began.elapsed(),
                });
            }
            wait *= 2;
        }
    }

    fn send(&self, message: &[u8]) -> Result<(), DhcpError> {
        let (from, to) = ((self.own, CLIENT_PORT), (SERVERS, SERVER_PORT));
        let packet = udp_over_ipv6(from, to, message);
        let sending = self.socket.send(&packet, SERVERS_MAC);
        Ok(sent(sending, &self.place.ifname)?)
    }

    async fn receive(&self, id: [u8; 3], ask: &Ask<'_>) -> Result<Answer, DhcpError> {
        let received = receive(&self.socket, &self.place.ifname, |packet, _| {
            Answer::parse(to_client(packet)?, id, self.socket.mac, ask)
        });
        Ok(received.await?)
    }

    /// The lease that an answer gives, from now on.
    fn lease(&self, answer: Answer, given: Given) -> Lease6 {
        // As section 14.2 has it where the server leaves them to the client.
        let or = |said: u32, else_part: u32| match said {
            0 => (u64::from(given.preferred) * u64::from(else_part) / 10) as u32,
            said => said,
        };
        let (renewal, rebinding) = (or(given.renewal, 5), or(given.rebinding, 8));
        Lease6 {
            ifname: self.place.ifname.clone(),
            address: given.address,
            server: answer.server,
            name_servers: answer.name_servers,
            term: Term {
                since: boottime(),
                times: Times::of(given.valid, renewal, rebinding),
            },
        }
    }

    fn refused(&self, server: &[u8], address: Ipv6Addr) -> DhcpError {
        DhcpError::Refused {
            ifname: self.place.ifname.clone(),
            server: hex(server),
            address: IpAddr::V6(address),
        }
    }
}

/// The payload of a UDP packet over IPv6 from a server's port to a client's; None if it is another
/// packet.
fn to_client(packet: &[u8]) -> Option<&[u8]> {
    const UDP: u8 = 17;
    let is_udp = packet.first()? >> 4 == 6 && *packet.get(6)? == UDP;
    let udp = packet.get(40..)?;
    let number = |at: usize| Some(u16::from_be_bytes(udp.get(at..at + 2)?.try_into().ok()?));
    let is_it = is_udp && number(0)? == SERVER_PORT && number(2)? == CLIENT_PORT;
    let payload = udp.get(8..usize::from(number(4)?))?;
    is_it.then_some(payload)
}

/// A server's identifier as programs show it.
fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_servers_port_sends_to_a_clients_is_read() {
        let (server, client) = ((SERVERS, SERVER_PORT), (SERVERS, CLIENT_PORT));
        let packet = udp_over_ipv6(server, client, b"reply");
        assert_eq!(to_client(&packet), Some(&b"reply"[..]));
        assert_eq!(to_client(&udp_over_ipv6(client, server, b"reply")), None);
        for length in 0..packet.len() {
            assert_eq!(to_client(&packet[..length]), None, "{length}");
        }
        let mut tcp = packet;
        tcp[6] = 6;
        assert_eq!(to_client(&tcp), None);
    }
}
