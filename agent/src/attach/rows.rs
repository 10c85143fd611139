//! The rows of an ADD, and the older sandboxes of the same pod whose rows they replace.

use std::time::Duration;

use podwire_netns::HostEnd;

use super::Error;
use super::call::Add;
use super::links::remove_link;
use super::removal::{remove, remove_rows};
use super::undo::{Done, Undo};
use crate::fault::fault_point;
use crate::flows::Reservation;
use crate::observe::Repair;
use crate::plan::PortPlan;
use crate::ports::{AddedPort, NewPort, PortRecord};

impl Add<'_> {
    /// Adds the ports to the bridge; the same transaction removes those of older sandboxes.
    pub(super) async fn add_rows(
        &self,
        planned: &[PortPlan],
        hosts: &[HostEnd],
        reserved: &[Option<Reservation>],
        undo: &mut Undo,
    ) -> Result<Vec<AddedPort>, Error> {
        let new: Vec<NewPort<'_>> = planned
            .iter()
            .zip(hosts)
            .zip(reserved)
            .map(|((plan, host), reserved)| NewPort {
                plan,
                host_name: &host.link.name,
                ofport: reserved.as_ref().map(Reservation::ofport),
            })
            .collect();
        undo.push(Done::Rows);
        let adding = self
            .node
            .ports
            .add(&new, self.deadline.at(), &mut undo.replaced);
        let ports = adding.await?;
        fault_point!("add-rows");
        Ok(ports)
    }

    /// Restores the ports of older sandboxes that still have a link, because this ADD does not
    /// replace them after all. What the database executes later is looked after then (see
    /// `reconcile`).
    pub(super) async fn put_back(&self, replaced: Vec<PortRecord>) {
        if self.node.ports.synced(Duration::ZERO).await.is_err() {
            return;
        }
        for record in replaced {
            let Some(key) = &record.key else { continue };
            let rows = self.node.ports.find(key);
            let is_there = rows.iter().any(|row| row.interface == record.interface);
            if is_there || self.has_no_link(&record.name).await {
                continue;
            }
            match self.node.ports.put_back(&record).await {
                Ok(()) => {
                    tracing::info!(
                        attachment = %key,
                        "an older sandbox of the same pod has its port again"
                    )
                }
                Err(error) => {
                    tracing::warn!(
                        attachment = %key,
                        %error,
                        "an older sandbox of the same pod has lost its port"
                    )
                }
            }
            // A DEL that came in between found no row to remove.
            if self.has_no_link(&record.name).await
                && let Err(error) = remove_rows(self.node, key).await
            {
                tracing::warn!(attachment = %key, %error, "a port without a link stays until GC");
            }
        }
    }

    async fn has_no_link(&self, name: &str) -> bool {
        matches!(self.node.netlink.host_link(name).await, Ok(None))
    }

    /// Removes the links and addresses of older sandboxes whose rows this ADD replaced.
    pub(super) async fn clear_replaced(&self, replaced: Vec<PortRecord>) {
        for record in replaced {
            if let Some(key) = &record.key {
                tracing::info!(attachment = %key, "replaced by a newer sandbox of the same pod");
                self.node.metrics.repaired(Repair::OlderSandbox, 1);
                if let Err(error) = remove(self.node, key).await {
                    tracing::warn!(
                        attachment = %key,
                        %error,
                        "an older sandbox's leftovers stay until its DEL"
                    );
                }
            }
            remove_link(self.node, &record.name)
                .await
                .unwrap_or_else(|error| tracing::warn!(%error, "link stays"));
        }
    }
}
