//! Addresses and routes, set in batches.

use ipnet::IpNet;
use nix::errno::Errno;

use super::request::{self, CREATE_NEW, LOOPBACK};
use super::socket::{Netlink, Outcome};
use super::wire::Batch;
use super::{Error, Refusal, Route, observe};

/// Sets loopback and the pod end up.
pub(super) fn set_up(socket: &mut Netlink, name: &str, index: u32) -> Result<(), Error> {
    let mut batch = Batch::default();
    batch.push(request::set_up(LOOPBACK), 0);
    batch.push(request::set_up(index), 0);
    for (link, outcome) in ["lo", name].into_iter().zip(socket.apply(&mut batch)) {
        outcome.map_err(|refusal| Error::SetUp {
            link: link.to_owned(),
            refusal,
        })?;
    }
    Ok(())
}

/// Adds the addresses that are missing. `enable_ipv6` is called if IPv6 is disabled on the link: on
/// the many nodes where it is enabled, trying first costs nothing.
pub(super) fn set_addresses(
    socket: &mut Netlink,
    link: &str,
    index: u32,
    addresses: &[IpNet],
    enable_ipv6: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    let refused = |address: IpNet, refusal| Error::SetAddress {
        address,
        link: link.to_owned(),
        refusal,
    };
    let mut again = Vec::new();
    for (address, outcome) in addresses.iter().zip(add_all(socket, index, addresses)) {
        match outcome {
            // `addrconf_add_dev`: "IPv6 is disabled on this device".
            Err(refusal) if refusal.errno == Errno::EACCES && address.addr().is_ipv6() => {
                again.push(*address)
            }
            outcome => outcome.map_err(|refusal| refused(*address, refusal))?,
        }
    }
    if again.is_empty() {
        return Ok(());
    }
    enable_ipv6()?;
    for (address, outcome) in again.iter().zip(add_all(socket, index, &again)) {
        outcome.map_err(|refusal| refused(*address, refusal))?;
    }
    Ok(())
}

fn add_all(socket: &mut Netlink, index: u32, addresses: &[IpNet]) -> Vec<Outcome> {
    let mut batch = Batch::default();
    addresses
        .iter()
        .for_each(|a| batch.push(request::add_address(*a, index), CREATE_NEW));
    let there_is_fine = |outcome| match outcome {
        Err(Refusal {
            errno: Errno::EEXIST,
            ..
        }) => Ok(()),
        outcome => outcome,
    };
    socket
        .apply(&mut batch)
        .into_iter()
        .map(there_is_fine)
        .collect()
}

pub(super) fn set_routes(
    socket: &mut Netlink,
    link: &str,
    routes: &[Route],
    index: u32,
) -> Result<(), Error> {
    let refused = |route: &Route, refusal| Error::SetRoute {
        route: route.to_string(),
        link: link.to_owned(),
        refusal,
    };
    let mut batch = Batch::default();
    for route in routes {
        batch.push(request::add_route(route, index), CREATE_NEW);
    }
    for (route, outcome) in routes.iter().zip(socket.apply(&mut batch)) {
        match outcome {
            Err(refusal) if refusal.errno == Errno::EEXIST => {
                let Some((existing, same)) = observe::route_in_place(socket, route, index)? else {
                    return Err(refused(route, refusal));
                };
                if !same {
                    let (route, link) = (route.to_string(), link.to_owned());
                    return Err(Error::RouteTaken {
                        route,
                        link,
                        existing,
                    });
                }
            }
            outcome => outcome.map_err(|refusal| refused(route, refusal))?,
        }
    }
    Ok(())
}
