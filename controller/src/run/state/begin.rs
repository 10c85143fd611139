//! What exists when a term begins. Rows and running pods go before annotations, annotations before
//! settings, and older objects before younger ones: nothing that exists gets another address.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_ovs::client::Client as Ovsdb;
use podwire_ovs::nb::Table;
use podwire_ovs::replica::{Db, Row as Found};
use podwire_ovs::value::{Atom, Value};
use tokio::time::Instant;

use super::{State, key_of, owner_of};
use crate::cluster::{Cluster, Name, Node, ObjectName, Pod};
use crate::config::Rules;
use crate::ipam::{
    self, ClusterSubnet, FormerAddresses, RecordedAddresses, Request, RequestError, Space, Subnets,
};
use crate::key::{Key, Network, Of};
use crate::names::{ROUTER_PORT, pod_port, router_port};
use crate::want::network::{ATTACHMENT, NETWORK};

/// A setting that does not fit what exists.
#[derive(Debug, thiserror::Error)]
#[error(
    "--cluster-subnets {setting} does not contain {subnet}, the subnet of node {node} according to \
     row {row} of the northbound database{others}; its pods would lose their addresses, so nothing \
     was changed. Add the network to --cluster-subnets; if the nodes no longer exist, remove their \
     rows by running the controller once with the former setting"
)]
pub struct Contradiction {
    setting: String,
    subnet: IpNet,
    node: Name,
    row: String,
    /// About further ones.
    others: String,
}

/// Checks the settings against the rows.
///
/// # Errors
/// [`Contradiction`].
pub(crate) fn check(rules: &Rules, db: &Db) -> Result<(), Contradiction> {
    if rules.use_pod_cidrs {
        return Ok(());
    }
    let subnets = Subnets::new(rules.networks.clone());
    let rows = subnets_in_rows(db, rules.adopt);
    let mut outside = rows
        .iter()
        .filter_map(|(node, own)| Some((node, subnets.outside(own)?)));
    let Some((node, subnet)) = outside.next() else {
        return Ok(());
    };
    let others = match outside.count() {
        0 => String::new(),
        count => format!(", nor those of {count} other nodes"),
    };
    Err(Contradiction {
        setting: ClusterSubnet::list(&rules.networks),
        subnet,
        node: node.clone(),
        row: router_port(node),
        others,
    })
}

/// The options of a pod's logical port with the pod's uid, and its node.
pub(super) const UID: &str = "iface-id-ver";
pub(super) const NODE: &str = "requested-chassis";

impl State {
    /// Learns the holders of subnets and addresses from objects and rows, and marks everything.
    /// `succeeds` tells whether there was a leader before.
    ///
    /// # Errors
    /// [`Contradiction`].
    pub(crate) fn begin(&mut self, ovsdb: &Ovsdb, succeeds: bool) -> Result<(), Contradiction> {
        let now = Instant::now().into_std();
        ovsdb.read(|db| {
            check(&self.rules, db)?;
            self.learn_tiers(db);
            self.hold_subnets(db);
            self.hold_exits(db, now);
            self.hold_addresses(db, now);
            self.hold_networks(db, now);
            self.hold_joins(db);
            for table in Table::ALL {
                let rows = db.rows(table.name());
                let rows = rows.filter_map(|row| Some((row.uuid(), key_of(&row)?)));
                self.rows.extend(rows);
            }
            for table in [Table::LogicalSwitch, Table::LoadBalancerGroup] {
                for row in db.rows(table.name()) {
                    let own = row.references("load_balancer").collect();
                    self.balancers.insert(row.uuid(), own);
                }
            }
            Ok(())
        })?;
        if succeeds {
            for space in self.spaces.all_mut() {
                space.addresses.succeed(now);
            }
        }
        self.refresh_policies();
        self.mark_all();
        Ok(())
    }

    /// A node that is gone keeps its subnets while its pods exist: it may come back.
    fn hold_subnets(&mut self, db: &Db) {
        let rows = subnets_in_rows(db, self.rules.adopt);
        let pods = by_age(&self.cluster);
        let mut names: Vec<(i64, &Name)> = self
            .cluster
            .nodes
            .iter()
            .map(|(name, node)| (node.created, name))
            .collect();
        let unread = self.unreadable.iter().filter(|key| key.of == Of::Node);
        names.extend(unread.map(|key| (i64::MAX, &key.name)));
        let is_gone = |name: &&Name| !self.cluster.nodes.contains_key(*name);
        names.extend(
            pods.iter()
                .map(|(_, pod)| (i64::MAX, &pod.node))
                .filter(|it| is_gone(&it.1)),
        );
        names.sort();
        names.dedup();
        let Space { subnets, addresses } = &mut self.spaces.default;
        for (_, name) in &names {
            let own = rows.get(*name).into_iter().flatten().copied();
            subnets.hold(name, own);
        }
        let around = |subnets: &Subnets, recorded: &RecordedAddresses| -> Vec<IpNet> {
            recorded
                .addresses
                .iter()
                .filter_map(|it| subnets.around(*it))
                .collect()
        };
        for (_, pod) in &pods {
            if let Some(recorded) = reported(pod) {
                let own = around(subnets, &recorded);
                subnets.hold(&pod.node, own);
            }
        }
        for (_, name) in &names {
            if let Some(node) = self.cluster.nodes.get(*name) {
                // A conflict is found again, and reported, when the node is processed.
                match self.rules.use_pod_cidrs {
                    false => drop(subnets.keep(name, &subnets_before(node))),
                    true => {
                        let own = subnets.pod_cidrs(name, &node.pod_cidrs);
                        subnets.hold(name, own.unwrap_or_default());
                    }
                }
            }
        }
        for (_, pod) in &pods {
            if let Some(recorded) = &pod.networks {
                let own = around(subnets, recorded);
                subnets.hold(&pod.node, own);
            }
        }
        for (_, name) in names {
            addresses.set_node(name, subnets.of(name));
        }
    }

    fn hold_addresses(&mut self, db: &Db, now: std::time::Instant) {
        let addresses = &mut self.spaces.default.addresses;
        for key in self.unreadable.iter().filter(|key| key.of == Of::Pod) {
            let id = key.id();
            for row in default_ports(&id, db, self.rules.adopt) {
                let option = |name| row.map("options").str(name).unwrap_or_default().into();
                let (uid, node) = (option(UID), option(NODE));
                let former = FormerAddresses {
                    recorded: addresses_in(&row),
                    is_certain: true,
                };
                let request = || Ok(Request::default());
                let whose = (&uid, &node);
                let _ = addresses.claim(&id.clone().into(), whose, &[former], request, now);
            }
        }
        // A pod that can't keep its addresses is reported when it is processed.
        let mut uncertain = Vec::new();
        for (id, pod) in by_age(&self.cluster) {
            let former = addresses_before(id, pod, db, self.rules.adopt);
            let whose = (&pod.uid, &pod.node);
            match former.first() {
                Some(FormerAddresses {
                    is_certain: true, ..
                }) => {
                    let request = || request_of(pod);
                    let _ = addresses.claim(&id.clone().into(), whose, &former, request, now);
                }
                Some(_) => uncertain.push((id, pod, former)),
                None => {}
            }
        }
        for (name, node) in &self.cluster.nodes {
            // Reported when the node is processed.
            let _ = addresses.set_management(name, node.mac);
        }
        for row in db.rows(Table::LogicalSwitchPort.name()) {
            let key = owner_of(&row);
            let Some(id) = key.filter(|key| key.of == Of::Pod).map(|key| key.id()) else {
                continue;
            };
            if row.map("external_ids").str(ATTACHMENT).is_some() {
                continue;
            }
            let is_its = |pod: &Pod| row.map("options").str(UID) == Some(&pod.uid);
            if !self.cluster.pods.get(&id).is_some_and(is_its) {
                let node = row.map("options").str(NODE).unwrap_or_default();
                addresses.rest(&id.into(), node, &addresses_in(&row), now);
            }
        }
        for (id, pod, former) in uncertain {
            if addresses.is_free(&pod.node, &former) {
                let (whose, request) = ((&pod.uid, &pod.node), || request_of(pod));
                let _ = addresses.claim(&id.clone().into(), whose, &former, request, now);
            }
        }
    }
}

pub(super) fn by_age(cluster: &Cluster) -> Vec<(&ObjectName, &Pod)> {
    let mut pods: Vec<_> = cluster.pods.iter().collect();
    pods.sort_by_key(|(id, pod)| (pod.created, *id));
    pods
}

/// The subnets of nodes as the rows have them: in each node's router port and its routes.
fn subnets_in_rows(db: &Db, adopt: bool) -> BTreeMap<Name, Vec<IpNet>> {
    let mut found: BTreeMap<Name, Vec<IpNet>> = BTreeMap::new();
    let mut add = |node: Name, texts: &mut dyn Iterator<Item = &str>| {
        let nets = texts.filter_map(|text| text.parse().ok());
        found
            .entry(node)
            .or_default()
            .extend(nets.map(|net: IpNet| net.trunc()));
    };
    let owner = |row: &Found<'_>| {
        let key = owner_of(row)?;
        let is_default = key.network == Network::DEFAULT;
        (key.of == Of::Node && is_default).then_some(key.name)
    };
    for row in db.rows(Table::LogicalRouterPort.name()) {
        // Ports of other networks' routers have such names, too: ours, and ovn-kubernetes'.
        let is_default = row.map("external_ids").str(NETWORK).is_none();
        let may_adopt = adopt && is_default && key_of(&row).is_none();
        let named = || Some(row.str("name")?.strip_prefix(ROUTER_PORT)?.into());
        if let Some(node) = owner(&row).or_else(|| named().filter(|_| may_adopt)) {
            add(node, &mut texts(&row, "networks"));
        }
    }
    for row in db.rows(Table::StaticRoute.name()) {
        if let Some(node) = owner(&row) {
            add(node, &mut texts(&row, "ip_prefix"));
        }
    }
    found
}

/// The subnets in a node's annotation.
pub(super) fn subnets_before(node: &Node) -> Vec<IpNet> {
    let annotation = node.subnets.as_deref();
    annotation.map(ipam::read_node_subnets).unwrap_or_default()
}

/// A pod's former addresses, the most certain first: those of its logical port, which every
/// address has before it is announced; those that its kubelet reports; those of its annotation.
pub(super) fn addresses_before(
    id: &ObjectName,
    pod: &Pod,
    db: &Db,
    adopt: bool,
) -> Vec<FormerAddresses> {
    let is_its = |row: &Found<'_>| row.map("options").str(UID) == Some(&pod.uid);
    let rows = default_ports(id, db, adopt).filter(is_its);
    let rows = rows.map(|row| addresses_in(&row));
    let certain = rows.chain(reported(pod)).map(|recorded| (recorded, true));
    let all = certain.chain(pod.networks.clone().map(|recorded| (recorded, false)));
    let all = all.filter(|(recorded, _)| !recorded.addresses.is_empty());
    all.map(|(recorded, is_certain)| FormerAddresses {
        recorded,
        is_certain,
    })
    .collect()
}

/// Whether a pod, and not another one of its name, has a logical port on the default network.
pub(super) fn has_default_port(id: &ObjectName, pod: &Pod, db: &Db, adopt: bool) -> bool {
    let mut rows = default_ports(id, db, adopt);
    rows.any(|row| row.map("options").str(UID) == Some(&pod.uid))
}

/// A pod's logical ports on the default network.
fn default_ports<'a>(id: &ObjectName, db: &'a Db, adopt: bool) -> impl Iterator<Item = Found<'a>> {
    let is_default = |row: &Found<'_>| row.map("external_ids").str(ATTACHMENT).is_none();
    ports(id, db, adopt).into_iter().filter(is_default)
}

/// A pod's logical ports: its own and, to be adopted, the one with its name.
pub(super) fn ports<'a>(id: &ObjectName, db: &'a Db, adopt: bool) -> Vec<Found<'a>> {
    let key = Key::pod(id.clone()).to_string();
    let own = db.nb_of_object(Table::LogicalSwitchPort, key);
    let port = pod_port(id);
    let named = db.nb_named(Table::LogicalSwitchPort, &port);
    own.chain(named.filter(|_| adopt)).collect()
}

/// What a pod's port has. Of one on a physical network, OVN knows no more than the MAC address, and
/// port security the rest (decision 0234).
pub(super) fn addresses_in(port: &Found<'_>) -> RecordedAddresses {
    let mut recorded = RecordedAddresses::default();
    for column in ["addresses", "port_security"] {
        for word in texts(port, column).flat_map(str::split_whitespace) {
            match word.parse::<IpAddr>() {
                Ok(address) if address.is_unspecified() => {}
                Ok(address) => recorded.addresses.push(address.into()),
                Err(_) => recorded.mac = recorded.mac.or_else(|| word.parse().ok()),
            }
        }
        if !recorded.addresses.is_empty() {
            break;
        }
    }
    recorded
}

/// What a router's port has.
pub(super) fn addresses_of_port(port: &Found<'_>) -> RecordedAddresses {
    let networks = texts(port, "networks").filter_map(|it| it.parse().ok());
    RecordedAddresses {
        addresses: networks.collect(),
        mac: port.str("mac").and_then(|it| it.parse().ok()),
        ..RecordedAddresses::default()
    }
}

pub(super) fn texts<'a>(row: &Found<'a>, column: &str) -> impl Iterator<Item = &'a str> {
    let atoms = row.column(column).into_iter().flat_map(Value::atoms);
    atoms.filter_map(Atom::as_str)
}

/// What its kubelet reports. It has no prefix lengths and no MAC address; the annotation that it
/// agrees with has.
fn reported(pod: &Pod) -> Option<RecordedAddresses> {
    let annotation = pod.networks.as_ref().filter(|recorded| {
        let has = |address: &IpAddr| recorded.addresses.iter().any(|it| it.addr() == *address);
        pod.reported.iter().all(has)
    });
    let addresses = pod.reported.iter().copied().map(IpNet::from).collect();
    let alone = || RecordedAddresses {
        addresses,
        ..RecordedAddresses::default()
    };
    let is_reported = !pod.reported.is_empty();
    is_reported.then(|| annotation.cloned().unwrap_or_else(alone))
}

/// What a pod's annotations request.
pub(super) fn request_of(pod: &Pod) -> Result<Request, RequestError> {
    Request::parse(
        pod.requested_addresses.as_deref(),
        pod.requested_mac.as_deref(),
    )
}
