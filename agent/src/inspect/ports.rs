//! The ports as people see them: whose each is, and how it is doing.

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{Filter, PortList};
use crate::attach::Agent;
use crate::config::Wait;
use crate::plan::{AttachmentKey, Bandwidth, ids};
use crate::ports::{PortRecord, PortState, addresses};

/// A port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortView {
    /// Name of port, interface and host link.
    pub name: String,
    /// How it is doing.
    pub state: PortState,
    /// Why it is not up, where Open vSwitch says so.
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
    /// The bridge it is on.
    pub bridge: Option<String>,
    /// Its OpenFlow port number; -1 when Open vSwitch could not use the link.
    pub ofport: Option<i64>,
    /// What it may send and receive.
    pub bandwidth: Bandwidth,
    /// All external_ids, other writers' as well.
    pub external_ids: BTreeMap<String, String>,
}

impl PortView {
    /// A port as its row has it.
    pub fn of(record: PortRecord, wait: Wait) -> Self {
        let id = |name: &str| record.external_ids.get(name).cloned();
        Self {
            state: record.state(wait),
            addresses: addresses(&record.external_ids).collect(),
            mac: id(ids::ATTACHED_MAC),
            netns: id(ids::NETNS),
            name: record.name,
            error: record.error,
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

/// The ports that are wanted, in the order of their pods.
pub fn ports(agent: &Agent, filter: &Filter) -> PortList {
    let wait = agent.config.ovn.wait;
    let mut ports: Vec<PortView> = agent
        .ports
        .all()
        .into_iter()
        .filter(|record| filter.admits_pod(record.pod.as_deref()))
        .filter(|record| filter.state.is_none_or(|state| record.state(wait) == state))
        .map(|record| PortView::of(record, wait))
        .collect();
    sort(&mut ports);
    PortList { ports }
}

/// By pod and interface; without a pod, by name.
pub(crate) fn sort(ports: &mut [PortView]) {
    ports.sort_by(|a, b| (&a.pod, &a.pod_ifname, &a.name).cmp(&(&b.pod, &b.pod_ifname, &b.name)));
}
