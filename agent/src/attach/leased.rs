//! An ADD whose addresses come from the physical network.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::{IpNet, Ipv6Net};
use podwire_cni::spec::Dns;
use podwire_netns::{Netns, Route};
use tokio::time::{Instant, sleep};

use super::call::Add;
use super::on_bridge::OnBridge;
use super::renewal::{Noted, assign, change};
use super::undo::{Done, Undo};
use super::{Call, Error};
use crate::fault::fault_point;
use crate::ipam::claims::{Claims, PROBE_TIME};
use crate::ipam::dhcp::{self, DhcpError, Lease, Leased as _, Provided};
use crate::ipam::dhcp6::{self, Lease6};
use crate::ipam::router::{self, RouterError};
use crate::ipam::{Family, Place};
use crate::journal::{Entry, State};
use crate::plan::{MIN_MTU_IPV6, PortPlan, ids};

/// How long an ADD asks for a lease, and for a router: a DHCP server that first tries whether an
/// address is free takes three seconds.
const DHCP_DEADLINE: Duration = Duration::from_secs(10);

/// The time between an address that another host has and the next question (RFC 2131, section
/// 3.1.5, has ten seconds, which is all of an ADD's time).
const DECLINED_PAUSE: Duration = Duration::from_secs(1);

/// How long an ADD that has its addresses asks for name servers: twice.
const INFORMATION_WAIT: Duration = Duration::from_secs(3);

/// The IPAM plugin in whose place the agent's own client serves.
const DHCP: &str = "dhcp";

impl Call {
    /// Whether the agent's own DHCP client serves the configuration's `ipam` section: if it is for
    /// the `dhcp` plugin, on a bridge. That plugin needs the interface, which podwire creates after
    /// it has the addresses of a plugin.
    pub(super) fn wants_lease(&self) -> bool {
        let ipam = self.conf.ipam.as_ref();
        self.conf.on_bridge.is_some() && ipam.is_some_and(|ipam| ipam.plugin_type == DHCP)
    }

    /// Whether a plugin serves that section.
    pub(super) fn is_delegated(&self) -> bool {
        self.conf.ipam.is_some() && !self.wants_lease()
    }

    /// Refuses what the agent's own client can't do. On the node's own bridge, port security and
    /// OVN go by addresses that are known before.
    pub(super) fn confirm_lease(&self, on_bridge: Option<&OnBridge>) -> Result<(), Error> {
        if !self.wants_lease() {
            return Ok(());
        }
        if on_bridge.and_then(OnBridge::other_bridge).is_none() {
            let problem = "ipam.type dhcp is not served on the node's own bridge";
            return Err(Error::of_configuration(problem));
        }
        let has_ipv6 = self.families()?.contains(&Family::V6);
        if let Some(mtu) = self.conf.mtu.filter(|mtu| has_ipv6 && *mtu < MIN_MTU_IPV6) {
            return Err(Error::of_configuration(format!(
                "mtu: {mtu} is too small for IPv6 in ipam.ipFamilies, which needs at least \
                 {MIN_MTU_IPV6}"
            )));
        }
        self.provided().map(drop)
    }

    /// The options that the client is to send.
    fn provided(&self) -> Result<Vec<Provided>, Error> {
        let Some(ipam) = &self.conf.ipam else {
            return Ok(Vec::new());
        };
        dhcp::provided(&ipam.section, &self.args).map_err(Error::of_configuration)
    }

    /// The families of addresses that the pod is to get.
    fn families(&self) -> Result<Vec<Family>, Error> {
        let Some(ipam) = self.conf.ipam.as_ref().filter(|_| self.wants_lease()) else {
            return Ok(Vec::new());
        };
        dhcp::families(&ipam.section).map_err(Error::of_configuration)
    }

    /// Whether the pod is to get IPv6 from the network's routers.
    pub(super) fn wants_routers(&self) -> bool {
        self.families().is_ok_and(|all| all.contains(&Family::V6))
    }
}

impl Add<'_> {
    /// Gets the pod's addresses from the physical network, once its port is there.
    pub(super) async fn lease(
        &self,
        netns: &Arc<Netns>,
        planned: &mut [PortPlan],
        dns: &mut Dns,
        undo: &mut Undo,
    ) -> Result<(), Error> {
        let [port] = planned else { return Ok(()) };
        let place = Place {
            netns: Arc::clone(netns),
            ifname: port.link.pod_name.clone(),
        };
        let network = self.wire_name(port);
        let families = self.call.families()?;
        let mut found = Dns::default();
        if families.contains(&Family::V4) {
            let (lease, routes) = self.leased::<Lease>(&network, &place, undo).await?;
            port.link.addresses.push(lease.net());
            port.link.routes.extend(routes);
            let routers = lease.routers.iter().copied();
            port.subnet_gateways.extend(routers.map(IpAddr::V4));
            found.nameservers = lease.name_servers.iter().map(ToString::to_string).collect();
            found.domain = lease.domain;
        }
        if families.contains(&Family::V6) {
            let servers = self.ask_routers(&network, &place, port, undo).await?;
            for server in servers.iter().map(ToString::to_string) {
                // Router and server may name the same one.
                if !found.nameservers.contains(&server) {
                    found.nameservers.push(server);
                }
            }
        }
        if dns.is_empty() {
            *dns = found;
        }
        Ok(())
    }

    /// Takes IPv6 addresses as the network's routers say: of their prefixes, by DHCPv6, or both.
    /// Returns name servers.
    async fn ask_routers(
        &self,
        network: &str,
        place: &Place,
        port: &mut PortPlan,
        undo: &mut Undo,
    ) -> Result<Vec<Ipv6Addr>, Error> {
        let netlink = &self.node.netlink;
        let netns = || Arc::clone(&place.netns);
        let failed = |source| Error::Router {
            network: network.to_owned(),
            source,
        };
        let deadline = Instant::now() + self.deadline.left().min(DHCP_DEADLINE);
        let seen = netlink.observe(netns(), &place.ifname).await?;
        let default = IpNet::V6(Ipv6Net::default());
        let takes_default = !seen.is_some_and(|seen| seen.defaults_elsewhere.contains(&default));
        netlink
            .believe_routers(netns(), &place.ifname, takes_default)
            .await?;
        let changes = netlink.ipv6_address_changes(netns(), &place.ifname).await?;
        let said = router::ask(netlink, place, deadline)
            .await
            .map_err(failed)?;
        if said.prefixes.is_empty() && !said.is_managed {
            return Err(failed(RouterError::Nothing {
                ifname: place.ifname.clone(),
                router: said.router,
            }));
        }
        let making = router::made_of(netlink, place, &said.prefixes, &changes, deadline);
        let made = making.await.map_err(failed)?;
        port.link
            .addresses
            .extend(made.iter().copied().map(IpNet::V6));
        self.note_entry(|entry| entry.autonomous = made)?;
        let mut name_servers = said.name_servers;
        if said.is_managed {
            let (lease, _) = self.leased::<Lease6>(network, place, undo).await?;
            port.link.addresses.push(lease.net());
            name_servers.extend(lease.name_servers);
        } else if said.is_other {
            let until = deadline.min(Instant::now() + INFORMATION_WAIT);
            match dhcp6::name_servers(netlink, place, until).await {
                Ok(servers) => name_servers.extend(servers),
                // The pod has all that it needs to talk.
                Err(error) => tracing::warn!(attachment = %self.call.key, "{error}"),
            }
        }
        if said.is_default && takes_default {
            let everywhere = IpNet::V6(Ipv6Net::default());
            let route = Route::new(everywhere, Some(said.router.into()));
            port.link.routes.push(route);
        }
        Ok(name_servers)
    }

    /// Takes a lease of an address that no other host has, and sets it in the pod with its routes.
    async fn leased<L: Noted>(
        &self,
        network: &str,
        place: &Place,
        undo: &mut Undo,
    ) -> Result<(L, Vec<Route>), Error>
    where
        Done: From<(Place, L)>,
    {
        let (lease, claims) = self.free_lease::<L>(network, place, undo).await?;
        fault_point!("add-leased");
        let routes = assign(self.node, place, &lease).await?;
        if let Err(error) = claims.announce(lease.net().addr()) {
            tracing::debug!(attachment = %self.call.key, "{error}");
        }
        Ok((lease, routes))
    }

    /// A lease of an address that no other host has. Intent log and `undo` have it from its first
    /// moment.
    async fn free_lease<L: Noted>(
        &self,
        network: &str,
        place: &Place,
        undo: &mut Undo,
    ) -> Result<(L, Claims), Error>
    where
        Done: From<(Place, L)>,
    {
        let netlink = &self.node.netlink;
        let failed = |source| Error::Dhcp {
            network: network.to_owned(),
            source,
        };
        let left = self.deadline.left().saturating_sub(PROBE_TIME);
        let deadline = Instant::now() + left.min(DHCP_DEADLINE);
        let provided = self.call.provided()?;
        let mut taken = None;
        loop {
            let acquired = L::acquire(netlink, place, &provided, None, deadline).await;
            let lease = acquired.map_err(|error| failed(taken.take().unwrap_or(error)))?;
            undo.push((place.clone(), lease.clone()).into());
            self.note_entry(|entry| *L::of(entry) = Some(lease.clone()))?;
            let failed_link = |error| failed(DhcpError::Link(error));
            let address = lease.net().addr();
            let claims = Claims::open(netlink, place, &[address]).await;
            let claims = claims.map_err(failed_link)?;
            let Some(claim) = claims.holder().await.map_err(failed_link)? else {
                return Ok((lease, claims));
            };
            undo.drop_last();
            self.note_entry(|entry| *L::of(entry) = None)?;
            let error = DhcpError::Taken {
                ifname: place.ifname.clone(),
                server: lease.server(),
                address,
                holder: claim.holder,
            };
            tracing::warn!(attachment = %self.call.key, "{error}");
            // A server that does not hear it may give the address again, and is told again.
            if let Err(unheard) = lease.decline(netlink, place).await {
                tracing::warn!(attachment = %self.call.key, "{unheard}");
            }
            if Instant::now() + DECLINED_PAUSE >= deadline {
                return Err(failed(error));
            }
            taken = Some(error);
            sleep(DECLINED_PAUSE).await;
        }
    }

    /// Changes the attachment's entry in the intent log.
    fn note_entry(&self, note: impl FnOnce(&mut Entry)) -> Result<(), Error> {
        Ok(change(self.node, &self.call.key, State::Adding, note)?)
    }

    /// The network as errors name it: with its bridge and VLAN, or OVN's name of the physical one.
    pub(super) fn wire_name(&self, port: &PortPlan) -> String {
        if let Some(physical) = port.external_ids.get(ids::PHYSICAL_NETWORK) {
            return format!("{} (physical network {physical})", self.call.conf.name);
        }
        let bridge = self.other_bridge().unwrap_or(&self.node.config.bridge);
        let vlan = port.switch_port.vlan.as_ref();
        let vlan = vlan.map(|vlan| format!(", {vlan}")).unwrap_or_default();
        format!("{} (bridge {bridge}{vlan})", self.call.conf.name)
    }
}
