//! Why flows could not be changed.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::wire::WireError;

/// An OFPT_ERROR (§7.4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// OFPET_*.
    pub kind: u16,
    /// What of it.
    pub code: u16,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            0 => "OFPET_HELLO_FAILED",
            1 => "OFPET_BAD_REQUEST",
            2 => "OFPET_BAD_ACTION",
            3 => "OFPET_BAD_INSTRUCTION",
            4 => "OFPET_BAD_MATCH",
            5 => "OFPET_FLOW_MOD_FAILED",
            8 => "OFPET_TABLE_MOD_FAILED",
            13 => "OFPET_TABLE_FEATURES_FAILED",
            17 => "OFPET_BUNDLE_FAILED",
            0xffff => "OFPET_EXPERIMENTER",
            other => return write!(f, "error type {other} code {}", self.code),
        };
        write!(f, "{kind} code {}", self.code)
    }
}

/// Why flows could not be changed. After any of these but [`OpenFlowError::Refused`] the connection
/// is of no use.
#[derive(Debug, thiserror::Error)]
pub enum OpenFlowError {
    /// Nobody listens: as a rule ovs-vswitchd is not running, or the bridge is not there yet.
    #[error("connect to the OpenFlow socket {}: {source}", socket.display())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The connection broke.
    #[error("OpenFlow socket {}: {source}", socket.display())]
    Io {
        /// The socket.
        socket: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// What came is not OpenFlow 1.4.
    #[error("OpenFlow socket {}: {source}", socket.display())]
    Wire {
        /// The socket.
        socket: PathBuf,
        /// What is wrong with it.
        source: WireError,
    },
    /// The switch refused; nothing of the bundle is in effect.
    #[error("ovs-vswitchd refused the flows over {}: {refusal}", socket.display())]
    Refused {
        /// The socket.
        socket: PathBuf,
        /// Why.
        refusal: Refusal,
    },
}
