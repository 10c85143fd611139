//! The kinds of differences, for programs.

use serde::{Deserialize, Serialize};

/// A difference from what an ADD left. tests/tests/doctor runs the fix of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Its ADD was interrupted.
    AddInterrupted,
    /// Its DEL was interrupted.
    DelUnfinished,
    /// The intent log has no entry.
    NoRecord,
    /// The intent log's entry can't be read.
    RecordUnreadable,
    /// The pod's network namespace is gone, or another's.
    NamespaceGone,
    /// Open vSwitch has no row for it.
    NoPort,
    /// The row has another iface-id.
    IfaceIdChanged,
    /// The port is on another bridge, or none.
    OnOtherBridge,
    /// The port is in other VLANs than it was created in.
    InVlan,
    /// The row has an error.
    PortError,
    /// The row has no ofport.
    NoOfport,
    /// The port has another OpenFlow port number than the network configuration requests.
    OtherOfport,
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
    /// TX checksums are offloaded to hardware that does not exist.
    TxChecksum,
    /// The host end has another name.
    HostLinkRenamed,
    /// The host end is missing.
    HostLinkMissing,
    /// Another link has the host end's name.
    HostLinkReplaced,
    /// The host end has another MAC address.
    HostMac,
    /// The host end has another MTU.
    HostMtu,
    /// The host end is down.
    HostLinkDown,
    /// The switch does not use the host end.
    CarriesNothing,
}
