//! The sysctls that the room sets, in the calling thread's network namespace (`/proc/sys/net` shows
//! that one).

use std::fs::File;
use std::io::Write as _;

use nix::errno::Errno;

use super::{Error, PodIpv6};

/// Keeps the host's own network stack off a host end, to be called before the link has a carrier.
///
/// IPv6 is off: that alone keeps the link entirely silent. `addr_gen_mode none` still joins
/// multicast groups and reports them by MLD, and a bridge floods that to every other pod.
///
/// ARP is not answered, for any address. A userspace datapath reads a host end through a packet
/// socket, beside which the host's stack hears the same frames: it would tell the pod that the
/// node's addresses, the gateway's among them, are at the host end's MAC address (`arp_process`).
pub(super) fn silence(host_end: &str) -> Result<(), Error> {
    set_disable_ipv6(host_end, true)?;
    set(format!("net/ipv4/conf/{host_end}/arp_ignore"), "8")
}

/// Has a pod end say by itself no more than this, to be called before the link is set up.
pub(super) fn quieten(pod_end: &str, ipv6: PodIpv6) -> Result<(), Error> {
    match ipv6 {
        PodIpv6::Off => set_disable_ipv6(pod_end, true),
        PodIpv6::Quiet => {
            // A kernel without IPv6 refuses the address that this is for, with a better error.
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

/// Switches a link's IPv6 off, or back on.
pub(super) fn set_disable_ipv6(link: &str, disable: bool) -> Result<(), Error> {
    let value = if disable { "1" } else { "0" };
    match set(format!("net/ipv6/conf/{link}/disable_ipv6"), value) {
        // This kernel has no IPv6, or this link has not (its MTU is below 1280).
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
