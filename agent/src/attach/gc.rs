//! GC: removes what the runtime no longer lists, of this network only and of ours only.

use std::collections::BTreeSet;
use std::time::Instant;

use super::call::sandbox_line;
use super::intent::{delegate_call, delegate_of};
use super::{Agent, Call, Error, READY_DEADLINE};
use crate::config::usual::{DROP_IN, DROP_IN_NETWORK};
use crate::observe::{Mended, Trace};
use crate::plan::{AttachmentKey, ids};

impl Agent {
    /// Removes every attachment of the network that `cni.dev/valid-attachments` does not list, and goes on after an error.
    pub(super) async fn gc(&self, call: &Call, trace: &mut Trace) -> Result<(), Error> {
        let valid = call
            .conf
            .valid_attachments()
            .ok_or(Error::NoValidAttachments)?;
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
            // What is in line was asked for after the runtime made its list.
            if is_valid || self.sandbox_lines.is_busy(&line) {
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
        match delegate_of(call) {
            Ok(Some(plugin)) => {
                let told = plugin.gc(&self.spawner, delegate_call(call)).await;
                errors.extend(told.err().map(Error::from));
            }
            Ok(None) => {}
            Err(error) => errors.push(error.into()),
        }
        Error::gather(errors)
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
