//! The error with which every annotation format refuses a value: what, where, and why.

use ipnet::IpNet;
use podwire_daemon::output::part;

/// An invalid annotation, and the place of the error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "annotation {annotation}{}{}: {}{problem}",
    part(", network ", network.as_ref(), ""),
    part(", ", field.as_ref(), ""),
    part("", value.as_ref(), ": ")
)]
pub struct AnnotationError {
    /// The annotation's name.
    pub annotation: &'static str,
    /// The network's key, or the place in the list.
    pub network: Option<Box<str>>,
    /// The field, as in `routes[1].dest`.
    pub field: Option<Box<str>>,
    /// The value as written, as JSON; shortened.
    pub value: Option<Box<str>>,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with an annotation's value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The annotation is no JSON.
    #[error("not JSON: {0}")]
    NotJson(String),
    /// Longer than Kubernetes lets an object's annotations be.
    #[error("{0} bytes long; at most {1} are allowed")]
    TooLong(usize, usize),
    /// JSON of another type.
    #[error("not {0}")]
    Type(&'static str),
    /// A required member is missing.
    #[error("missing")]
    Missing,
    /// Not a MAC.
    #[error("not a MAC address of six bytes")]
    Mac,
    /// A MAC that no interface can have.
    #[error("not a MAC address for an interface: it is {0}")]
    MacKind(&'static str),
    /// Not a CIDR.
    #[error("not an address with a prefix length")]
    Cidr,
    /// Not an IP address.
    #[error("not an IP address")]
    Address,
    /// An address that no interface can have.
    #[error("not an address for an interface: it is {0}")]
    AddressKind(&'static str),
    /// The same address twice.
    #[error("is listed twice")]
    Repeated,
    /// The legacy singular member contradicts the plural one.
    #[error("conflicts with {plural}, which begins with {first:?}")]
    Conflict {
        /// The plural member.
        plural: &'static str,
        /// Its first element.
        first: String,
    },
    /// A default route among the routes.
    #[error("a default route: it belongs in {0}")]
    DefaultRoute(&'static str),
    /// The next hop's family is not that of the destination.
    #[error("not in the address family of its destination {0}")]
    NextHopFamily(IpNet),
    /// Not a link-local IPv6 address.
    #[error("not a link-local IPv6 address (fe80::/10)")]
    LinkLocal,
    /// An MTU out of range.
    #[error(
        "not an MTU between {least} and 65535{}",
        if *.least > 68 { ", as IPv6 needs" } else { "" }
    )]
    Mtu {
        /// The minimum.
        least: u32,
    },
    /// Not a role.
    #[error("not a role; there are primary, secondary and infrastructure-locked")]
    Role,
    /// Not an interface's name.
    #[error("not an interface's name: up to 15 characters, no '/', ':' or white space")]
    InterfaceName,
    /// Neither "true" nor "false".
    #[error("neither \"true\" nor \"false\"")]
    Flag,
    /// A second default gateway.
    #[error("a second default gateway of the pod; {0} has the first")]
    SecondDefault(Box<str>),
    /// A route names an interface that is not in the list.
    #[error("none of the pod's interfaces")]
    NoSuchInterface,
    /// No interface reaches a route's gateway.
    #[error("not within the subnet of any of the pod's interfaces, so the route needs a dev")]
    NoInterfaceFor,
    /// Not a bandwidth.
    #[error("not a bandwidth between 1k and 1P bit/s")]
    Bandwidth,
}
