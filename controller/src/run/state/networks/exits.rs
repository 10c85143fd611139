//! The ways out of primary networks: one on each node with pods of the network, as long as there
//! are any.

use std::collections::BTreeSet;

use ipnet::IpNet;
use podwire_cluster::service::Endpoint;
use podwire_ovs::nb::Table;
use podwire_ovs::replica::Db;
use tokio::time::Instant;

use super::super::State;
use super::super::begin::addresses_of_port;
use super::super::wanted::{Problem, Wanted};
use crate::cluster::{Name, ObjectName, of_namespace};
use crate::diff::Plan;
use crate::ipam::{AddressError, FormerAddresses, JOIN, Request};
use crate::key::{Attachment, Key, Network, Of};
use crate::members::Member;
use crate::want::exit::{self, Exposed};
use crate::want::network::router;
use crate::want::policy::{gateway_members, inside_member};

/// The key of a network's way out on a node.
fn way_out(network: &Network, node: &Name) -> Key {
    Key::gateway(node.clone()).on(network.clone())
}

impl State {
    /// A pod is on a network: its node has a way out of that, if it is a primary one.
    pub(super) fn enter(&mut self, pod: &ObjectName, network: &Network) {
        if !self.is_primary(network) {
            return;
        }
        let own = Attachment::from(pod.clone());
        let Some(node) = self.spaces.default.addresses.node_of(&own).cloned() else {
            return;
        };
        let pods = self.networks.exits.entry(network.clone()).or_default();
        let pods = pods.entry(node.clone()).or_default();
        if pods.insert(pod.clone()) {
            self.dirty.insert(way_out(network, &node));
        }
    }

    /// A pod has left a network.
    pub(super) fn leave(&mut self, pod: &ObjectName, network: &Network) {
        let Some(nodes) = self.networks.exits.get_mut(network) else {
            return;
        };
        let mut gone = BTreeSet::new();
        nodes.retain(|node, pods| {
            if pods.remove(pod) {
                gone.insert(way_out(network, node));
            }
            !pods.is_empty()
        });
        if nodes.is_empty() {
            self.networks.exits.remove(network);
        }
        self.dirty.extend(gone);
    }

    /// The ways out of a network.
    pub(super) fn mark_exits_of(&mut self, network: &Network) {
        let nodes = self.networks.exits.get(network).into_iter().flatten();
        let keys: Vec<Key> = nodes.map(|(node, _)| way_out(network, node)).collect();
        self.dirty.extend(keys);
    }

    /// Those on a node.
    pub(in crate::run::state) fn mark_exits_on(&mut self, node: &str) {
        let networks = self.networks.exits.iter();
        let there = networks.filter(|(_, nodes)| nodes.contains_key(node));
        let keys: Vec<Key> = there
            .map(|(network, _)| way_out(network, &node.into()))
            .collect();
        self.dirty.extend(keys);
    }

    /// Learns the addresses that ways out have.
    pub(in crate::run::state) fn hold_exits(&mut self, db: &Db, now: std::time::Instant) {
        for row in db.rows(Table::LogicalRouterPort.name()) {
            let key = super::super::owner_of(&row);
            let is_its = |key: &Key| key.of == Of::Gateway && key.network != Network::DEFAULT;
            let (Some(key), Some(name)) = (key.filter(is_its), row.str("name")) else {
                continue;
            };
            let recorded = addresses_of_port(&row);
            if name != exit::outer_port(&key.network, &key.name) {
                continue;
            }
            let own = Attachment::gateway(&key.network, key.name.clone());
            let former = FormerAddresses {
                recorded,
                is_certain: true,
            };
            let whose = (key.network.name(), &key.name);
            let request = || Ok(Request::default());
            let addresses = &mut self.spaces.default.addresses;
            // What it can't keep, it gets anew.
            let _ = addresses.claim(&own, whose, &[former], request, now);
        }
    }

    /// A network's way out on a node.
    pub(in crate::run::state) fn wanted_of_exit(
        &mut self,
        node: &Name,
        network: &Network,
        plan: &Plan<'_>,
    ) -> Result<Wanted, Problem> {
        let now = Instant::now().into_std();
        let own = Attachment::gateway(network, node.clone());
        let chassis = self.cluster.nodes.get(node);
        let chassis = chassis.and_then(|node| node.chassis.clone());
        let has_pods = self.networks.exits.get(network);
        let has_pods = has_pods.is_some_and(|nodes| nodes.contains_key(node));
        let shape = self.networks.live.get(network).cloned();
        let shape = shape.filter(|_| has_pods && self.is_primary(network));
        let is_there = plan.has(Table::LogicalRouter, &router(network))
            && plan.has(Table::LogicalSwitch, node);
        let (Some(chassis), Some(shape)) = (chassis, shape.filter(|_| is_there)) else {
            let before = self.spaces.default.addresses.release(&own, now);
            if before.is_some() {
                self.unblock();
                // It may be gone, and can now have other subnets, or none.
                self.dirty.insert(Key::node(node.clone()));
            }
            return Ok(Wanted::default());
        };
        let without = format!(
            "pods of network {} have no way to the outside there",
            network.name()
        );
        let whose = (network.name(), node);
        let request = || Ok(Request::default());
        let addresses = &mut self.spaces.default.addresses;
        let claimed = addresses.claim(&own, whose, &[], request, now).cloned();
        let claimed = claimed.map_err(|error| Problem {
            reason: "NoGateway",
            message: format!("{without}: {error}"),
            until: match error {
                AddressError::Resting { until, .. } => Some(until.into()),
                _ => None,
            },
        })?;
        let of = (network, &shape);
        let port = exit::gateway_port(network, node).into();
        let exposed = self.exposed(network, node);
        let mut rows = exit::gateway(of, (node, &chassis), &claimed);
        rows.extend(exit::inward(of, node, &claimed, &exposed));
        let reached = exposed.keys().map(|(_, at)| at.ip());
        Ok(Wanted {
            rows,
            members: gateway_members(network, port, &claimed.ips(), reached),
        })
    }

    /// The endpoints on a node, of services with addresses outside of the cluster.
    fn exposed(&self, network: &Network, node: &Name) -> Exposed {
        let mut exposed = Exposed::new();
        let pods = self.networks.exits.get(network);
        let Some(pods) = pods.and_then(|nodes| nodes.get(node)) else {
            return exposed;
        };
        let namespaces: BTreeSet<&Name> = pods.iter().map(|(namespace, _)| namespace).collect();
        for namespace in namespaces {
            if self.primary_network(namespace) != Some(network) {
                continue;
            }
            let own = pods.iter().filter(|(of, _)| of == namespace);
            let own = self.addresses_on(network, own);
            let services = of_namespace(&self.cluster.services, namespace);
            for ((_, name), service) in services.filter(|(_, it)| it.is_exposed()) {
                for port in &service.ports {
                    for v4 in [true, false] {
                        let slices = self.cluster.slices.of(namespace, name);
                        let is_its = |it: &Endpoint| {
                            it.address.is_ipv4() == v4 && own.contains_key(&it.address)
                        };
                        let ends = service.endpoints(port, slices, is_its).into_iter();
                        exposed.extend(ends.map(|at| ((port.protocol, at), own[&at.ip()])));
                    }
                }
            }
        }
        exposed
    }

    /// Which endpoints of a namespace's services are exposed may have changed.
    pub(in crate::run::state) fn mark_exposed(&mut self, namespace: &Name) {
        let first = (namespace.clone(), Name::default());
        let has = |pods: &BTreeSet<ObjectName>| {
            let mut own = pods.range(&first..);
            own.next().is_some_and(|(of, _)| of == namespace)
        };
        let mut keys = BTreeSet::new();
        for (network, nodes) in &self.networks.exits {
            let there = nodes.iter().filter(|(_, pods)| has(pods));
            keys.extend(there.map(|(node, _)| way_out(network, node)));
        }
        self.dirty.extend(keys);
    }

    /// The networks of the cluster itself, which no way out leads to.
    pub(in crate::run::state) fn inside(&self) -> BTreeSet<Member> {
        let join = JOIN.iter().filter_map(|it| it.parse::<IpNet>().ok());
        let own = self.families().into_iter().chain(join);
        IpNet::aggregate(&own.collect())
            .into_iter()
            .map(inside_member)
            .collect()
    }
}
