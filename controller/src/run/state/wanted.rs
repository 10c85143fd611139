//! The rows that an object should have now, including the assignment of its addresses.

use ipnet::IpNet;
use podwire_ovs::nb::Table;
use podwire_ovs::replica::Db;
use tokio::time::Instant;

use super::State;
use crate::cluster::{Key, Name, Node, ObjectName, Pod};
use crate::diff::Plan;
use crate::ipam::{self, AddressError, Had, Request, SubnetError};
use crate::want;
use crate::write::Write;

/// The result of processing an object, besides its rows.
#[derive(Default)]
pub(super) struct Look {
    /// What to write about it.
    pub(super) writes: Vec<Write>,
    /// The warning: reason and message.
    pub(super) warning: Option<(&'static str, String)>,
    /// Chassis that no longer have a node.
    pub(super) chassis: Vec<String>,
}

/// Why an object's rows can't be brought in line now.
pub(super) struct Problem {
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// When to retry; None means when something changes.
    pub(super) until: Option<Instant>,
}

impl Problem {
    pub(super) fn blocked(reason: &'static str, message: String) -> Self {
        Self {
            reason,
            message,
            until: None,
        }
    }

    fn until(until: Instant, reason: &'static str, message: String) -> Self {
        Self {
            until: Some(until),
            ..Self::blocked(reason, message)
        }
    }
}

impl State {
    pub(super) fn wanted(
        &mut self,
        key: &Key,
        plan: &Plan<'_>,
        look: &mut Look,
    ) -> Result<Vec<want::Row>, Problem> {
        match key {
            Key::Cluster => Ok(want::cluster()),
            Key::Node(name) => self.wanted_of_node(name, plan.db(), look),
            Key::Pod(namespace, name) => self.wanted_of_pod(namespace, name, plan.db(), look),
            Key::Service(namespace, name) => Ok(self.wanted_of_service(namespace, name, plan)),
        }
    }

    fn wanted_of_node(
        &mut self,
        name: &str,
        db: &Db,
        look: &mut Look,
    ) -> Result<Vec<want::Row>, Problem> {
        self.find_old_chassis(name, db, look);
        let Some(node) = self.cluster.nodes.get(name) else {
            self.subnets.release(name);
            self.addresses.set_node(name, &[]);
            return Ok(Vec::new());
        };
        let no_subnet = |error: SubnetError| Problem::blocked("NoSubnet", error.to_string());
        let had = subnets_before(node);
        if self.rules.use_pod_cidrs {
            let assigned = self.subnets.assign(name, &node.pod_cidrs);
            assigned.map_err(no_subnet)?;
        } else {
            if let Err(error) = self.subnets.keep(name, &had) {
                look.warning = Some(("SubnetConflict", error.to_string()));
            }
            self.subnets.complete(name).map_err(no_subnet)?;
        }
        let subnets = self.subnets.of(name).to_vec();
        if had != subnets {
            let (uid, value) = (node.uid.clone(), ipam::write_node_subnets(&subnets).into());
            look.writes.push(Write::Annotation { uid, value });
        }
        if !node.network_available {
            look.writes.push(Write::NetworkAvailable);
        }
        let rows = want::node(name, node, &subnets);
        if self.addresses.set_node(name, &subnets) {
            self.mark_pods_of(name);
        }
        Ok(rows)
    }

    /// OVN's data about a chassis would outlive it, including tunnels to it.
    fn find_old_chassis(&self, name: &str, db: &Db, look: &mut Look) {
        let key = Key::Node(name.into()).to_string();
        let named = db.nb_of_object(Table::GatewayChassis, &key);
        let is_used = |chassis: &str| {
            let mut nodes = self.cluster.nodes.values();
            nodes.any(|node| node.chassis.as_deref() == Some(chassis))
        };
        let own = self.cluster.nodes.get(name);
        let own = own.and_then(|node| node.chassis.as_deref());
        let old = named.filter_map(|row| row.str("chassis_name"));
        let old = old.filter(|chassis| own != Some(chassis) && !is_used(chassis));
        look.chassis = old.map(str::to_owned).collect();
    }

    fn wanted_of_pod(
        &mut self,
        namespace: &Name,
        name: &Name,
        db: &Db,
        look: &mut Look,
    ) -> Result<Vec<want::Row>, Problem> {
        let id = (namespace.clone(), name.clone());
        let now = Instant::now().into_std();
        let Some(pod) = self.cluster.pods.get(&id) else {
            self.addresses.release(&id, now);
            return Ok(Vec::new());
        };
        let had = addresses_before(&id, pod, db);
        let whose = (&pod.uid, &pod.node);
        let refused = |message| Problem::blocked("NoAddress", message);
        let request = match self.addresses.keep(&id, whose, &had, now) {
            true => Request::default(),
            false => Request::parse(
                pod.requested_addresses.as_deref(),
                pod.requested_mac.as_deref(),
            )
            .map_err(|error| refused(error.to_string()))?,
        };
        let claimed = match self.addresses.claim(&id, whose, &had, &request, now) {
            Ok(claimed) => claimed,
            // Its pods are processed when it gets one; if it can't have one, its own warning says
            // so.
            Err(AddressError::NoSubnet(_)) => return Ok(Vec::new()),
            Err(error @ AddressError::Resting { until, .. }) => {
                return Err(Problem::until(until.into(), "NoAddress", error.to_string()));
            }
            Err(error) => return Err(refused(error.to_string())),
        };
        let is_written = pod.networks.as_ref().is_some_and(|had| had.is(claimed));
        if !is_written {
            let (uid, value) = (pod.uid.clone(), ipam::write_pod_networks(claimed).into());
            look.writes.push(Write::Annotation { uid, value });
        }
        Ok(want::pod(namespace, name, pod, claimed))
    }

    fn wanted_of_service(&self, namespace: &Name, name: &Name, plan: &Plan<'_>) -> Vec<want::Row> {
        let id = (namespace.clone(), name.clone());
        let Some(service) = self.cluster.services.get(&id) else {
            return Vec::new();
        };
        let nodes: Vec<&str> = match service.is_internal_local {
            true => {
                let nodes = self.cluster.nodes.keys().map(Name::as_str);
                nodes
                    .filter(|node| plan.has(Table::LogicalSwitch, node))
                    .collect()
            }
            false => Vec::new(),
        };
        let slices: Vec<_> = self.cluster.slices_of(namespace, name).collect();
        want::service(namespace, name, service, slices.iter().copied(), &nodes)
    }
}

/// The subnets in a node's annotation.
pub(super) fn subnets_before(node: &Node) -> Vec<IpNet> {
    let annotation = node.subnets.as_deref();
    annotation.map(ipam::read_node_subnets).unwrap_or_default()
}

/// A pod's former addresses: from its annotation, or from its logical port if a crash came between
/// the two.
pub(super) fn addresses_before((namespace, name): &ObjectName, pod: &Pod, db: &Db) -> Had {
    if let Some(had) = &pod.networks {
        return had.clone();
    }
    let key = Key::Pod(namespace.clone(), name.clone()).to_string();
    let rows = db.nb_of_object(Table::LogicalSwitchPort, &key);
    let addresses = rows
        .filter(|row| row.map("options").str("iface-id-ver") == Some(&pod.uid))
        .filter_map(|row| row.str("addresses"));
    let mut had = Had::default();
    for word in addresses.flat_map(str::split_whitespace) {
        match word.parse::<std::net::IpAddr>() {
            Ok(address) => had.addresses.push(address.into()),
            Err(_) => had.mac = had.mac.or_else(|| word.parse().ok()),
        }
    }
    had
}
