//! Rows, links and the intent log held against each other: at start, and whenever what the ports stand on has changed.
//!
//! At start, before the first ADD is served: the bridge is made when it is missing and ours to make, what was under way when
//! the last agent ended is undone, the DELs in the spool are carried out, rows that no link and no record speaks for go, ports
//! that the database has lost come back, and the addresses of those that live are held. After every reconnect, and when the
//! bridge was made anew: the bridge, what was removed while the database was away, and the lost ports again.

mod bridge;
mod gateway;
mod lost;
mod mtu;
mod place;
mod reload;
mod spool;
mod stale;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

pub use gateway::keep_gateway;
pub use lost::keep_ports;
pub use mtu::{Uplink, keep_uplink_mtu};
pub use place::{PlaceError, confirm_place};
pub use reload::Configuration;
pub use spool::keep_spool;

use crate::attach::Agent;
use crate::config::Mode;
use crate::ipam::Owner;
use crate::ipam::pool::PoolError;
use crate::journal::State;
use crate::observe::Mended;
use crate::plan::AttachmentKey;
use crate::ports::addresses;

/// How long ovs-vswitchd may take to make the bridge's local port, after a boot or after the bridge's row.
const LOCAL_PORT_DEADLINE: Duration = Duration::from_secs(10);

/// Runs until the agent ends; sets `settled` once what was found at start has been looked through.
pub async fn run(agent: Arc<Agent>, settled: watch::Sender<bool>) {
    let mut versions = agent.ports.subscribe();
    loop {
        agent.ports.wait_synced().await;
        let ground = agent.ports.ground(&versions);
        let tunnel = mtu::tunnel(&agent);
        mtu::note(&agent, tunnel.as_ref()).await;
        // In OVN mode the bridge is ovn-controller's, with a datapath and a fail mode of its choice.
        if agent.config.ovn.mode == Mode::Plain {
            make_bridge(&agent).await;
        }
        finish_interrupted(&agent).await;
        if !*settled.borrow() {
            spool::carry_out(&agent).await;
            stale::remove(&agent).await;
        }
        lost::restore(&agent).await;
        match agent.ports.remove_unused_qos().await {
            Ok(0) => {}
            Ok(rows) => tracing::info!(rows, "removed QoS rows that no port uses any more"),
            Err(error) => tracing::error!(%error, "QoS rows that no port uses stay until GC"),
        }
        if !*settled.borrow() {
            hold_addresses(&agent);
            settled.send_replace(true);
            tracing::info!(ports = agent.ports.all().len(), "ready");
        }
        agent.ports.wait_other_ground(&mut versions, &ground).await;
    }
}

async fn make_bridge(agent: &Agent) {
    let wanted = bridge::wanted(agent).await;
    if let Err(error) = agent.ports.ensure_bridge(&wanted).await {
        tracing::error!(%error, bridge = agent.config.bridge, "the bridge can't be made");
    }
}

/// Undoes what the intent log says was begun, or removed without the database. The runtime got no answer, or one that said
/// that it is gone; in either case nothing may be left.
async fn finish_interrupted(agent: &Agent) {
    let (entries, errors) = agent.journal.entries();
    for error in errors {
        tracing::error!(%error, "an intent log entry can't be read; what it stands for is left to DEL and GC");
    }
    for (state, entry) in entries {
        // Once we are settled an ADD in this state is one of ours that runs.
        let is_due = match state {
            State::Adding => !*agent.settled.borrow(),
            State::Live => false,
            State::Deleting => true,
        };
        if !is_due {
            continue;
        }
        tracing::info!(attachment = %entry.key, state = state.name(), "finishing what was interrupted");
        let errors = agent.finish(&entry.key).await;
        if errors.is_empty() {
            let mended = match state {
                State::Adding => Mended::InterruptedAdd,
                State::Live | State::Deleting => Mended::InterruptedDel,
            };
            agent.metrics.mended(mended, 1);
        }
        for error in errors {
            tracing::warn!(attachment = %entry.key, %error, "not finished");
        }
    }
}

/// Holds the addresses that ports have: rows are the record, the pools only its index. Ports that can't be brought back yet,
/// for want of a bridge, are in the intent log alone.
fn hold_addresses(agent: &Agent) {
    for record in agent.ports.all() {
        if let Some(key) = &record.key {
            hold(agent, key, record.pod.clone(), &record.external_ids);
        }
    }
    for (state, entry) in agent.journal.entries().0 {
        for port in entry.ports.iter().filter(|_| state == State::Live) {
            hold(agent, &entry.key, entry.pod.clone(), &port.external_ids);
        }
    }
}

fn hold(
    agent: &Agent,
    key: &AttachmentKey,
    pod: Option<String>,
    external_ids: &std::collections::BTreeMap<String, String>,
) {
    let owner = Owner::of(key, pod);
    for address in addresses(external_ids) {
        match agent.addresses.claim(address.addr(), &owner) {
            Ok(_) | Err(PoolError::OutsideSubnets { .. }) => {}
            Err(error) => {
                tracing::warn!(attachment = %key, %error, "an attachment has an address that it should not have")
            }
        }
    }
}
