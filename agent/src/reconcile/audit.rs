//! A CHECK without prevResult: compares rows, links and namespaces with what their ADD recorded.
//!
//! It is for operators, who check every attachment at once, so it continues after the first
//! difference. Only prevResult has the changes of later plugins in the chain; here they show as
//! differences.

use std::sync::Arc;

use podwire_cni::spec::{CniResult, Interface, IpConfig};
use podwire_netns::{Netns, NetnsError, Observed};
use serde::{Deserialize, Serialize};

use super::leftovers::{leftover, netns_of, pod_of};
use crate::attach::{
    Difference, Error, Expected, Fault, Handles, HostEnd, READY_DEADLINE, is_made_in, lost_routes,
    made_port, pod_differences, row_differences,
};
use crate::journal::{Entry, EntryPort, State};
use crate::plan::{self, AttachmentKey, ids};
use crate::ports::{PortRecord, PortState, addresses};

/// The findings for one attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Audit {
    /// Which attachment.
    pub key: AttachmentKey,
    /// `namespace/name` of its pod.
    pub pod: Option<String>,
    /// CNI_NETNS of its ADD.
    pub netns: Option<String>,
    /// An operation is working on it, so it was not checked.
    pub busy: bool,
    /// What differs from the result of its ADD; empty if all is well.
    pub differences: Vec<Difference>,
}

/// Checks every attachment whose pod the filter admits.
///
/// # Errors
/// Open vSwitch's database can't be reached, or the kernel does not answer.
pub async fn audit(
    node: &Handles,
    wanted: impl Fn(Option<&str>) -> bool,
) -> Result<Vec<Audit>, Error> {
    node.ports.synced(READY_DEADLINE).await?;
    let mut audits = Vec::new();
    for key in node.attachments() {
        let records = node.ports.find(&key);
        let found = node.journal.find(&key);
        let noted = found.as_ref().ok().and_then(Option::as_ref);
        let noted = noted.map(|(_, entry)| entry);
        let pod = pod_of(&records, noted);
        if !wanted(pod.as_deref()) {
            continue;
        }
        let busy = node.lines.is_busy(&key);
        let netns = netns_of(&records, noted);
        let differences = match found {
            _ if busy => Vec::new(),
            Ok(entry) => differences(node, &key, &records, entry, netns.as_deref()).await?,
            Err(error) => vec![Difference::new(
                Fault::RecordUnreadable,
                format!("its record can't be read: {error}"),
            )],
        };
        audits.push(Audit {
            key,
            pod,
            netns,
            busy,
            differences,
        });
    }
    audits.sort_by(|a, b| (&a.pod, &a.key).cmp(&(&b.pod, &b.key)));
    Ok(audits)
}

async fn differences(
    node: &Handles,
    key: &AttachmentKey,
    records: &[PortRecord],
    entry: Option<(State, Entry)>,
    netns: Option<&str>,
) -> Result<Vec<Difference>, Error> {
    let mut found = Vec::new();
    let entry = match entry {
        Some((State::Live, entry)) => Some(entry),
        Some((State::Adding, _)) => {
            found.push(Difference::new(
                Fault::AddInterrupted,
                "its ADD was interrupted and is not undone yet",
            ));
            return Ok(found);
        }
        Some((State::Deleting, _)) => {
            found.push(Difference::with_fix(
                Fault::DelUnfinished,
                "its DEL is not finished",
                "podwire gc",
            ));
            return Ok(found);
        }
        None => {
            found.push(Difference::new(
                Fault::NoRecord,
                "it has no record under the run directory: its port could not be restored if Open \
                 vSwitch's database were lost",
            ));
            None
        }
    };
    let netns = match open_namespace(netns, entry.as_ref()) {
        Ok(netns) => Some(netns),
        Err(what) => {
            let can_go = leftover(node, key).await?.is_some();
            let fix = can_go.then(|| "podwire gc".to_owned());
            found.push(Difference {
                kind: Some(Fault::NamespaceGone),
                what,
                fix,
            });
            None
        }
    };
    if records.is_empty() {
        found.push(Difference::new(
            Fault::NoPort,
            format!("Open vSwitch has no port for {key}"),
        ));
    }
    for record in records {
        let bridge = record.external_ids.get(ids::BRIDGE);
        let bridge = bridge.unwrap_or(&node.config.bridge);
        let netdev = node.ports.is_netdev(bridge) == Some(true);
        found.extend(row_differences(record, &node.config.bridge, entry.as_ref()));
        if record.state(node.config.ovn.wait) == PortState::AwaitsOvn {
            found.push(Difference::new(
                Fault::OvnNotInstalled,
                format!("OVN has not installed the flows of port {}", record.name),
            ));
        }
        let made = made_port(record, entry.as_ref());
        let mut pod = None;
        if let Some(netns) = &netns {
            let name = record.pod_ifname.as_deref().unwrap_or(&key.ifname);
            pod = node.netlink.observe(Arc::clone(netns), name).await?;
            let expected = as_result(record, name, made);
            found.extend(inside_differences(&expected, pod.as_ref(), netns, netdev));
        }
        let pod = pod.map(|seen| seen.link);
        let host = HostEnd::read(node, record, pod.as_ref()).await?;
        found.extend(host.differences(record, pod.as_ref(), &Expected::of_port(made)));
    }
    Ok(found)
}

/// The namespace that the attachment was created in; or why it is not available.
fn open_namespace(path: Option<&str>, entry: Option<&Entry>) -> Result<Arc<Netns>, String> {
    let path = path.ok_or("its network namespace was not recorded")?;
    let netns = Netns::open(path).map_err(|error| match error {
        NetnsError::Absent { .. } => format!("its network namespace {path} is gone"),
        other => other.to_string(),
    })?;
    if !is_made_in(&netns, entry) {
        return Err(format!("{path} is another pod's network namespace by now"));
    }
    Ok(Arc::new(netns))
}

/// The differences in the pod's namespace.
fn inside_differences(
    expected: &CniResult,
    seen: Option<&Observed>,
    netns: &Netns,
    netdev: bool,
) -> Vec<Difference> {
    let inside = format!("nsenter --net={} ", netns.path().display());
    let mut found = Vec::new();
    for interface in &expected.interfaces {
        found.extend(pod_differences(expected, 0, interface, seen, &inside));
    }
    if let Some(seen) = seen {
        found.extend(lost_routes(expected, &[(0, seen.clone())], &inside));
        if netdev && seen.tx_checksum == Some(true) {
            let name = &seen.link.name;
            found.push(Difference::with_fix(
                Fault::TxChecksum,
                format!(
                    "interface {name} has TX checksum offload on, but the bridge's datapath is \
                     netdev: TCP does not work"
                ),
                format!("{inside}ethtool -K {name} tx off"),
            ));
        }
    }
    found
}

/// The row's and the intent log's records of a pod's interface, in the form of a result. The MTU is
/// not compared: a later plugin may have set a smaller one, which does no harm.
fn as_result(record: &PortRecord, name: &str, made: Option<&EntryPort>) -> CniResult {
    let interface = Interface {
        name: name.to_owned(),
        mac: record.external_ids.get(ids::ATTACHED_MAC).cloned(),
        sandbox: Some("/".to_owned()),
        ..Interface::default()
    };
    let ip = |address| IpConfig {
        interface: Some(0),
        address,
        gateway: None,
    };
    let routes = made.into_iter().flat_map(|port| &port.routes);
    CniResult {
        interfaces: vec![interface],
        ips: addresses(&record.external_ids).map(ip).collect(),
        routes: routes.map(plan::result::route).collect(),
        ..CniResult::default()
    }
}
