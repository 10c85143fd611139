//! Whether another host has an address of a pod's: asked before the pod uses it, by ARP (RFC 5227)
//! and by neighbour solicitations (RFC 4862, section 5.4), and heard afterwards.
//!
//! RFC 5227's course takes 4 to 7 seconds and RFC 4862's up to two, which is for links that wake up
//! late. An ADD has less: here it is three probes and 300 ms. A host that is up answers within a
//! millisecond.

mod packet;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use macaddr::MacAddr6;
use podwire_netns::{LinkSocket, Netlink, Packets, arp_request, neighbour_advertisement};

use super::link::{LinkError, Place, open, receive, sent};
pub(super) use packet::arp_reply;

/// The number of probes.
const PROBES: u32 = 3;
/// How long each waits for an answer.
const WAIT: Duration = Duration::from_millis(100);

/// How long [`Claims::holder`] takes at most.
pub const PROBE_TIME: Duration = WAIT.saturating_mul(PROBES);

/// What another host says of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The address.
    pub address: IpAddr,
    /// The host's MAC address.
    pub holder: MacAddr6,
}

/// Sockets for what other hosts say of some addresses of a pod's interface.
#[derive(Debug)]
pub struct Claims {
    ifname: String,
    addresses: Vec<IpAddr>,
    /// For IPv4 addresses.
    arp: Option<LinkSocket>,
    /// For IPv6 addresses.
    ipv6: Option<LinkSocket>,
}

impl Claims {
    /// Opens those that the addresses need.
    ///
    /// # Errors
    /// [`LinkError::Kernel`].
    pub async fn open(
        netlink: &Netlink,
        place: &Place,
        addresses: &[IpAddr],
    ) -> Result<Self, LinkError> {
        let mut claims = Self::of(place, addresses);
        if addresses.iter().any(IpAddr::is_ipv4) {
            claims.arp = Some(open(netlink, place, Packets::Arp).await?);
        }
        if addresses.iter().any(IpAddr::is_ipv6) {
            claims.ipv6 = Some(open(netlink, place, Packets::Ipv6).await?);
        }
        Ok(claims)
    }

    /// Like [`Self::open`], for a long time: the kernel drops all but claims. A host's question
    /// whether somebody has an address is none; the pod's kernel answers it.
    ///
    /// # Errors
    /// [`LinkError::Kernel`].
    pub async fn watch(
        netlink: &Netlink,
        place: &Place,
        addresses: &[IpAddr],
    ) -> Result<Self, LinkError> {
        let mut claims = Self::of(place, addresses);
        let (ipv4, ipv6): (Vec<IpAddr>, Vec<IpAddr>) =
            addresses.iter().partition(|it| it.is_ipv4());
        for (of_family, packets, socket) in [
            (ipv4, Packets::Arp, &mut claims.arp),
            (ipv6, Packets::Ipv6, &mut claims.ipv6),
        ] {
            if !of_family.is_empty() {
                let netns = Arc::clone(&place.netns);
                let opening = netlink.claim_socket(netns, &place.ifname, packets, &of_family);
                *socket = Some(opening.await.map_err(LinkError::opening(place))?);
            }
        }
        Ok(claims)
    }

    fn of(place: &Place, addresses: &[IpAddr]) -> Self {
        Self {
            ifname: place.ifname.clone(),
            addresses: addresses.to_owned(),
            arp: None,
            ipv6: None,
        }
    }

    /// Another host that has one of the addresses, or asks for it too. Takes [`PROBE_TIME`] if
    /// there is none.
    ///
    /// # Errors
    /// [`LinkError::Socket`].
    pub async fn holder(&self) -> Result<Option<Claim>, LinkError> {
        for _ in 0..PROBES {
            for address in &self.addresses {
                match *address {
                    IpAddr::V4(address) => self.send_arp(Ipv4Addr::UNSPECIFIED, address)?,
                    IpAddr::V6(address) => {
                        self.send_ipv6(packet::probe(address), packet::solicited_node(address))?
                    }
                }
            }
            if let Ok(claim) = tokio::time::timeout(WAIT, self.next()).await {
                return claim.map(Some);
            }
        }
        Ok(None)
    }

    /// Waits until another host claims one of the addresses.
    ///
    /// # Errors
    /// [`LinkError::Socket`].
    pub async fn next(&self) -> Result<Claim, LinkError> {
        let by_arp = self.received(self.arp.as_ref(), |arp, _| packet::arp_claim(arp));
        let by_ipv6 = self.received(self.ipv6.as_ref(), packet::neighbours_claim);
        tokio::select! {
            claim = by_arp => claim,
            claim = by_ipv6 => claim,
        }
    }

    /// The next claim that has arrived already.
    pub fn arrived(&self) -> Option<Claim> {
        self.next().now_or_never()?.ok()
    }

    /// Tells everybody on the link who has an address.
    ///
    /// # Errors
    /// [`LinkError::Socket`].
    pub fn announce(&self, address: IpAddr) -> Result<(), LinkError> {
        match address {
            IpAddr::V4(address) => self.send_arp(address, address),
            IpAddr::V6(address) => {
                let mac = self
                    .ipv6
                    .as_ref()
                    .map(|socket| socket.mac)
                    .unwrap_or_default();
                self.send_ipv6(neighbour_advertisement(mac, address), packet::ALL_NODES_MAC)
            }
        }
    }

    /// Waits for a claim on a socket; for ever without one.
    async fn received(
        &self,
        socket: Option<&LinkSocket>,
        read: impl Fn(&[u8], MacAddr6) -> Option<Claim>,
    ) -> Result<Claim, LinkError> {
        let Some(socket) = socket else {
            return std::future::pending().await;
        };
        receive(socket, &self.ifname, |packet, from| {
            let claim = read(packet, from)?;
            let is_anothers = claim.holder != socket.mac && self.addresses.contains(&claim.address);
            is_anothers.then_some(claim)
        })
        .await
    }

    fn send_arp(&self, own: Ipv4Addr, target: Ipv4Addr) -> Result<(), LinkError> {
        let Some(socket) = &self.arp else {
            return Ok(());
        };
        let request = arp_request(socket.mac, own, target);
        sent(socket.send(&request, MacAddr6::broadcast()), &self.ifname)
    }

    fn send_ipv6(&self, packet: Vec<u8>, to: MacAddr6) -> Result<(), LinkError> {
        let Some(socket) = &self.ipv6 else {
            return Ok(());
        };
        sent(socket.send(&packet, to), &self.ifname)
    }
}
