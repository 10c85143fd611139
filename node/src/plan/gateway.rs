//! What a gateway router of OVN's needs on the gateway bridge, and what the node says of it.

use ipnet::IpNet;
use podwire_cluster::gateway::{Gateway, interface};

use super::{Plan, TUNNEL_PORT, guarded};
use crate::items::{Actual, BridgeFlows, Item};
use crate::moved::Moved;
use crate::settings::Settings;
use crate::{GATEWAY, LINK};

impl Plan {
    /// The flows of the gateway bridge.
    pub(crate) fn flows(&self) -> Option<&BridgeFlows> {
        self.items.iter().find_map(|item| match item {
            Item::BridgeFlows(flows) => Some(flows),
            _ => None,
        })
    }

    /// Has the bridge tell packets of the host from those of a gateway router with its addresses.
    pub(super) fn share(&mut self, settings: &Settings, actual: &Actual) {
        // A NIC that was moved back is in no bridge.
        if !actual.moved.as_ref().is_none_or(Moved::is_there) {
            return;
        }
        let logical = interface(GATEWAY, &settings.node_name);
        let ports = actual.switch.gateway.as_ref();
        let mut flows = ports.map(|ports| ports.flows(&logical)).unwrap_or_default();
        let mac = actual.links.get(GATEWAY).map(|link| link.mac.clone());
        if mac.is_none() {
            flows.nic = None;
        }
        flows.mac = mac.unwrap_or_default();
        flows.tunnels = vec![TUNNEL_PORT];
        flows.tunnels.extend(settings.encap_port);
        flows.tunnels.dedup();
        let guarded = guarded::with_ovn(settings, actual);
        let ports = guarded.tunnels.iter().chain(&guarded.databases);
        let number = |protocol: &str| if protocol == "udp" { 17 } else { 6 };
        flows.guarded = ports
            .map(|(protocol, port)| (number(protocol), *port))
            .collect();
        flows.led.clone_from(&actual.led);
        let mtu = self.items.iter().find_map(|item| match item {
            Item::Port(port) if port.link == LINK => Some(port.mtu),
            _ => None,
        });
        self.gateway = announced(logical, &flows.mac, mtu, actual);
        self.verdict.push(match &self.gateway {
            Some(gateway) => {
                let hops: Vec<String> = gateway.next_hops.iter().map(ToString::to_string).collect();
                let hops = hops.join(", ");
                format!("pods may leave by a gateway router of OVN's, to {hops}")
            }
            None => format!("no default route is by {GATEWAY}: pods leave by the host"),
        });
        self.items.push(Item::BridgeFlows(flows));
    }
}

/// What the node says of its gateway: for each family the address of the bridge, and the router of
/// the default route by it.
fn announced(interface: String, mac: &str, mtu: Option<u32>, actual: &Actual) -> Option<Gateway> {
    let own = actual.addresses.iter();
    let own = own.filter(|seen| seen.link == GATEWAY && seen.global);
    let own: Vec<IpNet> = own.map(|seen| seen.address).collect();
    // Tunnels end at the address that other nodes know.
    let known = actual.tunnels_address();
    let (mut addresses, mut next_hops) = (Vec::new(), Vec::new());
    for v4 in [true, false] {
        let routes = actual.routes.iter().filter(|route| {
            route.destination.prefix_len() == 0
                && route.destination.addr().is_ipv4() == v4
                && route.link.as_deref() == Some(GATEWAY)
                && route.is_unicast()
        });
        let Some(route) = routes.min_by_key(|route| route.metric) else {
            continue;
        };
        let of_family = || own.iter().filter(|it| it.addr().is_ipv4() == v4);
        let is = |wanted| of_family().find(|it| Some(it.addr()) == wanted);
        let source = is(route.source).or(is(known)).or(of_family().next());
        if let (Some(address), Some(hop)) = (source, route.via) {
            addresses.push(*address);
            next_hops.push(hop);
        }
    }
    let gateway = Gateway {
        interface,
        mac: mac.parse().ok()?,
        addresses,
        next_hops,
        vlan: None,
        mtu,
    };
    (!gateway.next_hops.is_empty()).then_some(gateway)
}
