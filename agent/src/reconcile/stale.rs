//! Rows that outlived their links: a reboot takes links, namespaces and the intent log, and leaves Open vSwitch's database.

use std::collections::HashSet;

use crate::attach::Agent;
use crate::observe::Mended;
use crate::ports::PortRecord;

/// Removes every port of ours whose host end is gone. Others' rows stay, whatever they look like.
pub(super) async fn remove(agent: &Agent) {
    let links: HashSet<String> = match agent.netlink.list_veths().await {
        Ok(links) => links.into_iter().map(|link| link.name).collect(),
        Err(error) => {
            tracing::error!(%error, "can't tell which ports have outlived their links; they stay until GC");
            return;
        }
    };
    let stale: Vec<PortRecord> = agent
        .ports
        .all()
        .into_iter()
        .filter(|record| !links.contains(&record.name))
        .collect();
    if stale.is_empty() {
        return;
    }
    tracing::info!(
        ports = stale.len(),
        "removing ports that outlived their links"
    );
    match agent.ports.remove(&stale).await {
        Ok(()) => agent.metrics.mended(Mended::PortWithoutLink, stale.len()),
        Err(error) => tracing::error!(%error, "ports without links stay until GC"),
    }
}
