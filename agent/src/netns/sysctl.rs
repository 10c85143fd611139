//! The one sysctl that the room sets: `net.ipv6.conf.<link>.disable_ipv6`.

use std::fs::File;
use std::io::{self, Write};

use super::Error;

/// Switches a link's IPv6 off, or back on, in the calling thread's network namespace
/// (`/proc/sys/net` shows that one).
///
/// Off is needed on a host end before it is set up: it alone keeps the link entirely silent.
/// `addr_gen_mode none` still joins multicast groups and reports them by MLD, and a bridge floods
/// that to every other pod.
pub(super) fn set_disable_ipv6(link: &str, disable: bool) -> Result<(), Error> {
    let name = format!("net/ipv6/conf/{link}/disable_ipv6");
    let value = if disable { "1" } else { "0" };
    let written = File::options()
        .write(true)
        .open(format!("/proc/sys/{name}"))
        .and_then(|mut file| file.write_all(value.as_bytes()));
    match written {
        Ok(()) => Ok(()),
        // No such file: this kernel has no IPv6, or this link has not (its MTU is below 1280).
        Err(error) if disable && error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::Sysctl {
            name,
            value,
            refusal: error.into(),
        }),
    }
}
