//! DEL: always ends well. It needs neither namespace nor pod nor prevResult, does every step it can, and repeats safely.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use macaddr::MacAddr6;

use super::audit::is_made_in;
use super::intent::{delegate_call, delegate_of};
use super::{Agent, Call, Error, READY_DEADLINE};
use crate::fault::fault_point;
use crate::ipam::Owner;
use crate::journal::{self, Entry, State};
use crate::netns::{HostLink, LinkState, Netns};
use crate::observe::{Trace, WaitFor};
use crate::plan::{AttachmentKey, ids, mac_text};
use crate::ports::{self, PortError, PortRecord};

impl Agent {
    /// Detaches a container.
    pub(super) async fn del(&self, call: &Call, trace: &mut Trace) -> Result<(), Error> {
        let key = &call.key;
        let place =
            self.sandbox_lines
                .join_del(call.sandbox_line(), &key.container_id, &key.ifname);
        let queued = Instant::now();
        let waiting = self.metrics.wait(WaitFor::Turn);
        place.turn().await;
        drop(waiting);
        trace.phase("queue", queued);
        fault_point!("del-begun");
        let removing = Instant::now();
        let mut removal = self.detach(key).await;
        let of_definition = self.remove_of_definition(call).await;
        removal.errors.extend(of_definition.err());
        trace.phase("link and rows", removing);
        let telling = Instant::now();
        let told = self.tell_ipam(Some(call), removal.entry.as_ref()).await;
        removal.errors.extend(told.err());
        trace.phase("delegated ipam", telling);
        Error::gather(self.close(key, removal).await)
    }

    /// Removes an attachment that no DEL of its own removes, or none any more; with what a delegated IPAM plugin gave it.
    pub(crate) async fn remove(&self, key: &AttachmentKey) -> Vec<Error> {
        self.remove_by(key, None).await
    }

    /// As [`Self::remove`], with the DEL that no agent had taken.
    pub(super) async fn remove_by(&self, key: &AttachmentKey, del: Option<&Call>) -> Vec<Error> {
        let mut removal = self.detach(key).await;
        let told = self.tell_ipam(del, removal.entry.as_ref()).await;
        removal.errors.extend(told.err());
        self.close(key, removal).await
    }

    /// Tells a delegated IPAM plugin, with the DEL's own configuration, or else by what the intent log has of the ADD's.
    async fn tell_ipam(&self, del: Option<&Call>, entry: Option<&Entry>) -> Result<(), Error> {
        if let Some(del) = del.filter(|del| del.conf.ipam.is_some()) {
            return self.delegated_del(del).await;
        }
        let Some(noted) = entry.and_then(|entry| entry.ipam_del.as_deref()) else {
            return Ok(());
        };
        match Call::parse(noted.as_bytes()) {
            Ok(del) => self.delegated_del(&del).await,
            Err(refused) => {
                let error = refused.error;
                tracing::error!(%error, "intent log: a delegated ipam plugin's DEL can't be read; its addresses stay held until its own GC");
                Ok(())
            }
        }
    }

    /// Tells a delegated IPAM plugin that its addresses are free again; without one it is nothing.
    pub(super) async fn delegated_del(&self, call: &Call) -> Result<(), Error> {
        let plugin = match delegate_of(call, &self.spawner) {
            Ok(Some(plugin)) => plugin,
            Ok(None) => return Ok(()),
            // A DEL that fails is repeated without end, and the plugin will not come back by that.
            Err(error) => {
                tracing::warn!(attachment = %call.key, %error, "its addresses stay held until its own GC");
                return Ok(());
            }
        };
        Ok(plugin.del(&self.spawner, delegate_call(call)).await?)
    }

    /// Removes an attachment's rows, links and addresses, going on after an error.
    ///
    /// With OVSDB away the link and the addresses go all the same, and the intent log says that the rows are still to go:
    /// the pod is gone for good, and a DEL that fails is repeated without end.
    async fn detach(&self, key: &AttachmentKey) -> Removal {
        let mut errors = Vec::new();
        let entry = match self.journal.find(key) {
            Ok(found) => found.map(|(_, entry)| entry),
            // Without it the links go by their rows, or with their namespace; to fail would be to fail for ever.
            Err(error @ journal::Error::Malformed { .. }) => {
                tracing::error!(attachment = %key, %error, "intent log");
                None
            }
            Err(error) => {
                errors.push(error.into());
                None
            }
        };
        // An agent that dies from here on is to be followed by one that goes on, not by one that brings the port back.
        errors.extend(
            self.journal
                .advance(key, State::Live, State::Deleting)
                .err()
                .map(Error::from),
        );
        let known = self
            .ports
            .synced(READY_DEADLINE)
            .await
            .map(|()| self.ports.find(key));
        let rows = known.iter().flatten().map(|record| record.name.as_str());
        let mut names: Vec<&str> = rows.chain(entry.iter().flat_map(link_names)).collect();
        names.sort_unstable();
        names.dedup();
        let (rows, links) = tokio::join!(
            async {
                let rows = match &known {
                    Ok(records) => self
                        .ports
                        .remove_of(&key.container_id, records)
                        .await
                        .map_err(|error| error.to_string()),
                    Err(error) => Err(error.to_string()),
                };
                fault_point!("del-rows", _);
                rows
            },
            async {
                let (found, mut links) = self.remove_links(&names, entry.as_ref()).await;
                if let Some(entry) = entry.as_ref().filter(|it| found < it.ports.len()) {
                    links.extend(self.remove_by_pod_ends(entry).await);
                }
                fault_point!("del-links", _);
                links
            }
        );
        errors.extend(links);
        // After the link: a packet that still came would make the entry again.
        self.connections.forget(addresses(&known, entry.as_ref()));
        self.addresses.release_all(&Owner::of(key, None));
        fault_point!("del-released", _);
        Removal {
            entry,
            rows,
            errors,
        }
    }

    /// Ends a removal: the intent log forgets the attachment, or says what is still to go.
    async fn close(&self, key: &AttachmentKey, removal: Removal) -> Vec<Error> {
        let Removal {
            entry,
            rows,
            mut errors,
        } = removal;
        let noted = match rows {
            Ok(()) if errors.is_empty() => self.journal.forget(key),
            Ok(()) => Ok(()),
            Err(error) => {
                tracing::warn!(attachment = %key, %error, "the rows go when the database is there again");
                let noted = self.note_deletion(key, entry);
                // The database may have come back before the note was there for reconcile to find.
                match self.ports.synced(Duration::ZERO).await {
                    Ok(()) if self.remove_rows(key).await.is_ok() => self.journal.forget(key),
                    _ => noted,
                }
            }
        };
        errors.extend(noted.err().map(Error::from));
        fault_point!("del-forgotten", _);
        errors
    }

    /// Removes an attachment's rows.
    pub(super) async fn remove_rows(&self, key: &AttachmentKey) -> Result<(), PortError> {
        self.ports.synced(READY_DEADLINE).await?;
        self.ports
            .remove_of(&key.container_id, &self.ports.find(key))
            .await
    }

    /// Removes those of the host's links that are ours; says how many there were.
    async fn remove_links(&self, names: &[&str], entry: Option<&Entry>) -> (usize, Vec<Error>) {
        self.journal.retire_names(names);
        let mut links = Vec::with_capacity(names.len());
        let mut errors = Vec::new();
        for name in names {
            match self.netlink.host_link(name).await {
                Ok(Some(link)) if is_ours(&link, entry) => {
                    links.push(HostLink {
                        ifindex: link.ifindex,
                        name: link.name,
                    });
                }
                Ok(_) => {}
                Err(error) => errors.push(error.into()),
            }
        }
        let found = links.len();
        if found > 0 {
            errors.extend(self.netlink.delete(links).await.err().map(Error::from));
        }
        (found, errors)
    }

    /// Removes the pairs of which the pod still has its end: their host ends were renamed, or moved to another namespace.
    async fn remove_by_pod_ends(&self, entry: &Entry) -> Vec<Error> {
        // Without the namespace there is no pair.
        let Some(netns) = namespace_of(entry) else {
            return Vec::new();
        };
        let mut errors = Vec::new();
        for (name, mac) in pod_ends(entry) {
            let deleted = self
                .netlink
                .delete_by_pod_end(Arc::clone(&netns), name, mac);
            match deleted.await {
                Ok(true) => {
                    let attachment = &entry.key;
                    tracing::warn!(%attachment, name, "its host end was renamed or moved: removed by the pod's end");
                }
                Ok(false) => {}
                Err(error) => errors.push(error.into()),
            }
        }
        errors
    }

    /// Removes the port that an older ovn-kubernetes made for a network attachment definition, which only the call can name.
    async fn remove_of_definition(&self, call: &Call) -> Result<(), Error> {
        let Some(definition) = &call.conf.net_attach_def_name else {
            return Ok(());
        };
        let records = self.ports.of_definition(&call.key.container_id, definition);
        self.ports.remove(&records).await?;
        for record in &records {
            self.remove_link(&record.name).await?;
        }
        Ok(())
    }

    /// Removes one veth of the host.
    pub(super) async fn remove_link(&self, name: &str) -> Result<(), Error> {
        Error::gather(self.remove_links(&[name], None).await.1)
    }

    fn note_deletion(
        &self,
        key: &AttachmentKey,
        entry: Option<Entry>,
    ) -> Result<(), crate::journal::Error> {
        let bridge = self.config.bridge.clone();
        let entry = entry.unwrap_or_else(|| Entry::new(key.clone(), None, String::new(), bridge));
        self.journal.write(&entry, State::Deleting)
    }
}

/// How far a removal has come.
struct Removal {
    /// What the intent log had.
    entry: Option<Entry>,
    /// Why the rows are still there.
    rows: Result<(), String>,
    /// What else failed.
    errors: Vec<Error>,
}

/// The namespace that an attachment was made in, if it is still at its path.
pub(super) fn namespace_of(entry: &Entry) -> Option<Arc<Netns>> {
    let netns = Netns::open(&entry.netns).ok()?;
    is_made_in(&netns, Some(entry)).then(|| Arc::new(netns))
}

/// Name and MAC of each interface that an attachment has in its pod.
pub(super) fn pod_ends(entry: &Entry) -> impl Iterator<Item = (&str, MacAddr6)> {
    entry.ports.iter().filter_map(|port| {
        let ids = &port.external_ids;
        let mac = ids.get(ids::ATTACHED_MAC)?.parse().ok()?;
        Some((ids.get(ids::POD_IF_NAME)?.as_str(), mac))
    })
}

pub(super) fn link_names(entry: &Entry) -> impl Iterator<Item = &str> {
    entry
        .ports
        .iter()
        .flat_map(|port| &port.host_names)
        .map(String::as_str)
}

/// Whether a link of a recorded name is the one recorded: a veth, and with the MAC we gave it when the intent log knows it.
pub(super) fn is_ours(link: &LinkState, entry: Option<&Entry>) -> bool {
    let mac = link.mac.map(mac_text);
    link.kind.as_deref() == Some("veth")
        && entry.is_none_or(|entry| {
            entry
                .ports
                .iter()
                .any(|port| Some(&port.host_mac) == mac.as_ref())
        })
}

fn addresses(known: &Result<Vec<PortRecord>, PortError>, entry: Option<&Entry>) -> Vec<IpAddr> {
    let rows = known.iter().flatten().map(|record| &record.external_ids);
    let entries = entry
        .into_iter()
        .flat_map(|entry| &entry.ports)
        .map(|port| &port.external_ids);
    let mut addresses: Vec<IpAddr> = rows
        .chain(entries)
        .flat_map(ports::addresses)
        .map(|net| net.addr())
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}
