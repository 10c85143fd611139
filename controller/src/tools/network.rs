//! Networks beside the default one, as the leader understands them; and their definitions, made,
//! changed and removed with the checks that the leader would make afterwards.

mod import;
pub mod nb;

use std::fmt::{self, Write as _};

use ipnet::IpNet;
use itertools::Itertools as _;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams};
use podwire_cluster::api::NetworkAttachmentDefinition;
use podwire_cluster::resources::RESOURCE_NAME;
use podwire_daemon::output::{Format, some};
use serde::{Deserialize as _, Serialize};
use serde_json::{Value, json};

use super::explain::attached;
use super::{ToolError, View};
use crate::cluster::ObjectName;
use crate::cluster::network::{Definition, Shape, Topology, annotations};
use crate::cluster::user::Stored;
use crate::config::Config;
use crate::ipam::ClusterSubnet;
use crate::key::{Attachment, Key, Network};
use crate::run::shared;

pub use import::import;

/// Pods that a refusal names.
const MOST: usize = 5;

/// What can be said of a network. Of an update: what is not given stays.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ShapeArgs {
    /// Subnets of pods' addresses, one of each family at most; of a layer3 network with the prefix
    /// length of a node's part, such as 10.1.0.0/16/24
    #[arg(long, value_name = "SUBNET", value_delimiter = ',', value_parser = subnet)]
    subnets: Vec<String>,
    /// Parts of them from which no pod gets an address
    #[arg(long, value_name = "SUBNET", value_delimiter = ',')]
    exclude: Vec<IpNet>,
    /// MTU of pods' interfaces
    #[arg(long)]
    mtu: Option<u32>,
    /// Of a localnet network: its VLAN
    #[arg(long, value_name = "ID")]
    vlan: Option<u16>,
    /// Of a localnet network: its name in the nodes' ovn-bridge-mappings
    #[arg(long, value_name = "NAME")]
    physical_network: Option<String>,
}

impl ShapeArgs {
    /// Puts what is given into a definition's configuration.
    fn put(&self, config: &mut Value) {
        let list = |nets: &[IpNet]| (!nets.is_empty()).then(|| nets.iter().join(",").into());
        let fields = [
            (
                "subnets",
                (!self.subnets.is_empty()).then(|| self.subnets.join(",").into()),
            ),
            ("excludeSubnets", list(&self.exclude)),
            ("mtu", self.mtu.map(Value::from)),
            ("vlanID", self.vlan.map(Value::from)),
            (
                "physicalNetworkName",
                self.physical_network.clone().map(Value::from),
            ),
        ];
        for (field, value) in fields {
            if let Some(value) = value {
                config[field] = value;
            }
        }
    }
}

/// The text of a subnet, perhaps with a prefix length of nodes' parts.
fn subnet(text: &str) -> Result<String, String> {
    let is_net = text.parse::<IpNet>().is_ok() || text.parse::<ClusterSubnet>().is_ok();
    match is_net {
        true => Ok(text.to_owned()),
        false => Err("expected a network, such as 10.1.0.0/16 or 10.1.0.0/16/24".to_owned()),
    }
}

/// A network, and who is on it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    network: String,
    /// What its row says it is; null while it has none.
    shape: Option<Shape>,
    definitions: Vec<DefinitionAnswer>,
    /// The pods on it.
    attachments: Vec<AttachmentAnswer>,
    /// The ports on it, without a cluster.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ports: Vec<String>,
}

#[derive(Debug, Serialize)]
struct DefinitionAnswer {
    /// NAMESPACE/NAME; null for a user's network without a definition.
    definition: Option<String>,
    /// The user's network that it is made for: KIND NAME, or KIND NAMESPACE/NAME.
    from: Option<String>,
    /// Why it is not, or not wholly, what the network is.
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
struct AttachmentAnswer {
    /// NAMESPACE/NAME.
    pod: String,
    /// The entry in the pod's annotation.
    entry: String,
    /// The Logical_Switch_Port, with its addresses.
    port: String,
}

/// What a command has done.
#[derive(Debug, Serialize)]
pub struct Done {
    change: Change,
    /// NAMESPACE/NAME; null without a cluster.
    definition: Option<String>,
    /// Null for a definition that names none, or has a mistake.
    network: Option<String>,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum Change {
    Created,
    Updated,
    Deleted,
    /// It is so already.
    Unchanged,
}

/// For people.
impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let network = self.network.as_deref().unwrap_or_default();
        let (what, of) = match &self.definition {
            Some(definition) => (definition.clone(), format!(" of network {network}")),
            None => (format!("network {network}"), String::new()),
        };
        match self.change {
            Change::Created => writeln!(f, "created {what}{of}"),
            Change::Updated => writeln!(f, "updated {what}{of}"),
            Change::Deleted => writeln!(f, "deleted {what}"),
            Change::Unchanged => writeln!(f, "{what} is so already"),
        }
    }
}

impl Done {
    fn with(change: Change, id: &ObjectName, network: Option<&Network>) -> Self {
        Self {
            change,
            definition: Some(shown(id)),
            network: network.map(|it| it.name().to_string()),
        }
    }

    /// Without a cluster.
    fn alone(change: Change, network: &str) -> Self {
        let network = Some(network.to_owned());
        Self {
            change,
            definition: None,
            network,
        }
    }

    /// In this format, with what the command ends with.
    ///
    /// # Errors
    /// It can't be encoded.
    pub fn encoded(&self, format: Format) -> Result<(String, bool), ToolError> {
        let text = format.encode(self, || self.to_string());
        Ok((text.map_err(ToolError::Format)?, true))
    }
}

impl Answer {
    fn is_well(&self) -> bool {
        self.shape.is_some() && self.definitions.iter().all(|it| it.problem.is_none())
    }
}

/// All networks, or one with who is on it, as text; false if one has a problem.
///
/// # Errors
/// See [`ToolError`].
pub async fn networks(
    config: &Config,
    name: Option<&str>,
    format: Format,
) -> Result<(String, bool), ToolError> {
    let mut view = View::open(config).await?;
    // So that what definitions are refused for is known.
    drop(view.pending());
    answered(answers(&view), name, format)
}

/// All of them, or one; false if one has a problem.
fn answered(
    mut answers: Vec<Answer>,
    name: Option<&str>,
    format: Format,
) -> Result<(String, bool), ToolError> {
    if let Some(name) = name {
        answers.retain(|it| it.network == name);
        let Some(answer) = answers.first() else {
            return Err(ToolError::Missing(format!("there is no network {name}")));
        };
        let text = format.encode(answer, || answer.to_string());
        return Ok((text.map_err(ToolError::Format)?, answer.is_well()));
    }
    let is_well = answers.iter().all(Answer::is_well);
    let text = format.encode(&answers, || table(&answers));
    Ok((text.map_err(ToolError::Format)?, is_well))
}

fn answers(view: &View) -> Vec<Answer> {
    let (state, cluster) = (&view.state, &view.state.cluster);
    let defined = cluster.definitions.values();
    let defined = defined.filter_map(|it| it.network.as_ref().ok().map(|it| &it.0));
    let mut names: Vec<&Network> = defined.chain(state.networks.live.keys()).collect();
    names.sort();
    names.dedup();
    let mut answers: Vec<Answer> = names
        .into_iter()
        .map(|network| Answer {
            network: network.name().to_string(),
            shape: state.networks.live.get(network).cloned(),
            definitions: definitions(view, |it| matches!(&it.network, Ok(it) if it.0 == *network)),
            attachments: attachments(view, network),
            ports: Vec::new(),
        })
        .collect();
    // Each with a mistake stands for itself: its network is not known.
    let wrong = definitions(view, |it| it.network.is_err());
    for wrong in wrong.into_iter().chain(refused(view)) {
        answers.push(Answer {
            network: format!("of {}", wrong.name()),
            shape: None,
            definitions: vec![wrong],
            attachments: Vec::new(),
            ports: Vec::new(),
        });
    }
    answers
}

/// Users' networks with problems of their own.
fn refused(view: &View) -> Vec<DefinitionAnswer> {
    let all = view.state.cluster.user_networks.keys();
    all.filter_map(|key| {
        Some(DefinitionAnswer {
            definition: None,
            from: Some(object(key)),
            problem: Some(view.state.problem_of(key)?),
        })
    })
    .collect()
}

/// A user's network, as people name it.
fn object(key: &Key) -> String {
    let (_, kind) = key.of.kind().unwrap_or_default();
    match &*key.namespace {
        "" => format!("{kind} {}", key.name),
        namespace => format!("{kind} {namespace}/{}", key.name),
    }
}

impl DefinitionAnswer {
    fn name(&self) -> String {
        match (&self.definition, &self.from) {
            (Some(definition), None) => definition.clone(),
            (Some(definition), Some(from)) => format!("{definition} of {from}"),
            (None, from) => from.clone().unwrap_or_default(),
        }
    }
}

fn definitions(view: &View, wanted: impl Fn(&Definition) -> bool) -> Vec<DefinitionAnswer> {
    let all = view.state.cluster.definitions.iter();
    all.filter(|(_, it)| wanted(it))
        .map(|(id, it)| DefinitionAnswer {
            definition: Some(shown(id)),
            from: view.state.owner(id).map(object),
            problem: match &it.network {
                Err(problem) => Some(problem.clone()),
                Ok(_) => view.state.refusal(id),
            },
        })
        .collect()
}

fn attachments(view: &View, network: &Network) -> Vec<AttachmentAnswer> {
    let holders = view.state.networks.holders(network);
    let entries = holders.flat_map(|pod| view.state.networks.of(pod).map(move |it| (pod, it)));
    let own = entries.filter(|(_, (_, of))| *of == network);
    own.map(|(pod, (entry, _))| AttachmentAnswer {
        pod: shown(pod),
        entry: entry.to_string(),
        port: {
            let (pod, entry) = (pod.clone(), entry.clone());
            view.ovsdb
                .read(|db| attached(db, &Attachment { pod, entry }))
        },
    })
    .collect()
}

/// Makes the definition of a network.
///
/// # Errors
/// It is known in another shape, or has a mistake; and [`ToolError`].
pub async fn create(
    config: &Config,
    id: &ObjectName,
    network: Option<&str>,
    topology: Topology,
    shape: &ShapeArgs,
) -> Result<Done, ToolError> {
    let mut view = View::open(config).await?;
    let (namespace, name) = id;
    let network = network.map_or_else(|| format!("{namespace}-{name}"), str::to_owned);
    let mut wanted = config_of(id, &network, topology);
    shape.put(&mut wanted);
    let object = object_of(id, &wanted);
    let (definition, network, asked) = checked(id, &object)?;
    if let Some(known) = view.state.networks.live.get(&network) {
        let fields = known.differing(&asked);
        if !fields.is_empty() {
            return Err(ToolError::Refused(format!(
                "network {} exists with other {}",
                network.name(),
                fields.join(", ")
            )));
        }
    }
    let api = api(&view, namespace);
    let exists = api.get_opt(name).await?.is_some();
    // If it exists, the API server says so.
    if !exists {
        may_be(&mut view, id, &definition, &network)?;
    }
    let object: DynamicObject =
        serde_json::from_value(object).map_err(|error| ToolError::Mistake(error.to_string()))?;
    api.create(&PostParams::default(), &object).await?;
    Ok(Done::with(Change::Created, id, Some(&network)))
}

/// The configuration of a definition, without what can be said of its network.
fn config_of(id: &ObjectName, network: &str, topology: Topology) -> Value {
    json!({
        "cniVersion": "1.0.0", "type": "podwire-cni", "name": network,
        "netAttachDefName": shown(id), "topology": topology.word(),
    })
}

/// A definition with this configuration.
fn object_of((namespace, name): &ObjectName, config: &Value) -> Value {
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {
            "name": name.as_str(), "namespace": namespace.as_str(),
            "annotations": annotations(config),
        },
        "spec": { "config": config.to_string() },
    })
}

/// Changes the definition of a network, if all of the change can be done in place.
///
/// # Errors
/// Pods are on the network, and something can't change under them; and as [`create`].
pub async fn update(
    config: &Config,
    id: &ObjectName,
    shape: &ShapeArgs,
) -> Result<Done, ToolError> {
    let mut view = View::open(config).await?;
    is_nobodys(&view, id)?;
    let api = api(&view, &id.0);
    let mut object = api.get(&id.1).await?;
    let text = object.data["spec"]["config"].as_str().unwrap_or_default();
    let parsed = serde_json::from_str::<Value>(text);
    let mut wanted = parsed.map_err(|error| {
        ToolError::Refused(format!("{}: spec.config is no JSON: {error}", shown(id)))
    })?;
    if !wanted["plugins"].is_null() {
        let what = "its spec.config has plugins: edit it";
        return Err(ToolError::Refused(format!("{}: {what}", shown(id))));
    }
    shape.put(&mut wanted);
    let read = json!({ "metadata": object.metadata, "spec": { "config": wanted.to_string() } });
    let (definition, network, asked) = checked(id, &read)?;
    let holders: Vec<String> = view.state.networks.holders(&network).map(shown).collect();
    if let Some(known) = view.state.networks.live.get(&network) {
        let fields = known.fixed(&asked);
        if !fields.is_empty() && !holders.is_empty() {
            return Err(ToolError::Refused(format!(
                "{} of network {} can't change while pods are on it: {}",
                fields.join(", "),
                network.name(),
                listed(&holders)
            )));
        }
        // What its definition says may be refused, and so not be what it is.
        let said = view.state.cluster.definitions.get(id);
        let said = said.and_then(|it| it.network.as_ref().ok());
        let is_said = said.is_some_and(|(_, said)| said.differing(&asked).is_empty());
        if is_said && known.differing(&asked).is_empty() {
            return Ok(Done::with(Change::Unchanged, id, Some(&network)));
        }
    }
    may_be(&mut view, id, &definition, &network)?;
    object.data["spec"]["config"] = wanted.to_string().into();
    let resource = annotations(&wanted)[RESOURCE_NAME]
        .as_str()
        .map(str::to_owned);
    if let Some(resource) = resource {
        let annotations = object.metadata.annotations.get_or_insert_default();
        annotations.insert(RESOURCE_NAME.to_owned(), resource);
    }
    api.replace(&id.1, &PostParams::default(), &object).await?;
    Ok(Done::with(Change::Updated, id, Some(&network)))
}

/// Removes the definition of a network.
///
/// # Errors
/// Pods ask for it, or are on its network by it; and [`ToolError`].
pub async fn delete(config: &Config, id: &ObjectName) -> Result<Done, ToolError> {
    let view = View::open(config).await?;
    is_nobodys(&view, id)?;
    let users: Vec<String> = view.state.users(id).iter().map(shown).collect();
    if !users.is_empty() {
        return Err(ToolError::Refused(format!(
            "pods are on the network of {}: {}",
            shown(id),
            listed(&users)
        )));
    }
    let api = api(&view, &id.0);
    api.delete(&id.1, &DeleteParams::default()).await?;
    let definition = view.state.cluster.definitions.get(id);
    let network = definition.and_then(|it| it.network.as_ref().ok());
    Ok(Done::with(Change::Deleted, id, network.map(|it| &it.0)))
}

/// A definition that is made for a user's network would be put back.
fn is_nobodys(view: &View, id: &ObjectName) -> Result<(), ToolError> {
    let Some(owner) = view.state.owner(id) else {
        return Ok(());
    };
    let (id, owner) = (shown(id), object(owner));
    let why = format!("{id} is made for {owner}: change or delete that");
    Err(ToolError::Refused(why))
}

/// What the leader would read of such a definition.
fn checked(
    id: &ObjectName,
    object: &Value,
) -> Result<(NetworkAttachmentDefinition, Network, Shape), ToolError> {
    let object = NetworkAttachmentDefinition::deserialize(object);
    let object = object.map_err(|error| ToolError::Mistake(error.to_string()))?;
    match Definition::of(&object).map(|it| it.network) {
        Some(Ok((network, shape))) => Ok((object, network, shape)),
        Some(Err(problem)) => Err(ToolError::Mistake(format!("{}: {problem}", shown(id)))),
        None => {
            let what = "it is another plugin's, or means the default network";
            Err(ToolError::Refused(format!("{}: {what}", shown(id))))
        }
    }
}

/// Refuses what the leader would refuse.
fn may_be(
    view: &mut View,
    id: &ObjectName,
    object: &NetworkAttachmentDefinition,
    network: &Network,
) -> Result<(), ToolError> {
    let learned = (Definition::of(object), Stored::of(object));
    view.state.learn_definition(id.clone(), Some(learned));
    let mut keys = [shared(network)].into();
    drop(view.state.step(&view.ovsdb, &mut keys, None));
    match view.state.refusal(id) {
        Some(problem) => Err(ToolError::Refused(format!("{}: {problem}", shown(id)))),
        None => Ok(()),
    }
}

fn api(view: &View, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
    let resource = ApiResource::from_gvk_with_plural(&kind, "network-attachment-definitions");
    Api::namespaced_with(view.client.clone(), namespace, &resource)
}

fn shown((namespace, name): &ObjectName) -> String {
    format!("{namespace}/{name}")
}

fn listed(pods: &[String]) -> String {
    some(pods, MOST, ", ", " and ")
}

fn table(answers: &[Answer]) -> String {
    let width = answers.iter().map(|it| it.network.chars().count()).max();
    let width = width.unwrap_or_default().max("NETWORK".len());
    let mut text = format!("{:<width$}  TOPOLOGY  PODS  SUBNETS\n", "NETWORK");
    for it in answers {
        let topology = it.shape.as_ref().map_or("-", |shape| shape.topology.word());
        let subnets = it.shape.as_ref().map(subnets).unwrap_or_default();
        let line = format!(
            "{:<width$}  {topology:<8}  {:<4}  {subnets}",
            it.network,
            it.attachments.len() + it.ports.len()
        );
        text.push_str(line.trim_end());
        text.push('\n');
        for it in &it.definitions {
            match (&it.problem, &it.from) {
                (Some(problem), _) => {
                    let _ = writeln!(text, "    {}: {problem}", it.name());
                }
                (None, Some(_)) => {
                    let _ = writeln!(text, "    {}", it.name());
                }
                (None, None) => {}
            }
        }
    }
    text
}

fn subnets(shape: &Shape) -> String {
    if shape.topology == Topology::Layer3 {
        return ClusterSubnet::list(&shape.divided()).replace(',', ", ");
    }
    shape.subnets.iter().join(", ")
}

/// For people.
impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, content: &str| writeln!(f, "{name:<11} {content}");
        line("network", &self.network)?;
        match &self.shape {
            None => line("topology", "it has no rows")?,
            Some(shape) => {
                line("topology", shape.topology.word())?;
                let nets = subnets(shape);
                line("subnets", if nets.is_empty() { "none" } else { &nets })?;
                let excluded: Vec<_> = shape.exclude_subnets.iter().map(IpNet::to_string).collect();
                let facts = [
                    (
                        "excluded",
                        (!excluded.is_empty()).then(|| excluded.join(", ")),
                    ),
                    ("mtu", shape.mtu.map(|it| it.to_string())),
                    ("vlan", shape.vlan.map(|it| it.to_string())),
                    ("physical", shape.physical_network_name.clone()),
                ];
                for (name, fact) in facts {
                    if let Some(fact) = fact {
                        line(name, &fact)?;
                    }
                }
            }
        }
        for it in &self.definitions {
            let problem = it.problem.as_ref().map(|it| format!(": {it}"));
            let problem = problem.unwrap_or_default();
            line("definition", &format!("{}{problem}", it.name()))?;
        }
        for it in &self.attachments {
            line(
                "attachment",
                &format!("{} as {}: {}", it.pod, it.entry, it.port),
            )?;
        }
        for port in &self.ports {
            line("port", port)?;
        }
        Ok(())
    }
}
