//! The rows that an object should have now, including the assignment of its addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use itertools::Itertools as _;
use podwire_cluster::claims::{self, Refused};
use podwire_cluster::networks::{self, OtherNetworks};
use podwire_ovs::nb::Table;
use podwire_ovs::replica::Db;
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use super::begin::{addresses_before, request_of, subnets_before};
use super::{State, shared};
use crate::cluster::logging::Logging;
use crate::cluster::{Name, Node, ObjectName, Pod};
use crate::diff::Plan;
use crate::ipam::{self, AddressError, Assigned, SubnetError};
use crate::key::{Attachment, Key, Network, Of};
use crate::members::Member;
use crate::names::pod_port;
use crate::want;
use crate::want::policy::{asking_member, candidate, isolated, logged};
use crate::write::Write;

/// The result of processing an object, besides its rows.
#[derive(Default)]
pub(super) struct Effects {
    /// What to write about it.
    pub(super) writes: Vec<Write>,
    /// The warning: reason and message.
    pub(super) warning: Option<(&'static str, String)>,
    /// When to process it again though its rows are there: at a time, or when something changes.
    pub(super) again: Option<Option<Instant>>,
    /// Chassis that no longer have a node.
    pub(super) chassis: Vec<String>,
}

/// What a key should have.
#[derive(Default)]
pub(super) struct Wanted {
    pub(super) rows: Vec<want::Row>,
    /// Its places in groups.
    pub(super) members: BTreeSet<Member>,
}

impl From<Vec<want::Row>> for Wanted {
    fn from(rows: Vec<want::Row>) -> Self {
        Self {
            rows,
            ..Self::default()
        }
    }
}

/// Why an object's rows can't be brought in line now.
pub(super) struct Problem {
    pub(super) reason: &'static str,
    /// Empty if nothing needs to be said of it.
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
        effects: &mut Effects,
    ) -> Result<Wanted, Problem> {
        let is_default = key.network == Network::DEFAULT;
        match key.of {
            Of::Peers => {
                let policies = self.policies_on(&key.network);
                let rows = policies
                    .map(|it| it.peers_rows(&key.name))
                    .unwrap_or_default();
                self.fill(plan, key, &rows);
                Ok(rows.into())
            }
            Of::Policy => Ok(self.wanted_of_policy(key, effects).into()),
            Of::ClusterPolicy | Of::AdminPolicy | Of::BaselinePolicy => {
                if is_default {
                    self.report_conditions(key, effects);
                }
                Ok(self.policy_rows(key).into())
            }
            Of::Cluster if !is_default => Ok(self.wanted_of_network(&key.network, plan)),
            Of::Node if !is_default => self.wanted_of_part(&key.name, &key.network),
            Of::Gateway if !is_default => self.wanted_of_exit(&key.name, &key.network, plan),
            _ if !is_default => Ok(Wanted::default()),
            Of::MultiPolicy => {
                self.check_multi(&key.id(), effects);
                Ok(Wanted::default())
            }
            Of::Cluster => {
                let mut rows = want::cluster();
                if self.policies.has_tiers() {
                    rows.extend(want::policy::tiered_door());
                }
                let mut members = BTreeSet::new();
                if self.has_primaries() {
                    rows.extend(want::policy::inside());
                    rows.extend(want::exit::among_pods(&IpNet::aggregate(&self.families())));
                    members = self.inside();
                }
                Ok(Wanted { rows, members })
            }
            Of::Join => Ok(self.wanted_of_join()),
            Of::Gateway => self.wanted_of_gateway(&key.name, effects),
            Of::Definition => {
                self.check_definition(&key.id(), effects);
                Ok(Wanted::default())
            }
            Of::UserNetwork | Of::ClusterUserNetwork => {
                self.define(key, effects);
                Ok(Wanted::default())
            }
            Of::Node => {
                let rows = self.wanted_of_node(&key.name, plan, effects)?;
                let subnets = match rows.is_empty() {
                    true => &[],
                    false => self.spaces.default.subnets.of(&key.name),
                };
                let members = want::policy::node_members(&key.name, subnets);
                Ok(Wanted { rows, members })
            }
            Of::Namespace => Ok(self.wanted_of_namespace(&key.name, effects).into()),
            Of::Members => Ok(Wanted::default()),
            Of::Pod => self.wanted_of_pod(&key.id(), plan, effects),
            Of::Service => {
                let id = key.id();
                let Wanted { rows, mut members } = self.wanted_of_service(&id, plan, effects);
                let service = self.cluster.services.get(&id);
                let inside = service.filter(|_| self.has_primaries());
                let inside = inside.into_iter().flat_map(|it| &it.cluster_ips);
                members.extend(inside.map(|it| want::policy::inside_member((*it).into())));
                Ok(Wanted { rows, members })
            }
        }
    }

    fn wanted_of_node(
        &mut self,
        name: &str,
        plan: &Plan<'_>,
        effects: &mut Effects,
    ) -> Result<Vec<want::Row>, Problem> {
        self.find_old_chassis(name, plan.db(), effects);
        let Some(node) = self.cluster.nodes.get(name) else {
            // Its pods keep their addresses while they exist: the node may come back.
            if self.is_unused(name) && !self.spaces.default.subnets.of(name).is_empty() {
                self.spaces.default.subnets.release(name);
                self.spaces.default.addresses.set_node(name, &[]);
                self.unblock();
            }
            let _ = self.spaces.default.addresses.set_management(name, None);
            return Ok(Vec::new());
        };
        let node = node.clone();
        if let Err(pod) = self.spaces.default.addresses.set_management(name, node.mac) {
            let message = format!("its management port has the MAC address of {pod}: delete it");
            effects.warning = Some(("MACConflict", message));
        }
        self.subnets_of_node(name, &node, effects)?;
        let subnets = self.spaces.default.subnets.of(name).to_vec();
        let others = node.subnets.as_deref().map(|it| networks::read(it).1);
        let others = others.unwrap_or_default();
        let parts = self.parts_of(name);
        let parts = parts.iter().map(|(network, it)| (&**network, it.as_ref()));
        let wanted = others.changed(parts);
        if subnets_before(&node) != subnets || wanted != others {
            let version = self.version(&Key::node(name.into()), node.version);
            annotate((&node.uid, version), &wanted, &subnets, effects);
        } else if !node.network_available {
            effects.writes.push(Write::NetworkAvailable);
        }
        let cluster = self.pods_networks();
        let way = self.way_of(name, (&node, &cluster), plan);
        let connections = self.connections_on(name);
        let rows = want::node(name, &node, &subnets, connections, way.as_ref());
        let to_host = way.is_some_and(|way| way.answers_return(&subnets));
        if to_host != node.answers_host || node.router_leads {
            let uid = node.uid.clone();
            effects.writes.push(Write::Answers { uid, to_host });
        }
        if self.spaces.default.addresses.set_node(name, &subnets) {
            self.mark_pods_of(name);
            self.mark_gateway_of(name);
            self.mark_exits_on(name);
            self.dirty.insert(Key::only(Of::Cluster));
        }
        Ok(rows)
    }

    /// Assigns a node its subnets.
    fn subnets_of_node(
        &mut self,
        name: &str,
        node: &Node,
        effects: &mut Effects,
    ) -> Result<(), Problem> {
        let subnets = &mut self.spaces.default.subnets;
        let recorded = subnets.of(name).to_vec();
        let conflict = |error: SubnetError| Some(("SubnetConflict", error.to_string()));
        let no_subnet = |error: SubnetError| Problem::blocked("NoSubnet", error.to_string());
        if !self.rules.use_pod_cidrs {
            match subnets.keep(name, &subnets_before(node)) {
                Err(error @ SubnetError::Outside { .. }) => return Err(no_subnet(error)),
                Err(error) => effects.warning = conflict(error),
                Ok(()) => {}
            }
            return subnets.complete(name).map_err(no_subnet);
        }
        match subnets.pod_cidrs(name, &node.pod_cidrs) {
            Ok(wanted) if wanted == recorded => {}
            Ok(wanted) if recorded.is_empty() => subnets.hold(name, wanted),
            Ok(wanted) if self.is_unused(name) => {
                self.spaces.default.subnets.release(name);
                self.spaces.default.subnets.hold(name, wanted);
                self.unblock();
            }
            Ok(_) => {
                effects.warning = conflict(SubnetError::InUse(recorded.iter().join(", ")));
            }
            Err(error) if recorded.is_empty() => return Err(no_subnet(error)),
            Err(error) => effects.warning = conflict(error),
        }
        Ok(())
    }

    /// Whether no pod has or had an address in a node's subnets; if one had, the node is processed
    /// again when its addresses have rested.
    fn is_unused(&mut self, node: &str) -> bool {
        let now = Instant::now().into_std();
        let from = self.spaces.default.addresses.unused_from(node, now);
        if let Some(from) = from.filter(|from| *from > now) {
            self.retries.insert((from.into(), Key::node(node.into())));
        }
        from == Some(now)
    }

    /// OVN's data about a chassis would outlive it, including tunnels to it.
    fn find_old_chassis(&self, name: &str, db: &Db, effects: &mut Effects) {
        let key = Key::node(name.into()).to_string();
        let named = db.nb_of_object(Table::GatewayChassis, &key);
        let is_used = |chassis: &str| {
            let mut nodes = self.cluster.nodes.values();
            nodes.any(|node| node.chassis.as_deref() == Some(chassis))
        };
        let own = self.cluster.nodes.get(name);
        let own = own.and_then(|node| node.chassis.as_deref());
        let old = named.filter_map(|row| row.str("chassis_name"));
        let old = old.filter(|chassis| own != Some(chassis) && !is_used(chassis));
        effects.chassis = old.map(str::to_owned).collect();
    }

    fn wanted_of_pod(
        &mut self,
        id: &ObjectName,
        plan: &Plan<'_>,
        effects: &mut Effects,
    ) -> Result<Wanted, Problem> {
        let db = plan.db();
        let pod = self.cluster.pods.get(id);
        let own = Attachment::from(id.clone());
        let addresses = &mut self.spaces.default.addresses;
        let has = |pod: &Pod| addresses.has(&own, (&pod.uid, &pod.node));
        let is_known = pod.is_some_and(has);
        if !is_known {
            self.release(id);
        }
        // In which groups it belongs there is not known yet.
        let waits = |it: &Network| self.scopes.contains_key(it) && self.is_key_held(&shared(it));
        if self.networks.of(id).any(|(_, network)| waits(network)) {
            return Err(Problem::blocked("NoAttachment", String::new()));
        }
        let primary = self.primary_of(id, plan);
        let claimed = primary.and_then(|it| Ok((self.claimed_of_pod(id, is_known, db)?, it)));
        let (claimed, primary) = match claimed {
            Ok((Some(claimed), primary)) => (claimed, primary),
            // Without its port on the default network it has none on others.
            Ok((None, _)) => {
                self.detach(id, None, Instant::now().into_std());
                return Ok(Wanted::default());
            }
            // What exists stays.
            Err(problem) => {
                let pod = self.cluster.pods.get(id).cloned();
                self.detach(id, pod.as_ref(), Instant::now().into_std());
                return Err(problem);
            }
        };
        let (attached, entries) = self.attachments(id, primary.as_ref(), plan, effects)?;
        let Some(pod) = self.cluster.pods.get(id) else {
            return Ok(Wanted::default());
        };
        let version = self.version(&Key::pod(id.clone()), pod.version);
        let is_written = pod
            .networks
            .as_ref()
            .is_some_and(|it| it.is(&claimed) && it.is_locked == primary.is_some());
        let entries = entries.iter().map(|(name, it)| (&**name, it.as_ref()));
        let others = pod.other_networks.changed(entries);
        if !is_written || others != pod.other_networks {
            let entry = match &primary {
                None => ipam::pod_network(&claimed.addresses, claimed.mac),
                Some(_) => {
                    let open = self.open_services();
                    ipam::locked_network(&claimed.addresses, claimed.mac, &open)
                }
            };
            annotate((&pod.uid, version), &others, &entry, effects);
        }
        let mut members = BTreeSet::new();
        let selected = candidate(id, pod, &self.cluster.namespaces);
        for (network, port, own) in self.places(id, pod) {
            let policies = self.policies_on(&network);
            let ips = own.ips();
            let own = policies.map(|it| it.members(&selected, &port, &ips));
            members.extend(own.into_iter().flatten());
            if self.is_physical(&network) && ips.iter().any(IpAddr::is_ipv4) {
                members.insert(asking_member(&network, port));
            }
        }
        let of = primary.map(|(_, network)| network);
        members.extend(of.map(|network| isolated(&network, &pod_port(id))));
        let mut rows = want::pod(id, pod, &claimed);
        rows.extend(attached);
        Ok(Wanted { rows, members })
    }

    /// What a pod has on the default network; None as long as it is nowhere.
    fn claimed_of_pod(
        &mut self,
        id: &ObjectName,
        is_known: bool,
        db: &Db,
    ) -> Result<Option<Assigned>, Problem> {
        let Some(pod) = self.cluster.pods.get(id) else {
            return Ok(None);
        };
        let node = Key::node(pod.node.clone());
        if self.cluster.uid(&node).is_none() && !self.unreadable.contains(&node) {
            return Ok(None);
        }
        // It may be one whose pods have another primary network. Every cluster has some.
        let is_new = !is_known && !self.cluster.namespaces.is_empty();
        let waits = is_new || self.waits_for_namespaces();
        if waits && !self.cluster.namespaces.contains_key(&id.0) {
            return Ok(None);
        }
        let former = match is_known {
            true => Vec::new(),
            false => addresses_before(id, pod, db, self.rules.adopt),
        };
        let whose = (&pod.uid, &pod.node);
        let now = Instant::now().into_std();
        let refused = |message| Problem::blocked("NoAddress", message);
        let addresses = &mut self.spaces.default.addresses;
        let own = Attachment::from(id.clone());
        match addresses.claim(&own, whose, &former, || request_of(pod), now) {
            Ok(claimed) => Ok(Some(claimed.clone())),
            // Its pods are processed when it gets one; if it can't have one, its own warning says
            // so.
            Err(AddressError::NoSubnet(_)) => Ok(None),
            Err(
                error
                @ (AddressError::Resting { until, .. } | AddressError::Released { until, .. }),
            ) => Err(Problem::until(until.into(), "NoAddress", error.to_string())),
            Err(error) => Err(refused(error.to_string())),
        }
    }

    fn wanted_of_policy(&self, key: &Key, effects: &mut Effects) -> Vec<want::Row> {
        let policy = self.policies.get(&key.id());
        let policy = policy.filter(|_| key.network == Network::DEFAULT);
        if let Some(policy) = policy.filter(|policy| !policy.problems.is_empty()) {
            effects.warning = Some(("PolicyMistake", policy.problems.join("; ")));
        }
        self.policy_rows(key)
    }

    fn wanted_of_namespace(&self, name: &Name, effects: &mut Effects) -> Vec<want::Row> {
        let logging = self.cluster.logging.get(name);
        if let Some(logging) = logging.filter(|it| !it.problems.is_empty()) {
            effects.warning = Some(("LoggingMistake", logging.problems.join("; ")));
        }
        effects.again = self.resting.get(name).copied().map(Some);
        self.namespace_rows(name)
    }

    /// The rows of a policy on a network.
    pub(crate) fn policy_rows(&self, key: &Key) -> Vec<want::Row> {
        let own = key.clone().on(Network::DEFAULT);
        let policies = self.policies_on(&key.network);
        let (rows, logging) = match key.of {
            Of::Policy => (
                policies.map(|it| it.policy_rows(&own.id())),
                self.cluster.logging.get(&key.namespace),
            ),
            _ => (
                policies.map(|it| it.tiered_rows(&own)),
                self.cluster
                    .tiered
                    .get(&own)
                    .and_then(|it| it.logging.as_ref()),
            ),
        };
        logged(rows.unwrap_or_default().to_vec(), logging)
    }

    /// The rows of a namespace's isolated pods. Its groups rest when it is gone: it may come again
    /// before ovn-northd looks ([`want::policy::namespace_groups`]).
    pub(crate) fn namespace_rows(&self, name: &Name) -> Vec<want::Row> {
        let is_there =
            self.cluster.namespaces.contains_key(name) || self.resting.contains_key(name);
        logged(
            self.policies.namespace_rows(name, is_there),
            self.cluster.logging.get(name),
        )
    }

    /// Whether a key's ACLs need the meter.
    pub(super) fn logs(&self, key: &Key) -> bool {
        let logging = match key.of {
            Of::Namespace => self.cluster.logging.get(&key.name),
            _ => self
                .cluster
                .tiered
                .get(key)
                .filter(|_| self.policies.has_tiers())
                .and_then(|it| it.logging.as_ref()),
        };
        logging.is_some_and(Logging::is_on)
    }

    /// Says whether a policy of the whole cluster is applied.
    fn report_conditions(&self, key: &Key, effects: &mut Effects) {
        let Some(policy) = self.cluster.tiered.get(key) else {
            return;
        };
        let has_tiers = self.policies.has_tiers();
        if let Some(conditions) = policy.conditions(has_tiers) {
            effects.writes.push(Write::Conditions {
                uid: policy.uid.clone(),
                version: policy.version,
                value: Value::from(conditions).to_string().into(),
            });
        }
        let refusal = policy.refusal(has_tiers);
        let refusal = refusal.map(|it| (it.reason, it.message));
        let unlogged = policy.logging.iter().flat_map(|it| it.problems.clone());
        let unlogged: Vec<String> = unlogged.collect();
        effects.warning = match (refusal, &unlogged[..]) {
            (refusal, []) => refusal,
            (None, problems) => Some(("LoggingMistake", problems.join("; "))),
            // Of an object with several mistakes there is one Event.
            (Some((reason, message)), problems) => {
                Some((reason, format!("{message}; {}", problems.join("; "))))
            }
        };
    }

    /// The newest version of an object that is known: its own, or that of the last write.
    pub(super) fn version(&self, key: &Key, own: u64) -> u64 {
        own.max(self.written.get(key).copied().unwrap_or_default())
    }

    /// The rows of a service, and why some of it is not done.
    pub(crate) fn service_rows(
        &mut self,
        id: &ObjectName,
        plan: &Plan<'_>,
    ) -> (Vec<want::Row>, Option<String>) {
        let mut effects = Effects::default();
        let Wanted { rows, .. } = self.wanted_of_service(id, plan, &mut effects);
        (rows, effects.warning.map(|(_, text)| text))
    }

    /// Its load balancers, and the sets of its endpoints that locked pods reach.
    fn wanted_of_service(
        &mut self,
        id: &ObjectName,
        plan: &Plan<'_>,
        effects: &mut Effects,
    ) -> Wanted {
        let mut rows = self.balancers_of(id, plan, effects);
        let service = self.cluster.services.get(id);
        let open = service.map(|it| self.open_rows(id, it));
        let open = open.unwrap_or_default();
        rows.extend(open.rows);
        let members = open.members;
        Wanted { rows, members }
    }

    fn balancers_of(
        &mut self,
        id: &ObjectName,
        plan: &Plan<'_>,
        effects: &mut Effects,
    ) -> Vec<want::Row> {
        let (namespace, name) = id;
        self.fill_unread_slices(id, plan.db());
        let Some(service) = self.cluster.services.get(id) else {
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
        let slices: Vec<_> = self.cluster.slices.of(namespace, name).collect();
        if let Some(network) = self.primary_network(namespace)
            && let Some(shape) = self.networks.live.get(network)
        {
            let own = self.primary_addresses(namespace, network);
            let slices = slices.iter().copied();
            let switches = self.switches(network, shape, plan);
            return want::primary::service((namespace, name), service, slices, &own, &switches);
        }
        let none = Refused::new();
        let refused = self.refused.get(id).unwrap_or(&none);
        if !refused.is_empty() {
            effects.warning = Some(("AddressConflict", claims::text(refused)));
        }
        let slices = slices.iter().copied();
        want::service(namespace, name, service, slices, &nodes, refused)
    }
}

/// Writes the default network's entry, beside those of others, into the annotation of an object
/// with this uid and version.
fn annotate(
    (uid, version): (&Name, u64),
    others: &OtherNetworks,
    entry: &impl Serialize,
    effects: &mut Effects,
) {
    // It is strings in lists and objects.
    let Ok(value) = others.with(entry) else {
        return;
    };
    if *others == OtherNetworks::Unreadable && effects.warning.is_none() {
        let message = "its annotation with addresses was no JSON object, and is replaced";
        effects.warning = Some(("AnnotationReplaced", message.to_owned()));
    }
    let (uid, value) = (uid.clone(), value.into());
    effects.writes.push(Write::Annotation {
        uid,
        version,
        value,
    });
}
