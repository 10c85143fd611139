//! Whether somebody else has an address already, asked by ARP (RFC 5227), and its announcement.
//!
//! The RFC's course takes 4 to 7 seconds, which is for links that wake up late. An ADD has less:
//! here it is three probes and 300 ms. A host that is up answers within a millisecond.

use std::net::Ipv4Addr;
use std::time::Duration;

use macaddr::MacAddr6;
use podwire_netns::{LinkSocket, Netlink, Packets, arp_request};

use super::{DhcpError, Place, open, packet, receive, sent};

/// The number of probes.
const PROBES: u32 = 3;
/// How long each waits for an answer.
const WAIT: Duration = Duration::from_millis(100);

/// How long [`Probe::holder`] takes at most.
pub const PROBE_TIME: Duration = WAIT.saturating_mul(PROBES);

/// A socket for ARP on a pod's interface.
#[derive(Debug)]
pub struct Probe {
    arp: LinkSocket,
    ifname: String,
}

impl Probe {
    /// Opens it.
    ///
    /// # Errors
    /// [`DhcpError::Kernel`].
    pub async fn open(netlink: &Netlink, place: &Place) -> Result<Self, DhcpError> {
        let arp = open(netlink, place, Packets::Arp).await?;
        let ifname = place.ifname.clone();
        Ok(Self { arp, ifname })
    }

    /// The MAC address of another host that has the address, or asks for it too.
    ///
    /// # Errors
    /// [`DhcpError::Socket`].
    pub async fn holder(&self, address: Ipv4Addr) -> Result<Option<MacAddr6>, DhcpError> {
        let own = self.arp.mac;
        for _ in 0..PROBES {
            self.send(&arp_request(own, Ipv4Addr::UNSPECIFIED, address))?;
            let claimed = receive(&self.arp, &self.ifname, |arp, _| {
                packet::arp_claim(arp, address).filter(|mac| *mac != own)
            });
            if let Ok(claimed) = tokio::time::timeout(WAIT, claimed).await {
                return claimed.map(Some);
            }
        }
        Ok(None)
    }

    /// Tells everybody on the link who has the address now.
    ///
    /// # Errors
    /// [`DhcpError::Socket`].
    pub fn announce(&self, address: Ipv4Addr) -> Result<(), DhcpError> {
        self.send(&arp_request(self.arp.mac, address, address))
    }

    fn send(&self, arp: &[u8]) -> Result<(), DhcpError> {
        sent(self.arp.send(arp, MacAddr6::broadcast()), &self.ifname)
    }
}
