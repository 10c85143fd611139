//! Why a port could not be created, found or waited for.

use std::path::PathBuf;
use std::time::Duration;

use podwire_ovs::client::WaitError;
use podwire_ovs::transact::TransactError;
use podwire_ovs::unixctl::UnixctlError;

use super::{ControllerError, Diagnosis, Unmapped};
use crate::duration;

/// An operation on the switch's database, or a wait for the switch, failed.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The replica is not current.
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
    /// The connection is up, but the database does not answer.
    #[error(
        "Open vSwitch's database {ovsdb} does not answer: no reply to a read within {}; is \
         ovsdb-server stopped or busy?",
        duration::text(*waited)
    )]
    DatabaseSilent {
        /// The database's socket.
        ovsdb: PathBuf,
        /// How long podwire waited.
        waited: Duration,
    },
    /// The bridge does not exist.
    #[error("bridge {bridge} does not exist in Open vSwitch{}", .maker.hint(.bridge))]
    NoBridge {
        /// The bridge.
        bridge: String,
        /// Who should create it.
        maker: BridgeMaker,
    },
    /// ovn-controller does not connect a physical network here.
    #[error("{0}")]
    NoMapping(Box<Unmapped>),
    /// Another pod's port has the iface-id.
    #[error(
        "iface-id {iface_id} is the port of {holder}; the names and interfaces of two pods give \
         the same iface-id"
    )]
    IfaceIdForeign {
        /// The iface-id.
        iface_id: String,
        /// The pod that has it.
        holder: String,
    },
    /// The logical port that was asked for is another's.
    #[error("ovnPort {iface_id} is taken: it is the iface-id of {holder}'s port")]
    OvnPortTaken {
        /// The logical port.
        iface_id: String,
        /// The pod or port that has it.
        holder: String,
    },
    /// A transaction failed.
    #[error("{step} {port}: {source}")]
    Transact {
        /// The operation that failed.
        step: &'static str,
        /// The first port concerned.
        port: String,
        /// The database's error.
        source: TransactError,
    },
    /// ovs-vswitchd can't use the link.
    #[error("Open vSwitch refuses port {port}: {text}")]
    Refused {
        /// The port.
        port: String,
        /// The row's `error`.
        text: String,
    },
    /// The row was removed during the wait.
    #[error("somebody else removed the Interface row of port {port} while the ADD waited for it")]
    RowGone {
        /// The port.
        port: String,
    },
    /// Another process gave the row to another logical port.
    #[error(
        "somebody else changed external_ids:iface-id of port {port} from {ours} to {now} while the \
         ADD waited for it"
    )]
    IfaceIdChanged {
        /// The port.
        port: String,
        /// The iface-id that podwire wrote.
        ours: String,
        /// The present iface-id.
        now: String,
    },
    /// Another process gave the logical port to a second row.
    #[error(
        "another port took iface-id {iface_id} of port {port} while the ADD waited for it: {by}"
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
        /// How long podwire waited.
        waited: Duration,
        /// What is missing.
        diagnosis: Box<Diagnosis>,
    },
    /// ovn-controller does not work.
    #[error("{0}")]
    Controller(#[from] ControllerError),
    /// ovs-vswitchd is alive, but assigned no ofport in time.
    #[error("ovs-vswitchd gave the port no ofport within {}: {source}", duration::text(*waited))]
    NoOfport {
        /// How long podwire waited.
        waited: Duration,
        /// What was seen instead.
        source: WaitError,
    },
    /// ovs-vswitchd does not answer.
    #[error("ovs-vswitchd does not answer (control socket in {}): {source}; is openvswitch-switch \
             running?", rundir.display())]
    SwitchDead {
        /// The directory of its pidfile and control socket.
        rundir: PathBuf,
        /// Why it could not be reached.
        source: UnixctlError,
    },
}

/// Who creates a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BridgeMaker {
    /// The agent, in plain mode.
    Agent,
    /// ovn-controller.
    OvnController,
    /// The operator: network configurations name it.
    Operator,
}

impl BridgeMaker {
    fn hint(self, bridge: &str) -> String {
        match self {
            Self::Agent => String::new(),
            Self::OvnController => "; in OVN mode ovn-controller creates it: is ovn-controller \
                                    running on this node?"
                .to_owned(),
            Self::Operator => format!(
                ", and the network configuration names it; create it on this node: ovs-vsctl \
                 add-br {bridge}"
            ),
        }
    }
}

impl PortError {
    /// Whether a daemon accepted the connection and then stayed silent: it is stopped, hung or
    /// busy.
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
