//! Layer 3 networks: each node with pods of one has a part of it, a switch with subnets of its own.
//! A node gets its part with the first pod, and keeps it while both are there.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use podwire_cluster::networks::{self, strings};
use podwire_ovs::nb::Table;
use podwire_ovs::replica::Db;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::State;
use super::super::begin::addresses_of_port;
use super::super::wanted::{Problem, Wanted};
use crate::cluster::network::{Shape, Topology};
use crate::cluster::{Name, Node};
use crate::diff::Plan;
use crate::ipam::{SubnetError, nth};
use crate::key::{Key, Network, Of};
use crate::want::network as rows;

/// The key of a node's part.
fn part(network: &Network, node: &str) -> Key {
    Key::node(node.into()).on(network.clone())
}

/// The subnets of a network in a node's annotation.
fn written(node: &Node, network: &Network) -> Vec<IpNet> {
    let others = node.subnets.as_deref().map(|it| networks::read(it).1);
    let entries = others.map(|it| it.all()).unwrap_or_default();
    let entry = entries.get(network.name().as_str());
    let texts = entry.into_iter().flat_map(strings);
    texts.filter_map(|it| it.parse().ok()).collect()
}

impl State {
    /// What of a network the addresses of a node's pods are of.
    pub(in crate::run::state) fn part<'a>(&self, network: &'a Network, node: &'a Name) -> &'a Name {
        let shape = self.networks.live.get(network);
        shape.map_or(network.name(), |it| it.part(network, node))
    }

    /// The addresses of a layer 3 network's router on a node.
    pub(crate) fn part_routers(&self, network: &Network, node: &str) -> Vec<IpNet> {
        let space = self.spaces.others.get(network);
        let subnets = space.map_or(&[][..], |it| it.subnets.of(node));
        subnets.iter().map(|subnet| nth(*subnet, 1)).collect()
    }

    /// Has a node have its part of a network, if that has parts.
    ///
    /// # Errors
    /// None is left.
    pub(super) fn take_part(
        &mut self,
        (network, shape): (&Network, &Shape),
        node: &Name,
    ) -> Result<(), String> {
        let space = self.spaces.others.get_mut(network);
        let Some(space) = space.filter(|_| shape.topology == Topology::Layer3) else {
            return Ok(());
        };
        if let Some(known) = self.cluster.nodes.get(node) {
            // Of what another has, or the network has not, it gets something else.
            let _ = space.subnets.keep(node, &written(known, network));
        }
        let taken = space.subnets.complete(node);
        if space.addresses.set_node(node, space.subnets.of(node)) {
            self.dirty.insert(part(network, node));
            self.dirty.insert(Key::node(node.clone()));
        }
        taken.map_err(|error| match error {
            SubnetError::Exhausted(nets) => format!(
                "no part of {nets} of network {} is left for node {node}: give the network larger \
                 subnets, or remove nodes that no longer exist",
                network.name()
            ),
            error => error.to_string(),
        })
    }

    /// Learns the parts of a network from the rows, and then from nodes' annotations.
    pub(super) fn hold_parts(&mut self, network: &Network, db: &Db) {
        let shape = self.networks.live.get(network);
        let is_divided = shape.is_some_and(|it| it.topology == Topology::Layer3);
        let space = self.spaces.others.get_mut(network);
        let Some(space) = space.filter(|_| is_divided) else {
            return;
        };
        for row in db.rows(Table::LogicalRouterPort.name()) {
            let key = super::super::owner_of(&row);
            let is_its = |key: &Key| key.of == Of::Node && key.network == *network;
            if let Some(key) = key.filter(is_its) {
                for net in addresses_of_port(&row).addresses {
                    // Not what is left of a network of this name that had other subnets.
                    let _ = space.subnets.keep(&key.name, &[net.trunc()]);
                }
            }
        }
        let mut nodes: Vec<(&Name, &Node)> = self.cluster.nodes.iter().collect();
        nodes.sort_by_key(|(name, node)| (node.created, *name));
        for (name, node) in nodes {
            // What it can't keep, it gets anew with its next pod.
            let _ = space.subnets.keep(name, &written(node, network));
        }
        let names: Vec<String> = space.subnets.nodes().map(str::to_owned).collect();
        for name in names {
            space.addresses.set_node(&name, space.subnets.of(&name));
        }
    }

    /// A node's part of a network.
    pub(in crate::run::state) fn wanted_of_part(
        &mut self,
        node: &Name,
        network: &Network,
    ) -> Result<Wanted, Problem> {
        let shape = self.networks.live.get(network);
        let shape = shape.filter(|it| it.topology == Topology::Layer3).cloned();
        let (Some(shape), Some(space)) = (shape, self.spaces.others.get_mut(network)) else {
            return Ok(Wanted::default());
        };
        let Some(known) = self.cluster.nodes.get(node).cloned() else {
            // Its pods keep their addresses while they exist: the node may come back.
            let now = Instant::now().into_std();
            match space.addresses.unused_from(node, now) {
                Some(from) if from > now => {
                    self.retries.insert((from.into(), part(network, node)));
                }
                Some(_) => {
                    space.subnets.release(node);
                    space.addresses.set_node(node, &[]);
                    self.unblock();
                }
                None => {}
            }
            return Ok(Wanted::default());
        };
        if space.subnets.of(node).is_empty() {
            return Ok(Wanted::default());
        }
        // The network may have got another family.
        let taken = self.take_part((network, &shape), node);
        taken.map_err(|message| Problem::blocked("NoSubnet", message))?;
        let space = self.spaces.others.get(network);
        let subnets = space.map_or(&[][..], |it| it.subnets.of(node));
        Ok(rows::node((network, &shape), (node, known.chassis.as_deref()), subnets).into())
    }

    /// A node's entries in its annotation; `None` is one that goes.
    pub(in crate::run::state) fn parts_of(&self, node: &str) -> BTreeMap<Name, Option<Value>> {
        let gone = self
            .networks
            .former
            .iter()
            .map(|it| (it.name().clone(), None));
        let live = self.networks.live.iter();
        let divided = live.filter(|(_, it)| it.topology == Topology::Layer3);
        let own = divided.filter_map(|(network, _)| {
            let subnets = self.spaces.others.get(network)?.subnets.of(node);
            let entry = (!subnets.is_empty()).then(|| json!(subnets));
            Some((network.name().clone(), entry))
        });
        gone.chain(own).collect()
    }

    /// The switches of a network.
    pub(in crate::run::state) fn switches(
        &self,
        network: &Network,
        shape: &Shape,
        plan: &Plan<'_>,
    ) -> Vec<String> {
        let space = self.spaces.others.get(network);
        let nodes: Vec<&str> = match shape.topology {
            Topology::Layer3 => space
                .into_iter()
                .flat_map(|it| it.subnets.nodes())
                .collect(),
            Topology::Layer2 | Topology::Localnet => vec![""],
        };
        let all = nodes
            .into_iter()
            .map(|node| rows::switch(network, shape, node));
        all.filter(|it| plan.has(Table::LogicalSwitch, it))
            .collect()
    }

    /// The parts of a network that was something else, or nothing, before.
    pub(super) fn mark_parts_of(&mut self, network: &Network, before: Option<&Shape>) {
        let is_divided = |it: &Shape| it.topology == Topology::Layer3;
        let was_divided = before.is_some_and(is_divided);
        match self.networks.live.get(network).is_some_and(is_divided) {
            true => drop(self.networks.former.remove(network)),
            false if was_divided => drop(self.networks.former.insert(network.clone())),
            false => return,
        }
        let space = self.spaces.others.get(network);
        let nodes = space.into_iter().flat_map(|it| it.subnets.nodes());
        let rows = self.rows.values().filter_map(|key| Key::parse(key));
        let there = rows.filter(|key| key.of == Of::Node && key.network == *network);
        let keys = nodes.map(|node| part(network, node)).chain(there);
        let keys: BTreeSet<Key> = keys.collect();
        let nodes = keys.iter().map(|key| Key::node(key.name.clone()));
        self.dirty.extend(nodes.collect::<Vec<_>>());
        self.dirty.extend(keys);
    }

    /// The parts of a node that has changed.
    pub(in crate::run::state) fn mark_parts_on(&mut self, node: &str) {
        let spaces = self.spaces.others.iter();
        let there = spaces.filter(|(_, it)| !it.subnets.of(node).is_empty());
        let keys: Vec<Key> = there.map(|(network, _)| part(network, node)).collect();
        self.dirty.extend(keys);
    }

    /// What depends on the rows of a network's parts: the services that their switches have.
    pub(in crate::run::state) fn mark_switches(&mut self, network: &Network) {
        if !self.is_primary(network) {
            return;
        }
        let defined = self.cluster.definitions.iter();
        let defined = defined.filter_map(|(id, it)| {
            let (of, _) = it.network.as_ref().ok()?;
            (of == network).then(|| id.0.clone())
        });
        let held = self.networks.holders(network).map(|it| it.0.clone());
        let namespaces: BTreeSet<Name> = defined.chain(held).collect();
        for namespace in namespaces {
            self.mark_services_of(&namespace);
        }
    }
}
