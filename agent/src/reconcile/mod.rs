//! Compares rows, links and the intent log: at start, and whenever something that the ports depend
//! on has changed.
//!
//! At start, before the first ADD is served: the bridge is created if it is missing and podwire's,
//! operations that the last agent left in progress are undone, the DELs in the spool are executed,
//! rows with neither link nor record are removed, ports that the database has lost are restored,
//! and the addresses of live ones are claimed. The DELs of IPAM plugins follow. After every
//! reconnect, and after the bridge was re-created: the bridge, what was removed while the database
//! was unreachable, and the lost ports again.

mod abandoned;
mod audit;
mod bridge;
mod gateway;
mod leftovers;
mod lost;
mod mtu;
mod place;
mod recover;
mod reload;
mod spool;
mod stale;
mod unfinished;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub use abandoned::collect_abandoned;
pub use audit::{Audit, audit};
pub use gateway::keep_gateway;
pub use leftovers::{Leftover, leftovers, remove_leftovers};
pub use lost::keep_ports;
pub use mtu::{Uplink, keep_uplink_mtu};
pub use place::{PlaceError, confirm_place};
pub use reload::Configuration;
pub use spool::keep_spool;

use unfinished::Unfinished;

use crate::attach::Handles;
use crate::config::Mode;
use crate::ipam::Owner;
use crate::ipam::pool::PoolError;
use crate::journal::State;
use crate::plan::AttachmentKey;
use crate::ports::own_addresses;

/// Time limit for ovs-vswitchd to create the bridge's local port, after a boot or after the
/// bridge's row.
const LOCAL_PORT_DEADLINE: Duration = Duration::from_secs(10);

/// Runs until the agent ends; the node is settled once the cleanup at start has finished.
pub async fn run(node: Arc<Handles>) {
    let mut versions = node.ports.subscribe();
    let unfinished = Unfinished::new(Arc::clone(&node));
    loop {
        node.ports.wait_synced().await;
        let epoch = node.ports.epoch(&versions);
        mtu::find_uplink(&node).await;
        // In OVN mode the bridge belongs to ovn-controller, which chooses datapath and fail mode.
        if node.config.ovn.mode == Mode::Plain {
            make_bridge(&node).await;
        }
        let due = unfinished.begin().await;
        if !node.is_settled() {
            spool::carry_out_all(&node).await;
            stale::remove(&node).await;
        }
        lost::restore_all(&node).await;
        match node.ports.remove_unused_qos().await {
            Ok(0) => {}
            Ok(rows) => tracing::info!(rows, "removed QoS rows that no port uses any more"),
            Err(error) => tracing::error!(%error, "QoS rows that no port uses stay until GC"),
        }
        if !node.is_settled() {
            hold_addresses(&node);
            node.settled.send_replace(true);
            tracing::info!(ports = node.ports.all().len(), "ready");
        }
        unfinished.finish(due);
        node.ports.wait_other_epoch(&mut versions, &epoch).await;
    }
}

async fn make_bridge(node: &Handles) {
    let wanted = bridge::wanted(node).await;
    if let Err(error) = node.ports.ensure_bridge(&wanted).await {
        tracing::error!(%error, bridge = node.config.bridge, "the bridge can't be created");
    }
}

/// Claims the addresses of ports: rows are the record, the pools only its index. Ports that can't
/// be restored yet, because the bridge is missing, are in the intent log only.
fn hold_addresses(node: &Handles) {
    for record in node.ports.all() {
        if let Some(key) = &record.key {
            hold(node, key, record.pod.clone(), &record.external_ids);
        }
    }
    for (state, entry) in node.journal.entries().0 {
        for port in entry.ports.iter().filter(|_| state == State::Live) {
            hold(node, &entry.key, entry.pod.clone(), &port.external_ids);
        }
    }
}

fn hold(
    node: &Handles,
    key: &AttachmentKey,
    pod: Option<String>,
    external_ids: &BTreeMap<String, String>,
) {
    let owner = Owner::of(key, pod);
    for address in own_addresses(external_ids) {
        match node.addresses.claim(address.addr(), &owner) {
            Ok(_) | Err(PoolError::OutsideSubnets { .. }) => {}
            Err(error) => {
                tracing::warn!(
                    attachment = %key,
                    %error,
                    "an attachment has an address that it should not have"
                )
            }
        }
    }
}
