//! GC: removes what the runtime no longer lists, of this network only and of ours only.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use podwire_cni::spool::boottime;
use serde_json::{Value, json};

use super::call::sandbox_line;
use super::intent::{delegate_call, delegate_of};
use super::{Agent, Call, Error, READY_DEADLINE};
use crate::config::usual::{DROP_IN, DROP_IN_NETWORK};
use crate::ipam::delegate;
use crate::observe::{Mended, Trace};
use crate::plan::{AttachmentKey, ids};

impl Agent {
    /// Removes every attachment of the network that `cni.dev/valid-attachments` does not list, and goes on after an error.
    pub(super) async fn gc(&self, call: &Call, trace: &mut Trace) -> Result<(), Error> {
        let valid = call
            .conf
            .valid_attachments()
            .ok_or(Error::NoValidAttachments)?;
        // The runtime made its list before it knew how these would end.
        let under_way = self.sandbox_lines.under_way();
        let began = boottime();
        self.settled(READY_DEADLINE).await?;
        self.ports.synced(READY_DEADLINE).await?;
        let sweeping = Instant::now();
        let mut errors = Vec::new();
        let mut known = self.all_attachments();
        known.retain(|key| key.network == call.conf.name);
        known.extend(self.of_ovn_kubernetes(call).await);
        for key in known {
            let is_valid = valid
                .iter()
                .any(|it| it.container_id == key.container_id && it.ifname == key.ifname);
            let line = sandbox_line(&key);
            if is_valid
                || under_way.contains_key(&line)
                || self.sandbox_lines.is_busy(&line)
                || self.is_newer(&key, began)
            {
                continue;
            }
            let place = self
                .sandbox_lines
                .join_del(line, &key.container_id, &key.ifname);
            place.turn().await;
            tracing::info!(attachment = %key, "removed: the runtime no longer lists it");
            self.metrics.mended(Mended::Unlisted, 1);
            errors.extend(self.remove(&key).await);
        }
        errors.extend(self.ports.remove_unused_qos().await.err().map(Error::from));
        trace.phase("sweep", sweeping);
        match delegate_of(call, &self.spawner) {
            Ok(Some(plugin)) => {
                let config = with_valid(call, &under_way);
                let asked = delegate::Call {
                    config: &config,
                    ..delegate_call(call)
                };
                let told = plugin.gc(&self.spawner, asked).await;
                errors.extend(told.err().map(Error::from));
            }
            Ok(None) => {}
            Err(error) => errors.push(error.into()),
        }
        Error::gather(errors)
    }

    /// Whether an attachment's ADD began after this time since boot.
    fn is_newer(&self, key: &AttachmentKey, began: u64) -> bool {
        let entry = self.journal.find(key).ok().flatten();
        entry.is_some_and(|(_, entry)| entry.since > began)
    }

    /// The attachments that ovn-kubernetes made and that this call may collect, as if they were of its network.
    ///
    /// Their rows say nothing of a network's name, and beside podwire ovn-kubernetes may still wire pods. So they are collected
    /// when the call is for the network that ovn-kubernetes served, whose list then has those that live; and whatever the
    /// network when the host end of their link is gone, for then nothing lives by them.
    async fn of_ovn_kubernetes(&self, call: &Call) -> BTreeSet<AttachmentKey> {
        let conf = &call.conf;
        let is_successor = conf.net_attach_def_name.is_none()
            && (conf.name == DROP_IN_NETWORK || conf.plugin_type == DROP_IN);
        let mut keys = BTreeSet::new();
        for record in self.ports.ovn_kubernetes() {
            let Some(ifname) = record.ovn_kubernetes_ifname() else {
                continue;
            };
            let is_default = !record.external_ids.contains_key(ids::OVN_NAD);
            let link = self.netlink.host_link(&record.name).await;
            if (is_successor && is_default) || matches!(link, Ok(None)) {
                keys.insert(AttachmentKey {
                    network: conf.name.clone(),
                    container_id: record
                        .external_ids
                        .get(ids::SANDBOX)
                        .cloned()
                        .unwrap_or_default(),
                    ifname: ifname.to_owned(),
                });
            }
        }
        keys
    }
}

/// The configuration for a delegated plugin, whose list of valid attachments has those as well whose ADD was under way.
fn with_valid(call: &Call, under_way: &HashMap<(String, String), Vec<String>>) -> String {
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
