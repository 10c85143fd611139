//! Why a port could not be made, found or awaited.

use std::path::PathBuf;
use std::time::Duration;

use podwire_ovs::client::WaitError;
use podwire_ovs::transact::TransactError;
use podwire_ovs::unixctl::UnixctlError;

use super::{ControllerError, Diagnosis};
use crate::duration;

/// A step on the switch's database, or a wait for the switch, that failed.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// There is no current replica.
    #[error(
        "Open vSwitch's database {ovsdb} can't be used: {source}; is openvswitch-switch \
         (ovsdb-server) running?"
    )]
    NotConnected {
        /// The database's socket.
        ovsdb: PathBuf,
        /// What was seen instead.
        source: WaitError,
    },
    /// The database takes no question although the connection stands.
    #[error(
        "Open vSwitch's database {ovsdb} does not answer: no reply to a read within {}; is \
         ovsdb-server stopped or busy?",
        duration::text(*waited)
    )]
    DatabaseSilent {
        /// The database's socket.
        ovsdb: PathBuf,
        /// How long was waited.
        waited: Duration,
    },
    /// The bridge is not there.
    #[error("bridge {bridge} does not exist in Open vSwitch{}", if *.ovn { "; in OVN mode \
        ovn-controller makes it: is ovn-controller running on this node?" } else { "" })]
    NoBridge {
        /// The bridge.
        bridge: String,
        /// Whether it is ovn-controller's to make.
        ovn: bool,
    },
    /// The name that OVN is to know the port by is another pod's.
    #[error(
        "iface-id {iface_id} is the port of {holder}; two pods' names and interfaces make the same \
         one"
    )]
    IfaceIdForeign {
        /// The iface-id.
        iface_id: String,
        /// Whose it is.
        holder: String,
    },
    /// A transaction failed.
    #[error("{step} {port}: {source}")]
    Transact {
        /// What was attempted.
        step: &'static str,
        /// The first port of it.
        port: String,
        /// What the database said.
        source: TransactError,
    },
    /// ovs-vswitchd could not use the link.
    #[error("Open vSwitch refuses port {port}: {text}")]
    Refused {
        /// The port.
        port: String,
        /// The row's `error`.
        text: String,
    },
    /// The row vanished while it was waited for.
    #[error("the Interface row of port {port} was removed by somebody else while it was awaited")]
    RowGone {
        /// The port.
        port: String,
    },
    /// Somebody gave the row to another logical port.
    #[error(
        "external_ids:iface-id of port {port} was changed by somebody else while it was awaited: \
         from {ours} to {now}"
    )]
    IfaceIdChanged {
        /// The port.
        port: String,
        /// As it was written.
        ours: String,
        /// As it is.
        now: String,
    },
    /// Somebody gave the logical port to another row as well.
    #[error(
        "iface-id {iface_id} of port {port} was taken by another port while it was awaited: {by}"
    )]
    IfaceIdTaken {
        /// The port.
        port: String,
        /// Its iface-id.
        iface_id: String,
        /// The other port.
        by: String,
    },
    /// OVN did not install the flows in time.
    #[error("OVN did not report the port installed within {}: {diagnosis}",
        duration::text(*waited))]
    NotInstalled {
        /// How long was waited.
        waited: Duration,
        /// What is missing.
        diagnosis: Box<Diagnosis>,
    },
    /// ovn-controller does not do its work.
    #[error("{0}")]
    Controller(#[from] ControllerError),
    /// ovs-vswitchd lives and gave no ofport in time.
    #[error("ovs-vswitchd gave the port no ofport within {}: {source}", duration::text(*waited))]
    NoOfport {
        /// How long was waited.
        waited: Duration,
        /// What was seen instead.
        source: WaitError,
    },
    /// ovs-vswitchd does not answer.
    #[error("ovs-vswitchd does not answer (control socket in {}): {source}; is openvswitch-switch \
             running?", rundir.display())]
    SwitchDead {
        /// Where its pidfile and control socket should be.
        rundir: PathBuf,
        /// What was tried.
        source: UnixctlError,
    },
}

impl PortError {
    /// Whether a daemon took a connection and then said nothing: it is stopped, hung or busy.
    pub fn is_silence(&self) -> bool {
        matches!(
            self,
            Self::SwitchDead {
                source: UnixctlError::Timeout { .. },
                ..
            }
        )
    }
}
