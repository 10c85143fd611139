//! How many ports are in which state, and what the client of the database has counted.

use podwire_ovs::client::{State, StatsSnapshot};
use podwire_ovs::vswitch::Interface;

use super::Ports;
use super::wait::is_installed;
use crate::config::Wait;
use crate::plan::ids;

/// The states, in the order in which a port passes through them; a failed one may still come up.
const STATES: [&str; 4] = ["awaits-ofport", "awaits-ovn", "up", "failed"];

impl Ports {
    /// How many of our ports are in each state.
    pub fn states(&self) -> Vec<(&'static str, usize)> {
        let awaits_ovn = self.ovn.wait == Wait::OvnInstalled;
        let mut counts = STATES.map(|state| (state, 0));
        self.client.read(|db| {
            for interface in db.interfaces().filter(is_ours) {
                counts[place(&interface, awaits_ovn)].1 += 1;
            }
        });
        counts.to_vec()
    }

    /// What the client has counted since its start, and whether the replica is current.
    pub fn client_stats(&self) -> (StatsSnapshot, bool) {
        (self.client.stats(), self.client.state() == State::Synced)
    }
}

fn is_ours(interface: &Interface<'_>) -> bool {
    [ids::NETWORK, ids::SANDBOX, ids::IFNAME]
        .iter()
        .all(|key| interface.external_id(key).is_some())
}

fn place(interface: &Interface<'_>, awaits_ovn: bool) -> usize {
    let has_error = interface.error().is_some_and(|text| !text.is_empty());
    match interface.ofport() {
        _ if has_error => 3,
        Some(ofport) if ofport < 0 => 3,
        None | Some(0) => 0,
        Some(_) if awaits_ovn && !is_installed(interface) => 1,
        Some(_) => 2,
    }
}
