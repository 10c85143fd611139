//! A DHCP client for IPv4 (RFC 2131): leases of a pod's addresses from the physical network.
//!
//! It speaks through packet sockets in the pod's namespace, which are open only during an exchange:
//! nothing of a lease but its times is in the agent's memory. What is sent to one host goes to the
//! MAC address that its answers came from, so that no route of the pod's matters.

mod lease;
mod message;
mod options;
mod packet;
mod provided;
mod term;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use macaddr::MacAddr6;
use podwire_netns::{LinkSocket, Netlink, Packets, arp_request};
use tokio::time::Instant;

use super::claims::arp_reply;
use super::link::{LinkError, Place, open, receive, sent};
use super::router::RouterError;
use crate::duration;
use crate::plan::mac_text;
pub use lease::{Lease, Leased};
pub(super) use message::new_id;
use message::{Answer, Ask};
pub use provided::{Provided, families, provided};
pub use term::{Stage, Term, Times};

/// The first wait for an answer; each further one is twice as long (RFC 2131, section 4.1, starts
/// with four seconds, which would be most of an ADD's time).
pub(super) const FIRST_WAIT: Duration = Duration::from_secs(1);

/// How long a server has to confirm what it has offered, before others are asked again.
pub(super) const CONFIRM_DEADLINE: Duration = Duration::from_secs(4);

/// How long a release waits for the server's host to answer an ARP request. As the release was sent
/// before, it has passed the switch then; the port may go.
pub(super) const RELEASE_DEADLINE: Duration = Duration::from_millis(500);

/// Why there is no lease.
#[derive(Debug, thiserror::Error)]
pub enum DhcpError {
    /// Packets could not be sent or received.
    #[error("DHCP on {0}")]
    Link(#[from] LinkError),
    /// No server answered.
    #[error("DHCP on {ifname}: no server answered {asked} within {}", duration::text(*waited))]
    NoAnswer {
        /// The interface.
        ifname: String,
        /// What was asked.
        asked: &'static str,
        /// For how long.
        waited: Duration,
    },
    /// The server refused what it had offered, or what it had given before.
    #[error("DHCP on {ifname}: server {server} refused {address}")]
    Refused {
        /// The interface.
        ifname: String,
        /// The server.
        server: String,
        /// The address.
        address: IpAddr,
    },
    /// The server has no address for the pod.
    #[error("DHCP on {ifname}: server {server} has no address to give")]
    NoAddress {
        /// The interface.
        ifname: String,
        /// The server.
        server: String,
    },
    /// There is nowhere to ask from.
    #[error("DHCP on {ifname}: the interface has no link-local address")]
    NoLinkLocal {
        /// The interface.
        ifname: String,
    },
    /// The interface's addresses could not be read, or its own is another host's.
    #[error("DHCP: {0}")]
    Router(#[from] RouterError),
    /// Another host answered for the address that a server gave.
    #[error(
        "DHCP on {ifname}: server {server} gave {address}, which the host {} has; it was \
         declined",
        mac_text(*holder)
    )]
    Taken {
        /// The interface.
        ifname: String,
        /// The server.
        server: String,
        /// The address.
        address: IpAddr,
        /// The other host's MAC address.
        holder: MacAddr6,
    },
}

/// Gets a lease: DHCPDISCOVER and DHCPREQUEST, repeated until the deadline. `wanted` is the address
/// to ask for, if there was one before; `provided` are
/// the options that the network configuration has the client send.
///
/// # Errors
/// [`DhcpError`].
pub async fn acquire(
    netlink: &Netlink,
    place: &Place,
    provided: &[Provided],
    wanted: Option<Ipv4Addr>,
    deadline: Instant,
) -> Result<Lease, DhcpError> {
    let exchange = Exchange::open(netlink, place, provided).await?;
    let discover = Ask::Discover { wanted };
    loop {
        let offer = exchange.ask(&discover, None, deadline).await?;
        let request = Ask::Select {
            address: offer.address,
            server: offer.server,
        };
        let until = deadline.min(Instant::now() + CONFIRM_DEADLINE);
        let again = match exchange.ask(&request, None, until).await {
            Ok(answer) => {
                return Ok(Lease {
                    provided: provided.to_vec(),
                    ..answer.lease(&place.ifname)
                });
            }
            // Another client was faster; the next offer is another address.
            Err(error @ DhcpError::Refused { .. }) => {
                tokio::time::sleep_until(deadline.min(Instant::now() + FIRST_WAIT)).await;
                error
            }
            Err(error @ DhcpError::NoAnswer { .. }) => error,
            Err(error) => return Err(error),
        };
        if Instant::now() >= deadline {
            return Err(again);
        }
    }
}

/// Extends a lease: asks its server or, if `any` is set, all of them.
///
/// # Errors
/// [`DhcpError`]; with [`DhcpError::Refused`] the address must not be used any more.
pub async fn renew(
    netlink: &Netlink,
    place: &Place,
    lease: &Lease,
    any: bool,
    deadline: Instant,
) -> Result<Lease, DhcpError> {
    let exchange = Exchange::open(netlink, place, &lease.provided).await?;
    let request = Ask::Renew {
        address: lease.address.addr(),
    };
    let to = (!any).then_some((lease.server, MacAddr6::from(lease.server_mac)));
    let answer = exchange.ask(&request, to, deadline).await?;
    Ok(lease.extended_by(&answer.lease(&place.ifname)))
}

/// Tells the server that another host has the address that it gave.
///
/// # Errors
/// [`DhcpError`]; the server may then give it again.
pub async fn decline(netlink: &Netlink, place: &Place, lease: &Lease) -> Result<(), DhcpError> {
    let exchange = Exchange::open(netlink, place, &lease.provided).await?;
    let decline = Ask::Decline {
        address: lease.address.addr(),
        server: lease.server,
    };
    exchange.send(&decline, new_id(), None)
}

/// Gives a lease back. No server confirms that; the message is known to have left the node when the
/// server's host, or the router before it, answers an ARP request that followed it.
///
/// # Errors
/// [`DhcpError`]; the lease then runs out at the server.
pub async fn release(netlink: &Netlink, place: &Place, lease: &Lease) -> Result<(), DhcpError> {
    let exchange = Exchange::open(netlink, place, &lease.provided).await?;
    let address = lease.address.addr();
    let arp = open(netlink, place, Packets::Arp).await?;
    let release = Ask::Release {
        address,
        server: lease.server,
    };
    let mac = MacAddr6::from(lease.server_mac);
    exchange.send(&release, new_id(), Some((lease.server, mac)))?;
    let next_hop = match lease.address.contains(&lease.server) {
        true => Some(lease.server),
        false => lease.routers.first().copied(),
    };
    let Some(next_hop) = next_hop else {
        return Ok(());
    };
    let request = arp_request(exchange.ipv4.mac, address, next_hop);
    sent(arp.send(&request, mac), &place.ifname)?;
    let answered = receive(&arp, &place.ifname, |arp, _| {
        (arp_reply(arp)? == next_hop).then_some(())
    });
    // Without an answer, it has had its time.
    let _ = tokio::time::timeout(RELEASE_DEADLINE, answered).await;
    Ok(())
}

/// One exchange of messages on an interface.
struct Exchange<'a> {
    ipv4: LinkSocket,
    place: &'a Place,
    /// The options that the network configuration has the client send.
    provided: &'a [Provided],
}

impl<'a> Exchange<'a> {
    async fn open(
        netlink: &Netlink,
        place: &'a Place,
        provided: &'a [Provided],
    ) -> Result<Self, DhcpError> {
        let ipv4 = open(netlink, place, Packets::Ipv4).await?;
        Ok(Self {
            ipv4,
            place,
            provided,
        })
    }

    /// Asks until there is an answer, or the deadline has passed.
    async fn ask(
        &self,
        ask: &Ask,
        to: Option<(Ipv4Addr, MacAddr6)>,
        deadline: Instant,
    ) -> Result<Answer, DhcpError> {
        let (began, id, mac) = (Instant::now(), new_id(), self.ipv4.mac);
        let mut wait = FIRST_WAIT;
        loop {
            self.send(ask, id, to)?;
            let answered = receive(&self.ipv4, &self.place.ifname, |packet, from| {
                let payload = packet::udp_to_client(packet)?;
                Answer::parse(payload, id, mac, from, ask)
            });
            let until = deadline.min(Instant::now() + wait);
            match tokio::time::timeout_at(until, answered).await {
                Ok(answer) => return answer?.accepted(&self.place.ifname, ask),
                Err(_) if Instant::now() >= deadline => {
                    return Err(DhcpError::NoAnswer {
                        ifname: self.place.ifname.clone(),
                        asked: ask.name(),
                        waited: began.elapsed(),
                    });
                }
                Err(_) => wait *= 2,
            }
        }
    }

    fn send(&self, ask: &Ask, id: u32, to: Option<(Ipv4Addr, MacAddr6)>) -> Result<(), DhcpError> {
        let socket = &self.ipv4;
        let all = (Ipv4Addr::BROADCAST, MacAddr6::broadcast());
        let (to, to_mac) = to.unwrap_or(all);
        let payload = ask.encode(id, socket.mac, self.provided);
        let packet = packet::udp_to_server(ask.source(), to, &payload);
        Ok(sent(socket.send(&packet, to_mac), &self.place.ifname)?)
    }
}
