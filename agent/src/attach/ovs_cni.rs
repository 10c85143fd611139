//! What ovs-cni left to a node on which podwire took its place (`podwire install --as ovs`).

use podwire_cni::spec::OVS_CNI;

use super::links::remove_link;
use super::on_bridge::OnBridge;
use super::{Call, Error, Handles};
use crate::plan::ids;
use crate::ports::OvsCniPort;

/// Removes the port of a DEL that ovs-cni created for its ADD, and those of the same interface
/// whose namespace is gone: their DEL comes without it, or never.
pub(super) async fn remove_port(node: &Handles, call: &Call) -> Result<(), Error> {
    let call = &call.invocation;
    remove(node, |port| {
        let is_named = !call.netns.is_empty() && port.netns == call.netns;
        port.ifname == call.ifname && (is_named || port.is_stale())
    })
    .await
}

/// Removes the ports whose namespace is gone.
pub(super) async fn remove_stale(node: &Handles) -> Result<(), Error> {
    remove(node, OvsCniPort::is_stale).await
}

/// Removes the port that has an ADD's logical port, if its namespace is gone.
pub(super) async fn clear_logical_port(node: &Handles, on_bridge: &OnBridge) -> Result<(), Error> {
    let Some(wanted) = on_bridge.logical_port() else {
        return Ok(());
    };
    if node.ports.with_iface_id(wanted).is_empty() {
        return Ok(());
    }
    remove(node, |port| {
        let iface_id = port.record.external_ids.get(ids::IFACE_ID);
        iface_id.map(String::as_str) == Some(wanted) && port.is_stale()
    })
    .await
}

/// Whether a call is one that ovs-cni served.
pub(super) fn is_for(call: &Call) -> bool {
    call.conf.plugin_type == OVS_CNI
}

async fn remove(node: &Handles, which: impl Fn(&OvsCniPort) -> bool) -> Result<(), Error> {
    let ports = node.ports.of_ovs_cni().into_iter();
    let records: Vec<_> = ports.filter(which).map(|port| port.record).collect();
    for record in &records {
        tracing::info!(port = record.name, "removing a port that ovs-cni left");
    }
    let mut errors: Vec<Error> = Vec::new();
    errors.extend(node.ports.remove(&records).await.err().map(Error::from));
    for record in &records {
        errors.extend(remove_link(node, &record.name).await.err());
    }
    Error::gather(errors)
}
