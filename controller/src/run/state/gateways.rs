//! The gateway routers of nodes that announce one.

use ipnet::IpNet;
use podwire_cluster::gateway::Gateway;
use podwire_ovs::nb::Table;
use podwire_ovs::replica::Db;

use super::State;
use super::begin::texts;
use super::wanted::{Effects, Problem, Wanted};
use crate::cluster::Node;
use crate::diff::Plan;
use crate::key::{Key, Network, Of};
use crate::names::{JOIN_PORT, join_port};
use crate::want::network::NETWORK;
use crate::want::{self, WayOut};

impl State {
    /// What the nodes' gateway routers share.
    pub(super) fn wanted_of_join(&self) -> Wanted {
        if !self.rules.has_gateways {
            return Wanted::default();
        }
        // Of families without pods, the addresses serve nobody.
        want::gateway::join(&self.families()).into()
    }

    /// A network of each family that nodes have subnets of.
    pub(super) fn families(&self) -> Vec<IpNet> {
        let nodes = self.cluster.nodes.keys();
        let used = nodes.flat_map(|name| self.spaces.default.subnets.of(name));
        let mut all = self.pods_networks();
        all.extend(used);
        all
    }

    /// A node's gateway router, once the node has subnets and has joined OVN.
    pub(super) fn wanted_of_gateway(
        &mut self,
        name: &str,
        effects: &mut Effects,
    ) -> Result<Wanted, Problem> {
        let node = self.cluster.nodes.get(name).cloned();
        let announced = node.as_ref().and_then(|node| node.gateway.as_ref());
        if let Some(Err(error)) = announced {
            effects.warning = Some(("GatewayMistake", error.to_string()));
        }
        let wanted = node.as_ref().and_then(|node| {
            let gateway = self.announced(node)?;
            Some((gateway, node.chassis.as_deref()?))
        });
        let subnets = self.spaces.default.subnets.of(name).to_vec();
        let Some(wanted) = wanted.filter(|_| !subnets.is_empty()) else {
            self.joins.release(name);
            return Ok(Wanted::default());
        };
        let Some(place) = self.joins.take(name) else {
            let message = "no address is left in the network of gateway routers".to_owned();
            return Err(Problem::blocked("NoGateway", message));
        };
        let cluster = self.pods_networks();
        Ok(want::gateway::gateway(name, wanted, &subnets, &cluster, place).into())
    }

    /// The networks of all pods, as far as they are set.
    pub(super) fn pods_networks(&self) -> Vec<IpNet> {
        self.rules.networks.iter().map(|it| it.network()).collect()
    }

    /// The gateway that a node announces, if it is to have one.
    fn announced<'a>(&self, node: &'a Node) -> Option<&'a Gateway> {
        let announced = node.gateway.as_ref()?.as_ref().ok();
        announced.filter(|_| self.rules.has_gateways)
    }

    /// A node's gateway and its place, once its gateway router is in the database: until then its
    /// pods leave by its host.
    pub(super) fn way_of<'a>(
        &self,
        name: &str,
        (node, cluster): (&'a Node, &'a [IpNet]),
        plan: &Plan<'_>,
    ) -> Option<WayOut<'a>> {
        let gateway = self.announced(node)?;
        let place = self.joins.of(name)?;
        let is_there = plan.has(Table::LogicalRouterPort, &join_port(name));
        (node.chassis.is_some() && is_there).then_some(WayOut {
            gateway,
            place,
            cluster,
            has_marks: plan.db().nb_has_marks(),
        })
    }

    /// Marks what depends on a node's gateway router. Its rows show whether there is one.
    pub(super) fn mark_gateway(&mut self, key: &Key) {
        if key.of == Of::Gateway && key.network == Network::DEFAULT {
            self.dirty.insert(Key::node(key.name.clone()));
        }
    }

    /// Marks a node's gateway router, and what it shares with the others.
    pub(super) fn mark_gateway_of(&mut self, node: &str) {
        if self.rules.has_gateways {
            let own = Key::gateway(node.into());
            self.dirty.extend([own, Key::only(Of::Join)]);
        }
    }

    /// Marks all that should have one, if any has.
    pub(super) fn mark_gateways(&mut self) {
        if self.rules.has_gateways {
            let nodes = self.cluster.nodes.keys().cloned();
            self.dirty.extend(nodes.map(Key::gateway));
            self.dirty.insert(Key::only(Of::Join));
        }
    }

    /// Learns the places that gateway routers have.
    pub(super) fn hold_joins(&mut self, db: &Db) {
        for row in db.rows(Table::LogicalRouterPort.name()) {
            let Some(node) = row.str("name").and_then(|it| it.strip_prefix(JOIN_PORT)) else {
                continue;
            };
            let own = super::owner_of(&row);
            let is_own = own.is_some_and(|key| key == Key::gateway(node.into()));
            // Gateways of other networks have such ports, too: ours, and ovn-kubernetes'.
            let is_default = row.map("external_ids").str(NETWORK).is_none();
            if is_own || (self.rules.adopt && is_default) {
                for net in texts(&row, "networks").filter_map(|text| text.parse().ok()) {
                    self.joins.hold(node, net);
                }
            }
        }
    }
}
