//! GC: removes what the runtime no longer lists, of this network only and of ours only.

use std::time::Instant;

use super::intent::{delegate_call, delegate_of};
use super::{Agent, Call, Error, READY_DEADLINE};
use crate::observe::{Mended, Trace};

impl Agent {
    /// Removes every attachment of the network that `cni.dev/valid-attachments` does not list, and goes on after an error.
    pub(super) async fn gc(&self, call: &Call, trace: &mut Trace) -> Result<(), Error> {
        let valid = call
            .conf
            .valid_attachments()
            .ok_or(Error::NoValidAttachments)?;
        self.settled().await?;
        self.ports.synced(READY_DEADLINE).await?;
        let sweeping = Instant::now();
        let mut errors = Vec::new();
        for key in self.all_attachments() {
            if key.network != call.conf.name {
                continue;
            }
            let is_valid = valid
                .iter()
                .any(|it| it.container_id == key.container_id && it.ifname == key.ifname);
            let line = (key.network.clone(), key.container_id.clone());
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
}
