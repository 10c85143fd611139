//! Removes an attachment: for its DEL, or because none will come.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use podwire_netns::Netns;

use super::links::{link_names, namespace_of, remove_by_pod_ends, remove_link, remove_links};
use super::renewal::release_lease;
use super::{Call, Error, Handles, READY_DEADLINE, ovs_cni};
use crate::fault::fault_point;
use crate::ipam::Owner;
use crate::ipam::dhcp::Leased;
use crate::journal::{self, Entry, State};
use crate::plan::AttachmentKey;
use crate::ports::{self, PortError, PortRecord};

/// Removes an attachment and what a delegated IPAM plugin gave it; continues after an error.
///
/// # Errors
/// Every step that failed.
pub(crate) async fn remove(node: &Handles, key: &AttachmentKey) -> Result<(), Error> {
    remove_by(node, key, None).await
}

/// Like [`remove`], with the DEL that no agent had taken.
///
/// # Errors
/// Every step that failed.
pub(crate) async fn remove_by(
    node: &Handles,
    key: &AttachmentKey,
    del: Option<&Call>,
) -> Result<(), Error> {
    let mut removal = Removal::detach(node, key).await;
    removal.release_delegated(del).await;
    removal.close().await
}

/// Removes an attachment's rows, links and addresses, and returns whether that is all: if an IPAM
/// plugin gave it addresses, [`remove_by`] has still to follow. The intent log keeps it until then.
///
/// # Errors
/// Every step that failed.
pub(crate) async fn detach(
    node: &Handles,
    key: &AttachmentKey,
    del: Option<&Call>,
) -> Result<bool, Error> {
    let removal = Removal::detach(node, key).await;
    let noted = removal
        .entry
        .as_ref()
        .is_some_and(|it| it.ipam_del.is_some());
    if noted || del.is_some_and(Call::is_delegated) {
        return Ok(false);
    }
    removal.close().await.map(|()| true)
}

/// Removes an attachment's rows.
pub(super) async fn remove_rows(node: &Handles, key: &AttachmentKey) -> Result<(), PortError> {
    node.ports.synced(READY_DEADLINE).await?;
    let records = node.ports.find(key);
    node.ports.remove_of(&key.container_id, &records).await
}

/// Tells a delegated IPAM plugin, if there is one, to release its addresses.
pub(super) async fn delegated_del(node: &Handles, call: &Call) -> Result<(), Error> {
    match call.delegate(node) {
        Ok(Some(plugin)) => Ok(plugin.del().await?),
        Ok(None) => Ok(()),
        // A failed DEL is repeated for ever, which does not bring the plugin back.
        Err(error) => {
            tracing::warn!(
                attachment = %call.key,
                %error,
                "its addresses stay allocated until its own GC"
            );
            Ok(())
        }
    }
}

/// The addresses of a port on the node's own bridge, from its external_ids.
pub(super) fn addresses(external_ids: &BTreeMap<String, String>) -> impl Iterator<Item = IpAddr> {
    ports::own_addresses(external_ids).map(|net| net.addr())
}

/// A removal in progress.
pub(super) struct Removal<'a> {
    node: &'a Handles,
    key: &'a AttachmentKey,
    /// The attachment's entry in the intent log.
    entry: Option<Entry>,
    /// Why the rows still exist.
    rows: Result<(), PortError>,
    /// Other failures.
    errors: Vec<Error>,
}

impl<'a> Removal<'a> {
    /// Removes an attachment's rows, links and addresses, and continues after an error.
    ///
    /// If OVSDB is unreachable, link and addresses are removed nevertheless, and the intent log
    /// records that the rows remain: the pod is gone for good, and a failed DEL is repeated for
    /// ever.
    pub(super) async fn detach(node: &'a Handles, key: &'a AttachmentKey) -> Self {
        let mut removal = Self {
            node,
            key,
            entry: None,
            rows: Ok(()),
            errors: Vec::new(),
        };
        removal.find_entry();
        // If the agent dies from here on, the next one must continue the removal and not restore
        // the port.
        let advanced = node.journal.advance(key, State::Live, State::Deleting);
        removal.note(advanced);
        node.kept.stop(key);
        removal.release_leases().await;
        let known = node.ports.synced(READY_DEADLINE).await;
        let known = known.map(|()| node.ports.find(key));
        let (rows, links) = tokio::join!(
            async {
                let rows = match &known {
                    Ok(records) => node.ports.remove_of(&key.container_id, records).await,
                    Err(_) => Ok(()),
                };
                fault_point!("del-rows", _);
                rows
            },
            async {
                let links = removal.remove_links(known.as_deref().unwrap_or_default());
                let links = links.await;
                fault_point!("del-links", _);
                links
            }
        );
        removal.errors.extend(links);
        let records = known.as_deref().unwrap_or_default();
        // After the link: a packet that still arrived would re-create the entry.
        let ids = removal.external_ids(records);
        node.connections.forget(ids.clone().flat_map(addresses));
        ids.for_each(|ids| node.last_holders.gone(ids));
        node.addresses.release_all(&Owner::of(key, None));
        fault_point!("del-released", _);
        removal.rows = known.and(rows);
        removal
    }

    fn find_entry(&mut self) {
        match self.node.journal.find(self.key) {
            Ok(found) => self.entry = found.map(|(_, entry)| entry),
            // Without the entry, the links are removed by their rows or with their namespace; a
            // failure would never end.
            Err(error @ journal::Error::Malformed { .. }) => {
                tracing::error!(attachment = %self.key, %error, "intent log");
            }
            Err(error) => self.errors.push(error.into()),
        }
    }

    /// Gives leases back, while the pod's interface is there.
    async fn release_leases(&self) {
        let Some(entry) = &self.entry else { return };
        if entry.lease.is_none() && entry.lease6.is_none() {
            return;
        }
        if let Some(netns) = namespace_of(entry) {
            let (ipv4, ipv6) = (entry.lease.as_ref(), entry.lease6.as_ref());
            let releasing = (self.release(ipv4, &netns), self.release(ipv6, &netns));
            tokio::join!(releasing.0, releasing.1);
        }
    }

    async fn release(&self, lease: Option<&impl Leased>, netns: &Arc<Netns>) {
        if let Some(lease) = lease {
            let place = lease.place(Arc::clone(netns));
            release_lease(self.node, self.key, &place, lease).await;
        }
    }

    async fn remove_links(&self, records: &[PortRecord]) -> Vec<Error> {
        let rows = records.iter().map(|record| record.name.as_str());
        let mut names: Vec<&str> = rows.chain(self.entry.iter().flat_map(link_names)).collect();
        names.sort_unstable();
        names.dedup();
        let entry = self.entry.as_ref();
        let (found, mut errors) = remove_links(self.node, &names, entry).await;
        if let Some(entry) = entry.filter(|it| found < it.ports.len()) {
            errors.extend(remove_by_pod_ends(self.node, entry).await);
        }
        errors
    }

    /// The external_ids of the attachment's ports, from its rows and the intent log.
    fn external_ids<'r>(
        &'r self,
        records: &'r [PortRecord],
    ) -> impl Iterator<Item = &'r BTreeMap<String, String>> + Clone {
        let rows = records.iter().map(|record| &record.external_ids);
        let entries = self.entry.iter().flat_map(|entry| &entry.ports);
        rows.chain(entries.map(|port| &port.external_ids))
    }

    /// Removes the port that an older ovn-kubernetes created for a network attachment definition,
    /// which only the call can identify.
    pub(super) async fn detach_definition(&mut self, call: &Call) {
        let Some(definition) = &call.conf.net_attach_def_name else {
            return;
        };
        let records = self
            .node
            .ports
            .of_definition(&call.key.container_id, definition);
        let removed = self.node.ports.remove(&records).await;
        self.note(removed);
        for record in &records {
            let removed = remove_link(self.node, &record.name).await;
            self.note(removed);
        }
    }

    /// Removes the port that ovs-cni created, which only the call can identify.
    pub(super) async fn detach_ovs_cni(&mut self, call: &Call) {
        if ovs_cni::is_for(call) {
            let removed = ovs_cni::remove_port(self.node, call).await;
            self.note(removed);
        }
    }

    /// Calls a delegated IPAM plugin, with the DEL's own configuration or else with the ADD's from
    /// the intent log.
    pub(super) async fn release_delegated(&mut self, del: Option<&Call>) {
        let noted = self.entry.as_ref().and_then(|it| it.ipam_del.as_deref());
        let released = match (del.filter(|del| del.is_delegated()), noted) {
            (Some(del), _) => delegated_del(self.node, del).await,
            (None, None) => Ok(()),
            (None, Some(noted)) => match Call::parse(noted.as_bytes()) {
                Ok(del) => delegated_del(self.node, &del).await,
                Err(refused) => {
                    tracing::error!(
                        error = %refused.error,
                        "intent log: a delegated IPAM plugin's DEL can't be read; its addresses \
                         stay allocated until its own GC"
                    );
                    Ok(())
                }
            },
        };
        self.note(released);
    }

    /// Ends the removal: the intent log drops the attachment, or records what remains.
    ///
    /// # Errors
    /// Every step that failed.
    pub(super) async fn close(mut self) -> Result<(), Error> {
        let (journal, key) = (&self.node.journal, self.key);
        let noted = match &self.rows {
            Ok(()) if self.errors.is_empty() => journal.forget(key),
            Ok(()) => Ok(()),
            Err(error) => {
                tracing::warn!(
                    attachment = %key,
                    %error,
                    "the rows go when the database is there again"
                );
                let noted = self.note_deletion();
                // The database may have come back before the note existed for reconcile to find.
                match self.node.ports.synced(Duration::ZERO).await {
                    Ok(()) if remove_rows(self.node, key).await.is_ok() => journal.forget(key),
                    _ => noted,
                }
            }
        };
        self.note(noted);
        fault_point!("del-forgotten", _);
        Error::gather(self.errors)
    }

    fn note_deletion(&self) -> Result<(), journal::Error> {
        let bridge = self.node.config.bridge.clone();
        let unknown = || Entry::new(self.key.clone(), None, String::new(), bridge);
        let entry = self.entry.clone().unwrap_or_else(unknown);
        self.node.journal.write(&entry, State::Deleting)
    }

    fn note<E: Into<Error>>(&mut self, step: Result<(), E>) {
        self.errors.extend(step.err().map(Into::into));
    }
}
