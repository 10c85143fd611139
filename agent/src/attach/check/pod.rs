//! The pod end: its link, addresses and routes.

use podwire_cni::spec::{CniResult, Interface, IpConfig, Route};
use podwire_netns::{Observed, ObservedRoute};

use super::{Difference, Fault, is_inside};
use crate::plan::mac_text;

/// RT_TABLE_MAIN (rtnetlink(7)).
const MAIN_TABLE: u32 = 254;

/// All differences between a result and the pod's interface, except for routes; `inside` is the
/// prefix that runs a command in the pod's namespace.
pub(crate) fn pod_differences(
    prev: &CniResult,
    index: usize,
    wanted: &Interface,
    seen: Option<&Observed>,
    inside: &str,
) -> Vec<Difference> {
    let name = &wanted.name;
    let Some(seen) = seen else {
        return vec![Difference::new(
            Fault::PodLinkMissing,
            format!("the pod has no interface {name}"),
        )];
    };
    let link = &seen.link;
    let mut found = Vec::new();
    // First of all: when a link goes down, the kernel removes its IPv6 addresses and routes, and
    // does not restore them when it comes up.
    if !link.up {
        found.push(Difference::with_fix(
            Fault::PodLinkDown,
            format!("interface {name} is down"),
            format!("{inside}ip link set {name} up"),
        ));
    }
    if let (Some(wanted), Some(has)) = (&wanted.mac, link.mac.map(mac_text))
        && !wanted.is_empty()
        && !wanted.eq_ignore_ascii_case(&has)
    {
        found.push(Difference::with_fix(
            Fault::PodMac,
            format!("interface {name} has MAC {has}, and should have {wanted}"),
            format!("{inside}ip link set {name} address {wanted}"),
        ));
    }
    if let Some(wanted) = wanted.mtu.filter(|mtu| *mtu != 0 && *mtu != link.mtu) {
        found.push(Difference::with_fix(
            Fault::PodMtu,
            format!(
                "interface {name} has MTU {}, and should have {wanted}",
                link.mtu
            ),
            format!("{inside}ip link set {name} mtu {wanted}"),
        ));
    }
    let on_it = |ip: &&IpConfig| {
        ip.interface == Some(index) || (ip.interface.is_none() && prev.interfaces.len() <= 2)
    };
    for ip in prev.ips.iter().filter(on_it) {
        let address = ip.address;
        if !seen.addresses.contains(&address) {
            // Nobody else has it; duplicate address detection would only delay the routes.
            let nodad = if address.addr().is_ipv6() {
                " nodad"
            } else {
                ""
            };
            found.push(Difference::with_fix(
                Fault::AddressLost,
                format!("interface {name} has lost address {address}"),
                format!("{inside}ip addr add {address} dev {name}{nodad}"),
            ));
        }
    }
    found
}

/// The routes of a result that no interface has; `seen` are the interfaces that were read, with
/// their indexes. A route names no interface. It belongs to the one with the next hop in a subnet;
/// otherwise to any, provided that all interfaces of the sandbox were read.
///
/// A default route is not lost if the pod has another one over another link: Multus moves it there,
/// for both families, if a pod requests one (`default-route`).
pub(crate) fn lost_routes(
    prev: &CniResult,
    seen: &[(usize, Observed)],
    inside: &str,
) -> Vec<Difference> {
    let interfaces = prev.interfaces.iter().enumerate();
    let sees_all = interfaces
        .filter(|(_, interface)| is_inside(interface))
        .all(|(index, _)| seen.iter().any(|(it, _)| *it == index));
    let mut found = Vec::new();
    for route in &prev.routes {
        let owner = prev.ips.iter().find(|ip| {
            let gateway = route.gw.as_ref();
            gateway.is_some_and(|gateway| ip.address.contains(gateway))
        });
        let owner = owner.and_then(|ip| ip.interface);
        let over: Vec<&Observed> = match owner {
            Some(owner) => seen
                .iter()
                .filter(|(index, _)| *index == owner)
                .map(|(_, it)| it)
                .collect(),
            None if sees_all => seen.iter().map(|(_, it)| it).collect(),
            None => continue,
        };
        if route.dst.prefix_len() == 0 && over.iter().any(|it| !it.defaults_elsewhere.is_empty()) {
            continue;
        }
        let mut routes = over.iter().flat_map(|it| &it.routes);
        let Some(first) = over.first() else { continue };
        if !routes.any(|it| is_same(route, it)) {
            let name = &first.link.name;
            let by = route
                .gw
                .map_or_else(String::new, |gateway| format!(" by {gateway}"));
            found.push(Difference::with_fix(
                Fault::RouteLost,
                format!("interface {name} has lost the route to {}{by}", route.dst),
                format!("{inside}{}", add_route(route, name, owner.is_none())),
            ));
        }
    }
    found
}

/// The command that restores a route. A next hop in no subnet of the interface is treated as
/// reachable on the link.
fn add_route(route: &Route, name: &str, is_onlink: bool) -> String {
    let mut command = format!("ip route add {}", route.dst.trunc());
    if let Some(gateway) = route.gw {
        command.push_str(&format!(" via {gateway}"));
    }
    command.push_str(&format!(" dev {name}"));
    for (word, number) in [
        ("metric", route.priority),
        ("table", route.table),
        ("mtu", route.mtu),
        ("advmss", route.advmss),
        ("scope", route.scope),
    ] {
        if let Some(number) = number {
            command.push_str(&format!(" {word} {number}"));
        }
    }
    if route.gw.is_some() && is_onlink {
        command.push_str(" onlink");
    }
    command
}

fn is_same(wanted: &Route, seen: &ObservedRoute) -> bool {
    // The two families encode an unset table and an unset next hop differently; only what
    // prevResult sets is compared.
    wanted.dst.trunc() == seen.dst.trunc()
        && wanted
            .gw
            .is_none_or(|gateway| seen.gateway == Some(gateway))
        && wanted.table.unwrap_or(MAIN_TABLE) == seen.table
        && wanted.mtu.is_none_or(|mtu| seen.mtu == Some(mtu))
        && wanted
            .priority
            .is_none_or(|priority| priority == seen.priority)
}
