//! TX checksum offload, through ethtool's ioctl: a netdev datapath forwards the pod's packets
//! unchanged, and a checksum left for hardware to fill in is wrong.

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::libc;

/// linux/ethtool.h; libc has no names for them.
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_STXCSUM: u32 = 0x17;

/// Disables TX checksum offload on a link of the socket's namespace.
pub(super) fn tx_checksum_off(socket: impl AsFd, link: &str) -> nix::Result<()> {
    call(
        socket,
        link,
        EthtoolValue {
            command: ETHTOOL_STXCSUM,
            data: 0,
        },
    )
    .map(|_| ())
}

/// Whether TX checksum offload is enabled.
pub(super) fn tx_checksum(socket: impl AsFd, link: &str) -> nix::Result<bool> {
    call(
        socket,
        link,
        EthtoolValue {
            command: ETHTOOL_GTXCSUM,
            data: 0,
        },
    )
    .map(|v| v != 0)
}

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Any socket will do, even a netlink one: an ioctl that its protocol does not know is passed to
/// `dev_ioctl` with the socket's namespace (`sock_do_ioctl`).
#[allow(unsafe_code, reason = "ethtool is an ioctl; no safe wrapper exists")]
fn call(socket: impl AsFd, link: &str, mut value: EthtoolValue) -> nix::Result<u32> {
    let mut name = [0 as libc::c_char; libc::IFNAMSIZ];
    // One byte remains for the terminating zero.
    if link.len() >= name.len() {
        return Err(Errno::ENAMETOOLONG);
    }
    for (to, from) in name.iter_mut().zip(link.bytes()) {
        *to = from as libc::c_char;
    }
    let mut request = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_data: (&raw mut value).cast(),
        },
    };
    // SAFETY: the descriptor is open for the length of the call. SIOCETHTOOL reads an ifreq, which
    // `request` is, with a terminated name, and for the two commands used here reads and writes one
    // ethtool_value behind ifru_data (net/ethtool/ioctl.c, ethtool_get_value and
    // ethtool_set_value), which `value` is; both outlive the call.
    Errno::result(unsafe {
        libc::ioctl(
            socket.as_fd().as_raw_fd(),
            libc::SIOCETHTOOL as _,
            &raw mut request,
        )
    })?;
    Ok(value.data)
}
