//! Operations on one attachment without a request for it: finishing what was interrupted, restoring
//! a port that the database lost, and executing a DEL from the spool.

use std::sync::Arc;

use super::leftovers::has_link;
use crate::attach::{
    Call, Error, Handles, Place, detach, is_ours, namespace_of, pod_ends, remove, remove_by,
};
use crate::journal::{Entry, State};
use crate::plan::{AttachmentKey, ids};
use crate::ports::PortRecord;

/// The result for an attachment whose port may have been lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Restored {
    /// Its port was restored.
    Again,
    /// Its port exists, or another operation takes care of it.
    Untouched,
    /// Its link is gone, or a newer sandbox of its pod has its place: the remains were removed.
    Stale,
}

/// What became of a row of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Row {
    /// It came.
    There,
    /// It went.
    Gone,
}

/// Finishes a removal, if the intent log still has it when its turn comes.
///
/// # Errors
/// Every step that failed.
pub(super) async fn finish(node: &Handles, key: &AttachmentKey) -> Result<(), Error> {
    let _place = quiet_turn(node, key).await;
    match node.journal.find(key)? {
        Some((State::Adding | State::Live, _)) | None => Ok(()),
        Some((State::Deleting, _)) => remove(node, key).await,
    }
}

/// Checks an attachment after one of its rows came or went, once the operations on it have ended.
///
/// A row that a live pod has lost, as by `ovs-vsctl del-port`, is re-created. A row that appears
/// for a removed attachment was sent by an ADD that failed, and ovsdb-server executed it late: it
/// is removed.
///
/// # Errors
/// The kernel or the database refused; the attachment stays unchanged.
pub(super) async fn check_port(
    node: &Handles,
    key: &AttachmentKey,
    row: Row,
) -> Result<Restored, Error> {
    let place = quiet_turn(node, key).await;
    let rows = node.ports.find(key);
    match node.journal.state(key) {
        // A row that came during the ADD may have gone again before its end, with the database.
        Some(State::Live) if row == Row::There && !rows.is_empty() => Ok(Restored::Untouched),
        Some(State::Live) => match node.journal.find(key)? {
            Some((State::Live, entry)) if rows.len() < entry.ports.len() => {
                drop(place);
                restore(node, &entry).await
            }
            _ => Ok(Restored::Untouched),
        },
        Some(State::Adding) => Ok(Restored::Untouched),
        None if rows.is_empty() || has_link(node, &rows, None).await? => Ok(Restored::Untouched),
        Some(State::Deleting) | None => {
            remove(node, key).await?;
            Ok(Restored::Stale)
        }
    }
}

/// Restores the ports of a live attachment that the database no longer has.
///
/// # Errors
/// The kernel or the database refused; the attachment stays unchanged.
pub(super) async fn restore(node: &Handles, known: &Entry) -> Result<Restored, Error> {
    let key = &known.key;
    // This must not wait for an ADD that waits for the cleanup to end.
    if !node.is_settled() && node.lines.is_busy(key) {
        return Ok(Restored::Untouched);
    }
    let pod = node.lines.join_pod(key, known.pod.clone());
    let sandbox = node.lines.join_sandbox(key);
    if node.is_settled() {
        pod.turn().await;
    }
    sandbox.turn().await;
    match node.journal.find(key)? {
        Some((State::Live, entry)) => restore_in_turn(node, &entry).await,
        _ => Ok(Restored::Untouched),
    }
}

async fn restore_in_turn(node: &Handles, entry: &Entry) -> Result<Restored, Error> {
    let there = node.ports.find(&entry.key);
    let mut lost = Vec::new();
    let mut links = 0;
    for port in &entry.ports {
        let mut link = None;
        for name in &port.host_names {
            let found = node.netlink.host_link(name).await?;
            link = link.or(found.filter(|link| is_ours(link, Some(entry))));
        }
        let Some(link) = link else { continue };
        links += 1;
        if !there.iter().any(|record| record.name == link.name) {
            lost.push((link.name, port));
        }
    }
    if links == 0 && there.is_empty() {
        if has_pod_end(node, entry).await? {
            tracing::warn!(
                attachment = %entry.key,
                "it has lost its port, and its host end was renamed or moved; its DEL will remove \
                 it"
            );
            return Ok(Restored::Untouched);
        }
        remove(node, &entry.key).await?;
        return Ok(Restored::Stale);
    }
    if lost.is_empty() {
        return Ok(Restored::Untouched);
    }
    let others = lost.iter().flat_map(|(_, port)| {
        let id = |name: &str| port.external_ids.get(name);
        let bearers = id(ids::IFACE_ID).map(|iface_id| node.ports.with_iface_id(iface_id));
        let mut bearers = bearers.unwrap_or_default();
        bearers.retain(|it| it.external_ids.get(ids::BRIDGE) == id(ids::BRIDGE));
        bearers.retain(|it| it.key.as_ref() != Some(&entry.key));
        bearers
    });
    let mut late = Vec::new();
    for other in others {
        if is_in_use(node, &other).await? {
            remove(node, &entry.key).await?;
            return Ok(Restored::Stale);
        }
        late.push(other);
    }
    node.ports.remove(&late).await?;
    for (name, port) in lost {
        node.ports
            .restore(&name, &port.external_ids, port.bandwidth)
            .await?;
    }
    Ok(Restored::Again)
}

/// Whether a port with the iface-id of a lost one is another sandbox's, or another system's. That
/// of an ADD that failed is not: ovsdb-server executed it late.
async fn is_in_use(node: &Handles, record: &PortRecord) -> Result<bool, Error> {
    let Some(key) = &record.key else {
        return Ok(true);
    };
    match node.journal.find(key)? {
        Some((State::Deleting, _)) => Ok(false),
        noted => {
            let entry = noted.as_ref().map(|(_, entry)| entry);
            has_link(node, std::slice::from_ref(record), entry).await
        }
    }
}

/// Whether the pod still has its end of a pair.
async fn has_pod_end(node: &Handles, entry: &Entry) -> Result<bool, Error> {
    let Some(netns) = namespace_of(entry) else {
        return Ok(false);
    };
    for (name, mac) in pod_ends(entry) {
        let seen = node.netlink.observe(Arc::clone(&netns), name).await?;
        if seen.is_some_and(|seen| seen.link.mac == Some(mac)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Executes a DEL that was spooled at this time since boot, unless the attachment that it names is
/// newer: with podman and cnitool, container ids are reused. At start no IPAM plugin is waited for.
/// Returns whether that is all.
///
/// # Errors
/// As those of a DEL.
pub(super) async fn carry_out(node: &Handles, del: &Call, written: u64) -> Result<bool, Error> {
    let _place = quiet_turn(node, &del.key).await;
    match node.journal.find(&del.key) {
        Ok(Some((State::Adding | State::Live, entry))) if entry.since > written => {
            tracing::info!(
                attachment = %del.key,
                "a spooled DEL is older than the attachment: dropped"
            );
            Ok(true)
        }
        _ if !node.is_settled() => detach(node, &del.key, Some(del)).await,
        _ => remove_by(node, &del.key, Some(del)).await.map(|()| true),
    }
}

/// A place in the sandbox's queue, when its turn has come. None at start: only DELs run then, which
/// tolerate one another, and an ADD in that queue waits for the cleanup.
pub(super) async fn quiet_turn(node: &Handles, key: &AttachmentKey) -> Option<Place> {
    if !node.is_settled() {
        return None;
    }
    let place = node.lines.join_sandbox(key);
    place.turn().await;
    Some(place)
}
