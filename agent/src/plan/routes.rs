//! An interface's routes: those to the subnets of next hops first, each destination once.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use podwire_netns::Route;

use super::address::not_a_host;
use super::{InterfaceSpec, PlanError};

pub(super) fn plan_routes(interface: &str, spec: &InterfaceSpec) -> Result<Vec<Route>, PlanError> {
    let mut routes: Vec<Route> = Vec::with_capacity(spec.gateways.len() + spec.routes.len());
    for gateway in &spec.gateways {
        let dst = match gateway {
            IpAddr::V4(_) => IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0),
            IpAddr::V6(_) => IpNet::new_assert(Ipv6Addr::UNSPECIFIED.into(), 0),
        };
        let onlink = check_gateway(interface, "gateway", *gateway, &spec.addresses)?;
        push_route(
            interface,
            &mut routes,
            Route {
                onlink,
                ..Route::new(dst, Some(*gateway))
            },
        )?;
    }
    for route in &spec.routes {
        let dst = route.dst.trunc();
        let mut onlink = false;
        if let Some(gateway) = route.gateway {
            if gateway.is_ipv4() != dst.addr().is_ipv4() {
                return Err(PlanError::RouteFamily {
                    interface: interface.to_owned(),
                    dst,
                    gateway,
                });
            }
            onlink = check_gateway(interface, "route's next hop", gateway, &spec.addresses)?;
        }
        let route = Route {
            dst,
            onlink,
            ..route.clone()
        };
        push_route(interface, &mut routes, route)?;
    }
    // A route to a next hop's network must exist before the routes through it.
    routes.sort_by_key(|route| route.gateway.is_some());
    Ok(routes)
}

fn push_route(interface: &str, routes: &mut Vec<Route>, route: Route) -> Result<(), PlanError> {
    let is_same = |other: &Route| {
        (other.dst, other.priority, other.table) == (route.dst, route.priority, route.table)
    };
    if routes.iter().any(is_same) {
        let (interface, value) = (interface.to_owned(), route.dst.to_string());
        return Err(PlanError::Twice {
            interface,
            what: "route",
            value,
        });
    }
    routes.push(route);
    Ok(())
}

/// Whether the next hop lies outside every subnet of the interface and so needs RTNH_F_ONLINK.
fn check_gateway(
    interface: &str,
    field: &'static str,
    gateway: IpAddr,
    addresses: &[IpNet],
) -> Result<bool, PlanError> {
    if let Some(what) = not_a_host(gateway) {
        return Err(PlanError::Gateway {
            interface: interface.to_owned(),
            field,
            gateway,
            what,
        });
    }
    if addresses.iter().any(|address| address.addr() == gateway) {
        let what = "the interface's own address";
        return Err(PlanError::Gateway {
            interface: interface.to_owned(),
            field,
            gateway,
            what,
        });
    }
    if !addresses
        .iter()
        .any(|address| address.addr().is_ipv4() == gateway.is_ipv4())
    {
        return Err(PlanError::NoAddressForGateway {
            interface: interface.to_owned(),
            field,
            gateway,
        });
    }
    let is_link_local = matches!(gateway, IpAddr::V6(ip) if ip.is_unicast_link_local());
    Ok(!is_link_local && !addresses.iter().any(|address| address.contains(&gateway)))
}
