//! GC: removes what the runtime no longer lists, of this network and of podwire only.

use std::collections::{BTreeSet, HashMap};

use podwire_cni::spec::Attachment;
use podwire_cni::spool::boottime;
use serde_json::{Value, json};

use super::lines::sandbox_line;
use super::removal::remove;
use super::{Call, Error, Handles, READY_DEADLINE, ovs_cni};
use crate::config::usual::{DROP_IN, DROP_IN_NETWORK};
use crate::observe::{Repair, Trace};
use crate::plan::{AttachmentKey, ids};

/// Networks and sandboxes with ADDs in progress, and their interfaces.
type UnderWay = HashMap<(String, String), Vec<String>>;

/// Removes every attachment of the network that `cni.dev/valid-attachments` does not list, and
/// continues after an error.
pub(super) async fn gc(node: &Handles, call: &Call, trace: &mut Trace) -> Result<(), Error> {
    let valid = call.conf.valid_attachments();
    let valid = valid.ok_or(Error::NoValidAttachments)?;
    // The runtime made its list before it knew their outcome.
    let under_way = node.lines.under_way();
    let began = boottime();
    node.settled_within(READY_DEADLINE).await?;
    node.ports.synced(READY_DEADLINE).await?;
    let sweeping = sweep(node, call, valid, &under_way, began);
    let mut errors = trace.timed("sweep", sweeping).await;
    errors.extend(delegated_gc(node, call, &under_way).await.err());
    Error::gather(errors)
}

async fn sweep(
    node: &Handles,
    call: &Call,
    valid: &[Attachment],
    under_way: &UnderWay,
    began: u64,
) -> Vec<Error> {
    let mut errors = Vec::new();
    let mut known = node.attachments();
    known.retain(|key| key.network == call.conf.name);
    known.extend(of_ovn_kubernetes(node, call).await);
    for key in known {
        let is_valid = valid
            .iter()
            .any(|it| it.container_id == key.container_id && it.ifname == key.ifname);
        if is_valid
            || under_way.contains_key(&sandbox_line(&key))
            || node.lines.is_busy(&key)
            || is_newer(node, &key, began)
        {
            continue;
        }
        let place = node.lines.join_del(&key);
        place.turn().await;
        tracing::info!(attachment = %key, "removed: the runtime no longer lists it");
        node.metrics.repaired(Repair::Unlisted, 1);
        errors.extend(remove(node, &key).await.err());
    }
    if ovs_cni::is_for(call) {
        errors.extend(ovs_cni::remove_stale(node).await.err());
    }
    let qos = node.ports.remove_unused_qos().await;
    errors.extend(qos.err().map(Error::from));
    errors
}

/// Whether an attachment's ADD began after this time since boot.
fn is_newer(node: &Handles, key: &AttachmentKey, began: u64) -> bool {
    let entry = node.journal.find(key).ok().flatten();
    entry.is_some_and(|(_, entry)| entry.since > began)
}

/// The attachments created by ovn-kubernetes that this call may collect as if they were of its
/// network.
///
/// Their rows contain no network name, and ovn-kubernetes may still wire pods beside podwire. So
/// they are collected if the call is for the network that ovn-kubernetes served, whose list
/// contains the live ones; and for any network if the host end of their link is gone, since nothing
/// can use them then.
async fn of_ovn_kubernetes(node: &Handles, call: &Call) -> BTreeSet<AttachmentKey> {
    let conf = &call.conf;
    let is_successor = conf.net_attach_def_name.is_none()
        && (conf.name == DROP_IN_NETWORK || conf.plugin_type == DROP_IN);
    let mut keys = BTreeSet::new();
    for record in node.ports.ovn_kubernetes() {
        let Some(ifname) = record.ovn_kubernetes_ifname() else {
            continue;
        };
        let is_default = !record.external_ids.contains_key(ids::OVN_NAD);
        let link = node.netlink.host_link(&record.name).await;
        if (is_successor && is_default) || matches!(link, Ok(None)) {
            let sandbox = record.external_ids.get(ids::SANDBOX);
            keys.insert(AttachmentKey {
                network: conf.name.clone(),
                container_id: sandbox.cloned().unwrap_or_default(),
                ifname: ifname.to_owned(),
            });
        }
    }
    keys
}

/// Has a delegated IPAM plugin collect its allocations.
async fn delegated_gc(node: &Handles, call: &Call, under_way: &UnderWay) -> Result<(), Error> {
    let config = with_valid(call, under_way);
    if let Some(mut plugin) = call.delegate(node)? {
        plugin.call.config = &config;
        plugin.gc().await?;
    }
    Ok(())
}

/// The configuration for a delegated plugin; its list of valid attachments includes those whose ADD
/// is in progress.
fn with_valid(call: &Call, under_way: &UnderWay) -> String {
    let raw = call.conf.raw.get();
    let Ok(mut conf) = serde_json::from_str::<Value>(raw) else {
        return raw.to_owned();
    };
    for ((network, container), ifnames) in under_way {
        for ifname in ifnames.iter().filter(|_| *network == call.conf.name) {
            for list in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
                if let Some(list) = conf[list].as_array_mut() {
                    list.push(json!({"containerID": container, "ifname": ifname}));
                }
            }
        }
    }
    conf.to_string()
}
