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
pub(super) fn silence(host_end: &str) -> Result<(), Error> {
    set_disable_ipv6(host_end, true)?;
    set(format!("net/ipv4/conf/{host_end}/arp_ignore"), "8")
}

/// Limits what a pod end sends by itself. Call this before the link is set up.
pub(super) fn quieten(pod_end: &str, ipv6: PodIpv6) -> Result<(), Error> {
    match ipv6 {
        PodIpv6::Off => set_disable_ipv6(pod_end, true),
        PodIpv6::Quiet => {
            // A kernel without IPv6 refuses the address in question, with a better error.
            let quieten = |name| match set(format!("net/ipv6/conf/{pod_end}/{name}"), "0") {
                Err(Error::Sysctl { refusal, .. }) if refusal.errno == Errno::ENOENT => Ok(()),
                result => result,
            };
            quieten("accept_dad")?;
            quieten("router_solicitations")
        }
        PodIpv6::Usual => Ok(()),
    }
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
