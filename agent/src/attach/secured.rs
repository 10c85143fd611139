//! Port security of one ADD: which ports have it, and their flows.

use ipnet::IpNet;

use super::deadline::Deadline;
use super::{Agent, Call, Error};
use crate::config::Mode;
use crate::flows::Reservation;
use crate::journal::State;
use crate::plan::{AttachmentKey, InterfaceSpec, PortPlan, ids, mac_text};
use crate::ports::{AddedPort, SecuredPort};

impl Agent {
    /// Whether this network's pods may only speak for themselves: as it says, or else as the node does. In OVN mode that is
    /// for the logical port to say.
    pub(super) fn is_secured(&self, call: &Call) -> bool {
        let asked = call.conf.port_security;
        self.config.ovn.mode == Mode::Plain && asked.unwrap_or(self.config.port_security)
    }

    /// Writes down what the network says, for who makes the flows again later.
    pub(super) fn mark_port_security(&self, call: &Call, planned: &mut [PortPlan]) {
        if self.flows.is_none() {
            return;
        }
        let value = match call.conf.port_security {
            Some(true) => "on",
            Some(false) => "off",
            None => "default",
        };
        for port in planned {
            port.external_ids
                .insert(ids::PORT_SECURITY.to_owned(), value.to_owned());
        }
    }

    /// Refuses a MAC address that another pod, the gateway or the node has, and an address that is not for a pod of this node,
    /// where somebody else than the agent chose it. What is in a subnet of the node is held by the pools, and was refused there.
    pub(super) async fn refuse_taken(
        &self,
        call: &Call,
        asked: &[InterfaceSpec],
        planned: &[PortPlan],
        from_annotation: bool,
    ) -> Result<(), Error> {
        if !self.is_secured(call) {
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
        // What was detached while the database was away still has its row, and no claim.
        let is_leaving = |key: &AttachmentKey| self.journal.state(key) == Some(State::Deleting);
        for (asked, port) in asked.iter().zip(planned).filter(|_| from_annotation) {
            for address in port.link.addresses.iter().map(IpNet::addr) {
                let field = "ip_addresses";
                if self.addresses.covers(address) {
                    continue;
                }
                if asked.nad.is_none() {
                    let subnets = self.addresses.usage();
                    let subnets: Vec<String> =
                        subnets.iter().map(|it| it.subnet.to_string()).collect();
                    let problem = format!("is in no subnet of this node ({})", subnets.join(", "));
                    return Err(refuse(field, address.to_string(), port, problem, false));
                }
                let holder = match self
                    .ports
                    .holder_of_address(address, &port.iface_id, is_leaving)
                {
                    Some(holder) => Some(holder),
                    None => self
                        .netlink
                        .link_of_address(address)
                        .await?
                        .map(|link| format!("this node, on link {}", link.name)),
                };
                if let Some(holder) = holder {
                    let problem = format!("belongs to {holder}");
                    return Err(refuse(field, address.to_string(), port, problem, true));
                }
            }
        }
        // No other ADD runs from here until the ports' flows are reserved: of two that ask for the
        // same MAC address, one is first.
        for (asked, port) in asked.iter().zip(planned) {
            let Some(mac) = asked.mac else { continue };
            let in_flight = self
                .flows
                .as_ref()
                .is_some_and(|flows| flows.is_reserved(mac));
            let holder = match self.ports.holder_of_mac(mac, &port.iface_id, is_leaving) {
                None if in_flight => Some("a pod that is being added".to_owned()),
                holder => holder,
            };
            if let Some(holder) = holder {
                let field = if from_annotation {
                    "mac_address"
                } else {
                    "mac"
                };
                let problem = format!("belongs to {holder}");
                return Err(refuse(field, mac_text(mac), port, problem, true));
            }
        }
        Ok(())
    }

    /// Has the flows made for ports that are about to be; none without port security.
    pub(super) fn reserve_flows(&self, call: &Call, planned: &[PortPlan]) -> Vec<Reservation> {
        let Some(flows) = self.flows.as_ref().filter(|_| self.is_secured(call)) else {
            return Vec::new();
        };
        let secured = planned.iter().map(|port| SecuredPort {
            mac: port.link.pod_mac,
            addresses: port.link.addresses.iter().map(IpNet::addr).collect(),
        });
        secured.map(|port| flows.reserve(port)).collect()
    }

    /// Waits until the switch has the flows of every port, by the number that it has given to it.
    pub(super) async fn flows_installed(
        &self,
        ports: &[AddedPort],
        reserved: &mut [Reservation],
        deadline: Deadline,
    ) -> Result<(), Error> {
        for (port, reservation) in ports.iter().zip(reserved) {
            if let Some(ofport) = self.ports.ofport(port) {
                reservation.move_to(ofport);
            }
            reservation.installed(deadline.left()).await?;
        }
        Ok(())
    }
}
