//! Restores ports that the database has lost while their pods live: a containerised Open vSwitch
//! was replaced, its database re-created, or the bridge removed. The intent log has them, and their
//! links still exist.

use std::collections::{HashMap, HashSet};

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::recover::{self, Restored, Row};
use crate::attach::{Error, Handles};
use crate::journal::{Entry, State};
use crate::observe::Repair;
use crate::plan::{AttachmentKey, ids};
use crate::ports::PortError;

/// Restores all lost ports, in as few requests as group commit needs.
pub(super) async fn restore_all(node: &Handles) {
    let mut living: Vec<Entry> = node
        .journal
        .entries()
        .0
        .into_iter()
        .filter_map(|(state, entry)| (state == State::Live).then_some(entry))
        .collect();
    // Of two sandboxes of one pod, the newer has the port; the older one then finds it taken.
    living.sort_by_key(|entry| std::cmp::Reverse(entry.since));
    let mut newest: HashMap<(&str, Option<&String>), usize> = HashMap::new();
    let (mut first, mut later) = (Vec::new(), Vec::new());
    for (number, entry) in living.iter().enumerate() {
        let mut is_newest = true;
        for port in &entry.ports {
            if let Some(id) = port.external_ids.get(ids::IFACE_ID) {
                let at = (id.as_str(), port.external_ids.get(ids::BRIDGE));
                is_newest &= *newest.entry(at).or_insert(number) == number;
            }
        }
        if is_newest { &mut first } else { &mut later }.push(entry);
    }
    let (mut again, mut stale) = (0, 0);
    let mut failed = Vec::new();
    for turn in [first, later] {
        let outcomes = join_all(turn.iter().map(|entry| recover::restore(node, entry))).await;
        for (entry, outcome) in turn.iter().zip(outcomes) {
            match outcome {
                Ok(Restored::Again) => again += 1,
                Ok(Restored::Stale) => stale += 1,
                Ok(Restored::Untouched) => {}
                Err(error) => {
                    tracing::debug!(attachment = %entry.key, %error, "its port stays lost");
                    failed.push((&entry.key, error));
                }
            }
        }
    }
    node.metrics.repaired(Repair::LostPort, again);
    node.metrics.repaired(Repair::StaleRecord, stale);
    if again > 0 {
        tracing::warn!(
            ports = again,
            "Open vSwitch had lost ports of running pods; restored them"
        );
    }
    if stale > 0 {
        tracing::info!(
            attachments = stale,
            "removed records of attachments that have no link any more"
        );
    }
    // One line for all: the reason is mostly the same for all ports.
    if let Some((key, error)) = failed.first() {
        tracing::error!(
            attachments = failed.len(),
            first = %key,
            %error,
            "ports of running pods can't be restored"
        );
    }
}

/// Checks single ports as their rows come and go: one that was removed under a live pod, or one
/// that appears after its ADD has failed. Never returns.
pub async fn keep_ports(node: Arc<Handles>) {
    let mut changes = node.ports.follow();
    node.settled().await;
    let mut known = node.ports.attachments_by_row();
    while let Some(changed) = changes.next().await {
        let rows = changed
            .rows
            .iter()
            .filter(|(table, _)| *table == "Interface");
        let mut touched = HashSet::new();
        for (_, row) in rows {
            let now = node.ports.attachment_of(*row);
            let before = match &now {
                Some(key) => known.insert(*row, key.clone()),
                None => known.remove(row),
            };
            if before != now {
                touched.extend(before.map(|key| (key, Row::Gone)));
                touched.extend(now.map(|key| (key, Row::There)));
            }
        }
        // Without the bridge all its ports are gone; they come back with it (see `restore`).
        if node.ports.is_netdev(&node.config.bridge).is_none() {
            touched.retain(|(key, _)| is_elsewhere(&node, key));
        }
        for (key, row) in touched {
            tokio::spawn(check_port(Arc::clone(&node), key, row));
        }
    }
}

/// Whether an attachment has its ports on another bridge than the node's own.
fn is_elsewhere(node: &Handles, key: &AttachmentKey) -> bool {
    let entry = node.journal.find(key).ok().flatten();
    let ports = entry.iter().flat_map(|(_, entry)| &entry.ports);
    let mut bridges = ports.map(|port| port.external_ids.get(ids::BRIDGE));
    entry.is_some() && bridges.all(|bridge| bridge.is_some())
}

async fn check_port(node: Arc<Handles>, key: AttachmentKey, row: Row) {
    match recover::check_port(&node, &key, row).await {
        Ok(Restored::Untouched) => {}
        Ok(Restored::Again) => {
            node.metrics.repaired(Repair::LostPort, 1);
            tracing::warn!(
                attachment = %key,
                "the port of a running pod was removed from Open vSwitch; restored it"
            );
        }
        Ok(Restored::Stale) => {
            node.metrics.repaired(Repair::Leftover, 1);
            tracing::info!(attachment = %key, "removed leftovers of an attachment that is gone");
        }
        // It comes back with its bridge, as those of the node's own do.
        Err(Error::Port(error @ PortError::NoBridge { .. })) => {
            tracing::debug!(attachment = %key, %error, "its port stays lost");
        }
        // The database is unreachable; all ports are checked when it is back (see `restore_all`).
        Err(error) if node.ports.synced(Duration::ZERO).await.is_err() => {
            tracing::debug!(attachment = %key, %error, "its port can't be looked after");
        }
        Err(error) => tracing::error!(attachment = %key, %error, "its port can't be looked after"),
    }
}
