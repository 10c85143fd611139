//! CHECK: compares rows, links and addresses with the result of ADD. The first difference is the
//! error.
//!
//! prevResult is that of the whole chain: later plugins record their changes there (a MAC set by
//! `tuning`, an MTU). So CHECK compares with prevResult only, never with podwire's own plan.
//! Anything else, such as further routes, is up to others.

mod fault;
mod host;
mod pod;

use std::collections::BTreeMap;
use std::sync::Arc;

use podwire_cni::spec::{CniResult, Interface, Vlan};
use podwire_netns::{LinkState, Netns, Observed};
use serde::{Deserialize, Serialize};

use super::{Call, Error, Handles, READY_DEADLINE};
use crate::journal::{Entry, EntryPort};
use crate::observe::Trace;
use crate::plan::{SwitchPort, ids, mac_text};
use crate::ports::PortRecord;

pub use fault::Fault;
pub(crate) use host::{Expected, HostEnd, mute_ports};
pub(crate) use pod::{lost_routes, pod_differences};

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Its kind; None from an older agent.
    #[serde(default)]
    pub kind: Option<Fault>,
    /// A description.
    pub what: String,
    /// The command that fixes it, if one does.
    #[serde(alias = "mend")]
    pub fix: Option<String>,
}

impl Difference {
    pub(crate) fn new(kind: Fault, what: impl Into<String>) -> Self {
        Self {
            kind: Some(kind),
            what: what.into(),
            fix: None,
        }
    }

    pub(crate) fn with_fix(kind: Fault, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            fix: Some(fix.into()),
            ..Self::new(kind, what)
        }
    }
}

/// Compares an attachment with prevResult.
pub(super) async fn check(node: &Handles, call: &Call, trace: &mut Trace) -> Result<(), Error> {
    let prev = call
        .conf
        .prev_result()
        .map_err(|error| Error::Request(error.into()))?;
    let prev = prev.ok_or(Error::NoPrevResult)?;
    let netns = Arc::new(Netns::open(&call.invocation.netns)?);

    let rows = trace.begin("rows");
    node.ports.synced(READY_DEADLINE).await?;
    let mut records = node.ports.find(&call.key);
    if let Some(definition) = &call.conf.net_attach_def_name {
        records.extend(node.ports.of_definition(&call.key.container_id, definition));
    }
    if records.is_empty() {
        return Err(Error::Differs(format!(
            "Open vSwitch has no port for {}",
            call.key
        )));
    }
    let made = node.journal.find(&call.key)?.map(|(_, entry)| entry);
    for record in &records {
        none(row_differences(record, &node.config.bridge, made.as_ref()))?;
    }
    trace.phase("rows", rows);

    let pod = trace.begin("pod");
    let mut observed: Vec<(usize, Observed)> = Vec::new();
    for (index, interface) in sandbox_interfaces(&prev, call, &records) {
        let seen = node
            .netlink
            .observe(Arc::clone(&netns), &interface.name)
            .await?;
        none(pod_differences(&prev, index, interface, seen.as_ref(), ""))?;
        observed.extend(seen.map(|seen| (index, seen)));
    }
    none(lost_routes(&prev, &observed, ""))?;
    trace.phase("pod", pod);

    let links = trace.begin("host links");
    for record in &records {
        let ifname = record.pod_ifname.as_deref().unwrap_or(&call.key.ifname);
        let pod = observed.iter().find(|(_, seen)| seen.link.name == ifname);
        let pod = pod.map(|(_, seen)| &seen.link);
        let expected = Expected::of_result(&prev, &record.name);
        let host = HostEnd::read(node, record, pod).await?;
        none(host.differences(record, pod, &expected))?;
        none(other_source_mac(node, record, pod))?;
    }
    trace.phase("host links", links);
    if let Some(plugin) = call.delegate(node)? {
        plugin.check().await?;
    }
    Ok(())
}

/// Port security drops what a pod sends if its MAC address is not the one that the port was created
/// for. A later plugin may have recorded the new one in prevResult.
fn other_source_mac(
    node: &Handles,
    record: &PortRecord,
    pod: Option<&LinkState>,
) -> Vec<Difference> {
    let said = |id: &str| record.external_ids.get(id).map(String::as_str);
    let (Some(made), Some(pod)) = (said(ids::ATTACHED_MAC), pod) else {
        return Vec::new();
    };
    let has = pod.mac.map(mac_text).unwrap_or_default();
    if made.eq_ignore_ascii_case(&has) || !node.ports.has_port_security(said(ids::PORT_SECURITY)) {
        return Vec::new();
    }
    vec![Difference::new(
        Fault::PodMac,
        format!(
            "interface {} has MAC {has}, but port security drops what is not sent from {made} (to \
             do without it, set \"portSecurity\": false in the network configuration)",
            pod.name
        ),
    )]
}

fn none(differences: Vec<Difference>) -> Result<(), Error> {
    match differences.into_iter().next() {
        Some(first) => Err(Error::Differs(first.what)),
        None => Ok(()),
    }
}

/// The interfaces of prevResult that this attachment created, with their indexes. Other plugins
/// check their own in the same sandbox.
fn sandbox_interfaces<'a>(
    prev: &'a CniResult,
    call: &'a Call,
    records: &'a [PortRecord],
) -> impl Iterator<Item = (usize, &'a Interface)> {
    prev.interfaces
        .iter()
        .enumerate()
        .filter(move |(_, interface)| {
            let is_ours = interface.name == call.key.ifname
                || records
                    .iter()
                    .any(|record| record.pod_ifname.as_deref() == Some(interface.name.as_str()));
            is_inside(interface) && is_ours
        })
}

/// Whether an interface of a result is in the pod and not on the host.
fn is_inside(interface: &Interface) -> bool {
    let sandbox = interface.sandbox.as_ref();
    sandbox.is_some_and(|sandbox| !sandbox.is_empty())
}

/// The port of an intent log entry that this row belongs to.
pub(crate) fn made_port<'a>(record: &PortRecord, made: Option<&'a Entry>) -> Option<&'a EntryPort> {
    let same_interface = |port: &&EntryPort| {
        port.external_ids.get(ids::POD_IF_NAME) == record.external_ids.get(ids::POD_IF_NAME)
    };
    made.and_then(|entry| entry.ports.iter().find(same_interface))
}

/// What is wrong with an attachment's row.
pub(crate) fn row_differences(
    record: &PortRecord,
    bridge: &str,
    made: Option<&Entry>,
) -> Vec<Difference> {
    let name = &record.name;
    let iface_id = |ids: &BTreeMap<String, String>| ids.get(ids::IFACE_ID).cloned();
    let mut found = Vec::new();
    let made_port = made_port(record, made);
    if let Some(given) = made_port.and_then(|port| iface_id(&port.external_ids)) {
        let now = iface_id(&record.external_ids).unwrap_or_default();
        if now != given {
            found.push(Difference::with_fix(
                Fault::IfaceIdChanged,
                format!("port {name} has iface-id {now:?}, but was created with {given:?}"),
                format!("ovs-vsctl set interface {name} external_ids:iface-id={given}"),
            ));
        }
    }
    let external_ids = made_port.map_or(&record.external_ids, |port| &port.external_ids);
    let switch_port = SwitchPort::of(external_ids);
    let bridge = switch_port.bridge.as_deref().unwrap_or(bridge);
    if record.bridge.as_deref() != Some(bridge) {
        let on = record.bridge.as_deref().unwrap_or("no bridge");
        found.push(Difference::new(
            Fault::OnOtherBridge,
            format!("port {name} is on {on}, not on {bridge}"),
        ));
    }
    found.extend(vlan_difference(record, switch_port.vlan.as_ref()));
    if let Some(error) = &record.error {
        found.push(Difference::new(
            Fault::PortError,
            format!("Open vSwitch reports of port {name}: {error}"),
        ));
    } else if record.ofport.is_none_or(|ofport| ofport <= 0) {
        found.push(Difference::new(
            Fault::NoOfport,
            format!("Open vSwitch has given port {name} no ofport"),
        ));
    } else if let Some(wanted) = switch_port.ofport_request
        && record.ofport != Some(i64::from(wanted))
    {
        let has = record.ofport.unwrap_or_default();
        found.push(Difference::with_fix(
            Fault::OtherOfport,
            format!("port {name} has OpenFlow port number {has}, but was created with {wanted}"),
            format!("ovs-vsctl set interface {name} ofport_request={wanted}"),
        ));
    }
    found
}

/// The VLAN columns of the row, compared with those that it was created with.
fn vlan_difference(record: &PortRecord, created: Option<&Vlan>) -> Option<Difference> {
    let (name, wanted) = (&record.name, created.map(Vlan::to_string));
    if record.vlan == wanted {
        return None;
    }
    let mut fix = format!("ovs-vsctl clear port {name} tag trunks vlan_mode");
    let Some(created) = created else {
        let vlan = record.vlan.as_deref().unwrap_or_default();
        let what = format!("port {name} has {vlan}: its packets are in a VLAN of their own");
        return Some(Difference::with_fix(Fault::InVlan, what, fix));
    };
    let has = record.vlan.as_deref().unwrap_or("no VLAN columns");
    let wanted = wanted.unwrap_or_default();
    let what = format!("port {name} has {has}, but was created with {wanted}");
    fix.push_str(&format!(" -- set port {name} vlan_mode={}", created.mode()));
    if let Some(tag) = created.tag {
        fix.push_str(&format!(" tag={tag}"));
    }
    if !created.trunks.is_empty() {
        let trunks: Vec<String> = created.trunks.iter().map(|it| it.to_string()).collect();
        fix.push_str(&format!(" trunks={}", trunks.join(",")));
    }
    Some(Difference::with_fix(Fault::InVlan, what, fix))
}

#[cfg(test)]
mod tests;
