//! Publishes this node to the control plane: annotations of its Node, with the names and in the
//! formats of ovn-kubernetes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Event, Node};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PostParams};
use kube::{Api, Client, ResourceExt as _};
use podwire_apiserver::patch_status;
use serde_json::{Value, json};

use crate::cluster::ApiNode;
use crate::items::Item;
use crate::look::Look;

/// The annotation in which the control plane assigns the node its subnets.
pub(crate) const NODE_SUBNETS: &str = "k8s.ovn.org/node-subnets";

/// All annotations that podwire writes.
const WRITTEN: [&str; 8] = [
    "k8s.ovn.org/node-chassis-id",
    "k8s.ovn.org/node-mgmt-port-mac-address",
    "k8s.ovn.org/node-mgmt-port-mac-addresses",
    "k8s.ovn.org/node-encap-ips",
    "k8s.ovn.org/l3-gateway-config",
    "k8s.ovn.org/host-addresses",
    "k8s.ovn.org/host-cidrs",
    "k8s.ovn.org/node-primary-ifaddr",
];

/// Annotations by key.
pub(crate) type Announced = BTreeMap<&'static str, String>;

/// The annotations of a node that is set up.
pub(crate) fn annotations(look: &Look) -> Announced {
    let actual = &look.actual;
    let mut all = BTreeMap::new();
    if let Some(chassis) = actual.key("system-id") {
        all.insert("k8s.ovn.org/node-chassis-id", chassis.to_owned());
    }
    let port = look.plan.items.iter().find_map(|item| match item {
        Item::Port(port) => Some(port),
        _ => None,
    });
    if let Some(port) = port {
        let key = "k8s.ovn.org/node-mgmt-port-mac-address";
        all.insert(key, port.mac.clone());
        let by_network = json!({"default": port.mac}).to_string();
        all.insert("k8s.ovn.org/node-mgmt-port-mac-addresses", by_network);
    }
    if let Some(ips) = actual.key("ovn-encap-ip") {
        let ips: Vec<&str> = ips.split(',').collect();
        all.insert("k8s.ovn.org/node-encap-ips", json!(ips).to_string());
    }
    // The profile has no gateway router: the host routes.
    let gateway = json!({"default": {"mode": ""}});
    all.insert("k8s.ovn.org/l3-gateway-config", gateway.to_string());
    let own = actual.node_addresses();
    all.insert("k8s.ovn.org/host-addresses", json!(own).to_string());
    let nets = actual.addresses.iter();
    let nets = nets.filter(|seen| own.contains(&seen.address.addr()));
    let nets: std::collections::BTreeSet<_> = nets.map(|seen| seen.address).collect();
    all.insert("k8s.ovn.org/host-cidrs", json!(nets).to_string());
    let mut primary = serde_json::Map::new();
    for (family, v4) in [("ipv4", true), ("ipv6", false)] {
        let mut of_uplink = actual.addresses.iter().filter(|seen| {
            Some(&seen.link) == look.plan.uplink.as_ref()
                && seen.global
                && seen.address.addr().is_ipv4() == v4
        });
        if let Some(seen) = of_uplink.next() {
            primary.insert(family.to_owned(), json!(seen.address));
        }
    }
    all.insert(
        "k8s.ovn.org/node-primary-ifaddr",
        Value::from(primary).to_string(),
    );
    all
}

/// Writes the annotations that differ on the Node; returns their number.
///
/// # Errors
/// The API server's.
pub(crate) async fn announce(
    client: &Client,
    name: &str,
    node: &ApiNode,
    wanted: &Announced,
) -> kube::Result<usize> {
    let differs = |(key, value): &(&&str, &String)| node.annotations.get(**key) != Some(value);
    let changed: BTreeMap<_, _> = wanted.iter().filter(differs).collect();
    if changed.is_empty() {
        return Ok(0);
    }
    let patch = json!({"metadata": {"annotations": changed}});
    patch_status::<Node>(client, None, name, &Patch::Merge(patch)).await?;
    Ok(changed.len())
}

/// Removes podwire's annotations; returns their number.
///
/// # Errors
/// The API server's.
pub(crate) async fn withdraw(client: &Client, name: &str) -> kube::Result<usize> {
    let nodes = Api::<Node>::all(client.clone());
    let Some(node) = nodes.get_metadata_opt(name).await? else {
        return Ok(0);
    };
    let there = WRITTEN
        .iter()
        .filter(|key| node.annotations().contains_key(**key));
    // A merge patch removes members whose value is null (RFC 7396).
    let gone: BTreeMap<&str, Value> = there.map(|key| (*key, Value::Null)).collect();
    if !gone.is_empty() {
        let patch = json!({"metadata": {"annotations": gone}});
        patch_status::<Node>(client, None, name, &Patch::Merge(patch)).await?;
    }
    Ok(gone.len())
}

/// What an Event is about.
pub(crate) struct Subject<'a> {
    pub(crate) kind: &'static str,
    /// Empty for an object without one.
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) uid: &'a str,
}

/// Posts a warning Event of this host.
///
/// # Errors
/// The API server's.
pub(crate) async fn warn(
    client: &Client,
    host: &str,
    Subject {
        kind,
        namespace,
        name,
        uid,
    }: &Subject<'_>,
    reason: &str,
    text: &str,
) -> kube::Result<()> {
    let now = Timestamp::now();
    let mut about = json!({ "apiVersion": "v1", "kind": kind, "name": name, "uid": uid });
    let namespace = match *namespace {
        // The namespace of Events about objects without one.
        "" => "default",
        namespace => {
            about["namespace"] = namespace.into();
            namespace
        }
    };
    let event = json!({
        "metadata": {
            "name": format!("{name}.{:x}", now.as_nanosecond()),
            "namespace": namespace,
        },
        "involvedObject": about,
        "type": "Warning",
        "reason": reason,
        "message": text,
        "source": { "component": "podwire-node", "host": host },
        "count": 1,
        "firstTimestamp": now.to_string(),
        "lastTimestamp": now.to_string(),
    });
    let event: Event = serde_json::from_value(event).map_err(kube::Error::SerdeError)?;
    let events = Api::<Event>::namespaced(client.clone(), namespace);
    events
        .create(&PostParams::default(), &event)
        .await
        .map(drop)
}
