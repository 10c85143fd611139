//! The sysctls that this module sets, in the calling thread's network namespace (`/proc/sys/net`
//! shows that one).

use std::fs::File;
use std::io::Write as _;

use nix::errno::Errno;

use super::{Error, PodIpv6};

/// Keeps the host's own network stack off a host end. Call this before the link has a carrier.
///
/// IPv6 is disabled, which alone keeps the link silent: with `addr_gen_mode none` it would still
/// join multicast groups and report them by MLD, and a bridge floods that to every other pod.
///
/// ARP requests are not answered, for any address. A userspace datapath reads a host end through a
/// packet socket, and the host's stack receives the same frames: it would tell the pod that the
/// node's addresses, including the gateway's, are at the host end's MAC address (`arp_process`).
/// What the pod sends to that MAC address would pass neither the bridge nor its rules of the packet
/// filter; strict reverse path filtering drops it, for no route leads back by the host end
/// (`__fib_validate_source`).
pub(super) fn silence(host_end: &str, netdev_datapath: bool) -> Result<(), Error> {
    set_disable_ipv6(host_end, true)?;
    set(format!("net/ipv4/conf/{host_end}/arp_ignore"), "8")?;
    match netdev_datapath {
        true => set(format!("net/ipv4/conf/{host_end}/rp_filter"), "1"),
        false => Ok(()),
    }
}

/// Limits what a pod end sends by itself and believes. Call this before the link is set up.
pub(super) fn quieten(pod_end: &str, ipv6: PodIpv6) -> Result<(), Error> {
    // A kernel without IPv6 refuses the address in question, with a better error.
    let switch_off = |name| match set(format!("net/ipv6/conf/{pod_end}/{name}"), "0") {
        Err(Error::Sysctl { refusal, .. }) if refusal.errno == Errno::ENOENT => Ok(()),
        result => result,
    };
    match ipv6 {
        PodIpv6::Off => set_disable_ipv6(pod_end, true),
        PodIpv6::Quiet => {
            switch_off("accept_dad")?;
            switch_off("accept_ra")
        }
        // It solicits no router then (`addrconf_dad_completed`).
        PodIpv6::Assigned => switch_off("accept_ra"),
        PodIpv6::Routed => switch_off("autoconf"),
        PodIpv6::Usual => Ok(()),
    }
}

/// Enables IPv6 on a pod's link. If the runtime disabled it by default, it is off on loopback too.
pub(super) fn enable_ipv6(link: &str) -> Result<(), Error> {
    set_disable_ipv6("lo", false).and(set_disable_ipv6(link, false))
}

/// Whether a pod's link takes default routes of the routers that it believes.
pub(super) fn take_default_routes(link: &str, wanted: bool) -> Result<(), Error> {
    let value = if wanted { "1" } else { "0" };
    set(format!("net/ipv6/conf/{link}/accept_ra_defrtr"), value)
}

/// Has a pod's link believe routers, and take default routes of them if wanted.
pub(super) fn believe_routers(link: &str, with_default_routes: bool) -> Result<(), Error> {
    enable_ipv6(link)?;
    let set = |name, value| set(format!("net/ipv6/conf/{link}/{name}"), value);
    take_default_routes(link, with_default_routes)?;
    set("autoconf", "1")?;
    // Also if the pod forwards.
    set("accept_ra", "2")
}

/// Disables or enables a link's IPv6.
pub(super) fn set_disable_ipv6(link: &str, disable: bool) -> Result<(), Error> {
    let value = if disable { "1" } else { "0" };
    match set(format!("net/ipv6/conf/{link}/disable_ipv6"), value) {
        // This kernel has no IPv6, or this link does not (its MTU is below 1280).
        Err(Error::Sysctl { refusal, .. }) if disable && refusal.errno == Errno::ENOENT => Ok(()),
        result => result,
    }
}

fn set(name: String, value: &'static str) -> Result<(), Error> {
    File::options()
        .write(true)
        .open(format!("/proc/sys/{name}"))
        .and_then(|mut file| file.write_all(value.as_bytes()))
        .map_err(|error| Error::Sysctl {
            name,
            value,
            refusal: error.into(),
        })
}
