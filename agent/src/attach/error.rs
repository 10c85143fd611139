//! Why a verb failed, and which CNI code the runtime is told. docs/errors.md is the same table for
//! people.

use std::time::Duration;

use nix::errno::Errno;
use podwire_cni::private_dir::DirError;
use podwire_cni::spec::{ErrorCode, SpecError};
use podwire_ovs::transact::TransactError;

use super::turns::Reason;
use crate::duration;
use crate::flows::FlowsError;
use crate::ipam::delegate::DelegateError;
use crate::ipam::pool::PoolError;
use crate::journal;
use crate::netns::{self, NetnsError};
use crate::plan::PlanError;
use crate::pods::AnnotationError;
use crate::pods::sources::{Missing, SourceError};
use crate::ports::PortError;

/// A verb's failure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request itself is not valid.
    #[error("{0}")]
    Request(SpecError),
    /// CNI_NETNS names no namespace that a pod could be in.
    #[error("CNI_NETNS: {0}")]
    Netns(#[from] NetnsError),
    /// While the ADD waited its sandbox was removed, and another namespace got the path.
    #[error(
        "CNI_NETNS: {path} became another network namespace while this ADD waited for its turn"
    )]
    NetnsReplaced {
        /// CNI_NETNS.
        path: String,
    },
    /// The kernel refused a step.
    #[error("{0}")]
    Kernel(#[from] netns::Error),
    /// The pod's annotation is not valid.
    #[error("{0}")]
    Annotation(#[from] AnnotationError),
    /// The pod's annotations were not to be had.
    #[error("{0}")]
    Source(#[from] SourceError),
    /// The pod is annotated, but not for this network.
    #[error("annotation {annotation} has no entry for network {network}")]
    NotAnnotated {
        /// Which annotation.
        annotation: &'static str,
        /// The network that this request is for.
        network: String,
    },
    /// The wishes can't be met; they came from the pod's annotation or from the configuration.
    #[error("{source}")]
    Plan {
        /// Why not.
        source: PlanError,
        /// Whether the pod's annotation said so, and not the network configuration.
        from_annotation: bool,
    },
    /// No address could be had, or not the one asked for.
    #[error("{0}")]
    Address(#[from] PoolError),
    /// No subnet is configured, and nothing else gives the pod an address.
    #[error(
        "nothing gives this pod an address: there is no pod-networks annotation, no ipam in the \
         network configuration, and the agent has no --subnet"
    )]
    NoAddressSource,
    /// A delegated IPAM plugin failed.
    #[error("{0}")]
    Ipam(#[from] DelegateError),
    /// The intent log could not be written.
    #[error("intent log: {0}")]
    Journal(#[from] journal::Error),
    /// The port could not be made or found.
    #[error("{0}")]
    Port(#[from] PortError),
    /// Somebody asked for what is another's, or for what is not for pods of this node.
    #[error("{field} {value} of {interface} {problem}")]
    NotForPod {
        /// The annotation's or the configuration's field.
        field: &'static str,
        /// What was asked for.
        value: String,
        /// For which interface.
        interface: String,
        /// What is wrong with it; a holder is named.
        problem: String,
        /// Whether somebody has it.
        is_taken: bool,
        /// Whether the pod's annotation said so, and not the network configuration.
        from_annotation: bool,
    },
    /// The port's flows are not in the switch.
    #[error("{0}")]
    Flows(#[from] FlowsError),
    /// The operation was told to end.
    #[error(transparent)]
    Cancelled(#[from] Reason),
    /// CHECK found a difference.
    #[error("{0}")]
    Differs(String),
    /// CHECK without what it is to compare with.
    #[error("CHECK needs prevResult in the network configuration, and there is none")]
    NoPrevResult,
    /// GC without a list would remove every attachment.
    #[error("GC needs cni.dev/valid-attachments in the network configuration, and there is none")]
    NoValidAttachments,
    /// Several steps of a DEL or GC failed; the others were done.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<Error>),
    /// STATUS: an ADD would not be served.
    #[error("{}", reasons.join("; "))]
    NotReady {
        /// Every reason.
        reasons: Vec<String>,
        /// Whether running pods may have lost their connectivity as well.
        degraded: bool,
    },
    /// A test asked for it.
    #[cfg(feature = "fault-points")]
    #[error("{0}")]
    Fault(#[from] crate::fault::Fault),
    /// More operations are under way than the agent admits.
    #[error("{limit} operations are under way, which is all that the agent admits at once")]
    Busy {
        /// How many.
        limit: usize,
    },
    /// An earlier operation on the same pod or sandbox did not end in time.
    #[error(
        "waited {} for another operation on the same pod or container to end, and it still runs",
        duration::text(*waited)
    )]
    Queued {
        /// How long was waited.
        waited: Duration,
    },
    /// The agent has not yet looked through what it found at start.
    #[error("the agent is starting: waited {} for {awaited}", duration::text(*waited))]
    Starting {
        /// What is missing.
        awaited: &'static str,
        /// How long it was awaited.
        waited: Duration,
    },
}

impl Error {
    /// The code that the runtime is told.
    pub fn code(&self) -> ErrorCode {
        if self.is_want_of_descriptors() {
            return ErrorCode::TRY_AGAIN;
        }
        match self {
            Self::Request(error) => error.code,
            #[cfg(feature = "fault-points")]
            Self::Fault(_) => ErrorCode::INTERNAL,
            Self::Netns(NetnsError::Io { .. }) => ErrorCode::IO,
            Self::Netns(_)
            | Self::NetnsReplaced { .. }
            | Self::Kernel(netns::Error::PodInterfaceExists { .. }) => {
                ErrorCode::INVALID_ENVIRONMENT
            }
            Self::Kernel(_) => ErrorCode::KERNEL_REFUSED,
            Self::Source(SourceError::Missing {
                missing: Missing::PodName,
                ..
            }) => ErrorCode::INVALID_ENVIRONMENT,
            Self::Source(SourceError::Annotation(_))
            | Self::Annotation(_)
            | Self::NotAnnotated { .. }
            | Self::Plan {
                from_annotation: true,
                ..
            } => ErrorCode::INVALID_ANNOTATION,
            Self::Source(_) => ErrorCode::TRY_AGAIN,
            Self::Plan { .. } | Self::NoPrevResult | Self::NoValidAttachments => {
                ErrorCode::INVALID_CONFIG
            }
            Self::Address(PoolError::Taken { .. }) => ErrorCode::ADDRESS_TAKEN,
            Self::Address(PoolError::Exhausted { .. }) => ErrorCode::TRY_AGAIN,
            Self::Address(_) | Self::NoAddressSource => ErrorCode::INVALID_CONFIG,
            Self::Ipam(error) => error.code(),
            Self::Journal(_) => ErrorCode::IO,
            Self::Port(error) => port_code(error),
            Self::NotForPod { is_taken: true, .. } => ErrorCode::ADDRESS_TAKEN,
            Self::NotForPod {
                from_annotation: true,
                ..
            } => ErrorCode::INVALID_ANNOTATION,
            Self::NotForPod { .. } => ErrorCode::INVALID_CONFIG,
            Self::Flows(FlowsError::Refused { .. }) => ErrorCode::PORT_REFUSED,
            Self::Flows(FlowsError::Late { .. }) => ErrorCode::TRY_AGAIN,
            Self::Cancelled(Reason::Superseded { .. }) => ErrorCode::SUPERSEDED,
            Self::Cancelled(_)
            | Self::Busy { .. }
            | Self::Queued { .. }
            | Self::Starting { .. } => ErrorCode::TRY_AGAIN,
            Self::Differs(_) => ErrorCode::CHECK_MISMATCH,
            Self::Several(errors) => errors.first().map_or(ErrorCode::INTERNAL, Self::code),
            Self::NotReady {
                degraded: false, ..
            } => ErrorCode::NOT_AVAILABLE,
            Self::NotReady { degraded: true, .. } => ErrorCode::NOT_AVAILABLE_DEGRADED,
        }
    }

    /// Whether it was only that no more files can be open at once, of the agent's or the machine's:
    /// that passes.
    fn is_want_of_descriptors(&self) -> bool {
        let errno = match self {
            Self::Netns(NetnsError::Io { errno, .. }) => *errno,
            Self::Kernel(error) => error
                .refusal()
                .map_or(Errno::UnknownErrno, |refusal| refusal.errno),
            Self::Journal(journal::Error::Dir(DirError::Io { errno, .. })) => *errno,
            _ => return false,
        };
        matches!(errno, Errno::EMFILE | Errno::ENFILE)
    }

    /// The error as the specification writes it.
    pub fn to_spec(&self) -> SpecError {
        match self {
            Self::Request(error) => error.clone(),
            other => SpecError::new(other.code(), other.to_string()),
        }
    }

    /// One error for several; none for none.
    pub fn gather(mut errors: Vec<Self>) -> Result<(), Self> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several(errors)),
        }
    }
}

fn port_code(error: &PortError) -> ErrorCode {
    match error {
        PortError::Refused { .. }
        | PortError::IfaceIdForeign { .. }
        | PortError::Transact {
            source: TransactError::Operation { .. } | TransactError::Commit { .. },
            ..
        } => ErrorCode::PORT_REFUSED,
        _ => ErrorCode::TRY_AGAIN,
    }
}
