//! Primary networks: all pods of their namespaces are on them, in place of the default network,
//! which such a pod has for its kubelet alone. A namespace has one by its label, from its first pod
//! on: a pod stays on what it was made on.

use std::collections::BTreeMap;
use std::net::IpAddr;

use podwire_cluster::claims::API_SERVER;
use podwire_cluster::service::Service;

use super::super::State;
use super::super::begin::has_default_port;
use super::super::wanted::{Problem, Wanted};
use super::{definition_of, shared};
use crate::cluster::network::{Role, Selection, Shape};
use crate::cluster::{Name, ObjectName, Pod, of_namespace};
use crate::diff::Plan;
use crate::ipam::Request;
use crate::key::{Attachment, Key, Network, Of};
use crate::want::network::shared_row;
use crate::want::policy::{Open, open_member, open_sets};

/// The label of namespaces whose pods are on a network of their own, with ovn-kubernetes' name.
const LABEL: &str = "k8s.ovn.org/primary-user-defined-network";

impl State {
    /// A pod's primary network and its attachment to that; `None` if it is the default one.
    pub(in crate::run::state) fn primary_of(
        &self,
        id: &ObjectName,
        plan: &Plan<'_>,
    ) -> Result<Option<(Selection, Network)>, Problem> {
        let Some(pod) = self.cluster.pods.get(id) else {
            return Ok(None);
        };
        // Another pod of its name may have had it.
        let has = |entry: &Name, network: &Network| {
            let attachment = Attachment::of(id, entry);
            let space = self.spaces.others.get(network);
            let part = self.part(network, &pod.node);
            space.is_some_and(|it| it.addresses.has(&attachment, (&pod.uid, part)))
        };
        let mut held = self.networks.of(id);
        if let Some((entry, network)) =
            held.find(|(entry, it)| self.is_primary(it) && has(entry, it))
        {
            return Ok(Some((self.selection(pod, entry, network), network.clone())));
        }
        // Its interfaces are there, or will be as it was told. Users can write what it was told.
        let is_wired = || {
            let is_there = || has_default_port(id, pod, plan.db(), self.rules.adopt);
            !pod.reported.is_empty() || is_there()
        };
        let is_locked = match &pod.networks {
            Some(recorded) if recorded.is_locked => true,
            _ => self.has_label(&id.0) && !is_wired(),
        };
        if !is_locked {
            return Ok(None);
        }
        let none = |message: String| Err(Problem::blocked("NoAttachment", message));
        // The oldest one may come yet.
        if self.is_held(Of::Definition) {
            return none(String::new());
        }
        let Some(definition) = self.primary_definition(&id.0) else {
            return none(format!(
                "its namespace has the label {LABEL}, and no primary network yet"
            ));
        };
        let known = self.cluster.definitions.get(definition);
        let known = known.and_then(|it| it.network.as_ref().ok());
        let network = known.map(|(network, _)| network).filter(|network| {
            let shape = self.networks.live.get(network);
            shape.is_some_and(|it| {
                let (table, name) = shared_row(network, it);
                it.role == Role::Primary && plan.has(table, &name)
            })
        });
        let Some(network) = network else {
            let (namespace, name) = definition;
            return none(format!(
                "its primary network, of NetworkAttachmentDefinition {namespace}/{name}, is not \
                 there yet"
            ));
        };
        // What it can't do without is not known yet.
        if self.is_held(Of::Service) {
            return none("services are not listed yet".to_owned());
        }
        let (namespace, name) = definition;
        Ok(Some((
            self.selection(pod, &format!("{namespace}/{name}"), network),
            network.clone(),
        )))
    }

    fn selection(&self, pod: &Pod, entry: &str, network: &Network) -> Selection {
        let shape = self.networks.live.get(network);
        // A pod that asks for a default route by another network has no second one.
        let is_free = |router: &ipnet::IpNet| {
            let mut asked = pod.selections.all.iter().flat_map(|it| &it.gateways);
            asked.all(|it| it.is_ipv4() != router.addr().is_ipv4())
        };
        let routers = shape.into_iter().flat_map(Shape::routers);
        let of_node = self.part_routers(network, &pod.node);
        let gateways = routers.chain(of_node).filter(is_free);
        Selection {
            definition: definition_of(entry),
            entry: entry.into(),
            request: Ok(Request::default()),
            gateways: gateways.map(|it| it.addr()).collect(),
        }
    }

    /// The primary network that a pod is on, if that is not the default one.
    pub(crate) fn primary_held(&self, pod: &ObjectName) -> Option<&Network> {
        let mut networks = self.networks.of(pod).map(|(_, network)| network);
        networks.find(|network| self.is_primary(network))
    }

    pub(in crate::run::state) fn is_primary(&self, network: &Network) -> bool {
        let shape = self.networks.live.get(network);
        shape.is_some_and(|it| it.role == Role::Primary)
    }

    /// Whether there may be primary networks.
    pub(in crate::run::state) fn has_primaries(&self) -> bool {
        let mut live = self.networks.live.values();
        let of = |shape: &Shape| shape.role == Role::Primary;
        let defined = self.cluster.definitions.values();
        let mut defined = defined.filter_map(|it| it.network.as_ref().ok());
        live.any(of) || defined.any(|(_, shape)| of(shape))
    }

    fn has_label(&self, namespace: &Name) -> bool {
        let labels = self.cluster.namespaces.get(namespace);
        labels.is_some_and(|it| it.contains_key(LABEL))
    }

    /// The definition of a namespace's primary network: the oldest one.
    fn primary_definition(&self, namespace: &str) -> Option<&ObjectName> {
        let own = of_namespace(&self.cluster.definitions, namespace);
        let own = own.filter(|(_, it)| {
            let shape = it.network.as_ref().map(|(_, shape)| shape);
            shape.is_ok_and(|it| it.role == Role::Primary)
        });
        let oldest = own.min_by_key(|(id, it)| (it.created, (*id).clone()));
        oldest.map(|(id, _)| id)
    }

    /// Why a definition of a primary network is not that of its namespace.
    pub(crate) fn no_primary(&self, id: &ObjectName) -> Option<String> {
        let (_, shape) = self.cluster.definitions.get(id)?.network.as_ref().ok()?;
        let first = self.primary_definition(&id.0)?;
        if shape.role != Role::Primary {
            return None;
        }
        if first != id {
            return Some(format!(
                "role of its spec.config: the namespace has the primary network of {}, and has \
                 one only",
                first.1
            ));
        }
        (!self.has_label(&id.0)).then(|| {
            format!(
                "role of its spec.config: the namespace lacks the label {LABEL}, so that its pods \
                 are on the default network: make a namespace with it"
            )
        })
    }

    /// The primary network of a namespace's services.
    pub(in crate::run::state) fn primary_network(&self, namespace: &Name) -> Option<&Network> {
        if !self.has_primaries() {
            return None;
        }
        let defined = self.primary_definition(namespace);
        let defined = defined.filter(|_| self.has_label(namespace));
        let defined = defined.and_then(|id| self.cluster.definitions.get(id));
        let defined = defined.and_then(|it| Some(&it.network.as_ref().ok()?.0));
        let of_pods = || {
            let held = of_namespace(&self.networks.held, namespace);
            let mut held = held.flat_map(|(_, entries)| entries.values());
            held.find(|network| self.is_primary(network))
        };
        defined
            .filter(|network| self.is_primary(network))
            .or_else(of_pods)
    }

    /// The addresses of a namespace's pods on their primary network, by those on the default one.
    pub(in crate::run::state) fn primary_addresses(
        &self,
        namespace: &Name,
        network: &Network,
    ) -> BTreeMap<IpAddr, IpAddr> {
        let pods = of_namespace(&self.networks.held, namespace);
        self.addresses_on(network, pods.map(|(pod, _)| pod))
    }

    /// Those of these pods.
    pub(super) fn addresses_on<'a>(
        &self,
        network: &Network,
        pods: impl Iterator<Item = &'a ObjectName>,
    ) -> BTreeMap<IpAddr, IpAddr> {
        let mut found = BTreeMap::new();
        let Some(space) = self.spaces.others.get(network) else {
            return found;
        };
        for pod in pods {
            let entry = self.networks.of(pod).find(|(_, it)| *it == network);
            let own = self.spaces.default.addresses.of(&pod.clone().into());
            let Some(((entry, _), own)) = entry.zip(own) else {
                continue;
            };
            let attachment = Attachment::of(pod, entry);
            let there = space.addresses.of(&attachment);
            for address in there.into_iter().flat_map(|it| &it.addresses) {
                let same = |it: &&ipnet::IpNet| it.addr().is_ipv4() == address.addr().is_ipv4();
                let known = own.addresses.iter().find(same);
                found.extend(known.map(|it| (it.addr(), address.addr())));
            }
        }
        found
    }

    /// The services that pods with a primary network reach on the default one.
    pub(crate) fn open_to_locked(&self) -> [ObjectName; 2] {
        let (namespace, name) = API_SERVER;
        [
            self.rules.dns_service.clone(),
            (namespace.into(), name.into()),
        ]
    }

    /// Those that are there, with the ports of their endpoints.
    pub(in crate::run::state) fn open_ports(&self) -> Open {
        let of = |id: ObjectName| {
            let service = self.cluster.services.get(&id)?;
            let slices = self.cluster.slices.of(&id.0, &id.1);
            let named = slices.flat_map(|slice| &slice.ports);
            let own = named.filter(|(name, (protocol, _))| {
                let mut ports = service.ports.iter();
                ports.any(|it| it.name == **name && it.protocol == *protocol)
            });
            let own = own.map(|(_, port)| *port).collect();
            Some((id, own))
        };
        self.open_to_locked().into_iter().filter_map(of).collect()
    }

    /// What such a service has beside its load balancers: sets of its endpoints.
    pub(in crate::run::state) fn open_rows(&self, id: &ObjectName, service: &Service) -> Wanted {
        let mut wanted = Wanted::default();
        if !self.has_primaries() {
            return wanted;
        }
        let Some(ports) = self.open_ports().remove(id) else {
            return wanted;
        };
        wanted.rows = open_sets(id, &ports);
        for port in &service.ports {
            let slices = self.cluster.slices.of(&id.0, &id.1);
            let endpoints = service.endpoints(port, slices, |_| true);
            let members = endpoints
                .into_iter()
                .map(|at| open_member(id, port.protocol, at));
            wanted.members.extend(members);
        }
        wanted
    }

    /// The addresses of the services there.
    pub(crate) fn open_services(&self) -> Vec<IpAddr> {
        let services = self
            .open_to_locked()
            .map(|id| self.cluster.services.get(&id));
        let all = services.into_iter().flatten();
        all.flat_map(|it| it.cluster_ips.iter().copied()).collect()
    }

    /// A service has changed, or where it leads.
    pub(in crate::run::state) fn mark_open(&mut self, id: &ObjectName) {
        if self.open_to_locked().contains(id) && self.has_primaries() {
            let live = self.networks.live.keys();
            let keys: Vec<Key> = live.filter(|it| self.is_primary(it)).map(shared).collect();
            self.dirty.extend(keys);
            self.unblock();
        }
    }

    /// Whether there are primary networks may have changed.
    pub(in crate::run::state) fn mark_open_sets(&mut self) {
        let services = self.cluster.services.keys();
        let keys: Vec<Key> = services.cloned().map(Key::service).collect();
        self.dirty.extend(keys);
        self.dirty.insert(Key::only(Of::Cluster));
    }

    /// What depends on which network is a namespace's primary one.
    pub(in crate::run::state) fn mark_primary(&mut self, namespace: &Name) {
        let pods = of_namespace(&self.cluster.pods, namespace);
        let pods = pods.map(|(id, _)| Key::pod(id.clone()));
        let definitions = of_namespace(&self.cluster.definitions, namespace);
        let definitions: Vec<ObjectName> = definitions.map(|(id, _)| id.clone()).collect();
        let keys = definitions.iter().cloned();
        let keys = keys.map(|id| Key::object(Of::Definition, id));
        self.dirty.extend(pods.chain(keys));
        for id in &definitions {
            self.mark_owners(id);
        }
        self.mark_services_of(namespace);
        self.mark_exposed(namespace);
    }

    pub(in crate::run::state) fn mark_services_of(&mut self, namespace: &Name) {
        let services = of_namespace(&self.cluster.services, namespace);
        let keys = services.map(|(id, _)| Key::service(id.clone()));
        self.dirty.extend(keys);
    }
}
