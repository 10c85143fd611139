//! The addresses that services name, compared with each other and with those of everything else.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use podwire_apiserver::claims::{Claims, refused};

use super::State;
use crate::key::Key;

/// The service of the API server, whose endpoints are its addresses.
pub(super) const API_SERVER: (&str, &str) = ("default", "kubernetes");

impl State {
    /// Finds the addresses that services can't have, and marks the services for which that changed.
    pub(super) fn compare_claims(&mut self) {
        let cluster = &self.cluster;
        let claims = cluster.services.iter().map(|(name, service)| Claims {
            service: name,
            age: (service.created, &*service.uid),
            cluster_ips: &service.cluster_ips,
            external_ips: service.external_ips.iter().copied().collect(),
            ports: match service.external_ips.is_empty() {
                true => Vec::new(),
                false => {
                    let ports = service.ports.iter();
                    ports
                        .map(|it| (it.protocol.to_lowercase(), it.port))
                        .collect()
                }
            },
        });
        let nodes = cluster.nodes.iter();
        let nodes: HashMap<IpAddr, _> = nodes
            .flat_map(|(name, node)| node.addresses.iter().map(move |it| (*it, name)))
            .collect();
        let slices = cluster.slices.of(API_SERVER.0, API_SERVER.1);
        let servers: BTreeSet<IpAddr> = slices
            .flat_map(|slice| slice.endpoints.iter().filter_map(|it| it.address))
            .collect();
        let reserved = |address| {
            let of_node = nodes
                .get(&address)
                .map(|name| format!("an address of node {name}"));
            let of_server = || {
                servers
                    .contains(&address)
                    .then(|| "the API server's".to_owned())
            };
            let of_pods = || {
                let network = self.subnets.containing(address)?;
                Some(format!("a part of the pods' network {network}"))
            };
            of_node.or_else(of_server).or_else(of_pods)
        };
        let refused = refused(claims, reserved, |(namespace, name)| {
            format!("{namespace}/{name}")
        });
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
