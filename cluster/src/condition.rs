//! The condition of a Node that says whether pods have a network there. While it is `True`,
//! Kubernetes taints the node, so that the scheduler sends no new pod to it.

/// Its type.
pub const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";
/// The node role's reason where every item is as planned.
pub const IN_SYNC: &str = "PodwireNodeInSync";
/// The node role's reason where one is not; the message says which.
pub const NOT_IN_SYNC: &str = "PodwireNodeNotInSync";

/// Whether the node role wrote a condition with this reason: then it is nobody else's.
pub fn is_of_node_role(reason: &str) -> bool {
    [IN_SYNC, NOT_IN_SYNC].contains(&reason)
}
