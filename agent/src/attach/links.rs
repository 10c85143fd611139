//! The links of an attachment: how to recognise its own on the host and in the pod, and how to
//! remove them.

use std::sync::Arc;

use macaddr::MacAddr6;
use podwire_netns::{HostLink, LinkState, Netns};

use super::{Error, Handles};
use crate::journal::Entry;
use crate::plan::{ids, mac_text};

/// The possible names of an attachment's host ends.
pub(crate) fn link_names(entry: &Entry) -> impl Iterator<Item = &str> {
    let names = entry.ports.iter().flat_map(|port| &port.host_names);
    names.map(String::as_str)
}

/// Name and MAC address of each of an attachment's interfaces in the pod.
pub(crate) fn pod_ends(entry: &Entry) -> impl Iterator<Item = (&str, MacAddr6)> {
    entry.ports.iter().filter_map(|port| {
        let ids = &port.external_ids;
        let mac = ids.get(ids::ATTACHED_MAC)?.parse().ok()?;
        Some((ids.get(ids::POD_IF_NAME)?.as_str(), mac))
    })
}

/// Whether a link with a recorded name is the recorded one: a veth, and with the recorded MAC
/// address if the intent log has it.
pub(crate) fn is_ours(link: &LinkState, entry: Option<&Entry>) -> bool {
    let mac = link.mac.map(mac_text);
    let has_mac = |entry: &Entry| {
        entry
            .ports
            .iter()
            .any(|it| Some(&it.host_mac) == mac.as_ref())
    };
    link.kind.as_deref() == Some("veth") && entry.is_none_or(has_mac)
}

/// Whether an attachment was created in this namespace, as far as the intent log knows: the path
/// may belong to another one by now.
pub(crate) fn is_made_in(netns: &Netns, entry: Option<&Entry>) -> bool {
    let noted = entry.and_then(|entry| entry.netns_id);
    noted.is_none_or(|id| id == (netns.id().dev, netns.id().ino))
}

/// The namespace that an attachment was created in, if it still has its path.
pub(crate) fn namespace_of(entry: &Entry) -> Option<Arc<Netns>> {
    let netns = Netns::open(&entry.netns).ok()?;
    is_made_in(&netns, Some(entry)).then(|| Arc::new(netns))
}

/// Removes one veth of the host.
pub(super) async fn remove_link(node: &Handles, name: &str) -> Result<(), Error> {
    Error::gather(remove_links(node, &[name], None).await.1)
}

/// Removes podwire's own among these links of the host; returns how many there were.
pub(super) async fn remove_links(
    node: &Handles,
    names: &[&str],
    entry: Option<&Entry>,
) -> (usize, Vec<Error>) {
    node.journal.retire_names(names);
    let mut links = Vec::with_capacity(names.len());
    let mut errors = Vec::new();
    let found = node.netlink.host_links_named(names).await;
    for found in found.unwrap_or_else(|error| vec![Err(error)]) {
        match found {
            Ok(Some(link)) if is_ours(&link, entry) => links.push(HostLink {
                ifindex: link.ifindex,
                name: link.name,
            }),
            Ok(_) => {}
            Err(error) => errors.push(error.into()),
        }
    }
    let found = links.len();
    if found > 0 {
        errors.extend(node.netlink.delete(links).await.err().map(Error::from));
    }
    (found, errors)
}

/// Removes the pairs whose end in the pod still exists: their host ends were renamed, or moved to
/// another namespace.
pub(super) async fn remove_by_pod_ends(node: &Handles, entry: &Entry) -> Vec<Error> {
    // Without the namespace, there is no pair.
    let Some(netns) = namespace_of(entry) else {
        return Vec::new();
    };
    let mut errors = Vec::new();
    for (name, mac) in pod_ends(entry) {
        let netns = Arc::clone(&netns);
        match node.netlink.delete_by_pod_end(netns, name, mac).await {
            Ok(true) => {
                let attachment = &entry.key;
                tracing::warn!(
                    %attachment,
                    name,
                    "its host end was renamed or moved: removed by the pod's end"
                );
            }
            Ok(false) => {}
            Err(error) => errors.push(error.into()),
        }
    }
    errors
}
