//! Why flows could not be changed.

use std::io;
use std::path::PathBuf;

use super::wire::{Refusal, WireError};

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
