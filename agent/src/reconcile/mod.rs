//! Rows, links and the intent log held against each other: at start, and whenever the database comes back.
//!
//! At start, before the first ADD is served: the bridge is made when it is missing and ours to make, every ADD that was under way when the
//! last agent ended is undone, and the addresses of the ports that are there are held. After every reconnect: the bridge
//! again, and the rows of pods that were removed while the database was away.

mod bridge;

use std::sync::Arc;

use tokio::sync::watch;

pub use bridge::keep_gateway;

use crate::attach::Agent;
use crate::config::Mode;
use crate::ipam::Owner;
use crate::ipam::pool::PoolError;
use crate::journal::State;
use crate::ports::PortRecord;

/// Runs until the agent ends; sets `settled` once what was found at start has been looked through.
pub async fn run(agent: Arc<Agent>, settled: watch::Sender<bool>) {
    let mut changes = agent.ports.subscribe();
    loop {
        agent.ports.wait_synced().await;
        // What changes from here on is looked at again.
        let resyncs = changes.borrow_and_update().resyncs;
        // In OVN mode the bridge is ovn-controller's, with a datapath and a fail mode of its choice.
        if agent.config.ovn.mode == Mode::Plain {
            make_bridge(&agent).await;
        }
        if !*settled.borrow() {
            hold_addresses(&agent);
            finish_interrupted(&agent, &[State::Adding, State::Deleting]).await;
            settled.send_replace(true);
            tracing::info!(ports = agent.ports.all().len(), "ready");
        } else {
            finish_interrupted(&agent, &[State::Deleting]).await;
        }
        agent
            .ports
            .wait_lost_or_bridgeless(&mut changes, resyncs)
            .await;
    }
}

async fn make_bridge(agent: &Agent) {
    let wanted = bridge::wanted(agent).await;
    if let Err(error) = agent.ports.ensure_bridge(&wanted).await {
        tracing::error!(%error, bridge = agent.config.bridge, "the bridge can't be made");
    }
}

/// Holds the addresses that ports have: rows are the record, the pools only its index.
fn hold_addresses(agent: &Agent) {
    for record in agent.ports.all() {
        let Some(owner) = owner(&record) else {
            continue;
        };
        for address in crate::ports::addresses(&record.external_ids) {
            match agent.addresses.claim(address.addr(), &owner) {
                Ok(_) | Err(PoolError::OutsideSubnets { .. }) => {}
                Err(error) => {
                    tracing::warn!(port = record.name, %error, "a port has an address that it should not have")
                }
            }
        }
    }
}

fn owner(record: &PortRecord) -> Option<Owner> {
    let key = record.key.as_ref()?;
    Some(Owner {
        network: key.network.clone(),
        container_id: key.container_id.clone(),
        ifname: key.ifname.clone(),
        pod: record.pod.clone(),
    })
}

/// Undoes what the intent log says was begun, or removed without the database. The runtime got no answer, or one that said
/// that it is gone; in either case nothing may be left.
async fn finish_interrupted(agent: &Agent, states: &[State]) {
    let (entries, errors) = agent.journal.entries();
    for error in errors {
        tracing::error!(%error, "an intent log entry can't be read; what it stands for is left to GC");
    }
    for (state, entry) in entries
        .into_iter()
        .filter(|(state, _)| states.contains(state))
    {
        tracing::info!(attachment = %entry.key, ?state, "finishing what was interrupted");
        for error in agent.remove(&entry.key).await {
            tracing::warn!(attachment = %entry.key, %error, "not finished");
        }
    }
}
