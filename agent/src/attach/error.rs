//! Why a verb failed, and the CNI code for it. docs/errors.md has the same table for operators.

use std::fmt;
use std::time::Duration;

use nix::errno::Errno;
use podwire_cni::private_dir::DirError;
use podwire_cni::spec::{ErrorCode, SpecError};
use podwire_netns::{self as netns, NetnsError};
use podwire_ovs::transact::TransactError;

use super::turns::Reason;
use crate::duration;
use crate::flows::FlowsError;
use crate::ipam::LinkError;
use crate::ipam::delegate::DelegateError;
use crate::ipam::dhcp::DhcpError;
use crate::ipam::pool::PoolError;
use crate::ipam::router::RouterError;
use crate::journal;
use crate::plan::PlanError;
use crate::pods::AnnotationError;
use crate::pods::sources::{Missing, SourceError};
use crate::ports::PortError;

/// A verb's failure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is invalid.
    #[error("{0}")]
    Request(SpecError),
    /// CNI_NETNS is no namespace that a pod could be in.
    #[error("CNI_NETNS: {0}")]
    Netns(#[from] NetnsError),
    /// While the ADD waited, its sandbox was removed and another namespace got the path.
    #[error(
        "CNI_NETNS: {path} became another network namespace while this ADD waited for its turn"
    )]
    NetnsReplaced {
        /// CNI_NETNS.
        path: String,
    },
    /// The kernel refused an operation.
    #[error("{0}")]
    Kernel(#[from] netns::Error),
    /// The pod's annotation is invalid.
    #[error("{0}")]
    Annotation(#[from] AnnotationError),
    /// The pod's annotations were not available.
    #[error("{0}")]
    Source(#[from] SourceError),
    /// The pod is annotated, but not for this network.
    #[error("annotation {annotation} has no entry for network {network}")]
    NotAnnotated {
        /// The annotation.
        annotation: &'static str,
        /// The network that this request is for.
        network: String,
    },
    /// The request can't be met; it comes from the pod's annotation or from the configuration.
    #[error("{source}")]
    Plan {
        /// The reason.
        source: PlanError,
        /// Whether it comes from the pod's annotation and not from the network configuration.
        from_annotation: bool,
    },
    /// No address is available, or not the requested one.
    #[error("{0}")]
    Address(#[from] PoolError),
    /// No subnet is configured, and nothing else gives the pod an address.
    #[error(
        "this pod has no source of addresses: it has no pod-networks annotation, the network \
         configuration no ipam, and the agent no --subnet"
    )]
    NoAddressSource,
    /// A delegated IPAM plugin failed.
    #[error("{0}")]
    Ipam(#[from] DelegateError),
    /// Other hosts could not be asked whether they have an address.
    #[error("address probes on {0}")]
    Probe(#[from] LinkError),
    /// No server gave the pod an address.
    #[error("network {network}: {source}")]
    Dhcp {
        /// The network, and where it is.
        network: String,
        /// The reason.
        source: DhcpError,
    },
    /// No router gave the pod an address.
    #[error("network {network}: {source}")]
    Router {
        /// The network, and where it is.
        network: String,
        /// The reason.
        source: RouterError,
    },
    /// The intent log could not be written.
    #[error("intent log: {0}")]
    Journal(#[from] journal::Error),
    /// The port could not be created or found.
    #[error("{0}")]
    Port(#[from] PortError),
    /// The requested value belongs to somebody else, or is not for pods of this node.
    #[error("{field} {value} of {interface} {problem}")]
    NotForPod {
        /// The annotation's or the configuration's field.
        field: &'static str,
        /// The requested value.
        value: String,
        /// The interface.
        interface: String,
        /// What is wrong with it, including its holder.
        problem: String,
        /// Whether somebody else has it.
        is_taken: bool,
        /// Whether it comes from the pod's annotation and not from the network configuration.
        from_annotation: bool,
    },
    /// The port's flows are not in the switch.
    #[error("{0}")]
    Flows(#[from] FlowsError),
    /// The operation was cancelled.
    #[error(transparent)]
    Cancelled(#[from] Reason),
    /// CHECK found a difference.
    #[error("{0}")]
    Differs(String),
    /// CHECK without prevResult.
    #[error("CHECK needs prevResult in the network configuration, which has none")]
    NoPrevResult,
    /// Without a list, GC would remove every attachment.
    #[error("GC needs cni.dev/valid-attachments in the network configuration, which has none")]
    NoValidAttachments,
    /// Several steps of a DEL or GC failed; the others were done.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<Error>),
    /// STATUS: an ADD would not be served.
    #[error("{}", reasons.join("; "))]
    NotReady {
        /// All reasons.
        reasons: Vec<String>,
        /// Whether running pods may have lost connectivity too.
        degraded: bool,
    },
    /// A test asked for it.
    #[cfg(feature = "fault-points")]
    #[error("{0}")]
    Fault(#[from] crate::fault::Fault),
    /// The agent admits no more operations at present.
    #[error("{limit} operations are in progress, which is the limit (--max-operations)")]
    Busy {
        /// The limit.
        limit: usize,
    },
    /// An earlier operation on the same pod or sandbox did not end in time.
    #[error(
        "waited {} for another operation on the same pod or container to end, and it still runs",
        duration::text(*waited)
    )]
    Queued {
        /// How long it waited.
        waited: Duration,
    },
    /// The agent has not finished its cleanup at start.
    #[error("the agent is starting: waited {} for {awaited}", duration::text(*waited))]
    Starting {
        /// What is missing.
        awaited: &'static str,
        /// How long it waited.
        waited: Duration,
    },
}

impl Error {
    /// A network configuration that asks for what can't be.
    pub(super) fn of_configuration(problem: impl fmt::Display) -> Self {
        let text = format!("network configuration: {problem}");
        Self::Request(SpecError::new(ErrorCode::INVALID_CONFIG, text))
    }

    /// The code for the runtime.
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
            Self::Probe(_) | Self::Dhcp { .. } | Self::Router { .. } => ErrorCode::TRY_AGAIN,
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

    /// Whether the agent or the machine can't open more files at present, which passes.
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

    /// The error in the specification's form.
    pub fn to_spec(&self) -> SpecError {
        match self {
            Self::Request(error) => error.clone(),
            other => SpecError::new(other.code(), other.to_string()),
        }
    }

    /// One error for several; none if there is none.
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
        | PortError::OvnPortTaken { .. }
        | PortError::Transact {
            source: TransactError::Operation { .. } | TransactError::Commit { .. },
            ..
        } => ErrorCode::PORT_REFUSED,
        _ => ErrorCode::TRY_AGAIN,
    }
}
