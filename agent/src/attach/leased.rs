//! An ADD whose address comes from the physical network.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use podwire_cni::spec::Dns;
use podwire_netns::Netns;
use tokio::time::{Instant, sleep};

use super::call::Add;
use super::on_bridge::OnBridge;
use super::renewal::{assign, change};
use super::undo::{Done, Undo};
use super::{Call, Error};
use crate::fault::fault_point;
use crate::ipam::dhcp::{self, DhcpError, Lease, PROBE_TIME, Place, Probe, Provided};
use crate::journal::{Entry, State};
use crate::plan::PortPlan;

/// How long an ADD asks for an address: a server that first tries whether an address is free takes
/// three seconds.
const DHCP_DEADLINE: Duration = Duration::from_secs(10);

/// The time between an address that another host has and the next question (RFC 2131, section
/// 3.1.5, has ten seconds, which is all of an ADD's time).
const DECLINED_PAUSE: Duration = Duration::from_secs(1);

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
        self.provided().map(drop)
    }

    /// The options that the client is to send.
    fn provided(&self) -> Result<Vec<Provided>, Error> {
        let Some(ipam) = &self.conf.ipam else {
            return Ok(Vec::new());
        };
        dhcp::provided(&ipam.section, &self.args).map_err(Error::of_configuration)
    }
}

impl Add<'_> {
    /// Gets the pod's address from the physical network, once its port is there.
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
            provided: self.call.provided()?,
        };
        let network = self.wire_name(port);
        let (lease, probe) = self.free_lease(&network, &place, undo).await?;
        fault_point!("add-leased");
        let routes = assign(self.node, &place, &lease).await?;
        if let Err(error) = probe.announce(lease.address.addr()) {
            tracing::debug!(attachment = %self.call.key, "{error}");
        }
        port.link.addresses = vec![lease.net()];
        port.link.routes = routes;
        port.subnet_gateways = lease.routers.iter().copied().map(IpAddr::V4).collect();
        if dns.is_empty() {
            dns.nameservers = lease.name_servers.iter().map(ToString::to_string).collect();
            dns.domain.clone_from(&lease.domain);
        }
        Ok(())
    }

    /// A lease of an address that no other host has. Intent log and `undo` have it from its first
    /// moment.
    async fn free_lease(
        &self,
        network: &str,
        place: &Place,
        undo: &mut Undo,
    ) -> Result<(Lease, Probe), Error> {
        let netlink = &self.node.netlink;
        let failed = |source| Error::Dhcp {
            network: network.to_owned(),
            source,
        };
        let left = self.deadline.left().saturating_sub(PROBE_TIME);
        let deadline = Instant::now() + left.min(DHCP_DEADLINE);
        let mut taken = None;
        loop {
            let acquired = dhcp::acquire(netlink, place, None, deadline).await;
            let lease = acquired.map_err(|error| failed(taken.take().unwrap_or(error)))?;
            undo.push(Done::Lease(place.clone(), Box::new(lease.clone())));
            self.note_lease(Some(lease.clone()))?;
            let probe = Probe::open(netlink, place).await.map_err(failed)?;
            let address = lease.address.addr();
            let holder = probe.holder(address).await.map_err(failed)?;
            let Some(holder) = holder else {
                return Ok((lease, probe));
            };
            undo.drop_lease();
            self.note_lease(None)?;
            let error = DhcpError::Taken {
                ifname: place.ifname.clone(),
                server: lease.server,
                address,
                holder,
            };
            tracing::warn!(attachment = %self.call.key, "{error}");
            let declined = dhcp::decline(netlink, place, &lease).await;
            declined.map_err(failed)?;
            if Instant::now() + DECLINED_PAUSE >= deadline {
                return Err(failed(error));
            }
            taken = Some(error);
            sleep(DECLINED_PAUSE).await;
        }
    }

    fn note_lease(&self, lease: Option<Lease>) -> Result<(), Error> {
        let note = |entry: &mut Entry| entry.lease = lease;
        Ok(change(self.node, &self.call.key, State::Adding, note)?)
    }

    /// The network as the error names it: with its bridge and VLAN.
    fn wire_name(&self, port: &PortPlan) -> String {
        let bridge = self.other_bridge().unwrap_or(&self.node.config.bridge);
        let vlan = port.switch_port.vlan.as_ref();
        let vlan = vlan.map(|vlan| format!(", {vlan}")).unwrap_or_default();
        format!("{} (bridge {bridge}{vlan})", self.call.conf.name)
    }
}
