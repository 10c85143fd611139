//! The addresses that services name, compared with each other and with those of everything else.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use podwire_cluster::claims::refused;
use podwire_ovs::client::Client as Ovsdb;

use super::State;
use crate::key::Key;

impl State {
    /// Finds the addresses that services can't have, if they may be others now, and marks the
    /// services for which that changed.
    pub(crate) fn compare_claims(&mut self, ovsdb: &Ovsdb) {
        if !std::mem::take(&mut self.claims_changed) {
            return;
        }
        let unread = ovsdb.read(|db| self.unread_services(db));
        let cluster = &self.cluster;
        let nodes = cluster.nodes.iter();
        let nodes: HashMap<IpAddr, &str> = nodes
            .flat_map(|(name, node)| node.addresses.iter().map(move |it| (*it, name.as_str())))
            .collect();
        let refused = refused(
            cluster.services.iter().chain(&unread),
            &cluster.slices,
            |address| nodes.get(&address).copied(),
            |address| self.spaces.default.subnets.containing(address),
        );
        let refused: BTreeMap<_, _> = refused
            .into_iter()
            .map(|(name, it)| (name.clone(), it))
            .collect();
        let before = std::mem::replace(&mut self.refused, refused);
        let names: BTreeSet<_> = before.keys().chain(self.refused.keys()).collect();
        let changed = names
            .into_iter()
            .filter(|it| before.get(*it) != self.refused.get(*it));
        let keys = changed.cloned().map(Key::service);
        self.dirty.extend(keys);
    }
}
