//! The ports as operators see them: whose they are, and their state.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use ipnet::IpNet;
use podwire_cni::spool::boottime;
use podwire_netns::LinkState;
use serde::{Deserialize, Serialize};

use super::{Filter, PortList, now_micros};
use crate::attach::{Error, Handles, mute_ports};
use crate::config::Wait;
use crate::plan::{AttachmentKey, Bandwidth, ids};
use crate::ports::{PortRecord, PortState, addresses};

/// A port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortView {
    /// Name of port, interface and host link.
    pub name: String,
    /// Its state.
    pub state: PortState,
    /// When its ADD began, in microseconds since 1970; None without a record in the intent log.
    #[serde(default)]
    pub added_unix_micros: Option<u64>,
    /// What is wrong with its link, according to the kernel or to Open vSwitch.
    pub error: Option<String>,
    /// `namespace/name` of the pod.
    pub pod: Option<String>,
    /// The interface's name in the pod.
    pub pod_ifname: Option<String>,
    /// The pod end's addresses.
    pub addresses: Vec<IpNet>,
    /// The pod end's MAC address.
    pub mac: Option<String>,
    /// The MTU, in bytes, as Open vSwitch sees it on the host end.
    pub mtu: Option<i64>,
    /// The attachment.
    pub key: Option<AttachmentKey>,
    /// CNI_NETNS.
    pub netns: Option<String>,
    /// Its bridge.
    pub bridge: Option<String>,
    /// Its OpenFlow port number; -1 if Open vSwitch can't use the link.
    pub ofport: Option<i64>,
    /// Its bandwidth limits.
    pub bandwidth: Bandwidth,
    /// All external_ids, including other writers' keys.
    pub external_ids: BTreeMap<String, String>,
}

impl PortView {
    /// A port by its row and, if there is one, its host link.
    ///
    /// Open vSwitch notices a missing link only when it next checks its ports, which may be much
    /// later.
    fn of(
        record: PortRecord,
        wait: Wait,
        link: Option<&LinkState>,
        is_mute: bool,
        added_unix_micros: Option<u64>,
    ) -> Self {
        let id = |name: &str| record.external_ids.get(name).cloned();
        let link_error = match link {
            None => Some(format!("the host has no link {}", record.name)),
            Some(link) if !link.up => Some(format!("the host's link {} is down", record.name)),
            Some(_) => is_mute.then(|| format!("port {} carries no packets", record.name)),
        };
        Self {
            state: match link_error {
                Some(_) => PortState::Failed,
                None => record.state(wait),
            },
            addresses: addresses(&record.external_ids).collect(),
            mac: id(ids::ATTACHED_MAC),
            netns: id(ids::NETNS),
            name: record.name,
            added_unix_micros,
            error: link_error.or(record.error),
            pod: record.pod,
            pod_ifname: record.pod_ifname,
            mtu: record.mtu,
            key: record.key,
            bridge: record.bridge,
            ofport: record.ofport,
            bandwidth: record.bandwidth,
            external_ids: record.external_ids,
        }
    }
}

/// The ports that the filter admits, ordered by pod.
///
/// # Errors
/// The kernel does not list the host's links.
pub async fn ports(node: &Handles, filter: &Filter) -> Result<PortList, Error> {
    ports_after(node, filter, &BTreeMap::new()).await
}

/// The same for a watcher. Facts that can't change are taken from what it was shown before.
pub(super) async fn ports_after(
    node: &Handles,
    filter: &Filter,
    before: &BTreeMap<String, PortView>,
) -> Result<PortList, Error> {
    let wait = node.config.ovn.wait;
    let links = node.netlink.host_links().await?;
    let mut records = node.ports.all();
    records.retain(|record| filter.admits_pod(record.pod.as_deref()));
    let with_links = records
        .iter()
        .filter_map(|record| Some((record, links.get(&record.name)?)));
    let mute = mute_ports(node, with_links).await;
    let view = |record: PortRecord| {
        let link = links.get(&record.name);
        let is_mute = mute.contains(&record.name);
        let added = match before.get(&record.name) {
            Some(shown) if shown.key == record.key => shown.added_unix_micros,
            _ => added_unix_micros(node, record.key.as_ref()),
        };
        PortView::of(record, wait, link, is_mute, added)
    };
    let ports = records.into_iter().map(view);
    let mut ports: Vec<PortView> = ports
        .filter(|port| filter.state.is_none_or(|state| port.state == state))
        .collect();
    sort(&mut ports);
    Ok(PortList { ports })
}

/// When the ADD of an attachment began, according to the intent log.
fn added_unix_micros(node: &Handles, key: Option<&AttachmentKey>) -> Option<u64> {
    /// The boot time, read once: two readings differ by the time between reading the two clocks.
    static BOOT: LazyLock<u64> = LazyLock::new(|| now_micros().saturating_sub(boottime() / 1_000));
    let (_, entry) = node.journal.find(key?).ok()??;
    // An older agent's entry has no time.
    (entry.since > 0).then(|| *BOOT + entry.since / 1_000)
}

/// Orders by pod and interface; ports without a pod by name.
pub fn sort(ports: &mut [PortView]) {
    ports.sort_by(|a, b| (&a.pod, &a.pod_ifname, &a.name).cmp(&(&b.pod, &b.pod_ifname, &b.name)));
}
