//! What a pod should get, and where that is written.
//!
//! A source (the CNI request, Kubernetes, a directory) provides annotations. Each annotation format
//! has a file that parses it, purely, into [`InterfaceSpec`](crate::plan::InterfaceSpec)s;
//! [`interfaces`] decides which format counts. All formats read and refuse fields the same way: an
//! error names annotation, network, field and value, since its reader sees only the pod's event.

mod annotation;
pub mod bandwidth;
mod field;
mod network_key;
pub mod ovn;
pub mod ovn_interfaces;
pub mod ovn_network;
pub mod ovn_routes;
pub mod pod_networks;
mod select;
pub mod settings;
pub mod sources;

pub use annotation::{AnnotationError, Problem};
pub use network_key::{NetworkKey, NetworkKeyError};
pub use select::{Attaching, interfaces, request, wanted};
pub use settings::Settings;

/// Every annotation that podwire reads; sources keep no others.
const READ: [&str; 10] = [
    pod_networks::ANNOTATION,
    ovn::ANNOTATION,
    ovn_network::ANNOTATION,
    ovn_network::LATER_ANNOTATION,
    ovn_interfaces::ANNOTATION,
    ovn_interfaces::LATER_ANNOTATION,
    ovn_routes::ANNOTATION,
    bandwidth::INGRESS,
    bandwidth::EGRESS,
    settings::MTU,
];
