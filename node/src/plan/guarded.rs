//! The ports of nodes that pods must not reach.

use podwire_ovs::client::Remote;

use super::TUNNEL_PORT;
use crate::firewall::Guarded;
use crate::items::Actual;
use crate::settings::Settings;

/// The port of ovsdb-server (IANA: ovsdb).
const OVSDB: u16 = 6640;
/// The northbound and southbound databases, for clients and for the members of a raft cluster
/// (ovn-ctl(8)).
const OVN: [u16; 4] = [6641, 6642, 6643, 6644];

/// Those of a node with OVN: its tunnels' by their types, and the databases' by default and in the
/// southbound remote.
pub(super) fn with_ovn(settings: &Settings, actual: &Actual) -> Guarded {
    let types = actual.key("ovn-encap-type").unwrap_or("geneve");
    // Other nodes may have the default still.
    let ports = [Some(TUNNEL_PORT), settings.encap_port];
    let mut tunnels: Vec<_> = ports.into_iter().flatten().map(|it| ("udp", it)).collect();
    // Open vSwitch's defaults (lib/netdev-vport.c).
    tunnels.extend(types.split(',').filter_map(|it| match it.trim() {
        "vxlan" => Some(("udp", 4789)),
        "stt" => Some(("tcp", 7471)),
        _ => None,
    }));
    let remote = settings.ovn_remote.as_deref();
    let remote = remote.or(actual.key("ovn-remote")).unwrap_or_default();
    let remotes = Remote::parse_list(remote).unwrap_or_default();
    let named = remotes.into_iter().filter_map(|remote| match remote {
        Remote::Unix(_) => None,
        Remote::Tcp(at) | Remote::Ssl(at) => Some(at.port),
    });
    let databases = OVN.into_iter().chain([OVSDB]).chain(named);
    Guarded {
        tunnels: tunnels.into_iter().collect(),
        databases: databases.map(|port| ("tcp", port)).collect(),
    }
}

/// Those of a node in plain mode.
pub(super) fn without_ovn(has_tunnels: bool) -> Guarded {
    let tunnels = has_tunnels.then_some(("udp", TUNNEL_PORT));
    Guarded {
        tunnels: tunnels.into_iter().collect(),
        databases: [("tcp", OVSDB)].into(),
    }
}
