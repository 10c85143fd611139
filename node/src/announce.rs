//! Publishes this node to the control plane: annotations of its Node, with the names and in the
//! formats of ovn-kubernetes, and the physical networks that it connects, as extended resources.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, Patch};
use kube::{Api, Client, ResourceExt as _};
use podwire_apiserver::{is_too_late, patch_status, with_causes};
use podwire_cluster::annotations::{
    DOOR_MAC, ENCAP_IPS, GATEWAY, HOST_ADDRESSES, HOST_CIDRS, MANAGEMENT_MAC, MANAGEMENT_MACS,
    NO_LIMIT, NODE_CHASSIS, PRIMARY_ADDRESS,
};
use podwire_cluster::condition::{NETWORK_UNAVAILABLE, is_of_node_role};
use podwire_cluster::gateway::{self, Gateway};
use podwire_cluster::networks;
use podwire_cluster::resources::{QUANTITY, of_network};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::LINK;
use crate::cluster::{ApiNode, Condition, Resources, own};
use crate::items::{ENCAP_IP, Item};
use crate::snapshot::Snapshot;

/// Time limit of a write.
const DEADLINE: Duration = Duration::from_secs(10);

/// Annotations with one value.
const WHOLE: [&str; 8] = [
    NODE_CHASSIS,
    MANAGEMENT_MAC,
    ENCAP_IPS,
    HOST_ADDRESSES,
    HOST_CIDRS,
    PRIMARY_ADDRESS,
    DOOR_MAC,
    NO_LIMIT,
];
/// Annotations with an entry for each network; those of others stay.
const BY_NETWORK: [&str; 2] = [MANAGEMENT_MACS, GATEWAY];

/// Annotations by key, and resources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Announced {
    whole: BTreeMap<&'static str, String>,
    /// The entries of the default network.
    entries: BTreeMap<&'static str, Value>,
    resources: BTreeSet<String>,
}

/// What is published of a node that is set up, with those it has.
pub(crate) fn annotations(snapshot: &Snapshot, node: &ApiNode) -> Announced {
    let actual = &snapshot.actual;
    let mut all = BTreeMap::new();
    let mut entries = BTreeMap::new();
    entries.extend(gateway(snapshot, node).map(|entry| (GATEWAY, entry)));
    if let Some(chassis) = actual.key("system-id") {
        all.insert(NODE_CHASSIS, chassis.to_owned());
    }
    let port = snapshot.plan.items.iter().find_map(|item| match item {
        Item::Port(port) if port.link == LINK => Some(port),
        _ => None,
    });
    if let Some(port) = port {
        all.insert(MANAGEMENT_MAC, port.mac.clone());
        entries.insert(MANAGEMENT_MACS, json!(port.mac));
    }
    let limits = actual.switch.limits_connections;
    let while_so = [
        // Other nodes send by a door only while this says that it is there.
        (DOOR_MAC, snapshot.door().map(str::to_owned)),
        (NO_LIMIT, (limits == Some(false)).then(|| "true".to_owned())),
    ];
    for (key, value) in while_so {
        if value.is_some() || node.annotations.contains_key(key) {
            all.insert(key, value.unwrap_or_default());
        }
    }
    if let Some(ips) = actual.key(ENCAP_IP) {
        let ips: Vec<&str> = ips.split(',').collect();
        all.insert(ENCAP_IPS, json!(ips).to_string());
    }
    let own = actual.node_addresses();
    all.insert(HOST_ADDRESSES, json!(own).to_string());
    let nets = actual.addresses.iter();
    let nets = nets.filter(|seen| own.contains(&seen.address.addr()));
    let nets: BTreeSet<_> = nets.map(|seen| seen.address).collect();
    all.insert(HOST_CIDRS, json!(nets).to_string());
    let mut primary = serde_json::Map::new();
    for (family, v4) in [("ipv4", true), ("ipv6", false)] {
        let mut of_uplink = actual.addresses.iter().filter(|seen| {
            Some(&seen.link) == snapshot.plan.uplink.as_ref()
                && seen.global
                && seen.address.addr().is_ipv4() == v4
        });
        if let Some(seen) = of_uplink.next() {
            primary.insert(family.to_owned(), json!(seen.address));
        }
    }
    all.insert(PRIMARY_ADDRESS, Value::from(primary).to_string());
    let networks = actual.switch.networks.iter();
    Announced {
        whole: all,
        entries,
        resources: networks.filter_map(|it| of_network(it)).collect(),
    }
}

/// The entry of its gateway; none to leave the former one.
fn gateway(snapshot: &Snapshot, node: &ApiNode) -> Option<Value> {
    if snapshot.plan.flows().is_none() {
        // The host routes.
        return Some(gateway::none());
    }
    // A gateway router would take packets of a host whose bridge has no flows. Once there is one,
    // it stays: ovs-vswitchd may just be starting, and a network manager renewing routes.
    let seen = node
        .annotations
        .get(GATEWAY)
        .map(|text| networks::read(text).0);
    let is_announced = seen.is_some_and(|entry| entry["mode"] == "shared");
    let mut findings = snapshot.findings.iter();
    let has_flows = findings.any(|it| matches!(it.item, Item::BridgeFlows(_)) && it.is_well());
    let gateway = snapshot.plan.gateway.as_ref();
    match is_announced {
        true => gateway.map(Gateway::entry),
        false => {
            let ready = gateway.filter(|_| has_flows);
            Some(ready.map_or_else(gateway::none, Gateway::entry))
        }
    }
}

type Annotations = BTreeMap<String, String>;
/// Resources with their quantities, or to remove.
type Change = BTreeMap<String, Option<&'static str>>;

impl Announced {
    /// Those with one value that a Node with these lacks.
    fn whole_missing(&self, seen: &Annotations) -> BTreeMap<&'static str, &str> {
        let wanted = self.whole.iter().map(|(key, value)| (*key, value.as_str()));
        let is_missing = |(key, value): &(&str, &str)| seen.get(*key).is_none_or(|it| it != value);
        wanted.filter(is_missing).collect()
    }

    /// Those with an entry for each network that a Node with these lacks, beside others' entries.
    fn entries_missing(&self, seen: &Annotations) -> BTreeMap<&'static str, String> {
        let missing = self.entries.iter().filter_map(|(key, entry)| {
            let (own, others) = networks::read(seen.get(*key).map_or("{}", String::as_str));
            let value = others.with(entry).ok()?;
            (own != *entry).then_some((*key, value))
        });
        missing.collect()
    }

    /// The change of a Node's capacity and allocatable that makes podwire's resources these.
    fn resources_missing(&self, [capacity, allocatable]: &[Resources; 2]) -> [Change; 2] {
        let change = |seen: &Resources| {
            let wanted = self.resources.iter();
            let wanted = wanted.filter(|name| seen.get(*name).is_none_or(|it| it != QUANTITY));
            let wanted = wanted.map(|name| (name.clone(), Some(QUANTITY)));
            let gone = seen.keys().filter(|name| !self.resources.contains(*name));
            wanted
                .chain(gone.map(|name| (name.clone(), None)))
                .collect()
        };
        [change(capacity), change(allocatable)]
    }

    fn lacks_annotations(&self, node: &ApiNode) -> bool {
        let seen = &node.annotations;
        !self.whole_missing(seen).is_empty() || !self.entries_missing(seen).is_empty()
    }

    /// How many a Node lacks, or has in excess.
    pub(crate) fn missing(&self, node: &ApiNode) -> usize {
        let seen = &node.annotations;
        let [capacity, allocatable] = self.resources_missing(&node.resources);
        let resources = capacity.len().max(allocatable.len());
        self.whole_missing(seen).len() + self.entries_missing(seen).len() + resources
    }
}

/// Writes the annotations and resources that this Node lacks, and returns how many. The watch
/// brings one that replaced it.
///
/// # Errors
/// The API server's, or none came in time, in words.
pub(crate) async fn announce(
    client: Client,
    name: String,
    node: Arc<ApiNode>,
    wanted: Announced,
) -> Result<usize, String> {
    let patch = |mut change: Value| {
        if !node.uid.is_empty() {
            change["metadata"]["uid"] = node.uid.as_str().into();
        }
        patch(&client, &name, change)
    };
    let annotate = async {
        let whole = wanted.whole_missing(&node.annotations);
        loop {
            // The answer says what others have written, and in which version of the Node.
            let seen = patch(json!({ "metadata": { "annotations": whole } })).await?;
            let entries = wanted.entries_missing(seen.annotations.as_ref().unwrap_or(&NONE));
            if entries.is_empty() {
                return Ok(());
            }
            let version = seen.resource_version;
            let entries = json!({ "annotations": entries, "resourceVersion": version });
            match patch(json!({ "metadata": entries })).await {
                Err(error) if is_conflict(&error) => {}
                written => return written.map(drop),
            }
        }
    };
    let write = async {
        if wanted.lacks_annotations(&node) {
            annotate.await?;
        }
        // By themselves: who may not write them still has its annotations.
        let [capacity, allocatable] = wanted.resources_missing(&node.resources);
        if !capacity.is_empty() || !allocatable.is_empty() {
            patch(resources(&capacity, &allocatable)).await?;
        }
        kube::Result::Ok(())
    };
    in_time(write.map(|written| match written {
        Err(error) if is_too_late(&error) => Ok(0),
        written => written.map(|()| wanted.missing(&node)),
    }))
    .await
}

/// The change of a Node's resources. A merge patch removes members whose value is null (RFC 7396).
fn resources(capacity: &Change, allocatable: &Change) -> Value {
    json!({ "status": { "capacity": capacity, "allocatable": allocatable } })
}

static NONE: Annotations = Annotations::new();

fn patch(
    client: &Client,
    name: &str,
    change: Value,
) -> impl Future<Output = kube::Result<ObjectMeta>> {
    let patch = Patch::Merge(change);
    async move { patch_status::<Node>(client, None, name, &patch).await }
}

/// Says by the Node's condition NetworkUnavailable whether pods have a network there. A strategic
/// patch leaves other conditions, and the fields of this one that it does not name.
///
/// # Errors
/// The API server's, or none came in time, in words.
pub(crate) async fn tell(
    client: Client,
    name: String,
    node: Arc<ApiNode>,
    wanted: Condition,
) -> Result<(), String> {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut condition = json!({
        "type": NETWORK_UNAVAILABLE,
        "status": wanted.status,
        "reason": wanted.reason,
        "message": wanted.message,
        "lastHeartbeatTime": now,
    });
    let seen = node.condition.as_ref();
    if seen.is_none_or(|seen| seen.status != wanted.status) {
        condition["lastTransitionTime"] = now.into();
    }
    let mut change = json!({ "status": { "conditions": [condition] } });
    if !node.uid.is_empty() {
        change["metadata"] = json!({ "uid": node.uid });
    }
    let patch = Patch::Strategic(change);
    let written = patch_status::<Node>(&client, None, &name, &patch);
    in_time(written.map(|written| match written {
        Err(error) if is_too_late(&error) => Ok(()),
        written => written.map(drop),
    }))
    .await
}

/// Whether another has written since the version that the write names.
fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// The answer of the API server; or what is wrong, or that none came in time, in words.
async fn in_time<T>(answer: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match timeout(DEADLINE, answer).await {
        Ok(answer) => answer.map_err(|error| with_causes(&error)),
        Err(_) => Err(format!("no answer within {} s", DEADLINE.as_secs())),
    }
}

/// Removes podwire's annotations, its entries beside those of others, its resources, and the
/// condition, if it is the node role's; returns the number of annotations and that of resources.
///
/// # Errors
/// The API server's, or none came in time, in words.
pub(crate) async fn withdraw(client: &Client, name: &str) -> Result<(usize, usize), String> {
    let nodes = Api::<Node>::all(client.clone());
    in_time(async {
        loop {
            let Some(node) = nodes.get_opt(name).await? else {
                return Ok((0, 0));
            };
            let gone = withdrawn(node.annotations());
            let status = node.status.unwrap_or_default();
            let mut conditions = status.conditions.iter().flatten();
            let is_told = conditions.any(|it| {
                let reason = it.reason.as_deref().unwrap_or_default();
                it.type_ == NETWORK_UNAVAILABLE && is_of_node_role(reason)
            });
            if is_told {
                let gone = json!({ "type": NETWORK_UNAVAILABLE, "$patch": "delete" });
                let patch = Patch::Strategic(json!({ "status": { "conditions": [gone] } }));
                patch_status::<Node>(client, None, name, &patch).await?;
            }
            let seen = [status.capacity, status.allocatable].map(|all| {
                let all = all.unwrap_or_default().into_iter();
                own(&all.map(|(name, quantity)| (name, quantity.0)).collect())
            });
            let [capacity, allocatable] = Announced::default().resources_missing(&seen);
            let number = capacity.len().max(allocatable.len());
            if gone.is_empty() && number == 0 {
                return Ok((0, 0));
            }
            let mut change = resources(&capacity, &allocatable);
            let version = node.metadata.resource_version;
            change["metadata"] = json!({ "annotations": gone, "resourceVersion": version });
            match patch(client, name, change).await {
                Err(error) if is_conflict(&error) => {}
                written => return written.map(|_| (gone.len(), number)),
            }
        }
    })
    .await
}

/// Removes what leads others here: the annotation of the door, for what they send by one that is
/// gone is lost, and the resources of these physical networks.
///
/// # Errors
/// The API server's, or none came in time, in words.
pub(crate) async fn withdraw_offers(
    client: &Client,
    name: &str,
    networks: &BTreeSet<String>,
) -> Result<(), String> {
    let names = networks.iter().filter_map(|it| of_network(it));
    let gone: Change = names.map(|name| (name, None)).collect();
    let mut change = resources(&gone, &gone);
    change["metadata"] = json!({ "annotations": { DOOR_MAC: null } });
    in_time(patch(client, name, change).map(|written| match written {
        Err(error) if is_too_late(&error) => Ok(()),
        written => written.map(drop),
    }))
    .await
}

/// The annotations to change. A merge patch removes members whose value is null (RFC 7396).
fn withdrawn(seen: &Annotations) -> BTreeMap<&'static str, Option<String>> {
    let whole = WHOLE.iter().filter(|key| seen.contains_key(**key));
    let whole = whole.map(|key| (*key, None));
    let entries = BY_NETWORK.iter().filter_map(|key| {
        let (own, others) = networks::read(seen.get(*key)?);
        (!own.is_null()).then(|| (*key, others.alone()))
    });
    whole.chain(entries).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_other_networks_survive_both_ways() {
        let theirs = r#""blue":{"mode":"shared","n":12345678901234567890.12}"#;
        let node = |gateway: String| ApiNode {
            annotations: [(GATEWAY.to_owned(), gateway)].into(),
            ..ApiNode::default()
        };
        let wanted = Announced {
            entries: [(GATEWAY, json!({"mode": ""}))].into(),
            ..Announced::default()
        };
        let both = format!(r#"{{{theirs},"default":{{"mode":""}}}}"#);
        for old in [
            format!("{{{theirs}}}"),
            format!(r#"{{"default": 1, {theirs}}}"#),
        ] {
            let missing = wanted.entries_missing(&node(old).annotations);
            assert_eq!(missing, [(GATEWAY, both.clone())].into());
        }
        let node = node(both);
        assert_eq!(wanted.missing(&node), 0);
        let alone = Some(format!("{{{theirs}}}"));
        assert_eq!(withdrawn(&node.annotations), [(GATEWAY, alone)].into());
        let own = [(GATEWAY.to_owned(), r#"{"default":1}"#.to_owned())].into();
        assert_eq!(withdrawn(&own), [(GATEWAY, None)].into());
    }
}
