//! The kinds of differences, as a program tells them apart.

use serde::{Deserialize, Serialize};

/// What is not as an ADD left it. tests/tests/doctor runs the fix of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Its ADD was interrupted.
    AddInterrupted,
    /// Its DEL was.
    DelUnfinished,
    /// The intent log has no entry.
    NoRecord,
    /// The pod's network namespace is gone, or another's.
    NamespaceGone,
    /// Open vSwitch has no row of it.
    NoPort,
    /// The row has another iface-id.
    IfaceIdChanged,
    /// The port is on another bridge, or none.
    OnOtherBridge,
    /// The port is in a VLAN of its own.
    InVlan,
    /// The row has an error.
    PortError,
    /// The row has no ofport.
    NoOfport,
    /// OVN has not installed its flows.
    OvnNotInstalled,
    /// The pod has no such interface.
    PodLinkMissing,
    /// The pod's interface is down.
    PodLinkDown,
    /// The pod's interface has another MAC address.
    PodMac,
    /// The pod's interface has another MTU.
    PodMtu,
    /// The pod's interface has lost an address.
    AddressLost,
    /// The pod's interface has lost a route.
    RouteLost,
    /// Checksums are left to hardware where there is none.
    TxChecksum,
    /// The host's end has another name.
    HostLinkRenamed,
    /// The host's end is not there.
    HostLinkMissing,
    /// Another link has the name of the host's end.
    HostLinkReplaced,
    /// The host's end has another MAC address.
    HostMac,
    /// The host's end has another MTU.
    HostMtu,
    /// The host's end is down.
    HostLinkDown,
    /// The switch does not have the host's end.
    CarriesNothing,
}
