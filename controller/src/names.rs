//! The names of rows, as in ovn-kubernetes: by these its tools and a takeover find them.

use crate::cluster::ObjectName;
use crate::key::Attachment;

/// What the name of a node's router port begins with; the rest is the node's.
pub(crate) const ROUTER_PORT: &str = "rtos-";

/// A node's port on the router.
pub(crate) fn router_port(node: &str) -> String {
    format!("{ROUTER_PORT}{node}")
}

/// What the name of a gateway router's port on the switch join begins with; the rest is the node's.
pub(crate) const JOIN_PORT: &str = "rtoj-GR_";

/// A node's gateway router.
pub(crate) fn gateway(node: &str) -> String {
    format!("GR_{node}")
}

/// Its port on the switch join.
pub(crate) fn join_port(node: &str) -> String {
    format!("{JOIN_PORT}{node}")
}

/// The switch between a gateway router and the node's bridge.
pub(crate) fn external(node: &str) -> String {
    format!("ext_{node}")
}

/// The port on a node's switch that leads to the router.
pub(crate) fn switch_port(node: &str) -> String {
    format!("stor-{node}")
}

/// The port of a node's management interface.
pub(crate) fn management_port(node: &str) -> String {
    format!("k8s-{node}")
}

/// The port of a node's door.
pub(crate) fn door_port(node: &str) -> String {
    format!("podwire-door-{node}")
}

/// A pod's port, which is also its iface-id.
pub(crate) fn pod_port((namespace, name): &ObjectName) -> String {
    format!("{namespace}_{name}")
}

/// What the names of a network's rows begin with.
pub(crate) fn prefix(network: &str) -> String {
    format!("{}_", network.replace(['-', '/'], "."))
}

/// The port of a pod's attachment, which is also its iface-id.
pub(crate) fn attached_port(attachment: &Attachment) -> String {
    format!("{}{}", prefix(&attachment.entry), pod_port(&attachment.pod))
}
