//! Users' networks: UserDefinedNetwork and ClusterUserDefinedNetwork (k8s.ovn.org/v1), and what is
//! stored of the NetworkAttachmentDefinitions that are made for them. Everything else is done for
//! the definitions. One with a mistake gets none, and says which field is wrong.

use podwire_apiserver::brief;
use podwire_apiserver::object::Object as _;
use podwire_cluster::api::{
    self, OwnedMetadata, Part, UserNetworkConfig, UserNetworkLayer3, UserNetworkSpec,
};
use podwire_cluster::resources::RESOURCE_NAME;
use podwire_cluster::{Name, ObjectName, Selector};
use serde_json::{Map, Value, json};

use super::network::{Mistake, annotations, network_name, shape};
use super::{guard, version};
use crate::key::{Key, Network, Of};

/// The finalizer of users' networks and of their definitions, as ovn-kubernetes calls it: they stay
/// until no pod uses them.
pub const FINALIZER: &str = "k8s.ovn.org/user-defined-network-protection";
/// The label of a definition that is made for a user's network, with ovn-kubernetes' name.
const LABEL: &str = "k8s.ovn.org/user-defined-network";
/// The condition that the definitions are there, with ovn-kubernetes' name, as its reasons.
pub const CREATED: &str = "NetworkCreated";
/// The condition that the network is there.
pub const ALLOCATED: &str = "NetworkAllocationSucceeded";

/// A UserDefinedNetwork or ClusterUserDefinedNetwork.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserNetwork {
    /// Distinguishes several with this name over time.
    pub uid: Name,
    /// See [`version`].
    pub version: u64,
    /// What it asks for; or what is wrong, beginning with the field.
    pub spec: Result<Spec, String>,
    /// All of them, those of others too.
    pub finalizers: Vec<String>,
    /// Whether it goes when its finalizers are gone.
    pub is_deleted: bool,
    /// Its conditions, those of others too.
    conditions: Vec<Value>,
}

/// What a user's network asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The namespaces that it is for; `None` for its own.
    pub namespaces: Option<Selector>,
    /// The network.
    pub network: Network,
    /// The definitions' configuration, without what differs from one to another.
    config: Map<String, Value>,
}

/// A condition that a user's network should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Its type.
    pub name: &'static str,
    /// Whether it holds.
    pub holds: bool,
    /// Why, for programs.
    pub reason: &'static str,
    /// Why, for people.
    pub message: String,
}

/// A NetworkAttachmentDefinition as an object, for whichever plugin it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Distinguishes several with this name over time.
    pub uid: Name,
    /// See [`version`].
    pub version: u64,
    /// The user's network that it belongs to, if it belongs to one.
    pub owner: Option<Owner>,
    /// Whether it goes when its finalizers are gone.
    pub is_deleted: bool,
    /// All of them, those of others too.
    pub finalizers: Vec<String>,
    /// Its configuration and whether it has [`LABEL`], if it belongs to a user's network.
    content: Option<(Box<str>, bool)>,
    /// Likewise, the resource that it names ([`RESOURCE_NAME`]).
    resource: Option<Box<str>>,
}

/// An object's controller (`ownerReferences`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its key.
    pub key: Key,
    /// Its uid.
    pub uid: Name,
}

impl UserNetwork {
    /// The relevant part of a UserDefinedNetwork.
    pub fn of_namespace(network: &api::UserDefinedNetwork) -> Self {
        let metadata = &network.metadata;
        let spec = match &network.spec {
            Part::Unreadable(problem) => Err(format!("spec: {}", brief(problem))),
            Part::Read(spec) => {
                // As in ovn-kubernetes.
                let name = format!("{}_{}", metadata.namespace, metadata.name);
                spec_of(spec, "spec", &name, None)
            }
        };
        Self::new(metadata, spec, &network.status)
    }

    /// The relevant part of a ClusterUserDefinedNetwork.
    pub fn of_cluster(network: &api::ClusterUserDefinedNetwork) -> Self {
        let metadata = &network.metadata;
        let spec = match &network.spec {
            Part::Unreadable(problem) => Err(format!("spec: {}", brief(problem))),
            Part::Read(spec) => of_cluster(spec, &metadata.name),
        };
        Self::new(metadata, spec, &network.status)
    }

    fn new(
        metadata: &OwnedMetadata,
        spec: Result<Spec, String>,
        status: &Part<api::ConditionsStatus>,
    ) -> Self {
        Self {
            uid: metadata.uid.as_str().into(),
            version: version(&metadata.resource_version),
            spec,
            finalizers: metadata.finalizers.clone(),
            is_deleted: metadata.is_deleted(),
            conditions: status.conditions(),
        }
    }

    /// Whether it has [`FINALIZER`].
    pub fn is_kept(&self) -> bool {
        self.finalizers.iter().any(|it| it == FINALIZER)
    }

    /// All conditions that it should have, if it has others. A new one, or one that changes between
    /// true and false, has no time yet.
    pub fn conditions(&self, wanted: &[Condition]) -> Option<Vec<Value>> {
        let is_own = |it: &&Value| it["type"] == CREATED || it["type"] == ALLOCATED;
        let own = wanted.iter().map(|wanted| {
            let status = if wanted.holds { "True" } else { "False" };
            let mut condition = json!({
                "type": wanted.name,
                "status": status,
                "reason": wanted.reason,
                "message": wanted.message,
            });
            let mut before = self.conditions.iter();
            let before = before.find(|it| it["type"] == wanted.name && it["status"] == status);
            if let Some(before) = before {
                condition["lastTransitionTime"] = before["lastTransitionTime"].clone();
            }
            condition
        });
        let own: Vec<Value> = own.collect();
        let text = |it: &Value, field| it[field].as_str().map(str::to_owned);
        let said = |it: &Value| ["type", "status", "reason", "message"].map(|name| text(it, name));
        let has: Vec<_> = self.conditions.iter().filter(is_own).map(said).collect();
        if has.len() == own.len() && own.iter().all(|it| has.contains(&said(it))) {
            return None;
        }
        let others = self.conditions.iter().filter(|it| !is_own(it)).cloned();
        Some(others.chain(own).collect())
    }
}

fn of_cluster(spec: &api::ClusterUserNetworkSpec, name: &str) -> Result<Spec, String> {
    let selector = spec.namespace_selector.as_ref();
    let selector = selector.ok_or("spec.namespaceSelector: it is missing; {} is all namespaces")?;
    let selector = Selector::parse(selector)
        .map_err(|(_, problem)| format!("spec.namespaceSelector: {problem}"))?;
    if !spec.uplinks.is_empty() {
        return Err("spec.uplinks: they are not implemented: leave them out".to_owned());
    }
    let name = format!("cluster_udn_{name}");
    spec_of(&spec.network, "spec.network", &name, Some(selector))
}

/// `place` is the field with the network.
fn spec_of(
    spec: &UserNetworkSpec,
    place: &str,
    name: &str,
    namespaces: Option<Selector>,
) -> Result<Spec, String> {
    let refused = |field: &str, problem: String| format!("{place}.{field}: {problem}");
    let of_layer3 = spec.layer3.as_ref().map(layer3);
    let (part, config) = match (&*spec.topology, &namespaces) {
        ("Layer2", _) => ("layer2", &spec.layer2),
        ("Layer3", _) => ("layer3", &of_layer3),
        ("Localnet", Some(_)) => ("localnet", &spec.localnet),
        ("Localnet", None) => {
            let problem = "only a ClusterUserDefinedNetwork has the topology Localnet";
            return Err(refused("topology", problem.to_owned()));
        }
        (other, _) => {
            let problem = format!("{:?} is none of Layer2, Layer3 and Localnet", brief(&other));
            return Err(refused("topology", problem));
        }
    };
    if !spec.transport.is_empty() {
        let problem = format!(
            "{} is not implemented: leave it out",
            brief(&spec.transport)
        );
        return Err(refused("transport", problem));
    }
    let missing = || refused(part, format!("the topology {} needs it", spec.topology));
    let config = config.as_ref().ok_or_else(missing)?;
    let refused = |field: &str, problem: String| refused(&format!("{part}.{field}"), problem);
    if let Some((field, problem)) = unimplemented(config, part == "localnet") {
        return Err(refused(field, problem));
    }
    let mut all = Map::new();
    let list = |nets: &[String]| (!nets.is_empty()).then(|| Value::from(nets.join(",")));
    let physical = Some(&config.physical_network_name).filter(|name| !name.is_empty());
    let vlan = config.vlan.as_ref().and_then(|vlan| vlan.access.id);
    for (field, value) in [
        ("topology", Some(part.into())),
        ("role", Some(config.role.to_lowercase().into())),
        ("subnets", list(&config.subnets)),
        ("excludeSubnets", list(&config.exclude_subnets)),
        ("mtu", config.mtu.map(Value::from)),
        ("physicalNetworkName", physical.map(|it| it.as_str().into())),
        ("vlanID", vlan.map(Value::from)),
        ("name", Some(name.into())),
        ("cniVersion", Some("1.0.0".into())),
        ("type", Some("podwire-cni".into())),
    ] {
        all.extend(value.map(|value| (field.to_owned(), value)));
    }
    let network = network_name(Some(name));
    let network = network.map_err(|it| format!("metadata.name: {name:?}: {}", it.problem))?;
    let named = |Mistake { field, problem }| match field {
        "vlanID" => refused("vlan.access.id", problem),
        field => refused(field, problem),
    };
    shape(&Value::Object(all.clone())).map_err(named)?;
    Ok(Spec {
        namespaces,
        network,
        config: all,
    })
}

/// What a layer 3 network says, as those of other topologies say it.
fn layer3(own: &UserNetworkLayer3) -> UserNetworkConfig {
    let subnets = own.subnets.iter().map(|it| match it.host_subnet {
        Some(prefix) => format!("{}/{prefix}", it.cidr),
        None => it.cidr.clone(),
    });
    UserNetworkConfig {
        role: own.role.clone(),
        mtu: own.mtu,
        subnets: subnets.collect(),
        join_subnets: own.join_subnets.clone(),
        ..UserNetworkConfig::default()
    }
}

/// Why podwire can't make such a network: the field, and what is wrong with it.
fn unimplemented(config: &UserNetworkConfig, is_localnet: bool) -> Option<(&'static str, String)> {
    let is_primary = config.role == "Primary";
    match &*config.role {
        "Secondary" => {}
        "Primary" if is_localnet => {
            let problem = "a Localnet can't be Primary: use Layer2 or Layer3";
            return Some(("role", problem.to_owned()));
        }
        "Primary" => {}
        other => {
            let problem = format!("{:?} is neither Secondary nor Primary", brief(&other));
            return Some(("role", problem));
        }
    }
    let of_primary = [
        ("joinSubnets", &config.join_subnets),
        ("reservedSubnets", &config.reserved_subnets),
        ("infrastructureSubnets", &config.infrastructure_subnets),
        ("defaultGatewayIPs", &config.default_gateway_ips),
    ];
    let given = of_primary.into_iter().find(|(_, list)| !list.is_empty());
    if let Some((field, _)) = given {
        let problem = match is_primary {
            true => "they are not implemented: leave them out",
            false => "only a primary network has them",
        };
        return Some((field, problem.to_owned()));
    }
    let is_managed = match &*config.ipam.mode {
        "" | "Enabled" => true,
        "Disabled" => false,
        other => {
            let problem = format!("{:?} is neither Enabled nor Disabled", brief(&other));
            return Some(("ipam.mode", problem));
        }
    };
    if !config.ipam.lifecycle.is_empty() {
        let problem = format!(
            "{} is not implemented: leave it out",
            brief(&config.ipam.lifecycle)
        );
        return Some(("ipam.lifecycle", problem));
    }
    if is_managed == config.subnets.is_empty() {
        let problem = match is_managed {
            true => "they are missing; without addresses, ipam.mode is Disabled",
            false => "they can't be given while ipam.mode is Disabled",
        };
        return Some(("subnets", problem.to_owned()));
    }
    let vlan = config.vlan.as_ref();
    if let Some(vlan) = vlan.filter(|it| it.mode != "Access" || it.access.id.is_none()) {
        let problem = match &*vlan.mode {
            "Access" => "access.id is missing".to_owned(),
            other => format!("mode {:?} is not Access", brief(&other)),
        };
        return Some(("vlan", problem));
    }
    if is_localnet && config.physical_network_name.is_empty() {
        return Some(("physicalNetworkName", "it is missing".to_owned()));
    }
    None
}

impl Spec {
    /// The configuration of one of its definitions.
    pub fn config(&self, (namespace, name): &ObjectName) -> Value {
        let mut config = self.config.clone();
        let own = format!("{namespace}/{name}");
        config.insert("netAttachDefName".to_owned(), own.into());
        Value::Object(config)
    }

    /// The annotations of its definitions.
    fn annotations(&self) -> Value {
        annotations(&Value::Object(self.config.clone()))
    }

    /// What of a definition of its own differs from what it should be, as a merge patch (RFC 7386).
    pub fn changes(&self, id: &ObjectName, stored: &Stored) -> Option<Value> {
        let wanted = self.config(id);
        let (config, is_labelled) = stored.content.as_ref()?;
        let is: Option<Value> = serde_json::from_str(config).ok();
        let is_kept = stored.is_kept();
        let annotations = self.annotations();
        let is_annotated = annotations[RESOURCE_NAME].as_str() == stored.resource.as_deref();
        if is.as_ref() == Some(&wanted) && *is_labelled && is_kept && is_annotated {
            return None;
        }
        let mut patch = json!({ "metadata": stored.guard() });
        if is != Some(wanted.clone()) {
            patch["spec"] = json!({ "config": wanted.to_string() });
        }
        if !is_annotated {
            let resource = &annotations[RESOURCE_NAME];
            patch["metadata"]["annotations"] = json!({ RESOURCE_NAME: resource });
        }
        if !is_labelled {
            patch["metadata"]["labels"] = json!({ LABEL: "" });
        }
        if !is_kept {
            let mut all = stored.finalizers.clone();
            all.push(FINALIZER.to_owned());
            patch["metadata"]["finalizers"] = json!(all);
        }
        Some(patch)
    }

    /// A new definition of its own, of the user's network with this key and uid.
    pub fn definition(&self, id: &ObjectName, key: &Key, uid: &str) -> Value {
        let (api, kind) = key.of.kind().unwrap_or_default();
        json!({
            "apiVersion": api::NetworkAttachmentDefinition::API,
            "kind": api::NetworkAttachmentDefinition::KIND,
            "metadata": {
                "namespace": id.0.as_str(),
                "name": id.1.as_str(),
                "labels": { LABEL: "" },
                "annotations": self.annotations(),
                "finalizers": [FINALIZER],
                "ownerReferences": [{
                    "apiVersion": api, "kind": kind, "name": key.name.as_str(), "uid": uid,
                    "controller": true,
                }],
            },
            "spec": { "config": self.config(id).to_string() },
        })
    }
}

impl Stored {
    /// The relevant part of a definition.
    pub fn of(definition: &api::NetworkAttachmentDefinition) -> Self {
        let metadata = &definition.metadata;
        let owner = owner(metadata);
        let config = match &definition.spec {
            Part::Read(spec) => &*spec.config,
            Part::Unreadable(_) => "",
        };
        let is_labelled = metadata.labels.contains_key(LABEL);
        Self {
            uid: metadata.uid.as_str().into(),
            version: version(&metadata.resource_version),
            resource: owner.as_ref().and_then(|_| {
                let resource = metadata.annotations.get(RESOURCE_NAME)?;
                Some(resource.as_str().into())
            }),
            content: owner.is_some().then(|| (config.into(), is_labelled)),
            owner,
            is_deleted: metadata.is_deleted(),
            finalizers: metadata.finalizers.clone(),
        }
    }

    /// Whether it has [`FINALIZER`].
    pub fn is_kept(&self) -> bool {
        self.finalizers.iter().any(|it| it == FINALIZER)
    }

    /// The change that takes [`FINALIZER`] from it.
    pub fn release(&self) -> Value {
        let mut metadata = self.guard();
        metadata["finalizers"] = json!(without(&self.finalizers));
        json!({ "metadata": metadata })
    }

    fn guard(&self) -> Value {
        guard(&self.uid, self.version)
    }
}

/// The finalizers of others.
pub fn without(finalizers: &[String]) -> Vec<&String> {
    finalizers.iter().filter(|it| *it != FINALIZER).collect()
}

/// The user's network that controls an object.
fn owner(metadata: &OwnedMetadata) -> Option<Owner> {
    let owner = metadata.owner_references.iter().find(|it| it.controller)?;
    let (group, _) = owner.api_version.split_once('/')?;
    let is = |of: Of| {
        let (api, kind) = of.kind()?;
        let is_it = api.split_once('/')?.0 == group && kind == owner.kind;
        is_it.then_some(of)
    };
    let of = is(Of::UserNetwork).or_else(|| is(Of::ClusterUserNetwork))?;
    let name: Name = owner.name.as_str().into();
    let key = match of {
        Of::UserNetwork => Key::object(of, (metadata.namespace.as_str().into(), name)),
        of => Key::named(of, name),
    };
    let uid = owner.uid.as_str().into();
    Some(Owner { key, uid })
}

#[cfg(test)]
mod tests;
