//! Port security for one ADD: which ports have it, and their flows.

use ipnet::IpNet;

use super::Error;
use super::call::Add;
use crate::config::Mode;
use crate::flows::Reservation;
use crate::journal::State;
use crate::plan::{AttachmentKey, InterfaceSpec, PortPlan, ids, mac_text};
use crate::ports::{AddedPort, SecuredPort};

impl Add<'_> {
    /// Whether the pod of a port is kept from saying what is not for it to say: the network
    /// decides, or else the node. With OVN, somebody may want a router or a DHCP server on the
    /// network of a definition; addresses there are up to the logical port.
    fn is_secured(&self, port: &PortPlan) -> bool {
        if port.is_elsewhere() {
            return false;
        }
        let node = &self.node.config;
        let by_default = node.ovn.mode == Mode::Plain || !port.has_definition();
        let asked = self.call.conf.port_security;
        asked.unwrap_or(node.port_security && by_default)
    }

    /// Records the network's setting, for whoever creates the flows again later.
    pub(super) fn mark_port_security(&self, planned: &mut [PortPlan]) {
        let mode = self.node.config.ovn.mode;
        for port in planned {
            let value = match self.call.conf.port_security {
                _ if port.is_elsewhere() => "off",
                Some(true) => "on",
                Some(false) => "off",
                None if mode == Mode::Ovn && port.has_definition() => "off",
                None => "default",
            };
            port.external_ids
                .insert(ids::PORT_SECURITY.to_owned(), value.to_owned());
        }
    }

    /// Refuses a MAC address that another pod, the gateway or the node has, and an address that is
    /// not for a pod of this node, unless the agent chose it. Addresses in the node's subnets
    /// belong to the pools, which have refused them already.
    pub(super) async fn refuse_taken(
        &self,
        asked: &[InterfaceSpec],
        planned: &[PortPlan],
        from_annotation: bool,
    ) -> Result<(), Error> {
        if self.node.config.ovn.mode == Mode::Ovn {
            return Ok(());
        }
        let refuse = |field, value: String, port: &PortPlan, problem, is_taken| Error::NotForPod {
            field,
            value,
            interface: port.link.pod_name.clone(),
            problem,
            is_taken,
            from_annotation,
        };
        let node = self.node;
        // What was detached while the database was unreachable still has its row, but no claim.
        let is_leaving = |key: &AttachmentKey| node.journal.state(key) == Some(State::Deleting);
        let ports = asked.iter().zip(planned);
        let ports = ports.filter(|(_, port)| self.is_secured(port));
        for (asked, port) in ports.clone().filter(|_| from_annotation) {
            let addresses = port.link.addresses.iter().map(IpNet::addr);
            for address in addresses.filter(|it| !node.addresses.covers(*it)) {
                let refuse = |problem, is_taken| {
                    refuse("ip_addresses", address.to_string(), port, problem, is_taken)
                };
                if asked.nad.is_none() {
                    let subnets = node.addresses.usage();
                    let subnets: Vec<String> =
                        subnets.iter().map(|it| it.subnet.to_string()).collect();
                    let subnets = subnets.join(", ");
                    let problem = format!("is in no subnet of this node ({subnets})");
                    return Err(refuse(problem, false));
                }
                let ports = &node.ports;
                if let Some(pod) = ports.holder_of_address(address, &port.iface_id, is_leaving) {
                    return Err(refuse(format!("belongs to {pod}"), true));
                }
                if let Some(link) = node.netlink.link_of_address(address).await? {
                    let problem = format!("belongs to this node, on link {}", link.name);
                    return Err(refuse(problem, true));
                }
            }
        }
        // No other ADD runs from here until the ports' flows are reserved: of two that request the
        // same MAC address, one is first.
        for (asked, port) in ports {
            let Some(mac) = asked.mac else { continue };
            let holder = node.ports.holder_of_mac(mac, &port.iface_id, is_leaving);
            let is_reserved = || node.flows.is_reserved(mac);
            let in_flight = || is_reserved().then(|| "a pod that is being added".to_owned());
            if let Some(holder) = holder.or_else(in_flight) {
                let field = match from_annotation {
                    true => "mac_address",
                    false => "mac",
                };
                let problem = format!("belongs to {holder}");
                return Err(refuse(field, mac_text(mac), port, problem, true));
            }
        }
        Ok(())
    }

    /// Requests the flows of ports that are about to be created; none for those without port
    /// security.
    pub(super) fn reserve_flows(&self, planned: &[PortPlan]) -> Vec<Option<Reservation>> {
        let reserve = |port: &PortPlan| {
            let secured = SecuredPort {
                mac: port.link.pod_mac,
                addresses: port.link.addresses.iter().map(IpNet::addr).collect(),
            };
            let flows = &self.node.flows;
            flows.reserve(secured, self.known_by_another_until(port))
        };
        let reserve = |port| self.is_secured(port).then(|| reserve(port));
        planned.iter().map(reserve).collect()
    }

    /// Waits until the switch has the flows of every port, for the port number that it assigned.
    pub(super) async fn flows_installed(
        &self,
        ports: &[AddedPort],
        reserved: &mut [Option<Reservation>],
    ) -> Result<(), Error> {
        for (port, reservation) in ports.iter().zip(reserved) {
            let Some(reservation) = reservation else {
                continue;
            };
            if let Some(ofport) = self.node.ports.ofport(port) {
                reservation.move_to(ofport);
            }
            reservation.installed(self.deadline.left()).await?;
        }
        Ok(())
    }
}
