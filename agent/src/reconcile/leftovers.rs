//! Finds attachments for which nobody will send a DEL, without a runtime's list: those whose link
//! and namespace are gone.
//!
//! The kernel removes a veth pair with its pod's namespace, so an attachment without its link can
//! carry nothing any more. But while the namespace exists, the pod may be alive and its runtime may
//! still call: CHECK reports it, and nothing is removed.

use podwire_netns::{Netns, NetnsError};
use serde::{Deserialize, Serialize};

use crate::attach::{Error, Handles, READY_DEADLINE, is_made_in, is_ours, link_names, remove};
use crate::journal::{Entry, State};
use crate::plan::{AttachmentKey, ids};
use crate::ports::PortRecord;

/// An attachment that can be removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Leftover {
    /// Which attachment.
    pub key: AttachmentKey,
    /// `namespace/name` of its pod.
    pub pod: Option<String>,
    /// The names of its ports that Open vSwitch still has.
    pub ports: Vec<String>,
    /// Why it can be removed.
    pub reason: String,
    /// Whether it was removed.
    pub removed: bool,
    /// What kept it from being removed.
    pub problem: Option<String>,
}

/// Finds leftovers, and leaves them in place.
///
/// # Errors
/// Open vSwitch's database can't be reached, or the kernel does not answer.
pub async fn leftovers(node: &Handles) -> Result<Vec<Leftover>, Error> {
    node.settled_within(READY_DEADLINE).await?;
    node.ports.synced(READY_DEADLINE).await?;
    let mut found = Vec::new();
    for key in node.attachments() {
        if !node.lines.is_busy(&key) {
            found.extend(examined(node, &key).await?);
        }
    }
    Ok(found)
}

/// Removes leftovers, and continues after an error.
///
/// # Errors
/// As those of [`leftovers`].
pub async fn remove_leftovers(node: &Handles) -> Result<Vec<Leftover>, Error> {
    let mut removed = Vec::new();
    for candidate in leftovers(node).await? {
        if candidate.problem.is_some() {
            removed.push(candidate);
            continue;
        }
        let key = &candidate.key;
        let place = node.lines.join_del(key);
        place.turn().await;
        // An earlier operation in the queue may have removed it.
        let Some(mut leftover) = leftover(node, key).await? else {
            continue;
        };
        tracing::info!(attachment = %key, reason = leftover.reason, "removed: left over");
        match remove(node, key).await {
            Ok(()) => leftover.removed = true,
            Err(error) => leftover.problem = Some(error.to_string()),
        }
        removed.push(leftover);
    }
    Ok(removed)
}

/// Like [`leftover`]; an attachment whose record can't be read is listed with that.
async fn examined(node: &Handles, key: &AttachmentKey) -> Result<Option<Leftover>, Error> {
    match leftover(node, key).await {
        Err(Error::Journal(error)) => {
            let records = node.ports.find(key);
            Ok(Some(Leftover {
                key: key.clone(),
                pod: pod_of(&records, None),
                ports: records.into_iter().map(|record| record.name).collect(),
                reason: "whether it is left over is not known".to_owned(),
                removed: false,
                problem: Some(format!("its record can't be read: {error}")),
            }))
        }
        found => found,
    }
}

/// The attachment, if it can be removed.
pub(super) async fn leftover(
    node: &Handles,
    key: &AttachmentKey,
) -> Result<Option<Leftover>, Error> {
    let records = node.ports.find(key);
    let noted = node.journal.find(key)?;
    let is_deleting = matches!(noted, Some((State::Deleting, _)));
    let entry = noted.map(|(_, entry)| entry);
    if records.is_empty() && entry.is_none() {
        return Ok(None);
    }
    let reason = if is_deleting {
        "its DEL is not finished".to_owned()
    } else if has_link(node, &records, entry.as_ref()).await? {
        return Ok(None);
    } else {
        match namespace_is_there(&records, entry.as_ref()) {
            true => return Ok(None),
            false => "its link and its network namespace are gone".to_owned(),
        }
    };
    Ok(Some(Leftover {
        key: key.clone(),
        pod: pod_of(&records, entry.as_ref()),
        ports: records.into_iter().map(|record| record.name).collect(),
        reason,
        removed: false,
        problem: None,
    }))
}

pub(super) async fn has_link(
    node: &Handles,
    records: &[PortRecord],
    entry: Option<&Entry>,
) -> Result<bool, Error> {
    let rows = records.iter().map(|record| record.name.as_str());
    for name in rows.chain(entry.into_iter().flat_map(link_names)) {
        let link = node.netlink.host_link(name).await?;
        if link.is_some_and(|link| is_ours(&link, entry)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the attachment's own namespace still has its path; in doubt it does.
fn namespace_is_there(records: &[PortRecord], entry: Option<&Entry>) -> bool {
    let Some(path) = netns_of(records, entry) else {
        return false;
    };
    match Netns::open(&path) {
        Ok(netns) => is_made_in(&netns, entry),
        // The file that a namespace was mounted on may outlive it.
        Err(NetnsError::Absent { .. } | NetnsError::NotANamespace { .. }) => false,
        Err(_) => true,
    }
}

/// CNI_NETNS of an attachment, from the intent log or the row.
pub(super) fn netns_of(records: &[PortRecord], entry: Option<&Entry>) -> Option<String> {
    let noted = entry.map(|entry| entry.netns.clone());
    let in_row = || {
        records
            .iter()
            .find_map(|record| record.external_ids.get(ids::NETNS).cloned())
    };
    noted.filter(|path| !path.is_empty()).or_else(in_row)
}

/// `namespace/name` of an attachment's pod, from a row or the intent log.
pub(super) fn pod_of(records: &[PortRecord], entry: Option<&Entry>) -> Option<String> {
    let in_row = records.iter().find_map(|record| record.pod.clone());
    in_row.or_else(|| entry.and_then(|entry| entry.pod.clone()))
}
