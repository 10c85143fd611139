//! Addresses of a physical network that are known before: a pod uses them once no other host has
//! them. Hosts that the cluster does not know may be there.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use podwire_netns::{LinkSpec, Netns, PodIpv6};

use super::Error;
use super::call::Add;
use crate::ipam::Place;
use crate::ipam::claims::Claims;
use crate::plan::{PortPlan, ids, is_physical, mac_text};

/// The field of [`Error::NotForPod`] for an address that another host has.
pub(super) const ADDRESS: &str = "address";

/// Whether a port gets its addresses only when it is known that no other host has them.
pub(super) fn is_probed(port: &PortPlan) -> bool {
    is_physical(&port.external_ids) && !port.link.addresses.is_empty()
}

impl Add<'_> {
    /// A port's link as it is created.
    pub(super) fn first_link(&self, port: &PortPlan) -> LinkSpec {
        let mut link = port.link.clone();
        if is_probed(port) {
            link.addresses.clear();
            link.routes.clear();
            link.announce.clear();
            let is_on_ovn = port.external_ids.contains_key(ids::PHYSICAL_NETWORK);
            if is_on_ovn && link.pod_ipv6 == PodIpv6::Usual {
                // OVN's port security drops what comes from other addresses.
                link.pod_ipv6 = PodIpv6::Routed;
            }
        }
        if self.call.wants_routers() {
            // Until it is known whether their default routes are taken.
            link.pod_ipv6 = PodIpv6::Assigned;
        }
        link
    }

    /// Gives the pod the addresses and routes that were held back, once its ports are there.
    ///
    /// # Errors
    /// Another host has an address.
    pub(super) async fn take_addresses(
        &self,
        netns: &Arc<Netns>,
        planned: &[PortPlan],
    ) -> Result<(), Error> {
        for port in planned.iter().filter(|port| is_probed(port)) {
            self.take_addresses_of(netns, port).await?;
        }
        Ok(())
    }

    async fn take_addresses_of(&self, netns: &Arc<Netns>, port: &PortPlan) -> Result<(), Error> {
        let (netlink, link) = (&self.node.netlink, &port.link);
        let place = Place {
            netns: Arc::clone(netns),
            ifname: link.pod_name.clone(),
        };
        let addresses: Vec<IpAddr> = link.addresses.iter().map(IpNet::addr).collect();
        let claims = Claims::open(netlink, &place, &addresses).await?;
        if let Some(claim) = claims.holder().await? {
            return Err(Error::NotForPod {
                field: ADDRESS,
                value: claim.address.to_string(),
                interface: place.ifname,
                problem: format!(
                    "belongs to the host {} on network {}",
                    mac_text(claim.holder),
                    self.wire_name(port)
                ),
                is_taken: true,
                from_annotation: false,
            });
        }
        let (netns, routes) = (Arc::clone(netns), link.routes.clone());
        netlink
            .assign(netns, &link.pod_name, link.addresses.clone(), routes)
            .await?;
        for address in addresses {
            if let Err(error) = claims.announce(address) {
                tracing::debug!(attachment = %self.call.key, "{error}");
            }
        }
        Ok(())
    }
}
