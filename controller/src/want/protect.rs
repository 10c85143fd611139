//! Control plane protection: what packets make of ovn-controller's time on each node.

use podwire_ovs::nb::Table;
use podwire_ovs::value::Value;

use super::{Column, Row};
use crate::cluster::Name;

/// The row with the meters of the nodes' switches and of the router.
pub const COPP: &str = "podwire";

/// Why a packet comes to ovn-controller (ovn-nb(5), Copp), with the packets a second that a node
/// lets through: those of which one pod can send any number.
const REASONS: [&str; 13] = [
    "arp",
    "arp-resolve",
    "dhcpv4-opts",
    "dhcpv6-opts",
    "icmp4-error",
    "icmp6-error",
    "igmp",
    "nd-na",
    "nd-ns",
    "nd-ns-resolve",
    "nd-ra-opts",
    "reject",
    "tcp-reset",
];
/// As with ovn-kubernetes.
const RATE: i64 = 25;

/// The meters: their names, and packets a second.
pub fn meters() -> impl Iterator<Item = (String, i64)> {
    REASONS.into_iter().map(|reason| (meter(reason), RATE))
}

fn meter(reason: &str) -> String {
    format!("copp-{reason}")
}

/// Which meter is for which reason. Without a meter of that name, a reason has no limit.
pub(super) fn row() -> Row {
    let meters = REASONS.map(|reason| (reason, meter(reason)));
    Row::new(Table::Copp, COPP).set("meters", Value::map(meters))
}

impl Row {
    /// A switch or router with these limits.
    pub(super) fn protected(mut self) -> Self {
        let limits = Column::Reference(Table::Copp, Name::new_static(COPP));
        self.columns.push(("copp", limits));
        self
    }
}
