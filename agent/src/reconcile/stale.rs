//! Removes rows that outlived their links: a reboot removes links, namespaces and the intent log,
//! but not Open vSwitch's database.

use std::collections::HashSet;

use super::LOCAL_PORT_DEADLINE;
use crate::attach::Handles;
use crate::observe::Repair;
use crate::ports::PortRecord;

/// Removes every port of podwire whose host end is gone. Others' rows stay, whatever their state.
pub(super) async fn remove(node: &Handles) {
    let links: HashSet<String> = match node.netlink.list_veths().await {
        Ok(links) => links.into_iter().map(|link| link.name).collect(),
        Err(error) => {
            tracing::error!(
                %error,
                "can't find out which ports have outlived their links; they stay until GC"
            );
            return;
        }
    };
    let stale: Vec<PortRecord> = node
        .ports
        .all()
        .into_iter()
        .filter(|record| !links.contains(&record.name))
        .collect();
    if stale.is_empty() {
        return;
    }
    if !sees_bridge(node).await {
        tracing::error!(
            bridge = node.config.bridge,
            ports = stale.len(),
            "ports seem to have outlived their links, but the bridge's own link is not to be \
             seen either: is this the network namespace of ovs-vswitchd, and does it run? they \
             stay until GC"
        );
        return;
    }
    tracing::info!(
        ports = stale.len(),
        "removing ports that outlived their links"
    );
    let names: Vec<&str> = stale.iter().map(|record| record.name.as_str()).collect();
    node.journal.retire_names(&names);
    match node.ports.remove(&stale).await {
        Ok(()) => node.metrics.repaired(Repair::PortWithoutLink, stale.len()),
        Err(error) => tracing::error!(%error, "ports without links stay until GC"),
    }
}

/// Whether Open vSwitch's links are in this namespace: in another one, every port seems to have
/// lost its own.
async fn sees_bridge(node: &Handles) -> bool {
    let mut link = node.netlink.watch_link(&node.config.bridge);
    let seen = tokio::time::timeout(LOCAL_PORT_DEADLINE, link.wait_for(Option::is_some)).await;
    matches!(seen, Ok(Ok(_)))
}
