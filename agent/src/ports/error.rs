//! Why a port could not be made, found or awaited.

use std::path::PathBuf;
use std::time::Duration;

use podwire_ovs::client::WaitError;
use podwire_ovs::transact::TransactError;
use podwire_ovs::unixctl::UnixctlError;

/// A step on the switch's database, or a wait for the switch, that failed.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// There is no current replica.
    #[error(
        "Open vSwitch's database {ovsdb} can't be used: {source}; is openvswitch-switch (ovsdb-server) running?"
    )]
    NotConnected {
        /// The database's socket.
        ovsdb: PathBuf,
        /// What was seen instead.
        source: WaitError,
    },
    /// The bridge is not there.
    #[error("bridge {bridge} does not exist in Open vSwitch")]
    NoBridge {
        /// The bridge.
        bridge: String,
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
    #[error("Interface row {interface} was removed by somebody else while its ofport was awaited")]
    RowGone {
        /// The row's uuid.
        interface: String,
    },
    /// ovs-vswitchd lives and gave no ofport in time.
    #[error("ovs-vswitchd gave the port no ofport within {waited:?}: {source}")]
    NoOfport {
        /// How long was waited.
        waited: Duration,
        /// What was seen instead.
        source: WaitError,
    },
    /// ovs-vswitchd does not answer.
    #[error("ovs-vswitchd does not answer (control socket in {}): {source}; is openvswitch-switch running?", rundir.display())]
    SwitchDead {
        /// Where its pidfile and control socket should be.
        rundir: PathBuf,
        /// What was tried.
        source: UnixctlError,
    },
}
