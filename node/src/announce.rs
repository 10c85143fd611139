//! Publishes this node to the control plane: annotations of its Node, with the names and in the
//! formats of ovn-kubernetes.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::Patch;
use kube::{Api, Client, ResourceExt as _};
use podwire_apiserver::{is_too_late, patch_status, with_causes};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::cluster::ApiNode;
use crate::items::Item;
use crate::look::Look;

/// Time limit of a write.
const DEADLINE: Duration = Duration::from_secs(10);

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

/// Writes annotations to the Node with this uid, and returns how many. The watch brings one that
/// replaced it.
///
/// # Errors
/// The API server's, or none came in time, in words.
pub(crate) async fn announce(
    client: Client,
    name: String,
    uid: String,
    changed: Announced,
) -> Result<usize, String> {
    let mut patch = json!({"metadata": {"annotations": changed}});
    if !uid.is_empty() {
        patch["metadata"]["uid"] = uid.into();
    }
    let patch = Patch::Merge(patch);
    let patched = patch_status::<Node>(&client, None, &name, &patch);
    in_time(patched.map(|patched| match patched {
        Err(error) if is_too_late(&error) => Ok(0),
        patched => patched.map(|_| changed.len()),
    }))
    .await
}

/// The answer of the API server; or what is wrong, or that none came in time, in words.
async fn in_time<T>(answer: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match timeout(DEADLINE, answer).await {
        Ok(answer) => answer.map_err(|error| with_causes(&error)),
        Err(_) => Err(format!("no answer within {} s", DEADLINE.as_secs())),
    }
}

/// Those of the wanted annotations that the Node lacks.
pub(crate) fn missing(node: &ApiNode, wanted: &Announced) -> Announced {
    let differs = |(key, value): &(&&str, &String)| node.annotations.get(**key) != Some(value);
    let missing = wanted.iter().filter(differs);
    missing.map(|(key, value)| (*key, value.clone())).collect()
}

/// Removes podwire's annotations; returns their number.
///
/// # Errors
/// The API server's, or none came in time, in words.
pub(crate) async fn withdraw(client: &Client, name: &str) -> Result<usize, String> {
    let nodes = Api::<Node>::all(client.clone());
    let Some(node) = in_time(nodes.get_metadata_opt(name)).await? else {
        return Ok(0);
    };
    let there = WRITTEN
        .iter()
        .filter(|key| node.annotations().contains_key(**key));
    // A merge patch removes members whose value is null (RFC 7396).
    let gone: BTreeMap<&str, Value> = there.map(|key| (*key, Value::Null)).collect();
    if !gone.is_empty() {
        let patch = json!({"metadata": {"annotations": gone}});
        in_time(patch_status::<Node>(
            client,
            None,
            name,
            &Patch::Merge(patch),
        ))
        .await?;
    }
    Ok(gone.len())
}
