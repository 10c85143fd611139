//! The privileges that `podwire node run` keeps, and why.

use podwire_daemon::lockdown::{Calls, Capability, Privileges, is_anothers};
use podwire_ovs::client::Remote;

use crate::settings::Places;

/// What it needs with these paths.
pub(crate) fn privileges(places: &Places) -> Privileges {
    // Links, addresses, routes, neighbours and conntrack entries by netlink, values below
    // /proc/sys/net, and nft's tables.
    let mut capabilities = vec![Capability::CAP_NET_ADMIN];
    if let Remote::Unix(socket) = &places.ovsdb
        && is_anothers(socket)
    {
        // Open vSwitch runs as another user, who owns its sockets and keys too.
        capabilities.push(Capability::CAP_DAC_OVERRIDE);
    }
    Privileges {
        capabilities,
        // nft.
        calls: Calls::Programs,
    }
}
