//! The answer to ADD, from the plan and the names of the host ends.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cni::spec::{CniResult, Dns, Interface, IpConfig, Route};

use super::{PortPlan, Subject, mac_text};

/// The result of an ADD: each port's host end and pod end, its addresses and its routes.
///
/// `host_names` are the names of the host ends, one for each port.
pub fn result(
    subject: &Subject<'_>,
    ports: &[PortPlan],
    host_names: &[String],
    dns: Dns,
) -> CniResult {
    let mut result = CniResult {
        dns,
        ..CniResult::default()
    };
    for (port, host_name) in ports.iter().zip(host_names) {
        let link = &port.link;
        result.interfaces.push(Interface {
            name: host_name.clone(),
            mac: Some(mac_text(link.host_mac)),
            mtu: Some(link.mtu),
            ..Interface::default()
        });
        let pod_end = result.interfaces.len();
        result.interfaces.push(Interface {
            name: link.pod_name.clone(),
            mac: Some(mac_text(link.pod_mac)),
            sandbox: Some(subject.netns.to_owned()),
            mtu: Some(link.mtu),
            ..Interface::default()
        });
        result
            .ips
            .extend(link.addresses.iter().map(|address| IpConfig {
                address: *address,
                gateway: gateway_of(*address, port),
                interface: Some(pod_end),
            }));
        result.routes.extend(link.routes.iter().map(route));
    }
    result
}

/// A route in the result's form.
pub fn route(route: &podwire_netns::Route) -> Route {
    Route {
        dst: route.dst,
        gw: route.gateway,
        mtu: route.mtu,
        advmss: route.advmss,
        priority: route.priority,
        table: route.table,
        scope: route.scope.map(u32::from),
    }
}

/// The gateway of an address's subnet; for an address in no gateway's subnet (a link-local one),
/// that of its family's default route.
fn gateway_of(address: IpNet, port: &PortPlan) -> Option<IpAddr> {
    let default_routes = port.link.routes.iter().filter(|route| route.is_default());
    let next_hops = || default_routes.clone().filter_map(|route| route.gateway);
    next_hops()
        .chain(port.subnet_gateways.iter().copied())
        .find(|gateway| address.contains(gateway))
        .or_else(|| next_hops().find(|gateway| gateway.is_ipv4() == address.addr().is_ipv4()))
}
