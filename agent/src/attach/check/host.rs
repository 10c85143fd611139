//! The host end of a pair: whether it exists under its name, and whether the switch uses it.

use std::collections::HashSet;
use std::time::Duration;

use podwire_cni::spec::CniResult;
use podwire_netns::{Datapath, LinkState, NoPackets};

use super::super::{Error, Handles};
use super::{Difference, Fault, is_inside};
use crate::journal::EntryPort;
use crate::plan::mac_text;
use crate::ports::PortRecord;

/// Time limit for ovs-vswitchd to answer when a port seems to carry nothing.
const ANSWER_DEADLINE: Duration = Duration::from_millis(500);

/// The expected properties of the host end, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    mac: Option<String>,
    mtu: Option<u32>,
}

impl Expected {
    /// From the interface with this name in a result.
    pub(super) fn of_result(prev: &CniResult, name: &str) -> Self {
        let mut hosts = prev.interfaces.iter().filter(|it| !is_inside(it));
        let host = hosts.find(|interface| interface.name == name);
        Self {
            mac: host
                .and_then(|host| host.mac.clone())
                .filter(|mac| !mac.is_empty()),
            mtu: host.and_then(|host| host.mtu).filter(|mtu| *mtu != 0),
        }
    }

    /// From the intent log.
    pub(crate) fn of_port(port: Option<&EntryPort>) -> Self {
        Self {
            mac: port.map(|port| port.host_mac.clone()),
            mtu: port.and_then(|port| port.mtu),
        }
    }
}

/// The present state of the host end.
#[derive(Debug)]
pub(crate) struct HostEnd {
    /// The link with the port's name.
    link: Option<LinkState>,
    /// The pod's peer, if it has another name.
    renamed: Option<String>,
    /// Whether the switch has lost it although its row looks fine.
    carries_nothing: bool,
}

impl HostEnd {
    /// Reads the link of a row; `pod` is the pod end.
    pub(crate) async fn read(
        node: &Handles,
        record: &PortRecord,
        pod: Option<&LinkState>,
    ) -> Result<Self, Error> {
        let link = node.netlink.host_link(&record.name).await?;
        let mut renamed = None;
        if let (None, Some(pod)) = (&link, pod)
            && let Some(index) = pod.peer_ifindex
            && let Some(peer) = node.netlink.host_link_of_index(index).await?
            && peer.peer_ifindex == Some(pod.ifindex)
        {
            renamed = Some(peer.name);
        }
        let mute = mute_ports(node, link.iter().map(|link| (record, link))).await;
        Ok(Self {
            link,
            renamed,
            carries_nothing: mute.contains(&record.name),
        })
    }

    /// How it differs.
    pub(crate) fn differences(
        &self,
        record: &PortRecord,
        pod: Option<&LinkState>,
        expected: &Expected,
    ) -> Vec<Difference> {
        let name = &record.name;
        let Some(link) = &self.link else {
            return vec![match &self.renamed {
                Some(now) => Difference::with_fix(
                    Fault::HostLinkRenamed,
                    format!("the host has no link {name}: the pod's other end is called {now}"),
                    format!(
                        "ip link set {now} down && ip link set {now} name {name} && ip link set \
                         {name} up"
                    ),
                ),
                None => Difference::new(
                    Fault::HostLinkMissing,
                    format!("the host has no link {name}"),
                ),
            }];
        };
        let other_mac = expected.mac.as_ref().is_some_and(|wanted| {
            let found = link.mac.map(mac_text);
            found.is_none_or(|found| !wanted.eq_ignore_ascii_case(&found))
        });
        let other_pair = pod.is_some_and(|pod| {
            pod.peer_ifindex != Some(link.ifindex) || link.peer_ifindex != Some(pod.ifindex)
        });
        if link.kind.as_deref() != Some("veth") || other_pair || (pod.is_none() && other_mac) {
            return vec![Difference::new(
                Fault::HostLinkReplaced,
                format!("the host's link {name} is not the one that was created for it"),
            )];
        }
        let mut found = Vec::new();
        if other_mac && let Some(wanted) = &expected.mac {
            found.push(Difference::with_fix(
                Fault::HostMac,
                format!(
                    "the host's link {name} has MAC {}, and should have {wanted}",
                    link.mac.map(mac_text).unwrap_or_default()
                ),
                format!("ip link set {name} address {wanted}"),
            ));
        }
        // The receiving end drops a packet larger than its MTU (`is_skb_forwardable`).
        let wanted = expected.mtu.or(pod.map(|pod| pod.mtu));
        if let Some(wanted) = wanted.filter(|wanted| *wanted != link.mtu)
            && (expected.mtu.is_some() || link.mtu < wanted)
        {
            found.push(Difference::with_fix(
                Fault::HostMtu,
                format!(
                    "the host's link {name} has MTU {}, and should have {wanted}",
                    link.mtu
                ),
                format!("ip link set {name} mtu {wanted}"),
            ));
        }
        if !link.up {
            found.push(Difference::with_fix(
                Fault::HostLinkDown,
                format!("the host's link {name} is down"),
                format!("ip link set {name} up"),
            ));
        }
        if self.carries_nothing {
            found.push(Difference::with_fix(
                Fault::CarriesNothing,
                format!(
                    "port {name} carries no packets: the switch does not have host link {name}, \
                     or has one of that name which was removed"
                ),
                reopen(name),
            ));
        }
        found
    }
}

/// The commands that make ovs-vswitchd close a port's link and open it again: with an unknown type,
/// it releases the link; each command waits until it has.
fn reopen(name: &str) -> String {
    format!(
        "ovs-vsctl set interface {name} type=none && ovs-vsctl set interface {name} type=system"
    )
}

/// The names of those ports that carry no packets although their rows look fine. The descriptors
/// that ovs-vswitchd listens on count only while it answers, because it may be about to listen; a
/// silent ovs-vswitchd is reported for the switch and not for each port. The kernel's datapath
/// keeps its ports without it.
pub(crate) async fn mute_ports<'a>(
    node: &Handles,
    ports: impl IntoIterator<Item = (&'a PortRecord, &'a LinkState)>,
) -> HashSet<String> {
    let mut mute = HashSet::new();
    let mut is_certain = true;
    // Bridges may have different datapaths.
    let is_netdev = |(record, _): &(&PortRecord, &LinkState)| {
        let bridge = record.bridge.as_deref().unwrap_or(&node.config.bridge);
        node.ports.is_netdev(bridge) == Some(true)
    };
    let (userspace, kernel): (Vec<_>, Vec<_>) = ports.into_iter().partition(is_netdev);
    for (is_netdev, ports) in [(true, userspace), (false, kernel)] {
        if ports.is_empty() {
            continue;
        }
        let datapath = match Datapath::read(is_netdev) {
            Ok(datapath) => datapath,
            Err(error) => {
                tracing::warn!(%error, "can't find out which ports carry packets");
                continue;
            }
        };
        let is_mute = |record: &PortRecord, link: &LinkState| {
            let has_ofport = record.ofport.is_some_and(|ofport| ofport > 0);
            let fault = datapath.fault(link);
            has_ofport && matches!(fault, Some(NoPackets::NotHeard(_) | NoPackets::NoVport(_)))
        };
        let before = mute.len();
        let found = ports
            .into_iter()
            .filter(|(record, link)| is_mute(record, link));
        mute.extend(found.map(|(record, _)| record.name.clone()));
        is_certain &= mute.len() == before || datapath == Datapath::Kernel;
    }
    match is_certain || node.ports.switch_alive(ANSWER_DEADLINE).await.is_ok() {
        true => mute,
        false => HashSet::new(),
    }
}
